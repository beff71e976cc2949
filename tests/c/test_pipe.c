/* Pipes of frames: nothing tears, nothing is lost, and SIGPIPE stays the user's. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include "broker/process_table.h"
#include "ipc/pipe.h"

static int ends[2], capacity;

static void make(int nonblocking) {
  CHECK_EQ(shmi_pipe_make(ends, nonblocking, &capacity), SHM_OK);
}
static void unmake(void) {
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
}
static shmi_frame_t numbered(uint64_t number) {
  return (shmi_frame_t){.kind = SHMI_FRAME_CALL, .sequence = number, .deadline_ns = ~number};
}
static void send_numbered(uint64_t from, int count) {
  for (int i = 0; i < count; i++) {
    shmi_frame_t frame = numbered(from + (uint64_t)i);
    CHECK_EQ(shmi_pipe_write(ends[1], &frame, 1), 1);
  }
}

TEST(frames_come_out_as_they_went_in) {
  shmi_frame_t frames[300], got[300];
  make(0);
  for (uint64_t i = 0; i < 300; i++) frames[i] = numbered(i);
  CHECK_EQ(shmi_pipe_write(ends[1], frames, 300), 300);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 300), 300);
  CHECK_EQ(memcmp(frames, got, sizeof frames), 0);
  unmake();
}

TEST(a_reader_takes_at_most_what_it_has_room_for) {
  shmi_frame_t got[8];
  make(3);
  send_numbered(1, 10);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 8), 8);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 8), 2);
  CHECK_EQ(got[1].sequence, 10);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 8), 0);
  unmake();
}

TEST(a_full_pipe_takes_part_and_the_rest_later) {
  static shmi_frame_t frames[4096], got[4096];
  make(3);
  for (uint64_t i = 0; i < 4096; i++) frames[i] = numbered(i);
  int sent = shmi_pipe_write(ends[1], frames, 4096);
  CHECK(sent >= capacity);
  CHECK(sent < 4096);
  CHECK_EQ(shmi_pipe_write(ends[1], frames + sent, 1), 0);
  int taken = 0;
  while (taken < 4096) {
    int n = shmi_pipe_read(ends[0], got + taken, 4096 - taken);
    CHECK(n > 0);
    taken += n;
    if (sent < 4096) {
      n = shmi_pipe_write(ends[1], frames + sent, 4096 - sent);
      CHECK(n >= 0);
      sent += n;
    }
  }
  CHECK_EQ(memcmp(frames, got, sizeof frames), 0);
  unmake();
}

/* A page whose first frames were read stays taken until its last one is. */
TEST(the_capacity_holds_even_when_the_pipe_was_half_read) {
  shmi_frame_t got[64];
  for (int used = 1; used < 64; used += 7) {
    make(3);
    send_numbered(0, used + 5);
    CHECK_EQ(shmi_pipe_read(ends[0], got, used), used);
    send_numbered(1000, capacity - 5);
    unmake();
  }
}

TEST(a_small_pipe_says_so) {
  make(0);
  int bytes = fcntl(ends[1], F_GETPIPE_SZ);
  CHECK(capacity >= 64);
  CHECK((long)capacity * 64 <= bytes);
  unmake();
}

TEST(a_pipe_is_closed_in_programs_that_a_role_executes) {
  make(1);
  CHECK_EQ(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
  CHECK_EQ(fcntl(ends[1], F_GETFD), FD_CLOEXEC);
  CHECK((fcntl(ends[0], F_GETFL) & O_NONBLOCK) != 0);
  CHECK((fcntl(ends[1], F_GETFL) & O_NONBLOCK) == 0);
  unmake();
}

TEST(end_of_file_is_the_peers_death) {
  shmi_frame_t got[4];
  make(0);
  send_numbered(1, 2);
  close(ends[1]);
  ends[1] = -1;
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), 2);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), SHM_EBROKER_DIED);
  unmake();
}

TEST(a_torn_frame_is_told_from_the_end) {
  shmi_frame_t got[4], frame = numbered(1);
  make(1);
  CHECK_EQ(write(ends[1], &frame, 30), 30);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), SHM_EBAD_FRAME); /* non-blocking: no rest */
  unmake();
  make(0);
  CHECK_EQ(write(ends[1], &frame, 30), 30);
  close(ends[1]);
  ends[1] = -1;
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), SHM_EBAD_FRAME); /* blocking: it ends inside */
  unmake();
}

static void *write_the_rest(void *from) {
  CHECK_EQ(write(ends[1], from, 34), 34);
  return NULL;
}

TEST(a_blocking_reader_waits_for_the_rest_of_a_frame) {
  shmi_frame_t got[4], frame = numbered(77);
  pthread_t writer;
  make(0);
  CHECK_EQ(write(ends[1], &frame, 30), 30);
  CHECK_EQ(pthread_create(&writer, NULL, write_the_rest, (char *)&frame + 30), 0);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), 1);
  CHECK_EQ(got[0].sequence, 77);
  pthread_join(writer, NULL);
  unmake();
}

TEST(writing_to_nobody_is_an_outcome_and_not_a_signal) {
  shmi_frame_t frame = numbered(1);
  make(0);
  CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  close(ends[0]);
  ends[0] = -1;
  for (int i = 0; i < 3; i++) CHECK_EQ(shmi_pipe_write(ends[1], &frame, 1), SHM_EBROKER_DIED);
  sigset_t pending, mask;
  sigpending(&pending);
  CHECK_EQ(sigismember(&pending, SIGPIPE), 0);
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  CHECK_EQ(sigismember(&mask, SIGPIPE), 0);
  unmake();
}

TEST(a_users_own_pending_sigpipe_is_left_to_the_user) {
  shmi_frame_t frame = numbered(1);
  sigset_t pipe_set, pending;
  make(0);
  sigemptyset(&pipe_set);
  sigaddset(&pipe_set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_set, NULL);
  CHECK_EQ(pthread_kill(pthread_self(), SIGPIPE), 0);
  close(ends[0]);
  ends[0] = -1;
  CHECK_EQ(shmi_pipe_write(ends[1], &frame, 1), SHM_EBROKER_DIED);
  sigpending(&pending);
  CHECK_EQ(sigismember(&pending, SIGPIPE), 1);
  unmake();
}

TEST(with_sigpipe_ignored_the_outcome_is_the_same) {
  shmi_frame_t frame = numbered(1);
  make(0);
  signal(SIGPIPE, SIG_IGN);
  shmi_pipe_sigpipe(1);
  close(ends[0]);
  ends[0] = -1;
  CHECK_EQ(shmi_pipe_write(ends[1], &frame, 1), SHM_EBROKER_DIED);
  unmake();
}

static _Atomic int alarms; /* lock-free, so that a handler may raise it */
static void on_alarm(int number) {
  (void)number;
  alarms++;
}
static _Atomic int interrupted;
static void *interrupt(void *target) {
  pthread_t thread = *(pthread_t *)target;
  while (!interrupted) { /* the first may come before the wait has begun */
    pthread_kill(thread, SIGUSR1);
    harness_sleep_ms(5);
  }
  return NULL;
}

/* A signal whose handler does not restart calls ends a wait that has got nothing yet. */
TEST(a_signal_ends_an_empty_wait_with_eintr) {
  shmi_frame_t got[4];
  struct sigaction action = {.sa_handler = on_alarm};
  pthread_t thread, self = pthread_self();
  CHECK_SYS(sigaction(SIGUSR1, &action, NULL));
  make(0);
  CHECK_EQ(pthread_create(&thread, NULL, interrupt, &self), 0);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), SHM_EINTR);
  CHECK_EQ(shmi_pipe_wait(ends[0], -1), SHM_EINTR);
  CHECK(alarms >= 2);
  interrupted = 1;
  pthread_join(thread, NULL);
  send_numbered(5, 1);
  CHECK_EQ(shmi_pipe_read(ends[0], got, 4), 1);
  unmake();
}

enum { STORM_FRAMES = 20000 };
static _Atomic int storm_over;
static void *storm_writer(void *ignored) {
  (void)ignored;
  shmi_frame_t burst[100];
  for (uint64_t at = 0; at < STORM_FRAMES;) {
    int count = (int)(at % 100) + 1;
    if (at + (uint64_t)count > STORM_FRAMES) count = (int)(STORM_FRAMES - at);
    for (int i = 0; i < count; i++) burst[i] = numbered(at + (uint64_t)i);
    for (int sent = 0; sent < count;) {
      int got = shmi_pipe_write(ends[1], burst + sent, count - sent);
      if (got == SHM_EINTR) continue;
      CHECK(got > 0);
      sent += got;
    }
    at += (uint64_t)count;
  }
  return NULL;
}
static void *storm_signals(void *targets) {
  pthread_t *threads = targets;
  while (!storm_over) {
    pthread_kill(threads[0], SIGUSR1); /* the reader: it outlives this thread */
    struct timespec pause = {0, 50000};
    nanosleep(&pause, NULL);
  }
  return NULL;
}

TEST(a_storm_of_signals_loses_and_tears_nothing) {
  shmi_frame_t got[37];
  struct sigaction action = {.sa_handler = on_alarm};
  pthread_t writer, signaller, self = pthread_self();
  CHECK_SYS(sigaction(SIGUSR1, &action, NULL));
  make(0);
  CHECK_EQ(pthread_create(&writer, NULL, storm_writer, NULL), 0);
  CHECK_EQ(pthread_create(&signaller, NULL, storm_signals, &self), 0);
  for (uint64_t at = 0; at < STORM_FRAMES;) {
    int count = shmi_pipe_read(ends[0], got, 37);
    if (count == SHM_EINTR) continue;
    CHECK(count > 0);
    for (int i = 0; i < count; i++) {
      CHECK_EQ(got[i].sequence, at);
      CHECK_EQ(got[i].deadline_ns, ~at);
      at++;
    }
  }
  storm_over = 1;
  pthread_join(writer, NULL);
  pthread_join(signaller, NULL);
  unmake();
}

TEST(waiting_ends_at_its_time_or_with_a_frame) {
  make(0);
  CHECK_EQ(shmi_pipe_wait(ends[0], 0), 0);
  CHECK_EQ(shmi_pipe_wait(ends[0], 1000000), 0);
  send_numbered(1, 1);
  CHECK_EQ(shmi_pipe_wait(ends[0], -1), 1);
  int first[2] = {ends[0], ends[1]};
  make(0);
  CHECK_EQ(shmi_pipe_wait_either(ends[0], first[0], -1), 2);
  CHECK_EQ(shmi_pipe_wait_either(first[0], ends[0], -1), 1);
  CHECK_EQ(shmi_pipe_wait_either(ends[0], ends[0], 0), 0);
  close(first[0]);
  close(first[1]);
  unmake();
}

static int open_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

TEST(two_pipes_are_made_both_or_none_wherever_descriptors_run_out) {
  struct rlimit limit;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  int before = open_descriptors(), failures = 0;
  for (limit.rlim_cur = 3; limit.rlim_cur < 64; limit.rlim_cur++, failures++) {
    int towards[2] = {-1, -1}, from[2] = {-1, -1};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int status = shmi_process_table_two_pipes(towards, from, &capacity);
    if (status == SHM_OK) {
      CHECK_EQ(open_descriptors(), before + 4);
      CHECK((fcntl(towards[1], F_GETFL) & O_NONBLOCK) && (fcntl(from[0], F_GETFL) & O_NONBLOCK));
      CHECK(!(fcntl(towards[0], F_GETFL) & O_NONBLOCK));
      CHECK(!(fcntl(from[1], F_GETFL) & O_NONBLOCK));
      CHECK(capacity > 1);
      for (int end = 0; end < 2; end++) close(towards[end]), close(from[end]);
      break;
    }
    CHECK_EQ(status, SHM_ESYSTEM);
    CHECK_EQ(open_descriptors(), before);
    for (int end = 0; end < 2; end++) CHECK(towards[end] < 0 && from[end] < 0);
  }
  CHECK(failures >= 4);
  CHECK(limit.rlim_cur < 64);
}
