/* peers.h -- a dispatcher in this very process, between children and helpers that the test plays
 * itself: it writes their frames and reads what comes, one turn at a time, so that any order of
 * events can be tried, and as many of them as it takes.
 */
#ifndef SHMGPU_TESTS_PEERS_H
#define SHMGPU_TESTS_PEERS_H

#include "harness.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include "base/descriptor.h"
#include "broker/dispatch.h"
#include "ipc/function_table.h"
#include "ipc/gang.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum { PEERS = 128, MAX_FRAMES = 16384 };

static shmi_dispatch_t *d;
static uint8_t peer_pool[SHM_MAX_HELPERS], peer_credit[SHM_MAX_POOLS], peer_absent[SHM_MAX_HELPERS];
static int peer_window, supervisor_fd;

static struct peer_child {
  int request_fd, reply_fd;
  uint64_t sent;       /* sequences of its calls count from 1 */
  int answered, parked; /* replies that ended a call, and that ask for room */
  shmi_frame_t last;   /* reply */
} kids[PEERS];

static struct peer_helper {
  int down_fd, up_fd;
  uint32_t generation;
  uint64_t highest; /* delivery that it was handed */
  int count;        /* frames it has and has not answered, GONE ones left out */
  int gone;         /* GONE frames */
  shmi_frame_t frames[MAX_FRAMES];
} hands[SHM_MAX_HELPERS];

static void fn_plain(void *params) { (void)params; }
static void fn_held(void *params) { *(int *)params = 1; }
static void fn_hangs(void *params) { *(int *)params = 2; }
static void fn_batch(void *params) { *(int *)params = 3; }

HARNESS_UNUSED static int turn(void) {
  int flags = shmi_dispatch_turn(d, 0, NULL);
  CHECK(flags >= 0);
  return flags;
}

HARNESS_UNUSED static void child_comes(int slot) {
  int request[2], reply[2], capacity;
  CHECK_EQ(shmi_pipe_make(request, 3, &capacity), SHM_OK);
  CHECK_EQ(shmi_pipe_make(reply, 3, &capacity), SHM_OK);
  kids[slot] = (struct peer_child){.request_fd = request[1], .reply_fd = reply[0]};
  CHECK_EQ(shmi_dispatch_add_child(d, slot, request[0], reply[1], 1000 + slot), SHM_OK);
}
HARNESS_UNUSED static void child_goes(int slot) {
  shmi_descriptor_close(&kids[slot].request_fd);
  shmi_descriptor_close(&kids[slot].reply_fd);
  shmi_dispatch_remove_child(d, slot);
}

HARNESS_UNUSED static void helper_comes(int h) {
  int down[2], up[2], capacity;
  CHECK_EQ(shmi_pipe_make(down, 3, &capacity), SHM_OK);
  CHECK_EQ(shmi_pipe_make(up, 3, &capacity), SHM_OK);
  uint32_t generation = hands[h].generation + 1;
  memset(&hands[h], 0, sizeof hands[h]);
  hands[h].down_fd = down[0];
  hands[h].up_fd = up[1];
  hands[h].generation = generation;
  shmi_scoreboard_reset_helper(h);
  CHECK_EQ(shmi_dispatch_add_helper(d, h, down[1], up[0], -1, 2000 + h, generation), SHM_OK);
  shmi_frame_t ready = {.kind = SHMI_FRAME_READY, .slot = (uint16_t)h};
  CHECK_EQ(shmi_pipe_write(hands[h].up_fd, &ready, 1), 1);
  turn();
  CHECK_EQ(shmi_dispatch_helper_state(d, h), SHMI_PEER_UP);
}
HARNESS_UNUSED static shmi_victim_t helper_dies(int h) {
  shmi_victim_t victim;
  shmi_descriptor_close(&hands[h].down_fd);
  shmi_descriptor_close(&hands[h].up_fd);
  hands[h].count = 0;
  shmi_dispatch_remove_helper(d, h, &victim);
  return victim;
}

static uint64_t function_of(shm_func_t func, uint32_t rows, uint64_t delay_ns, uint64_t hang_ns) {
  shm_function_config_t config = {.name = "row", .func = func, .batch_max_rows = rows,
                                  .batch_delay_ns = delay_ns, .hang_after_ns = hang_ns};
  const shmi_function_t *row;
  CHECK_EQ(shmi_function_table_add(&config, &row), SHM_OK);
  return shmi_function_table_address(row);
}

HARNESS_UNUSED static void open_peers(int children, int helpers, int pools) {
  if (peer_window == 0) peer_window = 64;
  function_of(fn_plain, 0, 0, 0);
  function_of(fn_held, 32, 50000000, 0);
  function_of(fn_hangs, 0, 0, 20000000);
  function_of(fn_batch, 256, 0, 0);
  shmi_pipe_sigpipe(1);
  signal(SIGPIPE, SIG_IGN);
  CHECK_EQ(shmi_scoreboard_create(children, helpers, 0), SHM_OK);
  shmi_arena_plan_t plan = {.children = children, .arena_bytes = 4096, .helpers = helpers};
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  CHECK_EQ(shmi_gang_create(helpers), SHM_OK);
  supervisor_fd = shmi_descriptor_own(eventfd(0, EFD_CLOEXEC));
  shmi_dispatch_config_t config = {.children = children, .helpers = helpers, .pools = pools,
                                   .window = (uint32_t)peer_window, .helper_pool = peer_pool,
                                   .min_credit = peer_credit, .helper_absent = peer_absent,
                                   .supervisor_fd = supervisor_fd};
  CHECK_EQ(shmi_dispatch_create(&d, &config), SHM_OK);
  for (int slot = 0; slot < children; slot++) child_comes(slot);
  for (int h = 0; h < helpers; h++) {
    if (!peer_absent[h]) helper_comes(h);
  }
}

/* Every call that was ever submitted has ended, and nothing is left on any book. */
HARNESS_UNUSED static void expect_all_ended(void) {
  shm_broker_stats_t stats;
  turn();
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.submitted, stats.answered + stats.dropped);
  CHECK_EQ(shmi_scoreboard()->broker->in_flight, 0);
  CHECK_EQ(shmi_scoreboard()->broker->queued, 0);
}

HARNESS_UNUSED static void close_peers(void) {
  shmi_dispatch_destroy(d);
  shmi_arena_destroy();
  shmi_gang_destroy();
  shmi_scoreboard_destroy();
}

/* ---- a child's part ---- */

HARNESS_UNUSED static uint64_t child_sends(int slot, shmi_frame_t frame) {
  frame.sequence = ++kids[slot].sent;
  CHECK_EQ(shmi_pipe_write(kids[slot].request_fd, &frame, 1), 1);
  return frame.sequence;
}
HARNESS_UNUSED static shmi_frame_t call_of(shm_func_t func) {
  return (shmi_frame_t){.msg = {.func_ptr = func}, .kind = SHMI_FRAME_CALL, .rows = 1};
}
HARNESS_UNUSED static uint64_t child_calls(int slot) { return child_sends(slot, call_of(fn_plain)); }

/* Read what there is; answer every request for room. */
HARNESS_UNUSED static int child_reads(int slot) {
  shmi_frame_t frames[SHMI_PIPE_BURST];
  int got, all = 0;
  while ((got = shmi_pipe_read(kids[slot].reply_fd, frames, SHMI_PIPE_BURST)) > 0) {
    for (int i = 0; i < got; i++) {
      CHECK_EQ(frames[i].kind, SHMI_FRAME_REPLY);
      kids[slot].last = frames[i];
      if (shmi_status_from_wire(frames[i].status) == SHM_ENEEDS_SPACE) kids[slot].parked++;
      else kids[slot].answered++;
    }
    all += got;
  }
  return all;
}
HARNESS_UNUSED static void child_grows(int slot, const shmi_frame_t *reply) {
  shmi_frame_t frame = {.result = {.token = reply->result.token}, .sequence = reply->sequence,
                        .slot = reply->slot, .kind = SHMI_FRAME_GROW};
  kids[slot].parked--;
  CHECK_EQ(shmi_pipe_write(kids[slot].request_fd, &frame, 1), 1);
}

/* ---- a helper's part ---- */

HARNESS_UNUSED static int helper_reads(int h) {
  shmi_frame_t frames[SHMI_PIPE_BURST];
  int got, all = 0;
  while ((got = shmi_pipe_read(hands[h].down_fd, frames, SHMI_PIPE_BURST)) > 0) {
    for (int i = 0; i < got; i++) {
      if (frames[i].kind == SHMI_FRAME_GONE) {
        hands[h].gone++;
        continue;
      }
      CHECK(hands[h].count < MAX_FRAMES);
      CHECK_EQ(frames[i].delivery, ++hands[h].highest);
      hands[h].frames[hands[h].count++] = frames[i];
    }
    all += got;
  }
  return all;
}

HARNESS_UNUSED static shmi_frame_t reply_of(int h, const shmi_frame_t *frame, int status) {
  return (shmi_frame_t){.result = {.token = hands[h].generation}, .sequence = frame->sequence,
                        .slot = (uint16_t)h, .kind = SHMI_FRAME_REPLY,
                        .generation = frame->generation, .status = shmi_status_to_wire(status),
                        .delivery = frame->delivery, .started_units = 10, .finished_units = 20};
}
/* Its page says so, as before every reply. */
HARNESS_UNUSED static void helper_notes(int h, const shmi_frame_t *frame, int status) {
  shmi_outcome_t *outcome = &shmi_scoreboard_helper(h)->finished[frame->delivery % SHMI_DELIVERY_RING];
  outcome->status = shmi_status_to_wire(status);
  outcome->started_units = 10;
  outcome->finished_units = 20;
  atomic_store(&outcome->delivery, frame->delivery);
}
/* End the frame at that place. */
HARNESS_UNUSED static void helper_ends(int h, int at, int status) {
  shmi_frame_t frame = hands[h].frames[at];
  for (int i = at; i + 1 < hands[h].count; i++) hands[h].frames[i] = hands[h].frames[i + 1];
  hands[h].count--;
  helper_notes(h, &frame, status);
  shmi_frame_t reply = reply_of(h, &frame, status);
  CHECK_EQ(shmi_pipe_write(hands[h].up_fd, &reply, 1), 1);
}

#endif
