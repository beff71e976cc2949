/* dispatch -- the parent's loop: frames in, policy asked, frames out.
 *
 * One turn: wait; read everything that helpers answered and children sent; hand out what the policy
 * says; write every reply. Whatever is ready is read in one go, and whatever is due for one process
 * is written in one go, because wake-ups are the cost.
 *
 * All pipes are in one poll set, together with one descriptor of the supervisor's (itself the set
 * of all pidfds), so the cost of a turn depends on what is ready, not on how many processes there
 * are. The alternative was measured: a poll over the helpers, with the children's set nested in it,
 * costs a second system call, 1 us of a lone caller's 15 us round trip.
 *
 * A frame from a child is validated in dispatch_children.c (take_call), by the rules in
 * ipc/frame.h.
 *
 * Owns: the parent's pipe ends, what is in flight, the statistics and the trace. Must never:
 * block anywhere but in the wait, fork, signal, or touch an arena.
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
  const uint8_t *helper_absent; /* 1: the slot is empty until a helper is added; NULL: none is */
  int by_deadline;    /* see schedule.h */
  int supervisor_fd; /* readable when the supervisor has something to do */
} shmi_dispatch_config_t;

enum shmi_turn {
  SHMI_TURN_SUPERVISOR = 1, /* supervisor_fd is readable */
  SHMI_TURN_READY = 2,      /* a helper reported that its session is made, or has failed */
  SHMI_TURN_LEFT = 4,       /* a child's pipe ended */
  SHMI_TURN_OFFENDED = 8,   /* a child broke the protocol beyond patience */
  SHMI_TURN_SIGNAL = 16,    /* the wait was interrupted */
  SHMI_TURN_FREED = 32      /* a dead child's slot may be used again */
};

enum shmi_peer_state {
  SHMI_PEER_NONE = 0,    /* nobody: the slot may be used */
  SHMI_PEER_STARTING,    /* a helper that makes its session */
  SHMI_PEER_UP,
  SHMI_PEER_LEFT,        /* a child that closed its pipe */
  SHMI_PEER_FAILED,      /* a helper that could not make its session */
  SHMI_PEER_OFFENDED,    /* a child that broke the protocol beyond patience */
  SHMI_PEER_QUARANTINED, /* the child is gone, but helpers may still write to its arena */
  SHMI_PEER_CLEARING     /* the child is gone, and helpers are giving back its arena's memory */
};

int shmi_dispatch_create(shmi_dispatch_t **out, const shmi_dispatch_config_t *config);
void shmi_dispatch_destroy(shmi_dispatch_t *dispatch);

/* Takes over all descriptors. The generation of the slot rises. */
int shmi_dispatch_add_child(shmi_dispatch_t *dispatch, int child, int request_fd, int reply_fd,
                            int pid);
/* files_fd: the socket over which it gets the memory files of slots that change hands; -1: none. */
int shmi_dispatch_add_helper(shmi_dispatch_t *dispatch, int helper, int down_fd, int up_fd,
                             int files_fd, int pid, uint32_t generation);
uint32_t shmi_dispatch_child_generation(const shmi_dispatch_t *dispatch, int child);
int shmi_dispatch_child_state(const shmi_dispatch_t *dispatch, int child);
/* Whether it closed its pipe, be it only an instant ago. */
int shmi_dispatch_child_has_left(const shmi_dispatch_t *dispatch, int child);
int shmi_dispatch_helper_state(const shmi_dispatch_t *dispatch, int helper);

/* The child is gone: drop its queued calls, close its pipes. Its slot is quarantined until every
 * one of its calls that a helper holds has ended. */
void shmi_dispatch_remove_child(shmi_dispatch_t *dispatch, int child);
/* For a child that is gone: once the quarantine is over, have its arena's memory given back and
 * give the slot a new memory file. Only then is it free (SHMI_TURN_FREED, state SHMI_PEER_NONE). */
void shmi_dispatch_clear_child(shmi_dispatch_t *dispatch, int child);
/* The helper is dead: what it finished is answered, what it was executing fails (or is queued
 * once more when it is idempotent), what it had not begun is queued again. Fills *victim with
 * a call that was executing, sequence 0 when there was none. */
typedef struct shmi_victim {
  uint64_t sequence;
  uint64_t function;
} shmi_victim_t;
void shmi_dispatch_remove_helper(shmi_dispatch_t *dispatch, int helper, shmi_victim_t *victim);
/* It will not be replaced: calls that wait for it alone fail; pool_too: so do those that wait for
 * its pool. */
void shmi_dispatch_give_up_helper(shmi_dispatch_t *dispatch, int helper, int pool_too);
/* It is not needed any more: it gets no new calls, and calls that wait for it alone fail. Once it
 * has finished what it holds, and no result that it keeps waits for room, its pipe is closed, so it
 * ends. */
void shmi_dispatch_retire_helper(shmi_dispatch_t *dispatch, int helper);
/* Whether it ends because it had nothing to do, and another one is to take its place. */
int shmi_dispatch_helper_is_unloading(const shmi_dispatch_t *dispatch, int helper);
int shmi_dispatch_helper_is_closed(const shmi_dispatch_t *dispatch, int helper);
/* Whether a broadcast failed there: its pipe is closed once it holds nothing, and it is to be
 * replaced. */
int shmi_dispatch_helper_is_condemned(const shmi_dispatch_t *dispatch, int helper);
/* Whether it may broadcast. At first every child may. */
void shmi_dispatch_let_broadcast(shmi_dispatch_t *dispatch, int child, int may);
/* Limit from now on how many calls a child may have outstanding, its weight in the fair queue, how
 * many bytes of results helpers keep for it, and its calls a second. 0: as for any other child. */
void shmi_dispatch_limit_child(shmi_dispatch_t *dispatch, int child, const shm_quota_t *quota);
/* Close the pipe to every helper: each ends when it has served what it holds. */
void shmi_dispatch_close_helpers(shmi_dispatch_t *dispatch);
/* Tell a caller that became a child that its broker is ready, or why it is not. */
void shmi_dispatch_tell_ready(shmi_dispatch_t *dispatch, int child, int status);

/* One turn; waits at most timeout_ns (< 0: no limit) with the signal mask given. Returns
 * shmi_turn bits or a negative status. */
int shmi_dispatch_turn(shmi_dispatch_t *dispatch, int64_t timeout_ns, const sigset_t *mask);

/* A mask of the helpers that have been executing one call for longer than its function allows;
 * *next_ns: when to look again, 0: no need. */
uint64_t shmi_dispatch_hung(shmi_dispatch_t *dispatch, uint64_t now_ns, uint64_t *next_ns);
/* Until then this process did not run, and its helpers most likely neither: what they execute is
 * timed from then on. */
void shmi_dispatch_was_stopped(shmi_dispatch_t *dispatch, uint64_t until_ns);
/* on: hand out no more calls; what helpers hold is finished and answered. off: resume. */
void shmi_dispatch_hold(shmi_dispatch_t *dispatch, int on);
/* The same for one pool. Returns whether that changes anything. */
int shmi_dispatch_pause_pool(shmi_dispatch_t *dispatch, int pool, int on);
/* Is there no call that a helper holds, no result that waits for room, no reply that was not
 * read? */
int shmi_dispatch_is_drained(const shmi_dispatch_t *dispatch);

#endif
