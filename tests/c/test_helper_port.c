/* A helper's port, in this very process: the test is the dispatcher that it talks to. */
#include "harness.h"

#include "helper/helper_port.h"
#include "ipc/function_table.h"
#include "ipc/gang.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

static int to_helper_port, from_helper_port;
static uint64_t handed; /* deliveries count from 1 */

static void fn_first(void *params) { (void)params; }
static void fn_unknown(void *params) { *(int *)params = 1; }

static void open_helper_port(void) {
  int down[2], up[2], capacity;
  shm_function_config_t config = {.name = "first", .func = fn_first};
  const shmi_function_t *row;
  CHECK_EQ(shmi_function_table_add(&config, &row), SHM_OK);
  CHECK_EQ(shmi_scoreboard_create(1, 1, 0), SHM_OK);
  shmi_arena_plan_t plan = {.children = 1, .arena_bytes = 4096, .helpers = 1};
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  CHECK_EQ(shmi_gang_create(1), SHM_OK);
  CHECK_EQ(shmi_pipe_make(down, 2, &capacity), SHM_OK);
  CHECK_EQ(shmi_pipe_make(up, 1, &capacity), SHM_OK);
  to_helper_port = down[1];
  from_helper_port = up[0];
  CHECK_EQ(shmi_helper_port_open(down[0], up[1], -1, 0, 1), SHM_OK);
}
static void close_helper_port(void) {
  shmi_helper_port_close();
  shmi_arena_destroy();
  shmi_gang_destroy();
  shmi_scoreboard_destroy();
}

static void hand(int kind, shm_func_t func, int more) {
  shmi_frame_t frame = {.kind = (uint8_t)kind, .sequence = handed + 1, .rows = 1,
                        .flags = more ? SHMI_FRAME_MORE : 0, .delivery = ++handed};
  if (kind == SHMI_FRAME_CALL) frame.msg.func_ptr = func;
  CHECK_EQ(shmi_pipe_write(to_helper_port, &frame, 1), 1);
}
static void hand_call(void) { hand(SHMI_FRAME_CALL, fn_first, 0); }
static void hand_grow(void) { hand(SHMI_FRAME_GROW, NULL, 0); }

static shm_work_t works[SHM_MAX_BATCH];
static int take(void) { return shm_helper_take(works, SHM_MAX_BATCH, 0); }
static void finish(uint64_t delivery) { CHECK_EQ(shm_helper_finish(delivery, SHM_OK, 0), SHM_OK); }
static void expect_executing(uint64_t first, uint64_t count) {
  uint64_t executing = atomic_load(&shmi_scoreboard_helper(0)->executing);
  CHECK_EQ(executing, first << 16 | count);
}

TEST(a_call_has_its_turn_among_grows_without_end) {
  open_helper_port();
  hand_call();
  for (int i = 0; i < 200; i++) hand_grow();
  int grows = 0;
  for (;; grows++) {
    CHECK_EQ(take(), 1);
    if (works[0].kind != SHM_WORK_GROW) break;
    finish(works[0].delivery);
    hand_grow();
    CHECK(grows < 400);
  }
  CHECK(grows > 0); /* they go first, since what they free was served before */
  CHECK_EQ(works[0].delivery, 1);
  finish(1);
  hand_call();
  CHECK_EQ(take(), 1);
  CHECK_EQ(works[0].kind, SHM_WORK_GROW); /* one turn: then they are first again */
  finish(works[0].delivery);
  close_helper_port();
}

TEST(the_page_counts_what_was_read_and_written) {
  open_helper_port();
  for (int i = 0; i < 3; i++) hand_call();
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(take(), 1);
    finish(works[0].delivery);
  }
  CHECK_EQ(take(), SHM_EAGAIN); /* nothing is there: replies go */
  CHECK_EQ(atomic_load(&shmi_scoreboard_helper(0)->frames_received), 3);
  CHECK_EQ(atomic_load(&shmi_scoreboard_helper(0)->frames_sent), 3);
  shmi_frame_t replies[4];
  CHECK_EQ(shmi_pipe_read(from_helper_port, replies, 4), 3);
  close_helper_port();
}

TEST(the_page_names_a_call_that_has_not_ended_whatever_ended_before_it) {
  open_helper_port();
  hand_call();
  CHECK_EQ(take(), 1);
  hand_grow();
  CHECK_EQ(take(), 1);
  CHECK_EQ(works[0].kind, SHM_WORK_GROW);
  hand_call();
  CHECK_EQ(take(), 1);
  expect_executing(1, 3);
  finish(2);
  expect_executing(1, 3);
  finish(1);
  expect_executing(3, 1);
  hand_grow();
  CHECK_EQ(take(), 1);
  hand_call();
  CHECK_EQ(take(), 1);
  expect_executing(3, 3);
  finish(3); /* the GROW between them goes on, and is no call */
  expect_executing(5, 1);
  finish(4);
  finish(5);
  expect_executing(0, 0);
  close_helper_port();
}

TEST(a_batch_that_ends_in_another_order_is_named_to_its_last_call) {
  open_helper_port();
  for (int i = 0; i < 4; i++) hand(SHMI_FRAME_CALL, fn_first, i < 3);
  CHECK_EQ(take(), 4);
  expect_executing(1, 4);
  finish(3);
  finish(2);
  expect_executing(1, 4);
  finish(1);
  expect_executing(4, 1);
  finish(4);
  expect_executing(0, 0);
  close_helper_port();
}

TEST(a_bad_message_of_a_batch_ends_before_the_others_begin_and_hides_none_of_them) {
  open_helper_port();
  hand(SHMI_FRAME_CALL, fn_unknown, 1);
  hand(SHMI_FRAME_CALL, fn_first, 1);
  hand(SHMI_FRAME_CALL, fn_first, 0);
  CHECK_EQ(take(), 2);
  expect_executing(2, 2);
  finish(2);
  finish(3);
  expect_executing(0, 0);
  close_helper_port();
}

/* As under a load that never lets the helper come to rest: the word on the page has 16 bits for how
 * many calls it names. */
TEST(seventy_thousand_calls_of_which_one_is_always_open_are_named_right) {
  open_helper_port();
  hand_call();
  CHECK_EQ(take(), 1);
  for (uint64_t i = 0; i < 70000; i++) {
    hand_grow();
    hand_call();
    CHECK_EQ(take(), 1);
    CHECK_EQ(works[0].kind, SHM_WORK_GROW);
    finish(works[0].delivery);
    CHECK_EQ(take(), 1);
    uint64_t taken = works[0].delivery;
    finish(taken - 2); /* the one before it; between them lies a GROW */
    expect_executing(taken, 1);
    shmi_frame_t replies[SHMI_PIPE_BURST];
    if (i % 16 == 0) while (shmi_pipe_read(from_helper_port, replies, SHMI_PIPE_BURST) > 0) continue;
  }
  close_helper_port();
}
