/* dispatch_children -- what children send; how they come and go. See dispatch_internal.h. */
#include "broker/dispatch_internal.h"

#include <poll.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "ipc/function_table.h"
#include "ipc/pipe.h"
#include "memory/arena.h"

enum {
  BURSTS = 32,  /* of one child in one turn: twice what a pipe holds */
  PATIENCE = 16, /* protocol errors of one child before it is ended */
  SECOND_NS = 1000000000
};

static void protocol_error(shmi_dispatch_t *d, int slot) {
  d->scoreboard->broker->protocol_errors++;
  if (++d->scoreboard->child_stats[slot].protocol_errors >= PATIENCE) {
    d->children[slot].state = SHMI_PEER_OFFENDED;
    d->flags |= SHMI_TURN_OFFENDED;
  }
}

/* A helper's slot may be empty for now: only a number beyond all slots was named by mistake. */
static int why_not_there(const shmi_dispatch_t *d, const shmi_frame_t *frame, uint64_t expected) {
  uint64_t beyond = d->config.helpers < 64 ? UINT64_MAX << d->config.helpers : 0;
  uint64_t named = frame->placement;
  int is_gang = (frame->flags & SHMI_FRAME_GANG) != 0;
  if ((named & ~beyond) == 0 || (is_gang && (named & beyond) != 0)) return SHM_EPLACEMENT;
  return shmi_dispatch_why_gone(d, named & ~expected);
}

/* Whether the child's quota allows another call now. The generic cell rate algorithm (ITU-T I.371):
 * calls are due one after another at the rate, and may come up to a second early. */
static int is_within_rate(shmi_dispatch_t *d, shmi_child_t *child) {
  if (child->call_interval_ns == 0) return 1;
  if (child->call_due_ns < d->now_ns) child->call_due_ns = d->now_ns;
  if (child->call_due_ns + child->call_interval_ns > d->now_ns + SECOND_NS) {
    d->scoreboard->broker->refused++;
    return 0;
  }
  child->call_due_ns += child->call_interval_ns;
  return 1;
}

/* Another call of a function with a limit has come: whether it may wait. What helpers can take is
 * handed out first, so that only those count that have to wait. */
static int has_room(shmi_dispatch_t *d, const shmi_function_t *function) {
  if (shmi_schedule_waiting(d->schedule, function) < function->max_queue) return 1;
  shmi_dispatch_hand_out(d);
  if (shmi_schedule_waiting(d->schedule, function) < function->max_queue) return 1;
  d->scoreboard->broker->refused++;
  if ((function->flags & SHM_FUNCTION_DROPS_OLDEST) == 0) return 0;
  uint32_t oldest = shmi_schedule_take_oldest(d->schedule, function);
  shmi_dispatch_answer_plain(d, oldest, SHM_EQUEUE_FULL);
  return 1;
}

static void take_call(shmi_dispatch_t *d, int slot, shmi_frame_t *frame) {
  shmi_child_t *child = &d->children[slot];
  if (child->outstanding >= child->window) {
    protocol_error(d, slot); /* not answered: its reply pipe may hold no more */
    return;
  }
  uint64_t expected = shmi_schedule_expected(d->schedule);
  shmi_frame_bounds_t bounds = {.arena_base = shmi_arena_address(slot),
                                .arena_bytes = shmi_arena_bytes(),
                                .helper_mask = expected,
                                .pool_count = d->config.pools};
  int status = shmi_frame_check_request(frame, &bounds);
  const shmi_function_t *function = NULL;
  if (status == SHM_EPLACEMENT) status = why_not_there(d, frame, expected);
  if (status == SHM_OK) {
    function = shmi_function_table_find((uint64_t)(uintptr_t)frame->msg.func_ptr);
    if (function == NULL) status = SHM_EBAD_FUNCTION;
    else status = shmi_frame_check_params(frame, &bounds, function->params_bytes);
  }
  int is_broadcast = shmi_dispatch_is_broadcast(frame);
  if (status == SHM_OK && is_broadcast) {
    if (function->func != NULL) status = SHM_EBAD_FUNCTION; /* its block has no length of its own */
    else if (!child->may_broadcast) status = SHM_ENOT_ALLOWED;
  }
  if (status == SHM_EBAD_FRAME) {
    protocol_error(d, slot);
    return;
  }
  if (status == SHM_OK && !is_within_rate(d, child)) status = SHM_ERATE;
  if (status == SHM_OK && !is_broadcast && function->max_queue > 0 && !has_room(d, function)) {
    status = SHM_EQUEUE_FULL;
  }
  child->outstanding++;
  d->scoreboard->broker->submitted++;
  d->scoreboard->child_stats[slot].submitted++;
  frame->slot = (uint16_t)slot;
  frame->generation = child->generation;
  d->is_watched = (frame->flags & SHMI_FRAME_WATCHED) != 0;
  frame->flags &= SHMI_FRAME_GANG | SHMI_FRAME_BROADCAST;
  frame->status = 0;
  frame->placement &= expected;
  if (status != SHM_OK || is_broadcast) {
    uint32_t number = shmi_schedule_admit(d->schedule, frame, d->now_ns);
    if (number == SHMI_NONE) return;
    /* pool, placement, function, block, right, limits: answered, never queued */
    if (status != SHM_OK) shmi_dispatch_answer_plain(d, number, status);
    else shmi_dispatch_take_broadcast(d, number, function);
    return;
  }
  shmi_schedule_enqueue(d->schedule, frame, function, d->now_ns);
}

static void take_grow(shmi_dispatch_t *d, int slot, const shmi_frame_t *frame) {
  shmi_child_t *child = &d->children[slot];
  int h = frame->slot;
  shmi_frame_t stamped = *frame;
  stamped.slot = (uint16_t)slot;
  stamped.generation = child->generation;
  /* A child that grows what was never parked would get more answers than it has calls. */
  uint32_t number = child->parked > 0 ? shmi_schedule_admit(d->schedule, &stamped, d->now_ns)
                                      : SHMI_NONE;
  if (number == SHMI_NONE) {
    protocol_error(d, slot);
    return;
  }
  if (--child->parked == 0) child->parked_at = 0;
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  r->helper = (uint8_t)h;
  r->handed_ns = d->now_ns;
  if (h >= d->config.helpers || d->helpers[h].state != SHMI_PEER_UP ||
      d->helpers[h].generation != frame->result.token) {
    r->helper = SHM_NO_HELPER;
    /* The parked result died with its helper. */
    shmi_dispatch_answer_plain(d, number, SHM_EHELPER_DIED);
    return;
  }
  shmi_dispatch_wait_to_grow(d, h, number);
}

static void take_cancel(shmi_dispatch_t *d, int slot, const shmi_frame_t *frame) {
  uint32_t number = shmi_schedule_cancel(d->schedule, slot, frame->sequence);
  if (number == SHMI_NONE) number = shmi_dispatch_drop_broadcast(d, slot, frame->sequence);
  if (number == SHMI_NONE) return; /* handed over or answered: that reply stands */
  const shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  int is_late = shmi_request_is_expired(r, shmi_clock_ns()); /* it came after the turn's own time */
  if (is_late) d->scoreboard->broker->expired++;
  else d->scoreboard->broker->cancelled++;
  shmi_dispatch_answer_plain(d, number, is_late ? SHM_ETIMEOUT : SHM_ECANCELLED);
}

static void child_left(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  shmi_poll_set_remove_and_close(&d->poll_set, &child->request_fd);
  if (child->state == SHMI_PEER_UP) child->state = SHMI_PEER_LEFT;
  d->flags |= SHMI_TURN_LEFT;
}

/* A child that writes as fast as it is read does not get the whole turn: it is reported again in
 * the next. An offender is not read any more. */
void shmi_dispatch_read_child(shmi_dispatch_t *d, int slot, int at_end) {
  shmi_child_t *child = &d->children[slot];
  shmi_frame_t frames[SHMI_PIPE_BURST];
  int got, bursts = 0;
  do {
    if (child->request_fd < 0 || child->state == SHMI_PEER_OFFENDED) return;
    if (++bursts > BURSTS && !at_end) {
      shmi_poll_set_rearm(&d->poll_set, child->request_fd, SHMI_POLL_ARRIVALS, SHMI_WATCHED_CHILD,
                          slot);
      break;
    }
    got = shmi_pipe_read(child->request_fd, frames, SHMI_PIPE_BURST);
    if (got < 0 && got != SHM_EINTR) {
      if (got == SHM_EBAD_FRAME) { /* torn: from here on nothing on this pipe can be read */
        d->scoreboard->child_stats[slot].protocol_errors = PATIENCE;
        protocol_error(d, slot);
      }
      child_left(d, slot);
      return;
    }
    if (got > 0) SHMI_FAULT(AFTER_READ);
    for (int i = 0; i < got; i++) {
      switch (frames[i].kind) {
        case SHMI_FRAME_CALL: take_call(d, slot, &frames[i]); break;
        case SHMI_FRAME_GROW: take_grow(d, slot, &frames[i]); break;
        case SHMI_FRAME_CANCEL: take_cancel(d, slot, &frames[i]); break;
        default: protocol_error(d, slot);
      }
    }
  } while (got == SHMI_PIPE_BURST || got == SHM_EINTR || (at_end && got > 0));
  d->scoreboard->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
}

int shmi_dispatch_add_child(shmi_dispatch_t *d, int slot, int request_fd, int reply_fd, int pid) {
  shmi_child_t *child = &d->children[slot];
  child->request_fd = request_fd;
  child->reply_fd = reply_fd;
  child->generation++;
  child->outstanding = 0;
  child->parked = 0;
  child->parked_at = 0;
  child->window = d->config.window;
  child->was_told_window = 0;
  child->call_interval_ns = 0;
  child->call_due_ns = 0;
  child->may_broadcast = 1;
  child->in_flight = 0;
  child->cleared_to = 0;
  child->state = SHMI_PEER_UP;
  shm_child_stats_t *stats = &d->scoreboard->child_stats[slot];
  stats->pid = pid;
  stats->state = SHM_CHILD_RUNNING;
  stats->generation = child->generation;
  stats->protocol_errors = 0;
  stats->parked_limit = 0;
  stats->window = 0;
  shmi_schedule_set_weight(d->schedule, slot, 1);
  return shmi_poll_set_add(&d->poll_set, request_fd, SHMI_POLL_ARRIVALS, SHMI_WATCHED_CHILD, slot);
}

void shmi_dispatch_limit_child(shmi_dispatch_t *d, int slot, const shm_quota_t *quota) {
  shmi_child_t *child = &d->children[slot];
  uint32_t window = quota->window;
  if (window == 0 || window > d->config.window) window = d->config.window;
  /* When the window shrinks, the child itself keeps to it: what it sent before was within the
   * window when it was sent, whenever it arrives. */
  if (!child->was_told_window || window > child->window) child->window = window;
  child->was_told_window = 1;
  __atomic_store_n(&d->scoreboard->child_stats[slot].window, window, __ATOMIC_RELAXED);
  shmi_schedule_set_weight(d->schedule, slot, quota->weight > 0 ? quota->weight : 1);
  d->scoreboard->child_stats[slot].parked_limit = quota->parked_bytes;
  child->call_interval_ns = quota->calls_per_second > 0 ? SECOND_NS / quota->calls_per_second : 0;
}

void shmi_dispatch_let_broadcast(shmi_dispatch_t *d, int slot, int may) {
  d->children[slot].may_broadcast = (uint8_t)may;
}

uint32_t shmi_dispatch_child_generation(const shmi_dispatch_t *d, int slot) {
  return d->children[slot].generation;
}

int shmi_dispatch_child_state(const shmi_dispatch_t *d, int slot) {
  return d->children[slot].state;
}

int shmi_dispatch_child_has_left(const shmi_dispatch_t *d, int slot) {
  const shmi_child_t *child = &d->children[slot];
  if (child->request_fd < 0) return child->state == SHMI_PEER_LEFT;
  struct pollfd pipe = {.fd = child->request_fd};
  return poll(&pipe, 1, 0) == 1; /* nothing is asked for but the end */
}

void shmi_dispatch_remove_child(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  if (child->state == SHMI_PEER_NONE || child->state >= SHMI_PEER_QUARANTINED) return;
  if (child->request_fd >= 0) shmi_poll_set_remove_and_close(&d->poll_set, &child->request_fd);
  child->state = SHMI_PEER_QUARANTINED;
  child->wants_clearing = 0;
  shmi_scoreboard_drop_page(slot);
  shmi_dispatch_drop_grows(d, slot);
  uint32_t number;
  while ((number = shmi_dispatch_drop_broadcast(d, slot, 0)) != SHMI_NONE) {
    shmi_dispatch_count_dropped(d, slot, 1);
    shmi_schedule_free(d->schedule, number);
  }
  while ((number = shmi_schedule_drop_child(d->schedule, slot)) != SHMI_NONE) {
    shmi_dispatch_count_dropped(d, slot, 1);
    if (shmi_dispatch_is_broadcast(&shmi_schedule_request(d->schedule, number)->frame)) {
      shmi_dispatch_broadcast_over(d, number);
    }
    shmi_schedule_free(d->schedule, number);
  }
  shmi_dispatch_forget_replies(d, slot);
  /* Calls that wait for room will never get it. */
  shmi_dispatch_count_dropped(d, slot, child->parked);
  child->parked = 0;
  shmi_descriptor_close(&child->reply_fd);
  d->scoreboard->child_stats[slot].state = SHM_CHILD_QUARANTINED;
  d->scoreboard->child_stats[slot].pid = 0;
  d->scoreboard->child_stats[slot].queued = 0;
  if (child->in_flight > 0) return;
  shmi_dispatch_leave_quarantine(d, slot);
  d->now_ns = shmi_clock_ns();
  shmi_dispatch_hand_out(d); /* notify helpers now: the next turn may be far off */
}

void shmi_dispatch_clear_child(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  child->wants_clearing = 1;
  if (child->state == SHMI_PEER_NONE) shmi_dispatch_leave_quarantine(d, slot);
  d->now_ns = shmi_clock_ns();
  shmi_dispatch_hand_out(d);
}

void shmi_dispatch_tell_ready(shmi_dispatch_t *d, int slot, int status) {
  shmi_frame_t frame = {.kind = SHMI_FRAME_READY, .status = shmi_status_to_wire(status)};
  if (d->children[slot].reply_fd >= 0) shmi_pipe_write(d->children[slot].reply_fd, &frame, 1);
}
