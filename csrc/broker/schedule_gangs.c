/* schedule_gangs -- messages that run on several helpers at once. See schedule_internal.h. */
#include "broker/schedule_internal.h"

void shmi_gang_put(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  r->state = SHMI_REQUEST_GANG;
  r->next = SHMI_NONE;
  r->previous = s->gang_tail;
  if (s->gang_tail != SHMI_NONE) s->requests[s->gang_tail].next = number;
  else s->gang_head = number;
  s->gang_tail = number;
  s->queued++;
  s->queued_of[r->frame.slot]++;
}

void shmi_gang_remove(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else s->gang_head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else s->gang_tail = r->previous;
  shmi_count_out(s, r);
  r->state = SHMI_REQUEST_TAKEN;
  r->next = r->previous = SHMI_NONE;
  s->gang_claims = 0;
}

static void set_aside_gang(shmi_schedule_t *s, uint32_t number) {
  shmi_gang_remove(s, number);
  shmi_set_aside(s, number);
}

uint32_t shmi_schedule_next_gang(shmi_schedule_t *s, uint64_t now_ns) {
  while (s->gang_head != SHMI_NONE && shmi_request_is_expired(&s->requests[s->gang_head], now_ns)) {
    set_aside_gang(s, s->gang_head);
  }
  uint32_t number = s->gang_head;
  if (number == SHMI_NONE) return SHMI_NONE;
  shmi_request_t *r = &s->requests[number];
  uint64_t mask = r->frame.placement, left = mask;
  s->gang_claims = 0; /* the claim keeps others off, not the gang itself */
  int ready = 1;
  while (left != 0 && ready) {
    ready = shmi_credit_allows(s, __builtin_ctzll(left));
    left &= left - 1;
  }
  if (!ready) {
    if (now_ns - r->queued_ns >= SHMI_GANG_AGE_NS) s->gang_claims = mask;
    return SHMI_NONE;
  }
  shmi_gang_remove(s, number);
  r->members = mask;
  r->gang_status = SHM_OK;
  r->gang_value = 0;
  r->estimate_ns = shmi_credit_estimate(s, r);
  r->handed_ns = now_ns;
  r->helper = (uint8_t)__builtin_ctzll(mask);
  r->batch = 1;
  r->attempts++;
  for (left = mask; left != 0; left &= left - 1) {
    shmi_load_t *member = &s->helpers[__builtin_ctzll(left)];
    member->in_flight++;
    member->outstanding_ns += r->estimate_ns;
  }
  return number;
}

int shmi_schedule_gang_finished(shmi_schedule_t *s, uint32_t number, int helper) {
  shmi_request_t *r = &s->requests[number];
  shmi_credit_return(s, r, helper);
  r->members &= ~(UINT64_C(1) << helper);
  return __builtin_popcountll(r->members);
}
