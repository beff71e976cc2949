/* rows.c -- what one child may do to the others, a test for each: nothing. In C, without a
 * binding; each test's name begins with the row of the table of faults that it holds.
 */
#include "attacks.h"

#include <pthread.h>

#include "helper/helper_port.h"

static shm_broker_stats_t broker_stats(void) {
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  return stats;
}

static uint64_t used_bytes(void) {
  shm_arena_stats_t stats;
  CHECK_EQ(shm_get_arena_stats(&stats), SHM_OK);
  return stats.used_bytes;
}

static uint64_t protocol_errors_of(int child) {
  shm_child_stats_t stats;
  CHECK_EQ(shm_get_child_stats(child, &stats), SHM_OK);
  return stats.protocol_errors;
}

/* ---- F07: floods ---- */

enum { NOTE_GATE = 10, NOTE_OPEN = 11, NOTE_ENDED = 12, NOTE_OFFENCES = 13, NOTE_SERVED = 14 };

static void note_offenders(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_CHILD_PROTOCOL) notes[NOTE_OFFENCES] += 1u << (4 * event->index);
  if (event->kind == SHM_EVENT_CHILD_ENDED && event->exit_status != 0)
    notes[NOTE_ENDED] += 1u << (4 * event->index);
}

static int floods(int child) {
  if (child == 1) {
    signal(SIGTERM, SIG_IGN); /* the end of one child ends the launch: this one goes on for a while */
    while (notes[NOTE_ENDED] == 0) {
      expect_service();
      notes[NOTE_SERVED]++;
    }
    for (int i = 0; i < 100; i++) expect_service();
    notes[NOTE_OPEN] = 1;
    return 0;
  }
  int fd = request_pipe();
  echo_t *echo = echo_new(1);
  echo->note = NOTE_GATE;
  shmi_frame_t frame = call_frame((uint64_t)(uintptr_t)fn_add_one, (uint64_t)(uintptr_t)echo, 1);
  shmi_frame_t gate = call_frame((uint64_t)(uintptr_t)fn_gate, (uint64_t)(uintptr_t)echo, 2);
  gate.placement = 1; /* the other helper serves the other child */
  for (uint32_t i = 0; i < config.window; i++) /* none of these is answered yet */
    CHECK_EQ(write_raw(fd, &gate, sizeof gate), sizeof gate);
  AWAIT(notes[NOTE_GATE] == 1);
  CHECK_EQ(protocol_errors_of(0), 0);
  for (uint64_t beyond = 1; beyond <= 5; beyond++) {
    CHECK_EQ(write_raw(fd, &frame, sizeof frame), sizeof frame);
    AWAIT(protocol_errors_of(0) == beyond);
  }
  CHECK_EQ(notes[NOTE_OFFENCES], 0); /* a mistake is not the end */
  uint64_t served = notes[NOTE_SERVED];
  AWAIT(notes[NOTE_SERVED] > served + 100);
  for (;;) write_raw(fd, &frame, sizeof frame);
}

TEST_WITHIN(test_f07_a_flood_beyond_the_window_ends_the_child_that_floods_and_nobody_else, 20) {
  broker_open(2, 2);
  host.on_event = note_offenders;
  config.window = 8;
  config.grace_ns = 20 * (uint64_t)SECOND_NS;
  int status = launch(floods);
  CHECK(status == SHM_OK || status == SHM_ECHILD_FAILED);
  CHECK_EQ(notes[NOTE_OFFENCES], 1);
  CHECK_EQ(notes[NOTE_ENDED], 1);
  CHECK(notes[NOTE_SERVED] > 100);
  expect_nothing_left();
}

/* Long enough that a helper is handed few ahead: what waits, waits with the dispatcher. */
static void fn_takes_100_us(void *params) {
  echo_t *echo = params;
  int64_t until = harness_now_ns() + 100000;
  while (harness_now_ns() < until) {
  }
  echo->runs++;
}

/* Everybody floods within the window; child 0 makes one call at a time. */
static int fills_its_window(int child) {
  enum { CALLS = 100 };
  if (child == 0) {
    AWAIT(notes[NOTE_GATE] == 3);
    for (int i = 0; i < CALLS; i++) {
      echo_t *echo = echo_new(0);
      CHECK_EQ(call(fn_takes_100_us, echo), SHM_OK);
      CHECK_EQ(shm_free(echo), SHM_OK);
    }
    notes[NOTE_OPEN] = 1;
    return 0;
  }
  shm_msg_t msgs[64], got[64];
  int statuses[64];
  echo_t *echo = echo_new(0);
  CHECK_EQ(shm_set_window(64), SHM_OK);
  for (int i = 0; i < 64; i++) msgs[i] = (shm_msg_t){fn_takes_100_us, echo};
  CHECK_EQ(shm_send_msgs(msgs, 64), 64);
  notes[NOTE_GATE]++;
  while (notes[NOTE_OPEN] == 0) {
    int n = shm_read_msgs(got, statuses, 64);
    CHECK(n > 0);
    CHECK_EQ(shm_send_msgs(msgs, n), n);
  }
  return 0;
}

/* How many calls of each other child were handed out while a call of child 0 was queued: in turn
 * means one each, however many they have. */
static void count_turns(const shm_event_t *event) {
  static shm_trace_record_t lives[1 << 16];
  if (event->kind != SHM_EVENT_OVER) return;
  uint64_t next = 0, passed = 0, waited = 0;
  int count = shm_read_trace(&next, lives, 1 << 16);
  for (int i = 0; i < count; i++) {
    if (lives[i].slot != 0) continue;
    waited++;
    for (int k = 0; k < count; k++) {
      passed += lives[k].slot != 0 && lives[k].handed_ns > lives[i].queued_ns &&
                lives[k].handed_ns < lives[i].handed_ns;
    }
  }
  notes[20] = waited;
  notes[21] = passed;
}

TEST_WITHIN(test_f07_full_windows_of_others_let_a_lone_call_pass_in_its_turn, 30) {
  broker_open(4, 1);
  host.on_event = count_turns;
  config.window = 64;
  config.trace_records = 1 << 16;
  CHECK_EQ(shm_register(fn_takes_100_us, "takes_100_us", sizeof(echo_t)), SHM_OK);
  launch_well(fills_its_window);
  CHECK(notes[20] > 10);
  if (notes[21] > 6 * notes[20])
    harness_fail(__FILE__, __LINE__, "%llu calls of others were handed out before %llu calls",
                 (unsigned long long)notes[21], (unsigned long long)notes[20]);
}

/* ---- F08 and F25: replies that nobody reads, pipes that are full ---- */

static void shrink_pipes_of_children(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_CHILD_STARTED) return;
  for (int fd = 3; fd < 256; fd++) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length <= 0 || (users_fds[fd / 64] >> (fd % 64) & 1) != 0) continue;
    name[length] = 0;
    if (strncmp(name, "pipe:", 5) == 0) fcntl(fd, F_SETPIPE_SZ, 4096);
  }
  notes[25]++;
}

static int never_reads(int child) {
  enum { COUNT = 512 };
  AWAIT(notes[25] == 0 || notes[25] >= 2 || host.on_event == NULL);
  if (child == 1) {
    AWAIT(notes[NOTE_GATE] == 1);
    for (int i = 0; i < 200; i++) expect_service();
    notes[NOTE_OPEN] = 1;
    return 0;
  }
  static shm_msg_t msgs[COUNT], got[COUNT];
  static int statuses[COUNT];
  echo_t *echo = echo_new(0);
  CHECK_EQ(shm_set_window((int)config.window), SHM_OK);
  for (int i = 0; i < COUNT; i++) msgs[i] = (shm_msg_t){fn_add_one, echo};
  for (uint32_t sent = 0; sent < config.window;) {
    int n = shm_send_msgs(msgs, (int)(config.window - sent));
    CHECK(n > 0);
    sent += (uint32_t)n;
  }
  notes[NOTE_GATE] = 1;
  AWAIT(notes[NOTE_OPEN] == 1); /* all the while the pipe of replies fills, or is full */
  CHECK_EQ(shm_send_msg(&msgs[0]), SHM_EWINDOW);
  for (uint32_t taken = 0; taken < config.window;) {
    int n = shm_read_msgs(got, statuses, COUNT);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) CHECK_EQ(statuses[i], SHM_OK);
    taken += (uint32_t)n;
  }
  CHECK_EQ(echo->runs, config.window); /* each exactly once */
  CHECK_EQ(protocol_errors_of(0), 0);
  expect_service();
  return 0;
}

TEST(test_f08_a_child_that_never_reads_its_replies_blocks_nobody_and_is_not_ended) {
  broker_open(2, 1);
  config.window = 512;
  launch_well(never_reads);
}

TEST_WITHIN(test_f25_replies_that_a_full_pipe_does_not_take_arrive_later_and_others_do_not_wait, 20) {
  broker_open(2, 1);
  config.window = 512;
  host.on_event = shrink_pipes_of_children; /* a pipe then holds an eighth of the window */
  launch_well(never_reads);
  CHECK_EQ(notes[25], 2);
}

/* ---- F09 and F10: what the allocator refuses ---- */

static int asks_too_much(int child) {
  if (child == 1) {
    while (notes[NOTE_OPEN] == 0) expect_service();
    return 0;
  }
  static const size_t wrong[] = {0, SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2 + 1, (size_t)1 << 47};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    CHECK(shm_malloc(wrong[i]) == NULL);
    CHECK_EQ(shm_last_status(), SHM_EBAD_SIZE);
    CHECK(shm_memalign(4096, wrong[i]) == NULL);
    CHECK_EQ(shm_last_status(), SHM_EBAD_SIZE);
  }
  uint64_t before = used_bytes();
  void *blocks[4096];
  int count = 0;
  while (count < 4096 && (blocks[count] = shm_malloc(4096)) != NULL) {
    memset(blocks[count++], 0xA5, 4096);
  }
  CHECK_EQ(shm_last_status(), SHM_EARENA_FULL);
  CHECK(count > 200);
  shm_arena_stats_t stats;
  CHECK_EQ(shm_get_arena_stats(&stats), SHM_OK);
  CHECK(stats.largest_free_bytes < 4096 && stats.free_bytes >= stats.largest_free_bytes);
  for (int i = 0; i < count; i++) CHECK_EQ(shm_free(blocks[i]), SHM_OK);
  CHECK_EQ(used_bytes(), before);
  expect_service();
  notes[NOTE_OPEN] = 1;
  return 0;
}

TEST(test_f09_sizes_that_cannot_be_had_are_null_with_a_status_and_the_arena_stays_whole) {
  broker_open(2, 1);
  launch_well(asks_too_much);
}

static int frees_wrongly(int child) {
  if (child == 1) {
    echo_t *own = echo_new(7);
    notes[30] = (uint64_t)(uintptr_t)own;
    while (notes[NOTE_OPEN] == 0) expect_service();
    CHECK_EQ(own->in, 7);
    CHECK_EQ(shm_free(own), SHM_OK);
    CHECK_EQ(shm_check(), SHM_OK);
    return 0;
  }
  AWAIT(notes[30] != 0);
  int on_stack = 0;
  char *live = shm_malloc(256), *other = shm_malloc(256);
  memset(live, 0x5A, 256);
  shm_free(other);
  void *wrong[] = {other, live + 64, live + 1, (void *)(uintptr_t)notes[30], &on_stack, (void *)8,
                   (void *)(uintptr_t)(shm_arena_base(0) + shm_arena_bytes())};
  uint64_t used = used_bytes();
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    CHECK_EQ(shm_free(wrong[i]), SHM_EBAD_FREE);
    CHECK(shm_realloc(wrong[i], 64) == NULL);
    CHECK_EQ(shm_last_status(), SHM_EBAD_FREE);
    CHECK_EQ(used_bytes(), used);
    CHECK_EQ(shm_check(), SHM_OK);
  }
  for (int i = 0; i < 256; i++) CHECK_EQ(live[i], 0x5A);
  CHECK_EQ(shm_free(live), SHM_OK);
  CHECK_EQ(shm_free(live), SHM_EBAD_FREE);
  expect_service();
  notes[NOTE_OPEN] = 1;
  return 0;
}

TEST(test_f10_double_foreign_and_interior_frees_are_refused_and_change_nothing) {
  broker_open(2, 1);
  launch_well(frees_wrongly);
}

/* ---- F12, F13, F14: pointers that are no function's, and blocks that are not one's own ---- */

static int sends_forged_functions(int child) {
  (void)child;
  uint64_t row = notes[31], own = (uint64_t)(uintptr_t)fn_add_one;
  uint64_t forged[] = {(uint64_t)(uintptr_t)fn_forbidden, (uint64_t)(uintptr_t)_exit, own + 1,
                       own - 1, row + 8, row - 1, row + 1, 1, UINT64_MAX,
                       shm_arena_base(child), (uint64_t)(uintptr_t)&notes};
  for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
    echo_t *echo = echo_new(1);
    CHECK_EQ(call((shm_func_t)(uintptr_t)forged[i], echo), SHM_EBAD_FUNCTION);
    CHECK(echo->runs == 0 && echo->out == 0);
    CHECK_EQ(shm_free(echo), SHM_OK);
  }
  expect_service();
  return 0;
}

TEST(test_f12_a_forged_function_pointer_is_never_called) {
  broker_open(2, 1);
  shm_function_config_t bound = {.name = "bound", .params_size = 8};
  uint64_t row;
  CHECK_EQ(shm_register_function(&bound, &row), SHM_OK);
  notes[31] = row;
  launch_well(sends_forged_functions);
  CHECK_EQ(notes[NOTE_FORBIDDEN], 0);
}

static void expect_refused(uint64_t params) {
  CHECK_EQ(call(fn_add_one, (void *)(uintptr_t)params), SHM_EBAD_PARAMS);
}

static int sends_wrong_blocks(int child) {
  uint64_t base = shm_arena_base(child), end = base + shm_arena_bytes();
  int on_stack = 0;
  uint64_t wrong[] = {0, 8, base - 8, base - sizeof(echo_t), base + 1, base + 4, base + 7, end,
                      end - 8, end - sizeof(echo_t) + 8, UINT64_MAX, UINT64_MAX - 7,
                      (uint64_t)0 - sizeof(echo_t), (uint64_t)(uintptr_t)&on_stack & ~UINT64_C(7)};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) expect_refused(wrong[i]);
  CHECK_EQ(call(fn_add_one, (void *)(uintptr_t)(end - sizeof(echo_t))), SHM_OK); /* just inside */
  expect_service();
  return 0;
}

TEST(test_f13_a_parameter_block_that_is_not_wholly_inside_is_refused) {
  broker_open(2, 1);
  launch_well(sends_wrong_blocks);
}

static int points_into_anothers_arena(int child) {
  if (child == 0) {
    echo_t *echo = echo_new(41);
    const echo_t before = *echo;
    notes[30] = (uint64_t)(uintptr_t)echo;
    AWAIT(notes[NOTE_OPEN] == 1);
    CHECK(memcmp(echo, &before, sizeof before) == 0);
    expect_service();
    return 0;
  }
  AWAIT(notes[30] != 0);
  expect_refused(notes[30]);
  for (uint64_t offset = 0; offset < shm_arena_bytes(); offset += shm_arena_bytes() / 64)
    expect_refused(shm_arena_base(0) + offset);
  expect_service();
  notes[NOTE_OPEN] = 1;
  return 0;
}

TEST(test_f14_a_parameter_block_in_another_childs_arena_is_refused_and_stays_unchanged) {
  broker_open(2, 1);
  launch_well(points_into_anothers_arena);
}

/* ---- F15: a block that changes while it is served ---- */

static uint64_t bound_row;

/* A binding's helper: it trusts what the port said of the length, and nothing else. */
static int serve_blocks(int helper, uint32_t generation) {
  (void)helper, (void)generation;
  shm_work_t works[16];
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_OK);
  int count = shm_helper_take(works, 16, -1);
  while (count > 0 || count == SHM_EINTR) {
    for (int i = 0; i < count; i++) {
      uint64_t base = shm_arena_base(works[i].slot);
      CHECK(works[i].params >= base && works[i].block_bytes >= 8);
      CHECK(works[i].block_bytes <= base + shm_arena_bytes() - works[i].params);
      char *copy = malloc(works[i].block_bytes); /* exactly: the sanitizer sees a byte more */
      memcpy(copy, (const void *)(uintptr_t)works[i].params, works[i].block_bytes);
      free(copy);
    }
    count = count == SHM_EINTR ? shm_helper_take(works, 16, -1)
                               : shm_helper_step(works, 16, SHM_OK, 0);
  }
  return count == SHM_ESTOPPED ? 0 : 1;
}

static _Atomic int stop_rewriting;
static void *rewrite(void *block) {
  dice_t dice = {15};
  _Atomic uint32_t *length = block;
  while (!stop_rewriting) {
    uint32_t lengths[] = {8, 64, 4096, (uint32_t)shm_arena_bytes(), UINT32_MAX, 0, 7};
    atomic_store_explicit(length, lengths[below(&dice, 7)], memory_order_relaxed);
  }
  return NULL;
}

static int rewrites_its_block(int child) {
  (void)child;
  char *block = shm_malloc(4096);
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, rewrite, block), 0);
  uint64_t good = 0, refused = 0;
  int64_t until = harness_now_ns() + 5 * SECOND_NS;
  while ((good < 500 || refused < 500) && harness_now_ns() < until) {
    int status = call((shm_func_t)(uintptr_t)bound_row, block);
    CHECK(status == SHM_OK || status == SHM_EBAD_PARAMS);
    good += status == SHM_OK;
    refused += status == SHM_EBAD_PARAMS;
  }
  stop_rewriting = 1;
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(good > 0 && refused > 0);
  return 0;
}

TEST_WITHIN(test_f15_a_block_length_that_changes_during_the_call_is_read_once, 20) {
  broker_open(1, 1);
  shm_function_config_t bound = {.name = "bound", .params_size = 8};
  CHECK_EQ(shm_register_function(&bound, &bound_row), SHM_OK);
  host.run_helper = serve_blocks;
  launch_well(rewrites_its_block);
}

/* ---- F33 and F37: replies and results that come late ---- */

static int leaves_a_call_behind(int child) {
  if (child == 0) {
    echo_t *echo = echo_new(0);
    echo->note = NOTE_GATE;
    shm_msg_t msg = {fn_gate, echo};
    CHECK_EQ(shm_send_msg(&msg), SHM_OK);
    AWAIT(notes[NOTE_GATE] == 1);
    return 0;
  }
  AWAIT(notes[NOTE_ENDED] == 1); /* the dispatcher knows that child 0 has gone */
  uint64_t dropped = broker_stats().dropped, answered = broker_stats().answered;
  notes[NOTE_OPEN] = 1;
  AWAIT(broker_stats().dropped == dropped + 1);
  CHECK_EQ(broker_stats().answered, answered);
  for (int i = 0; i < 10; i++) expect_service();
  CHECK_EQ(broker_stats().dropped, dropped + 1);
  return 0;
}

static void note_ends(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_CHILD_ENDED && event->index == 0) notes[NOTE_ENDED] = 1;
}

TEST(test_f33_the_reply_to_a_child_that_has_gone_is_dropped_and_counted) {
  broker_open(2, 1);
  host.on_event = note_ends;
  launch_well(leaves_a_call_behind);
}

/* Everything that is free is taken and filled: a late result that went anywhere but to its call's
 * block would be seen. */
typedef struct fill {
  void *blocks[4096];
  int count;
} fill_t;

static void fill_the_rest(fill_t *fill) {
  for (fill->count = 0; fill->count < 4096; fill->count++) {
    void *block = shm_malloc(1024);
    if (block == NULL) return;
    memset(block, 0x6B, 1024);
    fill->blocks[fill->count] = block;
  }
}

static void expect_filled(fill_t *fill) {
  for (int i = 0; i < fill->count; i++) {
    const char *block = fill->blocks[i];
    for (int k = 0; k < 1024; k++) CHECK_EQ(block[k], 0x6B);
    CHECK_EQ(shm_free(fill->blocks[i]), SHM_OK);
  }
}

static int times_out(int child) {
  (void)child;
  static fill_t fill;
  expect_service();
  uint64_t before = used_bytes();
  echo_t *echo = echo_new(5);
  echo->note = NOTE_GATE;
  shm_msg_t msg = {fn_gate, echo};
  CHECK_EQ(shm_call(&msg, SECOND_NS / 2), SHM_ETIMEOUT); /* time enough for it to be begun */
  AWAIT(notes[NOTE_GATE] == 1); /* it runs */
  CHECK_EQ(shm_free(echo), SHM_OK);
  CHECK(used_bytes() > before); /* but the helper may still write there */
  fill_the_rest(&fill);
  notes[NOTE_OPEN] = 1;
  AWAIT(__atomic_load_n(&echo->runs, __ATOMIC_ACQUIRE) == 1); /* late, and where it belongs */
  CHECK_EQ(echo->out, 6);
  expect_filled(&fill);
  AWAIT(shm_free(NULL) == SHM_OK && used_bytes() == before);
  expect_service();
  CHECK_EQ(used_bytes(), before);
  return 0;
}

TEST_WITHIN(test_f37_a_result_after_the_timeout_lands_in_memory_that_is_still_the_calls, 20) {
  broker_open(1, 1);
  launch_well(times_out);
}

static int cancels(int child) {
  (void)child;
  echo_t *held = echo_new(0), *queued = echo_new(3);
  held->note = NOTE_GATE;
  shm_call_config_t gate = {.function = (uint64_t)(uintptr_t)fn_gate, .rows = 1};
  shm_call_config_t add = {.function = (uint64_t)(uintptr_t)fn_add_one, .rows = 1};
  uint64_t first, second;
  CHECK_EQ(shm_port_submit(&gate, (uint64_t)(uintptr_t)held, 0, 0, &first), SHM_OK);
  AWAIT(notes[NOTE_GATE] == 1);
  CHECK_EQ(shm_port_submit(&add, (uint64_t)(uintptr_t)queued, 0, 0, &second), SHM_OK);
  CHECK_EQ(shm_port_cancel(second), SHM_OK); /* never begun */
  CHECK_EQ(shm_port_cancel(first), SHM_OK);  /* too late: its reply stands */
  shm_reply_t replies[4];
  CHECK_EQ(shm_port_drain(replies, 4, 5 * SECOND_NS), 1);
  CHECK(replies[0].sequence == second && replies[0].status == SHM_ECANCELLED);
  notes[NOTE_OPEN] = 1;
  CHECK_EQ(shm_port_drain(replies, 4, 5 * SECOND_NS), 1);
  CHECK(replies[0].sequence == first && replies[0].status == SHM_OK);
  CHECK_EQ(held->out, 1);
  CHECK_EQ(queued->runs, 0);
  CHECK_EQ(shm_free(held), SHM_OK);
  CHECK_EQ(shm_free(queued), SHM_OK);
  return 0;
}

TEST_WITHIN(test_f37_a_cancelled_call_that_was_begun_keeps_its_memory_until_its_reply, 20) {
  broker_open(1, 1);
  config.min_credit[0] = 1;
  launch_well(cancels);
}

/* ---- F43: gangs that are none ---- */

enum { GANG_HELPERS = 3 };
static uint64_t gang_row;
static int expected_blocks; /* in a helper */

/* A binding's helper that is sent blocks of gangs: it gets its own alone, whole, and in the arena. */
static int serve_gang_blocks(int helper, uint32_t generation) {
  (void)generation;
  shm_work_t works[16];
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_OK);
  int count = shm_helper_take(works, 16, -1);
  while (count > 0 || count == SHM_EINTR) {
    for (int i = 0; i < count; i++) {
      uint64_t base = shm_arena_base(works[i].slot);
      CHECK(works[i].params >= base && works[i].block_bytes >= 8);
      CHECK(works[i].block_bytes <= base + shm_arena_bytes() - works[i].params);
      char *copy = malloc(works[i].block_bytes);
      memcpy(copy, (const void *)(uintptr_t)works[i].params, works[i].block_bytes);
      free(copy);
      if (works[i].kind != SHM_WORK_GANG) continue;
      CHECK((works[i].members >> helper & 1) != 0);
      CHECK_EQ(shm_gang_size(), __builtin_popcountll(works[i].members));
      expected_blocks++;
    }
    count = count == SHM_EINTR ? shm_helper_take(works, 16, -1)
                               : shm_helper_step(works, 16, SHM_OK, 0);
  }
  return count == SHM_ESTOPPED ? 0 : 1;
}

static int call_gang_at(uint64_t params, uint64_t mask) {
  shm_call_config_t how = {.function = gang_row, .placement = mask, .rows = 1, .gang = 1};
  shm_reply_t reply;
  return shm_port_call(&how, params, 0, &reply);
}

/* A table of three blocks of 64 bytes, as it should be. */
static shm_gang_block_t *good_table(void) {
  static shm_gang_block_t *table;
  if (table == NULL) table = shm_malloc(512);
  memset(table, 0, 512);
  *table = (shm_gang_block_t){.bytes = 256, .version = 1, .members = 3, .mask = 7};
  for (uint32_t i = 0; i < 3; i++) {
    table->offsets[i] = 64 + 64 * i;
    *(uint32_t *)(void *)((char *)table + table->offsets[i]) = 64;
  }
  return table;
}

static int sends_wrong_gangs(int child) {
  (void)child;
  uint64_t base = shm_arena_base(child), end = base + shm_arena_bytes();
  shm_gang_block_t *table = good_table();
  uint64_t at = (uint64_t)(uintptr_t)table;
  uint32_t *first = (uint32_t *)(void *)((char *)table + 64);
  CHECK_EQ(call_gang_at(at, 7), SHM_OK);
  static const uint64_t no_masks[] = {0, 8, 15, UINT64_MAX, UINT64_C(1) << 63};
  for (int i = 0; i < 5; i++) CHECK_EQ(call_gang_at(at, no_masks[i]), SHM_EPLACEMENT);
  uint64_t wrong[] = {0, 4, at + 4, base - 8, end, end - 8, end - 16, UINT64_MAX - 7, 1};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) CHECK_EQ(call_gang_at(wrong[i], 7), SHM_EBAD_PARAMS);
#define REFUSED_WITH(change)                     \
  table = good_table();                          \
  change;                                        \
  CHECK_EQ(call_gang_at(at, 7), SHM_EBAD_PARAMS)
  REFUSED_WITH(table->version = 2);
  REFUSED_WITH(table->members = 2);
  REFUSED_WITH(table->members = 64);
  REFUSED_WITH(table->mask = 3);
  REFUSED_WITH(table->mask = UINT64_MAX);
  REFUSED_WITH(table->bytes = 16);
  REFUSED_WITH(table->bytes = 27);
  REFUSED_WITH(table->bytes = UINT32_MAX);
  REFUSED_WITH(table->offsets[0] = 0);
  REFUSED_WITH(table->offsets[1] = 16);
  REFUSED_WITH(table->offsets[2] = 68);
  REFUSED_WITH(table->offsets[0] = 256);
  REFUSED_WITH(table->offsets[0] = 252);
  REFUSED_WITH(table->offsets[0] = UINT32_MAX - 7);
  REFUSED_WITH(*first = 0);
  REFUSED_WITH(*first = UINT32_MAX);
  table = good_table();
  *first = 7; /* less than a block has */
  CHECK_EQ(call_gang_at(at, 7), SHM_EBAD_PARAMS);
  table = good_table();
  CHECK_EQ(call_gang_at(at, 7), SHM_OK);
  CHECK_EQ(call_gang_at(at, 5), SHM_EBAD_PARAMS); /* the table says who its members are */
  return 0;
}

static void open_gang_row(int children) {
  broker_open(children, GANG_HELPERS);
  shm_function_config_t bound = {.name = "bound", .params_size = 8};
  CHECK_EQ(shm_register_function(&bound, &gang_row), SHM_OK);
  config.scratch_bytes = 64 << 10;
  config.max_deaths = 1;
}

TEST(test_f43_a_gang_that_names_nobody_or_whose_table_is_wrong_is_refused) {
  open_gang_row(1);
  host.run_helper = serve_gang_blocks;
  launch_well(sends_wrong_gangs);
}

static void *rewrite_table(void *block) {
  dice_t dice = {43};
  _Atomic uint32_t *words = block;
  while (!stop_rewriting) {
    uint32_t values[] = {8, 24, 40, 64, 128, 192, 256, 4096, UINT32_MAX, 0, 7, 1, 1 | 3 << 16};
    atomic_store_explicit(&words[below(&dice, 64)], values[below(&dice, 13)], memory_order_relaxed);
    if (below(&dice, 4)) continue;
    const uint32_t good[] = {256, 1 | 3 << 16, 7, 0, 64, 128, 192};
    for (int i = 0; i < 7; i++) atomic_store_explicit(&words[i], good[i], memory_order_relaxed);
    for (int i = 16; i < 64; i += 16) atomic_store_explicit(&words[i], 64, memory_order_relaxed);
  }
  return NULL;
}

static int rewrites_its_table(int child) {
  (void)child;
  shm_gang_block_t *table = good_table();
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, rewrite_table, table), 0);
  uint64_t good = 0, refused = 0;
  int64_t until = harness_now_ns() + 4 * SECOND_NS;
  while ((good < 200 || refused < 200) && harness_now_ns() < until) {
    int status = call_gang_at((uint64_t)(uintptr_t)table, 7);
    CHECK(status == SHM_OK || status == SHM_EBAD_PARAMS);
    good += status == SHM_OK;
    refused += status == SHM_EBAD_PARAMS;
  }
  stop_rewriting = 1;
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(refused > 0);
  return 0;
}

TEST_WITHIN(test_f43_a_table_that_changes_while_members_read_it_harms_nobody, 20) {
  open_gang_row(1);
  host.run_helper = serve_gang_blocks;
  launch_well(rewrites_its_table);
}

/* One child fills its window with gangs of all helpers; the others go on in their turns. */

static void fn_together(void *params) {
  shm_collective_t barrier = {.id = 1, .kind = SHM_BARRIER};
  if (shm_gang_collective(&barrier, NULL, NULL) != SHM_OK) return;
  fn_takes_100_us(params);
}

static int floods_with_gangs(int child) {
  enum { CALLS = 100 };
  shm_call_config_t gang = {.function = (uint64_t)(uintptr_t)fn_together, .placement = 7, .rows = 1, .gang = 1};
  echo_t *echo = echo_new(0);
  if (child > 0) {
    for (;;) {
      uint64_t sequence;
      shm_reply_t reply;
      int status = shm_port_submit(&gang, (uint64_t)(uintptr_t)echo, 0, 0, &sequence);
      if (status == SHM_OK) continue;
      CHECK_EQ(status, SHM_EAGAIN);
      notes[NOTE_GATE] |= UINT64_C(1) << child;
      CHECK_EQ(shm_port_drain(&reply, 1, -1), 1);
      if (notes[NOTE_OPEN] != 0) return 0;
    }
  }
  AWAIT(notes[NOTE_GATE] == 6);
  for (int i = 0; i < CALLS; i++) {
    shm_reply_t reply;
    echo->runs = 0;
    CHECK_EQ(call(fn_takes_100_us, echo), SHM_OK);
    CHECK_EQ(shm_port_call(&gang, (uint64_t)(uintptr_t)echo, 0, &reply), SHM_OK);
    CHECK(echo->runs >= 2);
  }
  notes[NOTE_OPEN] = 1;
  return 0;
}

/* How many gangs of each other child were handed out while child 0's call or gang was queued. */
static void count_gang_turns(const shm_event_t *event) {
  static shm_trace_record_t lives[1 << 16];
  if (event->kind != SHM_EVENT_OVER) return;
  uint64_t next = 0, passed = 0, waited = 0;
  int count = shm_read_trace(&next, lives, 1 << 16);
  for (int i = 0; i < count; i++) {
    if (lives[i].slot != 0 || (lives[i].members != 0 && lives[i].helper != 0)) continue;
    waited++;
    for (int k = 0; k < count; k++) { /* of a gang each member has a record: one of them counts */
      passed += lives[k].slot != 0 && lives[k].helper == 0 && lives[k].handed_ns > lives[i].queued_ns &&
                lives[k].handed_ns < lives[i].handed_ns;
    }
  }
  notes[20] = waited;
  notes[21] = passed;
}

TEST_WITHIN(test_f43_a_flood_of_gangs_lets_others_calls_and_gangs_pass_in_their_turns, 60) {
  open_gang_row(3);
  CHECK_EQ(shm_register(fn_together, "together", sizeof(echo_t)), SHM_OK);
  CHECK_EQ(shm_register(fn_takes_100_us, "takes_100_us", sizeof(echo_t)), SHM_OK);
  host.on_event = count_gang_turns;
  config.window = 32;
  config.trace_records = 1 << 16;
  launch_well(floods_with_gangs);
  CHECK(notes[20] >= 100);
  if (notes[21] > 6 * notes[20])
    harness_fail(__FILE__, __LINE__, "%llu gangs of others were handed out before %llu",
                 (unsigned long long)notes[21], (unsigned long long)notes[20]);
}
