/* schedule_gangs -- messages that run on several helpers at once. See schedule_internal.h. */
#include "broker/schedule_internal.h"

enum { LOOKS_AT_A_CHILD = 4 /* of its gangs, before the next child's are looked at */ };

/* Whether its members are there: one that is not may take long to come, or to go on. */
static int all_are_up(const shmi_schedule_t *s, uint64_t mask) {
  if ((mask & s->paused) != 0) return 0;
  for (; mask != 0; mask &= mask - 1) {
    if (!s->helpers[__builtin_ctzll(mask)].up) return 0;
  }
  return 1;
}

/* Whether a message that waits for this helper goes before a gang of that priority. */
static int comes_first(const shmi_schedule_t *s, int helper, int priority) {
  int urgency = shmi_most_urgent(s, helper);
  return urgency > priority || (urgency == priority && (s->owing >> helper & 1) != 0);
}

/* Whether a gang may be handed to this helper now. If it stood behind a call, the other members
 * would wait for this one. Behind a gang of the same members, nobody waits. */
static int can_begin_at(const shmi_schedule_t *s, int helper, uint64_t mask, int priority) {
  const shmi_load_t *h = &s->helpers[helper];
  if (!h->up || shmi_gets_nothing(s, helper) || comes_first(s, helper, priority)) return 0;
  if (h->in_flight == 0) return 1;
  if (h->gangs != h->in_flight || h->gang_mask != mask) return 0;
  if (h->in_flight < h->min_credit) return 1;
  if (h->outstanding_ns < SHMI_CREDIT_BUDGET_NS) return h->in_flight < SHMI_CREDIT_MAX;
  return h->in_flight == 1 && h->outstanding_ns <= SHMI_CREDIT_AHEAD_NS &&
         shmi_most_urgent(s, helper) < priority;
}

static int can_begin(const shmi_schedule_t *s, const shmi_request_t *r) {
  uint64_t mask = r->frame.placement;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    if (!can_begin_at(s, __builtin_ctzll(left), mask, r->frame.priority)) return 0;
  }
  return 1;
}

/* The gang has waited long, so its helpers are kept for it: they take only what is more urgent, and
 * the one message that they owe after an earlier gang. */
static void keep_for(shmi_schedule_t *s, const shmi_request_t *r) {
  for (uint64_t left = r->frame.placement; left != 0; left &= left - 1) {
    int helper = __builtin_ctzll(left);
    if (comes_first(s, helper, r->frame.priority)) continue;
    shmi_load_t *h = &s->helpers[helper];
    if (h->kept_above <= r->frame.priority) h->kept_above = (uint8_t)(r->frame.priority + 1);
    s->kept |= UINT64_C(1) << helper;
  }
}

void shmi_gang_keep_none(shmi_schedule_t *s) {
  for (; s->kept != 0; s->kept &= s->kept - 1) s->helpers[__builtin_ctzll(s->kept)].kept_above = 0;
}

static uint32_t begin_gang(shmi_schedule_t *s, shmi_request_t *r, uint64_t now_ns) {
  uint32_t number = (uint32_t)(r - s->requests);
  shmi_queue_remove(s, number);
  shmi_queue_use_turn(s, shmi_gang_domain(s), r->frame.priority, r->frame.slot);
  r->members = r->frame.placement;
  r->gang_ns = 0;
  r->gang_status = SHM_OK;
  r->gang_value = 0;
  r->gang_failed = SHM_NO_HELPER;
  r->gang_has_run = 0;
  r->estimate_ns = shmi_credit_estimate(s, r);
  r->handed_ns = now_ns;
  r->helper = (uint8_t)__builtin_ctzll(r->members);
  r->batch = 1;
  r->attempts++;
  s->owing |= r->members;
  for (uint64_t left = r->members; left != 0; left &= left - 1) {
    shmi_load_t *member = &s->helpers[__builtin_ctzll(left)];
    member->in_flight++;
    member->gangs++;
    member->gang_mask = r->members;
    member->outstanding_ns += r->estimate_ns;
  }
  return number;
}

int shmi_schedule_has_gangs(const shmi_schedule_t *s) {
  return s->domains[shmi_gang_domain(s)].ready != 0 || s->kept != 0;
}

/* Look at waiting gangs in the order of their turns. If one has to wait, those behind it do not get
 * its helpers. If it waits for a member that is down or paused, which may take long, only gangs of
 * the same child wait behind it, because a child's messages to a helper stay in order. */
uint32_t shmi_schedule_next_gang(shmi_schedule_t *s, uint64_t now_ns) {
  const shmi_domain_t *domain = &s->domains[shmi_gang_domain(s)];
again:
  shmi_gang_keep_none(s);
  uint64_t taken = 0;
  int looks = SHMI_GANG_LOOKS;
  for (unsigned left = domain->ready; left != 0 && looks > 0;) {
    int priority = 31 - __builtin_clz(left);
    left &= ~(1u << priority);
    uint32_t first = domain->rings[priority].cursor, child = first;
    do {
      const shmi_queue_t *q = shmi_queue_of(s, shmi_gang_domain(s), priority, child - 1);
      uint64_t delayed = 0; /* helpers of gangs that wait for a member that is down */
      uint32_t number = q->head;
      for (int i = 0; i < LOOKS_AT_A_CHILD && number != SHMI_NONE && looks > 0; i++, looks--) {
        shmi_request_t *r = &s->requests[number];
        uint64_t mask = r->frame.placement;
        if (shmi_request_is_expired(r, now_ns)) {
          shmi_queue_remove(s, number);
          shmi_set_aside(s, number);
          goto again;
        }
        number = r->next;
        if (!all_are_up(s, mask) || (mask & delayed) != 0) {
          delayed |= mask;
          continue;
        }
        if ((mask & taken) == 0) {
          if (can_begin(s, r)) return begin_gang(s, r, now_ns);
          if (now_ns - r->queued_ns >= SHMI_GANG_AGE_NS) keep_for(s, r);
        }
        taken |= mask;
      }
      child = q->ring_next;
    } while (child != first && looks > 0);
  }
  return SHMI_NONE;
}

int shmi_schedule_gang_finished(shmi_schedule_t *s, uint32_t number, int helper,
                                uint64_t service_ns) {
  shmi_request_t *r = &s->requests[number];
  shmi_credit_return(s, r, helper);
  s->helpers[helper].gangs--;
  r->members &= ~(UINT64_C(1) << helper);
  if (service_ns > r->gang_ns) r->gang_ns = service_ns;
  if (r->members == 0 && r->gang_ns > 0) shmi_learn(&s->estimates[r->function->index], r->gang_ns);
  return __builtin_popcountll(r->members);
}

int shmi_schedule_requeue_gang(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  if (shmi_domain_of(s, &r->frame) < 0) return 0;
  r->ticket = 0;
  r->helper = SHM_NO_HELPER;
  shmi_queue_put(s, number, 1);
  return 1;
}

/* A gang that the helper would have been a member of. */
uint32_t shmi_gang_take_out(shmi_schedule_t *s, int helper) {
  const shmi_domain_t *domain = &s->domains[shmi_gang_domain(s)];
  for (unsigned left = domain->ready; left != 0; left &= left - 1) {
    int priority = __builtin_ctz(left);
    uint32_t first = domain->rings[priority].cursor, child = first;
    do {
      const shmi_queue_t *q = shmi_queue_of(s, shmi_gang_domain(s), priority, child - 1);
      for (uint32_t n = q->head; n != SHMI_NONE; n = s->requests[n].next) {
        if ((s->requests[n].frame.placement >> helper & 1) == 0) continue;
        shmi_queue_remove(s, n);
        return n;
      }
      child = q->ring_next;
    } while (child != first);
  }
  return SHMI_NONE;
}
