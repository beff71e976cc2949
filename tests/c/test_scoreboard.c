/* The scoreboard: one writer a page, everybody reads, the trace keeps the latest lives, and another
 * process may look on but believes no forgery. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/descriptor.h"
#include "ipc/function_table.h"
#include "ipc/scoreboard.h"

static void open_scoreboard(uint32_t records) { CHECK_EQ(shmi_scoreboard_create(3, 2, records), SHM_OK); }

static int ended_by(pid_t pid) {
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void run_in_a_process(void (*body)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(0);
  }
  CHECK_EQ(ended_by(pid), 0);
}

TEST(without_a_broker_there_is_nothing_to_read) {
  shm_broker_stats_t broker;
  shm_child_stats_t child;
  shm_helper_stats_t helper;
  shm_trace_record_t record;
  uint64_t next = 0;
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_get_helper_stats(0, &helper), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_read_trace(&next, &record, 1), 0);
  shm_count_bytes(SHM_BYTES_GATHERED, 1); /* counts nowhere, and does no harm */
}

TEST(a_number_out_of_range_is_refused) {
  shm_child_stats_t child;
  shm_helper_stats_t helper;
  open_scoreboard(0);
  CHECK_EQ(shm_get_child_stats(-1, &child), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_child_stats(3, &child), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_child_stats(2, &child), SHM_OK);
  CHECK_EQ(shm_get_helper_stats(-1, &helper), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_helper_stats(2, &helper), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_helper_stats(1, &helper), SHM_OK);
  shm_count_bytes(-1, 5);
  shm_count_bytes(SHM_BYTES_KINDS, 5);
  shmi_scoreboard_destroy();
}

TEST(what_a_role_counts_the_others_read) {
  open_scoreboard(0);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    CHECK_EQ(shmi_scoreboard_become(SHM_ROLE_HELPER, 1), SHM_OK);
    shm_count_bytes(SHM_BYTES_COPIED_OUT, 100);
    shm_count_bytes(SHM_BYTES_COPIED_OUT, 11);
    shmi_count(&shmi_scoreboard_helper(1)->frames_sent, 7);
    _exit(0);
  }
  CHECK_EQ(ended_by(pid), 0);
  shm_helper_stats_t helper;
  CHECK_EQ(shm_get_helper_stats(1, &helper), SHM_OK);
  CHECK_EQ(helper.bytes[SHM_BYTES_COPIED_OUT], 111);
  CHECK_EQ(helper.frames_sent, 7);
  CHECK_EQ(shm_get_helper_stats(0, &helper), SHM_OK);
  CHECK_EQ(helper.bytes[SHM_BYTES_COPIED_OUT], 0);
  shmi_scoreboard_destroy();
}

/* Each row: in this role, writing there ends the process, or does not. */
TEST(a_role_writes_its_own_page_and_no_other) {
  open_scoreboard(64);
  const shmi_scoreboard_t *scoreboard = shmi_scoreboard();
  struct {
    int role, index;
    volatile void *at;
    int allowed;
  } rows[] = {
      {SHM_ROLE_CHILD, 1, shmi_scoreboard_child(1), 1},
      {SHM_ROLE_CHILD, 1, shmi_scoreboard_child(0), 0},
      {SHM_ROLE_CHILD, 1, shmi_scoreboard_child(2), 0},
      {SHM_ROLE_CHILD, 1, shmi_scoreboard_helper(0), 0},
      {SHM_ROLE_CHILD, 1, scoreboard->broker, 0},
      {SHM_ROLE_CHILD, 1, scoreboard->trace, 0},
      {SHM_ROLE_HELPER, 0, shmi_scoreboard_helper(0), 1},
      {SHM_ROLE_HELPER, 0, &shmi_scoreboard_helper(0)->finished[SHMI_DELIVERY_RING - 1], 1},
      {SHM_ROLE_HELPER, 0, shmi_scoreboard_helper(1), 0},
      {SHM_ROLE_HELPER, 0, shmi_scoreboard_child(2), 0},
      {SHM_ROLE_HELPER, 0, scoreboard->child_stats, 0},
  };
  fflush(NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      signal(SIGSEGV, SIG_DFL);
      CHECK_EQ(shmi_scoreboard_become(rows[i].role, rows[i].index), SHM_OK);
      *(volatile uint64_t *)rows[i].at = 1;
      _exit(0);
    }
    int ended = ended_by(pid);
    if (ended != (rows[i].allowed ? 0 : -SIGSEGV))
      harness_fail(__FILE__, __LINE__, "row %zu ended with %d", i, ended);
  }
  shmi_scoreboard_destroy();
}

TEST(a_new_helper_starts_with_an_empty_control_page_and_the_old_counters) {
  open_scoreboard(0);
  shmi_helper_page_t *page = shmi_scoreboard_helper(0);
  atomic_store(&page->executing, 99);
  atomic_store(&page->finished[5].delivery, 5);
  shmi_count(&page->frames_received, 3);
  shmi_scoreboard_reset_helper(0);
  CHECK_EQ(atomic_load(&page->executing), 0);
  CHECK_EQ(atomic_load(&page->finished[5].delivery), 0);
  CHECK_EQ(atomic_load(&page->frames_received), 3);
  shmi_scoreboard_destroy();
}

TEST(the_trace_keeps_the_latest_records_in_order) {
  open_scoreboard(64);
  shm_trace_record_t got[200];
  uint64_t next = 0;
  for (uint64_t i = 0; i < 10; i++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = i});
  CHECK_EQ(shm_read_trace(&next, got, 4), 4);
  CHECK_EQ(shm_read_trace(&next, got + 4, 200), 6);
  for (uint64_t i = 0; i < 10; i++) CHECK_EQ(got[i].sequence, i);
  CHECK_EQ(shm_read_trace(&next, got, 200), 0);
  for (uint64_t i = 10; i < 210; i++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = i});
  CHECK_EQ(shm_read_trace(&next, got, 200), 64);
  for (uint64_t i = 0; i < 64; i++) CHECK_EQ(got[i].sequence, 146 + i);
  CHECK_EQ(next, 210);
  shmi_scoreboard_destroy();
}

TEST(a_trace_holds_at_least_what_was_asked_for) {
  static const struct {
    uint32_t wanted, held;
  } traces[] = {{1, 64}, {64, 64}, {65, 128}, {129, 256}};
  for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
    open_scoreboard(traces[i].wanted);
    shm_trace_record_t got[300];
    uint64_t next = 0;
    for (uint64_t n = 0; n < 300; n++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = n});
    CHECK_EQ(shm_read_trace(&next, got, 300), traces[i].held);
    shmi_scoreboard_destroy();
  }
}

TEST(a_trace_of_nothing_costs_nothing) {
  open_scoreboard(0);
  shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = 1});
  uint64_t next = 0;
  shm_trace_record_t got;
  CHECK_EQ(shm_read_trace(&next, &got, 1), 0);
  CHECK_EQ(shmi_scoreboard()->broker->trace_written, 0);
  shmi_scoreboard_destroy();
}

static _Atomic int goes_on;

static void *read_all_names(void *names) {
  while (goes_on) {
    int count = shm_get_functions(names, SHM_MAX_FUNCTIONS);
    CHECK(count == SHM_ENOT_RUNNING || (count >= 0 && count <= SHM_MAX_FUNCTIONS));
  }
  return NULL;
}

TEST(a_scoreboard_that_is_destroyed_stays_until_those_who_read_it_have_ended) {
  shm_function_row_t *names = malloc(SHM_MAX_FUNCTIONS * sizeof *names);
  pthread_t reader;
  goes_on = 1;
  CHECK_EQ(pthread_create(&reader, NULL, read_all_names, names), 0);
  for (int turn = 0; turn < 30; turn++) {
    open_scoreboard(0);
    for (uint32_t i = 0; i < SHM_MAX_FUNCTIONS; i++) shmi_scoreboard_name(i, i + 1, "f");
    shmi_scoreboard_destroy();
  }
  goes_on = 0;
  CHECK_EQ(pthread_join(reader, NULL), 0);
  free(names);
}

static void destroy_what_is_inherited(void) {
  alarm(20); /* who waits for a thread that is not here waits for ever */
  shmi_scoreboard_destroy();
}

TEST(a_fork_has_none_of_the_threads_that_read_when_it_was_made) {
  shm_function_row_t *names = malloc(SHM_MAX_FUNCTIONS * sizeof *names);
  pthread_t reader;
  open_scoreboard(0);
  for (uint32_t i = 0; i < SHM_MAX_FUNCTIONS; i++) shmi_scoreboard_name(i, i + 1, "f");
  goes_on = 1;
  CHECK_EQ(pthread_create(&reader, NULL, read_all_names, names), 0);
  for (int turn = 0; turn < 30; turn++) run_in_a_process(destroy_what_is_inherited);
  goes_on = 0;
  CHECK_EQ(pthread_join(reader, NULL), 0);
  shmi_scoreboard_destroy();
  free(names);
}

TEST(making_and_destroying_leaves_nothing) {
  int fds = harness_open_fds();
  size_t memory = 0;
  for (int i = 0; i < 2 * HARNESS_ROUNDS; i++) {
    open_scoreboard(1000);
    shmi_scoreboard_destroy();
    if (i == HARNESS_ROUNDS) memory = harness_memory();
  }
  CHECK_EQ(harness_memory(), memory);
  CHECK(shmi_scoreboard() == NULL);
  CHECK_EQ(harness_open_fds(), fds);
  CHECK_EQ(harness_mappings("shmgpu-scoreboard"), 0);
}

/* ---- the monitor ---- */

/* The scoreboard that this process holds, as another one would open it: for reading, by its name. */
static int find_scoreboard(void) {
  char path[64], target[64];
  for (int fd = 3; fd < 64; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length > 0 && strncmp(target, "/memfd:shmgpu-scoreboard", 19) == 0) {
      return open(path, O_RDONLY | O_CLOEXEC);
    }
  }
  return -1;
}

/* A forked copy has no broker of its own once it has let go of the one it was forked with. */
static int watch_from_here(void) {
  int fd = find_scoreboard();
  CHECK(fd >= 0);
  shmi_scoreboard_destroy();
  int status = shm_monitor_open(fd);
  close(fd);
  return status;
}

static void other_function(void *params) { (void)params; }

static void read_what_the_parent_wrote(void) {
  CHECK_EQ(watch_from_here(), SHM_OK);
  CHECK(shmi_scoreboard() == NULL); /* what others may write is nobody's scoreboard here */
  CHECK_EQ(shm_monitor_open(0), SHM_ENESTED);
  shm_broker_stats_t broker;
  shm_child_stats_t child;
  shm_helper_stats_t helper;
  shm_trace_record_t record;
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_OK);
  CHECK_EQ(broker.submitted, 12);
  CHECK_EQ(broker.in_flight, 9);
  CHECK_EQ(shm_get_child_stats(2, &child), SHM_OK);
  CHECK_EQ(child.answered, 5);
  CHECK_EQ(child.frames_sent, 6);
  CHECK_EQ(shm_get_child_stats(3, &child), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_helper_stats(1, &helper), SHM_OK);
  CHECK_EQ(helper.deaths, 3);
  uint64_t next = 0;
  CHECK_EQ(shm_read_trace(&next, &record, 1), 1);
  CHECK_EQ(record.sequence, 77);
  shm_function_row_t rows[4];
  CHECK_EQ(shm_get_functions(rows, 4), 2);
  CHECK_STR_EQ(rows[0].name, "of a binding");
  CHECK_STR_EQ(rows[1].name, "of C");
  CHECK_EQ(rows[1].function, (uint64_t)(uintptr_t)other_function);
  CHECK_EQ(shm_get_functions(rows, 1), 1);
  shm_count_bytes(SHM_BYTES_GATHERED, 1); /* counts nowhere */
  shm_monitor_close();
  shm_monitor_close();
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_get_functions(rows, 4), SHM_ENOT_RUNNING);
  CHECK_EQ(harness_mappings("shmgpu-scoreboard"), 0);
}

TEST(a_monitor_reads_what_the_parent_wrote) {
  open_scoreboard(64);
  const shmi_function_t *row;
  CHECK_EQ(shmi_function_table_add(&(shm_function_config_t){.name = "of a binding"}, &row), SHM_OK);
  shm_function_config_t of_c = {.name = "of C", .func = other_function};
  CHECK_EQ(shmi_function_table_add(&of_c, &row), SHM_OK);
  CHECK_EQ(shmi_function_table_seal(), SHM_OK);
  shmi_scoreboard()->broker->submitted = 12;
  shmi_scoreboard()->child_stats[2].answered = 5;
  shmi_scoreboard()->helper_stats[1].deaths = 3;
  shmi_scoreboard()->helper_stats[0].in_flight = 4;
  shmi_scoreboard()->helper_stats[1].in_flight = 5;
  shmi_count(&shmi_scoreboard_child(2)->frames_sent, 6);
  shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = 77});
  run_in_a_process(read_what_the_parent_wrote);
  CHECK_EQ(shmi_scoreboard()->broker->submitted, 12);
  shmi_scoreboard_destroy();
}

static void launch_while_watching(void) {
  CHECK_EQ(watch_from_here(), SHM_OK);
  CHECK_EQ(shmi_scoreboard_create(1, 1, 0), SHM_OK);
  CHECK_EQ(shmi_scoreboard()->children, 1);
  CHECK_EQ(harness_mappings("shmgpu-scoreboard"), 1);
  shm_monitor_close(); /* a scoreboard of one's own is not the monitor's to close */
  CHECK(shmi_scoreboard() != NULL);
  shmi_scoreboard_destroy();
}

TEST(a_board_of_ones_own_takes_the_place_of_a_watched_one) {
  open_scoreboard(0);
  run_in_a_process(launch_while_watching);
  shmi_scoreboard_destroy();
}

TEST(the_owner_of_a_board_cannot_watch) {
  open_scoreboard(0);
  int fd = find_scoreboard();
  CHECK_EQ(shm_monitor_open(fd), SHM_ENESTED);
  close(fd);
  shmi_scoreboard_destroy();
}

static void ring_seen_from_outside(void) {
  shm_trace_record_t got[100];
  uint64_t next = 0;
  CHECK_EQ(watch_from_here(), SHM_OK);
  CHECK_EQ(shm_read_trace(&next, got, 100), 63); /* the 64th place is about to be written */
  CHECK_EQ(got[0].sequence, 147);
  shm_monitor_close();
}

TEST(a_reader_beside_the_writer_leaves_out_what_is_overwritten_next) {
  open_scoreboard(64);
  for (uint64_t i = 0; i < 210; i++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = i});
  run_in_a_process(ring_seen_from_outside);
  shmi_scoreboard_destroy();
}

static void read_while_it_is_written(void) {
  shm_trace_record_t got[64];
  uint64_t next = 0, last = 0, seen = 0;
  CHECK_EQ(watch_from_here(), SHM_OK);
  while (seen < 200000) {
    int count = shm_read_trace(&next, got, 64);
    for (int i = 0; i < count; i++, seen++) {
      CHECK_EQ(got[i].function, got[i].sequence);
      CHECK_EQ(got[i].answered_ns, got[i].sequence);
      CHECK_EQ(got[i].generation, (uint32_t)got[i].sequence);
      CHECK(got[i].sequence > last);
      last = got[i].sequence;
    }
  }
  shm_monitor_close();
}

TEST(records_read_beside_a_busy_writer_are_whole) {
  open_scoreboard(64);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    read_while_it_is_written();
    _exit(0);
  }
  int status = -1;
  for (uint64_t i = 1; i % 4096 != 0 || waitpid(pid, &status, WNOHANG) == 0; i++) {
    shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = i, .function = i, .answered_ns = i,
                                           .generation = (uint32_t)i});
  }
  CHECK_EQ(status, 0);
  shmi_scoreboard_destroy();
}

/* A reader's page that it may not write to yet: where copying comes to it, the writer goes on. */
static char *shut_page;
static size_t page_bytes;
static int asking[2], answering[2];

static void have_more_written(int signal_number) {
  (void)signal_number;
  char word = 'x';
  CHECK_SYS(mprotect(shut_page, page_bytes, PROT_READ | PROT_WRITE));
  CHECK_EQ(write(asking[1], &word, 1), 1);
  CHECK_EQ(read(answering[0], &word, 1), 1);
}

static int count_meanwhile;

static void read_what_is_overwritten(void) {
  CHECK_EQ(watch_from_here(), SHM_OK);
  page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 3 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  shut_page = pages + page_bytes;
  shm_trace_record_t *got = (shm_trace_record_t *)(void *)shut_page - 8;
  CHECK_SYS(mprotect(shut_page, page_bytes, PROT_NONE));
  signal(SIGSEGV, have_more_written);
  uint64_t next = 0;
  int left = count_meanwhile < 63 ? 63 - count_meanwhile : 0;
  CHECK_EQ(shm_read_trace(&next, got, 63), left);
  signal(SIGSEGV, SIG_DFL);
  for (int i = 0; i < left; i++) CHECK_EQ(got[i].sequence, (uint64_t)(147 + count_meanwhile + i));
  CHECK_EQ(next, 210);
  shm_monitor_close();
}

TEST(records_that_are_overwritten_while_they_are_read_are_left_out_and_no_others) {
  static const int counts[] = {0, 1, 20, 62, 63, 64, 100};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    open_scoreboard(64);
    for (uint64_t i = 0; i < 210; i++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = i});
    count_meanwhile = counts[c];
    CHECK_SYS(pipe2(asking, O_CLOEXEC));
    CHECK_SYS(pipe2(answering, O_CLOEXEC));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
      read_what_is_overwritten();
      _exit(0);
    }
    close(asking[1]);
    char word;
    CHECK_EQ(read(asking[0], &word, 1), 1);
    for (int i = 0; i < counts[c]; i++) shmi_scoreboard_trace(&(shm_trace_record_t){.sequence = 210 + (uint64_t)i});
    CHECK_EQ(write(answering[1], &word, 1), 1);
    CHECK_EQ(ended_by(pid), 0);
    close(asking[0]);
    close(answering[0]);
    close(answering[1]);
    shmi_scoreboard_destroy();
  }
}

/* ---- attached programs ---- */

/* A descriptor as the other end of a socket gets it: another number, the same open file. */
static int handed_over(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

static int scoreboard_fd, page_fd; /* what an attached program is handed */

static void look_through_scoreboard(void) {
  CHECK_EQ(fcntl(scoreboard_fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", scoreboard_fd);
  int again = open(path, O_RDWR | O_CLOEXEC), fds[2] = {scoreboard_fd, again};
  size_t bytes = (size_t)lseek(scoreboard_fd, 0, SEEK_END);
  for (int i = 0; i < 2; i++) {
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0) == MAP_FAILED);
    CHECK_EQ(pwrite(fds[i], "x", 1, 0), -1);
    CHECK_EQ(fallocate(fds[i], FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096), -1);
    CHECK_EQ(ftruncate(fds[i], 0), -1);
    CHECK_EQ(fcntl(fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
  }
  void *seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, scoreboard_fd, 0);
  CHECK(seen != MAP_FAILED);
  CHECK_EQ(mprotect(seen, bytes, PROT_READ | PROT_WRITE), -1);
  CHECK_EQ(errno, EACCES);
}

static void count_on_its_page(void) {
  shmi_scoreboard_destroy(); /* what it inherited by the fork */
  CHECK_EQ(shmi_scoreboard_join(scoreboard_fd, 1, page_fd), SHM_OK);
  shm_child_stats_t child;
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK);
  CHECK_EQ(child.frames_sent, 4); /* by who was there before */
  shmi_count(&shmi_scoreboard_child(1)->frames_sent, 3);
  shm_count_bytes(SHM_BYTES_COPIED_IN, 11);
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK);
  CHECK_EQ(child.frames_sent, 7);
  CHECK_EQ(child.bytes[SHM_BYTES_COPIED_IN], 11);
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_OK);
  shmi_scoreboard_destroy();
  CHECK_EQ(harness_mappings("shmgpu-"), 0);
}

static void look_on(void) {
  shm_child_stats_t child;
  CHECK_EQ(watch_from_here(), SHM_OK);
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK);
  CHECK_EQ(child.frames_sent, 7);
}

static void take_a_pages_slot(void) {
  CHECK_EQ(shmi_scoreboard_become(SHM_ROLE_CHILD, 0), SHM_OK);
  CHECK_EQ(harness_mappings("shmgpu-page"), 0); /* a forked role inherits no other's page */
}

TEST(an_attached_program_writes_its_own_page_and_can_never_write_to_the_scoreboard) {
  open_scoreboard(0);
  shmi_count(&shmi_scoreboard_child(1)->frames_sent, 4);
  scoreboard_fd = handed_over(shmi_scoreboard_descriptor());
  page_fd = shmi_scoreboard_make_page(1);
  CHECK(page_fd >= 0);
  run_in_a_process(look_through_scoreboard);
  run_in_a_process(count_on_its_page);
  run_in_a_process(take_a_pages_slot);
  shm_child_stats_t child;
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK); /* the parent sees it at once */
  CHECK_EQ(child.frames_sent, 7);
  shmi_scoreboard_copy_pages();
  run_in_a_process(look_on);
  atomic_store(&shmi_scoreboard_child(1)->frames_received, 9);
  shmi_scoreboard_drop_page(1);
  CHECK_EQ(harness_mappings("shmgpu-page"), 0);
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK); /* and what was counted stays */
  CHECK_EQ(child.frames_sent, 7);
  CHECK_EQ(child.frames_received, 9);
  int other = shmi_scoreboard_make_page(1);
  CHECK_EQ(fcntl(other, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  shmi_child_page_t *kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
  CHECK(kept != MAP_FAILED);
  atomic_store(&kept->frames_sent, 1000); /* by one that has left and kept its page */
  CHECK_EQ(shm_get_child_stats(1, &child), SHM_OK);
  CHECK_EQ(child.frames_sent, 7);
  close(scoreboard_fd);
  close(page_fd);
  close(other);
  shmi_scoreboard_destroy();
  munmap(kept, sizeof *kept);
  CHECK_EQ(harness_mappings("shmgpu-"), 0);
}

static void join_with_nonsense(void) {
  shmi_scoreboard_destroy();
  int shrinkable = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_SYS(ftruncate(shrinkable, 1 << 20));
  int empty = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_SYS(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK));
  struct {
    int child, page;
  } rows[] = {{-1, page_fd}, {3, page_fd}, {INT32_MAX, page_fd}, {1, -1}, {1, shrinkable}, {1, empty}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CHECK_EQ(shmi_scoreboard_join(scoreboard_fd, rows[i].child, rows[i].page), SHM_EREFUSED);
    shmi_scoreboard_destroy();
  }
  CHECK_EQ(harness_mappings("shmgpu-"), 0);
}

TEST(who_attaches_believes_neither_a_place_nor_a_page_that_cannot_be) {
  open_scoreboard(0);
  scoreboard_fd = handed_over(shmi_scoreboard_descriptor());
  page_fd = shmi_scoreboard_make_page(1);
  run_in_a_process(join_with_nonsense);
  close(scoreboard_fd);
  close(page_fd);
  shmi_scoreboard_destroy();
}

TEST(only_the_parent_keeps_the_descriptor) {
  open_scoreboard(0);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    shmi_descriptor_keep_only(NULL, 0);
    int taken = open("/dev/null", O_RDONLY); /* the number is another's now: it must stay open */
    CHECK_EQ(shmi_scoreboard_become(SHM_ROLE_CHILD, 0), SHM_OK);
    CHECK_EQ(find_scoreboard(), -1);
    CHECK(fcntl(taken, F_GETFD) >= 0);
    _exit(0);
  }
  CHECK_EQ(ended_by(pid), 0);
  int fd = find_scoreboard();
  CHECK(fd >= 0);
  CHECK_EQ(fcntl(fd, F_GET_SEALS),
           F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  close(fd);
  shmi_scoreboard_destroy();
}

/* A memfd with a good scoreboard's bytes, some of them changed, and some seals. */
static int forge(size_t bytes, int seals, size_t at, const void *change, size_t length) {
  int good = find_scoreboard(), fd = memfd_create("shmgpu-scoreboard", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  char *copy = calloc(1, bytes);
  ssize_t got = pread(good, copy, bytes, 0);
  CHECK(got > 0);
  if (length > 0) memcpy(copy + at, change, length);
  CHECK_EQ(write(fd, copy, bytes), bytes);
  CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  free(copy);
  close(good);
  return fd;
}

TEST(a_forgery_is_refused_with_the_reason) {
  open_scoreboard(64);
  int good = find_scoreboard();
  size_t bytes = (size_t)lseek(good, 0, SEEK_END);
  close(good);
  const int both = F_SEAL_SHRINK | F_SEAL_GROW;
  uint32_t other = 0x7fffffff, none = 0, three = 3;
  /* Offsets of the header: 0 magic, 8 layout, 12 to 40 sizes, 44 children, 48 helpers, 52 ring. */
  struct {
    size_t bytes;
    int seals;
    size_t at;
    const uint32_t *change;
    const char *why;
  } rows[] = {
      {bytes, both, 0, NULL, NULL},
      {bytes, 0, 0, NULL, "sealed"},
      {bytes, F_SEAL_SHRINK, 0, NULL, "sealed"},
      {bytes, F_SEAL_GROW, 0, NULL, "sealed"},
      {1, both, 0, NULL, "too short"},
      {63, both, 0, NULL, "too short"},
      {4096, both, 0, NULL, "size"},
      {bytes - 4096, both, 0, NULL, "size"},
      {bytes + 4096, both, 0, NULL, "size"},
      {bytes, both, 0, &other, "begin"},
      {bytes, both, 8, &other, "version"},
      {bytes, both, 12, &other, "version"},
      {bytes, both, 20, &other, "version"},
      {bytes, both, 40, &none, "version"},
      {bytes, both, 44, &other, "range"},
      {bytes, both, 44, &none, "range"},
      {bytes, both, 48, &other, "range"},
      {bytes, both, 52, &three, "range"},
      {bytes, both, 52, &other, "range"},
      {bytes, both, 44, &three, NULL}, /* as it was */
      {bytes, both, 48, &three, "size"},
      {bytes, both, 52, &none, "size"},
  };
  enum { ROWS = sizeof rows / sizeof *rows };
  int forged[ROWS];
  for (int i = 0; i < ROWS; i++) {
    forged[i] = forge(rows[i].bytes, rows[i].seals, rows[i].at, rows[i].change,
                      rows[i].change != NULL ? sizeof *rows[i].change : 0);
  }
  shmi_scoreboard_destroy();
  for (int i = 0; i < ROWS; i++) {
    int status = shm_monitor_open(forged[i]);
    if (status != (rows[i].why == NULL ? SHM_OK : SHM_ENO_BOARD) ||
        (rows[i].why != NULL && strstr(shm_error_detail(), rows[i].why) == NULL)) {
      harness_fail(__FILE__, __LINE__, "row %d: %d, %s", i, status, shm_error_detail());
    }
    shm_monitor_close();
    close(forged[i]);
  }
  int null = open("/dev/null", O_RDONLY);
  CHECK_EQ(shm_monitor_open(null), SHM_ENO_BOARD);
  CHECK_EQ(shm_monitor_open(-1), SHM_ENO_BOARD);
  close(null);
  CHECK_EQ(harness_mappings("shmgpu-scoreboard"), 0);
}

/* Any bytes below a good header: numbers may be nonsense, but every read stays inside. */
TEST(nonsense_below_a_good_header_is_read_safely) {
  open_scoreboard(64);
  int good = find_scoreboard();
  size_t bytes = (size_t)lseek(good, 0, SEEK_END);
  close(good);
  char *noise = malloc(bytes);
  memset(noise, 0xff, bytes);
  uint32_t functions = UINT32_MAX;
  int fd = forge(bytes, F_SEAL_SHRINK | F_SEAL_GROW, 64, noise, bytes - 64);
  CHECK_EQ(pwrite(fd, &functions, sizeof functions, 56), sizeof functions);
  free(noise);
  shmi_scoreboard_destroy();
  CHECK_EQ(shm_monitor_open(fd), SHM_OK);
  close(fd);
  shm_function_row_t *names = malloc(SHM_MAX_FUNCTIONS * sizeof *names);
  CHECK_EQ(shm_get_functions(names, INT32_MAX), SHM_MAX_FUNCTIONS);
  CHECK_EQ(strlen(names[SHM_MAX_FUNCTIONS - 1].name), sizeof names->name - 1);
  free(names);
  shm_trace_record_t got[100];
  uint64_t next = 0;
  CHECK_EQ(shm_read_trace(&next, got, 100), 63);
  next = UINT64_MAX;
  CHECK_EQ(shm_read_trace(&next, got, 100), 0);
  shm_child_stats_t child;
  CHECK_EQ(shm_get_child_stats(2, &child), SHM_OK);
  CHECK_EQ(child.pid, -1);
  shm_monitor_close();
}
