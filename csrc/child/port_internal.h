/* port_internal -- what the port's two files share.
 *
 * port.c            the calls that a child makes: send, submit, grow, cancel; open and close
 * port_replies.c    the replies: who waits for which, and which thread reads the pipe
 *
 * Owns: the layout of the shmi_port. Must never: be included by any other file; others use port.h.
 */
#ifndef SHMI_PORT_INTERNAL_H
#define SHMI_PORT_INTERNAL_H

#include <pthread.h>

#include "child/port.h"
#include "child/reply_queue.h"
#include "ipc/adaptive_spin.h"
#include "ipc/scoreboard.h"

enum { SHMI_ENTRY_BITS = 10, SHMI_ENTRY_MASK = (1 << SHMI_ENTRY_BITS) - 1 };
_Static_assert((int)SHM_MAX_WINDOW <= (int)SHMI_ENTRY_MASK,
               "an entry's number fits a sequence's low bits");

enum shmi_entry_state {
  SHMI_ENTRY_FREE = 0,
  SHMI_ENTRY_WAITED = 1,  /* a thread waits for its reply, or will */
  SHMI_ENTRY_QUEUED = 2,  /* its reply goes to the queue of replies */
  SHMI_ENTRY_MESSAGE = 3, /* its reply goes to shm_read_msg */
  SHMI_ENTRY_DONE = 4,    /* the reply is here; its thread takes it */
  SHMI_ENTRY_GROWING = 5  /* the caller was asked for room: the broker waits for a GROW */
};

typedef struct shmi_entry {
  uint64_t sequence;
  uint64_t ticket; /* of a submitted call: its replies carry it */
  shm_msg_t msg;
  shm_reply_t reply;
  uint32_t futex;     /* raised whenever its thread should look again */
  uint32_t next;      /* free list, or list of followers */
  uint8_t state;
  uint8_t grows_to;   /* the state to return to after growing */
  uint8_t follows;    /* its thread sleeps in the list of followers */
  const void *thread; /* the thread that waits for it */
} shmi_entry_t;

typedef struct shmi_port {
  pthread_mutex_t lock;
  int request_fd, reply_fd, event_fd;
  int event_is_raised; /* the eventfd is readable: otherwise there is nothing to lower */
  uint32_t window;     /* the most it can ever be; how much it is now: shmi_port_window_now() */
  uint32_t outstanding;
  uint32_t free_list; /* entry + 1 */
  uint32_t followers; /* entry + 1 */
  uint64_t counter;
  uint32_t asks;       /* requests for room so far, of all calls: each has a number of its own */
  uint32_t room_futex; /* raised when an entry becomes free while a thread waits for one */
  uint32_t room_waiters;
  uint32_t drainers; /* threads asleep on the eventfd */
  uint32_t messages_outstanding;
  int leading;
  int broken; /* the broker is gone */
  int open;
  uint32_t epoch; /* raised at each close: a thread that finds another one after a wait is too late,
                     and touches nothing */
  int heeds;      /* the host has signal handlers of its own */
  int tick_fd, tick_is_set; /* the timer that says when to let it run them */
  shmi_replies_t queued, messages;
  shmi_replies_t growing; /* replies to submitted calls that ask for room: kept apart, because a thread
                             that waits for the window has to serve these, and nothing else */
  shmi_child_page_t *page;
  shmi_entry_t *entries;
  uint32_t entry_count;
  uint64_t arena_base, arena_bytes;
  uint64_t shift; /* added to an address here, gives the broker's: 0 unless attached elsewhere */
  int child;
  shmi_spin_t *spins; /* one call is open and a thread waits for it: how to spin for it; else NULL */
  uint64_t lone; /* of a submitted call: no other is open, and none was sent since; else 0 */
  int watches;   /* whoever led last waited for a lone call; else for several, or did other things */
  shmi_spin_t spin, gang_spin;
  const uint64_t *answered; /* how many of its calls were: the dispatcher counts */
  uint64_t answered_before; /* the lone call that is open was sent */
} shmi_port_t;

extern shmi_port_t shmi_port;

/* ---- port.c, with the lock held ---- */

/* Nobody waits for the call any more: if it is queued it need not run, and should keep no place that
 * others could have. Never blocks: where the pipe is full, the broker finds out by itself. */
void shmi_port_give_up(uint64_t sequence);

/* ---- port_replies.c; with the lock held, unless a comment says otherwise ---- */

/* The entry of the call with that sequence; NULL: there is none any more. */
shmi_entry_t *shmi_port_entry_of(uint64_t sequence);
/* An entry for a new call; NULL: the window is full. */
shmi_entry_t *shmi_port_entry_take(int state, const shm_msg_t *msg);
/* An entry for a caller that waits, leading if need be, until the window has room.
 * SHM_ENEEDS_SPACE: calls in the window ask for room for their results. They may fill the window,
 * and the thread that should give it may be this very one, which reads replies in an event loop or
 * runs a callback of another call: so the caller serves them and tries again. SHM_EWINDOW: the
 * thread would wait for itself. */
int shmi_port_entry_take_waiting(shmi_entry_t **entry, const shm_msg_t *msg, uint64_t deadline_ns);
void shmi_port_entry_free(shmi_entry_t *entry);
/* The entry's call has ended with the outcome in its reply: pass it on. */
void shmi_port_entry_settle(shmi_entry_t *entry, int led_by_drainer);
/* No reply will come any more: every open call ends with this status. */
void shmi_port_settle_all(int status, int led_by_drainer);
/* Wait for the reply of a call, leading if need be. */
int shmi_port_entry_wait(shmi_entry_t *entry, uint64_t deadline_ns, shm_reply_t *reply);
/* Wait for the reply of a submitted call, likewise; NULL: leave it where such replies are. As
 * shm_port_await_reply. */
int shmi_port_end_wait(uint64_t sequence, uint64_t deadline_ns, int beside_fd, shm_reply_t *reply);
/* Wait for queued replies: how many there are, in the form of shm_port_await. */
int64_t shmi_port_await_replies(int64_t timeout_ns);
uint32_t shmi_port_window_now(void);

/* Read replies once, as the leader; the lock is released while reading. timeout_ns < 0: block.
 * SHM_OK when frames were settled, SHM_EAGAIN at the time-out, SHM_ENOT_RUNNING when the port was
 * closed meanwhile, SHM_EINTR where beside_fd (-1: none) became readable first. */
int shmi_port_lead_once(int64_t timeout_ns, int as_drainer, int beside_fd);
/* Nobody leads any more: wake one of those who wait for that. */
void shmi_port_lead_pass(void);
/* Take the lock after waiting without it: is the port still the one of that epoch? */
int shmi_port_lock_again(uint32_t epoch);
/* Without the lock: wait for a reply. 1; 0 at the time-out (< 0: none); SHM_EINTR when the host
 * should run its signal handlers. */
int shmi_port_wait_for_reply(int reply_fd, int tick_fd, int64_t timeout_ns);
/* Without the lock: wait until the word is no longer `seen`; SHM_OK may come early. */
int shmi_port_futex_wait(uint32_t *word, uint32_t seen, uint64_t deadline_ns);

/* The eventfd that tells sleeping drainers and event loops about replies. */
int shmi_port_event_fd_make(void);
void shmi_port_event_signal(void);
void shmi_port_event_lower(void);
int shmi_port_has_ended(void); /* the broker is gone, whether or not a call has noticed */

#endif
