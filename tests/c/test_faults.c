/* Deaths, hangs and signals: the one who must hear of it does, and nobody else notices. */
#include "broker.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#include "filter.h"

/* Everything that this process has forked, and what that has forked, is gone: it is their
 * subreaper, so they become its children. */
static void expect_all_gone_within(int seconds) {
  int64_t until = harness_now_ns() + seconds * SECOND_NS * (HARNESS_SANITIZED ? 4 : 1);
  for (;;) {
    pid_t got = waitpid(-1, NULL, WNOHANG);
    if (got == -1 && errno == ECHILD) return;
    if (harness_now_ns() > until) harness_fail(__FILE__, __LINE__, "a process is left");
    if (got <= 0) harness_pause();
  }
}

static int send_window(shm_msg_t *msgs, int count) {
  CHECK_EQ(shm_set_window(count), SHM_OK);
  return shm_send_msgs(msgs, count);
}

/* ---- a helper dies in the middle of a call ---- */

enum { HOW_KILL, HOW_SEGV, HOW_ABORT, HOW_EXIT_0, HOW_EXIT_3, HOW_STOPS, HOWS };

static void fn_end(void *params) {
  echo_t *echo = params;
  echo->runs++;
  switch (echo->in) {
    case HOW_KILL: kill(getpid(), SIGKILL); break;
    case HOW_SEGV: signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); break;
    case HOW_ABORT: signal(SIGABRT, SIG_DFL); raise(SIGABRT); break;
    case HOW_EXIT_0: _exit(0);
    case HOW_EXIT_3: _exit(3);
    default: break;
  }
}

static void note_deaths(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_HELPER_DIED) {
    notes[10]++;
    notes[11] = event->sequence;
    notes[12] = event->function;
    notes[13] = (uint64_t)(int64_t)event->exit_status;
  }
  if (event->kind == SHM_EVENT_HELPER_HUNG) notes[14]++;
  if (event->kind == SHM_EVENT_HELPER_READY) {
    notes[15]++;
    notes[16] = (uint64_t)event->pid;
  }
}

static int ends_a_helper(int child) {
  if (child == 1) { /* this one must notice nothing */
    while (notes[20] == 0) expect_service();
    return 0;
  }
  for (uint64_t how = 0; how < HOW_STOPS; how++) {
    echo_t *echo = echo_new(how);
    CHECK_EQ(call(fn_end, echo), SHM_EHELPER_DIED);
    CHECK_EQ(echo->runs, 1);
    AWAIT(notes[10] == how + 1);
    CHECK_EQ(notes[12], (uint64_t)(uintptr_t)fn_end);
    CHECK(notes[11] != 0);
    for (int i = 0; i < 10; i++) expect_service();
  }
  notes[20] = 1;
  return 0;
}

TEST(a_helper_that_ends_inside_a_call_costs_that_call_alone_and_is_replaced) {
  broker_open(2, 2);
  CHECK_EQ(shm_register(fn_end, "end", sizeof(echo_t)), SHM_OK);
  host.on_event = note_deaths;
  config.max_deaths = 100;
  launch_well(ends_a_helper);
  CHECK_EQ(notes[10], HOW_STOPS);
  CHECK_EQ((int64_t)notes[13], 3);
}

static int dies_among_others(int child) {
  (void)child;
  enum { BEFORE = 10, AFTER = 10, COUNT = BEFORE + 1 + AFTER };
  for (int i = 0; i < 100; i++) expect_service(); /* known to be short: many are handed over */
  echo_t *deadly = echo_new(0);
  CHECK_EQ(call(fn_die, deadly), SHM_EHELPER_DIED);
  deadly->runs = 0;
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 20; i++) expect_service();
    echo_t *echo[COUNT];
    shm_msg_t msgs[COUNT], got[COUNT];
    int statuses[COUNT];
    for (int i = 0; i < COUNT; i++) {
      echo[i] = i == BEFORE ? deadly : echo_new((uint64_t)i);
      msgs[i] = (shm_msg_t){i == BEFORE ? fn_die : fn_add_one, echo[i]};
    }
    CHECK_EQ(send_window(msgs, COUNT), COUNT);
    for (int taken = 0; taken < COUNT;) {
      int n = shm_read_msgs(got, statuses, COUNT);
      CHECK(n > 0);
      for (int i = 0; i < n; i++) {
        int died = got[i].func_ptr == fn_die;
        CHECK_EQ(statuses[i], died ? SHM_EHELPER_DIED : SHM_OK);
      }
      taken += n;
    }
    for (int i = 0; i < COUNT; i++) {
      CHECK_EQ(echo[i]->runs, 1); /* neither lost nor run twice */
      if (i != BEFORE) CHECK_EQ(echo[i]->out, (uint64_t)i + 1);
      if (i != BEFORE) CHECK_EQ(shm_free(echo[i]), SHM_OK);
    }
    deadly->runs = 0;
    CHECK_EQ(shm_read_msg(NULL), SHM_EAGAIN);
  }
  return 0;
}

TEST(finished_calls_are_answered_and_waiting_ones_served_exactly_once_after_a_death) {
  broker_open(1, 1);
  config.window = 64;
  config.death_window_ns = 1; /* no death is a quick one */
  launch_well(dies_among_others);
}

/* ---- idempotent functions ---- */

static void fn_dies_at_first(void *params) {
  echo_t *echo = params;
  echo->runs++;
  if (echo->runs <= echo->in) kill(getpid(), SIGKILL);
  echo->out = 42;
}
static void fn_once(void *params) { fn_dies_at_first(params); }

static int retries(int child) {
  (void)child;
  echo_t *echo = echo_new(1);
  CHECK_EQ(call(fn_dies_at_first, echo), SHM_OK);
  CHECK_EQ(echo->runs, 2);
  CHECK_EQ(echo->out, 42);
  *echo = (echo_t){.in = 100};
  CHECK_EQ(call(fn_dies_at_first, echo), SHM_EHELPER_DIED);
  CHECK_EQ(echo->runs, 2); /* never a third try */
  *echo = (echo_t){.in = 1};
  CHECK_EQ(call(fn_once, echo), SHM_EHELPER_DIED);
  CHECK_EQ(echo->runs, 1);
  expect_service();
  return 0;
}

TEST(an_idempotent_call_is_tried_once_more_and_others_never) {
  broker_open(1, 2);
  shm_function_config_t again = {.name = "again",
                                 .func = fn_dies_at_first,
                                 .params_size = sizeof(echo_t),
                                 .flags = SHM_FUNCTION_IDEMPOTENT};
  CHECK_EQ(shm_register_function(&again, NULL), SHM_OK);
  CHECK_EQ(shm_register(fn_once, "once", sizeof(echo_t)), SHM_OK);
  config.death_window_ns = 1;
  launch_well(retries);
}

/* ---- helpers that die idle, all at once, again and again ---- */

static void note_pids(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_HELPER_READY) {
    notes[30 + event->index] = (uint64_t)event->pid;
    notes[15]++;
  }
}

static int fds_of(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  DIR *dir = opendir(path);
  int count = 0;
  CHECK(dir != NULL);
  for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
    count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

static int kills_idle_helpers(int child) {
  (void)child;
  expect_service(); /* then the parent has closed what it opened for this child */
  int of_parent = fds_of(getppid()), of_helper = fds_of((pid_t)notes[30]);
  for (int round = 0; round < 5; round++) {
    uint64_t ready = notes[15];
    for (int h = 0; h < 3; h++) CHECK_SYS(kill((pid_t)notes[30 + h], SIGKILL));
    for (int i = 0; i < 20; i++) expect_service();
    AWAIT(notes[15] == ready + 3);
    CHECK_EQ(fds_of(getppid()), of_parent);
    for (int h = 0; h < 3; h++) CHECK_EQ(fds_of((pid_t)notes[30 + h]), of_helper);
  }
  return 0;
}

TEST(helpers_that_die_idle_are_replaced_with_the_same_descriptors_and_nobody_hears_of_it) {
  broker_open(1, 3);
  host.on_event = note_pids;
  config.death_window_ns = 1;
  launch_well(kills_idle_helpers);
}

static int survives_a_storm(int child) {
  uint64_t random = (uint64_t)child * 7919 + 88172645463325252u, died = 0;
  enum { CALLS = 400 };
  for (int i = 0; i < CALLS; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    echo_t *echo = echo_new((uint64_t)i);
    int is_deadly = random % 40 == 0;
    int status = call(is_deadly ? fn_die : fn_add_one, echo);
    CHECK_EQ(status, is_deadly ? SHM_EHELPER_DIED : SHM_OK);
    CHECK_EQ(echo->runs, 1);
    if (!is_deadly) CHECK_EQ(echo->out, (uint64_t)i + 1);
    died += (uint64_t)is_deadly;
    CHECK_EQ(shm_free(echo), SHM_OK);
  }
  notes[40 + child] = died;
  return 0;
}

static void count_answers(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_OVER) {
    shm_broker_stats_t stats;
    CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
    notes[51] = stats.helper_deaths;
    CHECK_EQ(stats.submitted, stats.answered);
  }
}

TEST_WITHIN(a_storm_of_deaths_loses_no_call, 30) {
  broker_open(4, 2);
  host.on_event = count_answers;
  config.death_window_ns = 1;
  launch_well(survives_a_storm);
  CHECK_EQ(notes[40] + notes[41] + notes[42] + notes[43], notes[51]);
  CHECK(notes[51] > 10);
}

static int keeps_dying(int child) {
  (void)child;
  echo_t *echo = echo_new(0);
  for (;;) {
    int status = call(fn_die, echo);
    CHECK(status == SHM_EHELPER_DIED || status == SHM_ENO_HELPERS);
    notes[60]++;
  }
}

TEST(five_quick_deaths_end_the_launch_with_the_reason) {
  broker_open(1, 1);
  host.on_event = note_deaths;
  CHECK_EQ(launch(keeps_dying), SHM_ENO_HELPERS);
  CHECK(strstr(shm_error_detail(), "helper 0") != NULL);
  CHECK(strstr(shm_error_detail(), "5 times") != NULL);
  CHECK_EQ(notes[10], 5);
  expect_nothing_left();
}

/* ---- hangs ---- */

static void fn_hangs(void *params) {
  echo_t *echo = params;
  echo->runs++;
  if (echo->in == 1) signal(SIGABRT, SIG_IGN);
  if (echo->in != 2) AWAIT(0);
}
static void fn_takes_its_time(void *params) { /* longer than hang_after of the other function */
  echo_t *echo = params;
  harness_sleep_ms(250);
  echo->runs++;
}

static int hangs(int child) {
  if (child == 1) {
    echo_t *slow = echo_new(0);
    CHECK_EQ(call(fn_takes_its_time, slow), SHM_OK);
    CHECK_EQ(slow->runs, 1);
    return 0;
  }
  echo_t *echo = echo_new(2);
  CHECK_EQ(call(fn_hangs, echo), SHM_OK);
  for (uint64_t how = 0; how < 2; how++) { /* with SIGABRT at work, and without */
    *echo = (echo_t){.in = how};
    CHECK_EQ(call(fn_hangs, echo), SHM_EHELPER_DIED);
    CHECK_EQ(echo->runs, 1);
    AWAIT(notes[10] == how + 1);
    CHECK_EQ((int64_t)notes[13], how == 0 ? -SIGABRT : -SIGKILL);
    expect_service();
  }
  return 0;
}

TEST_WITHIN(a_call_beyond_its_hang_after_ends_its_helper_and_only_that, 20) {
  broker_open(2, 2);
  shm_function_config_t hanging = {.name = "hangs",
                                   .func = fn_hangs,
                                   .params_size = sizeof(echo_t),
                                   .hang_after_ns = 100000000};
  CHECK_EQ(shm_register_function(&hanging, NULL), SHM_OK);
  CHECK_EQ(shm_register(fn_takes_its_time, "slow", sizeof(echo_t)), SHM_OK);
  host.on_event = note_deaths;
  config.death_window_ns = 1;
  launch_well(hangs);
  CHECK_EQ(notes[14], 2);
}

/* ---- calls that a container's filter does not know ---- */

#ifdef SYS_epoll_pwait2
TEST_WITHIN(where_a_filter_refuses_the_precise_wait_a_coarse_one_does, 20) {
  FILTER_OR_SKIP(filter_refuse(SYS_epoll_pwait2, EPERM));
  broker_open(2, 2);
  shm_function_config_t hanging = {.name = "hangs",
                                   .func = fn_hangs,
                                   .params_size = sizeof(echo_t),
                                   .hang_after_ns = 100000000};
  CHECK_EQ(shm_register_function(&hanging, NULL), SHM_OK);
  CHECK_EQ(shm_register(fn_takes_its_time, "slow", sizeof(echo_t)), SHM_OK);
  host.on_event = note_deaths;
  config.death_window_ns = 1;
  launch_well(hangs);
}
#endif

static int never_runs(int child) { return child + 1; }

TEST(where_a_filter_refuses_pidfds_the_launch_says_that_they_are_missing) {
  FILTER_OR_SKIP(filter_refuse(SYS_pidfd_open, EPERM));
  broker_open(1, 1);
  CHECK_EQ(launch(never_runs), SHM_EUNSUPPORTED);
  expect_nothing_left();
}

/* ---- the parent ---- */

static int waits_in_a_call(int child) {
  notes[70]++;
  if (child == 0) {
    echo_t *echo = echo_new(0);
    echo->note = 72;
    call(fn_gate, echo);
  }
  while (pause() < 0) {
  }
  return 0;
}

TEST(when_the_parent_is_killed_its_helpers_and_children_are_gone_within_two_seconds) {
  broker_open(4, 2);
  CHECK_SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  fflush(NULL);
  pid_t parent = fork();
  if (parent == 0) _exit(launch(waits_in_a_call) == SHM_OK ? 0 : 1);
  AWAIT(notes[70] == 4 && notes[72] == 1);
  CHECK_SYS(kill(parent, SIGKILL));
  expect_all_gone_within(2);
}

static int asks_to_stop(int child) {
  notes[70]++;
  AWAIT(notes[70] >= 3);
  if (child == 0) kill(getppid(), (int)notes[71]);
  AWAIT(0);
  return 0;
}

TEST(a_signal_ends_the_launch_and_gives_the_handlers_back_every_time) {
  static const int signals[] = {SIGTERM, SIGINT, SIGTERM, SIGTERM};
  broker_open(3, 2);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    notes[70] = 0;
    notes[71] = (uint64_t)signals[i];
    CHECK_EQ(launch(asks_to_stop), SHM_ESIGNALLED);
    CHECK_EQ(shm_stop_signal(), signals[i]);
    expect_nothing_left();
  }
}

static int never_idle(int child) {
  shm_msg_t msgs[64], got[64];
  int statuses[64];
  echo_t *echo = echo_new(0);
  CHECK_EQ(shm_set_window(64), SHM_OK);
  for (int i = 0; i < 64; i++) msgs[i] = (shm_msg_t){fn_add_one, echo};
  for (int64_t i = 0;; i++) {
    if (shm_send_msgs(msgs, 64) < 0 && i == 0) return 1;
    if (shm_read_msgs(got, statuses, 64) < 0) return 1;
    if (i == 100) notes[70]++;
    if (i == 100 && child == 0) kill(getppid(), SIGTERM);
  }
}

TEST(a_busy_parent_hears_the_signal_too) {
  broker_open(8, 2);
  CHECK_EQ(launch(never_idle), SHM_ESIGNALLED);
  expect_nothing_left();
}

static int ignores_the_first(int child) {
  signal(SIGTERM, SIG_IGN);
  notes[70]++;
  AWAIT(notes[70] >= 3);
  if (child == 0) {
    kill(getppid(), SIGTERM);
    AWAIT(notes[75] == 1);
    kill(getppid(), SIGTERM);
  }
  while (pause() < 0) {
  }
  return 0;
}
static void note_draining(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_DRAINING) notes[75] = 1;
}

TEST(a_second_signal_ends_everything_at_once) {
  broker_open(3, 1);
  config.grace_ns = 60 * (uint64_t)SECOND_NS;
  host.on_event = note_draining;
  CHECK_EQ(launch(ignores_the_first), SHM_ESIGNALLED);
  expect_nothing_left();
}

static int hangs_for_ever(int child) {
  (void)child;
  echo_t *echo = echo_new(0);
  echo->note = 80;
  shm_msg_t msg = {fn_gate, echo};
  CHECK_EQ(shm_send_msg(&msg), SHM_OK);
  AWAIT(notes[80] == 1);
  return 0; /* and leaves its helper behind in the call */
}

TEST(a_helper_that_does_not_end_is_made_to) {
  broker_open(1, 1);
  config.grace_ns = 50000000;
  launch_well(hangs_for_ever);
}

/* ---- pipes smaller than usual ---- */

static void shrink_pipes(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_HELPER_STARTED) return;
  for (int fd = 3; fd < 256; fd++) { /* as the kernel does to a user of very many pipes */
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length <= 0 || (users_fds[fd / 64] >> (fd % 64) & 1) != 0) continue;
    name[length] = 0;
    if (strncmp(name, "pipe:", 5) == 0 && fcntl(fd, F_SETPIPE_SZ, 4096) > 0) notes[90]++;
  }
}

static int fills_small_pipes(int child) {
  (void)child;
  enum { COUNT = 400 };
  static shm_msg_t msgs[COUNT], got[COUNT];
  static int statuses[COUNT];
  echo_t *echo = echo_new(0);
  for (int i = 0; i < 200; i++) expect_service();
  for (int i = 0; i < COUNT; i++) msgs[i] = (shm_msg_t){fn_add_one, echo};
  for (int round = 0; round < 10; round++) {
    CHECK_EQ(send_window(msgs, COUNT), COUNT);
    for (int taken = 0; taken < COUNT;) {
      int n = shm_read_msgs(got, statuses, COUNT);
      CHECK(n > 0);
      for (int i = 0; i < n; i++) CHECK_EQ(statuses[i], SHM_OK);
      taken += n;
    }
  }
  CHECK_EQ(echo->runs, 4000);
  return 0;
}

TEST(small_pipes_to_a_helper_lose_nothing) {
  broker_open(1, 1);
  config.window = 512;
  host.on_event = shrink_pipes;
  launch_well(fills_small_pipes);
  CHECK_EQ(notes[90], 2);
}
