/* Many calls, every answer verified: with one message out, and with sixteen. */
#include "broker.h"

enum { CHILDREN = 8, HELPERS = 2, CALLS = HARNESS_SANITIZED ? 1000 : 20000, WORDS = 8 };

typedef struct job {
  uint64_t count, sum, mixed;
  uint64_t words[WORDS];
} job_t;

static void fn_sum(void *params) {
  job_t *job = params;
  uint64_t sum = 0, mixed = 14695981039346656037u;
  for (uint64_t i = 0; i < job->count && i < WORDS; i++) {
    sum += job->words[i];
    mixed = (mixed ^ job->words[i]) * 1099511628211u;
  }
  job->sum = sum;
  job->mixed = mixed;
}

static uint64_t random_state;
static uint64_t random_word(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static void ask(job_t *job) {
  *job = (job_t){.count = random_word() % (WORDS + 1), .sum = 1, .mixed = 1};
  for (int i = 0; i < WORDS; i++) job->words[i] = random_word();
}
static void expect_answer(const job_t *job) {
  job_t expected = *job;
  fn_sum(&expected);
  CHECK_EQ(job->sum, expected.sum);
  CHECK_EQ(job->mixed, expected.mixed);
}

static int soaks(int child) {
  enum { MOST = 16 };
  int window = (int)notes[0], sent = 0, taken = 0;
  shm_msg_t msgs[MOST];
  int statuses[MOST], ready = window;
  random_state = (uint64_t)child * 2654435761u + 88172645463325252u;
  CHECK_EQ(shm_set_window(window), SHM_OK);
  for (int i = 0; i < window; i++) {
    msgs[i] = (shm_msg_t){fn_sum, shm_malloc(sizeof(job_t))};
    CHECK(msgs[i].params != NULL);
  }
  while (taken < CALLS) {
    if (ready > CALLS - sent) ready = CALLS - sent;
    for (int i = 0; i < ready; i++) {
      if (random_word() % 8 == 0) { /* the allocator works along */
        CHECK_EQ(shm_free(msgs[i].params), SHM_OK);
        msgs[i].params = shm_malloc(sizeof(job_t) + random_word() % 4096);
        CHECK(msgs[i].params != NULL);
      }
      ask(msgs[i].params);
    }
    if (ready > 0) CHECK_EQ(shm_send_msgs(msgs, ready), ready);
    sent += ready;
    ready = shm_read_msgs(msgs, statuses, MOST);
    CHECK(ready > 0);
    for (int i = 0; i < ready; i++) {
      CHECK_EQ(statuses[i], SHM_OK);
      expect_answer(msgs[i].params);
    }
    taken += ready;
  }
  CHECK_EQ(shm_check(), SHM_OK);
  return 0;
}

static void read_counters(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_OVER) return;
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.submitted, CHILDREN * CALLS);
  CHECK_EQ(stats.answered, CHILDREN * CALLS);
  CHECK_EQ(stats.failed, 0);
  CHECK_EQ(stats.dropped, 0);
  CHECK_EQ(stats.protocol_errors, 0);
  for (int child = 0; child < CHILDREN; child++) {
    shm_child_stats_t one;
    CHECK_EQ(shm_get_child_stats(child, &one), SHM_OK);
    CHECK_EQ(one.frames_sent, CALLS);
    CHECK_EQ(one.frames_received, CALLS);
    for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) CHECK_EQ(one.bytes[kind], 0);
  }
}

static void soak(int window) {
  broker_open(CHILDREN, HELPERS);
  CHECK_EQ(shm_register(fn_sum, "sum", sizeof(job_t)), SHM_OK);
  notes[0] = (uint64_t)window;
  host.on_event = read_counters;
  launch_well(soaks);
}

TEST_WITHIN(every_answer_is_right_with_one_message_out, 60) { soak(1); }
TEST_WITHIN(every_answer_is_right_with_sixteen_out, 60) { soak(16); }
