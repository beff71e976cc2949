/* schedule_holds -- batches that are held until they are full or due. See schedule_internal.h. */
#include "broker/schedule_internal.h"

static void hold_timer_update(shmi_schedule_t *s) {
  s->hold_timer = 0;
  for (int i = 0; i < SHMI_HOLDS && s->holds_used > 0; i++) {
    if (s->holds[i].used && (s->hold_timer == 0 || s->holds[i].due_ns < s->hold_timer)) {
      s->hold_timer = s->holds[i].due_ns;
    }
  }
}

static void hold_release(shmi_schedule_t *s, shmi_hold_t *hold) {
  uint32_t number = hold->head;
  while (number != SHMI_NONE) {
    uint32_t next = s->requests[number].next;
    shmi_count_out(s, number);
    shmi_queue_put(s, number, 0);
    number = next;
  }
  hold->used = 0;
  s->holds_used--;
  hold_timer_update(s);
}

void shmi_hold_remove(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  shmi_hold_t *hold = &s->holds[r->hold - 1];
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else hold->head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else hold->tail = r->previous;
  hold->rows -= r->frame.rows;
  shmi_count_out(s, number);
  r->state = SHMI_REQUEST_TAKEN;
  r->hold = 0;
  if (hold->head == SHMI_NONE) {
    hold->used = 0;
    s->holds_used--;
    hold_timer_update(s);
  }
}

/* Until when the request may wait for others: its function's delay, and at most half of the time that
 * it has itself, so that the other half is left to be served in. */
static uint64_t due_of(const shmi_request_t *r, uint64_t now_ns) {
  uint64_t delay_ns = r->function->batch_delay_ns, deadline_ns = r->frame.deadline_ns;
  uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
  if (deadline_ns != 0 && left_ns / 2 < delay_ns) delay_ns = left_ns / 2;
  return now_ns + delay_ns;
}

int shmi_hold_put(shmi_schedule_t *s, uint32_t number, uint64_t now_ns) {
  shmi_request_t *r = &s->requests[number];
  shmi_hold_t *found = NULL;
  for (int i = 0; i < SHMI_HOLDS; i++) {
    shmi_hold_t *hold = &s->holds[i];
    if (hold->used && hold->key == r->frame.batch_key && hold->domain == r->domain &&
        hold->priority == r->frame.priority) {
      found = hold;
      break;
    }
    if (!hold->used && found == NULL) found = hold;
  }
  if (found == NULL) return 0;
  uint64_t due_ns = due_of(r, now_ns);
  if (!found->used) {
    *found = (shmi_hold_t){.key = r->frame.batch_key,
                      .due_ns = UINT64_MAX,
                      .max_rows = r->function->batch_max_rows,
                      .domain = r->domain,
                      .priority = r->frame.priority,
                      .used = 1};
    s->holds_used++;
  }
  if (due_ns < found->due_ns) found->due_ns = due_ns;
  if (s->hold_timer == 0 || found->due_ns < s->hold_timer) s->hold_timer = found->due_ns;
  r->state = SHMI_REQUEST_HELD;
  r->hold = (uint16_t)(found - s->holds + 1);
  r->next = SHMI_NONE;
  r->previous = found->tail;
  if (found->tail != SHMI_NONE) s->requests[found->tail].next = number;
  else found->head = number;
  found->tail = number;
  found->rows += r->frame.rows;
  shmi_count_in(s, number);
  if (found->rows >= found->max_rows) hold_release(s, found);
  return 1;
}

void shmi_hold_release_due(shmi_schedule_t *s, uint64_t now_ns) {
  for (int i = 0; i < SHMI_HOLDS; i++) {
    if (s->holds[i].used && s->holds[i].due_ns <= now_ns) hold_release(s, &s->holds[i]);
  }
}
