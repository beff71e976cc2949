/* Broadcasts in the dispatcher, in any order of events: the test plays children and helpers. */
#include "peers.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/passing.h"
#include "memory/kept_file.h"

enum { CHILDREN = 4, HELPERS = 4, FUNCTIONS = 3 };

static uint64_t functions[FUNCTIONS]; /* rows of a binding */
static struct { int files_fd, is_up; uint64_t version; } more[HELPERS];
static uint64_t pool_version(int pool) { return shmi_scoreboard()->broker->pool_version[pool]; }

static int holds(int h);

/* What is handed out is read before the next event, so that it is known which version it had. */
static void step(void) {
  turn();
  for (int h = 0; h < HELPERS; h++) holds(h);
}

static void starts(int h) {
  int down[2], up[2], files[2], capacity;
  CHECK_EQ(shmi_pipe_make(down, 3, &capacity), SHM_OK);
  CHECK_EQ(shmi_pipe_make(up, 3, &capacity), SHM_OK);
  CHECK_EQ(shmi_passing_make(files), SHM_OK);
  uint32_t generation = hands[h].generation + 1;
  memset(&hands[h], 0, sizeof hands[h]);
  hands[h].down_fd = down[0];
  hands[h].up_fd = up[1];
  hands[h].generation = generation;
  more[h].files_fd = files[1];
  more[h].is_up = 1;
  more[h].version = 0;
  shmi_scoreboard_reset_helper(h);
  CHECK_EQ(shmi_dispatch_add_helper(d, h, down[1], up[0], files[0], 2000 + h, generation), SHM_OK);
}

static void is_ready(int h) {
  shmi_frame_t ready = {.kind = SHMI_FRAME_READY, .slot = (uint16_t)h};
  CHECK_EQ(shmi_pipe_write(hands[h].up_fd, &ready, 1), 1);
  step();
}

static shmi_victim_t dies(int h) {
  shmi_descriptor_close(&more[h].files_fd);
  more[h].is_up = 0;
  shmi_victim_t victim = helper_dies(h);
  for (int other = 0; other < HELPERS; other++) holds(other);
  return victim;
}

static void open_broker(int pools) {
  for (int h = 0; h < HELPERS; h++) peer_absent[h] = 1;
  for (int h = 0; h < HELPERS; h++) peer_pool[h] = (uint8_t)(pools == 1 ? 0 : h % pools);
  for (int i = 0; i < FUNCTIONS; i++) functions[i] = function_of(NULL, 0, 0, 0);
  open_peers(CHILDREN, HELPERS, pools);
}

static void close_broker(void) {
  for (int h = 0; h < HELPERS; h++) {
    if (more[h].is_up) dies(h);
  }
  close_peers();
}

static shmi_frame_t frame_to(int slot, int function, int pool, int flags) {
  return (shmi_frame_t){
      .msg = {.func_ptr = (shm_func_t)(uintptr_t)functions[function],
              .params = (void *)(uintptr_t)shmi_arena_address(slot)},
      .kind = SHMI_FRAME_CALL, .rows = 1, .pool = (uint8_t)pool, .flags = (uint8_t)flags};
}
static void broadcasts(int slot, int function) {
  child_sends(slot, frame_to(slot, function, 0, SHMI_FRAME_BROADCAST));
  step();
}
static void calls(int slot) {
  child_sends(slot, frame_to(slot, 0, 0, 0));
  step();
}

static void end_with(int h, int status) {
  shmi_frame_t frame = hands[h].frames[0];
  int is_first = frame.kind == SHMI_FRAME_CALL && (frame.flags & SHMI_FRAME_BROADCAST) != 0;
  if (frame.kind == SHMI_FRAME_APPLY) {
    int child, fd = -1;
    while ((child = shmi_arena_take(more[h].files_fd, &fd)) >= 0 && fd < 0) continue;
    CHECK(fd >= 0); /* it was sent before the frame */
    char name = 0;
    CHECK_EQ(pread(fd, &name, 1, 0), 1);
    CHECK_EQ(functions[name - '0'], (uint64_t)(uintptr_t)frame.msg.func_ptr);
    shmi_descriptor_close(&fd);
  }
  if (is_first && status == SHM_OK) {
    int fd = shmi_kept_file_make(4096);
    for (int i = 0; i < FUNCTIONS; i++) {
      char name = (char)('0' + i);
      if (functions[i] == (uint64_t)(uintptr_t)frame.msg.func_ptr) CHECK_EQ(pwrite(fd, &name, 1, 0), 1);
    }
    CHECK_EQ(shmi_kept_file_seal(fd), SHM_OK);
    CHECK_EQ(shmi_arena_pass_other(fd, more[h].files_fd), SHM_OK);
    shmi_descriptor_close(&fd);
  }
  if ((is_first || frame.kind == SHMI_FRAME_APPLY) && status == SHM_OK) {
    CHECK(frame.version > more[h].version);
    more[h].version = frame.version;
  }
  helper_ends(h, 0, status);
  step();
}

static int holds(int h) {
  if (!more[h].is_up) return 0;
  int before = hands[h].count;
  helper_reads(h);
  for (int i = before; i < hands[h].count; i++) {
    const shmi_frame_t *frame = &hands[h].frames[i];
    int is_call = frame->kind == SHMI_FRAME_CALL;
    if (is_call && (frame->flags & SHMI_FRAME_BROADCAST) == 0) {
      CHECK_EQ(more[h].version, pool_version(peer_pool[h])); /* it has had them all */
    }
    if (i == 0) continue;
    const shmi_frame_t *ahead = &hands[h].frames[i - 1];
    CHECK(ahead->kind != SHMI_FRAME_APPLY); /* nothing comes behind one that is not over */
    CHECK((ahead->flags & SHMI_FRAME_BROADCAST) == 0);
  }
  return hands[h].count;
}

static int first_of(void) {
  for (int h = 0; h < HELPERS; h++) {
    if (holds(h) > 0 && (hands[h].frames[hands[h].count - 1].flags & SHMI_FRAME_BROADCAST) != 0) {
      return h;
    }
  }
  return -1;
}

static int last_status(int slot) { return shmi_status_from_wire(kids[slot].last.status); }

TEST(the_others_get_it_when_the_first_has_run_it_and_calls_wait_for_that) {
  open_broker(1);
  for (int h = 0; h < 3; h++) starts(h), is_ready(h);
  broadcasts(0, 1);
  int first = first_of();
  CHECK(first >= 0);
  for (int h = 0; h < 3; h++) CHECK_EQ(holds(h), h == first);
  end_with(first, SHM_OK);
  CHECK_EQ(pool_version(0), 1);
  CHECK_EQ(child_reads(0), 0); /* two are to have it */
  calls(1);
  CHECK_EQ(holds(first), 1);
  for (int h = 0; h < 3; h++) {
    if (h == first) continue;
    CHECK_EQ(holds(h), 1);
    CHECK_EQ(hands[h].frames[0].kind, SHMI_FRAME_APPLY);
    CHECK_EQ(hands[h].frames[0].version, 1);
    end_with(h, SHM_OK);
  }
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_OK);
  CHECK_EQ(kids[0].last.result.value, 1);
  end_with(first, SHM_OK);
  CHECK_EQ(child_reads(1), 1);
  expect_all_ended();
  close_broker();
}

TEST(a_helper_that_comes_later_counts_as_up_when_it_has_had_what_is_kept) {
  open_broker(1);
  starts(0), is_ready(0);
  for (int i = 0; i < 3; i++) { /* functions 0, 1, 0: two are kept */
    broadcasts(0, i % 2);
    end_with(first_of(), SHM_OK);
    CHECK_EQ(child_reads(0), 1);
  }
  starts(1), is_ready(1);
  CHECK_EQ(shmi_dispatch_helper_state(d, 1), SHMI_PEER_STARTING);
  for (uint64_t version = 2; version <= 3; version++) {
    CHECK_EQ(holds(1), 1);
    CHECK_EQ(hands[1].frames[0].version, version);
    CHECK_EQ((uintptr_t)hands[1].frames[0].msg.params, 0); /* nobody waits for it */
    end_with(1, SHM_OK);
  }
  CHECK_EQ(shmi_dispatch_helper_state(d, 1), SHMI_PEER_UP);
  expect_all_ended();
  close_broker();
}

TEST(one_that_failed_gets_nothing_more_and_its_pipe_is_closed) {
  open_broker(1);
  for (int h = 0; h < 2; h++) starts(h), is_ready(h);
  broadcasts(0, 0);
  int first = first_of(), other = 1 - first;
  end_with(first, SHM_OK);
  CHECK_EQ(holds(other), 1);
  end_with(other, SHM_EREMOTE);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_EREMOTE);
  CHECK_EQ(kids[0].last.slot, other);
  CHECK((kids[0].last.flags & SHMI_FRAME_COMMITTED) != 0);
  CHECK(shmi_dispatch_helper_is_condemned(d, other));
  step();
  CHECK(shmi_dispatch_helper_is_closed(d, other));
  for (int i = 0; i < 8; i++) calls(1);
  CHECK_EQ(holds(other), 0);
  dies(other);
  CHECK_EQ(shmi_scoreboard()->helper_stats[other].deaths, 1);
  broadcasts(0, 0); /* the first alone is left */
  while (holds(first) > 0) end_with(first, SHM_OK);
  CHECK_EQ(pool_version(0), 2);
  child_reads(0), child_reads(1);
  expect_all_ended();
  close_broker();
}

TEST(a_first_that_raises_changes_nothing_and_the_next_in_line_has_its_number) {
  open_broker(1);
  for (int h = 0; h < 2; h++) starts(h), is_ready(h);
  broadcasts(0, 0);
  broadcasts(1, 1); /* waits for its turn */
  int first = first_of();
  end_with(first, SHM_EREMOTE);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_EREMOTE);
  CHECK_EQ(kids[0].last.flags & SHMI_FRAME_COMMITTED, 0);
  CHECK_EQ(pool_version(0), 0);
  int next = first_of();
  CHECK_EQ(next, 1 - first);
  CHECK_EQ(hands[next].frames[0].version, 1);
  end_with(next, SHM_OK);
  CHECK_EQ(child_reads(1), 1);
  CHECK_EQ(pool_version(0), 1);
  expect_all_ended();
  close_broker();
}

TEST(a_first_that_dies_is_followed_by_one_other_and_no_third) {
  open_broker(1);
  for (int h = 0; h < 3; h++) starts(h), is_ready(h);
  broadcasts(0, 0);
  for (int death = 0; death < 2; death++) {
    int first = first_of();
    CHECK(first >= 0);
    const shmi_frame_t *frame = &hands[first].frames[0];
    atomic_store(&shmi_scoreboard_helper(first)->executing, frame->delivery << 16 | 1);
    dies(first);
    step();
  }
  CHECK_EQ(first_of(), -1);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_EHELPER_DIED);
  CHECK_EQ(pool_version(0), 0);
  expect_all_ended();
  close_broker();
}

TEST(a_first_that_died_over_its_answer_has_handed_the_file_over) {
  open_broker(1);
  for (int h = 0; h < 2; h++) starts(h), is_ready(h);
  broadcasts(0, 0);
  int first = first_of(), other = 1 - first, fd = shmi_kept_file_make(4096);
  CHECK_EQ(pwrite(fd, "0", 1, 0), 1);
  CHECK_EQ(shmi_kept_file_seal(fd), SHM_OK);
  CHECK_EQ(shmi_arena_pass_other(fd, more[first].files_fd), SHM_OK);
  shmi_descriptor_close(&fd);
  helper_notes(first, &hands[first].frames[0], SHM_OK); /* but no reply is written */
  dies(first);
  CHECK_EQ(pool_version(0), 1);
  CHECK_EQ(holds(other), 1);
  end_with(other, SHM_OK);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_OK);
  expect_all_ended();
  close_broker();
}

TEST(an_answer_without_a_file_is_no_success) {
  open_broker(1);
  for (int h = 0; h < 2; h++) starts(h), is_ready(h);
  broadcasts(0, 0);
  int first = first_of();
  helper_ends(first, 0, SHM_OK);
  step();
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_ESYSTEM);
  CHECK(shmi_dispatch_helper_is_condemned(d, first));
  CHECK_EQ(pool_version(0), 0);
  close_broker();
}

TEST(a_child_without_the_right_and_nonsense_are_answered_at_once) {
  open_broker(2);
  for (int h = 0; h < 2; h++) starts(h), is_ready(h);
  shmi_dispatch_let_broadcast(d, 0, 0);
  broadcasts(0, 0);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(last_status(0), SHM_ENOT_ALLOWED);
  child_sends(1, (shmi_frame_t){.msg = {.func_ptr = fn_plain}, .kind = SHMI_FRAME_CALL, .rows = 1,
                                .flags = SHMI_FRAME_BROADCAST});
  step();
  CHECK_EQ(child_reads(1), 1);
  CHECK_EQ(last_status(1), SHM_EBAD_FUNCTION);
  shmi_frame_t frames[] = {frame_to(2, 0, 0, SHMI_FRAME_BROADCAST | SHMI_FRAME_GANG),
                           frame_to(2, 0, 0, SHMI_FRAME_BROADCAST),
                           frame_to(2, 0, 0, SHMI_FRAME_BROADCAST)};
  frames[1].placement = 1;
  frames[2].batch_key = 7;
  for (int i = 0; i < 3; i++) child_sends(2, frames[i]);
  step();
  CHECK_EQ(shmi_scoreboard()->child_stats[2].protocol_errors, 3);
  for (int h = 0; h < 2; h++) CHECK_EQ(holds(h), 0);
  close_broker();
}

TEST(one_that_waits_in_line_can_be_cancelled_and_goes_with_its_child) {
  open_broker(1);
  starts(0), is_ready(0);
  for (int slot = 0; slot < 3; slot++) broadcasts(slot, 0);
  shmi_frame_t cancel = {.kind = SHMI_FRAME_CANCEL, .sequence = 1};
  CHECK_EQ(shmi_pipe_write(kids[1].request_fd, &cancel, 1), 1);
  step();
  CHECK_EQ(child_reads(1), 1);
  CHECK_EQ(last_status(1), SHM_ECANCELLED);
  child_goes(2);
  broadcasts(3, 1);
  end_with(first_of(), SHM_OK);
  CHECK_EQ(holds(0), 1);
  CHECK_EQ((uintptr_t)hands[0].frames[0].msg.func_ptr, functions[1]);
  end_with(0, SHM_OK);
  CHECK_EQ(pool_version(0), 2);
  child_reads(0), child_reads(3);
  expect_all_ended();
  close_broker();
}

TEST(a_helper_catches_up_though_children_use_every_request) {
  peer_window = 4;
  open_broker(1);
  starts(0), is_ready(0);
  broadcasts(0, 0);
  end_with(0, SHM_OK);
  dies(0);
  child_reads(0);
  for (int slot = 0; slot < CHILDREN; slot++) {
    for (int i = 0; i < 4; i++) calls(slot);
  }
  starts(0), is_ready(0);
  CHECK_EQ(holds(0), 1); /* without it no call could be answered, and no request would be free */
  while (holds(0) > 0) end_with(0, SHM_OK);
  for (int slot = 0; slot < CHILDREN; slot++) CHECK_EQ(child_reads(slot), 4);
  expect_all_ended();
  close_broker();
}

/* ---- any order ---- */

static unsigned seed;
static int roll(int sides) { return rand_r(&seed) % sides; }

static void something_happens(void) {
  int slot = roll(CHILDREN), h = roll(HELPERS);
  switch (roll(12)) {
    case 0: case 1: broadcasts(slot, roll(FUNCTIONS)); break;
    case 2: case 3: case 4: calls(slot); break;
    case 5:
      if (more[h].is_up) {
        if (roll(3) == 0 && holds(h) > 0) {
          atomic_store(&shmi_scoreboard_helper(h)->executing, hands[h].frames[0].delivery << 16 | 1);
        }
        dies(h);
      } else {
        starts(h);
      }
      break;
    case 6:
      if (more[h].is_up && shmi_dispatch_helper_state(d, h) == SHMI_PEER_STARTING &&
          hands[h].highest == 0) {
        is_ready(h);
      }
      break;
    case 7:
      if (roll(8) != 0) break;
      child_goes(slot);
      while (shmi_dispatch_child_state(d, slot) != SHMI_PEER_NONE) {
        for (int each = 0; each < HELPERS; each++) {
          if (holds(each) > 0) end_with(each, SHM_OK);
        }
        step();
      }
      child_comes(slot);
      break;
    default:
      if (holds(h) > 0) end_with(h, roll(12) == 0 ? SHM_EREMOTE : SHM_OK);
  }
  for (int each = 0; each < HELPERS; each++) holds(each);
  for (int each = 0; each < CHILDREN; each++) child_reads(each);
  for (int each = 0; each < HELPERS; each++) { /* as the supervisor does */
    if (more[each].is_up && shmi_dispatch_helper_is_closed(d, each)) dies(each);
  }
}

TEST_WITHIN(in_any_order_of_events_no_call_runs_before_a_broadcast_that_came_before_it, 60) {
  int fds = harness_open_fds();
  for (unsigned round = 0; round < 60; round++) {
    seed = round + 1;
    memset(hands, 0, sizeof hands);
    memset(more, 0, sizeof more);
    shmi_function_table_unseal();
    open_broker(1);
    for (int step = 0; step < 400; step++) something_happens();
    for (int h = 0; h < HELPERS; h++) {
      if (!more[h].is_up) starts(h);
      if (shmi_dispatch_helper_state(d, h) == SHMI_PEER_STARTING && hands[h].highest == 0) is_ready(h);
    }
    for (int idle = 0; idle < 3;) {
      idle++;
      for (int h = 0; h < HELPERS; h++) {
        if (holds(h) > 0) end_with(h, SHM_OK), idle = 0;
      }
      for (int slot = 0; slot < CHILDREN; slot++) idle = child_reads(slot) > 0 ? 0 : idle;
      step();
    }
    expect_all_ended();
    for (int h = 0; h < HELPERS; h++) {
      if (shmi_dispatch_helper_state(d, h) == SHMI_PEER_UP) CHECK_EQ(more[h].version, pool_version(0));
    }
    CHECK(shmi_scoreboard()->broker->kept_files <= FUNCTIONS);
    close_broker();
    for (int slot = 0; slot < CHILDREN; slot++) {
      shmi_descriptor_close(&kids[slot].request_fd);
      shmi_descriptor_close(&kids[slot].reply_fd);
    }
    shmi_descriptor_close(&supervisor_fd);
  }
  CHECK_EQ(harness_open_fds(), fds);
}
