/* Gangs: one call that runs on several helpers at once. Real helpers meet each other inside the
 * function, so an order that differed between two pipes would hang, and the deadline tell. */
#include "harness.h"

#include <sched.h>

#include "shmgpu.h"

enum { CHILDREN = 4, HELPERS = 4, ROUNDS = 200 };

typedef struct meeting { /* a parameter block: lies in the child's arena */
  int expected;
  int arrived;
  int visitors; /* mask of helpers that came */
  int crash;    /* this helper kills itself, as a crash in a kernel would */
} meeting_t;

static void meet(void *params) {
  meeting_t *meeting = params;
  int me = shm_get_helper_id();
  if (meeting->crash == me + 1) raise(SIGKILL);
  __atomic_fetch_or(&meeting->visitors, 1 << me, __ATOMIC_ACQ_REL);
  __atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL);
  if (meeting->crash != 0) return;
  while (__atomic_load_n(&meeting->arrived, __ATOMIC_ACQUIRE) < meeting->expected) sched_yield();
}

static void alone(void *params) { ((meeting_t *)params)->arrived++; }

static int call(shm_func_t function, meeting_t *meeting, uint64_t mask) {
  shm_call_config_t config = {.function = (uint64_t)(uintptr_t)function,
                              .placement = mask,
                              .rows = 1,
                              .gang = mask != 0};
  shm_reply_t reply;
  return shm_port_call(&config, (uint64_t)(uintptr_t)meeting, 0, &reply);
}

static int gang_child(void *arg) {
  static const uint64_t masks[] = {0xf, 0x3, 0xc, 0x6, 0x9, 0x7, 0xe, 0x5};
  (void)arg;
  meeting_t *meeting = shm_malloc(sizeof *meeting);
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t mask = masks[(round * 3 + shm_get_child_id()) % 8];
    *meeting = (meeting_t){.expected = __builtin_popcountll(mask)};
    CHECK_EQ(call(meet, meeting, mask), SHM_OK);
    CHECK_EQ(meeting->visitors, (int)mask);
    *meeting = (meeting_t){0};
    CHECK_EQ(call(alone, meeting, 0), SHM_OK);
    CHECK_EQ(meeting->arrived, 1);
  }
  CHECK_EQ(call(meet, meeting, 0x10), SHM_EPLACEMENT); /* names a helper that is not there */
  return shm_free(meeting);
}

static int run(int (*child_main)(void *), int children) {
  shm_main_bundle_t bundles[CHILDREN];
  for (int i = 0; i < children; i++) bundles[i] = (shm_main_bundle_t){.main_func = child_main};
  CHECK_EQ(shm_register(meet, "meet", sizeof(meeting_t)), SHM_OK);
  CHECK_EQ(shm_register(alone, "alone", sizeof(meeting_t)), SHM_OK);
  return shm_launch(children, bundles, 1 << 20, HELPERS);
}

TEST_WITHIN(gangs_of_many_children_meet_in_one_order_beside_ordinary_calls, 30) {
  CHECK_EQ(run(gang_child, CHILDREN), SHM_OK);
}

static int crash_child(void *arg) {
  (void)arg;
  meeting_t *meeting = shm_malloc(sizeof *meeting);
  *meeting = (meeting_t){.expected = 3, .crash = 2};
  CHECK_EQ(call(meet, meeting, 0x7), SHM_EHELPER_DIED);
  CHECK_EQ(meeting->visitors & ~0x5, 0);
  *meeting = (meeting_t){.expected = 4};
  CHECK_EQ(call(meet, meeting, 0xf), SHM_OK); /* the replacement takes part */
  CHECK_EQ(meeting->visitors, 0xf);
  return 0;
}

TEST(a_member_that_dies_fails_its_gang_once_and_the_next_gang_runs) {
  CHECK_EQ(run(crash_child, 1), SHM_OK);
}
