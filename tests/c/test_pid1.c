/* A caller that becomes child 0 of a parent it forks: shm_run with caller_is_child. */
#include "broker.h"

static void init_open(int helpers) {
  broker_open(1, helpers);
  config.caller_is_child = 1;
  host.run_child = NULL;
}
static void init_well(void) {
  int status = shm_run(&config, &host);
  if (status != SHM_OK)
    harness_fail(__FILE__, __LINE__, "init: %s (%s)", shm_status_name(status), shm_error_detail());
}
static void leave_well(void) {
  CHECK_EQ(shm_leave(), SHM_OK);
  expect_nothing_left();
}
static pid_t parent_of_broker(void) {
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  return stats.parent_pid;
}
static void expect_all_gone(void) {
  AWAIT(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

TEST(the_caller_is_child_zero_and_is_served) {
  init_open(2);
  init_well();
  CHECK_EQ(shm_get_role(), SHM_ROLE_CHILD);
  CHECK_EQ(shm_get_child_id(), 0);
  CHECK(parent_of_broker() != getpid());
  for (int i = 0; i < 100; i++) expect_service();
  CHECK_EQ(harness_open_fds(), guard.fds + 3); /* two pipe ends and the parent's pidfd */
  CHECK_EQ(shm_run(&config, &host), SHM_ENESTED);
  CHECK_EQ(shm_register(fn_add_one, "late", 8), SHM_ESEALED);
  expect_service();
  leave_well();
  CHECK_EQ(shm_leave(), SHM_ENOT_RUNNING);
  CHECK(shm_malloc(8) == NULL);
}

TEST(it_can_come_and_go_many_times) {
  init_open(1);
  for (int i = 0; i < 10; i++) {
    init_well();
    expect_service();
    leave_well();
  }
}

TEST(a_launch_works_after_it) {
  init_open(1);
  init_well();
  expect_service();
  leave_well();
  CHECK_EQ(shm_register(fn_add_one, "add_one", sizeof(echo_t)), SHM_OK);
}

/* ---- memory that outlives its broker ---- */

TEST(a_block_that_is_alive_after_leaving_stays_readable_until_it_is_freed) {
  init_open(1);
  init_well();
  echo_t *first = echo_new(1), *second = echo_new(2);
  unsigned char *gone = shm_malloc(64);
  CHECK_EQ(call(fn_add_one, first), SHM_OK);
  CHECK_EQ(shm_free(gone), SHM_OK);
  uint64_t base = shm_arena_base(0);
  CHECK_EQ(shm_leave(), SHM_OK);
  CHECK_EQ(first->out, 2);
  first->out = 7; /* and writable */
  CHECK_EQ(shm_free(gone), SHM_EBAD_FREE);
  CHECK_EQ(shm_free((char *)first + 64), (char *)first + 64 == (char *)second ? SHM_OK : SHM_EBAD_FREE);
  if ((char *)first + 64 != (char *)second) CHECK_EQ(shm_free(second), SHM_OK);
  CHECK_EQ(first->out, 7);
  CHECK_STR_EQ(permissions_at(base), "rw-s");
  CHECK_EQ(shm_free(first), SHM_OK);
  expect_nothing_left(); /* the mapping went with its last block */
  CHECK(shm_free(first) < 0);
}

TEST(blocks_of_several_brokers_are_kept_apart) {
  init_open(1);
  echo_t *kept[4];
  for (uint64_t i = 0; i < 4; i++) {
    init_well();
    kept[i] = echo_new(100 + i);
    CHECK_EQ(call(fn_add_one, kept[i]), SHM_OK);
    for (uint64_t k = 0; k < i; k++) CHECK_EQ(kept[k]->out, 101 + k);
    CHECK_EQ(call(fn_add_one, kept[0]), i == 0 ? SHM_OK : SHM_EBAD_PARAMS);
    CHECK_EQ(shm_leave(), SHM_OK);
  }
  CHECK_EQ(harness_mappings("shmgpu-arena"), 4);
  for (int i = 3; i >= 0; i--) CHECK_EQ(shm_free(kept[i]), SHM_OK);
  expect_nothing_left();
}

/* ---- failures at the start ---- */

static int session_fails(int helper, uint32_t generation) {
  (void)helper;
  (void)generation;
  shm_helper_ready(SHM_ESESSION);
  return 1;
}
static int fails_to_fork(void) {
  errno = EAGAIN;
  return -1;
}
static pid_t first_forker;
static int forks_once(void) { /* the caller can, the parent cannot */
  return getpid() == first_forker ? host_fork() : fails_to_fork();
}

TEST(a_session_that_cannot_be_made_fails_with_its_reason_and_leaves_nothing) {
  init_open(2);
  host.run_helper = session_fails;
  CHECK_EQ(shm_run(&config, &host), SHM_ESESSION);
  CHECK(strstr(shm_error_detail(), "could not make its session") != NULL);
  expect_nothing_left();
  host.run_helper = NULL;
  init_well();
  expect_service();
  leave_well();
}

TEST(forks_that_fail_leave_nothing) {
  init_open(1);
  host.fork = fails_to_fork;
  CHECK_EQ(shm_run(&config, &host), SHM_ESYSTEM);
  CHECK(strstr(shm_error_detail(), strerror(EAGAIN)) != NULL);
  expect_nothing_left();
  first_forker = getpid();
  host.fork = forks_once;
  CHECK_EQ(shm_run(&config, &host), SHM_ESYSTEM);
  CHECK(strstr(shm_error_detail(), strerror(EAGAIN)) != NULL);
  expect_nothing_left();
  host.fork = host_fork;
  init_well();
  expect_service();
  leave_well();
}

/* ---- deaths ---- */

TEST(when_the_parent_dies_calls_say_so_and_leaving_works) {
  init_open(2);
  CHECK_SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  init_well();
  expect_service();
  echo_t *gate = echo_new(0), *echo = echo_new(0);
  gate->note = 10;
  shm_msg_t msg = {fn_gate, gate};
  CHECK_EQ(shm_send_msg(&msg), SHM_OK);
  AWAIT(notes[10] == 1);
  CHECK_SYS(kill(parent_of_broker(), SIGKILL));
  CHECK_EQ(shm_read_msg(&msg), SHM_EBROKER_DIED);
  CHECK_EQ(shm_read_msg(&msg), SHM_EBROKER_DIED);
  CHECK_EQ(call(fn_add_one, echo), SHM_EBROKER_DIED);
  CHECK(shm_send_msg(&msg) < 0);
  echo->in = 5; /* its memory is still its own */
  CHECK_EQ(shm_free(gate), SHM_OK);
  CHECK_EQ(shm_free(echo), SHM_OK);
  CHECK_EQ(shm_leave(), SHM_OK);
  expect_all_gone();
  expect_nothing_left();
  init_well();
  expect_service();
  leave_well();
}

TEST(when_the_caller_dies_parent_and_helpers_end) {
  init_open(2);
  CHECK_SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  fflush(NULL);
  pid_t caller = fork();
  if (caller == 0) {
    init_well();
    expect_service();
    notes[20] = 1;
    for (;;) pause();
  }
  AWAIT(notes[20] == 1);
  CHECK_SYS(kill(caller, SIGKILL));
  expect_all_gone();
}

TEST(a_caller_that_just_exits_ends_parent_and_helpers) {
  init_open(2);
  CHECK_SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  fflush(NULL);
  pid_t caller = fork();
  if (caller == 0) {
    init_well();
    expect_service();
    _exit(0);
  }
  expect_all_gone();
}

static void count_deaths(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_HELPER_DIED) notes[30]++;
}

TEST(a_helper_that_dies_is_replaced_here_too) {
  init_open(1);
  host.on_event = count_deaths;
  init_well();
  echo_t *echo = echo_new(0);
  CHECK_EQ(call(fn_die, echo), SHM_EHELPER_DIED);
  expect_service();
  CHECK_EQ(notes[30], 1);
  CHECK_EQ(shm_free(echo), SHM_OK);
  leave_well();
}

TEST(helpers_given_up_are_told_as_the_end_of_the_broker) {
  init_open(1);
  init_well();
  echo_t *echo = echo_new(0);
  int status = SHM_EHELPER_DIED, deaths = 0;
  while (status == SHM_EHELPER_DIED && deaths < 20) {
    status = call(fn_die, echo);
    deaths++;
  }
  CHECK(status == SHM_ENO_HELPERS || status == SHM_EBROKER_DIED);
  CHECK(deaths <= 7);
  AWAIT(call(fn_add_one, echo) == SHM_EBROKER_DIED);
  CHECK_EQ(shm_free(echo), SHM_OK);
  leave_well();
}

/* Ctrl-C at the terminal reaches the whole group: it is the caller's own business. */
TEST(an_interrupt_of_the_group_leaves_parent_and_helpers_alone) {
  init_open(2);
  init_well();
  expect_service();
  struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
  CHECK_SYS(sigaction(SIGINT, &ignore, &before));
  CHECK_SYS(kill(0, SIGINT));
  for (int i = 0; i < 50; i++) expect_service();
  CHECK_SYS(sigaction(SIGINT, &before, NULL));
  leave_well();
}
