/* dispatch -- the parent's loop: frames in, policy asked, frames out.
 *
 * One turn: wait; read everything helpers answered; read everything children sent; hand out
 * what the policy says; write every reply. Whatever is ready is read in one go and whatever
 * is due for one process is written in one go, because wake-ups are the cost.
 *
 * All pipes stand in one epoll set, beside the one descriptor that the supervisor lends (itself
 * the set of all pidfds), so a turn costs what is ready, not what exists. One wait a turn was
 * measured against a poll over the helpers with the children's set nested in it: the nested
 * wake-up and the second call cost a lone caller's round trip 1 us of 15.
 *
 * Owns: the parent's pipe ends, what is in flight, the statistics and the trace. Must never:
 * block anywhere but in the poll, fork, signal, or touch an arena.
 */
#ifndef SHMI_DISPATCH_H
#define SHMI_DISPATCH_H

#include <signal.h>

#include "ipc/frame.h"

typedef struct shmi_dispatch shmi_dispatch_t;

typedef struct shmi_dispatch_config {
  int children;
  int helpers;
  int pools;
  uint32_t window;
  const uint8_t *helper_pool;
  const uint8_t *min_credit;
  const uint8_t *helper_absent; /* 1: nobody is there until a helper is added; NULL: none is */
  int supervisor_fd; /* readable when the supervisor has something to do */
} shmi_dispatch_config_t;

enum shmi_turn {
  SHMI_TURN_SUPERVISOR = 1, /* supervisor_fd is readable */
  SHMI_TURN_READY = 2,      /* a helper said that its session is made, or is not */
  SHMI_TURN_LEFT = 4,       /* a child's pipe ended */
  SHMI_TURN_OFFENDED = 8,   /* a child broke the protocol beyond patience */
  SHMI_TURN_SIGNAL = 16,    /* the wait was interrupted */
  SHMI_TURN_FREED = 32      /* a dead child's slot may be used again */
};

enum shmi_peer_state {
  SHMI_PEER_NONE = 0,    /* nobody; of a child's slot: it may be used (again) */
  SHMI_PEER_STARTING,    /* a helper that makes its session */
  SHMI_PEER_UP,
  SHMI_PEER_LEFT,        /* a child that closed its pipe */
  SHMI_PEER_FAILED,      /* a helper that could not make its session */
  SHMI_PEER_OFFENDED,    /* a child that broke the protocol beyond patience */
  SHMI_PEER_QUARANTINED, /* a child that is gone while helpers may still write to its arena */
  SHMI_PEER_CLEARING     /* likewise; a helper gives back its arena's memory */
};

int shmi_dispatch_create(shmi_dispatch_t **out, const shmi_dispatch_config_t *config);
void shmi_dispatch_destroy(shmi_dispatch_t *dispatch);

/* Takes over all descriptors. The generation of the slot rises. */
int shmi_dispatch_add_child(shmi_dispatch_t *dispatch, int child, int request_fd, int reply_fd,
                            int pid);
/* files_fd: where it is passed memory files of slots that change hands; -1: it needs none. */
int shmi_dispatch_add_helper(shmi_dispatch_t *dispatch, int helper, int down_fd, int up_fd,
                             int files_fd, int pid, uint32_t generation);
uint32_t shmi_dispatch_child_generation(const shmi_dispatch_t *dispatch, int child);
int shmi_dispatch_child_state(const shmi_dispatch_t *dispatch, int child);
int shmi_dispatch_helper_state(const shmi_dispatch_t *dispatch, int helper);

/* The child is gone: its queued calls are dropped, its pipes closed. Its slot is quarantined
 * until every call of it that a helper holds has ended. */
void shmi_dispatch_remove_child(shmi_dispatch_t *dispatch, int child);
/* Of a child that is gone: once the quarantine is over have its arena's memory given back, and the
 * slot given another. Only then is it free (SHMI_TURN_FREED, state SHMI_PEER_NONE). */
void shmi_dispatch_clear_child(shmi_dispatch_t *dispatch, int child);
/* The helper is dead: what it finished is answered, what it was executing fails (or is queued
 * once more when it is idempotent), what it had not begun is queued again. Fills *victim with
 * a call that was executing, sequence 0 when there was none. */
typedef struct shmi_victim {
  uint64_t sequence;
  uint64_t function;
} shmi_victim_t;
void shmi_dispatch_remove_helper(shmi_dispatch_t *dispatch, int helper, shmi_victim_t *victim);
/* It will not be replaced: what waits for it alone fails; pool_too: and what waits for its pool. */
void shmi_dispatch_give_up_helper(shmi_dispatch_t *dispatch, int helper, int pool_too);
/* It is not needed any more: it gets nothing new, what waits for it alone fails, and once it has
 * finished what it holds and no result of its own waits for room, its pipe is closed, so it ends. */
void shmi_dispatch_retire_helper(shmi_dispatch_t *dispatch, int helper);
int shmi_dispatch_helper_is_closed(const shmi_dispatch_t *dispatch, int helper);
/* What a child may have outstanding, its weight in the fair queue, what helpers keep for it, from now
 * on. 0: as anybody. */
void shmi_dispatch_limit_child(shmi_dispatch_t *dispatch, int child, uint32_t window,
                               uint32_t weight, uint64_t parked_bytes);
/* Close the pipe to every helper: each ends when it has served what it holds. */
void shmi_dispatch_close_helpers(shmi_dispatch_t *dispatch);
/* Tell a caller that became a child that its broker is ready, or why it is not. */
void shmi_dispatch_tell_ready(shmi_dispatch_t *dispatch, int child, int status);

/* One turn; waits at most timeout_ns (< 0: no limit) with the signal mask given. Returns
 * shmi_turn bits or a negative status. */
int shmi_dispatch_turn(shmi_dispatch_t *dispatch, int64_t timeout_ns, const sigset_t *mask);

/* The helpers that have been executing one call for longer than its function allows, as a mask;
 * *next_ns: when to look again, 0: no need. */
uint64_t shmi_dispatch_hung(shmi_dispatch_t *dispatch, uint64_t now_ns, uint64_t *next_ns);
/* on: hand out no call any more; what helpers hold is finished and answered. off: go on. */
void shmi_dispatch_hold(shmi_dispatch_t *dispatch, int on);
/* Is there no call that a helper holds, no result that waits for room, no reply that was not read? */
int shmi_dispatch_is_drained(const shmi_dispatch_t *dispatch);

#endif
