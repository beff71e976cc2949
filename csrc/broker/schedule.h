/* schedule -- who is served next, by which helper; and which calls form a batch. Pure policy.
 *
 * The dispatcher tells it what happened (a frame came, a call ended, a helper came up or went down)
 * and asks what to hand to a helper now. It makes no system call, reads no clock (times are passed
 * in), and knows no descriptor, so that a test can drive it with a table of events.
 *
 * Policy, from the top:
 *   priority   strict: 3 before 0.
 *   fairness   by child: a round-robin over the children that have something queued, each
 *              taking as many messages a turn as its weight says (1 by default). A child that
 *              floods waits behind itself only.
 *   placement  a message bound to helpers by a mask is queued at the least loaded of those that
 *              exist, or will again; when that helper is gone for good, at another of them. All
 *              other messages are queued at their pool.
 *   deadlines  where the broker is told to: what may run on any helper of a pool is served earliest
 *              deadline first, whoever sent it; what has none comes after, in turns.
 *   limits     how many calls of a function wait is counted where the function has a limit. What
 *              happens beyond it is the dispatcher's to decide.
 *   pauses     a helper of a paused pool gets nothing; what waits for it goes on waiting.
 *   batches    formed in gather(): the message at the head is joined by queued ones of its batch
 *              key, one for each child and round, up to max_rows. That counts as their children's
 *              turn. A batch goes out at once, unless its function asks for a delay: then messages
 *              are held until the batch is full or the delay is over, or half of the time that one of
 *              them has until its deadline.
 *   gangs      a message for several helpers at once is handed to all of them in one step. So gangs
 *              come in the same order in every helper's pipe, and two can never wait for each
 *              other. They have a domain of their own, with the same priorities and turns. One
 *              starts when each of its helpers is idle, or holds only gangs of the same helpers
 *              and has credit, and when it shares no helper with one that is before it. One that
 *              has waited long keeps its helpers for itself, unless one of them is down. After a
 *              gang a helper owes what waits for it as urgently a turn.
 *   credit     a helper holds more than min_credit messages only while the estimated service
 *              time of what it holds stays below a budget: many of microseconds, one of
 *              milliseconds (and one more where the queue is longer than the pool). Estimates
 *              are running means per function.
 *
 * Cost: every operation is O(1) in children and queued messages, except cancel and drop_child (the
 * child's own window), drop_helper, forming a batch (bounded by max_rows), the search for a gang
 * (bounded by SHMI_GANG_LOOKS) and, by deadline, queueing (the child's own window) and choosing (the
 * children that have something queued).
 *
 * Owns: requests and their queues. Must never: block, allocate after create, or drop a request
 * silently: whatever leaves a queue without being handed over is returned to the caller.
 */
#ifndef SHMI_SCHEDULE_H
#define SHMI_SCHEDULE_H

#include "ipc/frame.h"
#include "ipc/function_table.h"

enum { SHMI_NONE = 0 }; /* no request: numbers start at 1 */

enum {
  SHMI_CREDIT_BUDGET_NS = 200000, /* covers the dispatcher's own wake-up on a busy machine */
  SHMI_CREDIT_AHEAD_NS = 50000000, /* no message is sent ahead behind longer calls */
  SHMI_CREDIT_UNKNOWN_NS = 1000000000, /* the estimate for a function that was never measured */
  SHMI_CREDIT_FLOOR_NS = 400,     /* what any message costs a helper at least */
  SHMI_CREDIT_MAX = 512,          /* messages a helper may hold: half of its control ring */
  SHMI_GANG_AGE_NS = 1000000,     /* a gang that has waited this long goes before new work */
  SHMI_GANG_LOOKS = 64            /* waiting gangs that are looked at for one that can start */
};

typedef struct shmi_request {
  shmi_frame_t frame; /* as the child sent it, stamped */
  const shmi_function_t *function;
  uint64_t queued_ns;
  uint64_t handed_ns;
  uint64_t delivery;  /* the dispatcher's, while in flight */
  uint64_t estimate_ns;
  uint64_t members;   /* gang: helpers that have not finished it */
  uint64_t gang_ns;   /* gang: the time of its slowest helper so far */
  uint64_t gang_value; /* gang: what its first helper returned */
  int gang_status;    /* gang: the failure that counts: see dispatch_helpers.c */
  uint64_t gang_looked; /* gang: what the last look at its members has seen */
  uint32_t ticket;    /* gang: its number, once it was handed over */
  uint8_t gang_failed;  /* gang: whose failure that is */
  uint8_t gang_has_run; /* gang: some helper has begun it */
  uint8_t has_effect;   /* broadcast: it has run on its first helper, and stands */
  uint32_t next, previous; /* in its queue */
  uint32_t newer, older;   /* among the waiting calls of a function with a limit */
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
  int by_deadline;           /* earliest deadline first; 0: children take turns */
} shmi_schedule_config_t;

int shmi_schedule_create(shmi_schedule_t **out, const shmi_schedule_config_t *config);
void shmi_schedule_destroy(shmi_schedule_t *schedule);

shmi_request_t *shmi_schedule_request(shmi_schedule_t *schedule, uint32_t number);

/* Queue a validated frame of child `frame->slot`. Returns its number, or SHMI_NONE when the table
 * is full, or when all helpers that it is bound to are gone for good. */
uint32_t shmi_schedule_enqueue(shmi_schedule_t *schedule, const shmi_frame_t *frame,
                               const shmi_function_t *function, uint64_t now_ns);

/* Queue a request that was admitted before. 0: all helpers that it is bound to are gone for good;
 * the caller keeps it. */
int shmi_schedule_put(shmi_schedule_t *schedule, uint32_t number, const shmi_function_t *function,
                      uint64_t now_ns);
/* A request that is not queued: it is answered at once, or handed over by the caller itself. */
uint32_t shmi_schedule_admit(shmi_schedule_t *schedule, const shmi_frame_t *frame,
                             uint64_t now_ns);

/* What to hand to a helper now: fills out with up to max messages that belong together (one, or a
 * batch) and returns how many. 0: nothing may be handed over, or no helper has credit. *helper is
 * chosen among all that are up. Requests whose deadline has passed are set aside for
 * take_expired. */
int shmi_schedule_next(shmi_schedule_t *schedule, uint64_t now_ns, int *helper, uint32_t out[],
                       int max);
/* Whether gangs wait, or helpers are kept for one that has waited long. */
int shmi_schedule_has_gangs(const shmi_schedule_t *schedule);
/* The gang that can be started now, on all helpers of its placement, or SHMI_NONE. Ask for gangs
 * first, and again after shmi_schedule_next has given something. */
uint32_t shmi_schedule_next_gang(shmi_schedule_t *schedule, uint64_t now_ns);
/* One helper of a gang has finished its part. The estimate learns from service_ns (0: it learns
 * nothing). Returns how many have not. */
int shmi_schedule_gang_finished(shmi_schedule_t *schedule, uint32_t number, int helper,
                                uint64_t service_ns);
/* All of a gang's helpers are done with it and none had begun: put it back at the front of its
 * child's queue. 0: not all of its helpers will be there again; the caller keeps it. */
int shmi_schedule_requeue_gang(shmi_schedule_t *schedule, uint32_t number);
static inline int shmi_request_is_gang(const shmi_request_t *request) {
  return (request->frame.flags & SHMI_FRAME_GANG) != 0;
}
static inline int shmi_request_is_expired(const shmi_request_t *r, uint64_t now_ns) {
  return r->frame.deadline_ns != 0 && r->frame.deadline_ns <= now_ns;
}
/* A request whose deadline passed while queued, or SHMI_NONE. The caller answers, then frees. */
uint32_t shmi_schedule_take_expired(shmi_schedule_t *schedule);

/* An in-flight request ended. The estimate learns from service_ns, that of its whole batch (0: it
 * learns nothing). The caller still owns the request and frees it. */
void shmi_schedule_finished(shmi_schedule_t *schedule, uint32_t number, uint64_t service_ns);
/* A call of that function worked on for so long after its answer (0: it did not). */
void shmi_schedule_deferred(shmi_schedule_t *schedule, uint32_t function_index, uint64_t more_ns);
/* Its helper died before it began: put it back at the front of its child's queue. Call in reverse
 * order of handing over. 0: all helpers that it is bound to are gone for good; the caller keeps
 * it. */
int shmi_schedule_requeue(shmi_schedule_t *schedule, uint32_t number);
void shmi_schedule_free(shmi_schedule_t *schedule, uint32_t number);

/* Take the queued request of that sequence out: its number, or SHMI_NONE (unknown, or handed
 * over already). */
uint32_t shmi_schedule_cancel(shmi_schedule_t *schedule, int child, uint64_t sequence);
/* Take the call out that has waited longest of a function with a limit, or SHMI_NONE. */
uint32_t shmi_schedule_take_oldest(shmi_schedule_t *schedule, const shmi_function_t *function);
/* Take one queued request of the child out, until SHMI_NONE. */
uint32_t shmi_schedule_drop_child(shmi_schedule_t *schedule, int child);
/* This helper is gone for good: take out one request that waits for it alone, or, with pool_too,
 * for its pool, held ones included, until SHMI_NONE. */
uint32_t shmi_schedule_drop_helper(shmi_schedule_t *schedule, int helper, int pool_too);

/* Whether that helper exists or will again. At first all are expected, up or not. */
void shmi_schedule_expect_helper(shmi_schedule_t *schedule, int helper, int on);
uint64_t shmi_schedule_expected(const shmi_schedule_t *schedule); /* as a mask */
void shmi_schedule_helper_up(shmi_schedule_t *schedule, int helper);
void shmi_schedule_helper_down(shmi_schedule_t *schedule, int helper);
/* on: the helper has no room for more, whatever its credit, and gets nothing until this is off. */
void shmi_schedule_spare_helper(shmi_schedule_t *schedule, int helper, int on);
/* on: helpers of the pool get nothing until this is off. */
void shmi_schedule_pause_pool(shmi_schedule_t *schedule, int pool, int on);
void shmi_schedule_set_weight(shmi_schedule_t *schedule, int child, uint32_t weight);

/* When a held batch must be released, absolute ns; 0: nothing is held. */
uint64_t shmi_schedule_next_timer(const shmi_schedule_t *schedule);

uint32_t shmi_schedule_queued(const shmi_schedule_t *schedule);
uint32_t shmi_schedule_queued_of(const shmi_schedule_t *schedule, int child);
/* How many calls of a function with a limit wait, broadcasts left out. */
uint32_t shmi_schedule_waiting(const shmi_schedule_t *schedule, const shmi_function_t *function);
uint32_t shmi_schedule_in_flight(const shmi_schedule_t *schedule, int helper);
uint64_t shmi_schedule_estimate(const shmi_schedule_t *schedule, uint32_t function_index);

#endif
