/* A child's end: threads, deadlines, cancelling, growing results, and what comes late. */
#include "broker.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "child/port_internal.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

/* ---- a helper that speaks the bindings' protocol, in C ---- */

typedef struct block {     /* a binding's parameter block: its first word is its length */
  uint32_t bytes, kind;
  uint64_t in, out;
  uint64_t note, runs, batch, helper;
} block_t;

enum { ADD_ONE, WAIT, PARK, FAIL, DIE, PARK_TWICE, GO_ON };
static uint64_t row, batched_row, short_row, impatient_row;

typedef struct parked {
  uint64_t sequence, value;
  uint16_t slot;
  int used;
} parked_t;
static parked_t parked[64];

static void park(const shm_work_t *work, uint64_t value) {
  for (int i = 0; i < 64; i++) {
    if (parked[i].used) continue;
    parked[i] = (parked_t){work->sequence, value, work->slot, 1};
    return;
  }
  CHECK(0);
}

static int unpark(const shm_work_t *work) {
  for (int i = 0; i < 64; i++) {
    if (!parked[i].used || parked[i].sequence != work->sequence || parked[i].slot != work->slot)
      continue;
    if (work->params != 0) {
      block_t *room = (block_t *)(uintptr_t)work->params;
      CHECK(work->block_bytes >= sizeof *room);
      if (room->kind == PARK_TWICE) {
        room->kind = PARK;
        CHECK_EQ(shm_helper_finish(work->delivery, SHM_ENEEDS_SPACE, 2), SHM_OK);
        return SHM_ENEEDS_SPACE;
      }
      room->out = parked[i].value;
    }
    parked[i].used = 0;
    atomic_fetch_sub(&notes[1], 1);
    CHECK_EQ(shm_helper_finish(work->delivery, SHM_OK, 0), SHM_OK);
    return SHM_OK;
  }
  CHECK_EQ(shm_helper_finish(work->delivery, SHM_EBAD_PARAMS, 0), SHM_OK);
  return SHM_EBAD_PARAMS;
}

/* After the answer: raise notes[note], and go on until the next one is not 0; 2: end there. */
static void go_on(uint64_t note) {
  CHECK_EQ(shm_helper_go_on(), SHM_OK);
  notes[note]++;
  AWAIT(notes[note + 1] != 0);
  if (notes[note + 1] == 2) kill(getpid(), SIGKILL);
}

static void serve_one(const shm_work_t *work, int count) {
  block_t *block = (block_t *)(uintptr_t)work->params;
  block->runs++;
  block->batch = (uint64_t)count;
  block->helper = (uint64_t)shm_get_helper_id();
  int status = SHM_OK;
  uint64_t value = 0;
  switch (block->kind) {
    case WAIT:
      atomic_fetch_add(&notes[block->note], 1);
      AWAIT(notes[block->note + 1] != 0);
      break;
    case PARK:
      if (block->note != 0) AWAIT(notes[block->note] != 0);
      park(work, block->in + 1);
      atomic_fetch_add(&notes[1], 1);
      status = SHM_ENEEDS_SPACE;
      value = sizeof *block;
      break;
    case FAIL:
      status = SHM_EREMOTE;
      value = 77;
      break;
    case DIE:
      kill(getpid(), SIGKILL);
      break;
    default:
      break;
  }
  block->out = block->in + 1;
  if (status == SHM_ENEEDS_SPACE) block->out = 0;
  uint64_t goes_on_at = block->kind == GO_ON ? block->note : 0; /* its owner may free it then */
  CHECK_EQ(shm_helper_finish(work->delivery, status, value), SHM_OK);
  CHECK_EQ(shm_helper_finish(work->delivery, status, value), SHM_EBAD_FRAME); /* once */
  if (goes_on_at != 0) go_on(goes_on_at);
}

static int run_helper(int helper, uint32_t generation) {
  (void)helper;
  (void)generation;
  static shm_work_t works[SHM_MAX_BATCH];
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_OK);
  for (;;) {
    int count = shm_helper_take(works, SHM_MAX_BATCH, -1);
    if (count == SHM_EINTR) continue;
    if (count == SHM_ESTOPPED) return 0;
    CHECK(count > 0);
    for (int i = 0; i < count; i++) {
      if (works[i].kind == SHM_WORK_GROW) unpark(&works[i]);
      else serve_one(&works[i], count);
    }
  }
}

static void open_here(int children, int helpers) {
  broker_open(children, helpers);
  shm_function_config_t bound = {.name = "bound", .params_size = sizeof(block_t)};
  CHECK_EQ(shm_register_function(&bound, &row), SHM_OK);
  bound.batch_max_rows = 8;
  CHECK_EQ(shm_register_function(&bound, &batched_row), SHM_OK);
  bound.batch_max_rows = 0;
  bound.params_size = 8;
  CHECK_EQ(shm_register_function(&bound, &short_row), SHM_OK);
  bound.params_size = sizeof(block_t);
  bound.hang_after_ns = 150000000;
  CHECK_EQ(shm_register_function(&bound, &impatient_row), SHM_OK);
  host.run_helper = run_helper;
}

static block_t *block_new(uint32_t kind, uint64_t in) {
  block_t *block = shm_malloc(sizeof *block);
  CHECK(block != NULL);
  *block = (block_t){.bytes = sizeof *block, .kind = kind, .in = in};
  return block;
}
static uint64_t at(const void *block) { return (uint64_t)(uintptr_t)block; }
static uint64_t in_ms(int ms) { return (uint64_t)harness_now_ns() + (uint64_t)ms * 1000000; }

static int call_row(block_t *block, uint64_t deadline_ns, shm_reply_t *reply) {
  shm_call_config_t plain = {.function = row, .rows = 1};
  return shm_port_call(&plain, at(block), deadline_ns, reply);
}
static uint64_t submit_row(block_t *block, uint64_t deadline_ns) {
  shm_call_config_t plain = {.function = row, .rows = 1};
  uint64_t sequence = 0;
  CHECK_EQ(shm_port_submit(&plain, at(block), deadline_ns, 0, &sequence), SHM_OK);
  CHECK(sequence != 0);
  return sequence;
}
static void expect_row_works(void) {
  shm_reply_t reply;
  block_t *block = block_new(ADD_ONE, 9);
  CHECK_EQ(call_row(block, 0, &reply), SHM_OK);
  CHECK_EQ(block->out, 10);
  CHECK_EQ(reply.helper, (int)block->helper);
  CHECK_EQ(shm_free(block), SHM_OK);
}
static shm_reply_t drain_one(void) {
  shm_reply_t reply = {0};
  CHECK_EQ(shm_port_drain(&reply, 1, 8 * SECOND_NS), 1);
  return reply;
}
static void expect_no_more_replies(void) {
  shm_reply_t reply;
  expect_row_works(); /* whatever was to come before it has come */
  CHECK_EQ(shm_port_drain(&reply, 1, 0), 0);
  CHECK_EQ(shm_port_outstanding(), 0);
}

/* ---- values and statuses ---- */

static int statuses_come_back(int child) {
  (void)child;
  shm_reply_t reply;
  block_t *block = block_new(FAIL, 1);
  CHECK_EQ(call_row(block, 0, &reply), SHM_EREMOTE);
  CHECK_EQ(reply.status, SHM_EREMOTE);
  CHECK_EQ(reply.value, 77);
  expect_no_more_replies();
  return 0;
}

TEST(what_a_helper_answers_reaches_its_caller) {
  open_here(1, 1);
  launch_well(statuses_come_back);
}

/* Then the dispatcher may watch for its next call; what is drained is no reason to. */
static int says_that_a_thread_waits(int child) {
  (void)child;
  int has_cores = shmi_port.spin.cores > 1;
  CHECK_EQ(shmi_port.watches, 0);
  for (int i = 0; i < 2; i++) {
    expect_row_works();
    CHECK_EQ(shmi_port.watches, has_cores);
    submit_row(block_new(ADD_ONE, 1), 0);
    drain_one();
    CHECK_EQ(shmi_port.watches, 0);
  }
  return 0;
}

TEST(a_child_knows_whether_a_thread_waited_for_its_last_call_itself) {
  open_here(1, 1);
  launch_well(says_that_a_thread_waits);
}

/* The first word of a binding's block is its length, as the helper reads it. */
static int forges_lengths(int child) {
  (void)child;
  uint64_t end = shm_arena_base(0) + shm_arena_bytes();
  static const uint32_t lengths[] = {0, 1, 7, sizeof(block_t) - 1, 2 << 20, UINT32_MAX};
  shm_reply_t reply;
  block_t *block = block_new(ADD_ONE, 1);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    block->bytes = lengths[i];
    CHECK_EQ(call_row(block, 0, &reply), SHM_EBAD_PARAMS);
  }
  CHECK_EQ(block->runs, 0);
  shm_call_config_t tail = {.function = short_row, .rows = 1};
  uint32_t *last = (uint32_t *)(uintptr_t)(end - 8);
  last[0] = 16; /* eight more than there are */
  CHECK_EQ(shm_port_call(&tail, end - 8, 0, &reply), SHM_EBAD_PARAMS);
  CHECK_EQ(shm_port_call(&tail, end, 0, &reply), SHM_EBAD_PARAMS);
  CHECK_EQ(shm_port_call(&tail, 0, 0, &reply), SHM_EBAD_PARAMS);
  expect_no_more_replies();
  return 0;
}

TEST(a_forged_length_is_refused_by_the_helper) {
  open_here(1, 1);
  launch_well(forges_lengths);
}

/* ---- many threads ---- */

enum { THREADS = 8 };
static int thread_calls;

static void *calls_in_a_thread(void *number) {
  uint64_t me = *(uint64_t *)number;
  for (int i = 0; i < thread_calls; i++) {
    shm_reply_t reply;
    block_t *block = block_new(ADD_ONE, me * 1000000 + (uint64_t)i);
    CHECK_EQ(call_row(block, 0, &reply), SHM_OK);
    CHECK_EQ(block->out, me * 1000000 + (uint64_t)i + 1);
    CHECK_EQ(block->runs, 1);
    CHECK_EQ(shm_free(block), SHM_OK);
  }
  return NULL;
}

static void threads_run(void *(*body)(void *), pthread_t threads[], uint64_t numbers[]) {
  for (uint64_t i = 0; i < THREADS; i++) {
    numbers[i] = i;
    CHECK_EQ(pthread_create(&threads[i], NULL, body, &numbers[i]), 0);
  }
}
static void threads_join(pthread_t threads[]) {
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* Threads that end, again and again: the one that reads for all must not be missed by any. */
static int threads_that_end(int child) {
  (void)child;
  pthread_t threads[THREADS];
  uint64_t numbers[THREADS];
  int rounds = HARNESS_SANITIZED ? 100 : 1500;
  for (int i = 0; i < rounds; i++) {
    threads_run(calls_in_a_thread, threads, numbers);
    threads_join(threads);
  }
  expect_no_more_replies();
  return 0;
}

static int many_threads(int child) {
  (void)child;
  pthread_t threads[THREADS];
  uint64_t numbers[THREADS];
  threads_run(calls_in_a_thread, threads, numbers);
  threads_join(threads);
  expect_no_more_replies();
  return 0;
}

TEST_WITHIN(many_threads_call_at_once_and_each_gets_its_own, 30) {
  open_here(2, 2);
  thread_calls = HARNESS_SANITIZED ? 100 : 1000;
  launch_well(many_threads);
}

TEST_WITHIN(more_threads_than_the_window_has_room_take_turns, 30) {
  open_here(1, 2);
  config.window = 3;
  thread_calls = HARNESS_SANITIZED ? 100 : 1000;
  launch_well(many_threads);
}

static _Atomic int submitted, drained, submitters_over;

static void *submits_in_a_thread(void *number) {
  uint64_t me = *(uint64_t *)number;
  shm_call_config_t plain = {.function = row, .rows = 1};
  for (int i = 0; i < thread_calls; i++) {
    if (me % 2 == 0) {
      calls_in_a_thread(number);
      break;
    }
    block_t *block = block_new(ADD_ONE, me);
    uint64_t sequence;
    int status;
    while ((status = shm_port_submit(&plain, at(block), 0, 0, &sequence)) == SHM_EAGAIN) harness_pause();
    CHECK_EQ(status, SHM_OK);
    submitted++;
  }
  submitters_over++;
  return NULL;
}
static void *drains_in_a_thread(void *ignored) {
  (void)ignored;
  shm_reply_t replies[16];
  while (submitters_over < THREADS || drained < submitted) {
    int got = shm_port_drain(replies, 16, 5000000);
    CHECK(got >= 0);
    for (int i = 0; i < got; i++) CHECK_EQ(replies[i].status, SHM_OK);
    drained += got;
  }
  return NULL;
}
static int mixed_threads(int child) {
  (void)child;
  pthread_t threads[THREADS], drainer;
  uint64_t numbers[THREADS];
  CHECK_EQ(pthread_create(&drainer, NULL, drains_in_a_thread, NULL), 0);
  threads_run(submits_in_a_thread, threads, numbers);
  threads_join(threads);
  pthread_join(drainer, NULL);
  CHECK_EQ(drained, THREADS / 2 * thread_calls);
  expect_no_more_replies();
  return 0;
}

TEST_WITHIN(threads_that_end_leave_nobody_waiting, 60) {
  open_here(3, 2);
  config.arena_bytes = 8 * MIB;
  thread_calls = 3;
  launch_well(threads_that_end);
}

TEST_WITHIN(callers_submitters_and_a_drainer_get_along, 30) {
  open_here(1, 2);
  config.window = 8;
  config.arena_bytes = 8 * MIB;
  thread_calls = HARNESS_SANITIZED ? 100 : 1000;
  launch_well(mixed_threads);
}

/* A sleeping drainer is woken by replies that a calling thread reads. */
static void *drains_for_ever(void *ignored) {
  (void)ignored;
  shm_reply_t reply;
  notes[20] = 1;
  CHECK_EQ(shm_port_drain(&reply, 1, -1), 1);
  CHECK_EQ(reply.status, SHM_OK);
  notes[21] = reply.sequence;
  return NULL;
}
static int wakes_drainer(int child) {
  (void)child;
  for (int i = 0; i < 50; i++) {
    pthread_t drainer;
    notes[20] = notes[21] = 0;
    CHECK_EQ(pthread_create(&drainer, NULL, drains_for_ever, NULL), 0);
    if (i % 2 == 0) AWAIT(notes[20] == 1);
    block_t *block = block_new(ADD_ONE, 1);
    uint64_t sequence = submit_row(block, 0);
    for (int k = 0; k < 3; k++) expect_row_works();
    pthread_join(drainer, NULL);
    CHECK_EQ(notes[21], sequence);
    CHECK_EQ(shm_free(block), SHM_OK);
  }
  expect_no_more_replies();
  return 0;
}

TEST(a_sleeping_drainer_hears_of_what_others_read) {
  open_here(1, 1);
  launch_well(wakes_drainer);
}

static int event_descriptors(int child) {
  (void)child;
  struct pollfd fds[2] = {{.fd = shm_port_fd(), .events = POLLIN},
                          {.fd = shm_port_event_fd(), .events = POLLIN}};
  CHECK(fds[0].fd >= 0 && fds[1].fd >= 0);
  CHECK_EQ(poll(fds, 2, 0), 0);
  block_t *block = block_new(ADD_ONE, 1);
  submit_row(block, 0);
  CHECK(poll(fds, 2, 8000) > 0);
  CHECK((fds[0].revents & POLLIN) != 0);
  drain_one();
  CHECK_EQ(poll(fds, 2, 0), 0);
  submit_row(block, 0);
  expect_row_works(); /* reads the other reply too */
  CHECK_EQ(poll(fds, 2, 8000), 1);
  CHECK((fds[1].revents & POLLIN) != 0);
  drain_one();
  CHECK_EQ(poll(fds, 2, 0), 0);
  return 0;
}

TEST(an_event_loop_is_told_of_every_reply) {
  open_here(1, 1);
  launch_well(event_descriptors);
}

/* ---- the window ---- */

static int fills_the_window(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 1);
  waiting->note = 30;
  CHECK_EQ(shm_port_window(), 2);
  submit_row(waiting, 0);
  submit_row(block_new(ADD_ONE, 1), 0);
  shm_call_config_t plain = {.function = row, .rows = 1};
  uint64_t sequence;
  shm_reply_t reply;
  block_t *third = block_new(ADD_ONE, 1);
  CHECK_EQ(shm_port_submit(&plain, at(third), 0, 0, &sequence), SHM_EAGAIN);
  CHECK_EQ(shm_port_outstanding(), 2);
  /* A call waits for room, but not beyond its deadline: it was never sent. */
  CHECK_EQ(call_row(third, in_ms(20), &reply), SHM_ETIMEOUT);
  CHECK_EQ(reply.sequence, 0);
  notes[31] = 1;
  CHECK_EQ(call_row(third, 0, &reply), SHM_OK);
  CHECK_EQ(third->runs, 1);
  drain_one();
  drain_one();
  expect_no_more_replies();
  return 0;
}

TEST(beyond_the_window_submit_says_so_and_a_call_waits) {
  open_here(1, 1);
  config.window = 2;
  launch_well(fills_the_window);
}

/* Who waits for a place sleeps while another thread reads replies. When that one leaves and the
 * window is as full as before, there is nobody else to read what will make room. */
static void *leaves_at_its_deadline(void *waiting) {
  shm_reply_t reply;
  CHECK_EQ(call_row(waiting, in_ms(500), &reply), SHM_ETIMEOUT);
  notes[31] = 1;
  return NULL;
}

static int waits_behind_one_that_leaves(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 1), *second = block_new(ADD_ONE, 1);
  waiting->note = 30;
  pthread_t leader;
  CHECK_EQ(pthread_create(&leader, NULL, leaves_at_its_deadline, waiting), 0);
  AWAIT(notes[30] == 1);
  shm_reply_t reply;
  CHECK_EQ(call_row(second, 0, &reply), SHM_OK);
  CHECK_EQ(second->out, 2);
  pthread_join(leader, NULL);
  CHECK_EQ(drain_one().status, SHM_OK); /* the late one's */
  expect_no_more_replies();
  return 0;
}

TEST(who_waits_for_a_place_reads_when_the_one_that_read_leaves) {
  open_here(1, 1);
  config.window = 1;
  launch_well(waits_behind_one_that_leaves);
}

/* Nor do threads that wait for answers of their own serve a call that asks for room. */
static void *waits_for_note_31(void *waiting) {
  shm_reply_t reply;
  CHECK_EQ(call_row(waiting, 0, &reply), SHM_OK);
  return NULL;
}

static void *lets_the_result_be_too_long(void *nothing) {
  poll(NULL, 0, 200); /* by then the other thread waits for a place */
  notes[32] = 1;
  return nothing;
}

static int serves_what_asks_for_room(int child) {
  (void)child;
  pthread_t waiters[2], opener;
  for (int i = 0; i < 2; i++) { /* one of them reads, the other follows */
    block_t *waiting = block_new(WAIT, 1);
    waiting->note = 30;
    CHECK_EQ(pthread_create(&waiters[i], NULL, waits_for_note_31, waiting), 0);
  }
  AWAIT(notes[30] == 2);
  block_t *small = block_new(PARK, 5), *large = block_new(PARK, 0), *fourth = block_new(ADD_ONE, 1);
  small->note = 32;
  uint64_t sequence = submit_row(small, 0);
  CHECK_EQ(pthread_create(&opener, NULL, lets_the_result_be_too_long, NULL), 0);
  shm_reply_t reply;
  CHECK_EQ(call_row(fourth, 0, &reply), SHM_ENEEDS_SPACE);
  CHECK_EQ(reply.sequence, 0);
  reply = shm_port_take_growing(0);
  CHECK_EQ(reply.sequence, sequence);
  CHECK_EQ(shm_port_grow(sequence, reply.token, at(large)), SHM_OK);
  CHECK_EQ(call_row(fourth, 0, &reply), SHM_OK);
  CHECK_EQ(large->out, 6);
  CHECK_EQ(drain_one().sequence, sequence);
  notes[31] = 1;
  for (int i = 0; i < 2; i++) pthread_join(waiters[i], NULL);
  pthread_join(opener, NULL);
  expect_no_more_replies();
  return 0;
}

TEST(who_waits_for_a_place_serves_a_call_that_asks_for_room_while_others_wait_for_answers) {
  open_here(1, 3);
  config.window = 3;
  launch_well(serves_what_asks_for_room);
}

/* ---- deadlines ---- */

static int runs_late(int child) {
  (void)child;
  shm_reply_t reply;
  block_t *waiting = block_new(WAIT, 5);
  waiting->note = 40;
  uint64_t sequence = 0;
  for (int ms = 20; notes[40] == 0; ms *= 2) { /* on a busy machine it may expire in the queue */
    CHECK_EQ(call_row(waiting, in_ms(ms), &reply), SHM_ETIMEOUT);
    sequence = reply.sequence;
    while (sequence != 0 && notes[40] == 0 && shm_port_drain(&reply, 1, 5000000) == 0) {}
  }
  CHECK(sequence != 0);
  CHECK_EQ(shm_port_drain(&reply, 1, 0), 0);
  notes[41] = 1;
  reply = drain_one();
  CHECK_EQ(reply.sequence, sequence);
  CHECK_EQ(reply.status, SHM_OK);
  CHECK_EQ(waiting->out, 6);
  expect_no_more_replies();
  return 0;
}

TEST(after_a_timeout_the_late_answer_comes_out_of_drain_once) {
  open_here(1, 1);
  launch_well(runs_late);
}

/* Whoever sees the deadline pass first, this clock or the broker's: one late reply follows. */
static int expires_while_queued(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 5);
  waiting->note = 40;
  submit_row(waiting, 0);
  AWAIT(notes[40] == 1);
  enum { LATE = 20 };
  uint64_t sequences[LATE];
  block_t *blocks[LATE];
  for (int i = 0; i < LATE; i++) {
    shm_reply_t reply;
    blocks[i] = block_new(ADD_ONE, 1);
    CHECK_EQ(call_row(blocks[i], in_ms(i % 3), &reply), SHM_ETIMEOUT);
    sequences[i] = reply.sequence;
    CHECK(sequences[i] != 0);
  }
  int seen[LATE] = {0};
  for (int i = 0; i <= LATE; i++) {
    if (i == LATE) notes[41] = 1; /* the others have left the queue, though no helper is free */
    shm_reply_t reply = drain_one();
    for (int k = 0; k < LATE; k++) {
      if (reply.sequence != sequences[k]) continue;
      CHECK_EQ(reply.status, SHM_ETIMEOUT);
      CHECK_EQ(seen[k]++, 0);
      CHECK_EQ(blocks[k]->runs, 0); /* never handed to a helper */
    }
  }
  for (int k = 0; k < LATE; k++) CHECK_EQ(seen[k], 1);
  /* With the helper idle the broker is often the first to look. */
  for (int i = 0; i < 200; i++) {
    shm_reply_t reply;
    int status = call_row(blocks[0], (uint64_t)harness_now_ns() - 1, &reply);
    CHECK_EQ(status, SHM_ETIMEOUT);
    uint64_t sequence = reply.sequence;
    CHECK_EQ(drain_one().sequence, sequence);
  }
  expect_no_more_replies();
  return 0;
}

TEST(a_call_that_expires_in_the_queue_never_runs_and_is_reported_once) {
  open_here(1, 1);
  launch_well(expires_while_queued);
}

static int submits_late(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 5), *late = block_new(ADD_ONE, 1);
  waiting->note = 40;
  submit_row(waiting, 0);
  AWAIT(notes[40] == 1);
  uint64_t sequence = submit_row(late, in_ms(5));
  int64_t until = harness_now_ns() + 10000000;
  AWAIT(harness_now_ns() > until);
  notes[41] = 1;
  drain_one();
  shm_reply_t reply = drain_one();
  CHECK_EQ(reply.sequence, sequence);
  CHECK_EQ(reply.status, SHM_ETIMEOUT);
  CHECK_EQ(late->runs, 0);
  expect_no_more_replies();
  return 0;
}

TEST(a_submitted_call_that_expires_is_answered_once) {
  open_here(1, 1);
  launch_well(submits_late);
}

/* ---- blocks of calls that timed out ---- */

static uint64_t live_blocks(void) {
  shm_arena_stats_t stats;
  CHECK_EQ(shm_get_arena_stats(&stats), SHM_OK);
  return stats.live_blocks;
}
/* shm_free of anything settles what has come: until then the block is alive. */
static int blocks_alive_now(void) {
  shm_free(NULL);
  return (int)live_blocks();
}

enum { LATE_NS = 200000000 }; /* begun by then, on a busy machine, too */

static int frees_a_late_block(int child) {
  (void)child;
  echo_t *gate = echo_new(1), *other = echo_new(2);
  gate->note = 50;
  shm_msg_t msg = {fn_gate, gate};
  CHECK_EQ(shm_call(&msg, LATE_NS), SHM_ETIMEOUT);
  AWAIT(notes[50] == 1);
  CHECK_EQ(shm_free(gate), SHM_OK);
  CHECK_EQ(live_blocks(), 2);          /* the helper may still write to it */
  CHECK_EQ(shm_free(gate), SHM_EBAD_FREE); /* it is freed already, as far as its owner goes */
  CHECK_EQ(shm_free((char *)gate + 8), SHM_EBAD_FREE);
  CHECK_EQ(live_blocks(), 2);
  CHECK_EQ(shm_free(other), SHM_OK);
  notes[51] = 1;
  AWAIT(blocks_alive_now() == 0);
  CHECK_EQ(shm_free(gate), SHM_EBAD_FREE);
  return 0;
}

TEST(a_block_freed_after_a_timeout_is_free_at_the_late_answer) {
  broker_open(1, 1);
  launch_well(frees_a_late_block);
}

static int resizes_a_late_block(int child) {
  (void)child;
  echo_t *gate = echo_new(7);
  gate->note = 50;
  shm_msg_t msg = {fn_gate, gate};
  CHECK_EQ(shm_call(&msg, LATE_NS), SHM_ETIMEOUT);
  AWAIT(notes[50] == 1);
  echo_t *moved = shm_realloc(gate, sizeof *gate);
  CHECK(moved != NULL && moved != gate);
  CHECK_EQ(moved->in, 7);
  CHECK_EQ(live_blocks(), 2);
  notes[51] = 1;
  AWAIT(blocks_alive_now() == 1);
  CHECK_EQ(shm_free(moved), SHM_OK);
  CHECK_EQ(live_blocks(), 0);
  return 0;
}

TEST(a_block_resized_after_a_timeout_moves_and_the_old_one_stays) {
  broker_open(1, 1);
  launch_well(resizes_a_late_block);
}

static int two_late_calls_on_one_block(int child) {
  (void)child;
  echo_t *gate = echo_new(7);
  shm_msg_t msg = {fn_gate, gate};
  gate->note = 50;
  CHECK_EQ(shm_call(&msg, LATE_NS), SHM_ETIMEOUT);
  AWAIT(notes[50] == 1);
  gate->note = 52;
  CHECK_EQ(shm_call(&msg, LATE_NS), SHM_ETIMEOUT);
  AWAIT(notes[52] == 1); /* on the other helper */
  CHECK_EQ(shm_free(gate), SHM_OK);
  notes[51] = 1;
  shm_broker_stats_t stats;
  AWAIT(shm_get_broker_stats(&stats) == SHM_OK && stats.answered >= 1);
  expect_service();
  CHECK_EQ(blocks_alive_now(), 1);
  notes[53] = 1;
  AWAIT(blocks_alive_now() == 0);
  return 0;
}

TEST(a_block_of_two_late_calls_is_free_after_the_last) {
  broker_open(1, 2);
  launch_well(two_late_calls_on_one_block);
}

static int late_calls_beside_submits(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 1);
  waiting->note = 50;
  shm_msg_t msg = {(shm_func_t)(uintptr_t)row, waiting};
  CHECK_EQ(shm_call(&msg, LATE_NS), SHM_ETIMEOUT);
  uint64_t sequences[3];
  for (int i = 0; i < 3; i++) sequences[i] = submit_row(block_new(ADD_ONE, 1), 0);
  notes[51] = 1;
  shm_broker_stats_t stats;
  AWAIT(shm_get_broker_stats(&stats) == SHM_OK && stats.answered == 4);
  CHECK_EQ(shm_free(waiting), SHM_OK);
  AWAIT(blocks_alive_now() == 3);
  for (int i = 0; i < 3; i++) CHECK_EQ(drain_one().sequence, sequences[i]);
  expect_no_more_replies();
  return 0;
}

TEST(settling_late_calls_takes_no_reply_of_a_submitted_one) {
  open_here(1, 1);
  launch_well(late_calls_beside_submits);
}

/* ---- cancelling and abandoning ---- */

static int cancels(int child) {
  (void)child;
  block_t *waiting = block_new(WAIT, 5), *second = block_new(ADD_ONE, 1),
          *third = block_new(ADD_ONE, 1);
  waiting->note = 60;
  uint64_t running = submit_row(waiting, 0);
  AWAIT(notes[60] == 1);
  uint64_t queued = submit_row(second, 0), last = submit_row(third, 0);
  CHECK_EQ(shm_port_cancel(queued), SHM_OK);
  shm_reply_t reply = drain_one();
  CHECK_EQ(reply.sequence, queued);
  CHECK_EQ(reply.status, SHM_ECANCELLED);
  CHECK_EQ(shm_port_cancel(running), SHM_OK); /* too late: it ends as it ends */
  CHECK_EQ(shm_port_cancel(queued), SHM_EBAD_FRAME);
  CHECK_EQ(shm_port_cancel(12345), SHM_EBAD_FRAME);
  notes[61] = 1;
  reply = drain_one();
  CHECK_EQ(reply.sequence, running);
  CHECK_EQ(reply.status, SHM_OK);
  CHECK_EQ(drain_one().sequence, last);
  CHECK_EQ(second->runs, 0);
  CHECK_EQ(third->runs, 1);
  CHECK_EQ(waiting->out, 6);
  expect_no_more_replies();
  return 0;
}

TEST(cancelling_removes_queued_work_and_only_that) {
  open_here(1, 1);
  launch_well(cancels);
}

static _Atomic int interrupts; /* lock-free, so that a handler may raise it */
static void on_interrupt(int number) {
  (void)number;
  interrupts++;
}
static void *interrupts_until_seen(void *target) {
  pthread_t thread = *(pthread_t *)target;
  int before = interrupts;
  while (notes[62] == 0 && interrupts < before + 200) {
    pthread_kill(thread, SIGUSR1);
    harness_sleep_ms(2);
  }
  return NULL;
}

static int is_interrupted(int child) {
  (void)child;
  struct sigaction action = {.sa_handler = on_interrupt};
  CHECK_SYS(sigaction(SIGUSR1, &action, NULL));
  pthread_t thread, self = pthread_self();
  shm_reply_t reply;
  block_t *waiting = block_new(WAIT, 5);
  waiting->note = 60;
  CHECK_EQ(pthread_create(&thread, NULL, interrupts_until_seen, &self), 0);
  CHECK_EQ(call_row(waiting, 0, &reply), SHM_EINTR);
  notes[62] = 1;
  pthread_join(thread, NULL);
  uint64_t sequence = reply.sequence;
  CHECK(sequence != 0);
  notes[61] = 1;
  int status;
  while ((status = shm_port_wait(sequence, 0, &reply)) == SHM_EINTR) {
  }
  CHECK_EQ(status, SHM_OK);
  CHECK_EQ(waiting->out, 6);
  CHECK_EQ(waiting->runs, 1);
  CHECK_EQ(shm_port_wait(sequence, 0, &reply), SHM_EBAD_FRAME); /* it is over */
  /* Abandoned instead: its reply comes late. */
  notes[60] = notes[61] = notes[62] = 0;
  CHECK_EQ(pthread_create(&thread, NULL, interrupts_until_seen, &self), 0);
  CHECK_EQ(call_row(waiting, 0, &reply), SHM_EINTR);
  notes[62] = 1;
  pthread_join(thread, NULL);
  CHECK_EQ(shm_port_abandon(reply.sequence), SHM_OK);
  CHECK_EQ(shm_port_wait(reply.sequence, 0, &reply), SHM_EBAD_FRAME);
  notes[61] = 1;
  CHECK_EQ(drain_one().status, SHM_OK);
  CHECK_EQ(waiting->runs, 2);
  expect_no_more_replies();
  return 0;
}

TEST(a_signal_interrupts_a_call_which_can_be_resumed_or_abandoned) {
  open_here(1, 1);
  launch_well(is_interrupted);
}

static int interrupts_are_invisible(int child) {
  (void)child;
  struct sigaction action = {.sa_handler = on_interrupt};
  CHECK_SYS(sigaction(SIGUSR1, &action, NULL));
  pthread_t thread, self = pthread_self();
  CHECK_EQ(pthread_create(&thread, NULL, interrupts_until_seen, &self), 0);
  for (int i = 0; i < 100 || interrupts < 20; i++) {
    echo_t *echo = echo_new(3);
    shm_msg_t msg = {fn_add_one, echo};
    if (i % 2 == 0) {
      CHECK_EQ(shm_call(&msg, -1), SHM_OK);
    } else {
      CHECK_EQ(shm_send_msg(&msg), SHM_OK);
      CHECK_EQ(shm_read_msg(&msg), SHM_OK);
    }
    CHECK_EQ(echo->out, 4);
    CHECK_EQ(shm_free(echo), SHM_OK);
  }
  notes[62] = 1;
  pthread_join(thread, NULL);
  return 0;
}

TEST(the_talks_calls_hide_interruptions) {
  broker_open(1, 1);
  launch_well(interrupts_are_invisible);
}

/* ---- growing results ---- */

static int grows(int child) {
  (void)child;
  shm_reply_t reply;
  for (int i = 0; i < 20; i++) {
    block_t *small = block_new(PARK, (uint64_t)i), *large = block_new(i % 2 ? PARK : PARK_TWICE, 0);
    CHECK_EQ(call_row(small, 0, &reply), SHM_ENEEDS_SPACE);
    CHECK_EQ(reply.value, sizeof(block_t));
    uint64_t sequence = reply.sequence;
    CHECK_EQ(shm_port_outstanding(), 1); /* it is the same call, and still out */
    CHECK_EQ(shm_port_grow(sequence, reply.token, at(large)), SHM_OK);
    int status = shm_port_wait(sequence, 0, &reply);
    if (i % 2 == 0) {
      CHECK_EQ(status, SHM_ENEEDS_SPACE); /* still too small: once more */
      CHECK_EQ(shm_port_grow(sequence, reply.token, at(large)), SHM_OK);
      status = shm_port_wait(sequence, 0, &reply);
    }
    CHECK_EQ(status, SHM_OK);
    CHECK_EQ(large->out, (uint64_t)i + 1);
    CHECK_EQ(small->runs, 1); /* the function never runs twice */
    CHECK_EQ(shm_port_grow(sequence, reply.token, at(large)), SHM_EBAD_FRAME);
    CHECK_EQ(shm_free(small), SHM_OK);
    CHECK_EQ(shm_free(large), SHM_OK);
  }
  expect_no_more_replies();
  return 0;
}

TEST(a_parked_result_lands_where_there_is_room) {
  open_here(2, 2);
  launch_well(grows);
  CHECK_EQ(notes[1], 0);
}

static int offers_late(int child) {
  (void)child;
  block_t *small = block_new(PARK, 7), *stale = block_new(PARK_TWICE, 0), *large = block_new(PARK, 0);
  uint64_t sequence = submit_row(small, 0);
  shm_reply_t first = drain_one();
  CHECK_EQ(first.status, SHM_ENEEDS_SPACE);
  CHECK_EQ(shm_port_grow(sequence, first.token, at(stale)), SHM_OK);
  shm_reply_t again = drain_one(); /* still too small: it asks once more, the same helper */
  CHECK_EQ(again.status, SHM_ENEEDS_SPACE);
  CHECK_EQ(again.sequence, sequence);
  CHECK_EQ(shm_port_grow(sequence, first.token, at(stale)), SHM_EBAD_FRAME); /* by another thread */
  CHECK_EQ(shm_port_grow(sequence, again.token, at(large)), SHM_OK);
  CHECK_EQ(drain_one().status, SHM_OK);
  CHECK_EQ(large->out, 8);
  CHECK_EQ(stale->out, 0);
  expect_no_more_replies();
  return 0;
}

TEST(room_that_is_offered_late_is_not_taken_for_what_is_asked_since) {
  open_here(1, 1);
  launch_well(offers_late);
}

static int grows_submitted(int child) {
  (void)child;
  enum { MANY = 4 };
  block_t *small[MANY], *large[MANY];
  uint64_t sequences[MANY];
  CHECK_EQ(shm_port_window(), MANY);
  for (int i = 0; i < MANY; i++) {
    small[i] = block_new(PARK, (uint64_t)i);
    large[i] = block_new(PARK, 0);
    sequences[i] = submit_row(small[i], 0);
  }
  int over = 0;
  while (over < MANY) { /* with the window full of calls that wait for room */
    shm_reply_t reply = drain_one();
    int i = 0;
    while (i < MANY && sequences[i] != reply.sequence) i++;
    CHECK(i < MANY);
    if (reply.status == SHM_ENEEDS_SPACE) {
      uint64_t room = i == 2 ? 0 : at(large[i]); /* one is not wanted any more */
      CHECK_EQ(shm_port_grow(reply.sequence, reply.token, room), SHM_OK);
    } else {
      CHECK_EQ(reply.status, SHM_OK);
      if (i != 2) CHECK_EQ(large[i]->out, (uint64_t)i + 1);
      CHECK_EQ(small[i]->runs, 1);
      over++;
    }
  }
  CHECK_EQ(notes[1], 0);
  expect_no_more_replies();
  return 0;
}

TEST(parked_results_of_submitted_calls_come_out_of_drain_twice) {
  open_here(1, 1);
  config.window = 4;
  launch_well(grows_submitted);
}

static int grows_badly(int child) {
  (void)child;
  shm_reply_t reply;
  block_t *small = block_new(PARK, 3), *large = block_new(PARK, 0);
  uint64_t bad[] = {4, at(large) + 4, shm_arena_base(0) - 8,
                    shm_arena_base(0) + shm_arena_bytes() - 4, 1 << 20};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    CHECK_EQ(call_row(small, 0, &reply), SHM_ENEEDS_SPACE);
    uint64_t sequence = reply.sequence;
    CHECK_EQ(shm_port_grow(sequence, reply.token, bad[i]), SHM_OK);
    CHECK_EQ(shm_port_wait(sequence, 0, &reply), SHM_EBAD_PARAMS);
    notes[1] = 0;
  }
  CHECK_EQ(call_row(small, 0, &reply), SHM_ENEEDS_SPACE);
  uint64_t sequence = reply.sequence;
  large->bytes = UINT32_MAX; /* longer than the arena */
  CHECK_EQ(shm_port_grow(sequence, reply.token, at(large)), SHM_OK);
  CHECK_EQ(shm_port_wait(sequence, 0, &reply), SHM_EBAD_PARAMS);
  large->bytes = sizeof *large;
  CHECK_EQ(call_row(small, 0, &reply), SHM_ENEEDS_SPACE);
  CHECK_EQ(shm_port_abandon(reply.sequence), SHM_OK); /* its result is dropped */
  CHECK_EQ(drain_one().sequence, reply.sequence);
  expect_no_more_replies();
  return 0;
}

TEST(forged_room_is_refused_and_an_abandoned_result_is_dropped) {
  open_here(1, 1);
  launch_well(grows_badly);
}

static int grows_after_death(int child) {
  (void)child;
  shm_reply_t reply, other;
  block_t *small = block_new(PARK, 3), *large = block_new(PARK, 0), *deadly = block_new(DIE, 0);
  CHECK_EQ(call_row(small, 0, &reply), SHM_ENEEDS_SPACE);
  CHECK_EQ(call_row(deadly, 0, &other), SHM_EHELPER_DIED);
  expect_row_works(); /* by the one that took its place */
  CHECK_EQ(shm_port_grow(reply.sequence, reply.token, at(large)), SHM_OK);
  CHECK_EQ(shm_port_wait(reply.sequence, 0, &reply), SHM_EHELPER_DIED);
  CHECK_EQ(large->out, 0);
  expect_no_more_replies();
  return 0;
}

TEST(a_parked_result_dies_with_its_helper) {
  open_here(1, 1);
  launch_well(grows_after_death);
}

/* ---- batches, through real processes ---- */

static int makes_batches(int child) {
  enum { EACH = 16 };
  block_t *blocks[EACH], *waiting = block_new(WAIT, 1);
  shm_call_config_t batched = {.function = batched_row, .batch_key = 99, .rows = 1};
  waiting->note = 70;
  shm_reply_t reply;
  if (child == 0) submit_row(waiting, 0);
  AWAIT(notes[70] == 1);
  for (int i = 0; i < EACH; i++) {
    uint64_t sequence;
    blocks[i] = block_new(ADD_ONE, (uint64_t)(child * 100 + i));
    CHECK_EQ(shm_port_submit(&batched, at(blocks[i]), 0, 0, &sequence), SHM_OK);
  }
  if (child == 0) {
    shm_broker_stats_t stats;
    AWAIT(shm_get_broker_stats(&stats) == SHM_OK && stats.submitted == 1 + 2 * EACH);
    notes[71] = 1;
    drain_one();
  }
  for (int i = 0; i < EACH; i++) CHECK_EQ(drain_one().status, SHM_OK);
  for (int i = 0; i < EACH; i++) {
    CHECK_EQ(blocks[i]->out, (uint64_t)(child * 100 + i + 1));
    CHECK_EQ(blocks[i]->runs, 1);
    CHECK_EQ(blocks[i]->batch, 8);
  }
  CHECK_EQ(shm_port_drain(&reply, 1, 0), 0);
  return 0;
}

TEST(queued_messages_of_one_key_arrive_together) {
  open_here(2, 1);
  launch_well(makes_batches);
}

/* ---- work that goes on after its answer ---- */

static shm_helper_stats_t helper_now(void) {
  shm_helper_stats_t stats;
  CHECK_EQ(shm_get_helper_stats(0, &stats), SHM_OK);
  return stats;
}

static void expect_answer_and_more(uint64_t function, uint64_t note) {
  shm_call_config_t plain = {.function = function, .rows = 1};
  shm_reply_t reply;
  block_t *block = block_new(GO_ON, 4);
  block->note = note;
  CHECK_EQ(shm_port_call(&plain, at(block), 0, &reply), SHM_OK);
  CHECK_EQ(block->out, 5);
  CHECK_EQ(shm_free(block), SHM_OK);
}

static int is_answered_early(int child) {
  (void)child;
  expect_answer_and_more(row, 80);
  CHECK_EQ(helper_now().goes_on, 1); /* whoever has the answer can see that */
  CHECK_EQ(helper_now().went_on, 0);
  uint64_t busy_ns = helper_now().busy_ns;
  uint64_t sequence = submit_row(block_new(ADD_ONE, 1), 0);
  AWAIT(notes[80] == 1);
  harness_sleep_ms(20);
  shm_reply_t reply;
  CHECK_EQ(shm_port_drain(&reply, 1, 0), 0); /* one thing at a time */
  notes[81] = 1;
  CHECK_EQ(drain_one().sequence, sequence);
  CHECK_EQ(helper_now().goes_on, 0);
  CHECK_EQ(helper_now().went_on, 1);
  CHECK(helper_now().busy_ns - busy_ns >= 20000000);
  expect_no_more_replies();
  return 0;
}

TEST(a_call_can_be_answered_before_its_work_is_over) {
  open_here(1, 1);
  launch_well(is_answered_early);
}

static int dies_after_its_answer(int child) {
  (void)child;
  expect_answer_and_more(row, 80);
  block_t *waits = block_new(ADD_ONE, 1);
  uint64_t sequence = submit_row(waits, 0);
  notes[81] = 2;
  shm_reply_t reply = drain_one();
  CHECK_EQ(reply.sequence, sequence);
  CHECK_EQ(reply.status, SHM_OK); /* by the replacement: it had not been begun */
  CHECK_EQ(waits->runs, 1);
  CHECK_EQ(helper_now().generation, 2);
  CHECK_EQ(helper_now().goes_on, 0);
  expect_no_more_replies();
  return 0;
}

TEST(a_death_after_the_answer_costs_no_call) {
  open_here(1, 1);
  launch_well(dies_after_its_answer);
}

static int hangs_after_its_answer(int child) {
  (void)child;
  expect_answer_and_more(impatient_row, 80);
  AWAIT(helper_now().deaths == 1 && helper_now().generation == 2);
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.helper_hangs, 1);
  expect_no_more_replies();
  return 0;
}

TEST_WITHIN(work_that_goes_on_for_too_long_ends_its_helper, 20) {
  open_here(1, 1);
  launch_well(hangs_after_its_answer);
}

/* ---- gangs ---- */

/* Every member waits for the others: would hang at once if two gangs came in different order. */
static void serve_gang(const shm_work_t *work) {
  block_t *block = (block_t *)(uintptr_t)work->params;
  int members = __builtin_popcountll(work->members);
  CHECK((work->members >> shm_get_helper_id() & 1) != 0);
  __atomic_add_fetch(&block->runs, 1, __ATOMIC_ACQ_REL);
  if (block->kind == DIE && shm_get_helper_id() == 1) kill(getpid(), SIGKILL);
  if (block->kind == FAIL && shm_get_helper_id() == 1) {
    CHECK_EQ(shm_helper_finish(work->delivery, SHM_EREMOTE, 77), SHM_OK);
    return;
  }
  if (block->kind == WAIT)
    AWAIT(__atomic_load_n(&block->runs, __ATOMIC_ACQUIRE) == (uint64_t)members);
  CHECK_EQ(shm_helper_finish(work->delivery, SHM_OK, (uint64_t)shm_get_helper_id()), SHM_OK);
}

static int run_gang_helper(int helper, uint32_t generation) {
  (void)helper;
  (void)generation;
  static shm_work_t works[SHM_MAX_BATCH];
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_OK);
  for (;;) {
    int count = shm_helper_take(works, SHM_MAX_BATCH, -1);
    if (count == SHM_EINTR) continue;
    if (count == SHM_ESTOPPED) return 0;
    for (int i = 0; i < count; i++) {
      if (works[i].members != 0) serve_gang(&works[i]);
      else serve_one(&works[i], count);
    }
  }
}

/* A table in front of the one block that all members are given. */
static int call_gang(block_t *block, uint64_t helpers, shm_reply_t *reply) {
  shm_call_config_t gang = {.function = row, .rows = 1, .placement = helpers, .gang = 1};
  int members = __builtin_popcountll(helpers);
  size_t table_bytes = (sizeof(shm_gang_block_t) + (size_t)members * 4 + 7) & ~(size_t)7;
  shm_gang_block_t *table = shm_malloc(table_bytes + sizeof *block);
  CHECK(table != NULL);
  block_t *inside = (block_t *)(void *)((char *)table + table_bytes);
  *table = (shm_gang_block_t){.bytes = (uint32_t)(table_bytes + sizeof *block), .version = 1,
                              .members = (uint16_t)members, .mask = helpers};
  for (int i = 0; i < members; i++) table->offsets[i] = (uint32_t)table_bytes;
  *inside = *block;
  int status = shm_port_call(&gang, at(table), 0, reply);
  *block = *inside;
  CHECK_EQ(shm_free(table), SHM_OK);
  return status;
}

static int makes_gangs(int child) {
  static const uint64_t masks[] = {7, 3, 6, 5, 1};
  shm_reply_t reply;
  for (int i = 0; i < 60; i++) {
    uint64_t mask = masks[(child + i) % 5];
    block_t *block = block_new(WAIT, 1);
    CHECK_EQ(call_gang(block, mask, &reply), SHM_OK);
    CHECK_EQ(block->runs, (uint64_t)__builtin_popcountll(mask));
    CHECK_EQ(reply.value, (uint64_t)__builtin_ctzll(mask)); /* its first helper's */
    CHECK_EQ(shm_free(block), SHM_OK);
    expect_row_works();
  }
  block_t *block = block_new(WAIT, 1);
  CHECK_EQ(call_gang(block, 0, &reply), SHM_EPLACEMENT);
  CHECK_EQ(call_gang(block, 8, &reply), SHM_EPLACEMENT);
  CHECK_EQ(call_gang(block, 9, &reply), SHM_EPLACEMENT); /* all it names, or none */
  CHECK_EQ(block->runs, 0);
  expect_no_more_replies();
  return 0;
}

TEST_WITHIN(gangs_of_many_children_run_on_all_their_helpers_and_never_wait_for_each_other, 20) {
  open_here(4, 3);
  host.run_helper = run_gang_helper;
  launch_well(makes_gangs);
}

static int gangs_that_fail(int child) {
  (void)child;
  shm_reply_t reply;
  block_t *block = block_new(FAIL, 1);
  CHECK_EQ(call_gang(block, 3, &reply), SHM_EREMOTE);
  CHECK_EQ(reply.value, 77);
  CHECK_EQ(reply.helper, 1); /* who failed */
  CHECK_EQ(reply.gang, SHM_GANG_ABORTED);
  CHECK(block->runs == 1 || block->runs == 2); /* the other one need not have begun */
  block->kind = DIE;
  block->runs = 0;
  CHECK_EQ(call_gang(block, 3, &reply), SHM_EHELPER_DIED);
  CHECK_EQ(reply.helper, 1);
  CHECK_EQ(reply.gang, SHM_GANG_ABORTED);
  CHECK(block->runs == 1 || block->runs == 2); /* not once more on the one that lives */
  block->kind = WAIT;
  block->runs = 0;
  CHECK_EQ(call_gang(block, 3, &reply), SHM_OK); /* with the replacement */
  CHECK_EQ(reply.gang, SHM_GANG_COMMITTED);
  CHECK_EQ(block->runs, 2);
  expect_no_more_replies();
  return 0;
}

TEST(a_gang_fails_as_one_and_is_never_run_by_halves) {
  open_here(1, 2);
  host.run_helper = run_gang_helper;
  launch_well(gangs_that_fail);
}

/* ---- hosts with signal handlers ---- */

static int on_signal_does_nothing(void) { return 0; }

static int waits_with_handlers(int child) {
  (void)child;
  shm_reply_t reply;
  block_t *block = block_new(WAIT, 1);
  block->note = 200;
  /* No signal comes: the wait ends all the same, or a handler that ran just before it would have to
   * wait for the call's end. */
  CHECK_EQ(call_row(block, 0, &reply), SHM_EINTR);
  CHECK_EQ(shm_port_wait(reply.sequence, 0, &reply), SHM_EINTR);
  CHECK_EQ(shm_port_wait(reply.sequence, (uint64_t)harness_now_ns() + 10000000, &reply),
           SHM_ETIMEOUT); /* a deadline is a deadline */
  notes[201] = 1;
  return 0;
}

TEST(a_host_with_signal_handlers_is_let_look_while_it_waits) {
  open_here(1, 1);
  host.on_signal = on_signal_does_nothing;
  launch_well(waits_with_handlers);
}

/* ---- leaving while threads wait ---- */

static void *waits_for_ever(void *number) {
  (void)number;
  shm_reply_t reply;
  block_t *block = block_new(WAIT, 1);
  block->note = 200;
  int status = call_row(block, 0, &reply);
  while (status == SHM_EINTR) status = shm_port_wait(reply.sequence, 0, &reply);
  return (void *)(intptr_t)(status == SHM_ENOT_RUNNING || status == SHM_ENOT_CHILD ? 0 : 1);
}

TEST(threads_that_wait_are_turned_out_when_their_process_leaves) {
  open_here(1, 2);
  config.caller_is_child = 1;
  config.grace_ns = 50000000;
  host.on_signal = on_signal_does_nothing;
  CHECK_EQ(shm_run(&config, &host), SHM_OK);
  pthread_t threads[THREADS];
  uint64_t numbers[THREADS];
  threads_run(waits_for_ever, threads, numbers);
  AWAIT(notes[200] == 2 && shm_port_outstanding() == THREADS); /* a helper each, the rest queued */
  CHECK_EQ(shm_leave(), SHM_OK);
  for (int i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    CHECK(failed == NULL);
  }
}

/* ---- watching for the answer ---- */

static int dies_with_calls_out(int child) {
  if (child == 1) {
    if (notes[60]++ > 0) return 0; /* its second life */
    for (int i = 0; i < 3; i++) {
      block_t *waiting = block_new(WAIT, (uint64_t)i);
      waiting->note = 62;
      submit_row(waiting, 0);
    }
    AWAIT(notes[62] == 1);
    _exit(1);
  }
  shm_broker_stats_t stats;
  AWAIT(shm_get_broker_stats(&stats) == SHM_OK && stats.child_deaths == 1);
  CHECK(shmi_scoreboard_calls_out() > 0); /* its helper is at one of them still */
  notes[63] = 1;
  AWAIT(shmi_scoreboard_calls_out() == 0);
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.dropped, 3);
  expect_row_works();
  CHECK_EQ(shmi_scoreboard_calls_out(), 0);
  return 0;
}

TEST(calls_that_a_child_left_behind_are_not_out_for_ever) {
  open_here(2, 1);
  config.restart = SHM_RESTART_ON_FAILURE;
  launch_well(dies_with_calls_out);
}

/* ---- threads of one port, whose broker the test plays ---- */

static struct pipes {
  int requests[2], replies[2];
} broker_side;

static void open_port(uint32_t window) {
  int capacity;
  CHECK_EQ(shmi_pipe_make(broker_side.requests, 0, &capacity), SHM_OK);
  CHECK_EQ(shmi_pipe_make(broker_side.replies, 0, &capacity), SHM_OK);
  CHECK_EQ(shmi_port_open(broker_side.requests[1], broker_side.replies[0], window, 0), SHM_OK);
}
static void open_lone_port(uint32_t window) {
  shmi_arena_plan_t plan = {.children = 1, .arena_bytes = 4096, .helpers = 1};
  CHECK_EQ(shmi_scoreboard_create(1, 1, 0), SHM_OK);
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  open_port(window);
}
static void close_lone_port(void) {
  shmi_port_close();
  shmi_descriptor_close(&broker_side.requests[0]);
  shmi_descriptor_close(&broker_side.replies[1]);
  shmi_arena_destroy();
  shmi_scoreboard_destroy();
}
static shmi_frame_t next_request(void) {
  shmi_frame_t frame;
  CHECK_EQ(shmi_pipe_read(broker_side.requests[0], &frame, 1), 1);
  return frame;
}
static shmi_frame_t answer_to(const shmi_frame_t *request, int status) {
  return (shmi_frame_t){.sequence = request->sequence, .kind = SHMI_FRAME_REPLY,
                        .status = shmi_status_to_wire(status)};
}
static void answer(const shmi_frame_t *request) {
  shmi_frame_t frame = answer_to(request, SHM_OK);
  CHECK_EQ(shmi_pipe_write(broker_side.replies[1], &frame, 1), 1);
}
static shmi_frame_t submit_one(void) {
  shm_call_config_t plain = {.rows = 1};
  uint64_t sequence;
  CHECK_EQ(shm_port_submit(&plain, 0, 0, 0, &sequence), SHM_OK);
  return next_request();
}

static void *calls_once(void *ignored) {
  (void)ignored;
  shm_call_config_t plain = {.rows = 1};
  shm_reply_t reply;
  return (void *)(intptr_t)shm_port_call(&plain, 0, 0, &reply);
}
static void *drains_once(void *ignored) {
  (void)ignored;
  shm_reply_t reply;
  return (void *)(intptr_t)shm_port_drain(&reply, 1, -1);
}
static void *sends_and_receives(void *ignored) {
  (void)ignored;
  shm_msg_t msg = {0};
  int status = SHM_EREMOTE;
  CHECK_EQ(shmi_port_send(&msg, 1, 1), 1);
  CHECK_EQ(shmi_port_receive(&msg, &status, 1), 1);
  return (void *)(intptr_t)status;
}
static pthread_t begin_thread(void *(*body)(void *)) {
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, body, NULL), 0);
  return thread;
}
static int end_of(pthread_t thread) {
  void *result;
  pthread_join(thread, &result);
  return (int)(intptr_t)result;
}
static bool all_others_sleep(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  bool do_sleep = true;
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
    char path[300], stat[300] = "";
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == gettid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
    FILE *file = fopen(path, "r");
    if (file == NULL) continue; /* it has ended */
    size_t length = fread(stat, 1, sizeof stat - 1, file);
    fclose(file);
    stat[length] = '\0';
    const char *state = strrchr(stat, ')');
    do_sleep = do_sleep && state != NULL && state[2] == 'S';
  }
  closedir(tasks);
  return do_sleep;
}

/* On a busy machine threads may begin late. Whoever waits for something else sleeps for a moment, too. */
static void until_they_sleep(void) {
  for (int seen = 0, looks = 0; seen < 5 && looks < 1000; looks++) {
    seen = all_others_sleep() ? seen + 1 : 0;
    harness_sleep_ms(4);
  }
}

/* Of the address sanitizer, where there is one: what is allocated in between is never a leak. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

TEST(a_thread_that_was_left_behind_changes_nothing_where_the_next_calls_are) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((unsigned)sched_getcpu(), &one);
  CHECK_SYS(sched_setaffinity(0, sizeof one, &one)); /* nobody watches: they sleep in the read */
  if (__lsan_disable != NULL) __lsan_disable(); /* the table of calls stays with that thread */
  open_lone_port(4);
  if (__lsan_enable != NULL) __lsan_enable();
  pthread_t left_behind = begin_thread(calls_once);
  next_request();
  until_they_sleep();
  struct pipes old = broker_side;
  shmi_port_close(); /* nothing wakes it from its read */
  CHECK(fcntl(old.replies[0], F_GETFD) != -1); /* a read of that number is one of that pipe still */
  open_port(4);
  shmi_frame_t request = submit_one();
  shmi_descriptor_close(&old.requests[0]);
  shmi_descriptor_close(&old.replies[1]);
  CHECK_EQ(end_of(left_behind), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_port_is_lost(), 0);
  CHECK_EQ(shm_port_outstanding(), 1);
  answer(&request);
  CHECK_EQ(drain_one().status, SHM_OK);
  close_lone_port();
}

/* Calls that were interrupted, and whose replies were read by others meanwhile. */
static void leave_answers(shmi_frame_t requests[], int count) {
  struct sigaction action = {.sa_handler = on_interrupt};
  CHECK_SYS(sigaction(SIGALRM, &action, NULL));
  struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  shm_call_config_t plain = {.rows = 1};
  for (int i = 0; i < count; i++) {
    shm_reply_t reply;
    CHECK_SYS(setitimer(ITIMER_REAL, &often, NULL));
    CHECK_EQ(shm_port_call(&plain, 0, 0, &reply), SHM_EINTR);
    CHECK_SYS(setitimer(ITIMER_REAL, &never, NULL));
    requests[i] = next_request();
    CHECK_EQ(requests[i].sequence, reply.sequence);
    answer(&requests[i]);
    CHECK_EQ(shm_port_drain(&reply, 1, 0), 0);
    CHECK_EQ(shm_port_outstanding(), 0);
  }
}

TEST(a_call_waits_for_answers_that_others_have_not_taken_yet_where_they_fill_the_table) {
  enum { TABLE = 65 }; /* a window of one, and what is spare */
  static shmi_frame_t requests[TABLE];
  open_lone_port(1);
  leave_answers(requests, TABLE);
  shm_call_config_t plain = {.rows = 1};
  uint64_t sequence;
  CHECK_EQ(shm_port_submit(&plain, 0, 0, 0, &sequence), SHM_EAGAIN);
  pthread_t waits = begin_thread(calls_once);
  until_they_sleep();
  for (int i = 0; i < TABLE; i++) {
    shm_reply_t reply;
    CHECK_EQ(shm_port_wait(requests[i].sequence, 0, &reply), SHM_OK);
    if (i > 0) continue;
    shmi_frame_t request = next_request();
    answer(&request);
    CHECK_EQ(end_of(waits), SHM_OK);
  }
  close_lone_port();
}

TEST(whoever_was_to_read_for_others_and_has_its_answer_has_another_read) {
  open_lone_port(4);
  pthread_t leads = begin_thread(calls_once);
  shmi_frame_t call = next_request();
  until_they_sleep();
  pthread_t receives = begin_thread(sends_and_receives);
  shmi_frame_t message = next_request();
  shmi_frame_t queued = submit_one();
  until_they_sleep();
  pthread_t drains = begin_thread(drains_once);
  until_they_sleep();
  shmi_frame_t both[2] = {answer_to(&message, SHM_OK), answer_to(&call, SHM_OK)};
  CHECK_EQ(shmi_pipe_write(broker_side.replies[1], both, 2), 2);
  CHECK_EQ(end_of(leads), SHM_OK);
  CHECK_EQ(end_of(receives), SHM_OK);
  until_they_sleep();
  answer(&queued);
  CHECK_EQ(end_of(drains), 1);
  close_lone_port();
}

TEST(of_several_that_drain_none_sleeps_on_when_one_has_what_it_wanted) {
  open_lone_port(4);
  for (int round = 0; round < 5; round++) {
    shmi_frame_t first = submit_one(), second = submit_one();
    pthread_t leads = begin_thread(drains_once);
    until_they_sleep();
    pthread_t sleeps = begin_thread(drains_once);
    until_they_sleep();
    answer(&first);
    CHECK_EQ(end_of(leads), 1);
    until_they_sleep();
    answer(&second);
    CHECK_EQ(end_of(sleeps), 1);
  }
  close_lone_port();
}

TEST(a_call_that_waits_for_others_to_make_room_has_a_deadline) {
  open_lone_port(1);
  shmi_frame_t request = submit_one(), wants_room = answer_to(&request, SHM_ENEEDS_SPACE);
  CHECK_EQ(shmi_pipe_write(broker_side.replies[1], &wants_room, 1), 1);
  shm_msg_t msg = {0};
  CHECK_EQ(shm_call(&msg, 20000000), SHM_ETIMEOUT);
  CHECK_EQ(shm_port_take_growing(0).status, SHM_ENEEDS_SPACE);
  close_lone_port();
}

/* ---- the end of a submitted call, awaited by its caller ---- */

static uint64_t awaited[2];

static void *awaits_first(void *ignored) {
  (void)ignored;
  return (void *)(intptr_t)shm_port_await_end(0, awaited[0], 0);
}

static void *awaits_second(void *ignored) {
  (void)ignored;
  return (void *)(intptr_t)shm_port_await_end(0, awaited[1], 0);
}

TEST(threads_that_await_submitted_calls_each_hear_of_their_own_alone) {
  open_lone_port(4);
  shmi_frame_t first = submit_one(), second = submit_one(), other = submit_one();
  awaited[0] = first.sequence;
  awaited[1] = second.sequence;
  pthread_t leads = begin_thread(awaits_first);
  until_they_sleep();
  pthread_t follows = begin_thread(awaits_second);
  until_they_sleep();
  CHECK_EQ(shm_port_await_end(0, awaited[1], 0), SHM_EBAD_FRAME); /* somebody else does */
  answer(&other);
  answer(&second);
  CHECK_EQ(end_of(follows), SHM_OK);
  CHECK_EQ(shm_port_take_end_of(0, second.sequence).sequence, second.sequence);
  CHECK_EQ(shm_port_take_end_of(0, second.sequence).sequence, 0);
  CHECK_EQ(shm_port_await_end(0, second.sequence, 0), SHM_EBAD_FRAME);
  CHECK_EQ(shm_port_await_end(0, other.sequence, 0), SHM_OK); /* the first one's thread has read it */
  CHECK_EQ(drain_one().sequence, other.sequence);
  answer(&first);
  CHECK_EQ(end_of(leads), SHM_OK);
  CHECK_EQ(drain_one().sequence, first.sequence);
  CHECK_EQ(shm_port_outstanding(), 0);
  close_lone_port();
}

TEST(the_end_of_a_submitted_call_comes_to_who_drains_when_nobody_awaits_it_any_more) {
  open_lone_port(2);
  shmi_frame_t request = submit_one();
  CHECK_EQ(shm_port_await_end(0, request.sequence, 1), SHM_ETIMEOUT);
  pthread_t drains = begin_thread(drains_once);
  until_they_sleep();
  answer(&request);
  CHECK_EQ(end_of(drains), 1);
  close_lone_port();
}

TEST(a_submitted_call_that_is_awaited_asks_for_room_and_is_awaited_again) {
  open_lone_port(2);
  shmi_frame_t request = submit_one(), wants_room = answer_to(&request, SHM_ENEEDS_SPACE);
  CHECK_EQ(shmi_pipe_write(broker_side.replies[1], &wants_room, 1), 1);
  CHECK_EQ(shm_port_await_end(0, request.sequence, 0), SHM_ENEEDS_SPACE);
  CHECK_EQ(shm_port_await_end(0, request.sequence, 0), SHM_ENEEDS_SPACE); /* nobody has served it */
  shm_reply_t asks = shm_port_take_growing(0);
  CHECK_EQ(shm_port_await_end(0, request.sequence, 0), SHM_EBAD_FRAME); /* somebody is at it */
  CHECK_EQ(shm_port_grow(request.sequence, asks.token, 0), SHM_OK);
  CHECK_EQ(next_request().kind, SHMI_FRAME_GROW);
  answer(&request);
  CHECK_EQ(shm_port_await_end(0, request.sequence, 0), SHM_OK);
  CHECK_EQ(drain_one().status, SHM_OK);
  close_lone_port();
}

/* ---- the same, beside something else ---- */

TEST(a_wait_beside_a_descriptor_ends_where_that_is_readable_and_no_reply_is) {
  open_lone_port(2);
  int beside[2];
  shm_reply_t reply;
  CHECK_EQ(pipe(beside), 0);
  shmi_frame_t request = submit_one();
  uint64_t soon = shmi_clock_ns() + 5000000;
  CHECK_EQ(shm_port_await_reply(0, request.sequence, soon, beside[0], &reply), SHM_ETIMEOUT);
  CHECK_EQ(write(beside[1], "x", 1), 1);
  CHECK_EQ(shm_port_await_reply(0, request.sequence, 0, beside[0], &reply), SHM_EINTR);
  answer(&request);
  CHECK_EQ(shm_port_await_reply(0, request.sequence, 0, beside[0], &reply), SHM_OK);
  CHECK_EQ(reply.sequence, request.sequence);
  CHECK_EQ(shm_port_outstanding(), 0);
  close(beside[0]);
  close(beside[1]);
  close_lone_port();
}

TEST(nobody_who_watches_a_descriptor_follows_another_thread) {
  open_lone_port(2);
  int beside[2];
  shm_reply_t reply;
  CHECK_EQ(pipe(beside), 0);
  shmi_frame_t first = submit_one(), second = submit_one();
  awaited[0] = first.sequence;
  pthread_t leads = begin_thread(awaits_first);
  until_they_sleep();
  CHECK_EQ(shm_port_await_reply(0, second.sequence, 0, beside[0], &reply), SHM_EAGAIN);
  answer(&second);
  answer(&first);
  CHECK_EQ(end_of(leads), SHM_OK);
  CHECK_EQ(shm_port_await_reply(0, second.sequence, 0, beside[0], &reply), SHM_OK);
  CHECK_EQ(drain_one().sequence, first.sequence);
  close(beside[0]);
  close(beside[1]);
  close_lone_port();
}
