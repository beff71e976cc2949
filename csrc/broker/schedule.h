/* schedule -- who is served next, by which helper, in which batch. Pure policy.
 *
 * The dispatcher tells it what happened (a frame came, a call ended, a helper rose or fell)
 * and asks what to hand to a helper now. It makes no system call, reads no clock (times come
 * in), and knows no descriptor, so that a test can drive it as a table of events.
 *
 * Policy, from the top:
 *   priority   strict: 3 before 0.
 *   fairness   by child: a round-robin over the children that have something queued, each
 *              taking as many messages a turn as its weight says (1). A child that floods
 *              waits behind itself only.
 *   placement  a message bound to helpers by a mask queues at the least loaded of those that
 *              there are, or will be again; when that one goes for good, at another of them.
 *              All others queue at their pool.
 *   batches    the message at the head takes along queued ones of its batch key, one a child
 *              and round, until max_rows; who is taken along has had its turn. Greedy, unless the function asks for a delay: then
 *              messages are held until the batch is full or the delay is over.
 *   gangs      a message for several helpers at once waits in one queue for all children, is
 *              handed to all its helpers in one step, and so comes in the same order in every
 *              helper's pipe: two gangs can never wait for each other. One that has waited
 *              long stops new credit to its helpers.
 *   credit     a helper holds more than min_credit messages only while the estimated service
 *              time of what it holds stays below a budget: many of microseconds, one of
 *              milliseconds (and one more where the queue is longer than the pool). Estimates
 *              are running means per function.
 *
 * Cost: every operation is O(1) in children and queued messages, but for cancel (the caller's
 * own window), drop_child (likewise) and the search for company (bounded by max_rows).
 *
 * Owns: requests and their queues. Must never: block, allocate after create, or fail a request
 * silently: whatever leaves a queue without being handed over is returned to the caller.
 */
#ifndef SHMI_SCHEDULE_H
#define SHMI_SCHEDULE_H

#include "ipc/frame.h"
#include "ipc/function_table.h"

enum { SHMI_NONE = 0 }; /* no request: numbers start at 1 */

enum {
  SHMI_CREDIT_BUDGET_NS = 200000, /* covers the dispatcher's own wake-up on a busy box */
  SHMI_CREDIT_AHEAD_NS = 50000000, /* longer calls never have one waiting behind them */
  SHMI_CREDIT_UNKNOWN_NS = 1000000000, /* the estimate of what was never measured */
  SHMI_CREDIT_FLOOR_NS = 400,     /* what any message costs a helper at least */
  SHMI_CREDIT_MAX = 512,          /* messages a helper may hold: half of its control ring */
  SHMI_GANG_AGE_NS = 1000000      /* a gang that waited this long goes before new work */
};

typedef struct shmi_request {
  shmi_frame_t frame; /* as the child sent it, stamped */
  const shmi_function_t *function;
  uint64_t queued_ns;
  uint64_t handed_ns;
  uint64_t delivery;  /* the dispatcher's, while in flight */
  uint64_t estimate_ns;
  uint64_t members;   /* gang: helpers that have not finished it */
  uint64_t gang_value; /* gang: what its first helper returned */
  int gang_status;    /* gang: the first failure of any helper */
  uint32_t next, previous; /* in its queue */
  uint16_t batch;          /* messages handed over together */
  uint8_t helper;
  uint8_t attempts;        /* how often it was handed over */
  uint8_t state;
  uint8_t domain;          /* the queue it belongs to */
  uint16_t hold;           /* 1 + hold, while held */
} shmi_request_t;

typedef struct shmi_schedule shmi_schedule_t;

typedef struct shmi_schedule_config {
  int children;
  int helpers;
  int pools;
  uint32_t window; /* requests a child may have queued or in flight */
  const uint8_t *helper_pool;
  const uint8_t *min_credit; /* by pool; 0 means 1 */
} shmi_schedule_config_t;

int shmi_schedule_create(shmi_schedule_t **out, const shmi_schedule_config_t *config);
void shmi_schedule_destroy(shmi_schedule_t *schedule);

shmi_request_t *shmi_schedule_request(shmi_schedule_t *schedule, uint32_t number);

/* Enter a checked frame of child `frame->slot`: its number. SHMI_NONE: the table is full, or all
 * helpers that it is bound to are gone for good. */
uint32_t shmi_schedule_enqueue(shmi_schedule_t *schedule, const shmi_frame_t *frame,
                               const shmi_function_t *function, uint64_t now_ns);

/* A request that goes no further through the policy: answered at once, or handed over by the
 * caller itself. */
uint32_t shmi_schedule_admit(shmi_schedule_t *schedule, const shmi_frame_t *frame,
                             uint64_t now_ns);

/* What to hand to a helper now: up to max messages that belong together (one, or a batch) into
 * out; how many. 0: nothing that may go there, or no credit. *helper is the helper chosen among
 * all that are up. Requests whose deadline has passed are put aside for take_expired. */
int shmi_schedule_next(shmi_schedule_t *schedule, uint64_t now_ns, int *helper, uint32_t out[],
                       int max);
/* The gang that can be started now, on all helpers of its placement, or SHMI_NONE. */
uint32_t shmi_schedule_next_gang(shmi_schedule_t *schedule, uint64_t now_ns);
/* One helper of a gang is done with it: how many still are not. */
int shmi_schedule_gang_finished(shmi_schedule_t *schedule, uint32_t number, int helper);
static inline int shmi_request_is_gang(const shmi_request_t *request) {
  return (request->frame.flags & SHMI_FRAME_GANG) != 0;
}
/* A request whose deadline passed while queued, or SHMI_NONE. The caller answers, then frees. */
uint32_t shmi_schedule_take_expired(shmi_schedule_t *schedule);

/* An in-flight request ended; service_ns of its whole batch teaches the estimate (0: teaches
 * nothing). The caller still owns the request and frees it. */
void shmi_schedule_finished(shmi_schedule_t *schedule, uint32_t number, uint64_t service_ns);
/* A call of that function went on for so long after its answer (0: it did not). */
void shmi_schedule_went_on(shmi_schedule_t *schedule, uint32_t function_index, uint64_t more_ns);
/* Its helper died before starting it: back to the front of its child's queue. Call in reverse
 * order of hand-over. 0: all helpers that it is bound to are gone for good; it is the caller's. */
int shmi_schedule_requeue(shmi_schedule_t *schedule, uint32_t number);
void shmi_schedule_free(shmi_schedule_t *schedule, uint32_t number);

/* Take the queued request of that sequence out: its number, or SHMI_NONE (unknown, or handed
 * over already). */
uint32_t shmi_schedule_cancel(shmi_schedule_t *schedule, int child, uint64_t sequence);
/* Take one queued request of the child out, until SHMI_NONE. */
uint32_t shmi_schedule_drop_child(shmi_schedule_t *schedule, int child);
/* This helper is gone for good: take out one request that waits for it alone, or for its pool when
 * `pool_too`, held ones included, until SHMI_NONE. */
uint32_t shmi_schedule_drop_helper(shmi_schedule_t *schedule, int helper, int pool_too);

/* Will there be that helper (again)? At first all are expected, up or not. */
void shmi_schedule_expect_helper(shmi_schedule_t *schedule, int helper, int on);
uint64_t shmi_schedule_expected(const shmi_schedule_t *schedule); /* as a mask */
void shmi_schedule_helper_up(shmi_schedule_t *schedule, int helper);
void shmi_schedule_helper_down(shmi_schedule_t *schedule, int helper);
/* on: it has no place for more, whatever its credit, and gets nothing until it is off. */
void shmi_schedule_spare_helper(shmi_schedule_t *schedule, int helper, int on);
void shmi_schedule_set_weight(shmi_schedule_t *schedule, int child, uint32_t weight);

/* When a held batch must be released, absolute ns; 0: nothing is held. */
uint64_t shmi_schedule_next_timer(const shmi_schedule_t *schedule);

uint32_t shmi_schedule_queued(const shmi_schedule_t *schedule);
uint32_t shmi_schedule_queued_of(const shmi_schedule_t *schedule, int child);
uint32_t shmi_schedule_in_flight(const shmi_schedule_t *schedule, int helper);
uint64_t shmi_schedule_estimate(const shmi_schedule_t *schedule, uint32_t function_index);

#endif
