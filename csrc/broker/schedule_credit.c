/* schedule_credit -- how long calls take, and so how many a helper may hold. See
 * schedule_internal.h.
 */
#include "broker/schedule_internal.h"

uint64_t shmi_credit_estimate(const shmi_schedule_t *s, const shmi_request_t *r) {
  uint64_t estimate = s->estimates[r->function->index];
  /* Never measured: assumed to be long, so that nothing waits behind a surprise. */
  if (estimate == 0) return SHMI_CREDIT_UNKNOWN_NS;
  estimate += s->deferred[r->function->index];
  return estimate < SHMI_CREDIT_FLOOR_NS ? SHMI_CREDIT_FLOOR_NS : estimate;
}

int shmi_credit_allows(const shmi_schedule_t *s, int helper) {
  const shmi_load_t *h = &s->helpers[helper];
  if (!h->up || shmi_gets_nothing(s, helper)) return 0;
  if (h->in_flight < h->min_credit) return 1;
  if (h->outstanding_ns < SHMI_CREDIT_BUDGET_NS) return h->in_flight < SHMI_CREDIT_MAX;
  /* When more messages wait than all helpers of the pool can begin, one message ahead costs nobody
   * a turn and saves the helper a wait for the next one: 130 us of every 4 ms, measured. */
  return h->in_flight == h->min_credit && h->outstanding_ns <= SHMI_CREDIT_AHEAD_NS &&
         s->domains[h->pool].queued > s->pool_up[h->pool];
}

void shmi_credit_return(shmi_schedule_t *s, const shmi_request_t *r, int helper) {
  shmi_load_t *h = &s->helpers[helper];
  h->in_flight--;
  h->outstanding_ns -= r->estimate_ns < h->outstanding_ns ? r->estimate_ns : h->outstanding_ns;
  if (h->in_flight == 0) h->outstanding_ns = 0;
}

/* A running mean over about eight calls that follows a longer one at once by half: underestimating
 * a call makes others wait. */
void shmi_learn(uint64_t *mean_ns, uint64_t ns) {
  if (*mean_ns == 0) *mean_ns = ns;
  else if (ns > *mean_ns) *mean_ns += (ns - *mean_ns) / 2;
  else *mean_ns -= (*mean_ns - ns) / 8;
}

void shmi_schedule_finished(shmi_schedule_t *s, uint32_t number, uint64_t service_ns) {
  shmi_request_t *r = &s->requests[number];
  shmi_credit_return(s, r, r->helper);
  if (service_ns == 0 || r->estimate_ns == 0) return;
  uint64_t *estimate = &s->estimates[r->function->index];
  shmi_learn(estimate, service_ns);
  if (*estimate == 0) *estimate = 1;
}

void shmi_schedule_deferred(shmi_schedule_t *s, uint32_t function_index, uint64_t more_ns) {
  shmi_learn(&s->deferred[function_index], more_ns);
}

uint64_t shmi_schedule_estimate(const shmi_schedule_t *s, uint32_t function_index) {
  return s->estimates[function_index] + s->deferred[function_index];
}
