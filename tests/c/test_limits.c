/* Bounds of a launch in time: what is counted anew after a long life, and how long an end may take. */
#include "broker.h"

static int fails_thrice_after_a_long_life(int child) {
  (void)child;
  if (atomic_fetch_add(&notes[0], 1) == 3) return 0;
  int64_t until = harness_now_ns() + 2 * (int64_t)config.death_window_ns;
  while (harness_now_ns() < until) harness_pause();
  return 1;
}

TEST(a_life_that_was_long_begins_the_count_of_restarts_anew) {
  broker_open(1, 1);
  config.restart = SHM_RESTART_ON_FAILURE;
  config.max_restarts = 1;
  config.death_window_ns = 20000000;
  launch_well(fails_thrice_after_a_long_life);
  CHECK_EQ(notes[0], 4);
}

static int fails_at_once(int child) {
  (void)child;
  return atomic_fetch_add(&notes[0], 1) < 10;
}

TEST(short_lives_use_the_restarts_up) {
  broker_open(1, 1);
  config.restart = SHM_RESTART_ON_FAILURE;
  config.max_restarts = 2;
  CHECK_EQ(launch(fails_at_once), SHM_ECHILD_FAILED);
  CHECK_EQ(notes[0], 3);
  expect_nothing_left();
}

static void fn_stubborn(void *params) {
  (void)params;
  signal(SIGTERM, SIG_IGN);
  atomic_fetch_add(&notes[1], 1);
  for (;;) pause();
}

static int leaves_one_that_does_not_end(int child) {
  (void)child;
  shm_msg_t msg = {.func_ptr = fn_stubborn, .params = echo_new(1)};
  CHECK_EQ(shm_send_msg(&msg), SHM_OK);
  AWAIT(notes[1] == 1);
  return 0;
}

/* Nobody waits for what it still does: a second until TERM and one until KILL are enough. */
TEST_WITHIN(a_helper_that_nobody_waits_for_is_not_given_the_whole_grace, 15) {
  broker_open(1, 1);
  CHECK_EQ(shm_register(fn_stubborn, "stubborn", sizeof(echo_t)), SHM_OK);
  config.grace_ns = 60 * (uint64_t)SECOND_NS;
  launch_well(leaves_one_that_does_not_end);
}
