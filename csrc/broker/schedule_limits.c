/* schedule_limits -- how many calls of a function wait, and which has waited longest. See
 * schedule_internal.h.
 */
#include "broker/schedule_internal.h"

/* By arrival, from the newest on: a call that is queued again, because its helper died or its batch
 * is formed, keeps its place. */
void shmi_waiting_add(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  shmi_waiting_t *waiting = &s->waiting[r->function->index];
  uint32_t older = waiting->newest, newer = SHMI_NONE;
  while (older != SHMI_NONE && s->requests[older].queued_ns > r->queued_ns) {
    newer = older;
    older = s->requests[older].older;
  }
  r->older = older;
  r->newer = newer;
  if (older != SHMI_NONE) s->requests[older].newer = number;
  else waiting->oldest = number;
  if (newer != SHMI_NONE) s->requests[newer].older = number;
  else waiting->newest = number;
  waiting->count++;
}

void shmi_waiting_remove(shmi_schedule_t *s, uint32_t number) {
  const shmi_request_t *r = &s->requests[number];
  shmi_waiting_t *waiting = &s->waiting[r->function->index];
  if (r->older != SHMI_NONE) s->requests[r->older].newer = r->newer;
  else waiting->oldest = r->newer;
  if (r->newer != SHMI_NONE) s->requests[r->newer].older = r->older;
  else waiting->newest = r->older;
  waiting->count--;
}

uint32_t shmi_schedule_waiting(const shmi_schedule_t *s, const shmi_function_t *function) {
  return s->waiting[function->index].count;
}

uint32_t shmi_schedule_take_oldest(shmi_schedule_t *s, const shmi_function_t *function) {
  uint32_t number = s->waiting[function->index].oldest;
  if (number != SHMI_NONE) shmi_take_out(s, number);
  return number;
}
