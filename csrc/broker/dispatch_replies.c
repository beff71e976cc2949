/* dispatch_replies -- what is sent to children: the outcomes of their calls. See
 * dispatch_internal.h.
 */
#include "broker/dispatch_internal.h"

#include "ipc/pipe.h"

void shmi_dispatch_count_dropped(shmi_dispatch_t *d, int slot, uint64_t calls) {
  d->scoreboard->broker->dropped += calls;
  d->scoreboard->child_stats[slot].dropped += calls;
}

shm_trace_record_t shmi_dispatch_life_of(const shmi_dispatch_t *d, const shmi_request_t *r,
                                         int status, uint32_t started, uint32_t finished) {
  return (shm_trace_record_t){.sequence = r->frame.sequence,
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
}

void shmi_dispatch_answer(shmi_dispatch_t *d, uint32_t number, int status, uint64_t value,
                          uint64_t token, uint32_t started, uint32_t finished) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  if (shmi_dispatch_is_broadcast(&r->frame)) shmi_dispatch_broadcast_over(d, number);
  shmi_child_t *child = &d->children[r->frame.slot];
  shm_broker_stats_t *broker = d->scoreboard->broker;
  shm_child_stats_t *stats = &d->scoreboard->child_stats[r->frame.slot];
  int is_parked = status == SHM_ENEEDS_SPACE;
  int is_traced = r->ticket != 0; /* a gang that ran: each of its members is */
  if (r->frame.kind == SHMI_FRAME_CALL && d->scoreboard->trace_records > 0 && !is_traced) {
    shm_trace_record_t life = shmi_dispatch_life_of(d, r, status, started, finished);
    shmi_scoreboard_trace(&life);
  }
  if (child->state != SHMI_PEER_UP || child->generation != r->frame.generation) {
    shmi_dispatch_count_dropped(d, r->frame.slot, 1);
    shmi_schedule_free(d->schedule, number);
    return;
  }
  if (!is_parked) {
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
  uint8_t flags = r->frame.flags & (SHMI_FRAME_GANG | SHMI_FRAME_COMMITTED);
  r->frame = (shmi_frame_t){.result = {.token = token, .value = value},
                            .sequence = sequence,
                            .slot = r->helper,
                            .kind = SHMI_FRAME_REPLY,
                            .generation = generation,
                            .flags = flags,
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

void shmi_dispatch_answer_plain(shmi_dispatch_t *d, uint32_t number, int status) {
  shmi_dispatch_answer(d, number, status, 0, 0, 0, 0);
}

void shmi_dispatch_forget_replies(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  while (child->replies_head != SHMI_NONE) {
    uint32_t number = child->replies_head;
    const shmi_request_t *r = shmi_schedule_request(d->schedule, number);
    child->replies_head = r->next;
    /* The others were counted as answered when their replies were made. */
    if (r->frame.status == shmi_status_to_wire(SHM_ENEEDS_SPACE)) {
      shmi_dispatch_count_dropped(d, slot, 1);
    }
    shmi_schedule_free(d->schedule, number);
  }
}

/* Write what is due to one child. Returns 0 when something is left because its pipe is full, which
 * cannot happen while its window fits the pipe. */
static int write_replies(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  while (child->replies_head != SHMI_NONE) {
    shmi_frame_t frames[SHMI_PIPE_BURST];
    int count = 0;
    for (uint32_t n = child->replies_head; n != SHMI_NONE && count < SHMI_PIPE_BURST;
         n = shmi_schedule_request(d->schedule, n)->next) {
      frames[count++] = shmi_schedule_request(d->schedule, n)->frame;
    }
    int written = shmi_pipe_write(child->reply_fd, frames, count);
    if (written == SHM_EINTR) continue;
    if (written < 0) { /* nobody reads any more: its pidfd will report its death */
      shmi_dispatch_forget_replies(d, slot);
      return 1;
    }
    for (int i = 0; i < written; i++) {
      uint32_t number = child->replies_head;
      child->replies_head = shmi_schedule_request(d->schedule, number)->next;
      /* Only now: a child that reads no replies fills its own window, not the table of requests. */
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

void shmi_dispatch_flush_replies(shmi_dispatch_t *d) {
  uint32_t at = d->dirty;
  d->dirty = 0;
  while (at != 0) {
    shmi_child_t *child = &d->children[at - 1];
    uint32_t following = child->dirty_next;
    child->is_dirty = 0;
    if (!write_replies(d, (int)at - 1)) {
      child->is_dirty = 1;
      child->dirty_next = d->dirty;
      d->dirty = at;
    }
    at = following;
  }
}
