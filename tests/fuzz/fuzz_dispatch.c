/* fuzz_dispatch -- the dispatcher between children and helpers that write anything at all, and
 * helpers that die with anything at all on their control pages.
 *
 * Input: operations. A first byte says what, a second who; frames, lengths and page contents
 * follow. Whatever comes, no memory error, no child gets more replies than its window was sent
 * calls, and at the end nothing is queued or in flight.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broker/dispatch.h"
#include "ipc/function_table.h"
#include "ipc/gang.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum { CHILDREN = 3, HELPERS = 2, WINDOW = 8 };

typedef struct peer {
  int write_fd, read_fd; /* the role's own ends */
  uint64_t sent, received, parked;
  uint64_t submitted, answered; /* counted before it came */
} peer_t;

static shmi_dispatch_t *d;
static peer_t children[CHILDREN], helpers[HELPERS];
static uint32_t generations[HELPERS];
static uint64_t rows[3];
static int supervisor[2];

static void nothing(void *params) { (void)params; }

static void set_up(void) {
  signal(SIGPIPE, SIG_IGN);
  shmi_pipe_sigpipe(1);
  shmi_arena_plan_t plan = {.children = CHILDREN, .arena_bytes = 65536, .helpers = HELPERS};
  REQUIRE(shmi_arena_create(&plan) == SHM_OK);
  REQUIRE(shmi_scoreboard_create(CHILDREN, HELPERS, 64) == SHM_OK);
  REQUIRE(shmi_gang_create(HELPERS) == SHM_OK);
  shm_function_config_t configs[3] = {
      {.name = "c", .func = nothing, .params_size = 32},
      {.name = "row", .params_size = 8, .batch_max_rows = 4},
      {.name = "again", .params_size = 8, .flags = SHM_FUNCTION_IDEMPOTENT,
       .batch_max_rows = 4, .batch_delay_ns = 1000, .hang_after_ns = 1}};
  for (int i = 0; i < 3; i++) {
    const shmi_function_t *row;
    REQUIRE(shmi_function_table_add(&configs[i], &row) == SHM_OK);
    rows[i] = configs[i].func != NULL ? (uint64_t)(uintptr_t)nothing : (uint64_t)(uintptr_t)row;
  }
  REQUIRE(shmi_function_table_seal() == SHM_OK);
  REQUIRE(pipe2(supervisor, O_CLOEXEC) == 0);
}

static void close_peer(peer_t *peer) {
  if (peer->write_fd >= 0) close(peer->write_fd);
  if (peer->read_fd >= 0) close(peer->read_fd);
  *peer = (peer_t){.write_fd = -1, .read_fd = -1};
}

/* towards: what the dispatcher writes; from: what it reads. */
static void open_peer(peer_t *peer, int *towards, int *from) {
  int out[2], in[2], capacity;
  REQUIRE(shmi_pipe_make(out, 3, &capacity) == SHM_OK);
  REQUIRE(shmi_pipe_make(in, 3, &capacity) == SHM_OK);
  *peer = (peer_t){.write_fd = dup(in[1]), .read_fd = dup(out[0])};
  REQUIRE(peer->write_fd >= 0 && peer->read_fd >= 0);
  close(in[1]);
  close(out[0]);
  *towards = out[1];
  *from = in[0];
}

static void child_comes(int child) {
  if (shmi_dispatch_child_state(d, child) != SHMI_PEER_NONE) return; /* or not free yet */
  int towards, from;
  open_peer(&children[child], &towards, &from);
  const shm_child_stats_t *stats = &shmi_scoreboard()->child_stats[child];
  children[child].submitted = stats->submitted;
  children[child].answered = stats->answered;
  REQUIRE(shmi_dispatch_add_child(d, child, from, towards, 1) == SHM_OK);
}

static void helper_comes(int helper) {
  if (helpers[helper].write_fd >= 0) return;
  int towards, from;
  open_peer(&helpers[helper], &towards, &from);
  shmi_scoreboard_reset_helper(helper);
  REQUIRE(shmi_dispatch_add_helper(d, helper, towards, from, -1, 1, ++generations[helper]) == SHM_OK);
  shmi_frame_t ready = {.kind = SHMI_FRAME_READY};
  REQUIRE(write(helpers[helper].write_fd, &ready, sizeof ready) == sizeof ready);
}

static void turn(void) { REQUIRE(shmi_dispatch_turn(d, 0, NULL) >= 0); }

static void read_replies(int child) {
  peer_t *peer = &children[child];
  shmi_frame_t frames[64];
  ssize_t got = peer->read_fd >= 0 ? read(peer->read_fd, frames, sizeof frames) : 0;
  for (ssize_t i = 0; i * SHM_FRAME_BYTES < got; i++) {
    REQUIRE(frames[i].kind == SHMI_FRAME_REPLY);
    peer->received++;
    peer->parked += shmi_status_from_wire(frames[i].status) == SHM_ENEEDS_SPACE;
  }
  REQUIRE(peer->received <= peer->sent);
}

static void child_leaves(int child, int to_be_cleared) {
  if (children[child].write_fd < 0) return;
  shmi_dispatch_remove_child(d, child);
  close_peer(&children[child]);
  if (to_be_cleared) shmi_dispatch_clear_child(d, child);
}

static void helper_dies(int helper, input_t *in) {
  if (helpers[helper].write_fd < 0) return;
  shmi_helper_page_t *page = shmi_scoreboard_helper(helper);
  uint64_t entries = take(in, 1) % 16;
  atomic_store(&page->executing, take(in, 8));
  for (uint64_t i = 0; i < entries; i++) take_bytes(in, &page->finished[i], sizeof(shmi_outcome_t));
  shmi_victim_t victim;
  shmi_dispatch_remove_helper(d, helper, &victim);
  close_peer(&helpers[helper]);
}

/* Every call of a child that is still there has ended, but those whose child was told to make
 * room for the result. */
static void expect_all_answered(int child) {
  if (children[child].write_fd < 0) return;
  const shm_child_stats_t *stats = &shmi_scoreboard()->child_stats[child];
  uint64_t submitted = stats->submitted - children[child].submitted;
  uint64_t answered = stats->answered - children[child].answered;
  REQUIRE(answered <= submitted && submitted - answered <= children[child].parked);
}

/* Mostly a call that could be served; the rest of the frame is as it comes. */
static void child_writes(int child, input_t *in) {
  shmi_frame_t frame;
  take_bytes(in, &frame, sizeof frame);
  uint64_t shape = take(in, 1);
  if (shape & 1) frame.kind = SHMI_FRAME_CALL;
  if (shape & 2) frame.msg.func_ptr = (shm_func_t)(uintptr_t)rows[shape / 64 % 3];
  if (shape & 4) {
    frame.msg.params = (void *)(uintptr_t)(shmi_arena_address(child) +
                                           ((uint64_t)(uintptr_t)frame.msg.params & 0xff8));
  }
  if (shape & 8) frame.placement &= 3;
  if (shape & 16) frame.pool = 0, frame.flags = 0;
  if (shape & 32) frame.priority &= 3;
  size_t bytes = take(in, 1) == 255 ? 17 : sizeof frame; /* torn */
  if (children[child].write_fd < 0) return;
  if (write(children[child].write_fd, &frame, bytes) > 0) children[child].sent++;
}

static void helper_writes(int helper, input_t *in) {
  shmi_frame_t frame;
  take_bytes(in, &frame, sizeof frame);
  uint64_t shape = take(in, 1);
  if (shape & 1) frame.kind = SHMI_FRAME_REPLY;
  if (shape & 2) frame.delivery &= 15;
  if (shape & 4) frame.status = (uint16_t)(shape & 8 ? -SHM_ENEEDS_SPACE : 0);
  if (helpers[helper].write_fd < 0) return;
  REQUIRE(write(helpers[helper].write_fd, &frame, sizeof frame) != 0);
}

static void drain_helper(int helper) {
  shmi_frame_t frames[64];
  if (helpers[helper].read_fd >= 0) {
    ssize_t got = read(helpers[helper].read_fd, frames, sizeof frames);
    REQUIRE(got <= 0 || got % SHM_FRAME_BYTES == 0);
  }
}

static void everybody_leaves(void) {
  for (int i = 0; i < CHILDREN; i++) child_leaves(i, 0);
}

static void expect_nothing_queued(void) {
  shm_broker_stats_t stats;
  REQUIRE(shm_get_broker_stats(&stats) == SHM_OK && stats.queued == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint8_t pools[SHM_MAX_HELPERS], credit[SHM_MAX_POOLS] = {2};
  static int is_set_up;
  const peer_t nobody = {.write_fd = -1, .read_fd = -1};
  if (!is_set_up) set_up();
  is_set_up = 1;
  shmi_dispatch_config_t config = {.children = CHILDREN, .helpers = HELPERS, .pools = 1,
                                   .window = WINDOW, .helper_pool = pools, .min_credit = credit,
                                   .supervisor_fd = supervisor[0]};
  REQUIRE(shmi_dispatch_create(&d, &config) == SHM_OK);
  for (int i = 0; i < CHILDREN; i++) children[i] = nobody, child_comes(i);
  for (int h = 0; h < HELPERS; h++) helpers[h] = nobody, helper_comes(h);
  turn();
  input_t in = {data, data + size};
  while (in.at < in.end) {
    uint64_t what = take(&in, 1) % 16, who = take(&in, 1);
    int child = (int)(who % CHILDREN), helper = (int)(who % HELPERS);
    uint64_t next_ns;
    switch (what) {
      case 0: child_leaves(child, (who & 64) != 0); break;
      case 1: child_comes(child); break;
      case 2: helper_dies(helper, &in); break;
      case 3: helper_comes(helper); break;
      case 4: turn(); break;
      case 5: read_replies(child); break;
      case 6: drain_helper(helper); break;
      case 7: shmi_dispatch_hung(d, UINT64_MAX / 2, &next_ns); break;
      case 8: case 9: case 10: helper_writes(helper, &in); break;
      default: child_writes(child, &in);
    }
    if (who & 128) turn();
  }
  turn();
  if (size & 1) everybody_leaves();
  input_t none = {data, data};
  for (int h = 0; h < HELPERS; h++) helper_dies(h, &none);
  turn(); /* batches that were held are queued, their delay is a microsecond */
  if (size & 1) expect_nothing_queued(); /* for nobody nothing is done again */
  for (int h = 0; h < HELPERS; h++) shmi_dispatch_give_up_helper(d, h, 1);
  turn();
  for (int i = 0; i < CHILDREN; i++) {
    read_replies(i);
    if (shmi_dispatch_child_state(d, i) == SHMI_PEER_UP) expect_all_answered(i);
  }
  everybody_leaves();
  turn();
  expect_nothing_queued();
  REQUIRE(shmi_dispatch_is_drained(d));
  shmi_dispatch_destroy(d);
  return 0;
}
