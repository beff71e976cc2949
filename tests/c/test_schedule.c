/* The policy: a table of what is served when, and random events held against a plain model. */
#include "harness.h"

#include "broker/schedule.h"

enum { US = 1000, MS = 1000000 };

static shmi_function_t functions[8];
static shmi_schedule_t *s;
static uint64_t now = 1000000000;
static uint8_t pool_of[SHM_MAX_HELPERS], credit_of[SHM_MAX_POOLS];
static uint64_t sequence;
static int by_deadline;

static void open_schedule(int children, int helpers, int pools) {
  shmi_schedule_config_t config = {.children = children,
                                   .helpers = helpers,
                                   .pools = pools,
                                   .window = 256,
                                   .helper_pool = pool_of,
                                   .min_credit = credit_of,
                                   .by_deadline = by_deadline};
  for (uint32_t i = 0; i < 8; i++) functions[i].index = i;
  CHECK_EQ(shmi_schedule_create(&s, &config), SHM_OK);
  for (int h = 0; h < helpers; h++) shmi_schedule_helper_up(s, h);
}
static void close_schedule(void) {
  CHECK_EQ(shmi_schedule_queued(s), 0);
  shmi_schedule_destroy(s);
}

static shmi_frame_t frame_of(int child) {
  return (shmi_frame_t){.slot = (uint16_t)child, .sequence = ++sequence, .rows = 1};
}
static uint32_t put_frame(shmi_frame_t frame, int function) {
  uint32_t number = shmi_schedule_enqueue(s, &frame, &functions[function], now);
  CHECK(number != SHMI_NONE);
  return number;
}
static uint32_t put(int child) { return put_frame(frame_of(child), 0); }
static uint32_t put_with(int child, int priority) {
  shmi_frame_t frame = frame_of(child);
  frame.priority = (uint8_t)priority;
  return put_frame(frame, 0);
}
static uint32_t put_batched(int child, int function, uint64_t key, uint32_t rows) {
  shmi_frame_t frame = frame_of(child);
  frame.batch_key = key;
  frame.rows = rows;
  return put_frame(frame, function);
}
static uint32_t put_at(int child, uint64_t mask) {
  shmi_frame_t frame = frame_of(child);
  frame.placement = mask;
  return put_frame(frame, 0);
}

static uint32_t put_until(int child, uint64_t deadline_ns) {
  shmi_frame_t frame = frame_of(child);
  frame.deadline_ns = deadline_ns;
  return put_frame(frame, 0);
}

static uint32_t out[1024];
static int to;
static int next(void) { return shmi_schedule_next(s, now, &to, out, 1024); }
static void expect_nothing(void) { CHECK_EQ(next(), 0); }
static void done(uint32_t number, uint64_t service_ns) {
  shmi_schedule_finished(s, number, service_ns);
  shmi_schedule_free(s, number);
}
/* One message comes next: its number. */
static uint32_t take(void) {
  CHECK_EQ(next(), 1);
  return out[0];
}
static int child_of(uint32_t number) { return shmi_schedule_request(s, number)->frame.slot; }
/* Serve one after another with one message in flight: which child's turn it is. */
static int served(void) {
  uint32_t number = take();
  int child = child_of(number);
  done(number, 0);
  return child;
}
static void expect_order(const int children[], int count) {
  for (int i = 0; i < count; i++) {
    int child = served();
    if (child != children[i])
      harness_fail(__FILE__, __LINE__, "turn %d: child %d, expected %d", i, child, children[i]);
  }
}
/* Let the estimate of this function settle at service_ns. */
static void teach(int function, uint64_t service_ns) {
  for (int i = 0; i < 200; i++) {
    uint32_t number = put_frame(frame_of(0), function);
    CHECK_EQ(next(), 1);
    CHECK_EQ(out[0], number);
    done(number, service_ns);
  }
}

/* ---- turns ---- */

TEST(children_take_turns_whatever_they_have_queued) {
  open_schedule(3, 1, 1);
  for (int i = 0; i < 6; i++) put(0);
  for (int i = 0; i < 2; i++) put(1);
  put(2);
  static const int order[] = {0, 1, 2, 0, 1, 0, 0, 0, 0};
  expect_order(order, 9);
  close_schedule();
}

TEST(a_newcomer_stands_behind_those_who_wait) {
  open_schedule(3, 1, 1);
  for (int i = 0; i < 3; i++) put(0);
  for (int i = 0; i < 3; i++) put(1);
  CHECK_EQ(served(), 0);
  put(2); /* it is child 1's turn: 2 stands behind 0 */
  static const int order[] = {1, 0, 2, 1, 0, 1};
  expect_order(order, 6);
  close_schedule();
}

TEST(one_childs_messages_stay_in_order) {
  open_schedule(2, 1, 1);
  uint32_t numbers[10];
  for (int i = 0; i < 10; i++) numbers[i] = put(1);
  for (int i = 0; i < 10; i++) {
    CHECK_EQ(take(), numbers[i]);
    done(numbers[i], 0);
  }
  close_schedule();
}

TEST(a_weight_is_how_many_messages_a_turn_takes) {
  open_schedule(3, 1, 1);
  shmi_schedule_set_weight(s, 1, 3);
  shmi_schedule_set_weight(s, 2, 0); /* nobody weighs nothing */
  for (int child = 0; child < 3; child++) {
    for (int i = 0; i < 6; i++) put(child);
  }
  static const int order[] = {0, 1, 1, 1, 2, 0, 1, 1, 1, 2, 0, 2, 0, 2, 0, 2, 0, 2};
  expect_order(order, 18);
  close_schedule();
}

TEST(with_everybody_full_counts_never_differ_by_more_than_one) {
  enum { CHILDREN = 32 };
  int counts[CHILDREN] = {0};
  open_schedule(CHILDREN, 1, 1);
  for (int child = 0; child < CHILDREN; child++) {
    for (int i = 0; i <= child % 3; i++) put(child);
  }
  for (int i = 0; i < 3200; i++) {
    int child = served();
    counts[child]++;
    put(child);
    for (int c = 0; c < CHILDREN; c++) CHECK(counts[child] - counts[c] <= 1);
  }
  while (shmi_schedule_queued(s) > 0) served();
  close_schedule();
}

TEST(priorities_are_strict) {
  open_schedule(2, 1, 1);
  uint32_t low = put_with(0, 0), high = put_with(1, 3), middle = put_with(0, 1),
           upper = put_with(1, 2), high2 = put_with(0, 3);
  uint32_t order[] = {high, high2, upper, middle, low};
  for (int i = 0; i < 5; i++) {
    CHECK_EQ(take(), order[i]);
    done(order[i], 0);
  }
  close_schedule();
}

/* ---- pools and placement ---- */

TEST(a_pools_messages_go_to_its_helpers_only) {
  pool_of[0] = 0, pool_of[1] = 1, pool_of[2] = 1;
  open_schedule(1, 3, 2);
  shmi_frame_t frame = frame_of(0);
  frame.pool = 1;
  uint32_t first = put_frame(frame, 0), second = put_frame(frame, 0), third = put_frame(frame, 0);
  uint64_t helpers = 0;
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(next(), 1);
    helpers |= UINT64_C(1) << to;
  }
  CHECK_EQ(helpers, 6);
  expect_nothing(); /* helper 0 is free, and not of this pool */
  done(first, 0);
  CHECK_EQ(take(), third);
  done(second, 0);
  done(third, 0);
  close_schedule();
}

TEST(a_message_for_one_helper_waits_for_that_one) {
  open_schedule(2, 2, 1);
  uint32_t bound = put_at(0, 2), free_one = put(1);
  uint32_t helper_of[16] = {0};
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(next(), 1);
    helper_of[out[0]] = (uint32_t)to;
  }
  CHECK_EQ(helper_of[bound], 1);
  CHECK_EQ(helper_of[free_one], 0);
  uint32_t again = put_at(0, 2);
  done(free_one, 0);
  expect_nothing();
  done(bound, 0);
  CHECK_EQ(take(), again);
  CHECK_EQ(to, 1);
  done(again, 0);
  close_schedule();
}

TEST(a_message_for_several_helpers_goes_to_the_least_loaded) {
  open_schedule(4, 4, 1);
  uint32_t first = put_at(0, 0xe);
  CHECK_EQ(take(), first);
  int at_first = to;
  CHECK(at_first >= 1);
  uint32_t second = put_at(0, 0xe);
  CHECK_EQ(take(), second);
  CHECK(to != at_first && to >= 1);
  int at_second = to;
  uint32_t third = put_at(0, 0xe);
  CHECK_EQ(take(), third);
  CHECK(to != at_first && to != at_second && to >= 1);
  done(first, 0);
  done(second, 0);
  done(third, 0);
  close_schedule();
}

TEST(a_helper_that_is_down_is_chosen_last) {
  open_schedule(1, 3, 1);
  shmi_schedule_helper_down(s, 0);
  uint32_t number = put_at(0, 3);
  CHECK_EQ(take(), number);
  CHECK_EQ(to, 1);
  done(number, 0);
  number = put_at(0, 1); /* nothing else is allowed: it waits for the replacement */
  expect_nothing();
  shmi_schedule_helper_up(s, 0);
  CHECK_EQ(take(), number);
  CHECK_EQ(to, 0);
  done(number, 0);
  close_schedule();
}

TEST(bound_and_free_messages_of_equal_priority_take_turns_at_a_helper) {
  open_schedule(2, 1, 1);
  for (int i = 0; i < 8; i++) {
    put_at(0, 1);
    put(1);
  }
  int bound = 0;
  for (int i = 0; i < 8; i++) bound += served() == 0;
  CHECK_EQ(bound, 4);
  while (shmi_schedule_queued(s) > 0) served();
  close_schedule();
}

TEST(priority_counts_across_bound_and_free_messages) {
  open_schedule(2, 1, 1);
  uint32_t bound = put_at(0, 1), urgent = put_with(1, 2);
  CHECK_EQ(take(), urgent);
  done(urgent, 0);
  CHECK_EQ(take(), bound);
  done(bound, 0);
  close_schedule();
}

/* ---- credit ---- */

static int handed_out(int wanted) {
  int count = 0;
  while (count < wanted && next() > 0) count++;
  return count;
}
static void finish_all(uint32_t first, uint32_t last, uint64_t service_ns) {
  for (uint32_t n = first; n <= last; n++) done(n, service_ns);
}

TEST(what_was_never_measured_is_handed_over_one_at_a_time) {
  open_schedule(1, 1, 1);
  uint32_t a = put(0), b = put(0);
  CHECK_EQ(take(), a);
  expect_nothing();
  done(a, 0); /* teaches nothing */
  CHECK_EQ(take(), b);
  done(b, 0);
  close_schedule();
}

TEST(many_of_microseconds_are_handed_over) {
  open_schedule(1, 1, 1);
  teach(0, 2 * US);
  uint32_t numbers[200];
  for (int i = 0; i < 200; i++) numbers[i] = put(0);
  int count = handed_out(200);
  CHECK(count >= 80);
  CHECK(count <= SHMI_CREDIT_BUDGET_NS / (2 * US) + 2);
  CHECK_EQ(shmi_schedule_in_flight(s, 0), (uint32_t)count);
  for (int i = 0; i < 200; i++) {
    if (i >= count) CHECK_EQ(take(), numbers[i]);
    done(numbers[i], 2 * US);
  }
  close_schedule();
}

TEST(a_burst_of_the_shortest_stays_below_the_ring) {
  open_schedule(4, 1, 1);
  teach(0, 1);
  for (int i = 0; i < 800; i++) put(i % 4);
  uint32_t taken[800];
  int count = 0;
  while (next() > 0) taken[count++] = out[0];
  CHECK(count <= SHMI_CREDIT_MAX);
  CHECK(count >= SHMI_CREDIT_MAX / 2);
  for (int i = 0; i < count; i++) done(taken[i], 1);
  while (shmi_schedule_queued(s) > 0) served();
  close_schedule();
}

TEST(of_the_longest_none_waits_behind_another) {
  open_schedule(1, 1, 1);
  teach(0, 200 * (uint64_t)MS);
  uint32_t a = put(0), b = put(0), c = put(0);
  CHECK_EQ(take(), a);
  expect_nothing();
  done(a, 200 * (uint64_t)MS);
  CHECK_EQ(take(), b);
  done(b, 0);
  CHECK_EQ(take(), c);
  done(c, 0);
  close_schedule();
}

TEST(of_milliseconds_at_most_one_waits_and_only_where_the_queue_is_long) {
  open_schedule(1, 2, 1);
  teach(0, 4 * MS);
  put(0);
  put(0);
  take();
  take();
  CHECK_EQ(shmi_schedule_in_flight(s, 0), 1);
  CHECK_EQ(shmi_schedule_in_flight(s, 1), 1);
  put(0); /* one: a helper that comes free takes it at once */
  expect_nothing();
  for (int i = 0; i < 20; i++) put(0);
  while (next() > 0) {
  }
  CHECK(shmi_schedule_in_flight(s, 0) <= 2);
  CHECK(shmi_schedule_in_flight(s, 1) <= 2);
  CHECK(shmi_schedule_queued(s) >= 19);
  shmi_schedule_destroy(s);
}

TEST(min_credit_is_always_handed_over) {
  credit_of[0] = 3;
  open_schedule(1, 1, 1);
  uint32_t first = put(0);
  for (int i = 0; i < 4; i++) put(0);
  CHECK_EQ(handed_out(5), 3);
  finish_all(first, first + 2, 0);
  CHECK_EQ(handed_out(5), 2);
  finish_all(first + 3, first + 4, 0);
  close_schedule();
}

TEST(a_longer_call_is_believed_at_once_and_a_shorter_one_slowly) {
  open_schedule(1, 1, 1);
  teach(0, 10 * US);
  uint64_t before = shmi_schedule_estimate(s, 0);
  done((put(0), take()), 10 * MS);
  uint64_t after = shmi_schedule_estimate(s, 0);
  CHECK(after > 4 * (uint64_t)MS);
  done((put(0), take()), 10 * US);
  uint64_t then = shmi_schedule_estimate(s, 0);
  CHECK(then < after && then > after / 2);
  CHECK(before >= 9 * US && before <= 11 * US);
  close_schedule();
}

TEST(work_goes_to_the_helper_that_holds_least) {
  open_schedule(1, 3, 1);
  uint32_t numbers[3];
  uint64_t helpers = 0;
  for (int i = 0; i < 3; i++) numbers[i] = put(0);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(take(), numbers[i]);
    helpers |= UINT64_C(1) << to;
  }
  CHECK_EQ(helpers, 7);
  uint32_t more = put(0);
  int freed = shmi_schedule_request(s, numbers[1])->helper;
  done(numbers[1], 0);
  CHECK_EQ(take(), more);
  CHECK_EQ(to, freed);
  done(numbers[0], 0);
  done(numbers[2], 0);
  done(more, 0);
  close_schedule();
}

TEST(a_run_of_short_messages_stays_with_one_helper) {
  open_schedule(1, 2, 1);
  teach(0, 1 * US);
  uint32_t taken[64];
  int helpers[64], changes = 0;
  for (int i = 0; i < 64; i++) put(0);
  for (int i = 0; i < 64; i++) {
    taken[i] = take();
    helpers[i] = to;
    changes += i > 0 && helpers[i] != helpers[i - 1];
  }
  CHECK(changes >= 1 && changes <= 4);
  for (int i = 0; i < 64; i++) done(taken[i], 1 * US);
  close_schedule();
}

/* ---- batches ---- */

static void expect_batch(const uint32_t numbers[], int count) {
  int got = next();
  CHECK_EQ(got, count);
  for (int i = 0; i < count; i++) CHECK_EQ(out[i], numbers[i]);
  for (int i = 0; i < count; i++) {
    CHECK_EQ(shmi_schedule_request(s, out[i])->batch, count);
    done(out[i], 0);
  }
}

TEST(messages_of_one_key_go_together_across_children) {
  functions[1].batch_max_rows = 4;
  open_schedule(3, 1, 1);
  uint32_t a0 = put_batched(0, 1, 7, 1), a1 = put_batched(0, 1, 7, 1), b0 = put_batched(1, 1, 7, 1),
           c0 = put_batched(2, 1, 7, 1), c1 = put_batched(2, 1, 7, 1);
  uint32_t first[] = {a0, b0, c0, a1}, second[] = {c1};
  expect_batch(first, 4);
  expect_batch(second, 1);
  close_schedule();
}

TEST(one_childs_messages_of_one_key_go_together) {
  functions[1].batch_max_rows = 8;
  open_schedule(1, 1, 1);
  uint32_t numbers[10];
  for (int i = 0; i < 10; i++) numbers[i] = put_batched(0, 1, 7, 1);
  expect_batch(numbers, 8);
  expect_batch(numbers + 8, 2);
  close_schedule();
}

TEST(a_batch_counts_rows) {
  functions[1].batch_max_rows = 8;
  open_schedule(4, 1, 1);
  uint32_t a = put_batched(0, 1, 7, 5), b = put_batched(1, 1, 7, 4), c = put_batched(2, 1, 7, 3),
           d = put_batched(3, 1, 7, 1);
  uint32_t first[] = {a, c}, second[] = {b, d};
  expect_batch(first, 2);  /* b does not fit, c does */
  int got = next();
  CHECK(got == 1 || got == 2);
  CHECK_EQ(out[0], b);
  for (int i = 0; i < got; i++) done(out[i], 0);
  if (got == 1) CHECK_EQ(served(), 3);
  (void)second;
  (void)d;
  close_schedule();
}

TEST(a_full_batch_takes_nothing_more_not_even_what_has_no_rows) {
  functions[1].batch_max_rows = 4;
  open_schedule(4, 1, 1);
  uint32_t full[] = {put_batched(0, 1, 7, 3), put_batched(1, 1, 7, 1)};
  uint32_t rest[] = {put_batched(2, 1, 7, 0), put_batched(3, 1, 7, 0)};
  expect_batch(full, 2);
  expect_batch(rest, 2);
  close_schedule();
}

TEST(an_oversized_message_goes_alone) {
  functions[1].batch_max_rows = 4;
  open_schedule(3, 1, 1);
  uint32_t big[] = {put_batched(0, 1, 7, 9)}, pair[] = {put_batched(1, 1, 7, 2),
                                                        put_batched(2, 1, 7, 2)};
  expect_batch(big, 1);
  expect_batch(pair, 2);
  uint32_t huge[] = {put_batched(0, 1, 7, UINT32_MAX)}, one[] = {put_batched(1, 1, 7, 1)};
  expect_batch(huge, 1);
  expect_batch(one, 1);
  close_schedule();
}

TEST(other_keys_and_other_functions_keep_out) {
  functions[1].batch_max_rows = 8;
  functions[2].batch_max_rows = 8;
  open_schedule(5, 1, 1);
  uint32_t a = put_batched(0, 1, 7, 1), b = put_batched(1, 1, 8, 1), c = put_batched(2, 2, 7, 1),
           d = put_batched(3, 1, 0, 1), e = put_batched(4, 1, 7, 1);
  uint32_t first[] = {a, e}, second[] = {b}, third[] = {c}, fourth[] = {d};
  expect_batch(first, 2);
  expect_batch(second, 1);
  expect_batch(third, 1);
  expect_batch(fourth, 1);
  close_schedule();
}

TEST(a_childs_other_message_is_not_overtaken_by_its_own_later_one) {
  functions[1].batch_max_rows = 8;
  open_schedule(2, 1, 1);
  uint32_t a = put_batched(0, 1, 7, 1), other = put(1), late = put_batched(1, 1, 7, 1);
  uint32_t first[] = {a};
  expect_batch(first, 1);
  CHECK_EQ(take(), other);
  done(other, 0);
  uint32_t last[] = {late};
  expect_batch(last, 1);
  close_schedule();
}

TEST(the_search_for_company_is_bounded) {
  functions[1].batch_max_rows = 8;
  open_schedule(2000, 1, 1);
  put_batched(0, 1, 7, 1);
  for (int child = 1; child < 1999; child++) put_batched(child, 1, 1000 + (uint64_t)child, 1);
  put_batched(1999, 1, 7, 1); /* behind everybody: beyond what is looked at */
  CHECK_EQ(next(), 1);
  done(out[0], 0);
  while (shmi_schedule_queued(s) > 0) {
    CHECK(next() >= 1);
    done(out[0], 0);
  }
  close_schedule();
}

TEST(a_batch_keeps_within_the_room_of_its_taker) {
  functions[1].batch_max_rows = 1000;
  open_schedule(1, 1, 1);
  for (int i = 0; i < 20; i++) put_batched(0, 1, 7, 1);
  CHECK_EQ(shmi_schedule_next(s, now, &to, out, 6), 6);
  for (int i = 0; i < 6; i++) done(out[i], 0);
  CHECK_EQ(next(), 14);
  for (int i = 0; i < 14; i++) done(out[i], 0);
  close_schedule();
}

TEST(what_goes_on_after_answers_counts_as_well) {
  open_schedule(1, 1, 1);
  teach(0, 10 * US);
  uint64_t before = shmi_schedule_estimate(s, 0);
  shmi_schedule_deferred(s, 0, 200 * (uint64_t)MS);
  CHECK_EQ(shmi_schedule_estimate(s, 0), before + 200 * (uint64_t)MS);
  uint32_t a = put(0), b = put(0);
  CHECK_EQ(take(), a);
  expect_nothing(); /* too long for a second one to wait behind it */
  done(a, 0);
  CHECK_EQ(take(), b);
  done(b, 0);
  for (int i = 0; i < 200; i++) shmi_schedule_deferred(s, 0, 0);
  CHECK(shmi_schedule_estimate(s, 0) < before + 100);
  close_schedule();
}

TEST(a_batch_is_one_piece_of_work_to_the_estimate) {
  functions[1].batch_max_rows = 8;
  open_schedule(1, 1, 1);
  for (int round = 0; round < 100; round++) {
    for (int i = 0; i < 8; i++) put_batched(0, 1, 7, 1);
    CHECK_EQ(next(), 8);
    for (int i = 0; i < 8; i++) done(out[i], 50 * US);
  }
  CHECK(shmi_schedule_estimate(s, 1) >= 49 * US);
  CHECK(shmi_schedule_estimate(s, 1) <= 51 * US);
  close_schedule();
}

TEST(between_two_turns_of_a_flood_everybody_who_waited_is_served_in_batches_too) {
  enum { CHILDREN = 9, FLOOD = 4 };
  functions[1].batch_max_rows = 4;
  open_schedule(CHILDREN, 1, 1);
  for (int i = 0; i < 200; i++) put_batched(FLOOD, 1, 7, 1);
  for (int child = 0; child < CHILDREN; child++) {
    if (child != FLOOD) put_batched(child, 1, 7, 1);
  }
  int waits[CHILDREN] = {0}, turns = 0;
  for (int batch = 0; batch < 90; batch++) {
    int count = next(), flood_came = 0, comes_back[CHILDREN] = {0};
    CHECK_EQ(count, 4);
    for (int i = 0; i < count; i++) {
      int child = child_of(out[i]);
      waits[child] = 0;
      comes_back[child] = child != FLOOD;
      done(out[i], 0);
      if (child != FLOOD) continue;
      flood_came = 1;
      turns++;
      for (int other = 0; other < CHILDREN; other++) CHECK(!waits[other]);
    }
    for (int child = 0; child < CHILDREN; child++) {
      if (flood_came) waits[child] = child != FLOOD && !comes_back[child];
      if (comes_back[child]) put_batched(child, 1, 7, 1);
    }
  }
  CHECK(turns >= 90 * 4 / CHILDREN);
  for (int child = 0; child < CHILDREN; child++) {
    uint32_t number;
    while ((number = shmi_schedule_drop_child(s, child)) != SHMI_NONE) {
      shmi_schedule_free(s, number);
    }
  }
  close_schedule();
}

TEST(whoever_is_taken_along_out_of_turn_has_had_it) {
  functions[1].batch_max_rows = 2;
  open_schedule(4, 1, 1);
  uint32_t a = put_batched(0, 1, 7, 1), b = put_batched(1, 1, 8, 1), c0 = put_batched(2, 1, 7, 1),
           c1 = put_batched(2, 1, 9, 1), d = put_batched(3, 1, 10, 1);
  uint32_t first[] = {a, c0}, in_order[] = {b, d, c1};
  expect_batch(first, 2);
  for (int i = 0; i < 3; i++) expect_batch(&in_order[i], 1);
  close_schedule();
}

/* ---- batches that wait to fill ---- */

TEST(a_delayed_batch_waits_for_company_until_its_time) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(3, 1, 1);
  uint32_t numbers[2];
  numbers[0] = put_batched(0, 1, 7, 1);
  CHECK_EQ(shmi_schedule_next_timer(s), now + 5 * MS);
  CHECK_EQ(shmi_schedule_queued(s), 1);
  expect_nothing();
  now += 3 * MS;
  numbers[1] = put_batched(1, 1, 7, 1);
  CHECK_EQ(shmi_schedule_next_timer(s), now + 2 * MS); /* the first one's */
  expect_nothing();
  now += 2 * MS - 1;
  expect_nothing();
  now += 1;
  expect_batch(numbers, 2);
  CHECK_EQ(shmi_schedule_next_timer(s), 0);
  close_schedule();
}

TEST(a_call_waits_for_company_at_most_half_of_its_own_time) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(3, 1, 1);
  uint32_t numbers[2];
  numbers[0] = put_batched(0, 1, 7, 1);
  shmi_frame_t hasty = frame_of(1);
  hasty.batch_key = 7;
  hasty.deadline_ns = now + 4 * MS;
  numbers[1] = put_frame(hasty, 1);
  CHECK_EQ(shmi_schedule_next_timer(s), now + 2 * MS);
  now += 2 * MS - 1;
  expect_nothing();
  now += 1;
  expect_batch(numbers, 2);
  shmi_frame_t patient = frame_of(1);
  patient.batch_key = 7;
  patient.deadline_ns = now + 20 * MS;
  numbers[0] = put_frame(patient, 1);
  CHECK_EQ(shmi_schedule_next_timer(s), now + 5 * MS);
  now += 5 * MS;
  expect_batch(numbers, 1);
  close_schedule();
}

TEST(a_delayed_batch_that_is_full_waits_no_longer) {
  functions[1].batch_max_rows = 3;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(3, 1, 1);
  uint32_t numbers[3];
  for (int i = 0; i < 3; i++) numbers[i] = put_batched(i, 1, 7, 1);
  CHECK_EQ(shmi_schedule_next_timer(s), 0);
  expect_batch(numbers, 3);
  uint32_t big[] = {put_batched(0, 1, 7, 3)}; /* full by itself */
  expect_batch(big, 1);
  close_schedule();
}

TEST(many_keys_at_once_each_have_their_time) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(4, 1, 1);
  enum { KEYS = 100 }; /* more than there are holds: the rest is served at once */
  for (uint64_t key = 1; key <= KEYS; key++) {
    put_batched((int)(key % 4), 1, key, 1);
    now += 1000;
  }
  CHECK_EQ(shmi_schedule_queued(s), KEYS);
  int served_now = 0;
  while (next() > 0) {
    served_now++;
    done(out[0], 0);
  }
  CHECK(served_now >= 30 && served_now < KEYS);
  now += 6 * MS;
  while (next() > 0) {
    served_now++;
    done(out[0], 0);
  }
  CHECK_EQ(served_now, KEYS);
  CHECK_EQ(shmi_schedule_next_timer(s), 0);
  close_schedule();
}

TEST(a_held_message_can_be_cancelled_and_dropped) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(2, 1, 1);
  uint32_t a = put_batched(0, 1, 7, 1);
  uint64_t sequence_of_a = sequence;
  uint32_t b = put_batched(1, 1, 7, 1), c = put_batched(0, 1, 7, 1);
  CHECK_EQ(shmi_schedule_cancel(s, 1, sequence_of_a), SHMI_NONE); /* another child's */
  CHECK_EQ(shmi_schedule_cancel(s, 0, sequence_of_a), a);
  shmi_schedule_free(s, a);
  CHECK_EQ(shmi_schedule_cancel(s, 0, sequence_of_a), SHMI_NONE);
  CHECK_EQ(shmi_schedule_drop_child(s, 0), c);
  shmi_schedule_free(s, c);
  CHECK_EQ(shmi_schedule_drop_child(s, 0), SHMI_NONE);
  CHECK(shmi_schedule_next_timer(s) != 0);
  CHECK_EQ(shmi_schedule_drop_child(s, 1), b);
  shmi_schedule_free(s, b);
  CHECK_EQ(shmi_schedule_next_timer(s), 0);
  close_schedule();
}

/* ---- deadlines ---- */

TEST(a_message_past_its_deadline_is_set_aside_and_never_handed_over) {
  open_schedule(2, 1, 1);
  shmi_frame_t late = frame_of(0), in_time = frame_of(0);
  late.deadline_ns = now + MS;
  in_time.deadline_ns = now + 10 * MS;
  uint32_t a = put_frame(late, 0), b = put_frame(in_time, 0), c = put(1);
  now += MS;
  uint32_t first = take();
  CHECK_EQ(shmi_schedule_take_expired(s), a);
  CHECK_EQ(shmi_schedule_take_expired(s), SHMI_NONE);
  shmi_schedule_free(s, a);
  CHECK_EQ(first, c); /* its turn was taken by the one set aside */
  done(c, 0);
  CHECK_EQ(take(), b);
  done(b, 0);
  close_schedule();
}

TEST(company_past_its_deadline_is_set_aside_too) {
  functions[1].batch_max_rows = 8;
  open_schedule(3, 1, 1);
  uint32_t numbers[3];
  for (int child = 0; child < 3; child++) {
    shmi_frame_t frame = frame_of(child);
    frame.batch_key = 7;
    frame.deadline_ns = child == 1 ? now + 1 : 0;
    numbers[child] = put_frame(frame, 1);
  }
  now += 1;
  CHECK_EQ(next(), 2);
  CHECK_EQ(out[0], numbers[0]);
  CHECK_EQ(out[1], numbers[2]);
  CHECK_EQ(shmi_schedule_take_expired(s), numbers[1]);
  for (int child = 0; child < 3; child++) {
    if (child != 1) shmi_schedule_finished(s, numbers[child], 0);
    shmi_schedule_free(s, numbers[child]);
  }
  close_schedule();
}

/* ---- taking out ---- */

TEST(cancelling_takes_out_queued_messages_only) {
  open_schedule(2, 1, 1);
  uint32_t a = put(0);
  uint64_t sequence_of_a = sequence;
  uint32_t b = put(0);
  uint64_t sequence_of_b = sequence;
  uint32_t c = put(0);
  CHECK_EQ(take(), a);
  CHECK_EQ(shmi_schedule_cancel(s, 0, sequence_of_a), SHMI_NONE);
  CHECK_EQ(shmi_schedule_cancel(s, 1, sequence_of_b), SHMI_NONE);
  CHECK_EQ(shmi_schedule_cancel(s, 0, sequence_of_b), b);
  shmi_schedule_free(s, b);
  CHECK_EQ(shmi_schedule_queued_of(s, 0), 1);
  done(a, 0);
  CHECK_EQ(take(), c);
  done(c, 0);
  close_schedule();
}

TEST(dropping_a_child_takes_out_all_it_has_and_nothing_else) {
  functions[1].batch_max_rows = 8;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(2, 2, 1);
  uint32_t in_flight = put(0);
  CHECK_EQ(take(), in_flight);
  put(0);
  put_with(0, 3);
  put_at(0, 2);
  put_batched(0, 1, 9, 1);
  uint32_t other = put(1);
  uint32_t number;
  int dropped = 0;
  while ((number = shmi_schedule_drop_child(s, 0)) != SHMI_NONE) {
    CHECK_EQ(child_of(number), 0);
    shmi_schedule_free(s, number);
    dropped++;
  }
  CHECK_EQ(dropped, 4);
  CHECK_EQ(shmi_schedule_queued_of(s, 0), 0);
  CHECK_EQ(take(), other);
  done(other, 0);
  done(in_flight, 0);
  close_schedule();
}

TEST(giving_up_a_helper_takes_out_what_waits_for_it) {
  open_schedule(1, 2, 1);
  shmi_schedule_helper_down(s, 1);
  uint32_t bound = put_at(0, 2);
  put(0);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), bound);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), SHMI_NONE);
  CHECK(shmi_schedule_drop_helper(s, 1, 1) != SHMI_NONE);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 1), SHMI_NONE);
  CHECK_EQ(shmi_schedule_queued(s), 0);
  close_schedule();
}

TEST(giving_up_a_helper_takes_out_what_is_held_for_it) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(2, 2, 1);
  shmi_frame_t frame = frame_of(0);
  frame.batch_key = 7;
  frame.placement = 2;
  uint32_t bound = put_frame(frame, 1);
  uint32_t held = put_batched(1, 1, 7, 1);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), bound);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), SHMI_NONE);
  CHECK_EQ(shmi_schedule_drop_helper(s, 0, 1), held); /* nobody is left in the pool */
  CHECK_EQ(shmi_schedule_drop_helper(s, 0, 1), SHMI_NONE);
  CHECK_EQ(shmi_schedule_next_timer(s), 0);
  close_schedule();
}

TEST(what_another_helper_may_run_as_well_waits_for_that_one) {
  functions[1].batch_max_rows = 4;
  functions[1].batch_delay_ns = 5 * MS;
  open_schedule(2, 3, 1);
  shmi_schedule_helper_down(s, 0);
  shmi_schedule_helper_down(s, 1);
  shmi_frame_t frame = frame_of(0);
  frame.placement = 3;
  frame.batch_key = 7;
  uint32_t held = put_frame(frame, 1);
  frame.batch_key = 0;
  uint32_t first = put_frame(frame, 0), second = put_frame(frame, 0);
  for (int h = 0; h < 2; h++) { /* wherever they were queued */
    CHECK_EQ(shmi_schedule_drop_helper(s, h, 0), SHMI_NONE);
    if (h == 0) shmi_schedule_expect_helper(s, h, 1);
  }
  CHECK_EQ(shmi_schedule_queued(s), 3);
  shmi_schedule_helper_up(s, 0);
  uint32_t got[3];
  for (int i = 0; i < 3; i++) {
    got[i] = take();
    CHECK_EQ(to, 0);
    done(got[i], 0);
  }
  CHECK_EQ(got[0] + got[1] + got[2], held + first + second);
  close_schedule();
}

TEST(messages_taken_back_wait_for_no_helper_that_is_gone) {
  credit_of[0] = 4;
  open_schedule(3, 2, 1);
  shmi_schedule_helper_down(s, 1);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), SHMI_NONE);
  uint32_t either[3], bound = put_at(0, 1);
  for (int i = 0; i < 3; i++) either[i] = put_at(i, 3);
  for (int i = 0; i < 4; i++) {
    take();
    CHECK_EQ(to, 0);
  }
  shmi_schedule_helper_down(s, 0);
  for (int i = 2; i >= 0; i--) CHECK_EQ(shmi_schedule_requeue(s, either[i]), 1);
  CHECK_EQ(shmi_schedule_requeue(s, bound), 1);
  shmi_schedule_helper_up(s, 0);
  CHECK_EQ(handed_out(4), 4);
  shmi_schedule_helper_down(s, 0);
  CHECK_EQ(shmi_schedule_drop_helper(s, 0, 1), SHMI_NONE);
  shmi_schedule_expect_helper(s, 1, 1); /* the other is the one that stays */
  for (int i = 2; i >= 0; i--) CHECK_EQ(shmi_schedule_requeue(s, either[i]), 1);
  CHECK_EQ(shmi_schedule_requeue(s, bound), 0); /* to its caller */
  CHECK_EQ(shmi_schedule_in_flight(s, 0), 0);
  shmi_schedule_free(s, bound);
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(handed_out(4), 3);
  CHECK_EQ(to, 1);
  for (int i = 0; i < 3; i++) done(either[i], 0);
  close_schedule();
}

TEST(a_helper_that_is_spared_gets_nothing_until_it_is_not) {
  open_schedule(2, 2, 1);
  shmi_schedule_spare_helper(s, 0, 1);
  uint32_t a = put(0), b = put(1);
  CHECK_EQ(take(), a);
  CHECK_EQ(to, 1);
  expect_nothing();
  shmi_schedule_spare_helper(s, 0, 0);
  CHECK_EQ(take(), b);
  CHECK_EQ(to, 0);
  done(a, 0);
  done(b, 0);
  close_schedule();
}

/* ---- deadlines, limits, pauses ---- */

static void expect_numbers(const uint32_t numbers[], int count) {
  for (int i = 0; i < count; i++) {
    uint32_t number = take();
    CHECK_EQ(number, numbers[i]);
    done(number, 0);
  }
}

TEST(by_deadline_the_earliest_is_first_whoever_sent_it) {
  by_deadline = 1;
  open_schedule(3, 1, 1);
  uint32_t nine = put_until(0, now + 9), never = put(0), four = put_until(0, now + 4);
  uint32_t seven = put_until(1, now + 7), two = put_until(2, now + 2), also = put_until(2, now + 2);
  uint32_t order[] = {two, also, four, seven, nine, never};
  expect_numbers(order, 6);
  close_schedule();
}

TEST(by_deadline_what_has_none_is_served_in_turns) {
  by_deadline = 1;
  open_schedule(2, 1, 1);
  put(0), put(0), put(1);
  static const int order[] = {0, 1, 0};
  expect_order(order, 3);
  close_schedule();
}

TEST(by_deadline_priorities_stay_strict_and_what_is_bound_stays_in_order) {
  by_deadline = 1;
  open_schedule(2, 1, 1);
  uint32_t early = put_until(0, now + 1), urgent = put_with(1, 3);
  uint32_t order[] = {urgent, early};
  expect_numbers(order, 2);
  shmi_frame_t frame = frame_of(0);
  frame.placement = 1;
  frame.deadline_ns = now + 9;
  uint32_t bound[2] = {put_frame(frame, 0)};
  frame.sequence = ++sequence;
  frame.deadline_ns = now + 3;
  bound[1] = put_frame(frame, 0);
  expect_numbers(bound, 2);
  close_schedule();
}

TEST(by_deadline_what_a_dead_helper_had_goes_before_its_equals) {
  by_deadline = 1;
  open_schedule(1, 1, 1);
  uint32_t first = put_until(0, now + 5);
  CHECK_EQ(take(), first);
  uint32_t second = put_until(0, now + 5), third = put_until(0, now + 3);
  shmi_schedule_requeue(s, first);
  uint32_t order[] = {third, first, second};
  expect_numbers(order, 3);
  close_schedule();
}

TEST(of_a_function_with_a_limit_it_is_known_how_many_wait_and_which_is_the_oldest) {
  open_schedule(2, 1, 1);
  functions[1].max_queue = 2;
  uint32_t first = put_frame(frame_of(0), 1), other = put(0);
  now++;
  uint32_t second = put_frame(frame_of(1), 1);
  CHECK_EQ(shmi_schedule_waiting(s, &functions[1]), 2);
  CHECK_EQ(shmi_schedule_waiting(s, &functions[0]), 0); /* it has no limit: nobody counts */
  CHECK_EQ(take(), first);
  CHECK_EQ(shmi_schedule_waiting(s, &functions[1]), 1);
  shmi_schedule_requeue(s, first); /* its helper died: it is the oldest again */
  CHECK_EQ(shmi_schedule_take_oldest(s, &functions[1]), first);
  CHECK_EQ(shmi_schedule_take_oldest(s, &functions[1]), second);
  CHECK_EQ(shmi_schedule_take_oldest(s, &functions[1]), SHMI_NONE);
  CHECK_EQ(take(), other);
  done(other, 0);
  shmi_schedule_free(s, first);
  shmi_schedule_free(s, second);
  functions[1].max_queue = 0;
  close_schedule();
}

TEST(a_paused_pool_gets_nothing_and_others_go_on) {
  pool_of[1] = 1;
  open_schedule(1, 2, 2);
  shmi_schedule_pause_pool(s, 0, 1);
  shmi_frame_t frame = frame_of(0);
  frame.pool = 1;
  uint32_t waits = put(0), goes_on = put_frame(frame, 0);
  CHECK_EQ(take(), goes_on);
  done(goes_on, 0);
  expect_nothing();
  shmi_schedule_pause_pool(s, 0, 0);
  CHECK_EQ(take(), waits);
  done(waits, 0);
  close_schedule();
  pool_of[1] = 0;
}

TEST(messages_taken_back_from_a_dead_helper_are_first_and_in_order) {
  open_schedule(2, 1, 1);
  teach(0, 2 * US);
  uint32_t a[4], taken[4];
  for (int i = 0; i < 4; i++) a[i] = put(1);
  for (int i = 0; i < 4; i++) taken[i] = take();
  uint32_t later = put(1);
  shmi_schedule_helper_down(s, 0);
  for (int i = 3; i >= 0; i--) shmi_schedule_requeue(s, taken[i]);
  CHECK_EQ(shmi_schedule_in_flight(s, 0), 0);
  expect_nothing(); /* down */
  shmi_schedule_helper_up(s, 0);
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(take(), a[i]);
    CHECK_EQ(shmi_schedule_request(s, a[i])->attempts, 2);
    done(a[i], 2 * US);
  }
  CHECK_EQ(take(), later);
  done(later, 0);
  close_schedule();
}

TEST(the_table_holds_every_childs_window_and_a_few_that_are_the_dispatchers_own) {
  open_schedule(2, 1, 1);
  for (int i = 0; i < 512; i++) put(i % 2);
  shmi_frame_t frame = frame_of(0);
  for (int i = 0; i < 2; i++) { /* one for the helper, one for the pool */
    CHECK(shmi_schedule_admit(s, &frame, now) != SHMI_NONE);
  }
  CHECK_EQ(shmi_schedule_enqueue(s, &frame, &functions[0], now), SHMI_NONE);
  CHECK_EQ(shmi_schedule_admit(s, &frame, now), SHMI_NONE);
  CHECK_EQ(served(), 0);
  CHECK(shmi_schedule_enqueue(s, &frame, &functions[0], now) != SHMI_NONE);
  while (shmi_schedule_queued(s) > 0) served();
  close_schedule();
}

/* ---- gangs ---- */

static uint32_t put_gang_with(int child, uint64_t mask, int priority, int function) {
  shmi_frame_t frame = frame_of(child);
  frame.placement = mask;
  frame.flags = SHMI_FRAME_GANG;
  frame.priority = (uint8_t)priority;
  return put_frame(frame, function);
}
static uint32_t put_gang(int child, uint64_t mask) { return put_gang_with(child, mask, 0, 0); }
static uint32_t next_gang(void) { return shmi_schedule_next_gang(s, now); }
static void gang_done_in(uint32_t number, uint64_t service_ns) {
  uint64_t members = shmi_schedule_request(s, number)->members;
  for (int left = __builtin_popcountll(members); members != 0; members &= members - 1) {
    CHECK_EQ(shmi_schedule_gang_finished(s, number, __builtin_ctzll(members), service_ns), --left);
  }
  shmi_schedule_free(s, number);
}
static void gang_done(uint32_t number) { gang_done_in(number, 0); }
/* The gang that comes next runs and ends: whose it was. */
static int gang_served(void) {
  uint32_t number = next_gang();
  CHECK(number != SHMI_NONE);
  int child = child_of(number);
  gang_done(number);
  return child;
}

TEST(a_gang_starts_on_all_its_helpers_at_once_or_waits) {
  open_schedule(2, 3, 1);
  uint32_t busy = put_at(0, 2);
  CHECK_EQ(take(), busy);
  uint32_t gang = put_gang(1, 7);
  CHECK_EQ(next_gang(), SHMI_NONE);
  CHECK_EQ(shmi_schedule_in_flight(s, 0), 0);
  done(busy, 0);
  CHECK_EQ(next_gang(), gang);
  CHECK_EQ(shmi_schedule_request(s, gang)->members, 7);
  for (int h = 0; h < 3; h++) CHECK_EQ(shmi_schedule_in_flight(s, h), 1);
  gang_done(gang);
  for (int h = 0; h < 3; h++) CHECK_EQ(shmi_schedule_in_flight(s, h), 0);
  close_schedule();
}

TEST(gangs_whose_helpers_meet_start_in_their_order) {
  open_schedule(3, 2, 1);
  uint32_t first = put_gang(2, 3), second = put_gang(0, 3), third = put_gang(1, 1);
  CHECK_EQ(next_gang(), first);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done(first);
  CHECK_EQ(next_gang(), second);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done(second);
  CHECK_EQ(next_gang(), third);
  gang_done(third);
  close_schedule();
}

TEST(a_gang_need_not_wait_for_one_that_it_shares_no_helper_with) {
  open_schedule(3, 4, 1);
  uint32_t busy = put_at(0, 1);
  CHECK_EQ(take(), busy);
  uint32_t waits = put_gang(0, 3), meets = put_gang(1, 6), apart = put_gang(2, 0xc);
  CHECK_EQ(next_gang(), SHMI_NONE); /* helper 2 is kept for the second, in its turn */
  done(busy, 0);
  CHECK_EQ(next_gang(), waits);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done(waits);
  CHECK_EQ(next_gang(), meets);
  gang_done(meets);
  CHECK_EQ(next_gang(), apart);
  busy = put_at(0, 1);
  CHECK_EQ(take(), busy);
  gang_done(apart);
  waits = put_gang(0, 3), apart = put_gang(0, 0xc);
  CHECK_EQ(next_gang(), apart); /* of the same child, too */
  gang_done(apart);
  done(busy, 0);
  CHECK_EQ(next_gang(), waits);
  gang_done(waits);
  close_schedule();
}

TEST(the_search_for_a_gang_that_can_start_is_bounded) {
  open_schedule(200, 64, 1);
  uint32_t busy = put_at(0, 1);
  CHECK_EQ(take(), busy);
  for (int child = 0; child < 199; child++) put_gang(child, 1);
  uint32_t apart = put_gang(199, 2);
  CHECK_EQ(next_gang(), SHMI_NONE); /* it stands behind more than are looked at */
  done(busy, 0);
  int turns = 0;
  for (uint32_t number = next_gang(); number != SHMI_NONE; number = next_gang(), turns++) {
    CHECK(number == apart || turns < 199);
    gang_done(number);
  }
  CHECK_EQ(turns, 200);
  close_schedule();
}

TEST(children_take_turns_with_gangs_too) {
  open_schedule(3, 2, 1);
  shmi_schedule_set_weight(s, 2, 2);
  for (int i = 0; i < 5; i++) put_gang(0, 3);
  for (int i = 0; i < 2; i++) put_gang(1, 3);
  for (int i = 0; i < 4; i++) put_gang(2, 3);
  static const int order[] = {0, 1, 2, 2, 0, 1, 2, 2, 0, 0, 0};
  for (int i = 0; i < 11; i++) CHECK_EQ(gang_served(), order[i]);
  close_schedule();
}

TEST(priorities_are_strict_among_gangs_and_beside_them) {
  open_schedule(2, 2, 1);
  uint32_t low = put_gang_with(0, 3, 0, 0), high = put_gang_with(1, 3, 2, 0);
  uint32_t urgent = put_with(0, 3), middle = put_with(1, 1);
  CHECK_EQ(next_gang(), SHMI_NONE); /* a helper that may run what is more urgent does so */
  CHECK_EQ(take(), urgent);
  done(urgent, 0);
  CHECK_EQ(next_gang(), high);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done(high);
  CHECK_EQ(next_gang(), SHMI_NONE);
  CHECK_EQ(take(), middle);
  done(middle, 0);
  CHECK_EQ(next_gang(), low);
  gang_done(low);
  close_schedule();
}

TEST(after_a_gang_what_waits_for_its_helpers_has_a_turn) {
  open_schedule(3, 2, 1);
  for (int i = 0; i < 3; i++) put_gang(0, 3);
  for (int i = 0; i < 3; i++) put_at(1, 1);
  for (int i = 0; i < 3; i++) put_at(2, 2);
  for (int round = 0; round < 3; round++) {
    uint32_t gang = next_gang(), held[2];
    CHECK(gang != SHMI_NONE);
    CHECK_EQ(child_of(gang), 0);
    expect_nothing(); /* of unknown length, so nothing goes behind it */
    gang_done(gang);
    CHECK_EQ(next_gang(), SHMI_NONE); /* helpers owe what waits a turn */
    uint64_t helpers = 0;
    for (int i = 0; i < 2; i++) {
      held[i] = take();
      helpers |= UINT64_C(1) << to;
    }
    CHECK_EQ(helpers, 3);
    now += SHMI_GANG_AGE_NS;
    CHECK_EQ(next_gang(), SHMI_NONE);
    done(held[0], 0);
    expect_nothing(); /* and now it is the gang's */
    done(held[1], 0);
    expect_nothing();
    if (round == 2) CHECK_EQ(shmi_schedule_queued(s), 0);
  }
  close_schedule();
}

TEST(a_gang_that_waited_long_keeps_new_work_from_its_helpers) {
  open_schedule(2, 2, 1);
  uint32_t busy = put_at(0, 1);
  CHECK_EQ(take(), busy);
  uint32_t gang = put_gang(1, 3);
  CHECK_EQ(next_gang(), SHMI_NONE);
  uint32_t passes = put(0); /* the gang is young */
  CHECK_EQ(take(), passes);
  CHECK_EQ(to, 1);
  now += SHMI_GANG_AGE_NS;
  CHECK_EQ(next_gang(), SHMI_NONE);
  done(passes, 0);
  put(0);
  expect_nothing(); /* helper 1 is free, and kept for the gang */
  uint32_t urgent = put_with(0, 1);
  CHECK_EQ(take(), urgent); /* from what goes before it nothing is kept */
  CHECK_EQ(to, 1);
  done(urgent, 0);
  done(busy, 0);
  CHECK_EQ(next_gang(), gang);
  gang_done(gang);
  served();
  close_schedule();
}

TEST(no_helper_is_kept_for_a_gang_whose_other_member_is_down) {
  open_schedule(2, 2, 1);
  shmi_schedule_helper_down(s, 1);
  uint32_t gang = put_gang(1, 3);
  now += SHMI_GANG_AGE_NS;
  CHECK_EQ(next_gang(), SHMI_NONE);
  uint32_t passes = put(0);
  CHECK_EQ(take(), passes);
  CHECK_EQ(to, 0);
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(next_gang(), SHMI_NONE); /* now they are */
  put(0);
  expect_nothing();
  shmi_schedule_helper_down(s, 1); /* at once, not when gangs are looked at next */
  done(passes, 0);
  served();
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(next_gang(), gang);
  gang_done(gang);
  close_schedule();
}

TEST(a_gang_that_waits_for_a_paused_pool_is_in_nobodys_way) {
  pool_of[2] = 1;
  open_schedule(2, 3, 2);
  shmi_schedule_pause_pool(s, 1, 1);
  uint32_t waits = put_gang(0, 6);
  now += 2 * SHMI_GANG_AGE_NS;
  uint32_t goes_on = put_gang(1, 3);
  CHECK_EQ(next_gang(), goes_on);
  gang_done(goes_on);
  CHECK_EQ(next_gang(), SHMI_NONE);
  uint32_t call = put_at(1, 2);
  CHECK_EQ(take(), call); /* nor is a helper kept for it */
  done(call, 0);
  shmi_schedule_pause_pool(s, 1, 0);
  CHECK_EQ(next_gang(), waits);
  gang_done(waits);
  close_schedule();
  pool_of[2] = 0;
}

TEST(a_gang_that_waits_for_a_replacement_is_in_nobodys_way_but_its_childs) {
  open_schedule(2, 3, 1);
  shmi_schedule_helper_down(s, 1);
  uint32_t waits = put_gang(0, 3), behind = put_gang(0, 1), beside = put_gang(1, 5);
  CHECK_EQ(next_gang(), beside);
  gang_done(beside);
  CHECK_EQ(next_gang(), SHMI_NONE); /* what one child sends to a helper stays in order */
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(next_gang(), waits);
  gang_done(waits);
  CHECK_EQ(next_gang(), behind);
  gang_done(behind);
  close_schedule();
}

TEST(a_gangs_slowest_member_teaches_the_estimate) {
  open_schedule(1, 3, 1);
  uint32_t gang = put_gang(0, 7);
  CHECK_EQ(next_gang(), gang);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 1, 300 * US), 2);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 0, 900 * US), 1);
  CHECK_EQ(shmi_schedule_estimate(s, 0), 0);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 2, 100 * US), 0);
  CHECK_EQ(shmi_schedule_estimate(s, 0), 900 * US);
  shmi_schedule_free(s, gang);
  for (int i = 0; i < 100; i++) {
    put_gang(0, 7);
    gang_done_in(next_gang(), 50 * US);
  }
  CHECK(shmi_schedule_estimate(s, 0) < 60 * US);
  close_schedule();
}

TEST(short_gangs_of_the_same_helpers_are_handed_ahead) {
  open_schedule(2, 3, 1);
  teach(0, 10 * US);
  uint32_t gangs[40];
  for (int i = 0; i < 40; i++) gangs[i] = put_gang(0, 3);
  int count = 0;
  while (count < 40 && next_gang() != SHMI_NONE) count++;
  CHECK(count >= 15 && count <= SHMI_CREDIT_BUDGET_NS / (10 * US) + 1);
  CHECK_EQ(shmi_schedule_in_flight(s, 0), (uint32_t)count);
  CHECK_EQ(shmi_schedule_in_flight(s, 1), (uint32_t)count);
  uint32_t others = put_gang(1, 6); /* its helper 1 holds gangs of others' */
  CHECK_EQ(next_gang(), SHMI_NONE);
  for (int i = 0; i < count; i++) gang_done_in(gangs[i], 10 * US);
  CHECK_EQ(next_gang(), gangs[count]); /* it was still their turn */
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done_in(gangs[count], 10 * US);
  CHECK_EQ(next_gang(), others);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done_in(others, 10 * US);
  for (uint32_t number = next_gang(); number != SHMI_NONE; number = next_gang()) {
    gang_done_in(number, 10 * US);
  }
  close_schedule();
}

TEST(of_gangs_of_milliseconds_one_waits_ahead_of_the_longest_none) {
  static const struct {
    uint64_t service_ns;
    int held;
  } cases[] = {{4 * MS, 2}, {200 * (uint64_t)MS, 1}};
  for (int i = 0; i < 2; i++) {
    open_schedule(2, 2, 1);
    teach(0, cases[i].service_ns);
    for (int k = 0; k < 3; k++) put_gang(0, 3);
    uint32_t held[3];
    for (int k = 0; k < cases[i].held; k++) {
      held[k] = next_gang();
      CHECK(held[k] != SHMI_NONE);
    }
    CHECK_EQ(next_gang(), SHMI_NONE);
    for (int k = 0; k < cases[i].held; k++) gang_done_in(held[k], cases[i].service_ns);
    put(1); /* somebody else waits: it is his turn, not one ahead */
    CHECK_EQ(next_gang(), SHMI_NONE);
    while (shmi_schedule_queued(s) > 0) {
      if (next() > 0) done(out[0], 0);
      uint32_t number = next_gang();
      if (number != SHMI_NONE) gang_done(number);
    }
    close_schedule();
  }
}

TEST(a_gang_never_starts_behind_a_call_that_one_member_executes) {
  credit_of[0] = 3; /* whatever may always be handed ahead */
  open_schedule(2, 2, 1);
  teach(0, 4 * MS);
  uint32_t call = put_at(0, 2);
  CHECK_EQ(take(), call);
  uint32_t gang = put_gang(1, 3);
  CHECK_EQ(next_gang(), SHMI_NONE);
  done(call, 4 * MS);
  CHECK_EQ(next_gang(), gang);
  uint32_t ahead = put_gang(1, 3), third = put_gang(1, 3), fourth = put_gang(1, 3);
  CHECK_EQ(next_gang(), ahead);
  CHECK_EQ(next_gang(), third);
  CHECK_EQ(next_gang(), SHMI_NONE);
  gang_done(gang);
  CHECK_EQ(next_gang(), fourth);
  gang_done(ahead);
  gang_done(third);
  gang_done(fourth);
  close_schedule();
}

TEST(a_gang_that_nobody_began_goes_back_to_the_front) {
  open_schedule(2, 2, 1);
  uint32_t gang = put_gang(0, 3), later = put_gang(0, 3);
  CHECK_EQ(next_gang(), gang);
  shmi_schedule_helper_down(s, 1);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 1, 0), 1);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 0, 0), 0);
  CHECK_EQ(shmi_schedule_requeue_gang(s, gang), 1);
  CHECK_EQ(shmi_schedule_queued(s), 2);
  CHECK_EQ(next_gang(), SHMI_NONE);
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(next_gang(), gang);
  CHECK_EQ(shmi_schedule_request(s, gang)->attempts, 2);
  CHECK_EQ(shmi_schedule_request(s, gang)->members, 3);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 0, 0), 1);
  CHECK_EQ(shmi_schedule_gang_finished(s, gang, 1, 0), 0);
  shmi_schedule_expect_helper(s, 1, 0);
  CHECK_EQ(shmi_schedule_requeue_gang(s, gang), 0); /* it would wait for nobody */
  shmi_schedule_free(s, gang);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), later);
  shmi_schedule_free(s, later);
  close_schedule();
}

TEST(a_waiting_gang_can_be_cancelled_dropped_given_up_and_expire) {
  open_schedule(2, 2, 1);
  shmi_schedule_helper_down(s, 1);
  uint32_t a = put_gang(0, 3);
  CHECK_EQ(shmi_schedule_cancel(s, 1, sequence), SHMI_NONE);
  CHECK_EQ(shmi_schedule_cancel(s, 0, sequence), a);
  shmi_schedule_free(s, a);
  a = put_gang(0, 3);
  CHECK_EQ(shmi_schedule_drop_child(s, 1), SHMI_NONE);
  CHECK_EQ(shmi_schedule_drop_child(s, 0), a);
  shmi_schedule_free(s, a);
  a = put_gang_with(0, 3, 2, 0);
  uint32_t b = put_gang(0, 1);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), a);
  CHECK_EQ(shmi_schedule_drop_helper(s, 1, 0), SHMI_NONE);
  shmi_schedule_free(s, a);
  CHECK_EQ(next_gang(), b);
  gang_done(b);
  shmi_schedule_expect_helper(s, 1, 1);
  for (int i = 0; i < 3; i++) { /* behind others, and more than one */
    shmi_frame_t frame = frame_of(0);
    frame.placement = 3;
    frame.flags = SHMI_FRAME_GANG;
    frame.deadline_ns = i == 1 ? 0 : now + 1;
    a = put_frame(frame, 0);
    if (i == 1) b = a;
  }
  now += 1;
  CHECK_EQ(next_gang(), SHMI_NONE);
  int expired = 0;
  for (uint32_t number; (number = shmi_schedule_take_expired(s)) != SHMI_NONE; expired++) {
    CHECK(number != b);
    shmi_schedule_free(s, number);
  }
  CHECK_EQ(expired, 2);
  shmi_schedule_helper_up(s, 1);
  CHECK_EQ(next_gang(), b);
  gang_done(b);
  close_schedule();
}

/* ---- random events against a model that is too simple to be wrong ---- */

enum { M_CHILDREN = 6, M_HELPERS = 4, M_POOLS = 2, M_WINDOW = 12, M_PRIORITIES = 4 };
enum { M_GANGS = M_POOLS + M_HELPERS, M_DOMAINS }; /* the domain of gangs is the last */
enum { GONE, WAITS, FLIES };

typedef struct model {
  int state;
  int child, priority, domain, function, helper;
  int may_be_held;    /* its function asks for a delay */
  int is_broken;      /* gang: a member died that had not begun it */
  uint64_t members;   /* gang: those that have not finished */
  int passed_over;    /* gang: by those that share a helper with it, while it was its child's first */
  uint64_t sequence, key, deadline_ns, since_ns, placement;
  uint64_t order;     /* place in its FIFO: smaller is earlier */
  uint64_t estimate_ns, handed;
  uint32_t rows;
} model_t;

static model_t model[M_CHILDREN * M_WINDOW + 1];
static struct {
  int owes; /* it was given a gang, and nothing else since */
  int up, in_flight, pool, gone; /* gone: it will not be replaced, unless its pool wants it again */
} helpers_of_model[M_HELPERS];
static int outstanding_of[M_CHILDREN];
static int passed_over[M_DOMAINS][M_PRIORITIES][M_CHILDREN];
static uint64_t random_state, order_back, order_front, hand_overs;
static uint64_t model_seed;

#define MODEL_CHECK(cond)                                                                   \
  do {                                                                                      \
    if (!(cond))                                                                            \
      harness_fail(__FILE__, __LINE__, "seed %llu: %s", (unsigned long long)model_seed, #cond); \
  } while (0)

static uint64_t roll(uint64_t sides) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (random_state >> 11) % sides;
}

static int may_wait(const model_t *m) { /* it may be held back for company still */
  return m->may_be_held && now < m->since_ns + functions[m->function].batch_delay_ns;
}
static int serves(int helper, int domain) {
  return domain == helpers_of_model[helper].pool || domain == M_POOLS + helper;
}
static uint64_t held_ns(int helper) {
  uint64_t sum = 0;
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    int holds = model[n].domain == M_GANGS ? (int)(model[n].members >> helper & 1)
                                           : model[n].helper == helper;
    if (model[n].state == FLIES && holds) sum += model[n].estimate_ns;
  }
  return sum;
}
static int must_have_credit(int helper) {
  int least = credit_of[helpers_of_model[helper].pool] > 0 ? credit_of[helpers_of_model[helper].pool] : 1;
  if (!helpers_of_model[helper].up) return 0;
  return helpers_of_model[helper].in_flight < least ||
         (held_ns(helper) < SHMI_CREDIT_BUDGET_NS &&
          helpers_of_model[helper].in_flight < SHMI_CREDIT_MAX);
}
static int may_have_credit(int helper) {
  int least = credit_of[helpers_of_model[helper].pool] > 0 ? credit_of[helpers_of_model[helper].pool] : 1;
  return must_have_credit(helper) ||
         (helpers_of_model[helper].up && helpers_of_model[helper].in_flight == least &&
          held_ns(helper) <= SHMI_CREDIT_AHEAD_NS);
}

static int is_gang(uint32_t n) { return model[n].domain == M_GANGS; }
static int is_up(uint64_t mask) {
  for (int h = 0; h < M_HELPERS; h++) {
    if ((mask >> h & 1) != 0 && !helpers_of_model[h].up) return 0;
  }
  return 1;
}
static int may_be_kept(int helper) { /* for a gang that waited long */
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state == WAITS && is_gang(n) && (model[n].placement >> helper & 1) != 0 &&
        is_up(model[n].placement) && now - model[n].since_ns >= SHMI_GANG_AGE_NS) {
      return 1;
    }
  }
  return 0;
}

static void model_leave(uint32_t n) {
  model[n].state = GONE;
  outstanding_of[model[n].child]--;
  shmi_schedule_free(s, n);
}

static int is_left(uint64_t placement) { /* one of these helpers is there, or will be again */
  for (int h = 0; h < M_HELPERS; h++) {
    if ((placement >> h & 1) != 0 && !helpers_of_model[h].gone) return 1;
  }
  return 0;
}

static int is_all_left(uint64_t placement) {
  for (int h = 0; h < M_HELPERS; h++) {
    if ((placement >> h & 1) != 0 && helpers_of_model[h].gone) return 0;
  }
  return 1;
}

static int with_gangs;

static void model_enqueue(int batches, int delays) {
  int child = (int)roll(M_CHILDREN);
  if (outstanding_of[child] == M_WINDOW) return;
  shmi_frame_t frame = frame_of(child);
  frame.priority = roll(3) == 0 ? (uint8_t)roll(M_PRIORITIES) : 0;
  frame.pool = (uint8_t)roll(M_POOLS);
  if (roll(4) == 0) frame.placement = 1 + roll((1 << M_HELPERS) - 1);
  if (roll(8) == 0) frame.deadline_ns = now + 1 + roll(3 * MS);
  int function = (int)roll(2);
  if (batches && roll(2) == 0) {
    function = delays && roll(2) == 0 ? 3 : 2;
    frame.batch_key = 1 + roll(3);
    frame.rows = (uint32_t)roll(8) == 0 ? 100 : (uint32_t)(1 + roll(4));
  }
  int gang = with_gangs && roll(4) == 0;
  if (gang) {
    frame.flags = SHMI_FRAME_GANG;
    frame.placement = 1 + roll((1 << M_HELPERS) - 1);
  }
  uint32_t n = shmi_schedule_enqueue(s, &frame, &functions[function], now);
  if (frame.placement != 0 && !(gang ? is_all_left : is_left)(frame.placement)) {
    MODEL_CHECK(n == SHMI_NONE);
    return;
  }
  MODEL_CHECK(n != SHMI_NONE && n <= M_CHILDREN * M_WINDOW);
  MODEL_CHECK(model[n].state == GONE);
  int domain = shmi_schedule_request(s, n)->domain;
  if (gang) MODEL_CHECK(domain == M_GANGS);
  else if (frame.placement == 0) MODEL_CHECK(domain == frame.pool);
  else MODEL_CHECK(domain >= M_POOLS && (frame.placement >> (domain - M_POOLS) & 1) != 0 &&
                   !helpers_of_model[domain - M_POOLS].gone);
  model[n] = (model_t){.state = WAITS,
                       .child = child,
                       .priority = frame.priority,
                       .domain = domain,
                       .function = function,
                       .may_be_held = !gang && functions[function].batch_delay_ns > 0 &&
                                      frame.batch_key != 0 &&
                                      frame.rows < functions[function].batch_max_rows,
                       .sequence = frame.sequence,
                       .key = frame.batch_key,
                       .placement = frame.placement,
                       .deadline_ns = frame.deadline_ns,
                       .since_ns = now,
                       .order = ++order_back,
                       .rows = frame.rows};
  outstanding_of[child]++;
}

static void model_expired(void) {
  uint32_t n;
  while ((n = shmi_schedule_take_expired(s)) != SHMI_NONE) {
    MODEL_CHECK(model[n].state == WAITS);
    MODEL_CHECK(model[n].deadline_ns != 0 && model[n].deadline_ns <= now);
    passed_over[model[n].domain][model[n].priority][model[n].child] = 0;
    model_leave(n);
  }
}

/* Is n the first of its child's FIFO? Messages that are held for company stand aside. */
static int is_first(uint32_t n) {
  const model_t *m = &model[n];
  for (uint32_t o = 1; o <= M_CHILDREN * M_WINDOW; o++) {
    const model_t *other = &model[o];
    if (other->state == WAITS && other->child == m->child && other->priority == m->priority &&
        other->domain == m->domain && other->order < m->order &&
        m->may_be_held == other->may_be_held &&
        (!m->may_be_held || (other->key == m->key && other->function == m->function))) {
      return 0;
    }
  }
  return 1;
}

static int model_next(int delays) {
  int helper;
  int credit[M_HELPERS];
  for (int h = 0; h < M_HELPERS; h++) credit[h] = may_have_credit(h);
  int count = shmi_schedule_next(s, now, &helper, out, 16);
  model_expired();
  if (count == 0) { /* then nothing could be served */
    for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
      if (model[n].state != WAITS || may_wait(&model[n])) continue;
      for (int h = 0; h < M_HELPERS; h++)
        MODEL_CHECK(!serves(h, model[n].domain) || !must_have_credit(h) || may_be_kept(h));
    }
    return 0;
  }
  MODEL_CHECK(count <= 16);
  MODEL_CHECK(credit[helper]);
  const model_t first = model[out[0]];
  MODEL_CHECK(serves(helper, first.domain));
  /* Nothing more urgent waits for this helper. */
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state != WAITS || may_wait(&model[n])) continue;
    if (serves(helper, model[n].domain)) MODEL_CHECK(model[n].priority <= first.priority);
  }
  uint64_t rows = 0, estimate = 0;
  int served_child[M_CHILDREN] = {0};
  hand_overs++;
  for (int i = 0; i < count; i++) {
    model_t *m = &model[out[i]];
    MODEL_CHECK(m->state == WAITS);
    MODEL_CHECK(m->deadline_ns == 0 || m->deadline_ns > now);
    MODEL_CHECK(is_first(out[i]));
    rows += m->rows;
    if (count > 1) {
      MODEL_CHECK(m->key != 0 && m->key == first.key && m->function == first.function);
      MODEL_CHECK(m->domain == first.domain && m->priority == first.priority);
    }
    const shmi_request_t *r = shmi_schedule_request(s, out[i]);
    MODEL_CHECK(r->helper == helper && r->batch == count);
    MODEL_CHECK((r->estimate_ns > 0) == (i == 0)); /* a batch is one piece of work */
    m->state = FLIES;
    m->helper = helper;
    m->handed = hand_overs * 64 + (uint64_t)i;
    m->estimate_ns = r->estimate_ns;
    estimate += r->estimate_ns;
    helpers_of_model[helper].in_flight++;
    served_child[m->child] = 1;
  }
  helpers_of_model[helper].owes = 0;
  MODEL_CHECK(count == 1 || rows <= functions[first.function].batch_max_rows);
  MODEL_CHECK(estimate > 0);
  MODEL_CHECK(shmi_schedule_in_flight(s, helper) == (uint32_t)helpers_of_model[helper].in_flight);
  /* Nobody who waits in this ring is passed over by a whole round. */
  for (int child = 0; child < M_CHILDREN; child++) {
    int waits = 0, *passed = &passed_over[first.domain][first.priority][child];
    for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
      waits |= model[n].state == WAITS && model[n].child == child &&
               model[n].domain == first.domain && model[n].priority == first.priority;
    }
    *passed = served_child[child] || !waits ? 0 : *passed + 1;
    if (!delays) MODEL_CHECK(*passed < M_CHILDREN);
  }
  return count;
}

/* ---- gangs in the model ---- */

static int urgency_at(int helper) {
  int urgency = -1;
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state == WAITS && !is_gang(n) && serves(helper, model[n].domain) &&
        model[n].priority > urgency) {
      urgency = model[n].priority;
    }
  }
  return urgency;
}

static int holds_only(int helper, uint64_t mask) {
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state != FLIES) continue;
    if (!is_gang(n) && model[n].helper == helper) return 0;
    if (is_gang(n) && (model[n].members >> helper & 1) != 0 && model[n].placement != mask) return 0;
  }
  return 1;
}

static int can_begin_in_model(uint32_t n) {
  for (int h = 0; h < M_HELPERS; h++) {
    if ((model[n].placement >> h & 1) == 0) continue;
    int urgency = urgency_at(h), priority = model[n].priority;
    if (!helpers_of_model[h].up || urgency > priority) return 0;
    if (urgency == priority && helpers_of_model[h].owes) return 0;
    if (helpers_of_model[h].in_flight == 0) continue;
    if (!holds_only(h, model[n].placement)) return 0;
    int one_ahead = helpers_of_model[h].in_flight == 1 && held_ns(h) <= SHMI_CREDIT_AHEAD_NS &&
                    urgency < priority;
    if (!must_have_credit(h) && !one_ahead) return 0;
  }
  return 1;
}

/* Does it wait for a member that is down, or behind another one of its child that does? */
static int is_delayed(uint32_t n) {
  if (!is_up(model[n].placement)) return 1;
  for (uint32_t o = 1; o <= M_CHILDREN * M_WINDOW; o++) {
    if (model[o].state == WAITS && is_gang(o) && model[o].child == model[n].child &&
        model[o].priority == model[n].priority && model[o].order < model[n].order &&
        (model[o].placement & model[n].placement) != 0 && is_delayed(o)) {
      return 1;
    }
  }
  return 0;
}

static int model_next_gang(void) {
  int could[M_CHILDREN * M_WINDOW + 1], comes_first[M_CHILDREN * M_WINDOW + 1];
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    int waits = model[n].state == WAITS && is_gang(n);
    int is_late = model[n].deadline_ns != 0 && model[n].deadline_ns <= now;
    could[n] = waits && !is_late && can_begin_in_model(n);
    comes_first[n] = 1; /* it shares no helper with another one that waits */
    for (uint32_t o = 1; waits && o <= M_CHILDREN * M_WINDOW; o++) {
      if (o != n && model[o].state == WAITS && is_gang(o) &&
          (model[o].placement & model[n].placement) != 0) {
        comes_first[n] = 0;
      }
    }
  }
  uint32_t got = shmi_schedule_next_gang(s, now);
  model_expired();
  if (got == SHMI_NONE) {
    for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) MODEL_CHECK(!could[n] || !comes_first[n]);
    return 0;
  }
  model_t *m = &model[got];
  MODEL_CHECK(could[got]);
  MODEL_CHECK(!is_delayed(got));
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    model_t *other = &model[n];
    if (n == got || other->state != WAITS || !is_gang(n) || is_delayed(n) ||
        (other->placement & m->placement) == 0) {
      if (other->state == WAITS && is_gang(n) && is_delayed(n)) other->passed_over = 0;
      continue;
    }
    MODEL_CHECK(other->priority <= m->priority);
    if (other->priority != m->priority) continue;
    MODEL_CHECK(other->child != m->child || other->order > m->order);
    int is_its_first = 1;
    for (uint32_t o = 1; o <= M_CHILDREN * M_WINDOW; o++) {
      is_its_first &= !(model[o].state == WAITS && is_gang(o) && model[o].child == other->child &&
                        model[o].priority == other->priority && model[o].order < other->order);
    }
    other->passed_over = is_its_first ? other->passed_over + 1 : 0;
    MODEL_CHECK(other->passed_over < M_CHILDREN);
  }
  const shmi_request_t *r = shmi_schedule_request(s, got);
  MODEL_CHECK(r->members == m->placement && r->estimate_ns > 0);
  m->state = FLIES;
  m->members = m->placement;
  m->is_broken = 0;
  m->passed_over = 0;
  m->estimate_ns = r->estimate_ns;
  for (int h = 0; h < M_HELPERS; h++) {
    if ((m->members >> h & 1) == 0) continue;
    helpers_of_model[h].in_flight++;
    helpers_of_model[h].owes = 1;
    MODEL_CHECK(shmi_schedule_in_flight(s, h) == (uint32_t)helpers_of_model[h].in_flight);
  }
  return 1;
}

static void model_member_ends(uint32_t n, int helper, uint64_t service_ns) {
  helpers_of_model[helper].in_flight--;
  model[n].members &= ~(UINT64_C(1) << helper);
  int left = shmi_schedule_gang_finished(s, n, helper, service_ns);
  MODEL_CHECK(left == __builtin_popcountll(model[n].members));
  if (left > 0) return;
  int again = model[n].is_broken && roll(2) == 0;
  if (!again) {
    model_leave(n);
    return;
  }
  int is_queued = shmi_schedule_requeue_gang(s, n);
  MODEL_CHECK(is_queued == is_all_left(model[n].placement));
  if (!is_queued) {
    model_leave(n);
    return;
  }
  model[n].state = WAITS;
  model[n].order = --order_front;
}

/* ---- what else happens ---- */

static void model_finish(void) {
  static const uint64_t services[] = {0, 500, 5 * US, 60 * US, 3 * MS, 80 * (uint64_t)MS};
  uint32_t n = 1 + (uint32_t)roll(M_CHILDREN * M_WINDOW);
  if (model[n].state != FLIES) return;
  if (is_gang(n)) {
    int helper = (int)roll(M_HELPERS);
    if ((model[n].members >> helper & 1) != 0) model_member_ends(n, helper, services[roll(6)]);
    return;
  }
  helpers_of_model[model[n].helper].in_flight--;
  shmi_schedule_finished(s, n, services[roll(6)]);
  model_leave(n);
}

static void model_death(void) {
  int helper = (int)roll(M_HELPERS), is_let_go = helpers_of_model[helper].gone;
  if (!helpers_of_model[helper].up && !is_let_go) {
    helpers_of_model[helper].up = 1;
    shmi_schedule_helper_up(s, helper);
    return;
  }
  if (roll(3) != 0) return;
  helpers_of_model[helper].up = 0;
  shmi_schedule_helper_down(s, helper);
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state != FLIES || !is_gang(n) || (model[n].members >> helper & 1) == 0) continue;
    model[n].is_broken = 1;
    model_member_ends(n, helper, 0);
  }
  for (;;) { /* newest first */
    uint32_t newest = 0;
    for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
      if (model[n].state == FLIES && !is_gang(n) && model[n].helper == helper &&
          (newest == 0 || model[n].handed > model[newest].handed)) {
        newest = n;
      }
    }
    if (newest == 0) break;
    model_t *m = &model[newest];
    helpers_of_model[helper].in_flight--;
    if (roll(4) == 0) { /* it was executing: it fails */
      shmi_schedule_finished(s, newest, 0);
      model_leave(newest);
      continue;
    }
    int is_queued = shmi_schedule_requeue(s, newest);
    MODEL_CHECK(is_queued == (m->placement == 0 || is_left(m->placement)));
    if (!is_queued) {
      model_leave(newest);
      continue;
    }
    m->state = WAITS;
    m->may_be_held = 0;
    m->domain = shmi_schedule_request(s, newest)->domain;
    m->order = --order_front;
  }
  MODEL_CHECK(shmi_schedule_in_flight(s, helper) == 0);
}

/* What waits for a helper that is gone: fails, or waits for another one, behind those there. */
static void model_moves(int helper, const uint32_t wait[], int waiting) {
  for (int i = 0; i < waiting; i++) {
    model_t *m = &model[wait[i]];
    if (m->state == GONE) continue;
    MODEL_CHECK(is_left(m->placement));
    m->domain = shmi_schedule_request(s, wait[i])->domain;
    MODEL_CHECK(m->domain >= M_POOLS && m->domain != M_POOLS + helper);
    MODEL_CHECK((m->placement >> (m->domain - M_POOLS) & 1) != 0);
    MODEL_CHECK(!helpers_of_model[m->domain - M_POOLS].gone);
    m->may_be_held = 0;
    m->order = ++order_back;
  }
}

/* How far behind the head of its queue, held ones before the others: the order of taking out. */
static unsigned depth_of(uint32_t n) {
  const shmi_request_t *r = shmi_schedule_request(s, n);
  unsigned depth = r->hold == 0 ? 1000000u : r->hold * 1000u;
  for (uint32_t before = r->previous; before != SHMI_NONE; depth++) {
    before = shmi_schedule_request(s, before)->previous;
  }
  return depth;
}

static int waiting_for(int helper, uint32_t wait[]) {
  int count = 0;
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state != WAITS || model[n].domain != M_POOLS + helper) continue;
    int at = count++;
    for (; at > 0 && depth_of(wait[at - 1]) > depth_of(n); at--) wait[at] = wait[at - 1];
    wait[at] = n;
  }
  return count;
}

/* A helper is let go (it finishes what it holds), or is not replaced; or its pool wants it again. */
static void model_gone(void) {
  int helper = (int)roll(M_HELPERS), others = 0, pool = helpers_of_model[helper].pool;
  if (helpers_of_model[helper].gone) {
    if (helpers_of_model[helper].in_flight > 0) return;
    helpers_of_model[helper].gone = 0;
    shmi_schedule_expect_helper(s, helper, 1);
    return;
  }
  for (int h = 0; h < M_HELPERS; h++) {
    others += h != helper && helpers_of_model[h].pool == pool && !helpers_of_model[h].gone;
  }
  uint32_t wait[M_CHILDREN * M_WINDOW], n;
  int waiting = waiting_for(helper, wait);
  helpers_of_model[helper].gone = 1;
  helpers_of_model[helper].up = 0;
  while ((n = shmi_schedule_drop_helper(s, helper, others == 0)) != SHMI_NONE) {
    MODEL_CHECK(model[n].state == WAITS);
    if (is_gang(n)) MODEL_CHECK((model[n].placement >> helper & 1) != 0);
    else if (model[n].placement == 0) MODEL_CHECK(others == 0 && model[n].domain == pool);
    else MODEL_CHECK(model[n].domain == M_POOLS + helper && !is_left(model[n].placement));
    model_leave(n);
  }
  shmi_schedule_helper_down(s, helper);
  model_moves(helper, wait, waiting);
  for (n = 1; n <= M_CHILDREN * M_WINDOW; n++) { /* nobody waits for what will not come */
    if (model[n].state != WAITS) continue;
    MODEL_CHECK(model[n].domain != M_POOLS + helper);
    MODEL_CHECK(others > 0 || model[n].domain != pool);
    MODEL_CHECK(!is_gang(n) || (model[n].placement >> helper & 1) == 0);
  }
}

static void model_cancel(void) {
  uint32_t n = 1 + (uint32_t)roll(M_CHILDREN * M_WINDOW);
  if (model[n].state == GONE) return;
  uint32_t got = shmi_schedule_cancel(s, model[n].child, model[n].sequence);
  MODEL_CHECK(got == (model[n].state == WAITS ? n : SHMI_NONE));
  if (got != SHMI_NONE) model_leave(n);
}

/* Of a function with a limit: how many wait, and that the oldest is given up first. */
static void model_oldest(void) {
  int function = (int)roll(4);
  uint32_t waiting = 0;
  uint64_t earliest = UINT64_MAX;
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state != WAITS || model[n].function != function) continue;
    uint64_t queued_ns = shmi_schedule_request(s, n)->queued_ns;
    waiting++;
    if (queued_ns < earliest) earliest = queued_ns;
  }
  if (functions[function].max_queue == 0) waiting = 0;
  MODEL_CHECK(shmi_schedule_waiting(s, &functions[function]) == waiting);
  if (roll(2) == 0) return;
  uint32_t got = shmi_schedule_take_oldest(s, &functions[function]);
  MODEL_CHECK((got != SHMI_NONE) == (waiting > 0));
  if (got == SHMI_NONE) return;
  MODEL_CHECK(model[got].state == WAITS && model[got].function == function);
  MODEL_CHECK(shmi_schedule_request(s, got)->queued_ns == earliest);
  model_leave(got);
}

static void model_drop(void) {
  int child = (int)roll(M_CHILDREN), expected = 0;
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    expected += model[n].state == WAITS && model[n].child == child;
  }
  MODEL_CHECK(shmi_schedule_queued_of(s, child) == (uint32_t)expected);
  uint32_t n;
  while ((n = shmi_schedule_drop_child(s, child)) != SHMI_NONE) {
    MODEL_CHECK(model[n].state == WAITS && model[n].child == child);
    model_leave(n);
    expected--;
  }
  MODEL_CHECK(expected == 0);
}

/* Whoever has nothing queued in a ring stands behind everybody when it comes again. */
static void forget_absent(void) {
  static int waits[M_DOMAINS][M_PRIORITIES][M_CHILDREN];
  memset(waits, 0, sizeof waits);
  for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) {
    if (model[n].state == WAITS) waits[model[n].domain][model[n].priority][model[n].child] = 1;
  }
  int *passed = &passed_over[0][0][0];
  for (size_t i = 0; i < sizeof waits / sizeof(int); i++) passed[i] *= (&waits[0][0][0])[i];
}

static void run_model(uint64_t seed, int batches, int delays) {
  memset(functions, 0, sizeof functions);
  memset(model, 0, sizeof model);
  memset(passed_over, 0, sizeof passed_over);
  memset(outstanding_of, 0, sizeof outstanding_of);
  model_seed = seed;
  random_state = seed * 0x9E3779B97F4A7C15u + 1;
  order_back = order_front = UINT64_C(1) << 40;
  now = 1000000000;
  functions[2].batch_max_rows = functions[3].batch_max_rows = 8;
  functions[3].batch_delay_ns = 2 * MS;
  functions[1].max_queue = functions[3].max_queue = 5;
  for (int h = 0; h < M_HELPERS; h++) {
    pool_of[h] = (uint8_t)(h % M_POOLS);
    helpers_of_model[h].up = 1;
    helpers_of_model[h].in_flight = 0;
    helpers_of_model[h].owes = 0;
    helpers_of_model[h].gone = 0;
    helpers_of_model[h].pool = h % M_POOLS;
  }
  credit_of[0] = 0;
  credit_of[1] = (uint8_t)roll(4);
  shmi_schedule_config_t setup = {.children = M_CHILDREN,
                                  .helpers = M_HELPERS,
                                  .pools = M_POOLS,
                                  .window = M_WINDOW,
                                  .helper_pool = pool_of,
                                  .min_credit = credit_of};
  for (uint32_t i = 0; i < 8; i++) functions[i].index = i;
  MODEL_CHECK(shmi_schedule_create(&s, &setup) == SHM_OK);
  for (int h = 0; h < M_HELPERS; h++) shmi_schedule_helper_up(s, h);
  int steps = HARNESS_SANITIZED ? 300 : 1500;
  for (int step = 0; step < steps; step++) {
    uint64_t what = roll(100);
    if (what < 45) model_enqueue(batches, delays);
    else if (what < 80) for (int i = 0; i < 6; i++) model_finish();
    else if (what < 84) model_death();
    else if (what < 86) model_gone();
    else if (what < 90) model_cancel();
    else if (what < 91) model_drop();
    else if (what < 93) model_oldest();
    else now += roll(2 * MS);
    forget_absent();
    if (roll(3) != 0) {
      int given;
      do {
        given = 0;
        while (with_gangs && model_next_gang() > 0) given = 1;
        while (model_next(delays) > 0) given = 1, forget_absent();
      } while (with_gangs && given);
    }
  }
  /* Nothing new, and nobody comes back who is gone, but one where a pool has none: all that is left
   * is served. */
  for (int pool = 0; pool < M_POOLS; pool++) {
    int some = 0;
    for (int h = 0; h < M_HELPERS; h++) {
      some += helpers_of_model[h].pool == pool && !helpers_of_model[h].gone;
    }
    if (some == 0) helpers_of_model[pool].gone = 0, shmi_schedule_expect_helper(s, pool, 1);
  }
  for (int h = 0; h < M_HELPERS; h++) {
    if (helpers_of_model[h].gone) continue;
    helpers_of_model[h].up = 1;
    shmi_schedule_helper_up(s, h);
  }
  for (int rounds = 0; rounds < 100000; rounds++) {
    now += MS;
    while (with_gangs && model_next_gang() > 0) {
    }
    while (model_next(delays) > 0) {
    }
    int left = 0;
    for (uint32_t n = 1; n <= M_CHILDREN * M_WINDOW; n++) left += model[n].state != GONE;
    if (left == 0) break;
    for (int i = 0; i < 20; i++) model_finish();
  }
  for (int child = 0; child < M_CHILDREN; child++) MODEL_CHECK(outstanding_of[child] == 0);
  MODEL_CHECK(shmi_schedule_queued(s) == 0);
  MODEL_CHECK(shmi_schedule_next_timer(s) == 0);
  for (int h = 0; h < M_HELPERS; h++) MODEL_CHECK(shmi_schedule_in_flight(s, h) == 0);
  shmi_schedule_destroy(s);
}

static void run_seeds(int batches, int delays) {
  uint64_t seeds = HARNESS_SANITIZED ? 20 : 150;
  const char *one = getenv("SHM_TEST_SEED");
  if (one != NULL) {
    run_model(strtoull(one, NULL, 10), batches, delays);
    return;
  }
  for (uint64_t seed = 1; seed <= seeds; seed++) run_model(seed, batches, delays);
}

TEST_WITHIN(random_events_agree_with_the_model, 30) { run_seeds(0, 0); }
TEST_WITHIN(random_events_with_batches_agree_with_the_model, 30) { run_seeds(1, 0); }
TEST_WITHIN(random_events_with_delayed_batches_agree_with_the_model, 30) { run_seeds(1, 1); }
TEST_WITHIN(random_events_with_gangs_agree_with_the_model, 30) {
  with_gangs = 1;
  run_seeds(1, 0);
}

TEST(a_schedule_that_is_destroyed_leaves_no_memory) {
  size_t memory = 0;
  for (int round = 0; round < 2 * HARNESS_ROUNDS; round++) {
    open_schedule(5, 3, 2);
    close_schedule();
    if (round == HARNESS_ROUNDS) memory = harness_memory();
  }
  CHECK_EQ(harness_memory(), memory);
  shmi_schedule_destroy(NULL);
}
