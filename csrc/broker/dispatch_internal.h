/* dispatch_internal -- what the dispatcher's files share: its children and helpers, and what is in
 * flight.
 *
 * dispatch.c            the turn: wait, have everything read, handed out and written
 * dispatch_children.c   what children send; how they are added and removed
 * dispatch_helpers.c    what helpers answer; how they are added, let go and removed
 * dispatch_assign.c     what is sent to helpers: calls, room for results, arenas to clear
 * dispatch_broadcasts.c calls that run once on each helper of a pool, and on each that joins it
 * dispatch_replies.c    what is sent to children: the outcomes of their calls
 *
 * Owns: the layout of the dispatcher's tables. Must never: be included by any other file; others
 * use dispatch.h.
 */
#ifndef SHMI_DISPATCH_INTERNAL_H
#define SHMI_DISPATCH_INTERNAL_H

#include "broker/dispatch.h"
#include "broker/poll_set.h"
#include "broker/schedule.h"
#include "ipc/adaptive_spin.h"
#include "ipc/scoreboard.h"

/* What the poll set reports: whose descriptor is ready. */
enum shmi_watched {
  SHMI_WATCHED_CHILD,
  SHMI_WATCHED_HELPER,
  SHMI_WATCHED_SUPERVISOR,
  SHMI_WATCHED_ROOM /* a helper whose pipe was full */
};

typedef struct shmi_child {
  int request_fd, reply_fd;
  int state;
  uint32_t generation;
  uint32_t outstanding;  /* calls whose reply has not been written yet */
  uint32_t parked;       /* of these, calls for whose result the child is to make room */
  uint32_t window;       /* the most it may have outstanding: the largest it was ever allowed */
  uint8_t was_told_window;
  uint64_t call_interval_ns; /* by its quota of calls a second; 0: it has none */
  uint64_t call_due_ns;  /* when its next call would come at that rate */
  uint64_t parked_at;    /* mask of the helpers that may keep such results */
  uint32_t in_flight;    /* deliveries that helpers hold, for which they may write to its arena */
  uint64_t mapped_by;    /* mask of the helpers that map its arena's present memory file */
  uint64_t cleared_to;   /* a dead child's arena is zero below this offset */
  uint8_t may_broadcast;
  uint8_t wants_clearing, is_cleared_now; /* it is to be cleared; a helper is doing so */
  uint32_t replies_head, replies_tail; /* finished requests whose reply is to be written */
  uint32_t dirty_next;   /* in the list of children with replies */
  uint8_t is_dirty;
} shmi_child_t;

typedef struct shmi_helper {
  int down_fd, up_fd;
  int files_fd; /* where memory files are passed to it; -1: nowhere */
  int state;
  uint32_t generation;
  uint64_t deliveries;      /* the last number given */
  uint64_t lowest;          /* every delivery below it is finished */
  uint32_t in_flight;       /* calls and grows written or about to be */
  uint8_t is_full;      /* its numbers are nearly used up: no call until the oldest have ended */
  uint8_t is_blocked;   /* its pipe was full: we wait until it has room */
  uint8_t applies;      /* it holds a broadcast, ... */
  uint8_t is_behind;    /* has not had the last one of its pool, ... */
  uint8_t is_condemned; /* or one failed there: it gets no calls */
  uint32_t heard_early; /* calls whose end its page reported before their replies arrived */
  int is_retiring;
  uint8_t is_unloading; /* it retires because it was idle: another one takes its place at once */
  int must_notify;      /* it is to be told that a child has left */
  uint32_t notices;     /* sent since its last answer, or since its pipe was seen to be empty */
  uint64_t waited_ns;   /* when it was last seen to wait for other members of its gang */
  uint8_t was_waiting;  /* at the last look */
  uint64_t deferred_ns; /* the page's counter at its last answer */
  const shmi_function_t *answered; /* the function of its last answer; NULL: none yet */
  uint32_t grow_head, grow_tail; /* grows that wait for room in the pipe */
  uint32_t out_count;
  uint32_t to_pass; /* how many memory files are to be sent before these */
  uint32_t by_delivery[SHMI_DELIVERY_RING];
  shmi_frame_t out[SHMI_DELIVERY_RING];
} shmi_helper_t;

/* How many delivery numbers are in use, from the lowest that has not ended to the last that was
 * given out. Calls that have ended leave gaps: a GROW overtakes calls, and may do so many times. */
static inline uint64_t shmi_helper_span(const shmi_helper_t *helper) {
  return helper->in_flight == 0 ? 0 : helper->deliveries - helper->lowest + 1;
}

enum {
  /* A helper gets GROWs and CLEARs while fewer numbers than this are in use, which is also what its
   * pipe is sure to hold ... */
  SHMI_SPAN_OF_GROWS = SHM_MAX_WINDOW,
  /* ... and calls while a whole batch still fits the rings. */
  SHMI_SPAN_OF_CALLS = SHMI_DELIVERY_RING - 1 - SHMI_CREDIT_MAX / 2
};
_Static_assert((int)SHMI_SPAN_OF_GROWS < (int)SHMI_DELIVERY_RING, "no ring laps itself");

enum {
  SHMI_LOOK_NS = 10000000,      /* how long a helper may hold back a reply */
  SHMI_GANG_LOOK_NS = 250000000 /* half of how long members may all wait for each other */
};

typedef struct shmi_broadcasts shmi_broadcasts_t;

struct shmi_dispatch {
  shmi_dispatch_config_t config;
  shmi_schedule_t *schedule;
  shmi_child_t *children;
  shmi_helper_t *helpers;
  shmi_poll_set_t poll_set;
  int flags;        /* shmi_turn bits gathered outside a turn */
  uint32_t dirty; /* child + 1: head of the list of children with replies */
  shmi_broadcasts_t *broadcasts;
  uint64_t to_advance;  /* mask of the helpers that are to get a kept broadcast */
  uint64_t retiring;    /* mask of the helpers whose pipe is to be closed */
  uint64_t holding_several; /* helpers that hold more than one call */
  uint64_t look_ns;     /* when their pages are looked at next */
  uint32_t gangs;       /* handed over, and not ended yet */
  uint64_t gang_look_ns; /* when their members' lines are looked at next */
  uint64_t now_ns;
  uint64_t least_hang_ns; /* the shortest hang_after of all functions; 0: none has one */
  uint64_t stopped_until_ns; /* nothing has hung since before that */
  int holding;      /* no call is handed out */
  int clearing;     /* slots whose arenas are being cleared */
  int is_watched;   /* the latest call: whoever waits for it may call again at once */
  int is_quiet;     /* the last turn answered it, and all others there were */
  shmi_spin_t spin; /* for the next one, then */
  int is_late;      /* a descriptor or memory was not available: try again soon */
  const shmi_scoreboard_t *scoreboard;
};

/* dispatch_children.c */
/* The poll set reports arrivals once, so everything in the pipe must be read now. A short read has
 * emptied the pipe; at_end (the writer is gone) reads on to the end of file. */
void shmi_dispatch_read_child(shmi_dispatch_t *d, int slot, int at_end);

/* dispatch_helpers.c */
/* Call after delivery numbers of helper h were given out or came back: may it be given calls? */
void shmi_dispatch_check_span(shmi_dispatch_t *d, int h);
void shmi_dispatch_read_helper(shmi_dispatch_t *d, int h, int at_end); /* as read_child */
/* A helper holds replies back while it expects its next call to be short. When that call turns out
 * long, the outcomes stand in the control page: take them from there. */
void shmi_dispatch_look_at_pages(shmi_dispatch_t *d);
/* Give up gangs whose members all wait for each other: they would do so for ever. */
void shmi_dispatch_look_at_gangs(shmi_dispatch_t *d);
/* Whether it may get calls has changed: tell the policy. */
void shmi_dispatch_spare(shmi_dispatch_t *d, int h);
/* Its session is made, and it has had all broadcasts: it gets calls from now on. */
void shmi_dispatch_made_up(shmi_dispatch_t *d, int h);
/* Close the pipes of helpers that are retiring and hold nothing any more. */
void shmi_dispatch_close_retired(shmi_dispatch_t *d);
/* The status of a call that none of these helpers will run: were they let go, or given up? */
int shmi_dispatch_why_gone(const shmi_dispatch_t *d, uint64_t placement);

/* dispatch_assign.c */
void shmi_dispatch_hand_out(shmi_dispatch_t *d);
/* The request is helper h's from now on. The caller has checked that a delivery number is left. more:
 * the next one belongs to the same batch. */
void shmi_dispatch_put_out(shmi_dispatch_t *d, int h, uint32_t number, int more);
/* Whether a helper may write to the arena of the child that the frame names. */
static inline int shmi_frame_uses_arena(const shmi_frame_t *frame) {
  if (frame->kind == SHMI_FRAME_APPLY) return frame->msg.params != NULL;
  return frame->kind != SHMI_FRAME_CLEAR;
}
/* Request `number` offers room for a result that helper h keeps: queue it for h's pipe. */
void shmi_dispatch_wait_to_grow(shmi_dispatch_t *d, int h, uint32_t number);
/* Drop the room that a dead child had made for results. */
void shmi_dispatch_drop_grows(shmi_dispatch_t *d, int slot);
/* A helper has finished a delivery: it no longer writes to that child's arena for it. */
void shmi_dispatch_released(shmi_dispatch_t *d, int slot);
/* No helper can write to that dead child's arena any more. */
void shmi_dispatch_leave_quarantine(shmi_dispatch_t *d, int slot);
/* A stretch was cleared, or its helper died doing so: then it is cleared again. */
void shmi_dispatch_finish_clear(shmi_dispatch_t *d, uint32_t number, int status);

/* dispatch_broadcasts.c */
int shmi_broadcasts_create(shmi_broadcasts_t **out);
void shmi_broadcasts_destroy(shmi_broadcasts_t *all);
/* Whether it is a child's request for one. */
int shmi_dispatch_is_broadcast(const shmi_frame_t *frame);
/* An admitted request for one: queue it when its turn comes. */
void shmi_dispatch_take_broadcast(shmi_dispatch_t *d, uint32_t number,
                                  const shmi_function_t *function);
/* Call before request `number` is answered or dropped: the next one may begin. */
void shmi_dispatch_broadcast_over(shmi_dispatch_t *d, uint32_t number);
/* Take one request of the child that waits for its turn out of the line (sequence 0: any), or
 * SHMI_NONE. */
uint32_t shmi_dispatch_drop_broadcast(shmi_dispatch_t *d, int slot, uint64_t sequence);
/* It is given to its first helper: complete the frame. */
void shmi_dispatch_broadcast_handed(shmi_dispatch_t *d, int h, shmi_frame_t *frame);
/* The first helper has answered. */
void shmi_dispatch_broadcast_ran(shmi_dispatch_t *d, int h, uint32_t number, int status,
                                 uint64_t value, uint32_t started, uint32_t finished);
/* Another one has, or has died (SHM_EHELPER_DIED). */
void shmi_dispatch_applied(shmi_dispatch_t *d, int h, uint32_t number, int status, uint64_t value,
                           uint32_t started, uint32_t finished);
/* Its session is made: whether there are broadcasts that it must have before it gets calls. */
int shmi_dispatch_must_catch_up(shmi_dispatch_t *d, int h);
/* Queue what is due for helpers that have not had all broadcasts. Returns their mask. */
uint64_t shmi_dispatch_advance_helpers(shmi_dispatch_t *d);
/* Send the file of an APPLY, which is about to be written to helper h. As shmi_passing_send. */
int shmi_dispatch_pass_kept(shmi_dispatch_t *d, int h, shmi_frame_t *frame);
/* Nobody waits for that helper any more: it is dead, or gets no calls again. */
void shmi_dispatch_excuse(shmi_dispatch_t *d, int h);

/* dispatch_replies.c */
/* Every submitted call is counted once more: as answered (its outcome is on the way to its child,
 * which may die before it reads it) or as dropped (its child had died before). */
void shmi_dispatch_count_dropped(shmi_dispatch_t *d, int slot, uint64_t calls);
/* The trace record of a request that is over. */
shm_trace_record_t shmi_dispatch_life_of(const shmi_dispatch_t *d, const shmi_request_t *r,
                                         int status, uint32_t started, uint32_t finished);
/* Request `number` has this outcome: write its trace record, turn the request into its reply and
 * queue that for its child. If the child is gone, the request is dropped. */
void shmi_dispatch_answer(shmi_dispatch_t *d, uint32_t number, int status, uint64_t value,
                          uint64_t token, uint32_t started, uint32_t finished);
void shmi_dispatch_answer_plain(shmi_dispatch_t *d, uint32_t number, int status);
void shmi_dispatch_forget_replies(shmi_dispatch_t *d, int slot);
void shmi_dispatch_flush_replies(shmi_dispatch_t *d);

#endif
