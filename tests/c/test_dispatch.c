/* The dispatcher between children and helpers that are played here, turn by turn. */
#include "peers.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/poll_set.h"
#include "ipc/adaptive_spin.h"

/* ---- numbers of deliveries ---- */

/* All helpers and children do what they can, but for the frames that `spared` names. */
static void everybody_works(int children, int helpers, const shmi_frame_t *spared) {
  for (int idle = 0; idle < 2;) {
    int done = 0;
    turn();
    for (int h = 0; h < helpers; h++) {
      done += helper_reads(h);
      for (int i = 0; i < hands[h].count;) {
        if (spared != NULL && hands[h].frames[i].delivery == spared->delivery) {
          i++;
          continue;
        }
        helper_ends(h, i, SHM_OK);
        done++;
        if (done % 256 == 0) turn();
      }
    }
    turn();
    for (int slot = 0; slot < children; slot++) done += child_reads(slot);
    idle = done > 0 ? 0 : idle + 1;
  }
}

enum { PARKERS = 34, EACH = 64 };
static shmi_frame_t parked[PARKERS][EACH];

/* Thousands of calls are told to make room, and have not yet. */
static void park_many(int children) {
  peer_credit[0] = 64;
  open_peers(children, 1, 1);
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) child_calls(slot);
  }
  for (int left = PARKERS * EACH; left > 0;) {
    turn();
    helper_reads(0);
    CHECK(hands[0].count > 0);
    while (hands[0].count > 0) helper_ends(0, 0, SHM_ENEEDS_SPACE), left--;
  }
  turn();
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) {
      CHECK_EQ(shmi_pipe_read(kids[slot].reply_fd, &parked[slot][i], 1), 1);
      CHECK_EQ(shmi_status_from_wire(parked[slot][i].status), SHM_ENEEDS_SPACE);
      kids[slot].parked++;
    }
  }
}

static void all_grow(void) {
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) child_grows(slot, &parked[slot][i]);
  }
}

TEST_WITHIN(a_call_that_thousands_of_grows_overtake_keeps_its_number, 20) {
  park_many(PARKERS + 1);
  child_calls(PARKERS);
  turn();
  helper_reads(0);
  CHECK_EQ(hands[0].count, 1);
  shmi_frame_t waits = hands[0].frames[0];
  all_grow();
  everybody_works(PARKERS, 1, &waits);
  CHECK_EQ(hands[0].count, 1); /* the call that all of them overtook */
  CHECK(hands[0].highest > waits.delivery + SHMI_DELIVERY_RING / 2);
  CHECK(hands[0].highest < waits.delivery + SHMI_DELIVERY_RING);
  CHECK_EQ(child_reads(PARKERS), 0);
  helper_ends(0, 0, SHM_OK);
  everybody_works(PARKERS + 1, 1, NULL);
  CHECK_EQ(kids[PARKERS].answered, 1);
  CHECK_EQ(kids[PARKERS].last.sequence, 1);
  for (int slot = 0; slot < PARKERS; slot++) CHECK_EQ(kids[slot].answered, EACH);
  expect_all_ended();
  close_peers();
}

TEST_WITHIN(of_grows_that_wait_those_of_a_child_that_leaves_go_and_no_others, 20) {
  enum { GOES = PARKERS - 2 }; /* others wait before and behind its own */
  park_many(PARKERS);
  all_grow();
  for (int i = 0; i < 50; i++) turn(); /* the helper reads nothing: most wait for it */
  child_goes(GOES);
  CHECK_EQ(shmi_scoreboard()->broker->dropped, EACH);
  everybody_works(PARKERS, 1, NULL);
  for (int slot = 0; slot < PARKERS; slot++) {
    if (slot != GOES) CHECK_EQ(kids[slot].answered, EACH);
  }
  expect_all_ended();
  close_peers();
}

TEST_WITHIN(a_call_that_thousands_of_calls_overtake_keeps_its_number_too, 20) {
  peer_credit[0] = 8;
  open_peers(3, 1, 1);
  child_calls(0);
  turn();
  helper_reads(0);
  shmi_frame_t waits = hands[0].frames[0];
  for (int i = 0; i < 3000; i++) { /* answered out of order, one after another */
    child_calls(1);
    turn();
    if (helper_reads(0) == 0) break;
    CHECK_EQ(hands[0].count, 2);
    helper_ends(0, 1, SHM_OK);
    turn();
    CHECK_EQ(child_reads(1), 1);
  }
  CHECK(hands[0].highest < waits.delivery + SHMI_DELIVERY_RING);
  CHECK(kids[1].answered > 500 && kids[1].answered < 1024);
  for (int i = 0; i < 40; i++) child_calls(2); /* these wait as well: not even a batch goes */
  turn();
  CHECK_EQ(helper_reads(0), 0);
  everybody_works(3, 1, NULL);
  CHECK_EQ(kids[0].answered, 1);
  CHECK_EQ(kids[2].answered, 40);
  expect_all_ended();
  close_peers();
}

static void fn_limited(void *params) { *(int *)params = 4; }
static void fn_drops(void *params) { *(int *)params = 5; }

TEST(a_reply_to_a_number_that_was_not_given_is_nobodys) {
  open_peers(2, 1, 1);
  child_calls(0);
  turn();
  helper_reads(0);
  shmi_frame_t given = hands[0].frames[0];
  uint64_t lies[] = {0, 2, SHMI_DELIVERY_RING + 1, 2 * SHMI_DELIVERY_RING + 1, UINT64_MAX};
  for (uint64_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    shmi_frame_t lie = given;
    lie.delivery = lies[i];
    lie = reply_of(0, &lie, SHM_OK);
    CHECK_EQ(shmi_pipe_write(hands[0].up_fd, &lie, 1), 1);
    turn();
    CHECK_EQ(shmi_scoreboard()->broker->dropped, i + 1);
    CHECK_EQ(child_reads(0) + child_reads(1), 0);
  }
  helper_ends(0, 0, SHM_OK);
  shmi_frame_t twice = reply_of(0, &given, SHM_OK);
  CHECK_EQ(shmi_pipe_write(hands[0].up_fd, &twice, 1), 1);
  turn();
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(shmi_scoreboard()->broker->dropped, 1 + sizeof lies / sizeof *lies);
  close_peers();
}

TEST(a_child_is_ended_for_its_16th_frame_that_makes_no_sense) {
  open_peers(2, 1, 1);
  shmi_frame_t wrong = call_of(fn_plain);
  wrong.priority = SHMI_PRIORITIES;
  for (int i = 1; i <= 15; i++) {
    child_sends(0, wrong);
    CHECK_EQ(turn() & SHMI_TURN_OFFENDED, 0);
    CHECK_EQ(shmi_dispatch_child_state(d, 0), SHMI_PEER_UP);
    CHECK_EQ(shmi_scoreboard()->child_stats[0].protocol_errors, i);
  }
  child_calls(1);
  child_sends(0, wrong);
  CHECK(turn() & SHMI_TURN_OFFENDED);
  CHECK_EQ(shmi_dispatch_child_state(d, 0), SHMI_PEER_OFFENDED);
  CHECK_EQ(shmi_dispatch_child_state(d, 1), SHMI_PEER_UP);
  CHECK_EQ(shmi_scoreboard()->broker->protocol_errors, 16);
  CHECK_EQ(child_reads(0), 0);
  everybody_works(2, 1, NULL);
  CHECK_EQ(kids[1].answered, 1);
  close_peers();
}

TEST(a_call_beyond_the_window_is_an_error_and_none_that_is_within) {
  peer_window = 3;
  open_peers(1, 1, 1);
  for (int i = 0; i < 3; i++) child_calls(0);
  turn();
  CHECK_EQ(shmi_scoreboard()->child_stats[0].protocol_errors, 0);
  child_calls(0);
  turn();
  CHECK_EQ(shmi_scoreboard()->child_stats[0].protocol_errors, 1);
  everybody_works(1, 1, NULL);
  CHECK_EQ(kids[0].answered, 3);
  close_peers();
}

/* One call may wait: the second that has to is refused, or takes the place of the first. */
TEST(of_a_function_with_a_limit_so_many_calls_wait_and_no_more) {
  peer_credit[0] = 1;
  open_peers(1, 1, 1);
  for (int drops = 0; drops < 2; drops++) {
    shm_function_config_t limited = {.name = "limited", .func = drops ? fn_drops : fn_limited,
                                     .max_queue = 1, .flags = drops ? SHM_FUNCTION_DROPS_OLDEST : 0};
    const shmi_function_t *row;
    CHECK_EQ(shmi_function_table_add(&limited, &row), SHM_OK);
    child_sends(0, call_of(limited.func)); /* goes to the helper */
    child_sends(0, call_of(limited.func)); /* waits */
    turn();
    CHECK_EQ(helper_reads(0), 1);
    CHECK_EQ(child_reads(0), 0);
    uint64_t first = kids[0].sent - 1;
    child_sends(0, call_of(limited.func));
    turn();
    CHECK_EQ(child_reads(0), 1);
    CHECK_EQ(shmi_status_from_wire(kids[0].last.status), SHM_EQUEUE_FULL);
    CHECK_EQ(kids[0].last.sequence, drops ? first + 1 : first + 2);
    CHECK_EQ(shmi_scoreboard()->broker->refused, 1 + drops);
    everybody_works(1, 1, NULL);
    CHECK_EQ(kids[0].answered, 3 * (drops + 1));
  }
  expect_all_ended();
  close_peers();
}

TEST(a_pipe_whose_other_end_is_closed_is_closed_here_too) {
  open_peers(2, 2, 1);
  int fds = harness_open_fds();
  shmi_descriptor_close(&hands[0].up_fd);
  turn();
  CHECK_EQ(harness_open_fds(), fds - 2);
  CHECK_EQ(shmi_dispatch_helper_state(d, 0), SHMI_PEER_UP); /* its pidfd tells the rest */
  shmi_descriptor_close(&kids[0].request_fd);
  CHECK(turn() & SHMI_TURN_LEFT);
  CHECK_EQ(harness_open_fds(), fds - 4);
  CHECK_EQ(shmi_dispatch_child_state(d, 0), SHMI_PEER_LEFT);
  child_calls(1);
  turn();
  CHECK_EQ(helper_reads(0) + helper_reads(1), 1);
  close_peers();
}

TEST(a_wait_without_a_limit_ends_when_something_comes) {
  shmi_poll_set_t set;
  struct epoll_event events[2];
  int ends[2], capacity;
  CHECK_EQ(shmi_poll_set_open(&set), SHM_OK);
  CHECK_EQ(shmi_pipe_make(ends, 3, &capacity), SHM_OK);
  CHECK_EQ(shmi_poll_set_add(&set, ends[0], SHMI_POLL_READABLE, 5, 7), SHM_OK);
  for (int is_coarse = 0; is_coarse < 2; is_coarse++) {
    set.coarse_waits = is_coarse; /* as where the kernel has no waits in nanoseconds */
    CHECK_EQ(shmi_poll_set_wait(&set, events, 2, 0, NULL), 0);
    int64_t begun = harness_now_ns();
    CHECK_EQ(shmi_poll_set_wait(&set, events, 2, 2500000, NULL), 0);
    CHECK(harness_now_ns() - begun >= 2500000); /* not a little less */
    pid_t pid = fork();
    if (pid == 0) {
      harness_sleep_ms(5);
      shmi_frame_t frame = {.kind = SHMI_FRAME_GONE};
      _exit(shmi_pipe_write(ends[1], &frame, 1) == 1 ? 0 : 1);
    }
    CHECK_EQ(shmi_poll_set_wait(&set, events, 2, -1, NULL), 1);
    CHECK_EQ(shmi_poll_kind(&events[0]), 5);
    CHECK_EQ(shmi_poll_index(&events[0]), 7);
    CHECK_EQ(shmi_poll_at_end(&events[0]), 0);
    shmi_frame_t frame;
    CHECK_EQ(shmi_pipe_read(ends[0], &frame, 1), 1);
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
  shmi_descriptor_close(&ends[1]);
  CHECK_EQ(shmi_poll_set_wait(&set, events, 2, -1, NULL), 1);
  CHECK(shmi_poll_at_end(&events[0]));
  shmi_poll_set_remove_and_close(&set, &ends[0]);
  CHECK_EQ(ends[0], -1);
  shmi_poll_set_close(&set);
}

TEST(a_helper_that_writes_without_end_gets_its_share_of_a_turn) {
  enum { FRAMES = 8192 };
  static shmi_frame_t lies[FRAMES];
  open_peers(1, 2, 1);
  int bytes = fcntl(hands[0].up_fd, F_SETPIPE_SZ, FRAMES * SHM_FRAME_BYTES);
  if (bytes < FRAMES * SHM_FRAME_BYTES) SKIP("this user may not have a pipe that large");
  for (int i = 0; i < FRAMES; i++) {
    shmi_frame_t never = {.delivery = 77};
    lies[i] = reply_of(0, &never, SHM_OK);
  }
  CHECK_EQ(shmi_pipe_write(hands[0].up_fd, lies, FRAMES), FRAMES);
  turn();
  CHECK(shmi_pipe_unread(hands[0].up_fd) > 0);
  for (int i = 0; i < FRAMES && shmi_pipe_unread(hands[0].up_fd) > 0; i++) turn();
  CHECK_EQ(shmi_pipe_unread(hands[0].up_fd), 0); /* and nothing of it is forgotten */
  CHECK_EQ(shmi_scoreboard()->broker->dropped, FRAMES);
  close_peers();
}

TEST(a_child_that_writes_without_end_gets_its_share_of_a_turn) {
  enum { FRAMES = 4096 };
  static shmi_frame_t nothing[FRAMES];
  open_peers(2, 1, 1);
  int bytes = fcntl(kids[0].request_fd, F_SETPIPE_SZ, (FRAMES + 64) * SHM_FRAME_BYTES);
  if (bytes < (FRAMES + 64) * SHM_FRAME_BYTES) SKIP("this user may not have a pipe that large");
  for (int i = 0; i < FRAMES; i++) {
    nothing[i] = (shmi_frame_t){.kind = SHMI_FRAME_CANCEL, .sequence = UINT64_MAX};
  }
  CHECK_EQ(shmi_pipe_write(kids[0].request_fd, nothing, FRAMES), FRAMES);
  child_calls(0);
  child_calls(1);
  turn();
  CHECK_EQ(helper_reads(0), 1); /* the other's call is not behind all that */
  CHECK_EQ(hands[0].frames[0].slot, 1);
  helper_ends(0, 0, SHM_OK);
  for (int i = 0; i < FRAMES && shmi_pipe_unread(kids[0].request_fd) > 0; i++) turn();
  CHECK_EQ(helper_reads(0), 1); /* and nothing of it is forgotten, though it writes no more */
  CHECK_EQ(hands[0].frames[0].slot, 0);
  helper_ends(0, 0, SHM_OK);
  turn();
  CHECK_EQ(child_reads(0) + child_reads(1), 2);
  expect_all_ended();
  close_peers();
}

/* ---- waiting ---- */

static uint8_t how_it_calls;

static void calls_alone(void) {
  shmi_frame_t frame = call_of(fn_plain);
  frame.flags = how_it_calls;
  child_sends(0, frame);
}

/* Whoever watches offers its core to others after each look: so watching is seen, however long it is. */
static int offers;

int sched_yield(void) {
  offers++;
  return (int)syscall(SYS_sched_yield);
}

/* A lone call is answered, and nothing comes for 2 ms: whether it was watched for. */
static int is_watched_for(int calls_again) {
  calls_alone();
  turn();
  helper_reads(0);
  helper_ends(0, 0, SHM_OK);
  turn();
  CHECK_EQ(child_reads(0), 1);
  if (calls_again) calls_alone();
  int before = offers;
  CHECK(shmi_dispatch_turn(d, 2000000, NULL) >= 0);
  int is_watched = offers > before;
  if (calls_again) everybody_works(1, 1, NULL);
  return is_watched;
}

enum { WAITS = 10 };

/* How many of ten waits were watched, after calls that followed each other closely, and after others.
 * Of several, since somebody else may take the core. */
static void watch_waits(int *near, int *far) {
  *near = *far = 0;
  open_peers(1, 1, 1);
  for (int i = 0; i < WAITS; i++) {
    for (int call = 0; call < 30; call++) is_watched_for(1);
    *near += is_watched_for(0);
    for (int wait = 0; wait < 5; wait++) is_watched_for(0);
    *far += is_watched_for(0);
  }
  expect_all_ended();
  close_peers();
}

TEST(after_the_only_call_the_next_is_watched_for_if_it_usually_comes_soon) {
  int near, far;
  cpu_set_t cores;
  CHECK_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  if (CPU_COUNT(&cores) == 1) return;
  how_it_calls = SHMI_FRAME_WATCHED;
  watch_waits(&near, &far);
  CHECK(near > 0);
  CHECK(far < WAITS / 2);
  how_it_calls = 0; /* who does other things until an answer comes may need the core */
  watch_waits(&near, &far);
  CHECK_EQ(near + far, 0);
  how_it_calls = SHMI_FRAME_WATCHED;
  shmi_spin_allow(0);
  watch_waits(&near, &far);
  CHECK_EQ(near + far, 0);
  shmi_spin_allow(1);
}

/* How many turns it takes until that moment, when each may last for long. */
static int turns_until(int64_t at_ns) {
  int turns = 0;
  while (harness_now_ns() < at_ns) {
    CHECK(shmi_dispatch_turn(d, 20000000, NULL) >= 0);
    turns++;
  }
  return turns;
}

TEST(a_batch_that_is_due_while_calls_are_held_back_is_waited_for_asleep) {
  open_peers(1, 1, 1);
  shmi_frame_t call = call_of(fn_held);
  call.msg.params = (void *)(uintptr_t)shmi_arena_address(0);
  call.batch_key = 7;
  child_sends(0, call);
  turn();
  shmi_dispatch_hold(d, 1);
  CHECK(turns_until(harness_now_ns() + 300000000) < 40); /* due after 50 ms of these */
  CHECK_EQ(helper_reads(0), 0);
  shmi_dispatch_hold(d, 0);
  everybody_works(1, 1, NULL);
  CHECK_EQ(kids[0].answered, 1);
  expect_all_ended();
  close_peers();
}

TEST(an_idle_helper_hears_of_every_child_that_leaves_however_many_do) {
  enum { LEAVE = 200 };
  open_peers(1, 1, 1);
  for (int i = 1; i <= LEAVE; i++) {
    child_goes(0);
    helper_reads(0);
    CHECK_EQ(hands[0].gone, i);
    child_comes(0);
  }
  for (int i = 0; i < LEAVE; i++) { /* it reads no more: its pipe keeps room for calls */
    child_goes(0);
    child_comes(0);
  }
  CHECK(shmi_pipe_unread(hands[0].down_fd) <= 64 * SHM_FRAME_BYTES);
  helper_reads(0);
  int heard = hands[0].gone;
  turn(); /* and of the last ones in the end */
  helper_reads(0);
  CHECK_EQ(hands[0].gone, heard + 1);
  close_peers();
}

TEST(what_did_not_fit_a_helpers_pipe_follows_when_it_has_read) {
  enum { CHILDREN = 64 };
  peer_credit[0] = 8;
  open_peers(CHILDREN + 1, 1, 1);
  child_calls(CHILDREN);
  turn();
  helper_reads(0);
  if (fcntl(hands[0].down_fd, F_SETPIPE_SZ, 4096) != 4096) SKIP("pages are not of 4 KiB");
  for (int slot = 0; slot < CHILDREN; slot++) child_goes(slot); /* it is told of each, and reads not */
  CHECK_EQ(shmi_pipe_unread(hands[0].down_fd), 4096);
  child_calls(CHILDREN);
  turn();
  helper_ends(0, 0, SHM_OK);
  turn(); /* it has answered, and the pipe is as full as before */
  CHECK_EQ(child_reads(CHILDREN), 1);
  helper_reads(0);
  CHECK_EQ(hands[0].gone, CHILDREN);
  CHECK_EQ(hands[0].count, 0);
  CHECK(shmi_dispatch_turn(d, -1, NULL) >= 0); /* woken by that alone */
  helper_reads(0);
  CHECK_EQ(hands[0].count, 1);
  CHECK(turns_until(harness_now_ns() + 200000000) < 30); /* and not again and again */
  everybody_works(0, 1, NULL);
  CHECK_EQ(child_reads(CHILDREN), 1);
  expect_all_ended();
  close_peers();
}

TEST(an_answer_that_lies_with_its_helper_is_heard_of_from_its_page) {
  peer_credit[0] = 8;
  open_peers(2, 1, 1);
  child_calls(0);
  child_calls(1);
  turn();
  helper_reads(0);
  shmi_frame_t first = hands[0].frames[0];
  helper_notes(0, &first, SHM_EBAD_PARAMS); /* and now it is at the other, for as long as it takes */
  int slot = first.slot;
  while (child_reads(slot) == 0) CHECK(shmi_dispatch_turn(d, -1, NULL) >= 0);
  CHECK_EQ(shmi_status_from_wire(kids[slot].last.status), SHM_EBAD_PARAMS);
  CHECK_EQ(child_reads(1 - slot), 0);
  helper_ends(0, 1, SHM_OK);
  helper_ends(0, 0, SHM_EBAD_PARAMS);
  turn();
  CHECK_EQ(child_reads(slot), 0); /* once is enough */
  CHECK_EQ(child_reads(1 - slot), 1);
  CHECK_EQ(shmi_scoreboard()->broker->dropped, 0);
  expect_all_ended();
  close_peers();
}

TEST(a_call_that_hangs_is_seen_whatever_the_page_names_first) {
  peer_credit[0] = 8;
  open_peers(1, 1, 1);
  child_calls(0);
  shmi_frame_t call = call_of(fn_hangs);
  call.msg.params = (void *)(uintptr_t)shmi_arena_address(0);
  child_sends(0, call);
  turn();
  helper_reads(0);
  CHECK_EQ(hands[0].count, 2);
  shmi_helper_page_t *page = shmi_scoreboard_helper(0);
  uint64_t now_ns = (uint64_t)harness_now_ns(), next_ns;
  atomic_store(&page->executing_since_ns, now_ns);
  atomic_store(&page->executing, hands[0].frames[0].delivery << 16 | 2);
  helper_ends(0, 0, SHM_OK); /* the page still begins with it */
  turn();
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 10000000, &next_ns), 0);
  CHECK_EQ(next_ns, now_ns + 20000000);
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 20000000, &next_ns), 1);
  shmi_dispatch_was_stopped(d, now_ns + 15000000);
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 20000000, &next_ns), 0);
  CHECK_EQ(next_ns, now_ns + 35000000);
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 35000000, &next_ns), 1);
  atomic_store(&page->executing, UINT64_MAX << 16 | 0xffff); /* a liar's */
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 20000000, &next_ns), 0);
  helper_ends(0, 0, SHM_OK);
  turn();
  expect_all_ended();
  close_peers();
}

/* ---- nobody waits for what will not come ---- */

static shmi_frame_t bound_to(shm_func_t func, uint64_t mask) {
  shmi_frame_t call = call_of(func);
  if (func != fn_plain) call.msg.params = (void *)(uintptr_t)shmi_arena_address(0);
  call.placement = mask;
  return call;
}

TEST(a_call_whose_time_passes_while_it_waits_is_answered_and_waits_no_more) {
  open_peers(1, 1, 1);
  child_calls(0);
  turn();
  helper_reads(0);
  while (hands[0].count < 64) { /* until the helper is given no more */
    int before = hands[0].count;
    child_calls(0);
    turn();
    helper_reads(0);
    if (hands[0].count == before) break;
  }
  shm_child_stats_t child;
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_OK);
  CHECK_EQ(child.queued, 1);
  shmi_frame_t hasty = call_of(fn_plain);
  hasty.deadline_ns = 1; /* long ago */
  child_sends(0, hasty);
  turn();
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_OK);
  CHECK_EQ(child.queued, 2);
  while (hands[0].count > 0) { /* it is looked at when a helper could take it */
    helper_ends(0, 0, SHM_OK);
    turn();
  }
  child_reads(0);
  CHECK_EQ(shmi_status_from_wire(kids[0].last.status), SHM_ETIMEOUT);
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_OK);
  CHECK_EQ(child.queued, 0);
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.expired, 1);
  everybody_works(1, 1, NULL);
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_OK);
  CHECK_EQ(child.queued, 0);
  expect_all_ended();
  close_peers();
}

TEST(a_call_that_is_held_for_a_helper_that_is_let_go_is_answered) {
  open_peers(1, 2, 1);
  shmi_frame_t call = bound_to(fn_held, 2);
  call.batch_key = 7;
  child_sends(0, call);
  turn();
  shmi_dispatch_retire_helper(d, 1);
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(shmi_status_from_wire(kids[0].last.status), SHM_EHELPER_GONE);
  expect_all_ended();
  close_peers();
}

TEST(a_call_that_a_dead_helper_had_goes_to_another_or_is_answered) {
  peer_credit[0] = 8;
  open_peers(1, 3, 1);
  child_sends(0, bound_to(fn_plain, 1));
  turn();
  child_sends(0, bound_to(fn_plain, 1)); /* alone */
  child_sends(0, bound_to(fn_plain, 3));
  turn();
  int at = helper_reads(0) == 3 ? 0 : 1; /* where the last of them went */
  if (at == 1) CHECK_EQ(helper_reads(1), 1);
  shmi_dispatch_retire_helper(d, at);
  helper_dies(at); /* before it has begun any */
  turn();
  helper_reads(1 - at);
  CHECK_EQ(hands[1 - at].frames[hands[1 - at].count - 1].sequence, 3);
  shmi_dispatch_retire_helper(d, 1 - at);
  helper_dies(1 - at);
  CHECK_EQ(child_reads(0), 3);
  CHECK_EQ(shmi_status_from_wire(kids[0].last.status), SHM_EHELPER_GONE);
  expect_all_ended();
  close_peers();
}

static void offers_to_end(int h) {
  shmi_frame_t idle = {.kind = SHMI_FRAME_IDLE, .slot = (uint16_t)h};
  CHECK_EQ(shmi_pipe_write(hands[h].up_fd, &idle, 1), 1);
}

TEST(an_idle_helper_that_offers_to_end_may_unless_it_has_something_to_do) {
  open_peers(1, 1, 1);
  child_sends(0, bound_to(fn_plain, 1));
  turn();
  offers_to_end(0); /* before it has seen the call */
  turn();
  CHECK(!shmi_dispatch_helper_is_unloading(d, 0));
  helper_reads(0);
  helper_ends(0, 0, SHM_ENEEDS_SPACE);
  turn();
  CHECK_EQ(child_reads(0), 1);
  offers_to_end(0); /* it keeps a result that waits for room */
  turn();
  CHECK(!shmi_dispatch_helper_is_unloading(d, 0));
  child_grows(0, &kids[0].last);
  turn();
  helper_reads(0);
  helper_ends(0, 0, SHM_OK);
  turn();
  shmi_dispatch_hold(d, 1); /* the broker ends: nobody would take its place */
  offers_to_end(0);
  turn();
  CHECK(!shmi_dispatch_helper_is_unloading(d, 0));
  shmi_dispatch_hold(d, 0);
  offers_to_end(0);
  turn();
  CHECK(shmi_dispatch_helper_is_unloading(d, 0) && shmi_dispatch_helper_is_closed(d, 0));
  child_sends(0, bound_to(fn_plain, 1)); /* waits for who takes its place */
  turn();
  helper_dies(0);
  CHECK_EQ(shmi_scoreboard()->helper_stats[0].deaths, 0);
  helper_comes(0);
  CHECK(!shmi_dispatch_helper_is_unloading(d, 0));
  helper_reads(0);
  helper_ends(0, 0, SHM_OK);
  turn();
  CHECK_EQ(child_reads(0), 2);
  expect_all_ended();
  close_peers();
}

TEST(a_helper_that_dies_as_it_offers_to_end_has_died) {
  open_peers(1, 1, 1);
  offers_to_end(0); /* which nobody has read yet */
  helper_dies(0);
  CHECK(!shmi_dispatch_helper_is_unloading(d, 0));
  CHECK_EQ(shmi_scoreboard()->helper_stats[0].deaths, 1);
  CHECK_EQ(shmi_scoreboard()->helper_stats[0].state, SHM_HELPER_DEAD);
  close_peers();
}

TEST(a_helper_that_could_not_make_its_session_at_a_call_gets_no_more_of_them) {
  open_peers(1, 1, 1);
  child_sends(0, bound_to(fn_plain, 1));
  turn();
  helper_reads(0);
  helper_ends(0, 0, SHM_ESESSION);
  shmi_frame_t failed = {.kind = SHMI_FRAME_READY, .status = shmi_status_to_wire(SHM_ESESSION)};
  CHECK_EQ(shmi_pipe_write(hands[0].up_fd, &failed, 1), 1);
  turn();
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(shmi_dispatch_helper_state(d, 0), SHMI_PEER_FAILED);
  child_sends(0, bound_to(fn_plain, 1)); /* waits for who takes its place */
  turn();
  CHECK_EQ(helper_reads(0), 0);
  helper_dies(0);
  helper_comes(0);
  CHECK_EQ(helper_reads(0), 1);
  helper_ends(0, 0, SHM_OK);
  turn();
  CHECK_EQ(child_reads(0), 1);
  expect_all_ended();
  close_peers();
}

TEST(a_call_does_not_hang_while_its_helper_makes_a_session_for_it) {
  open_peers(1, 1, 1);
  shmi_frame_t call = call_of(fn_hangs);
  call.msg.params = (void *)(uintptr_t)shmi_arena_address(0);
  child_sends(0, call);
  turn();
  helper_reads(0);
  shmi_helper_page_t *page = shmi_scoreboard_helper(0);
  uint64_t now_ns = (uint64_t)harness_now_ns(), next_ns;
  atomic_store(&page->executing_since_ns, now_ns);
  atomic_store(&page->executing, hands[0].frames[0].delivery << 16 | 1);
  atomic_store(&page->session, SHM_SESSION_LOADING);
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 30000000, &next_ns), 0);
  CHECK(next_ns > now_ns + 30000000); /* it is looked at again */
  atomic_store(&page->session, SHM_SESSION_LOADED);
  CHECK_EQ(shmi_dispatch_hung(d, now_ns + 30000000, &next_ns), 1);
  helper_ends(0, 0, SHM_OK);
  turn();
  expect_all_ended();
  close_peers();
}

TEST(a_call_for_a_helper_that_is_not_there_is_told_why) {
  open_peers(1, 3, 1);
  const struct {
    uint64_t mask;
    int status;
  } cases[] = {{2, SHM_EHELPER_GONE}, {4, SHM_ENO_HELPERS}, {6, SHM_ENO_HELPERS},
               {8, SHM_EPLACEMENT},   {10, SHM_EHELPER_GONE}};
  shmi_dispatch_retire_helper(d, 1);
  shmi_dispatch_give_up_helper(d, 2, 0);
  for (int i = 0; i < 5; i++) {
    child_sends(0, bound_to(fn_plain, cases[i].mask));
    turn();
    CHECK_EQ(child_reads(0), 1);
    CHECK_EQ(shmi_status_from_wire(kids[0].last.status), cases[i].status);
  }
  shmi_frame_t gang = bound_to(fn_plain, 3);
  gang.flags = SHMI_FRAME_GANG;
  child_sends(0, gang);
  gang.placement = 9; /* one is none of the broker's */
  child_sends(0, gang);
  turn();
  CHECK_EQ(child_reads(0), 2);
  CHECK_EQ(shmi_status_from_wire(kids[0].last.status), SHM_EPLACEMENT);
  expect_all_ended();
  close_peers();
}

/* ---- gangs ---- */

static uint32_t begin_gang(uint64_t mask) {
  shmi_frame_t gang = bound_to(fn_plain, mask);
  gang.flags = SHMI_FRAME_GANG;
  child_sends(0, gang);
  turn();
  uint32_t ticket = 0;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    int h = __builtin_ctzll(left);
    CHECK_EQ(helper_reads(h), 1);
    CHECK(ticket == 0 || ticket == hands[h].frames[0].rows);
    ticket = hands[h].frames[0].rows;
  }
  return ticket;
}

/* Members end in that order; what the child is told. */
static void expect_outcome(const int order[3], const int statuses[3], int status, int helper,
                           int is_committed) {
  for (int i = 0; i < 3; i++) helper_ends(order[i], 0, statuses[order[i]]);
  turn();
  CHECK_EQ(child_reads(0), 1);
  CHECK_EQ(shmi_status_from_wire(kids[0].last.status), status);
  CHECK_EQ(kids[0].last.slot, helper);
  CHECK_EQ((kids[0].last.flags & SHMI_FRAME_COMMITTED) != 0, is_committed);
}

TEST(of_a_gang_that_fails_the_one_is_named_whose_own_failure_it_was) {
  open_peers(1, 3, 1);
  static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}};
  for (int i = 0; i < 4; i++) {
    uint32_t ticket = begin_gang(7);
    CHECK_EQ(shmi_gang_abort(ticket, 1, SHM_GANG_MEMBER_FAILED), 1);
    const int failed[] = {SHM_EABORTED, SHM_EREMOTE, SHM_EABORTED};
    expect_outcome(orders[i], failed, SHM_EREMOTE, 1, 0);
    ticket = begin_gang(7);
    CHECK_EQ(shmi_gang_abort(ticket, 2, SHM_GANG_MEMBER_FAILED), 1);
    const int given_up[] = {SHM_EABORTED, SHM_EABORTED, SHM_EABORTED};
    expect_outcome(orders[i], given_up, SHM_EABORTED, 2, 0);
    ticket = begin_gang(7); /* a member has died, whatever others say of themselves */
    CHECK_EQ(shmi_gang_abort(ticket, 2, SHM_GANG_MEMBER_DIED), 1);
    expect_outcome(orders[i], failed, SHM_EHELPER_DIED, 2, 0);
    ticket = begin_gang(7); /* what fails behind the commit is told, and what was done stands */
    for (int n = 0; n < 3; n++) shmi_gang_arrive(ticket);
    expect_outcome(orders[i], failed, SHM_EREMOTE, 1, 1);
  }
  expect_all_ended();
  close_peers();
}

/* ---- random events ---- */

enum { R_CHILDREN = 5, R_HELPERS = 4, R_WINDOW = 24 };
static uint64_t dice, random_seed;
static uint64_t roll(uint64_t sides) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return (dice >> 11) % sides;
}

static int out_of[R_CHILDREN];                        /* calls that have not ended */
static shmi_frame_t wants_room[R_CHILDREN][R_WINDOW];
static int is_here[R_HELPERS], is_let_go[R_HELPERS];

static void any_call(int slot) {
  static const shm_func_t functions[] = {fn_plain, fn_held, fn_hangs, fn_batch};
  if (out_of[slot] == R_WINDOW) return;
  int which = (int)roll(4);
  shmi_frame_t call = call_of(functions[which]);
  call.msg.params = (void *)(uintptr_t)shmi_arena_address(slot);
  call.pool = (uint8_t)roll(2);
  call.priority = (uint8_t)roll(SHMI_PRIORITIES);
  if (which == 1 || which == 3) call.batch_key = 1 + roll(2);
  if (roll(3) == 0) call.placement = 1 + roll((1 << R_HELPERS) - 1);
  if (roll(8) == 0) call.deadline_ns = (uint64_t)harness_now_ns() + roll(2000000);
  if (roll(10) == 0) {
    call.flags = SHMI_FRAME_GANG;
    call.placement = 1 + roll((1 << R_HELPERS) - 1);
  }
  child_sends(slot, call);
  out_of[slot]++;
}

static void any_child_event(void) {
  int slot = (int)roll(R_CHILDREN);
  if (kids[slot].request_fd <= 0) {
    if (shmi_dispatch_child_state(d, slot) != SHMI_PEER_NONE) return;
    child_comes(slot);
    out_of[slot] = 0;
    return;
  }
  uint64_t what = roll(20);
  if (what < 12) {
    any_call(slot);
  } else if (what < 17) {
    shmi_frame_t frames[SHMI_PIPE_BURST];
    int got = shmi_pipe_read(kids[slot].reply_fd, frames, SHMI_PIPE_BURST);
    for (int i = 0; i < got; i++) {
      if (shmi_status_from_wire(frames[i].status) == SHM_ENEEDS_SPACE) {
        wants_room[slot][kids[slot].parked++] = frames[i];
      } else {
        out_of[slot]--;
      }
    }
    while (kids[slot].parked > 0 && roll(3) != 0) {
      child_grows(slot, &wants_room[slot][kids[slot].parked - 1]);
    }
  } else if (what < 19) {
    shmi_frame_t cancel = {.kind = SHMI_FRAME_CANCEL, .sequence = 1 + roll(kids[slot].sent + 1)};
    CHECK_EQ(shmi_pipe_write(kids[slot].request_fd, &cancel, 1), 1);
  } else if (roll(4) == 0) {
    char byte = 1;
    CHECK_EQ(pwrite(shmi_arena_descriptor(slot), &byte, 1, 0), 1);
    child_goes(slot);
    shmi_dispatch_clear_child(d, slot);
  }
}

static void any_end(int h) {
  if (hands[h].count == 0) return;
  int at = roll(3) == 0 ? (int)roll((uint64_t)hands[h].count) : 0;
  const shmi_frame_t *frame = &hands[h].frames[at];
  int may_park = frame->kind == SHMI_FRAME_CALL && (frame->flags & SHMI_FRAME_GANG) == 0;
  helper_ends(h, at, may_park && roll(4) == 0 ? SHM_ENEEDS_SPACE : roll(9) == 0 ? SHM_EREMOTE : SHM_OK);
}

/* What the supervisor does when a helper has ended. */
static void helper_ended(int h, int is_given_up) {
  helper_dies(h);
  is_here[h] = 0;
  if (is_let_go[h] || !is_given_up) return;
  int others = 0;
  for (int o = 0; o < R_HELPERS; o++) {
    others += o != h && peer_pool[o] == peer_pool[h] && is_here[o] && !is_let_go[o];
  }
  shmi_dispatch_give_up_helper(d, h, others == 0);
}

static void any_helper_event(void) {
  int h = (int)roll(R_HELPERS);
  if (!is_here[h]) {
    if (roll(3) == 0 || is_let_go[h]) {
      if (is_let_go[h] && roll(4) != 0) return;
      helper_comes(h);
      is_here[h] = 1;
      is_let_go[h] = 0;
    }
    return;
  }
  if (helper_reads(h) == 0 && shmi_dispatch_helper_is_closed(d, h)) {
    if (shmi_dispatch_helper_is_unloading(d, h)) CHECK_EQ(hands[h].count, 0);
    helper_ended(h, 0);
    return;
  }
  uint64_t what = roll(42);
  if (what < 30) {
    for (uint64_t i = roll(6); i > 0; i--) any_end(h);
  } else if (what < 36 && hands[h].count > 0) {
    helper_notes(h, &hands[h].frames[0], SHM_OK); /* the reply comes later, or not at all */
  } else if (what == 36) {
    shmi_helper_page_t *page = shmi_scoreboard_helper(h);
    if (hands[h].count > 0) {
      atomic_store(&page->executing, hands[h].frames[0].delivery << 16 | (1 + roll(2)));
    }
    helper_ended(h, roll(3) == 0);
  } else if (what == 37 && h >= 2 && !is_let_go[h]) { /* a pool keeps one at least */
    shmi_dispatch_retire_helper(d, h);
    is_let_go[h] = 1;
  } else if (what == 38) {
    shmi_dispatch_hold(d, 1);
  } else if (what >= 40) {
    offers_to_end(h); /* whatever it holds */
  } else {
    shmi_dispatch_hold(d, 0);
  }
}

static void run_random(uint64_t seed) {
  dice = seed * 0x9E3779B97F4A7C15u + 1;
  memset(out_of, 0, sizeof out_of);
  peer_window = R_WINDOW;
  peer_credit[0] = 6;
  for (int h = 0; h < R_HELPERS; h++) {
    peer_pool[h] = (uint8_t)(h % 2);
    is_here[h] = 1;
    is_let_go[h] = 0;
    hands[h].generation = 0;
  }
  open_peers(R_CHILDREN, R_HELPERS, 2);
  for (int step = 0; step < (HARNESS_SANITIZED ? 1000 : 4000); step++) {
    if (roll(2) == 0) any_child_event();
    else any_helper_event();
    if (roll(2) == 0) turn();
  }
  shmi_dispatch_hold(d, 0);
  for (int h = 0; h < 2; h++) { /* each pool has one that lives */
    if (!is_here[h]) helper_comes(h);
    is_here[h] = 1;
  }
  for (int round = 0, quiet = 0; quiet < 3; round++) {
    if (round == 2000)
      harness_fail(__FILE__, __LINE__, "seed %llu: not every call has ended",
                   (unsigned long long)random_seed);
    shm_broker_stats_t stats;
    CHECK(shmi_dispatch_turn(d, 5000000, NULL) >= 0);
    for (int h = 0; h < R_HELPERS; h++) {
      if (!is_here[h]) {
        if (is_let_go[h]) continue;
        helper_comes(h); /* those that died are replaced */
        is_here[h] = 1;
      }
      helper_reads(h);
      for (int i = 0; i < 50; i++) any_end(h);
      if (hands[h].count == 0 && shmi_dispatch_helper_is_closed(d, h)) helper_ended(h, 0);
    }
    for (int slot = 0; slot < R_CHILDREN; slot++) {
      if (kids[slot].request_fd <= 0) continue;
      shmi_frame_t frames[SHMI_PIPE_BURST];
      int got = shmi_pipe_read(kids[slot].reply_fd, frames, SHMI_PIPE_BURST);
      for (int i = 0; i < got; i++) {
        if (shmi_status_from_wire(frames[i].status) == SHM_ENEEDS_SPACE) {
          wants_room[slot][kids[slot].parked++] = frames[i];
        } else {
          out_of[slot]--;
        }
      }
      while (kids[slot].parked > 0) child_grows(slot, &wants_room[slot][kids[slot].parked - 1]);
    }
    turn();
    CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
    quiet = stats.submitted == stats.answered + stats.dropped ? quiet + 1 : 0;
  }
  turn();
  for (int slot = 0; slot < R_CHILDREN; slot++) {
    if (kids[slot].request_fd > 0) CHECK_EQ(out_of[slot], 0);
    int state = shmi_dispatch_child_state(d, slot);
    CHECK(state == SHMI_PEER_NONE || state == SHMI_PEER_UP);
  }
  for (int h = 0; h < R_HELPERS; h++) {
    CHECK(!is_let_go[h] || !is_here[h]); /* who was let go could end */
  }
  CHECK_EQ(shmi_scoreboard()->broker->protocol_errors, 0);
  expect_all_ended();
  for (int h = 0; h < R_HELPERS; h++) {
    shmi_descriptor_close(&hands[h].down_fd);
    shmi_descriptor_close(&hands[h].up_fd);
  }
  for (int slot = 0; slot < R_CHILDREN; slot++) {
    shmi_descriptor_close(&kids[slot].request_fd);
    shmi_descriptor_close(&kids[slot].reply_fd);
  }
  close_peers();
  shmi_descriptor_close(&supervisor_fd);
}

TEST_WITHIN(after_any_events_every_call_has_ended, 30) {
  const char *one = getenv("SHM_TEST_SEED");
  uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
  for (uint64_t seed = first; seed < first + (HARNESS_SANITIZED ? 4 : 12); seed++) {
    random_seed = seed;
    run_random(seed);
  }
}

TEST(a_dispatcher_that_is_destroyed_leaves_no_memory_and_no_descriptor) {
  size_t memory = 0;
  int fds = harness_open_fds();
  for (int round = 0; round < 2 * HARNESS_ROUNDS; round++) {
    open_peers(5, 3, 2);
    child_calls(1);
    turn();
    close_peers();
    for (int slot = 0; slot < 5; slot++) { /* the peers' own ends */
      shmi_descriptor_close(&kids[slot].request_fd);
      shmi_descriptor_close(&kids[slot].reply_fd);
    }
    for (int h = 0; h < 3; h++) {
      shmi_descriptor_close(&hands[h].down_fd);
      shmi_descriptor_close(&hands[h].up_fd);
    }
    shmi_descriptor_close(&supervisor_fd);
    CHECK_EQ(harness_open_fds(), fds);
    if (round == HARNESS_ROUNDS) memory = harness_memory();
  }
  CHECK_EQ(harness_memory(), memory);
  shmi_dispatch_destroy(NULL);
}
