/* The words of gangs: whoever tries to decide one, exactly one does; numbers wrap; nobody waits for the
 * dead. Threads play the members. */
#include "harness.h"

#include <pthread.h>

#include "ipc/gang.h"

enum { HELPERS = 8 };

static void open_words(void) { CHECK_EQ(shmi_gang_create(HELPERS), SHM_OK); }
static int state_of(uint32_t ticket) { return shmi_gang_fate(ticket).state; }

TEST(the_last_member_to_arrive_commits) {
  open_words();
  uint32_t ticket = shmi_gang_open(0x7, 12);
  CHECK_EQ(shmi_gang_epoch(ticket), 12);
  CHECK_EQ(state_of(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_COMMITTED);
  CHECK_EQ(shmi_gang_abort(ticket, 1, SHM_GANG_MEMBER_DIED), 0); /* too late: it stands */
  CHECK_EQ(state_of(ticket), SHM_GANG_COMMITTED);
  shmi_gang_close(ticket);
  shmi_gang_destroy();
}

TEST(the_first_who_aborts_is_named) {
  open_words();
  uint32_t ticket = shmi_gang_open(0x7, 0);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_abort(ticket, 2, SHM_GANG_MISMATCH), 1);
  CHECK_EQ(shmi_gang_abort(ticket, 1, SHM_GANG_MEMBER_DIED), 0);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_ABORTED);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_ABORTED);
  shmi_gang_fate_t fate = shmi_gang_fate(ticket);
  CHECK_EQ(fate.state, SHM_GANG_ABORTED);
  CHECK_EQ(fate.helper, 2);
  CHECK_EQ(fate.why, SHM_GANG_MISMATCH);
  shmi_gang_destroy();
}

TEST(a_ticket_that_is_closed_changes_nothing_any_more) {
  open_words();
  uint32_t old = shmi_gang_open(0x3, 0);
  CHECK_EQ(shmi_gang_arrive(old), SHM_GANG_RUNNING);
  shmi_gang_close(old);
  shmi_gang_number_from(old + SHMI_GANGS); /* the same place */
  uint32_t ticket = shmi_gang_open(0x3, 0);
  CHECK_EQ(ticket, old + SHMI_GANGS);
  CHECK_EQ(shmi_gang_arrive(old), SHM_GANG_ABORTED);
  CHECK_EQ(shmi_gang_abort(old, 0, SHM_GANG_MEMBER_FAILED), 0);
  shmi_gang_close(old);
  CHECK_EQ(state_of(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_RUNNING);
  CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_COMMITTED);
  shmi_gang_destroy();
}

TEST(a_gang_that_lasts_keeps_its_place_while_others_come_and_go) {
  open_words();
  uint32_t lasts = shmi_gang_open(0x1, 0);
  for (int i = 0; i < 3 * SHMI_GANGS; i++) {
    uint32_t ticket = shmi_gang_open(0x2, 0);
    CHECK(ticket % SHMI_GANGS != lasts % SHMI_GANGS);
    CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_COMMITTED);
    shmi_gang_close(ticket);
  }
  CHECK_EQ(state_of(lasts), SHM_GANG_RUNNING);
  int more = 0;
  while (shmi_gang_has_room()) shmi_gang_open(0x2, 0), more++;
  CHECK_EQ(more, SHMI_GANGS - 1);
  shmi_gang_close(lasts);
  CHECK(shmi_gang_has_room());
  shmi_gang_destroy();
}

TEST(numbers_wrap_and_none_is_zero) {
  open_words();
  shmi_gang_number_from(UINT32_MAX - 2);
  uint32_t before = 0;
  for (int i = 0; i < 8; i++) {
    uint32_t ticket = shmi_gang_open(0x3, 0);
    CHECK(ticket != 0);
    if (i > 0) {
      CHECK(shmi_gang_is_past(shmi_gang_position(ticket, 1, 1), shmi_gang_end_of(before)));
      CHECK(!shmi_gang_is_past(shmi_gang_end_of(before), shmi_gang_position(ticket, 1, 1)));
    }
    before = ticket;
    shmi_gang_arrive(ticket);
    CHECK_EQ(shmi_gang_arrive(ticket), SHM_GANG_COMMITTED);
    shmi_gang_close(ticket);
  }
  CHECK_EQ(before, 5);
  shmi_gang_destroy();
}

/* All numbers up to that one are given to gangs of helper 1 alone. */
static void others_take_all_up_to(uint32_t last) {
  uint32_t number;
  do {
    number = shmi_gang_open(0x2, 0);
    shmi_gang_close(number);
    uint32_t left = last - number;
    shmi_gang_skip_to(number + (left < UINT32_C(0x20000000) ? left : UINT32_C(0x20000000)));
  } while (number != last);
}

TEST(a_helper_that_was_idle_for_long_is_not_taken_to_be_ahead) {
  static const uint32_t spans[] = {100, UINT32_C(0x40000100), UINT32_C(0x7fffff00),
                                   UINT32_C(0xa0000000), UINT32_C(0xfffffff0)};
  open_words();
  shmi_gang_line_t *line = shmi_gang_line(0);
  for (int i = 0; i < 5; i++) {
    uint32_t ticket = shmi_gang_open(0x3, 0);
    shmi_gang_close(ticket);
    atomic_store(&line->posted, shmi_gang_end_of(ticket)); /* it has done its part, and sleeps */
    others_take_all_up_to(ticket + spans[i]);
    ticket = shmi_gang_open(0x3, 0);
    CHECK(!shmi_gang_is_past(atomic_load(&line->posted), shmi_gang_position(ticket, 0, 1)));
    shmi_gang_close(ticket);
    atomic_store(&line->posted, shmi_gang_end_of(ticket));
  }
  shmi_gang_destroy();
}

TEST(the_death_of_a_member_aborts_what_is_undecided_and_nobody_waits_for_it) {
  open_words();
  uint32_t undecided = shmi_gang_open(0x3, 0), stands = shmi_gang_open(0x3, 0),
           others = shmi_gang_open(0x6, 0), newest = shmi_gang_open(0x1, 0);
  shmi_gang_arrive(stands);
  shmi_gang_arrive(stands);
  atomic_store(&shmi_gang_line(0)->waiting_for, 2);
  uint32_t bells[HELPERS];
  for (int h = 0; h < HELPERS; h++) bells[h] = atomic_load(&shmi_gang_line(h)->bell);
  shmi_gang_member_died(0);
  /* Everybody looks again: others may wait until it has read. */
  for (int h = 0; h < HELPERS; h++) CHECK(atomic_load(&shmi_gang_line(h)->bell) != bells[h]);
  shmi_gang_fate_t fate = shmi_gang_fate(undecided);
  CHECK_EQ(fate.state, SHM_GANG_ABORTED);
  CHECK_EQ(fate.helper, 0);
  CHECK_EQ(fate.why, SHM_GANG_MEMBER_DIED);
  CHECK_EQ(state_of(stands), SHM_GANG_COMMITTED);
  CHECK_EQ(state_of(others), SHM_GANG_RUNNING);
  CHECK_EQ(state_of(newest), SHM_GANG_ABORTED);
  CHECK_EQ(atomic_load(&shmi_gang_line(0)->waiting_for), 0);
  CHECK(shmi_gang_is_past(atomic_load(&shmi_gang_line(0)->posted), shmi_gang_end_of(newest)));
  CHECK(shmi_gang_is_past(atomic_load(&shmi_gang_line(0)->read), shmi_gang_end_of(newest)));
  shmi_gang_destroy();
}

/* ---- who waits in vain ---- */

static void waits(int helper, uint64_t others, uint64_t until) {
  atomic_store(&shmi_gang_line(helper)->waits_until, until);
  atomic_store(&shmi_gang_line(helper)->waits_to_read, 1);
  atomic_store(&shmi_gang_line(helper)->waiting_for, others);
}

TEST(members_that_all_wait_for_each_other_are_stuck_at_the_second_look) {
  open_words();
  uint32_t ticket = shmi_gang_open(0x7, 0);
  uint64_t last = 0, at = shmi_gang_position(ticket, 4, 1);
  waits(0, 0x2, at);
  waits(1, 0x1, at);
  CHECK(shmi_gang_waits(0) && shmi_gang_waits(1) && !shmi_gang_waits(2));
  for (int i = 0; i < 3; i++) CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 0); /* one computes */
  waits(2, 0x1, at);
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 0);
  atomic_store(&shmi_gang_line(1)->posted, at - 1); /* somebody has moved */
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 0);
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 1);
  atomic_store(&shmi_gang_line(1)->posted, at); /* what 0 waits for is there: it need only wake up */
  CHECK(!shmi_gang_waits(0));
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 0);
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x7, &last), 0);
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x6, &last), 0);
  CHECK_EQ(shmi_gang_is_stuck(ticket, 0x6, &last), 1); /* the other one has ended meanwhile */
  shmi_gang_destroy();
}

TEST(who_waits_in_a_gang_that_is_decided_waits_no_more) {
  open_words();
  uint32_t ticket = shmi_gang_open(0x3, 0);
  waits(0, 0x2, shmi_gang_end_of(ticket));
  CHECK(shmi_gang_waits(0));
  shmi_gang_arrive(ticket);
  shmi_gang_arrive(ticket);
  CHECK(!shmi_gang_waits(0));
  shmi_gang_destroy();
}

/* ---- at once ---- */

enum { ROUNDS = HARNESS_SANITIZED ? 2000 : 20000, THREADS = 4 };
static _Atomic uint32_t current;
static _Atomic int arrived_at, aborted_by;
static pthread_barrier_t line_up;

static void *decider(void *arg) {
  int me = (int)(intptr_t)arg;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&line_up);
    uint32_t ticket = atomic_load(&current);
    if (me == THREADS - 1) {
      aborted_by += shmi_gang_abort(ticket, me, SHM_GANG_MEMBER_DIED);
    } else {
      int state = shmi_gang_arrive(ticket);
      arrived_at += state == SHM_GANG_COMMITTED;
    }
    pthread_barrier_wait(&line_up);
  }
  return NULL;
}

TEST_WITHIN(of_those_who_decide_at_once_exactly_one_wins, 60) {
  open_words();
  pthread_t threads[THREADS];
  int commits = 0, aborts = 0;
  pthread_barrier_init(&line_up, NULL, THREADS + 1);
  for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, decider, (void *)i);
  for (int round = 0; round < ROUNDS; round++) {
    arrived_at = aborted_by = 0;
    uint32_t ticket = shmi_gang_open(0x7, 0);
    current = ticket;
    pthread_barrier_wait(&line_up);
    pthread_barrier_wait(&line_up);
    int state = state_of(ticket);
    CHECK_EQ(arrived_at > 0, state == SHM_GANG_COMMITTED);
    CHECK_EQ(aborted_by, state == SHM_GANG_ABORTED);
    CHECK_EQ((arrived_at > 0) + aborted_by, 1);
    commits += arrived_at > 0;
    aborts += aborted_by;
    shmi_gang_close(ticket);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK_EQ(commits + aborts, ROUNDS);
  shmi_gang_destroy();
}
