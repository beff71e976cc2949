/* When somebody watches for what is near instead of sleeping: idle cores, and no other call. */
#include "harness.h"

#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "ipc/adaptive_spin.h"
#include "ipc/scoreboard.h"

enum { US = 1000, MS = 1000 * US, SOON = 50 * US, FAR = 5 * MS };

static shmi_spin_t spin;

static void begin(void) {
  CHECK_EQ(shmi_scoreboard_create(1, 1, 0), SHM_OK);
  shmi_spin_open(&spin, SHMI_SPIN_NS);
  spin.cores = 2;
}

static void end(void) { shmi_scoreboard_destroy(); }

static int says(void *what) { return *(int *)what; }

/* A call of which the answer is there already: whether that was seen without sleeping. */
static int answered_at_once(void) {
  int is_here = 1;
  return shmi_spin(&spin, 1, says, &is_here);
}

/* One whose answer does not come: how long it was watched for. */
static uint64_t watched_in_vain(void) {
  int is_here = 0;
  uint64_t begin_ns = shmi_clock_ns();
  CHECK_EQ(shmi_spin(&spin, 1, says, &is_here), 0);
  return shmi_clock_ns() - begin_ns;
}

TEST(an_answer_that_is_usually_near_is_watched_for_and_a_far_one_is_not) {
  begin();
  CHECK_EQ(answered_at_once(), 1);
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, 300 * US);
  CHECK_EQ(answered_at_once(), 1);
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, FAR);
  CHECK_EQ(answered_at_once(), 0);
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, SOON);
  CHECK_EQ(answered_at_once(), 1);
  end();
}

TEST(a_gang_s_answer_is_watched_for_only_if_it_is_nearer) {
  begin();
  shmi_spin_open(&spin, SHMI_SPIN_FOR_GANG_NS);
  spin.cores = 2;
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, 300 * US);
  CHECK_EQ(answered_at_once(), 0);
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, 100 * US);
  CHECK_EQ(answered_at_once(), 1);
  end();
}

TEST(one_answer_that_takes_long_among_quick_ones_changes_nothing_for_good) {
  begin();
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, SOON);
  shmi_spin_learn(&spin, 3600 * (uint64_t)1000 * MS);
  CHECK_EQ(answered_at_once(), 1);
  end();
}

TEST(nobody_watches_while_calls_are_open_for_which_there_are_no_cores) {
  begin();
  shm_broker_stats_t *broker = shmi_scoreboard()->broker;
  broker->submitted = 1;
  CHECK_EQ(answered_at_once(), 1);
  broker->submitted = 2;
  CHECK_EQ(answered_at_once(), 0);
  broker->dropped = 1;
  CHECK_EQ(answered_at_once(), 1);
  end();
}

TEST(it_ends_where_no_answer_comes) {
  begin();
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, SOON);
  for (int i = 0; i < 20; i++) CHECK(watched_in_vain() >= SOON || spin.to_skip > 0);
  end();
}

TEST(nobody_spins_where_that_is_forbidden) {
  shmi_spin_allow(0);
  CHECK_EQ(shmi_scoreboard_create(1, 1, 0), SHM_OK);
  shmi_spin_open(&spin, SHMI_SPIN_NS);
  shmi_spin_allow(1);
  CHECK_EQ(shmi_spin_is_near(&spin), 0);
  CHECK_EQ(answered_at_once(), 0);
  end();
}

static _Atomic int is_over;

static void *works(void *unused) {
  (void)unused;
  while (!is_over) {
  }
  return NULL;
}

TEST(where_somebody_keeps_the_core_the_next_calls_sleep_and_each_time_twice_as_many) {
  begin();
  cpu_set_t before, one;
  CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; core++) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  pthread_t thread;
  is_over = 0;
  CHECK_EQ(pthread_create(&thread, NULL, works, NULL), 0); /* on the same core */
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, SOON);
  for (uint32_t skip = 64; skip <= 256; skip *= 2) {
    while (spin.to_skip == 0) watched_in_vain();
    CHECK_EQ(spin.to_skip, skip);
    for (uint32_t i = 0; i < skip; i++) CHECK_EQ(answered_at_once(), 0);
  }
  is_over = 1;
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  /* Idle again: it is as if nothing had been. */
  for (int i = 0; i < 10; i++) CHECK_EQ(answered_at_once(), 1);
  CHECK_EQ(spin.skip, 0);
  end();
}

TEST(who_could_do_something_else_is_told_of_answers_that_are_very_near_alone) {
  begin();
  CHECK_EQ(shmi_spin_is_near(&spin), 1);
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, 200 * US);
  int told = 0;
  for (int i = 0; i < 256; i++) told += shmi_spin_is_near(&spin);
  CHECK_EQ(told, 2); /* and tries again from time to time */
  for (int i = 0; i < 100; i++) shmi_spin_learn(&spin, SOON / 2);
  CHECK_EQ(shmi_spin_is_near(&spin), 1);
  spin.to_skip = 2;
  CHECK_EQ(shmi_spin_is_near(&spin), 0);
  CHECK_EQ(shmi_spin_is_near(&spin), 0);
  CHECK_EQ(shmi_spin_is_near(&spin), 1);
  end();
}
