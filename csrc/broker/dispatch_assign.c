/* dispatch_assign -- what is sent to helpers: calls, room for results, arenas to clear. See
 * dispatch_internal.h.
 */
#include "broker/dispatch_internal.h"

#include <string.h>

#include "ipc/gang.h"
#include "ipc/pipe.h"
#include "memory/arena.h"

enum {
  MAX_NOTICES = 64,       /* frames in a helper's pipe that are not counted as in flight */
  CLEAR_AT_ONCE = 8 << 20 /* bytes of a dead child's arena: some milliseconds of a helper's time */
};

void shmi_dispatch_leave_quarantine(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  for (int h = 0; h < d->config.helpers; h++) d->helpers[h].must_notify = 1;
  if (child->wants_clearing) {
    child->state = SHMI_PEER_CLEARING;
    d->scoreboard->child_stats[slot].state = SHM_CHILD_CLEARING;
    d->clearing++;
    return;
  }
  child->state = SHMI_PEER_NONE;
  d->scoreboard->child_stats[slot].state = SHM_CHILD_ENDED;
  d->flags |= SHMI_TURN_FREED;
}

void shmi_dispatch_released(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  if (--child->in_flight == 0 && child->state == SHMI_PEER_QUARANTINED) {
    shmi_dispatch_leave_quarantine(d, slot);
  }
}

static void hold_several(shmi_dispatch_t *d, int h) {
  if (d->holding_several == 0) d->look_ns = d->now_ns + SHMI_LOOK_NS;
  d->holding_several |= UINT64_C(1) << h;
}

void shmi_dispatch_put_out(shmi_dispatch_t *d, int h, uint32_t number, int more) {
  shmi_helper_t *helper = &d->helpers[h];
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  int slot = r->frame.slot;
  d->scoreboard->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
  if (shmi_frame_uses_arena(&r->frame)) d->children[slot].in_flight++;
  uint64_t delivery = ++helper->deliveries;
  d->scoreboard->broker->in_flight++;
  if (helper->in_flight++ == 0) helper->lowest = delivery;
  else hold_several(d, h);
  helper->by_delivery[delivery % SHMI_DELIVERY_RING] = number;
  if (delivery - helper->lowest >= SHMI_SPAN_OF_CALLS) shmi_dispatch_check_span(d, h);
  shmi_frame_t *frame = &helper->out[helper->out_count++];
  *frame = r->frame;
  frame->flags = more ? SHMI_FRAME_MORE : 0;
  if (r->members != 0) {
    frame->flags |= SHMI_FRAME_GANG;
    frame->members = r->members;
    frame->ticket = r->ticket;
  } else {
    r->delivery = delivery;
  }
  if (shmi_dispatch_is_broadcast(&r->frame)) shmi_dispatch_broadcast_handed(d, h, frame);
  frame->delivery = delivery;
  frame->handed_ns = d->now_ns;
  int is_apply = r->frame.kind == SHMI_FRAME_APPLY;
  if (is_apply) {
    frame->flags |= SHMI_FRAME_FILE_TO_PASS;
    helper->to_pass++;
  }
  if (is_apply && !shmi_frame_uses_arena(frame)) return;
  if ((d->children[slot].mapped_by >> h & 1) == 0) {
    d->children[slot].mapped_by |= UINT64_C(1) << h;
    frame->flags |= SHMI_FRAME_NEW_ARENA | SHMI_FRAME_TO_PASS;
    helper->to_pass++;
  }
}

/* Memory files are sent before the frames that name them. Returns how many frames may be written. A
 * file that cannot be sent now (too many descriptors of this user are in transit) is sent later. */
static uint32_t pass_files(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  for (uint32_t i = 0; i < helper->out_count && helper->to_pass > 0;) {
    shmi_frame_t *frame = &helper->out[i];
    int is_arena = (frame->flags & SHMI_FRAME_TO_PASS) != 0;
    if (!is_arena && (frame->flags & SHMI_FRAME_FILE_TO_PASS) == 0) {
      i++;
      continue;
    }
    int status = SHM_OK;
    if (helper->files_fd >= 0) {
      status = is_arena ? shmi_arena_pass(frame->slot, helper->files_fd)
                        : shmi_dispatch_pass_kept(d, h, frame);
    }
    if (status != SHM_OK && status != SHM_EBROKER_DIED) {
      d->is_late = 1;
      return i;
    }
    frame->flags &= (uint8_t)~(is_arena ? SHMI_FRAME_TO_PASS : SHMI_FRAME_FILE_TO_PASS);
    helper->to_pass--;
  }
  return helper->out_count;
}

/* Be woken when helper h, whose pipe is full, has read from it. */
static void watch_for_room(shmi_dispatch_t *d, int h, int is_full) {
  shmi_helper_t *helper = &d->helpers[h];
  if (helper->is_blocked == is_full) return;
  if (is_full) {
    shmi_poll_set_add(&d->poll_set, helper->down_fd, SHMI_POLL_ROOM, SHMI_WATCHED_ROOM, h);
  } else {
    shmi_poll_set_remove(&d->poll_set, helper->down_fd);
  }
  helper->is_blocked = (uint8_t)is_full;
}

static void write_out(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  uint32_t written = 0, ready = helper->to_pass > 0 ? pass_files(d, h) : helper->out_count;
  int is_full = 0;
  while (written < ready) {
    int got = shmi_pipe_write(helper->down_fd, helper->out + written, (int)(ready - written));
    if (got == SHM_EINTR) continue;
    if (got < 0) { /* dead: everything in flight is recovered when the helper is removed */
      written = helper->out_count;
      helper->to_pass = 0;
      break;
    }
    /* The pipe is full: the kernel gives small pipes to a user beyond its soft limit of pipe pages.
     * The rest follows when the helper has read, which it may do without sending an answer. */
    is_full = got == 0;
    if (is_full) break;
    written += (uint32_t)got;
  }
  helper->out_count -= written;
  watch_for_room(d, h, is_full);
  if (helper->out_count > 0) {
    memmove(helper->out, helper->out + written, helper->out_count * sizeof *helper->out);
  }
}

static void hand_out_grows(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  while (helper->grow_head != SHMI_NONE && shmi_helper_span(helper) < SHMI_SPAN_OF_GROWS) {
    uint32_t number = helper->grow_head;
    helper->grow_head = shmi_schedule_request(d->schedule, number)->next;
    shmi_dispatch_put_out(d, h, number, 0);
  }
}

void shmi_dispatch_wait_to_grow(shmi_dispatch_t *d, int h, uint32_t number) {
  shmi_helper_t *helper = &d->helpers[h];
  shmi_schedule_request(d->schedule, number)->next = SHMI_NONE;
  if (helper->grow_head == SHMI_NONE) helper->grow_head = number;
  else shmi_schedule_request(d->schedule, helper->grow_tail)->next = number;
  helper->grow_tail = number;
}

void shmi_dispatch_drop_grows(shmi_dispatch_t *d, int slot) {
  for (int h = 0; h < d->config.helpers; h++) {
    uint32_t number = d->helpers[h].grow_head;
    d->helpers[h].grow_head = SHMI_NONE;
    while (number != SHMI_NONE) {
      shmi_request_t *r = shmi_schedule_request(d->schedule, number);
      uint32_t next = r->next;
      r->next = SHMI_NONE;
      if (r->frame.slot == slot) {
        shmi_dispatch_count_dropped(d, slot, 1);
        shmi_schedule_free(d->schedule, number);
      } else {
        shmi_dispatch_wait_to_grow(d, h, number);
      }
      number = next;
    }
  }
}

static int least_busy_helper(const shmi_dispatch_t *d) {
  int found = -1;
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].state != SHMI_PEER_UP || d->helpers[h].is_retiring ||
        shmi_helper_span(&d->helpers[h]) >= SHMI_SPAN_OF_GROWS) {
      continue;
    }
    if (found < 0 || d->helpers[h].in_flight < d->helpers[found].in_flight) found = h;
  }
  return found;
}

/* Nothing of the slot's last occupant is left: the next one gets a memory file that nobody maps,
 * whatever the last one forked or kept. */
static void finish_clearing(shmi_dispatch_t *d, int slot) {
  shmi_child_t *child = &d->children[slot];
  if (shmi_arena_renew(slot) != SHM_OK) { /* no descriptor or memory available: tried again */
    d->is_late = 1;
    return;
  }
  child->mapped_by = 0;
  d->scoreboard->child_stats[slot].arenas = shmi_arena_version(slot);
  d->clearing--;
  d->scoreboard->broker->arenas_cleared++;
  child->wants_clearing = 0;
  shmi_dispatch_leave_quarantine(d, slot);
}

/* Have helpers give back the memory of every arena that is to be cleared, stretch by stretch. The
 * file itself may live as long as processes that we do not know of; its memory does not. */
static uint64_t hand_out_clears(shmi_dispatch_t *d) {
  uint64_t touched = 0;
  for (int slot = 0; slot < d->config.children; slot++) {
    shmi_child_t *child = &d->children[slot];
    if (child->state != SHMI_PEER_CLEARING || child->is_cleared_now) continue;
    uint64_t offset, bytes;
    if (!shmi_arena_next_data(slot, child->cleared_to, CLEAR_AT_ONCE, &offset, &bytes)) {
      finish_clearing(d, slot);
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
    shmi_dispatch_put_out(d, h, number, 0);
    touched |= UINT64_C(1) << h;
  }
  return touched;
}

void shmi_dispatch_finish_clear(shmi_dispatch_t *d, uint32_t number, int status) {
  const shmi_frame_t *frame = &shmi_schedule_request(d->schedule, number)->frame;
  shmi_child_t *child = &d->children[frame->slot];
  child->is_cleared_now = 0;
  if (status == SHM_OK) {
    child->cleared_to = frame->result.value + frame->result.token - shmi_arena_address(frame->slot);
    d->scoreboard->broker->cleared_bytes += frame->result.token;
  }
  shmi_schedule_free(d->schedule, number);
}

/* Tell a helper that children have left: it keeps things for them between calls, and an idle helper
 * would keep them for ever. The notice is not counted as in flight: it has no answer, and a helper
 * that dies need not get it. A helper that does not read gets only a few, so that its pipe has room
 * for calls; one notice is as good as many. The next is due when the helper has answered, or has
 * read all notices. */
static void send_notice(shmi_helper_t *helper) {
  if (helper->state != SHMI_PEER_UP || helper->out_count > 0) return;
  if (helper->notices == MAX_NOTICES && shmi_pipe_unread(helper->down_fd) == 0) helper->notices = 0;
  if (helper->notices == MAX_NOTICES) return;
  helper->must_notify = 0;
  helper->notices++;
  helper->out[helper->out_count++] = (shmi_frame_t){.kind = SHMI_FRAME_GONE};
}

/* Changes when one of its members is replaced. */
static uint64_t epoch_of(const shmi_dispatch_t *d, uint64_t members) {
  uint64_t epoch = 0;
  for (; members != 0; members &= members - 1) {
    epoch += d->helpers[__builtin_ctzll(members)].generation;
  }
  return epoch;
}

/* Each gang to all of its helpers in one go: so gangs come in one order everywhere. */
static uint64_t hand_out_gangs(shmi_dispatch_t *d) {
  uint64_t touched = 0;
  uint32_t gang;
  if (!shmi_schedule_has_gangs(d->schedule)) return 0;
  while (shmi_gang_has_room() &&
         (gang = shmi_schedule_next_gang(d->schedule, d->now_ns)) != SHMI_NONE) {
    shmi_request_t *r = shmi_schedule_request(d->schedule, gang);
    if (d->gangs++ == 0) d->gang_look_ns = d->now_ns + SHMI_GANG_LOOK_NS;
    r->ticket = shmi_gang_open(r->members, epoch_of(d, r->members));
    r->gang_looked = 0;
    touched |= r->members;
    for (uint64_t left = r->members; left != 0; left &= left - 1) {
      shmi_dispatch_put_out(d, __builtin_ctzll(left), gang, 0);
    }
  }
  return touched;
}

static uint64_t hand_out_calls(shmi_dispatch_t *d) {
  uint32_t batch[SHM_MAX_BATCH];
  uint64_t touched = 0;
  int h, count;
  while ((count = shmi_schedule_next(d->schedule, d->now_ns, &h, batch, SHMI_CREDIT_MAX / 2)) > 0) {
    for (int i = 0; i < count; i++) shmi_dispatch_put_out(d, h, batch[i], i + 1 < count);
    touched |= UINT64_C(1) << h;
    if (count > 1) {
      d->scoreboard->helper_stats[h].batches++;
      d->scoreboard->helper_stats[h].batched += (uint64_t)count;
    }
  }
  return touched;
}

void shmi_dispatch_hand_out(shmi_dispatch_t *d) {
  uint64_t touched = d->clearing > 0 ? hand_out_clears(d) : 0;
  if (d->to_advance != 0) touched |= shmi_dispatch_advance_helpers(d);
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].must_notify) send_notice(&d->helpers[h]);
    if (d->helpers[h].grow_head != SHMI_NONE) hand_out_grows(d, h);
    if (d->helpers[h].out_count > 0) touched |= UINT64_C(1) << h;
  }
  for (int again = !d->holding; again;) {
    uint64_t given = hand_out_gangs(d);
    given |= hand_out_calls(d);
    touched |= given;
    again = given != 0 && shmi_schedule_has_gangs(d->schedule);
  }
  while (touched != 0) {
    int h = __builtin_ctzll(touched);
    touched &= touched - 1;
    write_out(d, h);
    d->scoreboard->helper_stats[h].in_flight = d->helpers[h].in_flight;
  }
  uint32_t expired;
  while ((expired = shmi_schedule_take_expired(d->schedule)) != SHMI_NONE) {
    int slot = shmi_schedule_request(d->schedule, expired)->frame.slot;
    d->scoreboard->child_stats[slot].queued = shmi_schedule_queued_of(d->schedule, slot);
    d->scoreboard->broker->expired++;
    shmi_dispatch_answer_plain(d, expired, SHM_ETIMEOUT);
  }
}
