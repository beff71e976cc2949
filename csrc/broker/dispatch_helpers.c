/* dispatch_helpers -- what helpers answer; how they are added, let go, and removed when they die.
 * See dispatch_internal.h.
 */
#include "broker/dispatch_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "ipc/function_table.h"
#include "ipc/gang.h"
#include "ipc/pipe.h"

enum {
  READ_FRAMES = 256,
  READS = 8 /* of one helper in one turn: twice what a pipe holds */
};

void shmi_dispatch_check_span(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  int is_full = shmi_helper_span(helper) > SHMI_SPAN_OF_CALLS;
  if (is_full == helper->is_full) return;
  helper->is_full = (uint8_t)is_full;
  shmi_dispatch_spare(d, h);
}

void shmi_dispatch_spare(shmi_dispatch_t *d, int h) {
  const shmi_helper_t *helper = &d->helpers[h];
  shmi_schedule_spare_helper(
      d->schedule, h,
      helper->is_full || helper->applies || helper->is_behind || helper->is_condemned);
}

static void forget_delivery(shmi_dispatch_t *d, int h, uint64_t delivery) {
  shmi_helper_t *helper = &d->helpers[h];
  uint32_t *number = &helper->by_delivery[delivery % SHMI_DELIVERY_RING];
  const shmi_frame_t *frame = &shmi_schedule_request(d->schedule, *number)->frame;
  if (shmi_frame_uses_arena(frame)) shmi_dispatch_released(d, frame->slot);
  *number = SHMI_NONE;
  d->scoreboard->broker->in_flight--;
  if (--helper->in_flight < 2) d->holding_several &= ~(UINT64_C(1) << h);
  helper->notices = 0;
  while (helper->in_flight > 0 && helper->lowest < helper->deliveries &&
         helper->by_delivery[helper->lowest % SHMI_DELIVERY_RING] == SHMI_NONE) {
    helper->lowest++;
  }
  if (helper->is_full) shmi_dispatch_check_span(d, h);
}

static uint32_t in_flight_at(const shmi_helper_t *helper, uint64_t delivery) {
  if (helper->in_flight == 0 || delivery < helper->lowest || delivery > helper->deliveries) {
    return SHMI_NONE;
  }
  return helper->by_delivery[delivery % SHMI_DELIVERY_RING];
}

/* Call before an answer of this function is taken in. The function that was answered before it may
 * have left work for after its answer: learn how long that took. */
static void learn_deferred(shmi_dispatch_t *d, int h, const shmi_function_t *function) {
  shmi_helper_t *helper = &d->helpers[h];
  uint64_t so_far_ns =
      atomic_load_explicit(&shmi_scoreboard_helper(h)->deferred_ns, memory_order_relaxed);
  if (helper->answered != NULL) {
    shmi_schedule_deferred(d->schedule, helper->answered->index, so_far_ns - helper->deferred_ns);
  }
  helper->answered = function;
  helper->deferred_ns = so_far_ns;
}

static const shmi_outcome_t *outcome_of(int h, uint64_t delivery) {
  const shmi_outcome_t *outcome = &shmi_scoreboard_helper(h)->finished[delivery % SHMI_DELIVERY_RING];
  return atomic_load_explicit(&outcome->delivery, memory_order_acquire) == delivery ? outcome : NULL;
}

/* ---- gangs ---- */

/* A row for each member in the trace, from its own times. */
static void trace_member(shmi_dispatch_t *d, int h, const shmi_request_t *r, uint64_t delivery,
                         int status, uint32_t started, uint32_t finished) {
  if (d->scoreboard->trace_records == 0) return;
  shm_trace_record_t life = shmi_dispatch_life_of(d, r, status, started, finished);
  life.helper = (uint8_t)h;
  life.members = r->frame.placement;
  if (outcome_of(h, delivery) != NULL) {
    const shmi_gang_cost_t *cost = &shmi_scoreboard_helper(h)->costs[delivery % SHMI_DELIVERY_RING];
    life.moved_bytes = cost->moved_bytes;
    life.waited_units = cost->waited_units;
  }
  shmi_scoreboard_trace(&life);
}

/* Of several failures the first one counts. But SHM_EABORTED only says that another member failed,
 * so any other failure takes its place. */
static void note_member(shmi_request_t *r, int h, int status, uint64_t value) {
  if (h == r->helper && r->gang_status == SHM_OK) r->gang_value = value;
  if (status == SHM_OK) return;
  if (r->gang_status != SHM_OK && (r->gang_status != SHM_EABORTED || status == SHM_EABORTED)) return;
  r->gang_status = status;
  r->gang_value = value;
  r->gang_failed = (uint8_t)h;
}

/* Put it back into the queue if no part of it was begun, or if it may be repeated. Returns whether
 * it was put back. */
static int begin_gang_again(shmi_dispatch_t *d, uint32_t number, int status) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  const shmi_child_t *child = &d->children[r->frame.slot];
  int may_repeat = (r->function->flags & SHM_FUNCTION_IDEMPOTENT) != 0 && r->attempts < 2;
  if (status != SHM_EHELPER_DIED || (r->gang_has_run && !may_repeat)) return 0;
  if (child->state != SHMI_PEER_UP || child->generation != r->frame.generation) return 0;
  if (!shmi_schedule_requeue_gang(d->schedule, number)) {
    r->gang_status = shmi_dispatch_why_gone(d, r->frame.placement);
    return 0;
  }
  if (!r->gang_has_run) r->attempts--;
  else d->scoreboard->broker->retried++;
  d->scoreboard->broker->requeued++;
  return 1;
}

/* One helper of a gang has ended its part, or died over it. The call ends when the last helper has.
 * It is answered with the first helper's value; or, if a failure counts, with that helper's value
 * and number. */
static void finish_member(shmi_dispatch_t *d, int h, uint32_t number, uint64_t delivery, int status,
                          uint64_t value, uint32_t started, uint32_t finished) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  uint64_t service_ns = (uint64_t)(finished - started) * SHM_UNIT_NS;
  int has_run = status != SHM_EABORTED || value != SHMI_GANG_NOT_BEGUN;
  note_member(r, h, status, value);
  if (finished > 0) { /* it ended its part, rather than died */
    r->gang_has_run |= (uint8_t)has_run;
    d->scoreboard->helper_stats[h].finished++;
    d->scoreboard->helper_stats[h].busy_ns += service_ns;
    if (service_ns == 0) service_ns = 1;
  }
  trace_member(d, h, r, delivery, status, started, finished);
  if (shmi_schedule_gang_finished(d->schedule, number, h, service_ns) > 0) return;
  shmi_gang_fate_t fate = shmi_gang_fate(r->ticket);
  shmi_gang_close(r->ticket);
  d->gangs--;
  if (fate.state == SHM_GANG_ABORTED && fate.why == SHM_GANG_MEMBER_DIED) {
    r->gang_status = SHM_EHELPER_DIED;
    r->gang_failed = (uint8_t)fate.helper;
  } else if (r->gang_status == SHM_EABORTED) { /* the members only stopped: the gang knows who
                                                  gave it up */
    r->gang_failed = (uint8_t)fate.helper;
    r->gang_value = (uint64_t)fate.why;
  }
  int has_committed = r->gang_status == SHM_OK || fate.state == SHM_GANG_COMMITTED;
  if (!has_committed && begin_gang_again(d, number, r->gang_status)) return;
  if (r->gang_status != SHM_OK) r->helper = r->gang_failed;
  if (has_committed) r->frame.flags |= SHMI_FRAME_COMMITTED;
  shmi_dispatch_answer(d, number, r->gang_status, r->gang_value, 0, started, finished);
}

void shmi_dispatch_look_at_gangs(shmi_dispatch_t *d) {
  for (int h = 0; h < d->config.helpers; h++) {
    shmi_helper_t *helper = &d->helpers[h];
    for (uint64_t n = helper->lowest; helper->in_flight > 0 && n <= helper->deliveries; n++) {
      uint32_t number = helper->by_delivery[n % SHMI_DELIVERY_RING];
      if (number == SHMI_NONE) continue;
      shmi_request_t *r = shmi_schedule_request(d->schedule, number);
      if (r->members == 0 || __builtin_ctzll(r->members) != h) continue; /* each gang once */
      if (shmi_gang_is_stuck(r->ticket, r->members, &r->gang_looked)) {
        shmi_gang_abort(r->ticket, SHM_NO_HELPER, SHM_GANG_STUCK);
      }
    }
  }
}

/* ---- ends of calls ---- */

static void finish(shmi_dispatch_t *d, int h, uint64_t delivery, int status, uint64_t value,
                   uint32_t started, uint32_t finished) {
  shmi_helper_t *helper = &d->helpers[h];
  uint32_t number = in_flight_at(helper, delivery);
  if (number == SHMI_NONE) { /* known already from the control page; or stale */
    if (helper->heard_early > 0) helper->heard_early--;
    else d->scoreboard->broker->dropped++;
    return;
  }
  forget_delivery(d, h, delivery);
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  if (r->frame.kind == SHMI_FRAME_CLEAR) {
    shmi_dispatch_finish_clear(d, number, status);
    return;
  }
  if (r->members != 0) {
    finish_member(d, h, number, delivery, status, value, started, finished);
    return;
  }
  uint64_t service_ns = (uint64_t)(finished - started) * SHM_UNIT_NS;
  shm_helper_stats_t *stats = &d->scoreboard->helper_stats[h];
  if (r->frame.kind == SHMI_FRAME_APPLY) {
    stats->finished++;
    stats->busy_ns += service_ns;
    learn_deferred(d, h, r->function);
    shmi_dispatch_applied(d, h, number, status, value, started, finished);
    return;
  }
  if (r->frame.kind == SHMI_FRAME_CALL) {
    stats->finished++;
    learn_deferred(d, h, r->function);
    if (r->estimate_ns > 0) stats->busy_ns += service_ns; /* once a batch */
    shmi_schedule_finished(d->schedule, number, service_ns > 0 ? service_ns : 1);
  }
  if (shmi_dispatch_is_broadcast(&r->frame)) {
    shmi_dispatch_broadcast_ran(d, h, number, status, value, started, finished);
    return;
  }
  shmi_dispatch_answer(d, number, status, value, helper->generation, started, finished);
}

void shmi_dispatch_made_up(shmi_dispatch_t *d, int h) {
  d->helpers[h].state = SHMI_PEER_UP;
  d->flags |= SHMI_TURN_READY;
  if (d->helpers[h].is_retiring) return;
  d->scoreboard->helper_stats[h].state = SHM_HELPER_READY;
  shmi_schedule_helper_up(d->schedule, h);
}

/* It has no session, and ends: what it still holds is decided then. */
static void failed_to_load(shmi_dispatch_t *d, int h) {
  shmi_schedule_helper_down(d->schedule, h);
  d->helpers[h].state = SHMI_PEER_FAILED;
  d->flags |= SHMI_TURN_READY;
  if (!d->helpers[h].is_retiring) d->scoreboard->helper_stats[h].state = SHM_HELPER_DEAD;
}

static int keeps_a_result(const shmi_dispatch_t *d, int h) {
  for (int slot = 0; slot < d->config.children; slot++) {
    if (d->children[slot].parked > 0 && (d->children[slot].parked_at >> h & 1) != 0) return 1;
  }
  return 0;
}

/* Whether somebody waits for what it has, or for what it is to be given room for. */
static int holds_something(const shmi_dispatch_t *d, int h) {
  const shmi_helper_t *helper = &d->helpers[h];
  return helper->in_flight > 0 || helper->grow_head != SHMI_NONE || keeps_a_result(d, h);
}

/* From here on it gets nothing new, and once it holds nothing its pipe is closed, so it ends. */
static void begin_retiring(shmi_dispatch_t *d, int h, int state) {
  shmi_schedule_helper_down(d->schedule, h);
  d->helpers[h].is_retiring = 1;
  d->retiring |= UINT64_C(1) << h;
  d->scoreboard->helper_stats[h].state = state;
  shmi_dispatch_excuse(d, h);
}

/* It was idle when it said so; by now something may be on its way to it. */
static void unload(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  int has_work = holds_something(d, h) || helper->out_count > 0 || helper->applies ||
                 helper->is_behind || helper->is_condemned;
  if (helper->state != SHMI_PEER_UP || helper->is_retiring || d->holding || has_work) return;
  helper->is_unloading = 1;
  begin_retiring(d, h, SHM_HELPER_UNLOADED); /* to others it is that already */
}

/* Returns 0 at end of file. */
static int read_helper(shmi_dispatch_t *d, int h, int at_end) {
  shmi_helper_t *helper = &d->helpers[h];
  shmi_frame_t frames[READ_FRAMES];
  for (int reads = 0;; reads++) {
    if (reads == READS) { /* a helper that writes as fast as it is read does not get the whole turn */
      shmi_poll_set_rearm(&d->poll_set, helper->up_fd, SHMI_POLL_ARRIVALS, SHMI_WATCHED_HELPER, h);
      return 1;
    }
    int got = shmi_pipe_read(helper->up_fd, frames, READ_FRAMES);
    if (got == SHM_EINTR) continue;
    if (got == 0) return 1;
    if (got < 0) return 0;
    for (int i = 0; i < got; i++) {
      const shmi_frame_t *frame = &frames[i];
      if (frame->kind == SHMI_FRAME_REPLY) {
        finish(d, h, frame->delivery, shmi_status_from_wire(frame->status), frame->result.value,
               frame->started_units, frame->finished_units);
      } else if (frame->kind == SHMI_FRAME_READY && frame->status != 0) {
        failed_to_load(d, h);
      } else if (frame->kind == SHMI_FRAME_READY && helper->state == SHMI_PEER_STARTING) {
        if (!shmi_dispatch_must_catch_up(d, h)) shmi_dispatch_made_up(d, h);
      } else if (frame->kind == SHMI_FRAME_IDLE && !at_end) {
        unload(d, h);
      }
    }
    d->scoreboard->helper_stats[h].in_flight = helper->in_flight;
    if (got < READ_FRAMES && !at_end) return 1;
  }
}

void shmi_dispatch_read_helper(shmi_dispatch_t *d, int h, int at_end) {
  /* At the end of file its pidfd tells the rest. */
  if (!read_helper(d, h, at_end)) {
    shmi_poll_set_remove_and_close(&d->poll_set, &d->helpers[h].up_fd);
  }
}

void shmi_dispatch_look_at_pages(shmi_dispatch_t *d) {
  for (uint64_t left = d->holding_several; left != 0; left &= left - 1) {
    int h = __builtin_ctzll(left);
    shmi_helper_t *helper = &d->helpers[h];
    for (uint64_t n = helper->lowest; n <= helper->deliveries && helper->in_flight > 0; n++) {
      const shmi_outcome_t *outcome = in_flight_at(helper, n) != SHMI_NONE ? outcome_of(h, n) : NULL;
      if (outcome == NULL) continue;
      finish(d, h, n, shmi_status_from_wire((uint16_t)outcome->status), outcome->value,
             outcome->started_units, outcome->finished_units);
      helper->heard_early++;
    }
    d->scoreboard->helper_stats[h].in_flight = helper->in_flight;
  }
}

void shmi_dispatch_close_retired(shmi_dispatch_t *d) {
  if (d->dirty != 0) return; /* an unsent reply may be about a result that a helper keeps */
  for (uint64_t left = d->retiring; left != 0; left &= left - 1) {
    int h = __builtin_ctzll(left);
    shmi_helper_t *helper = &d->helpers[h];
    if (holds_something(d, h)) continue;
    shmi_descriptor_close(&helper->down_fd);
    d->retiring &= ~(UINT64_C(1) << h);
  }
}

/* Helpers share the cores: have each look how many helpers there are now. */
static void notify_all(shmi_dispatch_t *d) {
  for (int h = 0; h < d->config.helpers; h++) d->helpers[h].must_notify = 1;
}

int shmi_dispatch_add_helper(shmi_dispatch_t *d, int h, int down_fd, int up_fd, int files_fd,
                             int pid, uint32_t generation) {
  shmi_helper_t *helper = &d->helpers[h];
  helper->down_fd = down_fd;
  helper->up_fd = up_fd;
  helper->files_fd = files_fd;
  helper->state = SHMI_PEER_STARTING;
  helper->generation = generation;
  helper->deliveries = 0;
  helper->lowest = 1;
  helper->in_flight = 0;
  helper->out_count = 0;
  helper->to_pass = 0;
  /* It was forked with all present memory files mapped. */
  for (int i = 0; i < d->config.children; i++) d->children[i].mapped_by |= UINT64_C(1) << h;
  shmi_dispatch_check_span(d, h);
  helper->applies = helper->is_behind = helper->is_condemned = 0;
  shmi_dispatch_spare(d, h);
  helper->is_blocked = 0;
  helper->heard_early = 0;
  int state = helper->is_unloading ? SHM_HELPER_UNLOADED : SHM_HELPER_STARTING;
  helper->is_retiring = helper->is_unloading = 0;
  if (d->scoreboard->helper_stats[h].state != SHM_HELPER_UNUSED) notify_all(d);
  helper->must_notify = 0;
  helper->notices = 0;
  helper->answered = NULL;
  helper->was_waiting = 0;
  helper->waited_ns = 0;
  shmi_schedule_expect_helper(d->schedule, h, 1);
  memset(helper->by_delivery, 0, sizeof helper->by_delivery);
  shm_helper_stats_t *stats = &d->scoreboard->helper_stats[h];
  stats->pid = pid;
  stats->state = state;
  stats->generation = generation;
  stats->pool = d->config.helper_pool[h];
  return shmi_poll_set_add(&d->poll_set, up_fd, SHMI_POLL_ARRIVALS, SHMI_WATCHED_HELPER, h);
}

int shmi_dispatch_helper_state(const shmi_dispatch_t *d, int h) { return d->helpers[h].state; }

/* The function of an answered call whose deferred work a helper is doing; NULL: there is none. */
static const shmi_function_t *deferred_function(int h) {
  uint64_t row = atomic_load_explicit(&shmi_scoreboard_helper(h)->deferred_row, memory_order_acquire);
  if (row == 0 || row > shmi_function_table_count()) return NULL;
  return shmi_function_table_row((uint32_t)(row - 1));
}

/* Decide what becomes of a delivery of a dead helper whose outcome has not arrived. */
static void recover(shmi_dispatch_t *d, int h, uint64_t delivery, uint64_t executing,
                    shmi_victim_t *victim) {
  shmi_helper_t *helper = &d->helpers[h];
  uint32_t number = in_flight_at(helper, delivery);
  if (number == SHMI_NONE) return;
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  const shmi_outcome_t *outcome = outcome_of(h, delivery);
  int is_call = r->frame.kind == SHMI_FRAME_CALL;
  int is_apply = r->frame.kind == SHMI_FRAME_APPLY; /* whoever replaces the helper is to have it */
  if (outcome != NULL && !is_apply) {
    int status = shmi_status_from_wire((uint16_t)outcome->status);
    if (status == SHM_ENEEDS_SPACE) status = SHM_EHELPER_DIED; /* the parked result is lost with it */
    finish(d, h, delivery, status, outcome->value, outcome->started_units,
           outcome->finished_units);
    return;
  }
  uint64_t first = executing >> 16, count = executing & 0xffff;
  int was_executing = executing != 0 && delivery >= first && delivery < first + count;
  forget_delivery(d, h, delivery);
  if (r->frame.kind == SHMI_FRAME_CLEAR) {
    shmi_dispatch_finish_clear(d, number, SHM_EHELPER_DIED);
    return;
  }
  if ((is_call || is_apply) && was_executing && victim->function == 0) {
    victim->sequence = r->frame.sequence;
    victim->function = (uint64_t)(uintptr_t)r->frame.msg.func_ptr;
  }
  if (is_apply) {
    shmi_dispatch_applied(d, h, number, SHM_EHELPER_DIED, 0, 0, 0);
    return;
  }
  if (r->members != 0) { /* the other members may have begun: only the whole gang may be run
                            again */
    r->gang_has_run |= (uint8_t)was_executing;
    finish_member(d, h, number, delivery, SHM_EHELPER_DIED, 0, 0, 0);
    return;
  }
  const shmi_child_t *child = &d->children[r->frame.slot];
  int has_caller = child->state == SHMI_PEER_UP && child->generation == r->frame.generation;
  if (!is_call) {
    shmi_dispatch_answer_plain(d, number, SHM_EHELPER_DIED);
    return;
  }
  /* Of a broadcast that has not taken effect nothing is left but in the helper that is dead. */
  int may_repeat = (r->function->flags & SHM_FUNCTION_IDEMPOTENT) != 0 ||
                   shmi_dispatch_is_broadcast(&r->frame);
  int again = has_caller && /* without a caller, answering drops it */
              (!was_executing || (may_repeat && r->attempts < 2));
  if (again) {
    if (!shmi_schedule_requeue(d->schedule, number)) {
      shmi_dispatch_answer_plain(d, number,
                                 shmi_dispatch_why_gone(d, r->frame.placement | UINT64_C(1) << h));
      return;
    }
    /* A call that was never begun may be handed over again whenever a helper dies. */
    if (!was_executing) r->attempts--;
    else d->scoreboard->broker->retried++;
    d->scoreboard->broker->requeued++;
  } else {
    shmi_schedule_finished(d->schedule, number, 0);
    shmi_dispatch_answer_plain(d, number, SHM_EHELPER_DIED);
  }
}

void shmi_dispatch_remove_helper(shmi_dispatch_t *d, int h, shmi_victim_t *victim) {
  shmi_helper_t *helper = &d->helpers[h];
  *victim = (shmi_victim_t){0};
  if (helper->state == SHMI_PEER_NONE) return;
  d->now_ns = shmi_clock_ns();
  if (helper->up_fd >= 0) read_helper(d, h, 1); /* what it wrote before it died */
  shmi_schedule_helper_down(d->schedule, h); /* after reading: it may have reported that it is ready */
  uint64_t executing =
      atomic_load_explicit(&shmi_scoreboard_helper(h)->executing, memory_order_acquire);
  shmi_gang_member_died(h);
  /* Newest first, so that those queued again keep their order. */
  for (uint64_t n = helper->deliveries;
       n >= helper->lowest && n > 0 && helper->in_flight > 0; n--) {
    recover(d, h, n, executing, victim);
  }
  const shmi_function_t *deferred_row = deferred_function(h);
  if (deferred_row != NULL && victim->function == 0) {
    victim->function = shmi_function_table_address(deferred_row);
  }
  while (helper->grow_head != SHMI_NONE) {
    uint32_t number = helper->grow_head;
    helper->grow_head = shmi_schedule_request(d->schedule, number)->next;
    shmi_dispatch_answer_plain(d, number, SHM_EHELPER_DIED);
  }
  shmi_dispatch_excuse(d, h);
  /* We closed its pipe because its pool needs it no more: this end was asked for. */
  int was_asked = helper->down_fd < 0 && !helper->is_condemned;
  d->retiring &= ~(UINT64_C(1) << h);
  helper->state = SHMI_PEER_NONE;
  shmi_descriptor_close(&helper->down_fd);
  shmi_descriptor_close(&helper->up_fd);
  shmi_descriptor_close(&helper->files_fd);
  shm_helper_stats_t *stats = &d->scoreboard->helper_stats[h];
  stats->state = helper->is_unloading  ? SHM_HELPER_UNLOADED
                 : helper->is_retiring ? SHM_HELPER_ABSENT
                                       : SHM_HELPER_DEAD;
  stats->pid = 0;
  stats->in_flight = 0;
  if (!was_asked) {
    stats->deaths++;
    d->scoreboard->broker->helper_deaths++;
  }
  shmi_dispatch_hand_out(d);
  shmi_dispatch_flush_replies(d);
}

int shmi_dispatch_why_gone(const shmi_dispatch_t *d, uint64_t placement) {
  for (int h = 0; h < d->config.helpers; h++) {
    int is_named = (placement >> h & 1) != 0;
    if (is_named && d->scoreboard->helper_stats[h].state == SHM_HELPER_GIVEN_UP) return SHM_ENO_HELPERS;
  }
  return SHM_EHELPER_GONE;
}

static void drop_helper(shmi_dispatch_t *d, int h, int pool_too, int state, int status) {
  uint32_t number;
  d->scoreboard->helper_stats[h].state = state;
  while ((number = shmi_schedule_drop_helper(d->schedule, h, pool_too)) != SHMI_NONE) {
    shmi_dispatch_answer_plain(d, number, status);
  }
  shmi_dispatch_flush_replies(d);
}

void shmi_dispatch_give_up_helper(shmi_dispatch_t *d, int h, int pool_too) {
  drop_helper(d, h, pool_too, SHM_HELPER_GIVEN_UP, SHM_ENO_HELPERS);
}

void shmi_dispatch_retire_helper(shmi_dispatch_t *d, int h) {
  drop_helper(d, h, 0, SHM_HELPER_ABSENT, SHM_EHELPER_GONE);
  if (d->helpers[h].state == SHMI_PEER_NONE) return; /* dead, and not replaced yet */
  d->helpers[h].is_unloading = 0;
  begin_retiring(d, h, SHM_HELPER_LEAVING);
  notify_all(d);
  shmi_dispatch_close_retired(d);
}

int shmi_dispatch_helper_is_closed(const shmi_dispatch_t *d, int h) {
  return d->helpers[h].state != SHMI_PEER_NONE && d->helpers[h].down_fd < 0;
}

int shmi_dispatch_helper_is_unloading(const shmi_dispatch_t *d, int h) {
  return d->helpers[h].is_unloading;
}

int shmi_dispatch_helper_is_condemned(const shmi_dispatch_t *d, int h) {
  return d->helpers[h].is_condemned;
}

void shmi_dispatch_close_helpers(shmi_dispatch_t *d) {
  for (int h = 0; h < d->config.helpers; h++) shmi_descriptor_close(&d->helpers[h].down_fd);
}

/* The first call that its page names as executing and that has not ended; NULL: there is none. */
static const shmi_request_t *executing_call(const shmi_dispatch_t *d, const shmi_helper_t *helper,
                                            uint64_t executing) {
  uint64_t first = executing >> 16, end = first + (executing & 0xffff);
  for (uint64_t n = first > helper->lowest ? first : helper->lowest;
       n < end && n <= helper->deliveries; n++) {
    uint32_t number = in_flight_at(helper, n);
    if (number == SHMI_NONE) continue;
    const shmi_request_t *r = shmi_schedule_request(d->schedule, number);
    if (r->frame.kind == SHMI_FRAME_CALL || r->frame.kind == SHMI_FRAME_APPLY) return r;
  }
  return NULL;
}

void shmi_dispatch_was_stopped(shmi_dispatch_t *d, uint64_t until_ns) {
  d->stopped_until_ns = until_ns;
}

uint64_t shmi_dispatch_hung(shmi_dispatch_t *d, uint64_t now_ns, uint64_t *next_ns) {
  *next_ns = 0;
  if (d->least_hang_ns == 0) return 0;
  uint64_t hung = 0;
  for (int h = 0; h < d->config.helpers; h++) {
    shmi_helper_t *helper = &d->helpers[h];
    const shmi_function_t *deferred_row = deferred_function(h);
    int runs = helper->state == SHMI_PEER_UP || helper->applies;
    if (!runs || (helper->in_flight == 0 && deferred_row == NULL)) continue;
    /* It does not report what it begins next: so look again in time for any function. */
    uint64_t again_ns = now_ns + d->least_hang_ns;
    shmi_clock_earliest(next_ns, again_ns);
    shmi_helper_page_t *page = shmi_scoreboard_helper(h);
    int loads = atomic_load_explicit(&page->session, memory_order_acquire) == SHM_SESSION_LOADING;
    if (loads) continue; /* which may take as long as it takes */
    uint64_t executing = atomic_load_explicit(&page->executing, memory_order_acquire);
    uint64_t since_ns, hang_after_ns;
    if (executing != 0) {
      const shmi_request_t *r = executing_call(d, helper, executing);
      if (r == NULL) continue;
      hang_after_ns = r->function->hang_after_ns;
      since_ns = atomic_load_explicit(&page->executing_since_ns, memory_order_relaxed);
      int waits = r->members != 0 && shmi_gang_waits(h); /* for another member, which is the one
                                                            that hangs */
      if (waits || helper->was_waiting) helper->waited_ns = now_ns;
      helper->was_waiting = (uint8_t)waits;
      if (waits) continue;
      if (helper->waited_ns > since_ns) since_ns = helper->waited_ns; /* its time begins anew */
    } else {
      hang_after_ns = deferred_row == NULL ? 0 : deferred_row->hang_after_ns;
      since_ns = atomic_load_explicit(&page->deferred_since_ns, memory_order_relaxed);
    }
    if (hang_after_ns == 0) continue;
    if (since_ns < d->stopped_until_ns) since_ns = d->stopped_until_ns;
    uint64_t due = since_ns + hang_after_ns;
    if (due <= now_ns) hung |= UINT64_C(1) << h;
    else if (due < *next_ns) *next_ns = due;
  }
  return hung;
}
