/* dispatch -- see dispatch.h. */
#include "dispatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "board.h"
#include "channel.h"
#include "clock.h"
#include "descriptor.h"
#include "fault.h"
#include "registry.h"
#include "schedule.h"

enum {
  EVENTS = 256,         /* children served per turn; the rest stay ready for the next */
  READ_FRAMES = 256,
  BURSTS = 32,          /* of one child in one turn: twice what a pipe holds */
  IN_FLIGHT_MAX = 896,  /* frames a helper's pipe is sure to hold */
  PATIENCE = 16,        /* protocol errors of one child before it is ended */
  CLEAR_AT_ONCE = 16 << 20 /* bytes of a dead child's arena: some milliseconds of a helper */
};

/* What the board says of a slot. */
enum helper_shown { HELPER_RETIRING = 5, HELPER_ABSENT = 6 };
enum child_shown { SHOWN_RUNNING = 1, SHOWN_ENDED, SHOWN_QUARANTINED, SHOWN_CLEARING };

typedef struct child {
  int request_fd, reply_fd;
  int state;
  uint32_t generation;
  uint32_t outstanding;  /* calls the child may not have a reply for yet */
  uint32_t parked;       /* of these, told to make room for a result and not yet done so */
  uint32_t window;       /* the most it may have outstanding: the largest that it was ever told */
  uint8_t was_told_window;
  uint64_t parked_at;    /* helpers that may keep such results, as a mask */
  uint32_t in_flight;    /* deliveries that helpers hold and may write to its arena for */
  uint64_t cleared_to;   /* of a dead child's arena: what lies below is zero */
  uint8_t wants_clearing, is_cleared_now; /* to be cleared; a helper is at it */
  uint32_t replies_head, replies_tail; /* finished requests whose reply is to be written */
  uint32_t dirty_next;   /* in the list of children with replies */
  uint8_t is_dirty;
} child_t;

typedef struct helper {
  int down_fd, up_fd;
  int state;
  uint32_t generation;
  uint64_t deliveries;      /* the last number given */
  uint64_t lowest;          /* every delivery below it is finished */
  uint32_t in_flight;       /* calls and grows written or about to be */
  int is_retiring;
  uint32_t grow_head, grow_tail; /* grows that wait for room in the pipe */
  uint32_t out_count;
  uint32_t by_delivery[SHMI_BOARD_RING];
  shmi_frame_t out[SHMI_BOARD_RING];
} helper_t;

struct shmi_dispatch {
  shmi_dispatch_config_t config;
  shmi_schedule_t *schedule;
  child_t *children;
  helper_t *helpers;
  int epoll_fd;
  int flags;        /* shmi_turn bits gathered outside a turn */
  int coarse_waits; /* the kernel has no epoll_pwait2: waits are rounded up to milliseconds */
  uint32_t dirty; /* child + 1: head of the list of children with replies */
  uint64_t helper_mask; /* those that there are, or will be again */
  uint64_t retiring;    /* those whose pipe is to be closed */
  uint64_t now_ns;
  uint64_t least_hang_ns; /* the shortest hang_after of all functions; 0: none has one */
  int holding;      /* no call is handed out */
  int clearing;     /* slots in that state */
  const shmi_board_t *board;
};

/* ---- replies ---- */

/* Every call counted as submitted comes to be counted either as answered (its outcome is on its
 * way to its child, who may read it or die first) or as dropped (its child died before). */
static void count_dropped(shmi_dispatch_t *d, int slot, uint64_t calls) {
  d->board->broker->dropped += calls;
  d->board->child_stats[slot].dropped += calls;
}

/* Request `number` is over with this outcome: enter its trace, make it its own reply, and queue
 * that for its child. The child may be gone, then it is dropped. */
static void answer(shmi_dispatch_t *d, uint32_t number, int status, uint64_t value,
                   uint64_t token, uint32_t started, uint32_t finished) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  child_t *child = &d->children[r->frame.slot];
  shm_broker_stats_t *broker = d->board->broker;
  shm_child_stats_t *stats = &d->board->child_stats[r->frame.slot];
  int goes_on = status == SHM_ENEEDS_SPACE;
  if (r->frame.kind == SHMI_FRAME_CALL && d->board->trace_records > 0) {
    shm_trace_record_t life = {.sequence = r->frame.sequence,
                               .function = (uint64_t)(uintptr_t)r->frame.msg.func_ptr,
                               .queued_ns = r->queued_ns,
                               .handed_ns = r->handed_ns,
                               .answered_ns = d->now_ns,
                               .started_units = started,
                               .finished_units = finished,
                               .rows = r->frame.rows,
                               .slot = r->frame.slot,
                               .status = (int16_t)status,
                               .batch = r->batch,
                               .helper = r->helper,
                               .priority = r->frame.priority,
                               .generation = r->frame.generation};
    shmi_board_trace(&life);
  }
  if (child->state != SHMI_PEER_UP || child->generation != r->frame.generation) {
    count_dropped(d, r->frame.slot, 1);
    shmi_schedule_free(d->schedule, number);
    return;
  }
  if (!goes_on) {
    broker->answered++;
    stats->answered++;
    if (status != SHM_OK) {
      broker->failed++;
      stats->failed++;
    }
  }
  uint64_t sequence = r->frame.sequence;
  uint16_t slot = r->frame.slot;
  uint32_t generation = r->frame.generation;
  r->frame = (shmi_frame_t){.result = {.token = token, .value = value},
                            .sequence = sequence,
                            .slot = r->helper,
                            .kind = SHMI_FRAME_REPLY,
                            .generation = generation,
                            .status = shmi_status_to_wire(status),
                            .started_units = started,
                            .finished_units = finished};
  r->next = SHMI_NONE;
  if (child->replies_head == SHMI_NONE) child->replies_head = number;
  else shmi_schedule_request(d->schedule, child->replies_tail)->next = number;
  child->replies_tail = number;
  if (!child->is_dirty) {
    child->is_dirty = 1;
    child->dirty_next = d->dirty;
    d->dirty = slot + 1u;
  }
}

static void answer_plain(shmi_dispatch_t *d, uint32_t number, int status) {
  answer(d, number, status, 0, 0, 0, 0);
}

static void forget_replies(shmi_dispatch_t *d, child_t *child) {
  while (child->replies_head != SHMI_NONE) {
    uint32_t number = child->replies_head;
    const shmi_request_t *r = shmi_schedule_request(d->schedule, number);
    child->replies_head = r->next;
    /* The others were counted as answered when their replies were made. */
    if (r->frame.status == shmi_status_to_wire(SHM_ENEEDS_SPACE)) {
      count_dropped(d, (int)(child - d->children), 1);
    }
    shmi_schedule_free(d->schedule, number);
  }
}

/* Write what is due to one child. 0 when something is left (its pipe is full, which a window
 * that fits the pipe rules out). */
static int write_replies(shmi_dispatch_t *d, child_t *child) {
  while (child->replies_head != SHMI_NONE) {
    shmi_frame_t frames[SHMI_CHANNEL_BURST];
    int count = 0;
    for (uint32_t n = child->replies_head; n != SHMI_NONE && count < SHMI_CHANNEL_BURST;
         n = shmi_schedule_request(d->schedule, n)->next) {
      frames[count++] = shmi_schedule_request(d->schedule, n)->frame;
    }
    int written = shmi_channel_write(child->reply_fd, frames, count);
    if (written == SHM_EINTR) continue;
    if (written < 0) { /* nobody reads any more: its death will be told by its pidfd */
      forget_replies(d, child);
      return 1;
    }
    for (int i = 0; i < written; i++) {
      uint32_t number = child->replies_head;
      child->replies_head = shmi_schedule_request(d->schedule, number)->next;
      /* Only now: a child that reads no reply runs into its own window, not into the table. */
      if (frames[i].status == shmi_status_to_wire(SHM_ENEEDS_SPACE)) {
        child->parked++;
        child->parked_at |= UINT64_C(1) << (frames[i].slot & 63);
      } else {
        child->outstanding--;
      }
      shmi_schedule_free(d->schedule, number);
    }
    if (written < count) return 0;
  }
  return 1;
}

static void flush_replies(shmi_dispatch_t *d) {
  uint32_t at = d->dirty;
  d->dirty = 0;
  while (at != 0) {
    child_t *child = &d->children[at - 1];
    uint32_t following = child->dirty_next;
    child->is_dirty = 0;
    if (!write_replies(d, child)) {
      child->is_dirty = 1;
      child->dirty_next = d->dirty;
      d->dirty = at;
    }
    at = following;
  }
}

/* ---- handing out ---- */

/* ---- quarantine ---- */

/* No helper can write to that dead child's arena any more. */
static void leave_quarantine(shmi_dispatch_t *d, int slot) {
  child_t *child = &d->children[slot];
  if (child->wants_clearing) {
    child->state = SHMI_PEER_CLEARING;
    d->board->child_stats[slot].state = SHOWN_CLEARING;
    d->clearing++;
    return;
  }
  child->state = SHMI_PEER_NONE;
  d->board->child_stats[slot].state = SHOWN_ENDED;
  d->flags |= SHMI_TURN_FREED;
}

static void released(shmi_dispatch_t *d, int slot) {
  child_t *child = &d->children[slot];
  if (--child->in_flight == 0 && child->state == SHMI_PEER_QUARANTINED) leave_quarantine(d, slot);
}

static void put_out(shmi_dispatch_t *d, helper_t *helper, uint32_t number, int more) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  int slot = r->frame.slot;
  d->board->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
  if (r->frame.kind != SHMI_FRAME_CLEAR) d->children[slot].in_flight++;
  uint64_t delivery = ++helper->deliveries;
  d->board->broker->in_flight++;
  if (helper->in_flight++ == 0) helper->lowest = delivery;
  helper->by_delivery[delivery % SHMI_BOARD_RING] = number;
  shmi_frame_t *frame = &helper->out[helper->out_count++];
  *frame = r->frame;
  frame->flags = more ? SHMI_FRAME_MORE : 0;
  if (r->members != 0) {
    frame->flags |= SHMI_FRAME_GANG;
    frame->members = r->members;
  } else {
    r->delivery = delivery;
  }
  frame->delivery = delivery;
  frame->handed_ns = d->now_ns;
}

static void write_out(helper_t *helper) {
  uint32_t written = 0;
  while (written < helper->out_count) {
    int got = shmi_channel_write(helper->down_fd, helper->out + written,
                                 (int)(helper->out_count - written));
    if (got == SHM_EINTR) continue;
    if (got < 0) { /* dead: all of this is on the books, and comes back when it is removed */
      written = helper->out_count;
      break;
    }
    /* Full: a user beyond the kernel's soft limit of pipe pages is given small ones. The rest
     * follows when the helper, which then has work, has answered. */
    if (got == 0) break;
    written += (uint32_t)got;
  }
  helper->out_count -= written;
  if (helper->out_count > 0) {
    memmove(helper->out, helper->out + written, helper->out_count * sizeof *helper->out);
  }
}

static void hand_out_grows(shmi_dispatch_t *d, helper_t *helper) {
  while (helper->grow_head != SHMI_NONE && helper->in_flight < IN_FLIGHT_MAX) {
    uint32_t number = helper->grow_head;
    helper->grow_head = shmi_schedule_request(d->schedule, number)->next;
    put_out(d, helper, number, 0);
  }
}

static int least_busy_helper(const shmi_dispatch_t *d) {
  int found = -1;
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].state != SHMI_PEER_UP || d->helpers[h].is_retiring ||
        d->helpers[h].in_flight >= IN_FLIGHT_MAX) {
      continue;
    }
    if (found < 0 || d->helpers[h].in_flight < d->helpers[found].in_flight) found = h;
  }
  return found;
}

/* Have the next stretch of every arena that is to be cleared written with zeros. */
static uint64_t hand_out_clears(shmi_dispatch_t *d) {
  uint64_t touched = 0;
  for (int slot = 0; slot < d->config.children; slot++) {
    child_t *child = &d->children[slot];
    if (child->state != SHMI_PEER_CLEARING || child->is_cleared_now) continue;
    uint64_t offset, bytes;
    if (!shmi_arena_next_data(slot, child->cleared_to, CLEAR_AT_ONCE, &offset, &bytes)) {
      d->clearing--;
      d->board->broker->arenas_cleared++;
      child->wants_clearing = 0;
      leave_quarantine(d, slot);
      continue;
    }
    int h = least_busy_helper(d);
    if (h < 0) continue;
    shmi_frame_t frame = {.result = {.token = bytes, .value = shmi_arena_address(slot) + offset},
                          .slot = (uint16_t)slot,
                          .kind = SHMI_FRAME_CLEAR,
                          .generation = child->generation};
    uint32_t number = shmi_schedule_admit(d->schedule, &frame, d->now_ns);
    if (number == SHMI_NONE) continue;
    child->is_cleared_now = 1;
    put_out(d, &d->helpers[h], number, 0);
    touched |= UINT64_C(1) << h;
  }
  return touched;
}

/* A stretch was cleared, or its helper died over it: then it is cleared again. */
static void finish_clear(shmi_dispatch_t *d, uint32_t number, int status) {
  const shmi_frame_t *frame = &shmi_schedule_request(d->schedule, number)->frame;
  child_t *child = &d->children[frame->slot];
  child->is_cleared_now = 0;
  if (status == SHM_OK) {
    child->cleared_to = frame->result.value + frame->result.token - shmi_arena_address(frame->slot);
    d->board->broker->cleared_bytes += frame->result.token;
  }
  shmi_schedule_free(d->schedule, number);
}

static void hand_out(shmi_dispatch_t *d) {
  uint32_t batch[SHM_MAX_BATCH];
  uint64_t touched = d->clearing > 0 ? hand_out_clears(d) : 0;
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].grow_head != SHMI_NONE) hand_out_grows(d, &d->helpers[h]);
    if (d->helpers[h].out_count > 0) touched |= UINT64_C(1) << h;
  }
  int h, count;
  uint32_t gang;
  while (!d->holding &&
         (gang = shmi_schedule_next_gang(d->schedule, d->now_ns)) != SHMI_NONE) {
    uint64_t members = shmi_schedule_request(d->schedule, gang)->members;
    touched |= members;
    for (; members != 0; members &= members - 1) {
      put_out(d, &d->helpers[__builtin_ctzll(members)], gang, 0);
    }
  }
  while (!d->holding && (count = shmi_schedule_next(d->schedule, d->now_ns, &h, batch,
                                                    SHMI_CREDIT_MAX / 2)) > 0) {
    helper_t *helper = &d->helpers[h];
    for (int i = 0; i < count; i++) put_out(d, helper, batch[i], i + 1 < count);
    touched |= UINT64_C(1) << h;
    if (count > 1) {
      d->board->helper_stats[h].batches++;
      d->board->helper_stats[h].batched += (uint64_t)count;
    }
  }
  while (touched != 0) {
    h = __builtin_ctzll(touched);
    touched &= touched - 1;
    write_out(&d->helpers[h]);
    d->board->helper_stats[h].in_flight = d->helpers[h].in_flight;
  }
  uint32_t expired;
  while ((expired = shmi_schedule_take_expired(d->schedule)) != SHMI_NONE) {
    int slot = shmi_schedule_request(d->schedule, expired)->frame.slot;
    d->board->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
    d->board->broker->expired++;
    answer_plain(d, expired, SHM_ETIMEOUT);
  }
}

/* ---- what children send ---- */

static void protocol_error(shmi_dispatch_t *d, int slot) {
  d->board->broker->protocol_errors++;
  if (++d->board->child_stats[slot].protocol_errors >= PATIENCE) {
    d->children[slot].state = SHMI_PEER_OFFENDED;
    d->flags |= SHMI_TURN_OFFENDED;
  }
}

static void take_call(shmi_dispatch_t *d, int slot, shmi_frame_t *frame) {
  child_t *child = &d->children[slot];
  if (child->outstanding >= child->window) {
    protocol_error(d, slot); /* not answered: its reply pipe may hold no more */
    return;
  }
  shmi_frame_bounds_t bounds = {.arena_base = shmi_arena_address(slot),
                                .arena_bytes = shmi_arena_bytes(),
                                .helper_mask = d->helper_mask,
                                .pool_count = d->config.pools};
  int status = shmi_frame_check_request(frame, &bounds);
  const shmi_function_t *function = NULL;
  if (status == SHM_OK) {
    function = shmi_registry_find((uint64_t)(uintptr_t)frame->msg.func_ptr);
    if (function == NULL) status = SHM_EBAD_FUNCTION;
    else status = shmi_frame_check_params(frame, &bounds, function->params_bytes);
  }
  if (status == SHM_EBAD_FRAME) {
    protocol_error(d, slot);
    return;
  }
  child->outstanding++;
  d->board->broker->submitted++;
  d->board->child_stats[slot].submitted++;
  frame->slot = (uint16_t)slot;
  frame->generation = child->generation;
  frame->flags &= SHMI_FRAME_GANG;
  frame->status = 0;
  frame->placement &= d->helper_mask;
  if (status != SHM_OK) { /* pool, placement, function, block: answered, never queued */
    uint32_t number = shmi_schedule_admit(d->schedule, frame, d->now_ns);
    if (number != SHMI_NONE) answer_plain(d, number, status);
    return;
  }
  shmi_schedule_enqueue(d->schedule, frame, function, d->now_ns);
}

static void wait_to_grow(shmi_dispatch_t *d, int h, uint32_t number) {
  helper_t *helper = &d->helpers[h];
  shmi_schedule_request(d->schedule, number)->next = SHMI_NONE;
  if (helper->grow_head == SHMI_NONE) helper->grow_head = number;
  else shmi_schedule_request(d->schedule, helper->grow_tail)->next = number;
  helper->grow_tail = number;
}

static void take_grow(shmi_dispatch_t *d, int slot, const shmi_frame_t *frame) {
  child_t *child = &d->children[slot];
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
    r->helper = 255;
    answer_plain(d, number, SHM_EHELPER_DIED); /* the parked result died with its helper */
    return;
  }
  wait_to_grow(d, h, number);
}

static void take_cancel(shmi_dispatch_t *d, int slot, const shmi_frame_t *frame) {
  uint32_t number = shmi_schedule_cancel(d->schedule, slot, frame->sequence);
  if (number == SHMI_NONE) return; /* handed over or answered: that reply stands */
  d->board->broker->cancelled++;
  answer_plain(d, number, SHM_ECANCELLED);
}

enum peer { PEER_CHILD, PEER_HELPER, PEER_SUPERVISOR };

static struct epoll_event event_of(enum peer peer, int index) {
  /* Level-triggered for the supervisor, which may leave some of it for later. */
  return (struct epoll_event){.events = EPOLLIN | (peer == PEER_SUPERVISOR ? 0u : EPOLLET),
                              .data = {.u64 = (uint64_t)peer << 32 | (uint32_t)index}};
}

static void child_left(shmi_dispatch_t *d, int slot) {
  child_t *child = &d->children[slot];
  epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, child->request_fd, NULL);
  shmi_descriptor_close(&child->request_fd);
  if (child->state == SHMI_PEER_UP) child->state = SHMI_PEER_LEFT;
  d->flags |= SHMI_TURN_LEFT;
}

/* Edge-triggered: whatever lies in the pipe is read now, or never heard of again. A read that
 * came back short has emptied the pipe; at_end (the writer is gone) reads on to the end. One
 * that writes as fast as it is read gets a new edge instead of the whole turn, and an offender
 * is not listened to any more. */
static void read_child(shmi_dispatch_t *d, int slot, int at_end) {
  child_t *child = &d->children[slot];
  shmi_frame_t frames[SHMI_CHANNEL_BURST];
  int got, bursts = 0;
  do {
    if (child->request_fd < 0 || child->state == SHMI_PEER_OFFENDED) return;
    if (++bursts > BURSTS && !at_end) {
      struct epoll_event event = event_of(PEER_CHILD, slot);
      epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, child->request_fd, &event);
      break;
    }
    got = shmi_channel_read(child->request_fd, frames, SHMI_CHANNEL_BURST);
    if (got < 0 && got != SHM_EINTR) {
      if (got == SHM_EBAD_FRAME) { /* torn: from here on nothing on this pipe can be read */
        d->board->child_stats[slot].protocol_errors = PATIENCE;
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
  } while (got == SHMI_CHANNEL_BURST || got == SHM_EINTR || (at_end && got > 0));
  d->board->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
}

/* ---- what helpers answer ---- */

static void forget_delivery(shmi_dispatch_t *d, helper_t *helper, uint64_t delivery) {
  uint32_t *number = &helper->by_delivery[delivery % SHMI_BOARD_RING];
  const shmi_frame_t *frame = &shmi_schedule_request(d->schedule, *number)->frame;
  if (frame->kind != SHMI_FRAME_CLEAR) released(d, frame->slot);
  *number = SHMI_NONE;
  d->board->broker->in_flight--;
  helper->in_flight--;
  while (helper->in_flight > 0 &&
         helper->by_delivery[helper->lowest % SHMI_BOARD_RING] == SHMI_NONE) {
    helper->lowest++;
  }
}

static uint32_t in_flight_at(const helper_t *helper, uint64_t delivery) {
  if (helper->in_flight == 0 || delivery < helper->lowest || delivery > helper->deliveries) {
    return SHMI_NONE;
  }
  return helper->by_delivery[delivery % SHMI_BOARD_RING];
}

/* One helper of a gang has ended its part; the last one's end is the call's. The value is the
 * first helper's, the status the first failure. */
static void finish_member(shmi_dispatch_t *d, int h, uint32_t number, int status, uint64_t value,
                          uint32_t started, uint32_t finished) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  if (h == r->helper && r->gang_status == SHM_OK) r->gang_value = value;
  if (status != SHM_OK && r->gang_status == SHM_OK) {
    r->gang_status = status;
    r->gang_value = value;
  }
  if (finished > 0) { /* it ended its part, rather than died */
    d->board->helper_stats[h].finished++;
    d->board->helper_stats[h].busy_ns += (uint64_t)(finished - started) * SHMI_FRAME_UNIT_NS;
  }
  if (shmi_schedule_gang_finished(d->schedule, number, h) > 0) return;
  answer(d, number, r->gang_status, r->gang_value, 0, started, finished);
}

static void finish(shmi_dispatch_t *d, int h, uint64_t delivery, int status, uint64_t value,
                   uint32_t started, uint32_t finished) {
  helper_t *helper = &d->helpers[h];
  uint32_t number = in_flight_at(helper, delivery);
  if (number == SHMI_NONE) { /* stale: nobody's any more */
    d->board->broker->dropped++;
    return;
  }
  forget_delivery(d, helper, delivery);
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  if (r->frame.kind == SHMI_FRAME_CLEAR) {
    finish_clear(d, number, status);
    return;
  }
  if (r->members != 0) {
    finish_member(d, h, number, status, value, started, finished);
    return;
  }
  if (r->frame.kind == SHMI_FRAME_CALL) {
    uint64_t service_ns = (uint64_t)(finished - started) * SHMI_FRAME_UNIT_NS;
    shm_helper_stats_t *stats = &d->board->helper_stats[h];
    stats->finished++;
    if (r->estimate_ns > 0) stats->busy_ns += service_ns; /* once a batch */
    shmi_schedule_finished(d->schedule, number, service_ns > 0 ? service_ns : 1);
  }
  answer(d, number, status, value, helper->generation, started, finished);
}

static void helper_hung_up(shmi_dispatch_t *d, int h) {
  epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->helpers[h].up_fd, NULL);
  shmi_descriptor_close(&d->helpers[h].up_fd); /* its pidfd tells the rest */
}

/* Returns 0 at end of file. Edge-triggered, as read_child. */
static int read_helper(shmi_dispatch_t *d, int h, int at_end) {
  helper_t *helper = &d->helpers[h];
  shmi_frame_t frames[READ_FRAMES];
  for (;;) {
    int got = shmi_channel_read(helper->up_fd, frames, READ_FRAMES);
    if (got == SHM_EINTR) continue;
    if (got == 0) return 1;
    if (got < 0) return 0;
    for (int i = 0; i < got; i++) {
      const shmi_frame_t *frame = &frames[i];
      if (frame->kind == SHMI_FRAME_REPLY) {
        finish(d, h, frame->delivery, shmi_status_from_wire(frame->status), frame->result.value,
               frame->started_units, frame->finished_units);
      } else if (frame->kind == SHMI_FRAME_READY && helper->state == SHMI_PEER_STARTING) {
        int made = frame->status == 0;
        helper->state = made ? SHMI_PEER_UP : SHMI_PEER_FAILED;
        if (!helper->is_retiring) {
          d->board->helper_stats[h].state = made ? 2 : 3;
          if (made) shmi_schedule_helper_up(d->schedule, h);
        }
        d->flags |= SHMI_TURN_READY;
      }
    }
    d->board->helper_stats[h].in_flight = helper->in_flight;
    if (got < READ_FRAMES && !at_end) return 1;
  }
}

/* ---- helpers that are not needed any more ---- */

static int keeps_a_result(const shmi_dispatch_t *d, int h) {
  for (int slot = 0; slot < d->config.children; slot++) {
    if (d->children[slot].parked > 0 && (d->children[slot].parked_at >> h & 1) != 0) return 1;
  }
  return 0;
}

static void close_retired(shmi_dispatch_t *d) {
  if (d->dirty != 0) return; /* a reply on its way may be of a result that it keeps */
  for (uint64_t left = d->retiring; left != 0; left &= left - 1) {
    int h = __builtin_ctzll(left);
    helper_t *helper = &d->helpers[h];
    if (helper->in_flight > 0 || helper->grow_head != SHMI_NONE || keeps_a_result(d, h)) continue;
    shmi_descriptor_close(&helper->down_fd);
    d->retiring &= ~(UINT64_C(1) << h);
  }
}

/* ---- the turn ---- */

static int watch(shmi_dispatch_t *d, int fd, enum peer peer, int index) {
  struct epoll_event event = event_of(peer, index);
  return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? SHM_OK : SHM_ESYSTEM;
}

/* epoll_pwait with a time-out in nanoseconds where the kernel has it (Linux 5.11). */
static int wait_events(shmi_dispatch_t *d, struct epoll_event *events, int64_t timeout_ns,
                       const sigset_t *mask) {
  if (timeout_ns > 0 && !d->coarse_waits) {
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000,
                             .tv_nsec = timeout_ns % 1000000000};
    long got = syscall(SYS_epoll_pwait2, d->epoll_fd, events, EVENTS, &limit, mask,
                       mask != NULL ? _NSIG / 8 : 0);
    if (got >= 0 || errno != ENOSYS) return (int)got;
    d->coarse_waits = 1;
  }
  int64_t timeout_ms = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
  return epoll_pwait(d->epoll_fd, events, EVENTS, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms,
                     mask);
}

static int64_t shorter(int64_t timeout_ns, uint64_t at_ns, uint64_t now_ns) {
  if (at_ns == 0) return timeout_ns;
  int64_t left = at_ns > now_ns ? (int64_t)(at_ns - now_ns) : 0;
  return timeout_ns < 0 || left < timeout_ns ? left : timeout_ns;
}

int shmi_dispatch_turn(shmi_dispatch_t *d, int64_t timeout_ns, const sigset_t *mask) {
  uint64_t timer = shmi_schedule_next_timer(d->schedule);
  if (timer != 0) timeout_ns = shorter(timeout_ns, timer, shmi_clock_ns());
  if (d->flags != 0) timeout_ns = 0;
  /* A reply that did not fit is tried again soon; see write_replies. */
  if (d->dirty != 0) timeout_ns = shorter(timeout_ns, d->now_ns + 1000000, d->now_ns);
  struct epoll_event events[EVENTS];
  int ready = wait_events(d, events, timeout_ns, mask);
  if (ready < 0 && errno != EINTR) return SHM_ESYSTEM;
  d->board->broker->wakes++;
  d->now_ns = shmi_clock_ns();
  int flags = ready < 0 ? SHMI_TURN_SIGNAL : 0;
  if (ready > 0) SHMI_FAULT(BEFORE_READ);
  for (int i = 0; i < ready; i++) {
    int index = (int)(uint32_t)events[i].data.u64;
    int at_end = (events[i].events & (EPOLLHUP | EPOLLERR)) != 0;
    switch ((enum peer)(events[i].data.u64 >> 32)) {
      case PEER_CHILD:
        read_child(d, index, at_end);
        break;
      case PEER_HELPER:
        if (!read_helper(d, index, at_end)) helper_hung_up(d, index);
        break;
      case PEER_SUPERVISOR:
        flags |= SHMI_TURN_SUPERVISOR;
        break;
    }
  }
  if (shmi_schedule_queued(d->schedule) > 0) SHMI_FAULT(IN_FUNCTION);
  hand_out(d);
  if (d->dirty != 0) SHMI_FAULT(BEFORE_REPLY);
  flush_replies(d);
  if (d->retiring != 0) close_retired(d);
  if (ready > 0) SHMI_FAULT(AFTER_REPLY);
  d->board->broker->queued = shmi_schedule_queued(d->schedule);
  flags |= d->flags;
  d->flags = 0;
  return flags;
}

/* ---- peers come and go ---- */

int shmi_dispatch_add_child(shmi_dispatch_t *d, int slot, int request_fd, int reply_fd, int pid) {
  child_t *child = &d->children[slot];
  child->request_fd = request_fd;
  child->reply_fd = reply_fd;
  child->generation++;
  child->outstanding = 0;
  child->parked = 0;
  child->parked_at = 0;
  child->window = d->config.window;
  child->was_told_window = 0;
  child->in_flight = 0;
  child->cleared_to = 0;
  child->state = SHMI_PEER_UP;
  shm_child_stats_t *stats = &d->board->child_stats[slot];
  stats->pid = pid;
  stats->state = SHOWN_RUNNING;
  stats->generation = child->generation;
  stats->protocol_errors = 0;
  stats->parked_limit = 0;
  stats->window = 0;
  shmi_schedule_set_weight(d->schedule, slot, 1);
  return watch(d, request_fd, PEER_CHILD, slot);
}

void shmi_dispatch_limit_child(shmi_dispatch_t *d, int slot, uint32_t window, uint32_t weight,
                               uint64_t parked_bytes) {
  child_t *child = &d->children[slot];
  if (window == 0 || window > d->config.window) window = d->config.window;
  /* A smaller one than before is the child's to keep to: what it sent meanwhile was right when it
   * was sent, whenever it comes. */
  if (!child->was_told_window || window > child->window) child->window = window;
  child->was_told_window = 1;
  __atomic_store_n(&d->board->child_stats[slot].window, window, __ATOMIC_RELAXED);
  shmi_schedule_set_weight(d->schedule, slot, weight > 0 ? weight : 1);
  d->board->child_stats[slot].parked_limit = parked_bytes;
}

uint32_t shmi_dispatch_child_generation(const shmi_dispatch_t *d, int slot) {
  return d->children[slot].generation;
}
int shmi_dispatch_child_state(const shmi_dispatch_t *d, int slot) {
  return d->children[slot].state;
}
int shmi_dispatch_helper_state(const shmi_dispatch_t *d, int h) { return d->helpers[h].state; }

/* Room that a dead child made for results is no room any more. */
static void drop_grows(shmi_dispatch_t *d, int slot) {
  for (int h = 0; h < d->config.helpers; h++) {
    uint32_t number = d->helpers[h].grow_head;
    d->helpers[h].grow_head = SHMI_NONE;
    while (number != SHMI_NONE) {
      shmi_request_t *r = shmi_schedule_request(d->schedule, number);
      uint32_t next = r->next;
      r->next = SHMI_NONE;
      if (r->frame.slot == slot) {
        count_dropped(d, slot, 1);
        shmi_schedule_free(d->schedule, number);
      } else {
        wait_to_grow(d, h, number);
      }
      number = next;
    }
  }
}

void shmi_dispatch_remove_child(shmi_dispatch_t *d, int slot) {
  child_t *child = &d->children[slot];
  if (child->state == SHMI_PEER_NONE || child->state >= SHMI_PEER_QUARANTINED) return;
  if (child->request_fd >= 0) {
    epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, child->request_fd, NULL);
    shmi_descriptor_close(&child->request_fd);
  }
  child->state = SHMI_PEER_QUARANTINED;
  child->wants_clearing = 0;
  drop_grows(d, slot);
  uint32_t number;
  while ((number = shmi_schedule_drop_child(d->schedule, slot)) != SHMI_NONE) {
    count_dropped(d, slot, 1);
    shmi_schedule_free(d->schedule, number);
  }
  forget_replies(d, child);
  count_dropped(d, slot, child->parked); /* told to make room, which it will not do any more */
  child->parked = 0;
  shmi_descriptor_close(&child->reply_fd);
  d->board->child_stats[slot].state = SHOWN_QUARANTINED;
  d->board->child_stats[slot].pid = 0;
  d->board->child_stats[slot].queued = 0;
  if (child->in_flight == 0) leave_quarantine(d, slot);
}

void shmi_dispatch_clear_child(shmi_dispatch_t *d, int slot) {
  child_t *child = &d->children[slot];
  child->wants_clearing = 1;
  if (child->state == SHMI_PEER_NONE) leave_quarantine(d, slot);
  d->now_ns = shmi_clock_ns();
  hand_out(d);
}

int shmi_dispatch_add_helper(shmi_dispatch_t *d, int h, int down_fd, int up_fd, int pid,
                             uint32_t generation) {
  helper_t *helper = &d->helpers[h];
  helper->down_fd = down_fd;
  helper->up_fd = up_fd;
  helper->state = SHMI_PEER_STARTING;
  helper->generation = generation;
  helper->deliveries = 0;
  helper->lowest = 1;
  helper->in_flight = 0;
  helper->out_count = 0;
  helper->is_retiring = 0;
  d->helper_mask |= UINT64_C(1) << h;
  memset(helper->by_delivery, 0, sizeof helper->by_delivery);
  shm_helper_stats_t *stats = &d->board->helper_stats[h];
  stats->pid = pid;
  stats->state = 1;
  stats->generation = generation;
  stats->pool = d->config.helper_pool[h];
  return watch(d, up_fd, PEER_HELPER, h);
}

/* A delivery of a dead helper that nothing was heard of: what became of it? */
static void recover(shmi_dispatch_t *d, int h, uint64_t delivery, uint64_t executing,
                    shmi_victim_t *victim) {
  helper_t *helper = &d->helpers[h];
  uint32_t number = in_flight_at(helper, delivery);
  if (number == SHMI_NONE) return;
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  shmi_outcome_t *outcome = &shmi_board_helper(h)->finished[delivery % SHMI_BOARD_RING];
  int is_call = r->frame.kind == SHMI_FRAME_CALL;
  if (atomic_load_explicit(&outcome->delivery, memory_order_acquire) == delivery) {
    int status = shmi_status_from_wire((uint16_t)outcome->status);
    if (status == SHM_ENEEDS_SPACE) status = SHM_EHELPER_DIED; /* parked, and gone with it */
    finish(d, h, delivery, status, outcome->value, outcome->started_units,
           outcome->finished_units);
    return;
  }
  uint64_t first = executing >> 16, count = executing & 0xffff;
  int was_executing = executing != 0 && delivery >= first && delivery < first + count;
  forget_delivery(d, helper, delivery);
  if (r->frame.kind == SHMI_FRAME_CLEAR) {
    finish_clear(d, number, SHM_EHELPER_DIED);
    return;
  }
  if (r->members != 0) { /* the others may have begun: a gang is never run by halves twice */
    finish_member(d, h, number, SHM_EHELPER_DIED, 0, 0, 0);
    return;
  }
  if (is_call && was_executing && victim->sequence == 0) {
    victim->sequence = r->frame.sequence;
    victim->function = (uint64_t)(uintptr_t)r->frame.msg.func_ptr;
  }
  const child_t *child = &d->children[r->frame.slot];
  int has_caller = child->state == SHMI_PEER_UP && child->generation == r->frame.generation;
  if (!is_call) {
    answer_plain(d, number, SHM_EHELPER_DIED);
    return;
  }
  int again = has_caller && /* nobody's call is run for nobody: answering drops it */
              (!was_executing ||
               ((r->function->flags & SHM_FUNCTION_IDEMPOTENT) != 0 && r->attempts < 2));
  if (again) {
    /* A call that was never begun may be handed over as often as helpers die. */
    if (!was_executing) r->attempts--;
    else d->board->broker->retried++;
    d->board->broker->requeued++;
    shmi_schedule_requeue(d->schedule, number);
  } else {
    shmi_schedule_finished(d->schedule, number, 0);
    answer_plain(d, number, SHM_EHELPER_DIED);
  }
}

void shmi_dispatch_remove_helper(shmi_dispatch_t *d, int h, shmi_victim_t *victim) {
  helper_t *helper = &d->helpers[h];
  *victim = (shmi_victim_t){0};
  if (helper->state == SHMI_PEER_NONE) return;
  d->now_ns = shmi_clock_ns();
  if (helper->up_fd >= 0) read_helper(d, h, 1); /* what it wrote before it died */
  shmi_schedule_helper_down(d->schedule, h); /* after that: it may have said that it is ready */
  uint64_t executing =
      atomic_load_explicit(&shmi_board_helper(h)->executing, memory_order_acquire);
  /* Newest first, so that those queued again keep their order. */
  for (uint64_t n = helper->deliveries; n >= helper->lowest && n > 0 && helper->in_flight > 0; n--) {
    recover(d, h, n, executing, victim);
  }
  while (helper->grow_head != SHMI_NONE) {
    uint32_t number = helper->grow_head;
    helper->grow_head = shmi_schedule_request(d->schedule, number)->next;
    answer_plain(d, number, SHM_EHELPER_DIED);
  }
  int was_asked = helper->down_fd < 0; /* its pipe was closed: this is its orderly end */
  d->retiring &= ~(UINT64_C(1) << h);
  helper->state = SHMI_PEER_NONE;
  shmi_descriptor_close(&helper->down_fd);
  shmi_descriptor_close(&helper->up_fd);
  shm_helper_stats_t *stats = &d->board->helper_stats[h];
  stats->state = helper->is_retiring ? HELPER_ABSENT : 3;
  stats->pid = 0;
  stats->in_flight = 0;
  if (!was_asked) {
    stats->deaths++;
    d->board->broker->helper_deaths++;
  }
  hand_out(d);
  flush_replies(d);
}

void shmi_dispatch_give_up_helper(shmi_dispatch_t *d, int h, int pool_too) {
  uint32_t number;
  d->board->helper_stats[h].state = 4;
  d->helper_mask &= ~(UINT64_C(1) << h);
  while ((number = shmi_schedule_drop_helper(d->schedule, h, pool_too)) != SHMI_NONE) {
    answer_plain(d, number, SHM_ENO_HELPERS);
  }
  flush_replies(d);
}

void shmi_dispatch_retire_helper(shmi_dispatch_t *d, int h) {
  shmi_dispatch_give_up_helper(d, h, 0);
  d->board->helper_stats[h].state = HELPER_ABSENT;
  if (d->helpers[h].state == SHMI_PEER_NONE) return; /* dead, and not replaced yet */
  shmi_schedule_helper_down(d->schedule, h);
  d->helpers[h].is_retiring = 1;
  d->retiring |= UINT64_C(1) << h;
  d->board->helper_stats[h].state = HELPER_RETIRING;
  close_retired(d);
}

int shmi_dispatch_helper_is_closed(const shmi_dispatch_t *d, int h) {
  return d->helpers[h].state != SHMI_PEER_NONE && d->helpers[h].down_fd < 0;
}

void shmi_dispatch_close_helpers(shmi_dispatch_t *d) {
  for (int h = 0; h < d->config.helpers; h++) shmi_descriptor_close(&d->helpers[h].down_fd);
}

void shmi_dispatch_tell_ready(shmi_dispatch_t *d, int slot, int status) {
  shmi_frame_t frame = {.kind = SHMI_FRAME_READY, .status = shmi_status_to_wire(status)};
  if (d->children[slot].reply_fd >= 0) shmi_channel_write(d->children[slot].reply_fd, &frame, 1);
}

uint64_t shmi_dispatch_hung(shmi_dispatch_t *d, uint64_t now_ns, uint64_t *next_ns) {
  *next_ns = 0;
  if (d->least_hang_ns == 0) return 0;
  uint64_t hung = 0;
  for (int h = 0; h < d->config.helpers; h++) {
    helper_t *helper = &d->helpers[h];
    if (helper->state != SHMI_PEER_UP || helper->in_flight == 0) continue;
    /* What it begins next, it does not tell anybody: so look again in time for any function. */
    uint64_t again_ns = now_ns + d->least_hang_ns;
    if (*next_ns == 0 || again_ns < *next_ns) *next_ns = again_ns;
    shmi_helper_page_t *page = shmi_board_helper(h);
    uint64_t executing = atomic_load_explicit(&page->executing, memory_order_acquire);
    if (executing == 0) continue;
    uint32_t number = in_flight_at(helper, executing >> 16);
    if (number == SHMI_NONE) continue;
    const shmi_request_t *r = shmi_schedule_request(d->schedule, number);
    if (r->frame.kind != SHMI_FRAME_CALL || r->function->hang_after_ns == 0) continue;
    uint64_t due = atomic_load_explicit(&page->executing_since_ns, memory_order_relaxed) +
                   r->function->hang_after_ns;
    if (due <= now_ns) hung |= UINT64_C(1) << h;
    else if (due < *next_ns) *next_ns = due;
  }
  return hung;
}

void shmi_dispatch_hold(shmi_dispatch_t *d, int on) {
  if (d->holding == on) return;
  d->holding = on;
  if (on) return;
  d->now_ns = shmi_clock_ns();
  hand_out(d);
  flush_replies(d);
}

int shmi_dispatch_is_drained(const shmi_dispatch_t *d) {
  if (d->dirty != 0) return 0;
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].in_flight > 0 || d->helpers[h].grow_head != SHMI_NONE) return 0;
  }
  for (int slot = 0; slot < d->config.children; slot++) {
    const child_t *child = &d->children[slot];
    if (child->state != SHMI_PEER_UP) continue;
    if (child->parked > 0 || shmi_channel_unread(child->reply_fd) > 0) return 0;
  }
  return 1;
}

/* ---- making ---- */

int shmi_dispatch_create(shmi_dispatch_t **out, const shmi_dispatch_config_t *config) {
  shmi_dispatch_t *d = calloc(1, sizeof *d);
  if (d == NULL) return SHM_ESYSTEM;
  d->config = *config;
  d->board = shmi_board();
  for (uint32_t i = 0; i < shmi_registry_count(); i++) {
    uint64_t hang_ns = shmi_registry_row(i)->hang_after_ns;
    if (hang_ns > 0 && (d->least_hang_ns == 0 || hang_ns < d->least_hang_ns)) {
      d->least_hang_ns = hang_ns;
    }
  }
  d->epoll_fd = shmi_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
  d->children = calloc((size_t)config->children, sizeof *d->children);
  d->helpers = calloc((size_t)config->helpers, sizeof *d->helpers);
  shmi_schedule_config_t policy = {.children = config->children,
                                   .helpers = config->helpers,
                                   .pools = config->pools,
                                   .window = config->window,
                                   .helper_pool = config->helper_pool,
                                   .min_credit = config->min_credit};
  int status = d->epoll_fd >= 0 && d->children != NULL && d->helpers != NULL
                   ? shmi_schedule_create(&d->schedule, &policy)
                   : SHM_ESYSTEM;
  for (int i = 0; d->children != NULL && i < config->children; i++) {
    d->children[i].request_fd = d->children[i].reply_fd = -1;
  }
  for (int h = 0; d->helpers != NULL && h < config->helpers; h++) {
    d->helpers[h].down_fd = d->helpers[h].up_fd = -1;
    if (config->helper_absent == NULL || !config->helper_absent[h]) {
      d->helper_mask |= UINT64_C(1) << h;
    } else {
      d->board->helper_stats[h].state = HELPER_ABSENT;
      d->board->helper_stats[h].pool = config->helper_pool[h];
    }
  }
  if (status == SHM_OK) status = watch(d, config->supervisor_fd, PEER_SUPERVISOR, 0);
  if (status != SHM_OK) {
    shmi_dispatch_destroy(d);
    return status;
  }
  *out = d;
  return SHM_OK;
}

void shmi_dispatch_destroy(shmi_dispatch_t *d) {
  if (d == NULL) return;
  for (int i = 0; d->children != NULL && i < d->config.children; i++) {
    shmi_descriptor_close(&d->children[i].request_fd);
    shmi_descriptor_close(&d->children[i].reply_fd);
  }
  for (int h = 0; d->helpers != NULL && h < d->config.helpers; h++) {
    shmi_descriptor_close(&d->helpers[h].down_fd);
    shmi_descriptor_close(&d->helpers[h].up_fd);
  }
  shmi_descriptor_close(&d->epoll_fd);
  shmi_schedule_destroy(d->schedule);
  free(d->children);
  free(d->helpers);
  free(d);
}
