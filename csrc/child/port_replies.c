/* port_replies -- a child's replies: who waits for which, and which thread reads the pipe. See
 * port_internal.h.
 */
#include "child/port_internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "ipc/pipe.h"

shmi_port_t shmi_port = {.lock = PTHREAD_MUTEX_INITIALIZER,
                         .request_fd = -1,
                         .reply_fd = -1,
                         .event_fd = -1,
                         .tick_fd = -1};

/* ---- waiting without the lock ---- */

/* A signal that arrives a moment before a wait begins does not interrupt it. Where handlers only
 * take a note (as Python's do), the note would be read when the call has ended. So for a host with
 * handlers of its own, a wait returns SHM_EINTR every HEED_NS and is then resumed. The timer is set
 * once in HEED_NS, not for each wait: setting it costs a tenth of a call. Of the followers only the
 * main thread wakes up for this, because handlers run there. */
enum { HEED_NS = 100000000 };

static int is_main_thread(void) {
  static _Thread_local int known; /* 1: no, 2: yes */
  if (known == 0) known = syscall(SYS_gettid) == getpid() ? 2 : 1;
  return known == 2;
}

static const void *this_thread(void) {
  static _Thread_local char here;
  return &here;
}

static int heeds(void) { return shmi_port.heeds && is_main_thread(); }

int shmi_port_wait_for_reply(int reply_fd, int tick_fd, int64_t timeout_ns) {
  if (tick_fd < 0) return shmi_pipe_wait(reply_fd, timeout_ns);
  if (!shmi_port.tick_is_set) {
    struct itimerspec once = {.it_value = {.tv_nsec = HEED_NS}};
    timerfd_settime(tick_fd, 0, &once, NULL);
    shmi_port.tick_is_set = 1;
  }
  int ready = shmi_pipe_wait_either(reply_fd, tick_fd, timeout_ns);
  if (ready != 2) return ready;
  /* The next wait sets the timer again, which also clears the tick. Reading it instead would add to
   * the bytes read by this process, which are counted to show that only frames are read. */
  shmi_port.tick_is_set = 0;
  return SHM_EINTR;
}

int shmi_port_futex_wait(uint32_t *word, uint32_t seen, uint64_t deadline_ns) {
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

void shmi_port_event_signal(void) {
  uint64_t one = 1;
  if (shmi_port.event_fd < 0) return;
  shmi_port.event_is_raised = 1; /* EAGAIN below: it is raised already */
  if (write(shmi_port.event_fd, &one, sizeof one) < 0 && errno != EAGAIN) return;
}

/* While nobody leads, the eventfd stays raised for the drainers that sleep on it: one is to
 * lead. */
void shmi_port_event_lower(void) {
  uint64_t raised;
  if (!shmi_port.event_is_raised) return;
  if (shmi_port.queued.count > 0 || shmi_port.growing.count > 0) return;
  if (!shmi_port.leading && shmi_port.drainers > 0) return;
  shmi_port.event_is_raised = 0;
  if (read(shmi_port.event_fd, &raised, sizeof raised) < 0) return; /* EAGAIN: lowered already */
}

int shmi_port_event_fd_make(void) {
  if (shmi_port.event_fd < 0) {
    shmi_port.event_fd = shmi_descriptor_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int here = shmi_port.queued.count + shmi_port.growing.count > 0;
    if (shmi_port.event_fd >= 0 && here) shmi_port_event_signal();
  }
  return shmi_port.event_fd;
}

/* ---- entries; all with the lock held ---- */

shmi_entry_t *shmi_port_entry_of(uint64_t sequence) {
  uint32_t index = (uint32_t)(sequence & SHMI_ENTRY_MASK);
  if (index >= shmi_port.entry_count) return NULL;
  shmi_entry_t *entry = &shmi_port.entries[index];
  return entry->state != SHMI_ENTRY_FREE && entry->sequence == sequence ? entry : NULL;
}

/* The broker may change it at any time, when quotas are read again. */
uint32_t shmi_port_window_now(void) {
  uint64_t allowed =
      __atomic_load_n(&shmi_scoreboard()->child_stats[shmi_port.child].window, __ATOMIC_RELAXED);
  return allowed == 0 || allowed > shmi_port.window ? shmi_port.window : (uint32_t)allowed;
}

shmi_entry_t *shmi_port_entry_take(int state, const shm_msg_t *msg) {
  if (shmi_port.free_list == 0 || shmi_port.outstanding >= shmi_port_window_now()) return NULL;
  uint32_t index = shmi_port.free_list - 1;
  shmi_entry_t *entry = &shmi_port.entries[index];
  shmi_port.free_list = entry->next;
  shmi_port.outstanding++;
  entry->sequence = ++shmi_port.counter << SHMI_ENTRY_BITS | index;
  entry->ticket = 0;
  entry->state = (uint8_t)state;
  entry->follows = 0;
  entry->thread = this_thread();
  entry->msg = *msg;
  return entry;
}

/* Its call no longer counts in the window. */
static void entry_leave_window(void) {
  shmi_port.outstanding--;
  if (shmi_port.room_waiters > 0) futex_raise(&shmi_port.room_futex);
}

void shmi_port_entry_free(shmi_entry_t *entry) {
  /* A call that is done has left the window already. */
  int was_done = entry->state == SHMI_ENTRY_DONE && entry->reply.status != SHM_ENEEDS_SPACE;
  entry->state = SHMI_ENTRY_FREE;
  entry->next = shmi_port.free_list;
  shmi_port.free_list = (uint32_t)(entry - shmi_port.entries) + 1;
  if (!was_done) entry_leave_window();
  else if (shmi_port.room_waiters > 0 && entry->next == 0) futex_raise(&shmi_port.room_futex);
}

/* The reply to a submitted call asks for room. */
static void ask_for_room(shmi_entry_t *entry) {
  shmi_replies_push(&shmi_port.growing, &entry->reply, &entry->msg);
  entry->state = SHMI_ENTRY_GROWING;
  entry->grows_to = SHMI_ENTRY_QUEUED;
  if (shmi_port.room_waiters > 0) futex_raise(&shmi_port.room_futex); /* one will serve it */
}

void shmi_port_entry_settle(shmi_entry_t *entry, int led_by_drainer) {
  switch (entry->state) {
    case SHMI_ENTRY_WAITED:
      entry->state = SHMI_ENTRY_DONE;
      /* It leaves the window now, not when its thread takes the reply: that thread may be in a
       * signal handler which waits for the window. */
      if (entry->reply.status != SHM_ENEEDS_SPACE) entry_leave_window();
      else if (shmi_port.room_waiters > 0) futex_raise(&shmi_port.room_futex); /* see waits_for_itself */
      if (entry->follows) futex_raise(&entry->futex);
      break;
    case SHMI_ENTRY_MESSAGE:
      shmi_port.messages_outstanding--;
      shmi_replies_push(&shmi_port.messages, &entry->reply, &entry->msg);
      shmi_port_entry_free(entry);
      break;
    default: /* SHMI_ENTRY_QUEUED; or SHMI_ENTRY_GROWING when the broker has died */
      if (entry->reply.status == SHM_ENEEDS_SPACE) {
        ask_for_room(entry);
      } else {
        shmi_replies_push(&shmi_port.queued, &entry->reply, &entry->msg);
        shmi_port_entry_free(entry);
      }
      if (!led_by_drainer) shmi_port_event_signal();
      break;
  }
}

/* A call may ask for room more than once. Each request has a token of its own, so that a late offer
 * is not mistaken for one that answers the latest request. The lower half is the helper's token. */
static uint64_t token_of_ask(const shmi_frame_t *frame) {
  return (uint64_t)++shmi_port.asks << 32 | (uint32_t)frame->result.token;
}

static int gang_state_in(const shmi_frame_t *frame) {
  if ((frame->flags & SHMI_FRAME_COMMITTED) != 0) return SHM_GANG_COMMITTED;
  return (frame->flags & SHMI_FRAME_GANG) != 0 ? SHM_GANG_ABORTED : SHM_GANG_NONE;
}

static void settle_frames(const shmi_frame_t *frames, int count, int led_by_drainer) {
  shmi_count(&shmi_port.page->frames_received, (uint64_t)count);
  shmi_port.lone = 0; /* what is spun for is the next answer */
  for (int i = 0; i < count; i++) {
    const shmi_frame_t *frame = &frames[i];
    shmi_entry_t *entry = frame->kind == SHMI_FRAME_REPLY ? shmi_port_entry_of(frame->sequence) : NULL;
    if (entry == NULL || entry->state == SHMI_ENTRY_DONE) continue; /* stale */
    entry->reply = (shm_reply_t){.sequence = frame->sequence,
                                 .ticket = entry->ticket,
                                 .value = frame->result.value,
                                 .token = frame->result.token,
                                 .status = shmi_status_from_wire(frame->status),
                                 .helper = frame->slot,
                                 .gang = gang_state_in(frame)};
    if (entry->reply.status == SHM_ENEEDS_SPACE) entry->reply.token = token_of_ask(frame);
    shmi_port_entry_settle(entry, led_by_drainer);
  }
}

void shmi_port_settle_all(int status, int led_by_drainer) {
  shmi_port.broken = 1;
  for (uint32_t i = 0; i < shmi_port.entry_count; i++) {
    shmi_entry_t *entry = &shmi_port.entries[i];
    if (entry->state == SHMI_ENTRY_FREE || entry->state == SHMI_ENTRY_DONE) continue;
    entry->reply = (shm_reply_t){.sequence = entry->sequence,
                                 .ticket = entry->ticket,
                                 .status = status,
                                 .helper = -1};
    shmi_port_entry_settle(entry, led_by_drainer);
  }
  shmi_port_event_signal();
  futex_raise(&shmi_port.room_futex);
}

int shmi_port_has_ended(void) { return shmi_port.broken || shmi_pipe_has_ended(shmi_port.reply_fd); }

/* ---- leading ---- */

int shmi_port_lock_again(uint32_t epoch) {
  pthread_mutex_lock(&shmi_port.lock);
  return shmi_port.epoch == epoch;
}

static int64_t until(uint64_t deadline_ns) {
  if (deadline_ns == 0) return -1;
  uint64_t now = shmi_clock_ns();
  return deadline_ns > now ? (int64_t)(deadline_ns - now) : 0;
}

void shmi_port_lead_pass(void) {
  shmi_port.leading = 0;
  if (shmi_port.followers != 0) {
    futex_raise(&shmi_port.entries[shmi_port.followers - 1].futex);
  } else if (shmi_port.room_waiters > 0) {
    futex_raise(&shmi_port.room_futex);
  } else if (shmi_port.drainers > 0) {
    shmi_port_event_signal();
  }
}

enum { SPIN_LOOKS = 64 };

static int is_answered(void *unused) {
  (void)unused;
  return __atomic_load_n(shmi_port.answered, __ATOMIC_RELAXED) != shmi_port.answered_before;
}

static int wait_for_reply(int reply_fd, int tick_fd, int beside_fd, int64_t timeout_ns) {
  if (beside_fd < 0) return shmi_port_wait_for_reply(reply_fd, tick_fd, timeout_ns);
  int ready = shmi_pipe_wait_either(reply_fd, beside_fd, timeout_ns);
  return ready == 2 ? SHM_EINTR : ready;
}

/* How many frames, or a status; SHM_EAGAIN where none comes in time. Where it does not look up before it
 * reads, it waits in the read itself, unless somebody else watches the pipe who has made it
 * non-blocking, as uvloop does with all that it watches: that there is nothing yet is not its end. */
static int read_frames(int reply_fd, int tick_fd, int beside_fd, shmi_frame_t *frames, int looks_up,
                       int64_t timeout_ns) {
  for (;; looks_up = 1) {
    int ready = looks_up ? wait_for_reply(reply_fd, tick_fd, beside_fd, timeout_ns) : 1;
    SHMI_FAULT(BEFORE_READ);
    if (ready != 1) return ready == 0 ? SHM_EAGAIN : ready;
    int got = shmi_pipe_read(reply_fd, frames, SHMI_PIPE_BURST);
    if (got != 0) return got;
  }
}

int shmi_port_lead_once(int64_t timeout_ns, int as_drainer, int beside_fd) {
  shmi_frame_t frames[SHMI_PIPE_BURST];
  uint32_t epoch = shmi_port.epoch;
  shmi_spin_t *spins = as_drainer ? NULL : shmi_port.spins;
  int looks_up = timeout_ns >= 0 || beside_fd >= 0 || (!as_drainer && shmi_port.heeds);
  int reply_fd = shmi_port.reply_fd, tick_fd = shmi_port.tick_fd;
  shmi_port.leading = 1;
  shmi_port.watches = spins != NULL;
  pthread_mutex_unlock(&shmi_port.lock);
  uint64_t began_ns = spins != NULL ? shmi_clock_ns() : 0;
  int is_near = spins != NULL && shmi_spin(spins, SPIN_LOOKS, is_answered, NULL);
  int got = read_frames(reply_fd, looks_up ? tick_fd : -1, beside_fd, frames, !is_near && looks_up,
                        timeout_ns);
  if (got > 0) SHMI_FAULT(AFTER_READ);
  if (spins != NULL && got > 0) shmi_spin_learn(spins, shmi_clock_ns() - began_ns);
  if (!shmi_port_lock_again(epoch)) return SHM_ENOT_RUNNING;
  if (got > 0) {
    settle_frames(frames, got, as_drainer);
    got = SHM_OK;
  } else if (got != SHM_EINTR && got != SHM_EAGAIN) {
    shmi_port_settle_all(SHM_EBROKER_DIED, as_drainer); /* end of file, or an unreadable pipe */
    got = SHM_OK;
  }
  shmi_port_lead_pass();
  return got;
}

static void follow(shmi_entry_t *entry, int enter) {
  uint32_t me = (uint32_t)(entry - shmi_port.entries) + 1;
  entry->follows = (uint8_t)enter;
  if (enter) {
    entry->next = shmi_port.followers;
    shmi_port.followers = me;
    return;
  }
  uint32_t *at = &shmi_port.followers;
  while (*at != me) at = &shmi_port.entries[*at - 1].next;
  *at = entry->next;
}

/* Until its reply has come: SHM_ENOT_RUNNING when the entry belongs to a closed port by then. */
static int wait_until_done(shmi_entry_t *entry, uint64_t deadline_ns, int beside_fd) {
  int status = SHM_OK;
  uint32_t epoch = shmi_port.epoch;
  while (entry->state != SHMI_ENTRY_DONE && status == SHM_OK) {
    if (!shmi_port.leading) {
      status = shmi_port_lead_once(until(deadline_ns), 0, beside_fd);
      if (status == SHM_EAGAIN) status = SHM_ETIMEOUT;
    } else if (beside_fd >= 0) {
      status = SHM_EAGAIN; /* a follower watches nothing beside its own futex */
    } else {
      uint32_t seen = __atomic_load_n(&entry->futex, __ATOMIC_ACQUIRE);
      follow(entry, 1);
      pthread_mutex_unlock(&shmi_port.lock);
      status = shmi_port_futex_wait(&entry->futex, seen, deadline_ns);
      if (!shmi_port_lock_again(epoch)) break;
      follow(entry, 0);
      /* This thread may have been woken to lead, but leaves instead: the lead must not get lost. */
      int leaves = status != SHM_OK || entry->state == SHMI_ENTRY_DONE;
      if (leaves && !shmi_port.leading) shmi_port_lead_pass();
    }
  }
  return shmi_port.epoch == epoch ? status : SHM_ENOT_RUNNING;
}

int shmi_port_entry_wait(shmi_entry_t *entry, uint64_t deadline_ns, shm_reply_t *reply) {
  reply->sequence = entry->sequence;
  int status = wait_until_done(entry, deadline_ns, -1);
  if (status == SHM_ENOT_RUNNING) return status;
  if (entry->state != SHMI_ENTRY_DONE) {
    if (status == SHM_ETIMEOUT) {
      entry->state = SHMI_ENTRY_QUEUED; /* its reply will come late */
      shmi_port_give_up(entry->sequence);
    }
    return status;
  }
  *reply = entry->reply;
  if (reply->status == SHM_ENEEDS_SPACE) {
    entry->state = SHMI_ENTRY_GROWING;
    entry->grows_to = SHMI_ENTRY_WAITED;
    return reply->status;
  }
  if (reply->status == SHM_ETIMEOUT) {
    /* The broker saw the deadline pass before the caller did. The caller cannot tell the two cases
     * apart, so this call too gets a late reply. */
    shmi_replies_push(&shmi_port.queued, reply, &entry->msg);
    shmi_port_event_signal();
  }
  shmi_port_entry_free(entry);
  return reply->status;
}

int shmi_port_end_wait(uint64_t sequence, uint64_t deadline_ns, int beside_fd, shm_reply_t *reply) {
  shmi_entry_t *entry = shmi_port_entry_of(sequence);
  if (entry == NULL) {
    int is_here = reply == NULL ? shmi_replies_has(&shmi_port.queued, sequence)
                                : shmi_replies_take(&shmi_port.queued, &sequence, 1, reply) == 0;
    shmi_port_event_lower();
    return is_here ? SHM_OK : SHM_EBAD_FRAME;
  }
  if (entry->state == SHMI_ENTRY_GROWING && shmi_port.growing.count > 0) return SHM_ENEEDS_SPACE;
  if (entry->state != SHMI_ENTRY_QUEUED) return SHM_EBAD_FRAME;
  entry->state = SHMI_ENTRY_WAITED;
  entry->thread = this_thread();
  int may_wait = deadline_ns == SHM_GLANCE || until(deadline_ns) != 0;
  int spins = may_wait && shmi_port.lone == sequence && shmi_port.outstanding == 1;
  shmi_port.spins = spins ? &shmi_port.spin : NULL;
  int status = wait_until_done(entry, deadline_ns, beside_fd);
  shmi_port.spins = NULL;
  if (status == SHM_ENOT_RUNNING) return status;
  int has_ended = entry->state == SHMI_ENTRY_DONE;
  if (has_ended && entry->reply.status == SHM_ENEEDS_SPACE) {
    ask_for_room(entry);
    return SHM_ENEEDS_SPACE;
  }
  if (has_ended) {
    if (reply != NULL) *reply = entry->reply;
    else shmi_replies_push(&shmi_port.queued, &entry->reply, &entry->msg);
    shmi_port_entry_free(entry);
    return SHM_OK;
  }
  entry->state = SHMI_ENTRY_QUEUED;
  return status;
}

/* Whether this thread would wait for itself: it is in a signal handler, and the window is full of
 * calls that the handler interrupted and that ask for room, which they get when it returns. */
static int waits_for_itself(void) {
  uint32_t own = 0;
  for (uint32_t i = 0; i < shmi_port.entry_count; i++) {
    const shmi_entry_t *entry = &shmi_port.entries[i];
    int asks = entry->state == SHMI_ENTRY_DONE ? entry->reply.status == SHM_ENEEDS_SPACE
                                          : entry->state == SHMI_ENTRY_GROWING &&
                                                entry->grows_to == SHMI_ENTRY_WAITED;
    own += asks && entry->thread == this_thread();
  }
  return own > 0 && own == shmi_port.outstanding;
}

int shmi_port_entry_take_waiting(shmi_entry_t **entry, const shm_msg_t *msg, uint64_t deadline_ns) {
  uint32_t epoch = shmi_port.epoch;
  while ((*entry = shmi_port_entry_take(SHMI_ENTRY_WAITED, msg)) == NULL) {
    if (shmi_port.broken) return SHM_EBROKER_DIED;
    int status;
    if (shmi_port.growing.count > 0) {
      if (!shmi_port.leading) shmi_port_lead_pass(); /* this thread may have been woken to lead */
      return until(deadline_ns) == 0 ? SHM_ETIMEOUT : SHM_ENEEDS_SPACE;
    }
    if (waits_for_itself()) {
      if (!shmi_port.leading) shmi_port_lead_pass();
      return SHM_EWINDOW;
    }
    /* If the window is not full, all entries are taken by calls that are done: an entry becomes
     * free when a thread takes its reply, not when another reply comes. */
    int is_full = shmi_port.free_list != 0 || shmi_port.outstanding >= shmi_port_window_now();
    int nobody_leads = !shmi_port.leading && shmi_port.followers == 0;
    if (!is_full && nobody_leads && shmi_port.drainers > 0) shmi_port_event_signal();
    if (is_full && !shmi_port.leading) {
      status = shmi_port_lead_once(until(deadline_ns), 0, -1);
      if (status == SHM_EAGAIN) status = SHM_ETIMEOUT;
    } else {
      uint32_t seen = __atomic_load_n(&shmi_port.room_futex, __ATOMIC_ACQUIRE);
      shmi_port.room_waiters++;
      pthread_mutex_unlock(&shmi_port.lock);
      status = shmi_port_futex_wait(&shmi_port.room_futex, seen, deadline_ns);
      if (!shmi_port_lock_again(epoch)) return SHM_ENOT_RUNNING;
      shmi_port.room_waiters--;
      if (status != SHM_OK && !shmi_port.leading) shmi_port_lead_pass();
    }
    if (status != SHM_OK) return status;
  }
  return SHM_OK;
}

int64_t shmi_port_await_replies(int64_t timeout_ns) {
  uint64_t deadline_ns = timeout_ns > 0 ? shmi_clock_ns() + (uint64_t)timeout_ns : 0;
  uint32_t epoch = shmi_port.epoch;
  int status = SHM_OK;
  for (;;) {
    if (shmi_port.epoch != epoch) return SHM_ENOT_RUNNING;
    shmi_port_event_lower();
    int64_t here = (int64_t)shmi_port.growing.count << 32 | shmi_port.queued.count;
    if (here > 0) return here;
    if (shmi_port.broken) return SHM_EBROKER_DIED;
    if (status != SHM_OK) return status == SHM_EAGAIN ? 0 : status;
    if (!shmi_port.leading) {
      status = shmi_port_lead_once(timeout_ns > 0 ? until(deadline_ns) : timeout_ns, 1, -1);
    } else if (timeout_ns == 0) {
      return 0; /* another thread reads: the eventfd will report */
    } else {
      if (shmi_port_event_fd_make() < 0) return SHM_ESYSTEM;
      shmi_port.drainers++;
      int fd = shmi_port.event_fd;
      pthread_mutex_unlock(&shmi_port.lock);
      status = shmi_pipe_wait(fd, timeout_ns > 0 ? until(deadline_ns) : -1);
      if (!shmi_port_lock_again(epoch)) continue;
      shmi_port.drainers--;
      if (status == 1) status = SHM_OK;
      else if (status == 0) status = SHM_EAGAIN;
    }
  }
}
