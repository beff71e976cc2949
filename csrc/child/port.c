/* port -- see port.h. */
#include "child/port.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "child/adaptive_spin.h"
#include "child/reply_queue.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum { ENTRY_BITS = 10, ENTRY_MASK = (1 << ENTRY_BITS) - 1 };
enum { SPARE_ENTRIES = 64 };
_Static_assert((int)SHM_MAX_WINDOW <= (int)ENTRY_MASK, "an entry's number fits a sequence's low bits");

enum entry_state {
  ENTRY_FREE = 0,
  ENTRY_WAITED = 1,  /* a thread waits, or will */
  ENTRY_QUEUED = 2,  /* its reply goes to the queue of replies */
  ENTRY_TALK = 3,    /* its reply goes to shm_read_msg */
  ENTRY_DONE = 4,    /* the reply is here; its thread takes it */
  ENTRY_GROWING = 5  /* the caller was told to make room: the broker waits for a GROW */
};

typedef struct entry {
  uint64_t sequence;
  uint64_t ticket; /* of a submitted call: its replies bear it */
  shm_msg_t msg;
  shm_reply_t reply;
  uint32_t futex;     /* rises whenever its thread should look again */
  uint32_t next;      /* free list, or list of followers */
  uint8_t state;
  uint8_t grows_to;   /* the state to return to after growing */
  uint8_t follows;    /* its thread sleeps in the list of followers */
  const void *thread; /* whose call it is, of one that is waited for */
} entry_t;

static struct port {
  pthread_mutex_t lock;
  int request_fd, reply_fd, event_fd;
  int event_is_raised; /* the eventfd is readable: only then is it worth a system call to lower it */
  uint32_t window; /* entries of the table; the calls that may be out now: window_now() */
  uint32_t outstanding;
  uint32_t free_list; /* entry + 1 */
  uint32_t followers; /* entry + 1 */
  uint64_t counter;
  uint32_t asks; /* for room, of all calls: each has a number of its own */
  uint32_t room_futex; /* rises when an entry becomes free and somebody waits for one */
  uint32_t room_waiters;
  uint32_t drainers; /* threads asleep on the eventfd */
  uint32_t talk_outstanding;
  int leading;
  int broken; /* the broker is gone */
  int open;
  uint32_t closings; /* who finds another number after a wait was left behind, and touches nothing */
  int heeds; /* the host has signal handlers that want to be run */
  int tick_fd, tick_is_set; /* the timer that says when to look for them */
  shmi_replies_t queued, talk;
  shmi_replies_t growing; /* replies to submitted calls that ask for room: apart, because whoever waits
                            for a place in the window has to serve them, and nothing else */
  shmi_child_page_t *page;
  entry_t *entries;
  uint32_t entry_count;
  uint64_t arena_base, arena_bytes;
  uint64_t shift; /* what an address here lacks to be the broker's: 0 unless joined elsewhere */
  int child;
  int spins; /* one call is out, and it is waited for: watching for its answer may pay */
  shmi_spin_t spin;
} port = {.lock = PTHREAD_MUTEX_INITIALIZER, .request_fd = -1, .reply_fd = -1, .event_fd = -1,
          .tick_fd = -1};

/* ---- small tools ---- */

/* A handler that ran a moment before a wait began interrupts no wait, and where handlers only make
 * a note (Python's do) the note would be read when the call has ended. So a host with handlers of
 * its own is let look every HEED_NS: the wait says SHM_EINTR, and is resumed. The clock is a timer
 * that is set once in HEED_NS, not once a wait: programming one costs as much as a tenth of a call.
 * Followers have nobody to wake for that but the main thread, where handlers run. */
enum { HEED_NS = 100000000 };
enum { CLOSE_NS = 1000000000, CLOSE_LOOK_NS = 1000000 };

static int is_main_thread(void) {
  static _Thread_local int known; /* 1: no, 2: yes */
  if (known == 0) known = syscall(SYS_gettid) == getpid() ? 2 : 1;
  return known == 2;
}

static const void *this_thread(void) {
  static _Thread_local char here;
  return &here;
}

static int heeds(void) { return port.heeds && is_main_thread(); }

/* Wait for a reply: 1, 0 at the time-out (< 0: none), SHM_EINTR when it is time to look. */
static int wait_for_reply(int reply_fd, int tick_fd, int64_t timeout_ns) {
  if (tick_fd < 0) return shmi_pipe_wait(reply_fd, timeout_ns);
  if (!port.tick_is_set) {
    struct itimerspec once = {.it_value = {.tv_nsec = HEED_NS}};
    timerfd_settime(tick_fd, 0, &once, NULL);
    port.tick_is_set = 1;
  }
  int ready = shmi_pipe_wait_either(reply_fd, tick_fd, timeout_ns);
  if (ready != 2) return ready;
  port.tick_is_set = 0; /* the next wait sets it anew, which takes the tick back: no read, because
                           bytes read are counted, and shall be those of frames */
  return SHM_EINTR;
}

static int futex_wait(uint32_t *word, uint32_t seen, uint64_t deadline_ns) {
  uint64_t look_ns = heeds() ? shmi_clock_ns() + HEED_NS : 0;
  int looks = look_ns != 0 && (deadline_ns == 0 || look_ns < deadline_ns);
  if (looks) deadline_ns = look_ns;
  struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                           .tv_nsec = (long)(deadline_ns % 1000000000)};
  /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time. */
  long got = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen,
                     deadline_ns != 0 ? &until : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
  if (got == 0 || errno == EAGAIN) return SHM_OK;
  if (errno == EINTR) return SHM_EINTR;
  if (errno == ETIMEDOUT) return looks ? SHM_EINTR : SHM_ETIMEOUT;
  return SHM_ESYSTEM;
}

static void futex_raise(uint32_t *word) {
  __atomic_add_fetch(word, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT32_MAX, NULL, NULL, 0);
}

static void event_signal(void) {
  uint64_t one = 1;
  /* An eventfd counter that is already raised needs nothing more. */
  if (port.event_fd < 0) return;
  port.event_is_raised = 1;
  if (write(port.event_fd, &one, sizeof one) < 0 && errno != EAGAIN) return;
}

/* ---- entries; all with the lock held ---- */

static entry_t *entry_of(uint64_t sequence) {
  uint32_t index = (uint32_t)(sequence & ENTRY_MASK);
  if (index >= port.entry_count) return NULL;
  entry_t *entry = &port.entries[index];
  return entry->state != ENTRY_FREE && entry->sequence == sequence ? entry : NULL;
}

/* The broker may make it smaller or larger at any time (a quota that is read anew). */
static uint32_t window_now(void) {
  uint64_t told =
      __atomic_load_n(&shmi_scoreboard()->child_stats[port.child].window, __ATOMIC_RELAXED);
  return told == 0 || told > port.window ? port.window : (uint32_t)told;
}

static entry_t *entry_take(int state, const shm_msg_t *msg) {
  if (port.free_list == 0 || port.outstanding >= window_now()) return NULL;
  uint32_t index = port.free_list - 1;
  entry_t *entry = &port.entries[index];
  port.free_list = entry->next;
  port.outstanding++;
  entry->sequence = ++port.counter << ENTRY_BITS | index;
  entry->ticket = 0;
  entry->state = (uint8_t)state;
  entry->follows = 0;
  entry->thread = this_thread();
  entry->msg = *msg;
  return entry;
}

/* Its place in the window goes to others. */
static void entry_leave_window(void) {
  port.outstanding--;
  if (port.room_waiters > 0) futex_raise(&port.room_futex);
}

static void entry_free(entry_t *entry) {
  /* One that is done has left the window already. */
  int was_done = entry->state == ENTRY_DONE && entry->reply.status != SHM_ENEEDS_SPACE;
  entry->state = ENTRY_FREE;
  entry->next = port.free_list;
  port.free_list = (uint32_t)(entry - port.entries) + 1;
  if (!was_done) entry_leave_window();
  else if (port.room_waiters > 0 && entry->next == 0) futex_raise(&port.room_futex);
}

/* The entry's call has this outcome. */
static void entry_settle(entry_t *entry, int led_by_drainer) {
  switch (entry->state) {
    case ENTRY_WAITED:
      entry->state = ENTRY_DONE;
      /* The broker has answered. Its thread may be in a signal handler that waits for a place. */
      if (entry->reply.status != SHM_ENEEDS_SPACE) entry_leave_window();
      else if (port.room_waiters > 0) futex_raise(&port.room_futex); /* see is_in_own_way */
      if (entry->follows) futex_raise(&entry->futex);
      break;
    case ENTRY_TALK:
      port.talk_outstanding--;
      shmi_replies_push(&port.talk, &entry->reply, &entry->msg);
      entry_free(entry);
      break;
    default: /* ENTRY_QUEUED; or growing when the broker died */
      if (entry->reply.status == SHM_ENEEDS_SPACE) {
        shmi_replies_push(&port.growing, &entry->reply, &entry->msg);
        entry->state = ENTRY_GROWING;
        entry->grows_to = ENTRY_QUEUED;
        if (port.room_waiters > 0) futex_raise(&port.room_futex); /* one of them serves it */
      } else {
        shmi_replies_push(&port.queued, &entry->reply, &entry->msg);
        entry_free(entry);
      }
      if (!led_by_drainer) event_signal();
      break;
  }
}

/* A result may ask again, of the same helper: by its token an offer that comes late is told from
 * one for the last ask. The helper's own token is the lower half. */
static uint64_t token_of_ask(const shmi_frame_t *frame) {
  return (uint64_t)++port.asks << 32 | (uint32_t)frame->result.token;
}

static void settle_frames(const shmi_frame_t *frames, int count, int led_by_drainer) {
  shmi_count(&port.page->frames_received, (uint64_t)count);
  for (int i = 0; i < count; i++) {
    const shmi_frame_t *frame = &frames[i];
    entry_t *entry = frame->kind == SHMI_FRAME_REPLY ? entry_of(frame->sequence) : NULL;
    if (entry == NULL || entry->state == ENTRY_DONE) continue; /* stale: nobody's any more */
    entry->reply = (shm_reply_t){.sequence = frame->sequence,
                                 .ticket = entry->ticket,
                                 .value = frame->result.value,
                                 .token = frame->result.token,
                                 .status = shmi_status_from_wire(frame->status),
                                 .helper = frame->slot};
    if (entry->reply.status == SHM_ENEEDS_SPACE) entry->reply.token = token_of_ask(frame);
    entry_settle(entry, led_by_drainer);
  }
}

/* No reply will come any more: every call that is out has that outcome. */
static void settle_all(int status, int led_by_drainer) {
  port.broken = 1;
  for (uint32_t i = 0; i < port.entry_count; i++) {
    entry_t *entry = &port.entries[i];
    if (entry->state == ENTRY_FREE || entry->state == ENTRY_DONE) continue;
    entry->reply = (shm_reply_t){.sequence = entry->sequence,
                                 .ticket = entry->ticket,
                                 .status = status,
                                 .helper = -1};
    entry_settle(entry, led_by_drainer);
  }
  event_signal();
  futex_raise(&port.room_futex);
}

static int is_lost(void) { return port.broken || shmi_pipe_has_ended(port.reply_fd); }

/* ---- leading ---- */

/* After a wait without the lock: is the port still the one that this thread waited at? */
static int lock_again(uint32_t closings) {
  pthread_mutex_lock(&port.lock);
  return port.closings == closings;
}

static int64_t until(uint64_t deadline_ns) {
  if (deadline_ns == 0) return -1;
  uint64_t now = shmi_clock_ns();
  return deadline_ns > now ? (int64_t)(deadline_ns - now) : 0;
}

/* The lead is free: whoever sleeps for want of it must look. Called with the lock. */
static void lead_pass(void) {
  port.leading = 0;
  if (port.followers != 0) {
    futex_raise(&port.entries[port.followers - 1].futex);
  } else if (port.room_waiters > 0) {
    futex_raise(&port.room_futex);
  } else if (port.drainers > 0) {
    event_signal();
  }
}

/* Read replies once as the leader; lock held on entry and on return, released while reading.
 * timeout_ns < 0: block. SHM_OK when frames were settled, SHM_EAGAIN at the time-out,
 * SHM_ENOT_RUNNING when the port was closed meanwhile. */
static int lead_once(int64_t timeout_ns, int as_drainer) {
  shmi_frame_t frames[SHMI_PIPE_BURST];
  uint32_t closings = port.closings;
  int spins = port.spins && timeout_ns != 0 && !as_drainer;
  int looks_up = timeout_ns >= 0 || (!as_drainer && port.heeds);
  int reply_fd = port.reply_fd, tick_fd = port.tick_fd;
  port.leading = 1;
  pthread_mutex_unlock(&port.lock);
  int got = 1;
  int is_near = spins && shmi_spin(&port.spin);
  if (!is_near && looks_up) got = wait_for_reply(reply_fd, tick_fd, timeout_ns);
  SHMI_FAULT(BEFORE_READ);
  if (got == 1) got = shmi_pipe_read(reply_fd, frames, SHMI_PIPE_BURST);
  else if (got == 0) got = SHM_EAGAIN;
  if (got > 0) SHMI_FAULT(AFTER_READ);
  if (!lock_again(closings)) return SHM_ENOT_RUNNING;
  if (got > 0) {
    settle_frames(frames, got, as_drainer);
    got = SHM_OK;
  } else if (got != SHM_EINTR && got != SHM_EAGAIN) {
    settle_all(SHM_EBROKER_DIED, as_drainer); /* end of file, or a pipe that cannot be read */
    got = SHM_OK;
  }
  lead_pass();
  return got;
}

static void follow(entry_t *entry, int enter) {
  uint32_t me = (uint32_t)(entry - port.entries) + 1;
  entry->follows = (uint8_t)enter;
  if (enter) {
    entry->next = port.followers;
    port.followers = me;
    return;
  }
  uint32_t *at = &port.followers;
  while (*at != me) at = &port.entries[*at - 1].next;
  *at = entry->next;
}

static int entry_wait(entry_t *entry, uint64_t deadline_ns, shm_reply_t *reply) {
  int status = SHM_OK;
  uint32_t closings = port.closings;
  while (entry->state != ENTRY_DONE && status == SHM_OK) {
    if (!port.leading) {
      status = lead_once(until(deadline_ns), 0);
      if (status == SHM_EAGAIN) status = SHM_ETIMEOUT;
    } else {
      uint32_t seen = __atomic_load_n(&entry->futex, __ATOMIC_ACQUIRE);
      follow(entry, 1);
      pthread_mutex_unlock(&port.lock);
      status = futex_wait(&entry->futex, seen, deadline_ns);
      if (!lock_again(closings)) break;
      follow(entry, 0);
      /* Woken to lead, but leaving instead: the lead must not get lost. Who finds its answer here
       * may be the very one that was woken for it. */
      int leaves = status != SHM_OK || entry->state == ENTRY_DONE;
      if (leaves && !port.leading) lead_pass();
    }
  }
  reply->sequence = entry->sequence;
  if (port.closings != closings) return SHM_ENOT_RUNNING; /* the entry is of a table that was left */
  if (entry->state != ENTRY_DONE) {
    if (status == SHM_ETIMEOUT) entry->state = ENTRY_QUEUED; /* its reply will come, late */
    return status;
  }
  *reply = entry->reply;
  if (reply->status == SHM_ENEEDS_SPACE) {
    entry->state = ENTRY_GROWING;
    entry->grows_to = ENTRY_WAITED;
    return reply->status;
  }
  if (reply->status == SHM_ETIMEOUT) {
    /* The broker was the first to see the deadline pass. The caller cannot tell that from its
     * own clock's word, so this call too has a late reply. */
    shmi_replies_push(&port.queued, reply, &entry->msg);
    event_signal();
  }
  entry_free(entry);
  return reply->status;
}

/* ---- sending ---- */

static int send_frames(const shmi_frame_t *frames, int count) {
  int sent = 0;
  SHMI_FAULT(BEFORE_REPLY);
  while (sent < count) {
    int got = shmi_pipe_write(port.request_fd, frames + sent, count - sent);
    if (got > 0) sent += got;
    else if (got != SHM_EINTR) return got == 0 ? SHM_ESYSTEM : got;
  }
  shmi_count(&port.page->frames_sent, (uint64_t)count);
  SHMI_FAULT(AFTER_REPLY);
  return SHM_OK;
}

static int send_one(const shmi_frame_t *frame) {
  int status = send_frames(frame, 1);
  if (status == SHM_EBROKER_DIED) settle_all(SHM_EBROKER_DIED, 0);
  return status;
}

/* An address of this process as the broker and its helpers have it; no address stays none. */
static inline uint64_t abroad(uint64_t address) {
  return address != 0 ? address + port.shift : 0;
}

static void fill_call(shmi_frame_t *frame, const shm_call_config_t *config, uint64_t params,
                      uint64_t sequence, uint64_t deadline_ns) {
  *frame = (shmi_frame_t){.msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                                  .params = (void *)(uintptr_t)abroad(params)},
                          .sequence = sequence,
                          .pool = config->pool,
                          .kind = SHMI_FRAME_CALL,
                          .priority = config->priority,
                          .flags = config->gang ? SHMI_FRAME_GANG : 0,
                          .rows = config->rows,
                          .batch_key = config->batch_key,
                          .deadline_ns = deadline_ns,
                          .placement = config->placement};
}

static void send_grow(entry_t *entry, uint64_t token, uint64_t params) {
  shmi_frame_t frame = {.result = {.token = (uint32_t)token, .value = abroad(params)},
                        .sequence = entry->sequence,
                        .kind = SHMI_FRAME_GROW};
  frame.slot = (uint16_t)entry->reply.helper;
  send_one(&frame);
}

/* Whether this thread waits for itself: a signal handler calls, and all places have calls that it
 * has interrupted, which ask for room that they get when it returns. */
static int is_in_own_way(void) {
  uint32_t own = 0;
  for (uint32_t i = 0; i < port.entry_count; i++) {
    const entry_t *entry = &port.entries[i];
    int asks = entry->state == ENTRY_DONE ? entry->reply.status == SHM_ENEEDS_SPACE
                                          : entry->state == ENTRY_GROWING &&
                                                entry->grows_to == ENTRY_WAITED;
    own += asks && entry->thread == this_thread();
  }
  return own > 0 && own == port.outstanding;
}

/* An entry for a waiting caller: waits, leading if need be, until the window has room.
 * SHM_ENEEDS_SPACE: calls that have places ask for room. They may be all there are, and whoever
 * would give it may be this very thread, which reads replies in an event loop or has been called
 * back for another one: so the caller serves them, and comes again. */
static int take_when_room(entry_t **entry, const shm_msg_t *msg, uint64_t deadline_ns) {
  uint32_t closings = port.closings;
  while ((*entry = entry_take(ENTRY_WAITED, msg)) == NULL) {
    if (port.broken) return SHM_EBROKER_DIED;
    int status;
    if (port.growing.count > 0) {
      if (!port.leading) lead_pass(); /* it may have been woken to lead */
      return until(deadline_ns) == 0 ? SHM_ETIMEOUT : SHM_ENEEDS_SPACE;
    }
    if (is_in_own_way()) {
      if (!port.leading) lead_pass();
      return SHM_EWINDOW;
    }
    /* Where the window has room, all entries are taken by calls that are done: it is no reply that
     * frees one, but a thread that takes its own. */
    int is_full = port.free_list != 0 || port.outstanding >= window_now();
    if (!is_full && !port.leading && port.followers == 0 && port.drainers > 0) event_signal();
    if (is_full && !port.leading) {
      status = lead_once(until(deadline_ns), 0);
      if (status == SHM_EAGAIN) status = SHM_ETIMEOUT;
    } else {
      uint32_t seen = __atomic_load_n(&port.room_futex, __ATOMIC_ACQUIRE);
      port.room_waiters++;
      pthread_mutex_unlock(&port.lock);
      status = futex_wait(&port.room_futex, seen, deadline_ns);
      if (!lock_again(closings)) return SHM_ENOT_RUNNING;
      port.room_waiters--;
      if (status != SHM_OK && !port.leading) lead_pass();
    }
    if (status != SHM_OK) return status;
  }
  return SHM_OK;
}

/* ---- the binding's calls ---- */

int shm_port_number(void) { return port.open ? (int)port.closings + 1 : SHM_ENOT_CHILD; }

/* With the lock: whether the caller means another port than this one. */
static int is_other(uint32_t number) {
  return !port.open || (number != 0 && number != port.closings + 1);
}

static int check_port(uint32_t number) {
  if (is_other(number)) return SHM_ENOT_RUNNING;
  return port.broken ? SHM_EBROKER_DIED : SHM_OK;
}

int shm_port_call(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                  shm_reply_t *reply) {
  shm_msg_t msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                   .params = (void *)(uintptr_t)params};
  entry_t *entry;
  reply->sequence = 0;
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int status = check_port(config->port);
  if (status == SHM_OK) status = take_when_room(&entry, &msg, deadline_ns);
  if (status == SHM_OK) {
    shmi_frame_t frame;
    fill_call(&frame, config, params, entry->sequence, deadline_ns);
    port.spins = port.outstanding == 1 && port.spin.cores > 1;
    if (port.spins) shmi_spin_note(&port.spin);
    send_one(&frame); /* when the broker is gone this settles the entry, and the wait says so */
    status = entry_wait(entry, deadline_ns, reply);
    port.spins = 0;
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

int shm_port_repeat(const shm_repeat_t *repeat, const void *argument, void *room) {
  uint64_t address = (uint64_t)(uintptr_t)argument;
  repeat->reply->sequence = 0;
  if (!port.open) return SHM_ENOT_CHILD;
  if (!shmi_range_inside(port.arena_base, port.arena_bytes, address, repeat->argument_bytes)) {
    return SHM_EBAD_PARAMS;
  }
  shm_block_t *block = (shm_block_t *)(uintptr_t)repeat->params;
  block->result = abroad((uint64_t)(uintptr_t)room);
  block->result_bytes = repeat->room_bytes;
  block->arrays[0] = abroad(address);
  int status = shm_port_call(&repeat->config, repeat->params, 0, repeat->reply);
  return status == SHM_OK && repeat->reply->value != 0 ? 1 : status;
}

int shm_port_wait(uint64_t sequence, uint64_t deadline_ns, shm_reply_t *reply) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  entry_t *entry = entry_of(sequence);
  int status = SHM_EBAD_FRAME;
  if (entry != NULL && (entry->state == ENTRY_WAITED || entry->state == ENTRY_DONE)) {
    status = entry_wait(entry, deadline_ns, reply);
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

int shm_port_abandon(uint64_t sequence) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  entry_t *entry = entry_of(sequence);
  int status = entry != NULL ? SHM_OK : SHM_EBAD_FRAME;
  if (entry != NULL) {
    int was = entry->state;
    if (was == ENTRY_GROWING) send_grow(entry, entry->reply.token, 0);
    if (was == ENTRY_DONE && entry->reply.status != SHM_ENEEDS_SPACE) {
      shmi_replies_push(&port.queued, &entry->reply, &entry->msg);
      entry_free(entry);
      event_signal();
    } else if (entry->state != ENTRY_FREE) {
      entry->state = ENTRY_QUEUED;
      if (was == ENTRY_DONE) entry_settle(entry, 0);
    }
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

int shm_port_submit(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                    uint64_t ticket, uint64_t *sequence) {
  shm_msg_t msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                   .params = (void *)(uintptr_t)params};
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int status = check_port(config->port);
  entry_t *entry = status == SHM_OK ? entry_take(ENTRY_QUEUED, &msg) : NULL;
  if (status == SHM_OK && entry == NULL) status = SHM_EAGAIN;
  if (status == SHM_OK) {
    shmi_frame_t frame;
    entry->ticket = ticket;
    *sequence = entry->sequence;
    fill_call(&frame, config, params, entry->sequence, deadline_ns);
    send_one(&frame); /* a dead broker is told by the reply that this then queues */
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

int shm_port_grow(uint64_t sequence, uint64_t token, uint64_t params) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  entry_t *entry = entry_of(sequence);
  int asks = entry != NULL && entry->state == ENTRY_GROWING && entry->reply.token == token;
  int status = asks ? SHM_OK : SHM_EBAD_FRAME;
  if (entry == NULL && port.broken) status = SHM_EBROKER_DIED;
  if (status == SHM_OK) {
    entry->state = entry->grows_to;
    send_grow(entry, token, params);
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

int shm_port_cancel(uint64_t sequence) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  entry_t *entry = entry_of(sequence);
  int status = entry != NULL ? SHM_OK : SHM_EBAD_FRAME;
  if (entry != NULL && entry->state != ENTRY_DONE && entry->state != ENTRY_GROWING) {
    shmi_frame_t frame = {.sequence = sequence, .kind = SHMI_FRAME_CANCEL};
    status = send_one(&frame);
  }
  pthread_mutex_unlock(&port.lock);
  return status;
}

/* While the lead is free it stays up for those who sleep on it: one of them is to lead. */
static void event_lower(void) {
  uint64_t raised;
  if (!port.event_is_raised || port.queued.count > 0 || port.growing.count > 0) return;
  if (!port.leading && port.drainers > 0) return;
  port.event_is_raised = 0;
  if (read(port.event_fd, &raised, sizeof raised) < 0) return; /* EAGAIN: lowered already */
}

static int pop_replies(shm_reply_t *out, int max) {
  int count = 0;
  while (count < max && (shmi_replies_pop(&port.growing, &out[count], NULL) ||
                         shmi_replies_pop(&port.queued, &out[count], NULL))) {
    count++;
  }
  event_lower();
  if (port.queued.count > 0 && !port.event_is_raised) {
    event_signal(); /* more than the caller had room for */
  }
  return count;
}

static shm_reply_t take_one(uint32_t number, shmi_replies_t *queue) {
  shm_reply_t reply = {0};
  pthread_mutex_lock(&port.lock);
  if (!is_other(number)) {
    shmi_replies_pop(queue, &reply, NULL);
    event_lower();
  }
  pthread_mutex_unlock(&port.lock);
  return reply;
}

shm_reply_t shm_port_take_end(uint32_t number) { return take_one(number, &port.queued); }
shm_reply_t shm_port_take_growing(uint32_t number) { return take_one(number, &port.growing); }

static int event_fd_make(void) {
  if (port.event_fd < 0) {
    port.event_fd = shmi_descriptor_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (port.event_fd >= 0 && port.queued.count + port.growing.count > 0) event_signal();
  }
  return port.event_fd;
}

/* Until replies are here: how many, as shm_port_await says it. Called with the lock. */
static int64_t await_replies(int64_t timeout_ns) {
  uint64_t deadline_ns = timeout_ns > 0 ? shmi_clock_ns() + (uint64_t)timeout_ns : 0;
  uint32_t closings = port.closings;
  int status = SHM_OK;
  for (;;) {
    if (port.closings != closings) return SHM_ENOT_RUNNING;
    event_lower();
    int64_t here = (int64_t)port.growing.count << 32 | port.queued.count;
    if (here > 0) return here;
    if (port.broken) return SHM_EBROKER_DIED;
    if (status != SHM_OK) return status == SHM_EAGAIN ? 0 : status;
    if (!port.leading) {
      status = lead_once(timeout_ns > 0 ? until(deadline_ns) : timeout_ns, 1);
    } else if (timeout_ns == 0) {
      return 0; /* somebody else reads: the eventfd will tell */
    } else {
      if (event_fd_make() < 0) return SHM_ESYSTEM;
      port.drainers++;
      int fd = port.event_fd;
      pthread_mutex_unlock(&port.lock);
      status = shmi_pipe_wait(fd, timeout_ns > 0 ? until(deadline_ns) : -1);
      if (!lock_again(closings)) continue;
      port.drainers--;
      if (status == 1) status = SHM_OK;
      else if (status == 0) status = SHM_EAGAIN;
    }
  }
}

int64_t shm_port_await(uint32_t number, int64_t timeout_ns) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int64_t here = is_other(number) ? SHM_ENOT_RUNNING : await_replies(timeout_ns);
  pthread_mutex_unlock(&port.lock);
  return here;
}

int shm_port_drain(shm_reply_t *out, int max, int64_t timeout_ns) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int64_t here = await_replies(timeout_ns);
  int result = here > 0 ? pop_replies(out, max) : (int)here;
  pthread_mutex_unlock(&port.lock);
  return result;
}

int shmi_port_claim(const uint64_t sequences[], int count) {
  if (!port.open) return count > 0 ? 0 : -1;
  pthread_mutex_lock(&port.lock);
  if (!port.leading && !port.broken) lead_once(0, 0);
  int claimed = shmi_replies_take(&port.queued, sequences, count);
  pthread_mutex_unlock(&port.lock);
  return claimed;
}

int shm_port_fd(void) { return port.open ? port.reply_fd : SHM_ENOT_CHILD; }

int shm_port_event_fd(void) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int fd = event_fd_make();
  pthread_mutex_unlock(&port.lock);
  return fd >= 0 ? fd : SHM_ESYSTEM;
}

int shm_port_outstanding(void) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int count = (int)port.outstanding;
  pthread_mutex_unlock(&port.lock);
  return count;
}
int shm_port_is_lost(void) { return port.open && is_lost(); }
int shm_port_window(void) { return port.open ? (int)window_now() : SHM_ENOT_CHILD; }

/* ---- the talk's calls ---- */

int shmi_port_send(const shm_msg_t *msgs, int count, uint32_t limit) {
  static const shm_call_config_t plain = {.rows = 1};
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int status = SHM_OK, sent = 0;
  while (sent < count && status == SHM_OK) {
    shmi_frame_t frames[SHMI_PIPE_BURST];
    int piece = 0;
    while (piece < SHMI_PIPE_BURST && sent + piece < count && port.talk_outstanding < limit) {
      const shm_msg_t *msg = &msgs[sent + piece];
      entry_t *entry = entry_take(ENTRY_TALK, msg);
      if (entry == NULL) break;
      port.talk_outstanding++;
      fill_call(&frames[piece], &plain, (uint64_t)(uintptr_t)msg->params, entry->sequence, 0);
      frames[piece++].msg.func_ptr = msg->func_ptr;
    }
    if (piece == 0) break;
    status = send_frames(frames, piece);
    if (status == SHM_EBROKER_DIED) settle_all(SHM_EBROKER_DIED, 0);
    sent += piece;
  }
  pthread_mutex_unlock(&port.lock);
  if (status != SHM_OK) return status;
  return sent > 0 || count == 0 ? sent : SHM_EWINDOW;
}

int shmi_port_receive(shm_msg_t *msgs, int *statuses, int max) {
  if (!port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&port.lock);
  int status = SHM_OK, count = 0;
  uint32_t closings = port.closings;
  while (port.talk.count == 0 && status == SHM_OK) {
    if (port.talk_outstanding == 0) status = port.broken ? SHM_EBROKER_DIED : SHM_EAGAIN;
    else if (!port.leading) {
      status = lead_once(-1, 0);
    } else {
      /* Another thread reads; it may be mine that it reads: look again when it is done. */
      uint32_t seen = __atomic_load_n(&port.room_futex, __ATOMIC_ACQUIRE);
      port.room_waiters++;
      pthread_mutex_unlock(&port.lock);
      status = futex_wait(&port.room_futex, seen, 0);
      if (lock_again(closings)) port.room_waiters--;
      else status = SHM_ENOT_RUNNING;
    }
    if (status == SHM_EINTR) status = SHM_OK; /* a C program's handlers have run already */
  }
  while (status == SHM_OK && count < max) {
    shm_reply_t reply;
    if (!shmi_replies_pop(&port.talk, &reply, msgs != NULL ? &msgs[count] : NULL)) break;
    statuses[count++] = reply.status;
  }
  /* It may have been woken to lead, and has its answer instead. */
  if (!port.leading && status != SHM_ENOT_RUNNING) lead_pass();
  pthread_mutex_unlock(&port.lock);
  return status != SHM_OK ? status : count;
}

/* ---- opening and closing ---- */

int shmi_port_open(int request_fd, int reply_fd, uint32_t window, int child) {
  pthread_mutex_lock(&port.lock);
  /* More than the window: calls that are done and not yet taken by their threads. */
  port.entry_count = window + SPARE_ENTRIES < ENTRY_MASK ? window + SPARE_ENTRIES : ENTRY_MASK;
  port.entries = calloc(port.entry_count, sizeof *port.entries);
  if (port.entries == NULL) {
    pthread_mutex_unlock(&port.lock);
    return SHM_ESYSTEM;
  }
  for (uint32_t i = port.entry_count; i > 0; i--) {
    port.entries[i - 1].next = port.free_list;
    port.free_list = i;
  }
  port.request_fd = request_fd;
  port.reply_fd = reply_fd;
  port.window = window;
  port.page = shmi_scoreboard_child(child);
  port.child = child;
  port.arena_base = shmi_arena_address(child);
  port.arena_bytes = shmi_arena_bytes();
  port.shift = (uint64_t)shmi_arena_shift();
  shmi_spin_open(&port.spin, &shmi_scoreboard()->child_stats[child].answered);
  port.broken = 0;
  port.open = 1;
  pthread_mutex_unlock(&port.lock);
  return SHM_OK;
}

/* No thread is inside any more, or what comes out of one that was left behind is not heard. */
static void empty(void) {
  port.closings++;
  shmi_descriptor_close(&port.request_fd);
  shmi_descriptor_close(&port.reply_fd);
  shmi_descriptor_close(&port.event_fd);
  port.event_is_raised = 0;
  shmi_descriptor_close(&port.tick_fd);
  free(port.entries);
  port.entries = NULL;
  shmi_replies_free(&port.queued);
  shmi_replies_free(&port.growing);
  shmi_replies_free(&port.talk);
  port.window = port.entry_count = 0;
  port.free_list = port.followers = port.outstanding = port.talk_outstanding = 0;
  port.room_waiters = port.drainers = 0;
  port.leading = port.heeds = 0;
}

/* A thread that waits for its call hears that there is none, and comes out. One whose host does not
 * look up from its read is left behind with what it reads from, whose numbers would soon be those of
 * other files, and with its entry: its call was never answered. */
static void turn_out(void) {
  uint64_t until_ns = shmi_clock_ns() + CLOSE_NS;
  settle_all(is_lost() ? SHM_EBROKER_DIED : SHM_ENOT_RUNNING, 0);
  while (port.leading || port.followers != 0 || port.room_waiters > 0 || port.drainers > 0) {
    if (shmi_clock_ns() > until_ns) {
      port.entries = NULL;
      if (port.leading) port.reply_fd = port.tick_fd = -1;
      break;
    }
    pthread_mutex_unlock(&port.lock);
    struct timespec moment = {.tv_nsec = CLOSE_LOOK_NS};
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&port.lock);
  }
}

void shmi_port_close(void) {
  if (!port.open) return;
  pthread_mutex_lock(&port.lock);
  port.open = 0;
  turn_out();
  empty();
  pthread_mutex_unlock(&port.lock);
}

void shmi_port_disown(void) {
  port.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* held by whoever was not forked */
  if (!port.open) return;
  port.open = 0;
  port.broken = 1;
  empty();
}

void shmi_port_heed_signals(void) {
  port.heeds = 1;
  port.tick_is_set = 0;
  port.tick_fd = shmi_descriptor_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
}

int shmi_port_is_open(void) { return port.open; }

int shmi_port_wait_ready(void) {
  shmi_frame_t frame;
  for (;;) {
    if (port.heeds && wait_for_reply(port.reply_fd, port.tick_fd, -1) == SHM_EINTR) return SHM_EINTR;
    int got = shmi_pipe_read(port.reply_fd, &frame, 1);
    if (got == SHM_EINTR) return SHM_EINTR;
    if (got < 0) return got;
    if (got == 1 && frame.kind == SHMI_FRAME_READY) return shmi_status_from_wire(frame.status);
  }
}
