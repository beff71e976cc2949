/* scoreboard -- what every role may read but only one role may write: counters, control pages, the
 * trace ring.
 *
 * One memory file, mapped by the parent before the first fork and inherited by every role at the
 * same address. After the fork a role keeps write access to its own page only:
 *
 *   | parent's page: header, broker, child and helper statistics | names of functions (parent) |
 *   | a page per child | a control page per helper | trace ring (parent) |
 *
 * Once the parent has mapped it, it is sealed against any other writable mapping. So an attached
 * program, which inherits nothing, has its page in a memory file of its own, which it and the
 * parent map; the scoreboard holds a copy of that page, which the parent makes for all other
 * readers.
 *
 * A helper's control page makes it safe to hand over messages ahead of time: it says which
 * deliveries are executing and which have finished with what outcome, so that a death costs only
 * the call that was executing.
 *
 * The parent keeps one descriptor of it. There a *monitor*, another process of the same user, finds
 * the scoreboard under /proc and maps it read-only (shm_monitor_open). A monitor trusts nothing:
 * the file must be sealed against changes of its size, and its header must be that of this build.
 *
 * Owns: the mapping, the descriptor. Must never: hold payload, or anything that a role must not
 * know.
 */
#ifndef SHMI_SCOREBOARD_H
#define SHMI_SCOREBOARD_H

#include <stdatomic.h>

#include "base/status.h"

/* The size of rings by delivery number, here and on both sides of a helper's pipes. A number is
 * given out only after the number that is lower by this much has ended, so two open deliveries
 * never share a place. */
enum { SHMI_DELIVERY_RING = 1024 };

typedef struct shmi_outcome {
  _Atomic uint64_t delivery; /* written last: a torn entry is never taken as valid */
  uint64_t value;
  uint32_t status;           /* as on the wire */
  uint32_t started_units;
  uint32_t finished_units;
  uint32_t reserved;
} shmi_outcome_t;

typedef struct shmi_gang_cost { /* of a gang, beside its outcome; written before that */
  uint64_t moved_bytes;      /* received from other members, by the definition of what was done */
  uint32_t waited_units;
  uint32_t reserved;
} shmi_gang_cost_t;

typedef struct shmi_child_page { /* written by the child */
  _Atomic uint64_t frames_sent;
  _Atomic uint64_t frames_received;
  _Atomic uint64_t arena_used_bytes;
  _Atomic uint64_t bytes[SHM_BYTES_KINDS];
} shmi_child_page_t;

typedef struct shmi_helper_page { /* written by the helper: the control page */
  _Atomic uint64_t executing;     /* first delivery << 16 | how many; 0: none */
  _Atomic uint64_t executing_since_ns;
  _Atomic uint64_t deferred_row;  /* 1 + row of the answered call that is worked on; 0: none */
  _Atomic uint64_t deferred_since_ns; /* when that call began */
  _Atomic uint64_t went_on;       /* how often work after an answer has ended */
  _Atomic uint64_t deferred_ns;   /* how long all of it took, from the answers on */
  _Atomic uint64_t frames_sent;
  _Atomic uint64_t frames_received;
  _Atomic uint64_t bytes[SHM_BYTES_KINDS];
  _Atomic uint64_t collectives;
  _Atomic uint64_t collective_bytes;
  _Atomic uint64_t collective_wait_ns;
  _Atomic uint64_t all_reduces[SHM_ALGORITHMS]; /* by shm_algorithm */
  _Atomic uint64_t session;       /* a shm_session */
  shmi_outcome_t finished[SHMI_DELIVERY_RING];
  shmi_gang_cost_t costs[SHMI_DELIVERY_RING];
} shmi_helper_page_t;

typedef struct shmi_scoreboard { /* where each part is; every role has a copy */
  shm_broker_stats_t *broker;
  shm_child_stats_t *child_stats;
  shm_helper_stats_t *helper_stats;
  char *child_pages;
  char *helper_pages;
  shm_trace_record_t *trace;
  uint32_t trace_records; /* a power of two, or 0 */
  char *detail; /* why the parent of an init() failed: 512 bytes */
  int children;
  int helpers;
} shmi_scoreboard_t;

enum { SHMI_SCOREBOARD_DETAIL_BYTES = 512 };

int shmi_scoreboard_create(int children, int helpers, uint32_t trace_records);
void shmi_scoreboard_destroy(void);
/* The scoreboard of this process, or NULL when it has no broker (as in a monitor). */
const shmi_scoreboard_t *shmi_scoreboard(void);
/* In a process that attaches: map the scoreboard in fd for reading, and its own page in page_fd. */
int shmi_scoreboard_join(int fd, int child, int page_fd);
/* In the parent: the descriptor of the scoreboard, to be sent. It is open for reading only. */
int shmi_scoreboard_descriptor(void);
/* In the parent: make the page of an attached program that takes this slot. Its counters continue
 * from the slot's. Returns its descriptor, for the caller to close, or a negative status. */
int shmi_scoreboard_make_page(int child);
/* In the parent: the program is gone; what it counted stays. For other slots it does nothing. */
void shmi_scoreboard_drop_page(int child);
/* In the parent: copy what attached programs have counted to where others see it. */
void shmi_scoreboard_copy_pages(void);
/* In a fresh role: keep write access to one's own page only. */
int shmi_scoreboard_become(int role, int index);
/* A new helper takes the place of a dead one: its control page starts empty. */
void shmi_scoreboard_reset_helper(int helper);
/* The parent, before the first fork: a function's name, for those who read the trace. */
void shmi_scoreboard_name(uint32_t index, uint64_t function, const char *name);
/* The name of a row in the broker that this process joined; NULL: it has none. */
const char *shmi_scoreboard_function_name(uint64_t function);

shmi_child_page_t *shmi_scoreboard_child(int child);
shmi_helper_page_t *shmi_scoreboard_helper(int helper);

/* Only one role writes a counter, so a load and a store are enough; readers see whole values. */
static inline void shmi_count(_Atomic uint64_t *counter, uint64_t more) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
                        memory_order_relaxed);
}

/* Open calls of all children. A call whose child died is dropped, not answered. The parent writes
 * each number separately, so another process may see a few less. */
static inline int64_t shmi_scoreboard_calls_out(void) {
  const shm_broker_stats_t *broker = shmi_scoreboard()->broker;
  return (int64_t)(__atomic_load_n(&broker->submitted, __ATOMIC_RELAXED) -
                   __atomic_load_n(&broker->answered, __ATOMIC_RELAXED) -
                   __atomic_load_n(&broker->dropped, __ATOMIC_RELAXED));
}

/* In the parent: append a record to the trace. */
void shmi_scoreboard_trace(const shm_trace_record_t *record);

#endif
