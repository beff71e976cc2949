/* The listener: who is let in, who is sent away, and that nobody there holds the broker up. Each test
 * runs a broker in this process and plays its clients from others. */
#include "broker.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/passing.h"
#include "broker/quota.h"
#include "ipc/attach_handshake.h"

static struct sockaddr_un address;
static socklen_t address_bytes;

static int connect_to_broker(void) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  CHECK_SYS(connect(fd, (struct sockaddr *)&address, address_bytes));
  return fd;
}

static int join_within(int64_t wait_ns) {
  int fd = connect_to_broker(), manifest_fd;
  int status = shm_join(fd, "client", wait_ns, 0, &manifest_fd);
  CHECK_EQ(manifest_fd, -1);
  close(fd);
  return status;
}

/* What the listener answers: its status; SHM_EBROKER_DIED when it hangs up without a word. */
static int answer(int fd, shmi_welcome_t *welcome) {
  ssize_t got = recv(fd, welcome, sizeof *welcome, 0);
  if (got <= 0) return SHM_EBROKER_DIED;
  CHECK_EQ(got, sizeof *welcome);
  CHECK_EQ(welcome->magic, SHMI_ATTACH_MAGIC);
  return welcome->status;
}

static shmi_hello_t hello_of(int kind) {
  return (shmi_hello_t){
      .magic = SHMI_ATTACH_MAGIC, .version = SHMI_ATTACH_VERSION, .kind = kind, .program = "client"};
}

static int parent_fds(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)notes[0]);
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  while (readdir(dir) != NULL) count++;
  closedir(dir);
  return count;
}

static pid_t play(void (*part)(void)) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  part();
  fflush(NULL);
  _exit(0);
}

static void expect_well(pid_t pid) {
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK_EQ(status, 0);
}

static int ends_by_itself; /* the broker, when the part has been played */

/* Before a launch of so many slots: the socket where they are asked for. */
static int open_with_listener(int slots) {
  broker_open(0, 1);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  struct sockaddr_un any = {.sun_family = AF_UNIX};
  CHECK_SYS(bind(listener, (struct sockaddr *)&any, sizeof any.sun_family)); /* the kernel names it */
  address_bytes = sizeof address;
  CHECK_SYS(getsockname(listener, (struct sockaddr *)&address, &address_bytes));
  CHECK_SYS(listen(listener, 512));
  config.slot_count = slots;
  config.helper_count = 3;
  config.helper_absent[1] = config.helper_absent[2] = 1;
  config.persistent = SHM_UNTIL_TOLD;
  config.listener_fd = listener;
  notes[0] = (uint64_t)getpid();
  return listener;
}

/* A broker of so many slots, with that part played beside it, which ends it. */
static void with_clients(int slots, void (*part)(void)) {
  int listener = open_with_listener(slots);
  pid_t clients = fork();
  if (clients == 0) {
    close(listener);
    part();
    fflush(NULL);
    if (!ends_by_itself) CHECK_SYS(kill((pid_t)notes[0], SIGTERM));
    _exit(0);
  }
  CHECK_EQ(launch(NULL), ends_by_itself ? SHM_OK : SHM_ESIGNALLED);
  expect_well(clients);
  close(listener);
  expect_nothing_left();
}

/* ---- joining ---- */

static void come_and_go(void) {
  int before = 0;
  for (int i = 0; i < 20; i++) {
    CHECK_EQ(join_within(8 * SECOND_NS), SHM_OK); /* the last place may still be being cleared */
    CHECK_EQ(shm_get_child_id(), 0);
    uint64_t *word = shm_malloc(4096);
    for (int k = 0; k < 512; k++) CHECK_EQ(word[k], 0); /* nothing of whoever was here before */
    memset(word, 0xff, 4096);
    expect_service();
    if (i == 1) before = parent_fds(); /* answered, so it has closed the connection by now */
    if (i > 1) CHECK_EQ(parent_fds(), before);
    CHECK_EQ(shm_leave(), SHM_OK);
  }
}
TEST(clients_come_and_go_and_find_their_place_clean) { with_clients(1, come_and_go); }

static void stay_until_told(void) {
  CHECK_EQ(join_within(0), SHM_OK);
  notes[10] = 1;
  AWAIT(notes[11] != 0);
  CHECK_EQ(shm_leave(), SHM_OK);
}
static void one_place_for_two(void) {
  pid_t first = play(stay_until_told);
  AWAIT(notes[10] != 0);
  CHECK_EQ(join_within(0), SHM_ENO_CHILD_SLOT);
  CHECK_STR_EQ(shm_error_detail(), "all 1 slots of the broker are taken");
  CHECK_EQ(join_within(SECOND_NS / 20), SHM_ENO_CHILD_SLOT);
  CHECK_STR_EQ(shm_error_detail(), "no slot of the broker became free in time");
  int fd = connect_to_broker();
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  hello.wait_ns = -1;
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello); /* and goes again: nobody is owed it */
  close(fd);
  notes[11] = 1;
  CHECK_EQ(join_within(8 * SECOND_NS), SHM_OK);
  expect_service();
  CHECK_EQ(shm_leave(), SHM_OK);
  expect_well(first);
}
TEST(a_full_broker_says_so_and_who_waits_gets_the_place) { with_clients(1, one_place_for_two); }

static void die_while_connecting(void) {
  int fd = connect_to_broker();
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello);
  kill(getpid(), SIGKILL); /* the answer is never read */
}
static void dead_clients(void) {
  for (int i = 0; i < 10; i++) {
    int status;
    pid_t pid = play(die_while_connecting);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(join_within(8 * SECOND_NS), SHM_OK);
    expect_service();
    CHECK_EQ(shm_leave(), SHM_OK);
  }
}
TEST(one_that_dies_in_the_middle_of_the_handshake_takes_no_place) { with_clients(1, dead_clients); }

/* ---- what is no hello ---- */

static void talk_nonsense(void) {
  shmi_welcome_t welcome;
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  struct {
    const char *what;
    const void *bytes;
    size_t size;
    int status;
  } cases[] = {
      {"short", "hello", 5, SHM_EREFUSED},
      {"nothing", "", 0, SHM_EBROKER_DIED},
      {"long", (char[2 * sizeof hello]){0}, 2 * sizeof hello, SHM_EREFUSED},
      {"no magic", &(shmi_hello_t){.version = SHMI_ATTACH_VERSION}, sizeof hello, SHM_EREFUSED},
      {"another version", &(shmi_hello_t){.magic = SHMI_ATTACH_MAGIC, .version = 99}, sizeof hello,
       SHM_EREFUSED},
      {"no such pool", &(shmi_hello_t){SHMI_ATTACH_MAGIC, SHMI_ATTACH_VERSION, .kind = 1, .pool = 9},
       sizeof hello, SHM_EBAD_POOL},
      {"a pool below", &(shmi_hello_t){SHMI_ATTACH_MAGIC, SHMI_ATTACH_VERSION, .kind = 2, .pool = -1},
       sizeof hello, SHM_EBAD_POOL},
      {"no helpers", &(shmi_hello_t){SHMI_ATTACH_MAGIC, SHMI_ATTACH_VERSION, .kind = 2},
       sizeof hello, SHM_EBAD_CONFIG},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int fd = connect_to_broker();
    CHECK_EQ(send(fd, cases[i].bytes, cases[i].size, 0), cases[i].size);
    int status = answer(fd, &welcome);
    if (status != cases[i].status)
      harness_fail(__FILE__, __LINE__, "%s: %d, not %d", cases[i].what, status, cases[i].status);
    CHECK_EQ(recv(fd, &welcome, sizeof welcome, 0), 0); /* and is sent away */
    close(fd);
  }
  memset(hello.program, 'x', sizeof hello.program); /* without an end */
  int fd = connect_to_broker();
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(answer(fd, &welcome), SHM_OK);
  close(fd);
  CHECK_EQ(join_within(8 * SECOND_NS), SHM_OK);
  expect_service();
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(nonsense_is_refused_and_harms_nobody) { with_clients(1, talk_nonsense); }

enum { WAITING = 64, MOST_WAITING = WAITING + 16 };
static void stand_there(void) {
  int silent[MOST_WAITING];
  shmi_welcome_t welcome;
  for (int i = 0; i < MOST_WAITING; i++) silent[i] = connect_to_broker();
  int fd = connect_to_broker();
  CHECK_EQ(answer(fd, &welcome), SHM_ENO_CHILD_SLOT);
  CHECK_STR_EQ(welcome.sentence, "too many processes are connecting to the broker");
  close(fd);
  close(silent[0]); /* one leaves: somebody else may come */
  AWAIT(join_within(0) == SHM_OK);
  expect_service();
  for (int i = 1; i < MOST_WAITING; i++) { /* who says nothing is sent away after two seconds */
    CHECK_EQ(answer(silent[i], &welcome), SHM_EBROKER_DIED);
    close(silent[i]);
  }
  expect_service();
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(silent_clients_fill_the_listener_for_a_while_and_hold_up_nobody_inside) {
  with_clients(2, stand_there);
}

/* ---- commands ---- */

static int scale(int helpers, int *before) {
  int fd = connect_to_broker();
  int status = shm_ask_scale(fd, 0, helpers, before);
  close(fd);
  return status;
}

static int helper_state(int helper) {
  shm_helper_stats_t stats;
  CHECK_EQ(shm_get_helper_stats(helper, &stats), SHM_OK);
  return stats.state;
}

static void more_and_fewer(void) {
  int before, manifest_fd, fd = connect_to_broker();
  CHECK_EQ(shm_ask(fd, 0, &before, &manifest_fd), SHM_OK);
  CHECK_EQ(before, 1);
  CHECK_EQ(manifest_fd, -1);
  close(fd);
  CHECK_EQ(join_within(0), SHM_OK);
  CHECK_EQ(scale(4, &before), SHM_EBAD_CONFIG);
  for (int round = 0; round < 3; round++) {
    CHECK_EQ(scale(3, &before), SHM_OK);
    CHECK_EQ(before, 1);
    AWAIT(helper_state(1) == 2 && helper_state(2) == 2);
    CHECK_EQ(scale(1, &before), SHM_OK);
    CHECK_EQ(before, 3);
    if (round == 1) CHECK_EQ(scale(2, &before), SHM_OK); /* at once: one is needed again */
    if (round == 1) AWAIT(helper_state(1) == 2);
    if (round == 1) CHECK_EQ(scale(1, &before), SHM_OK);
    for (int i = 0; i < 50; i++) expect_service();
    AWAIT(helper_state(1) == 6 && helper_state(2) == 6);
  }
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.helper_deaths, 0);
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(a_pool_gets_more_helpers_and_fewer) { with_clients(1, more_and_fewer); }

static void a_crowd_waits(void) {
  int waiting[WAITING], before, manifest_fd;
  shmi_welcome_t welcome;
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  hello.wait_ns = -1;
  CHECK_EQ(join_within(0), SHM_OK);
  for (int i = 0; i < WAITING; i++) {
    waiting[i] = connect_to_broker();
    CHECK_EQ(send(waiting[i], &hello, sizeof hello, 0), sizeof hello);
  }
  int fd = connect_to_broker();
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello); /* one more than may wait */
  CHECK_EQ(answer(fd, &welcome), SHM_ENO_CHILD_SLOT);
  CHECK_STR_EQ(welcome.sentence, "too many processes are connecting to the broker");
  close(fd);
  fd = connect_to_broker();
  CHECK_EQ(shm_ask(fd, 0, &before, &manifest_fd), SHM_OK);
  close(fd);
  CHECK_EQ(scale(2, &before), SHM_OK);
  CHECK_EQ(scale(1, &before), SHM_OK);
  CHECK_EQ(shm_leave(), SHM_OK);
  CHECK_EQ(answer(waiting[0], &welcome), SHM_OK);
  for (int i = 0; i < WAITING; i++) close(waiting[i]);
}
TEST(a_crowd_that_waits_locks_nobody_out_who_only_asks) { with_clients(1, a_crowd_waits); }

/* ---- no descriptor to be had ---- */

static void no_descriptors(void) {
  struct rlimit none = {.rlim_cur = 3}, before;
  shm_broker_stats_t stats;
  pid_t parent = (pid_t)notes[0];
  CHECK_EQ(join_within(0), SHM_OK);
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, NULL, &before));
  none.rlim_max = before.rlim_max;
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, &none, NULL));
  int fd = connect_to_broker();
  harness_sleep_ms(50);
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  uint64_t wakes = stats.wakes;
  harness_sleep_ms(500);
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK(stats.wakes - wakes < 50); /* it looks again now and then */
  expect_service();
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, &before, NULL));
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  shmi_welcome_t welcome;
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(answer(fd, &welcome), SHM_OK); /* whoever connected meanwhile is let in */
  close(fd);
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(without_descriptors_a_connection_waits_and_the_parent_sleeps) { with_clients(2, no_descriptors); }

/* ---- more descriptors on their way than a user may have there ---- */

enum { IN_FLIGHT = 256, ALLOWED = 200 };

static void no_more_in_flight(void) {
  int ends[2], passed[SHMI_PASSING_MOST], before;
  shmi_welcome_t welcome;
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  struct rlimit allowed = {.rlim_cur = ALLOWED, .rlim_max = ALLOWED};
  CHECK_SYS(prlimit((pid_t)notes[0], RLIMIT_NOFILE, &allowed, NULL));
  CHECK_EQ(shmi_passing_make(ends), SHM_OK);
  for (int i = 0; i < SHMI_PASSING_MOST; i++) passed[i] = ends[0];
  for (int sent = 0; sent < IN_FLIGHT; sent += SHMI_PASSING_MOST) {
    CHECK_EQ(shmi_passing_send(ends[0], "", 1, passed, SHMI_PASSING_MOST), SHM_OK);
  }
  int hasty = connect_to_broker();
  CHECK_EQ(send(hasty, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(answer(hasty, &welcome), SHM_EAGAIN);
  CHECK(strstr(welcome.sentence, "at once") != NULL);
  close(hasty);
  hello.wait_ns = 200000000;
  int impatient = connect_to_broker();
  CHECK_EQ(send(impatient, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(answer(impatient, &welcome), SHM_ENO_CHILD_SLOT); /* its time is up */
  close(impatient);
  hello.wait_ns = -1;
  int patient = connect_to_broker();
  CHECK_EQ(send(patient, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(scale(2, &before), SHM_OK); /* so the broker has heard it, and serves others meanwhile */
  close(ends[0]);
  close(ends[1]);
  CHECK_EQ(answer(patient, &welcome), SHM_OK);
  close(patient);
}
TEST(while_too_many_descriptors_are_on_their_way_who_joins_waits_or_is_told_so) {
  /* No limit holds for root. */
  if (geteuid() == 0) CHECK_SYS(setresuid(65534, 65534, 65534));
  CHECK_SYS(prctl(PR_SET_DUMPABLE, 1));
  with_clients(1, no_more_in_flight);
}

static void stay_to_the_end(void) {
  CHECK_EQ(join_within(0), SHM_OK);
  int fd = connect_to_broker();
  CHECK_EQ(shm_ask_retire(fd), SHM_OK);
  close(fd);
  for (int i = 0; i < 50; i++) expect_service();
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(one_that_is_told_to_retire_serves_who_has_joined_and_ends_with_them) {
  ends_by_itself = 1;
  with_clients(1, stay_to_the_end);
}

static void no_descriptors_inside(void) {
  struct rlimit none = {.rlim_cur = 3}, before;
  pid_t parent = (pid_t)notes[0];
  int fd = connect_to_broker();
  harness_sleep_ms(50); /* it stands there */
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, NULL, &before));
  none.rlim_max = before.rlim_max;
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, &none, NULL));
  shmi_hello_t hello = hello_of(SHMI_HELLO_JOIN);
  shmi_welcome_t welcome;
  CHECK_EQ(send(fd, &hello, sizeof hello, 0), sizeof hello);
  CHECK_EQ(answer(fd, &welcome), SHM_ESYSTEM);
  CHECK(strstr(welcome.sentence, "ulimit") != NULL);
  CHECK_SYS(prlimit(parent, RLIMIT_NOFILE, &before, NULL));
  close(fd);
  CHECK_EQ(join_within(0), SHM_OK);
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(without_descriptors_whoever_asks_is_told_so) { with_clients(1, no_descriptors_inside); }

static void a_crowd_connects(void) {
  enum { MANY = 400 }; /* more than are heard at once */
  static int fds[MANY];
  for (int i = 0; i < MANY; i++) fds[i] = connect_to_broker();
  shmi_hello_t hello = hello_of(SHMI_HELLO_ASK);
  shmi_welcome_t welcome;
  for (int i = 0; i < MANY; i++) {
    send(fds[i], &hello, sizeof hello, MSG_NOSIGNAL);
    int status = answer(fds[i], &welcome);
    CHECK(status == SHM_OK || status == SHM_ENO_CHILD_SLOT);
    close(fds[i]);
  }
}
TEST(however_many_connect_at_once_each_is_answered) { with_clients(1, a_crowd_connects); }

/* ---- process namespaces ---- */

static void notes_descriptors(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_CHILD_REFUSED) return;
  notes[20 + notes[10]] = (uint64_t)harness_open_fds();
  notes[10]++;
}

TEST(a_client_that_has_no_number_in_the_brokers_namespace_is_refused_and_costs_nothing) {
  enum { TIMES = 8 };
  int listener = open_with_listener(1);
  host.on_event = notes_descriptors;
  pid_t keeper = fork();
  if (keeper == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    pid_t first = fork();
    if (first == 0) { /* the namespace's first process, whose end is the end of all in it */
      if (fork() == 0) _exit(launch(NULL) == SHM_OK ? 0 : 1);
      for (;;) pause();
    }
    notes[1] = 1;
    AWAIT(notes[2] == 1);
    CHECK_SYS(kill(first, SIGKILL));
    CHECK_EQ(waitpid(first, NULL, 0), first);
    _exit(0);
  }
  int status;
  while (notes[1] == 0 && waitpid(keeper, &status, WNOHANG) == 0) harness_pause();
  if (notes[1] == 0) SKIP("this user may not make a process namespace");
  for (int i = 0; i < TIMES; i++) CHECK_EQ(join_within(0), SHM_EUNSUPPORTED);
  AWAIT(notes[10] == TIMES);
  CHECK_EQ(notes[20 + TIMES - 1], notes[20]);
  notes[2] = 1;
  expect_well(keeper);
  close(listener);
}

/* ---- one thread at a time ---- */

static void *waits_for_a_silent_broker(void *listener) {
  int manifest_fd;
  CHECK_EQ(shm_join(*(int *)listener, "client", -1, 0, &manifest_fd), SHM_EBROKER_DIED);
  return NULL;
}
TEST(no_two_threads_of_a_process_join_at_once) {
  int ours[2], others[2], manifest_fd;
  CHECK_SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ours));
  CHECK_SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, others));
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, waits_for_a_silent_broker, &ours[0]), 0);
  shmi_hello_t hello;
  CHECK_EQ(recv(ours[1], &hello, sizeof hello, 0), sizeof hello); /* it is inside */
  CHECK_EQ(shm_join(others[0], "client", 0, 0, &manifest_fd), SHM_ENESTED);
  CHECK_EQ(manifest_fd, -1);
  CHECK_EQ(recv(others[1], &hello, sizeof hello, MSG_DONTWAIT), -1);
  close(ours[1]);
  pthread_join(thread, NULL);
  close(others[1]);
  CHECK_EQ(shm_join(others[0], "client", 0, 0, &manifest_fd), SHM_EBROKER_DIED);
}

/* ---- a broker that answers nonsense ---- */

enum { TOO_MANY = 40 };

/* What the asker at the other end is told when so many descriptors come with the answer. */
static int told_with(int descriptors, shmi_welcome_t welcome, int (*ask)(int listener_fd)) {
  union {
    char bytes[CMSG_SPACE(TOO_MANY * sizeof(int))];
    struct cmsghdr aligned;
  } control = {0};
  int ends[2], sent[TOO_MANY] = {0};
  CHECK_SYS(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int i = 0; i < TOO_MANY; i++) sent[i] = null;
  struct iovec piece = {.iov_base = &welcome, .iov_len = sizeof welcome};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  if (descriptors > 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE((size_t)descriptors * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)descriptors * sizeof(int));
    memcpy(CMSG_DATA(header), sent, (size_t)descriptors * sizeof(int));
  }
  CHECK_EQ(sendmsg(ends[1], &message, 0), sizeof welcome);
  int status = ask(ends[0]);
  close(ends[0]);
  close(ends[1]);
  close(null);
  return status;
}

static int asks(int listener_fd) {
  int before, manifest_fd;
  int status = shm_ask(listener_fd, 0, &before, &manifest_fd);
  if (manifest_fd >= 0) close(manifest_fd);
  return status;
}

static int joins(int listener_fd) {
  int manifest_fd;
  int status = shm_join(listener_fd, "client", 0, 0, &manifest_fd);
  CHECK_EQ(manifest_fd, -1);
  CHECK_EQ(shm_get_role(), SHM_ROLE_NONE);
  return status;
}

TEST(whatever_descriptors_come_with_an_answer_are_taken_or_closed) {
  shmi_welcome_t well = {.magic = SHMI_ATTACH_MAGIC, .version = SHMI_ATTACH_VERSION, .window = 1};
  shmi_welcome_t no = well, strange = well, other = well;
  no.status = SHM_ENO_CHILD_SLOT;
  strange.status = 7;
  memset(strange.sentence, 'x', sizeof strange.sentence);
  other.version++;
  int fds = harness_open_fds();
  for (int count = 0; count <= TOO_MANY; count++) {
    int is_one_too_many = count > SHMI_ATTACH_DESCRIPTORS;
    CHECK_EQ(told_with(count, well, asks), is_one_too_many ? SHM_EREFUSED : SHM_OK);
    CHECK_EQ(told_with(count, no, asks), is_one_too_many ? SHM_EREFUSED : SHM_ENO_CHILD_SLOT);
    CHECK_EQ(told_with(count, no, joins), is_one_too_many ? SHM_EREFUSED : SHM_ENO_CHILD_SLOT);
    CHECK_EQ(told_with(count, strange, joins), SHM_EREFUSED);
    CHECK_EQ(told_with(count, other, joins), SHM_EREFUSED);
    CHECK_EQ(told_with(count, well, joins), SHM_EREFUSED); /* none of them is an arena */
    CHECK_EQ(harness_open_fds(), fds);
  }
}

/* ---- quotas ---- */

static void bounded(void) {
  CHECK_EQ(join_within(0), SHM_OK);
  shm_arena_stats_t arena;
  CHECK_EQ(shm_get_arena_stats(&arena), SHM_OK);
  CHECK_EQ(arena.capacity_bytes, 65536);
  CHECK_EQ(shm_port_window(), 8);
  CHECK_EQ(shm_leave(), SHM_OK);
}
TEST(quotas_bound_what_a_client_gets_and_the_smallest_of_those_that_name_it_holds) {
  shm_quota_t rows[] = {
      {.arena_bytes = 4096, .window = 3}, /* for all: not for who is named */
      {.program = "client", .arena_bytes = 65536, .window = 20},
      {.has_uid = 1, .uid = getuid(), .window = 8, .arena_bytes = MIB},
      {.has_uid = 1, .uid = getuid() + 1, .window = 1},
      {.program = "another", .window = 1},
  };
  CHECK_EQ(shm_set_quotas(rows, sizeof rows / sizeof *rows), SHM_OK);
  rows[0].window = 100000;
  CHECK_EQ(shm_set_quotas(rows, 1), SHM_EBAD_CONFIG);
  with_clients(1, bounded);
  /* However short a name is. */
  shm_quota_t named[] = {{.window = 3}, {.program = "c", .window = 8}};
  CHECK_EQ(shm_set_quotas(named, 2), SHM_OK);
  CHECK_EQ(shmi_quota_of(getuid(), "c").window, 8);
  CHECK_EQ(shmi_quota_of(getuid(), "d").window, 3);
  /* Each column by itself: one that is not said bounds nothing. */
  shm_quota_t arena = {.arena_bytes = 4096}, parked = {.parked_bytes = 8192};
  CHECK_EQ(shm_set_quotas(&arena, 1), SHM_OK);
  CHECK_EQ(shmi_quota_of(getuid(), "client").arena_bytes, 4096);
  CHECK_EQ(shmi_quota_of(getuid(), "client").parked_bytes, 0);
  CHECK_EQ(shm_set_quotas(&parked, 1), SHM_OK);
  CHECK_EQ(shmi_quota_of(getuid(), "client").arena_bytes, 0);
  CHECK_EQ(shmi_quota_of(getuid(), "client").parked_bytes, 8192);
  /* A program without a user, or a user without a program, is named: what is for all yields. */
  shm_quota_t program[] = {{.window = 3}, {.program = "client", .window = 20}};
  CHECK_EQ(shm_set_quotas(program, 2), SHM_OK);
  CHECK_EQ(shmi_quota_of(getuid(), "client").window, 20);
  CHECK_EQ(shmi_quota_of(getuid(), "another").window, 3);
  shm_quota_t user[] = {{.window = 3}, {.has_uid = 1, .uid = getuid(), .window = 20}};
  CHECK_EQ(shm_set_quotas(user, 2), SHM_OK);
  CHECK_EQ(shmi_quota_of(getuid(), "client").window, 20);
  CHECK_EQ(shm_set_quotas(NULL, 0), SHM_OK);
}
