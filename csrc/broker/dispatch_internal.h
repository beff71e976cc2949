/* dispatch_internal -- what the dispatcher's files share: who is there, and what is in flight.
 *
 * dispatch.c            the turn: wait, have everything read, handed out and written
 * dispatch_children.c   what children send; how they come and go
 * dispatch_helpers.c    what helpers answer; how they come, are let go, and die
 * dispatch_assign.c     calls, room for results and zeros for dead arenas, on their way to helpers
 * dispatch_replies.c    outcomes on their way to children
 *
 * For these five alone: others see dispatch.h.
 */
#ifndef SHMI_DISPATCH_BOOKS_H
#define SHMI_DISPATCH_BOOKS_H

#include "broker/dispatch.h"
#include "broker/schedule.h"
#include "ipc/scoreboard.h"

enum shmi_peer {
  SHMI_PEER_IS_CHILD,
  SHMI_PEER_IS_HELPER,
  SHMI_PEER_IS_SUPERVISOR,
  SHMI_PEER_HAS_ROOM /* a helper whose pipe was full */
};

typedef struct shmi_child {
  int request_fd, reply_fd;
  int state;
  uint32_t generation;
  uint32_t outstanding;  /* calls the child may not have a reply for yet */
  uint32_t parked;       /* of these, told to make room for a result and not yet done so */
  uint32_t window;       /* the most it may have outstanding: the largest that it was ever told */
  uint8_t was_told_window;
  uint64_t parked_at;    /* helpers that may keep such results, as a mask */
  uint32_t in_flight;    /* deliveries that helpers hold and may write to its arena for */
  uint64_t mapped_by;    /* helpers that map its arena's present memory file, or are told to */
  uint64_t cleared_to;   /* of a dead child's arena: what lies below is zero */
  uint8_t wants_clearing, is_cleared_now; /* to be cleared; a helper is at it */
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
  uint8_t is_full;     /* its numbers are nearly used up: no call until the oldest have ended */
  uint8_t is_blocked;  /* its pipe was full: room in it is watched for */
  uint32_t heard_early; /* calls that its page said have ended, and whose replies are to come */
  int is_retiring;
  int is_to_hear;      /* that a child has left */
  uint32_t told;       /* that, times since its last answer, or since its pipe was seen to be empty */
  uint64_t went_on_ns; /* of its page, when the last answer was heard */
  const shmi_function_t *answered; /* the function of that; NULL: there is none */
  uint32_t grow_head, grow_tail; /* grows that wait for room in the pipe */
  uint32_t out_count;
  uint32_t to_pass; /* of these, whose memory file is to be passed ahead of them */
  uint32_t by_delivery[SHMI_BOARD_RING];
  shmi_frame_t out[SHMI_BOARD_RING];
} shmi_helper_t;

/* How many delivery numbers are taken, from the lowest that has not ended to the last that was given.
 * Calls that have ended leave gaps: a GROW overtakes calls, and may do so many times. */
static inline uint64_t shmi_helper_span(const shmi_helper_t *helper) {
  return helper->in_flight == 0 ? 0 : helper->deliveries - helper->lowest + 1;
}

enum {
  /* A helper gets room for results and arenas to clear while fewer numbers are taken, which is also
   * what its pipe is sure to hold ... */
  SHMI_SPAN_OF_GROWS = SHM_MAX_WINDOW,
  /* ... and calls while a whole batch still fits the rings. */
  SHMI_SPAN_OF_CALLS = SHMI_BOARD_RING - 1 - SHMI_CREDIT_MAX / 2
};
_Static_assert((int)SHMI_SPAN_OF_GROWS < (int)SHMI_BOARD_RING, "no ring laps itself");

enum { SHMI_LOOK_NS = 10000000 }; /* how long a reply may lie with its helper */

struct shmi_dispatch {
  shmi_dispatch_config_t config;
  shmi_schedule_t *schedule;
  shmi_child_t *children;
  shmi_helper_t *helpers;
  int epoll_fd;
  int flags;        /* shmi_turn bits gathered outside a turn */
  int coarse_waits; /* the kernel has no epoll_pwait2: waits are rounded up to milliseconds */
  uint32_t dirty; /* child + 1: head of the list of children with replies */
  uint64_t retiring;    /* those whose pipe is to be closed */
  uint64_t holding_several; /* helpers that hold more than one call */
  uint64_t look_ns;     /* when their pages are looked at next */
  uint64_t now_ns;
  uint64_t least_hang_ns; /* the shortest hang_after of all functions; 0: none has one */
  int holding;      /* no call is handed out */
  int clearing;     /* slots in that state */
  int is_late;      /* something could not be had: what waits for it is tried again soon */
  const shmi_scoreboard_t *scoreboard;
};

/* dispatch.c */
int shmi_dispatch_watch(shmi_dispatch_t *d, int fd, enum shmi_peer peer, int index);
/* Have what is still to be read there reported once more. */
void shmi_dispatch_watch_anew(shmi_dispatch_t *d, int fd, enum shmi_peer peer, int index);
/* Be woken when helper h, whose pipe is full, has read from it. */
void shmi_dispatch_watch_room(shmi_dispatch_t *d, int h, int on);
void shmi_dispatch_unwatch(shmi_dispatch_t *d, int *fd); /* and close it */

/* dispatch_children.c */
/* Edge-triggered: whatever lies in the pipe is read now, or never heard of again. A read that
 * came back short has emptied the pipe; at_end (the writer is gone) reads on to the end. */
void shmi_dispatch_read_child(shmi_dispatch_t *d, int slot, int at_end);

/* dispatch_helpers.c */
/* Numbers were given to helper h, or taken back: may it be given calls? */
void shmi_dispatch_mind_span(shmi_dispatch_t *d, int h);
void shmi_dispatch_read_helper(shmi_dispatch_t *d, int h, int at_end); /* likewise */
/* Replies wait for company while the next call of their helper is taken for short. When it is not,
 * the page says what the pipe does not: hear of it from there. */
void shmi_dispatch_look_at_pages(shmi_dispatch_t *d);
/* Those that are retiring and hold nothing any more: close their pipes. */
void shmi_dispatch_close_retired(shmi_dispatch_t *d);
/* The status of a call that none of these helpers will run: they were let go, or given up. */
int shmi_dispatch_why_gone(const shmi_dispatch_t *d, uint64_t placement);

/* dispatch_assign.c */
void shmi_dispatch_hand_out(shmi_dispatch_t *d);
/* Request `number`, room for a result that helper h keeps, waits for its turn in h's pipe. */
void shmi_dispatch_wait_to_grow(shmi_dispatch_t *d, int h, uint32_t number);
/* Room that a dead child made for results is no room any more. */
void shmi_dispatch_drop_grows(shmi_dispatch_t *d, int slot);
/* A helper has ended a delivery, and writes to that child's arena for it no more. */
void shmi_dispatch_released(shmi_dispatch_t *d, int slot);
/* No helper can write to that dead child's arena any more. */
void shmi_dispatch_leave_quarantine(shmi_dispatch_t *d, int slot);
/* A stretch was cleared, or its helper died over it: then it is cleared again. */
void shmi_dispatch_finish_clear(shmi_dispatch_t *d, uint32_t number, int status);

/* dispatch_replies.c */
/* Every call counted as submitted comes to be counted either as answered (its outcome is on its
 * way to its child, who may read it or die first) or as dropped (its child died before). */
void shmi_dispatch_count_dropped(shmi_dispatch_t *d, int slot, uint64_t calls);
/* Request `number` is over with this outcome: enter its trace, make it its own reply, and queue
 * that for its child. The child may be gone, then it is dropped. */
void shmi_dispatch_answer(shmi_dispatch_t *d, uint32_t number, int status, uint64_t value,
                          uint64_t token, uint32_t started, uint32_t finished);
void shmi_dispatch_answer_plain(shmi_dispatch_t *d, uint32_t number, int status);
void shmi_dispatch_forget_replies(shmi_dispatch_t *d, int slot);
void shmi_dispatch_flush_replies(shmi_dispatch_t *d);

#endif
