/* schedule_internal -- what the scheduler's files share.
 *
 * schedule.c            requests enter, are chosen for a helper, alone or gathered into a batch,
 *                       and are taken out again
 * schedule_queues.c     queues of single children, and rings of children that take turns
 * schedule_holds.c      batches that are held until they are full or due
 * schedule_gangs.c      messages that run on several helpers at once
 * schedule_limits.c     how many calls of a function wait, and which has waited longest
 * schedule_credit.c     how long calls take, and so how many a helper may hold
 *
 * A *domain* is a set of queues that one or more helpers serve: there is one domain for each pool,
 * one for each helper (for messages bound to it), and one for gangs. In a domain and priority each
 * child has a FIFO, and the children whose FIFO is not empty are linked in a ring. The ring's cursor
 * is at the child whose turn it is. All of it lies in two tables that are reserved once and touched as
 * needed, so nothing moves and nothing is allocated while the broker runs.
 *
 * Owns: the layout of the scheduler. Must never: be included by any other file; others use
 * schedule.h.
 */
#ifndef SHMI_SCHEDULE_INTERNAL_H
#define SHMI_SCHEDULE_INTERNAL_H

#include "broker/schedule.h"

enum { SHMI_HOLDS = 64 };

enum shmi_request_state {
  SHMI_REQUEST_FREE,
  SHMI_REQUEST_QUEUED,
  SHMI_REQUEST_HELD,
  SHMI_REQUEST_EXPIRED,
  SHMI_REQUEST_TAKEN
};

typedef struct shmi_queue { /* one child's FIFO in one domain and priority */
  uint32_t head, tail;
  uint32_t ring_next, ring_previous; /* child + 1 */
} shmi_queue_t;

typedef struct shmi_ring {
  uint32_t cursor; /* child + 1 whose turn it is; 0: empty */
  uint32_t turns;  /* messages the child at the cursor has taken of its turn */
} shmi_ring_t;

typedef struct shmi_domain {
  shmi_ring_t rings[SHMI_PRIORITIES];
  uint32_t queued;
  uint8_t ready; /* bit p: rings[p] is not empty */
} shmi_domain_t;

typedef struct shmi_hold { /* messages of one batch key that wait for more of them */
  uint64_t key;
  uint64_t due_ns;
  uint64_t rows;
  uint32_t head, tail;
  uint32_t max_rows;
  uint8_t domain, priority, used;
} shmi_hold_t;

typedef struct shmi_load { /* what a helper holds */
  uint64_t outstanding_ns; /* its estimated service time */
  uint64_t gang_mask;      /* while it holds nothing but gangs: the helpers of each of them */
  uint32_t in_flight;
  uint32_t gangs;          /* of these */
  uint8_t up, pool, min_credit, pool_first;
  uint8_t kept_above;      /* kept for a gang: takes only what is more urgent; 1 + that priority */
} shmi_load_t;

typedef struct shmi_waiting { /* calls of one function with a limit, by the time of their arrival */
  uint32_t oldest, newest;
  uint32_t count;
} shmi_waiting_t;

struct shmi_schedule {
  shmi_schedule_config_t config;
  size_t requests_bytes, queues_bytes;
  shmi_request_t *requests; /* [1 ..] */
  shmi_queue_t *queues;     /* [domain][priority][child] */
  shmi_domain_t domains[SHM_MAX_POOLS + SHM_MAX_HELPERS + 1];
  shmi_load_t helpers[SHM_MAX_HELPERS];
  shmi_hold_t holds[SHMI_HOLDS];
  int holds_used;
  uint64_t hold_timer;                   /* the earliest due_ns of all holds; 0: none */
  uint64_t estimates[SHM_MAX_FUNCTIONS]; /* service time up to the answer */
  uint64_t deferred[SHM_MAX_FUNCTIONS];  /* and of the work after it */
  shmi_waiting_t waiting[SHM_MAX_FUNCTIONS];
  uint32_t *queued_of; /* by child, held messages included */
  uint32_t *weights;
  uint32_t free_list, made, capacity;
  uint32_t expired;
  uint32_t queued;
  uint32_t pool_up[SHM_MAX_POOLS]; /* helpers of each pool that are up */
  uint64_t kept;        /* mask of helpers that are kept for a gang */
  uint64_t owing;       /* mask of helpers that were given a gang, and nothing else since */
  uint64_t spared;      /* mask of helpers that get nothing at all for now */
  uint64_t paused;      /* mask of helpers whose pool gets nothing at all for now */
  uint64_t expected;    /* mask of helpers that exist, or will again */
  int run_helper;       /* the helper that got the last short messages, and how many more it gets: they */
  int run_left;         /* go to one helper in runs, because a wake-up costs more than they do */
};

static inline shmi_queue_t *shmi_queue_of(shmi_schedule_t *s, int domain, int priority,
                                          uint32_t child) {
  return &s->queues[((size_t)domain * SHMI_PRIORITIES + (size_t)priority) *
                        (size_t)s->config.children + child];
}

static inline int shmi_gang_domain(const shmi_schedule_t *s) {
  return s->config.pools + s->config.helpers;
}

/* The highest priority of what waits for a helper, gangs left out; -1: nothing does. */
static inline int shmi_most_urgent(const shmi_schedule_t *s, int helper) {
  uint8_t ready =
      s->domains[s->helpers[helper].pool].ready | s->domains[s->config.pools + helper].ready;
  return ready == 0 ? -1 : 31 - __builtin_clz(ready);
}

/* ---- schedule_limits.c ---- */

void shmi_waiting_add(shmi_schedule_t *s, uint32_t number);
void shmi_waiting_remove(shmi_schedule_t *s, uint32_t number);

static inline int shmi_is_limited(const shmi_request_t *r) {
  return r->function->max_queue > 0 && (r->frame.flags & SHMI_FRAME_BROADCAST) == 0;
}

/* Count in a request that waits from now on, wherever it does. */
static inline void shmi_count_in(shmi_schedule_t *s, uint32_t number) {
  const shmi_request_t *r = &s->requests[number];
  s->queued++;
  s->queued_of[r->frame.slot]++;
  if (shmi_is_limited(r)) shmi_waiting_add(s, number);
}

/* Count out a request that no longer waits, wherever it did. */
static inline void shmi_count_out(shmi_schedule_t *s, uint32_t number) {
  const shmi_request_t *r = &s->requests[number];
  s->queued--;
  s->queued_of[r->frame.slot]--;
  if (shmi_is_limited(r)) shmi_waiting_remove(s, number);
}

static inline int shmi_gets_nothing(const shmi_schedule_t *s, int helper) {
  return ((s->spared | s->paused) >> helper & 1) != 0;
}

/* Put an expired request aside for take_expired. */
static inline void shmi_set_aside(shmi_schedule_t *s, uint32_t number) {
  s->requests[number].state = SHMI_REQUEST_EXPIRED;
  s->requests[number].next = s->expired;
  s->expired = number;
}

/* The domain whose queue a message belongs in; -1: all helpers that it is bound to are gone, or one
 * of those that a gang needs. */
int shmi_domain_of(const shmi_schedule_t *s, const shmi_frame_t *frame);
/* Take out a message that waits, queued or held. */
void shmi_take_out(shmi_schedule_t *s, uint32_t number);

/* ---- schedule_queues.c ---- */

void shmi_queue_put(shmi_schedule_t *s, uint32_t number, int at_front);
void shmi_queue_remove(shmi_schedule_t *s, uint32_t number);
/* The child whose message is next: by deadline where that is asked for, else by turns. */
uint32_t shmi_queue_next_child(shmi_schedule_t *s, int domain, int priority);
/* Take the message at the head of the child's queue, and count it as part of its turn. */
uint32_t shmi_queue_take_head(shmi_schedule_t *s, int domain, int priority, uint32_t child);
/* A message of the child was added to a batch, in its turn or before: in both cases its next
 * message waits for the next round. */
void shmi_queue_use_turn(shmi_schedule_t *s, int domain, int priority, uint32_t child);

/* ---- schedule_holds.c ---- */

/* Hold the request together with those of its key. 0 when every hold is in use: queue it at
 * once. */
int shmi_hold_put(shmi_schedule_t *s, uint32_t number, uint64_t now_ns);
void shmi_hold_remove(shmi_schedule_t *s, uint32_t number);
/* Queue the messages of all holds that are due. */
void shmi_hold_release_due(shmi_schedule_t *s, uint64_t now_ns);

/* ---- schedule_gangs.c ---- */

/* No helper is kept for a gang any more. */
void shmi_gang_keep_none(shmi_schedule_t *s);
/* Take out a gang that the helper would have been a member of, or SHMI_NONE. */
uint32_t shmi_gang_take_out(shmi_schedule_t *s, int helper);

/* ---- schedule_credit.c ---- */

/* The estimated service time of a request. */
uint64_t shmi_credit_estimate(const shmi_schedule_t *s, const shmi_request_t *r);
/* May the helper be handed another message now? */
int shmi_credit_allows(const shmi_schedule_t *s, int helper);
/* Take a time into a running mean. */
void shmi_learn(uint64_t *mean_ns, uint64_t ns);
/* The helper no longer holds the request. */
void shmi_credit_return(shmi_schedule_t *s, const shmi_request_t *r, int helper);

#endif
