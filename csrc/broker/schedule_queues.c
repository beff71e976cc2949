/* schedule_queues -- queues of single children, and rings of children that take turns. See
 * schedule_internal.h.
 */
#include "broker/schedule_internal.h"

static void ring_enter(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  shmi_domain_t *d = &s->domains[domain];
  shmi_ring_t *ring = &d->rings[priority];
  shmi_queue_t *own = shmi_queue_of(s, domain, priority, child);
  uint32_t me = child + 1;
  if (ring->cursor == 0) {
    own->ring_next = own->ring_previous = me;
    ring->cursor = me;
    ring->turns = 0;
    d->ready |= (uint8_t)(1 << priority);
    return;
  }
  /* At the end of the ring: just before the child whose turn it is. */
  shmi_queue_t *first = shmi_queue_of(s, domain, priority, ring->cursor - 1);
  shmi_queue_t *last = shmi_queue_of(s, domain, priority, first->ring_previous - 1);
  own->ring_next = ring->cursor;
  own->ring_previous = first->ring_previous;
  last->ring_next = me;
  first->ring_previous = me;
}

static void ring_leave(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  shmi_domain_t *d = &s->domains[domain];
  shmi_ring_t *ring = &d->rings[priority];
  shmi_queue_t *own = shmi_queue_of(s, domain, priority, child);
  uint32_t me = child + 1;
  if (own->ring_next == me) {
    ring->cursor = 0;
    d->ready &= (uint8_t)~(1 << priority);
  } else {
    shmi_queue_of(s, domain, priority, own->ring_next - 1)->ring_previous = own->ring_previous;
    shmi_queue_of(s, domain, priority, own->ring_previous - 1)->ring_next = own->ring_next;
    if (ring->cursor == me) {
      ring->cursor = own->ring_next;
      ring->turns = 0;
    }
  }
  own->ring_next = own->ring_previous = 0;
}

void shmi_queue_put(shmi_schedule_t *s, uint32_t number, int at_front) {
  shmi_request_t *r = &s->requests[number];
  uint32_t child = r->frame.slot;
  shmi_queue_t *q = shmi_queue_of(s, r->domain, r->frame.priority, child);
  r->state = SHMI_REQUEST_QUEUED;
  r->hold = 0;
  if (q->head == SHMI_NONE) {
    r->next = r->previous = SHMI_NONE;
    q->head = q->tail = number;
    ring_enter(s, r->domain, r->frame.priority, child);
  } else if (at_front) {
    r->previous = SHMI_NONE;
    r->next = q->head;
    s->requests[q->head].previous = number;
    q->head = number;
  } else {
    r->next = SHMI_NONE;
    r->previous = q->tail;
    s->requests[q->tail].next = number;
    q->tail = number;
  }
  s->domains[r->domain].queued++;
  s->queued++;
  s->queued_of[child]++;
}

void shmi_queue_remove(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  shmi_queue_t *q = shmi_queue_of(s, r->domain, r->frame.priority, r->frame.slot);
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else q->head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else q->tail = r->previous;
  if (q->head == SHMI_NONE) ring_leave(s, r->domain, r->frame.priority, r->frame.slot);
  s->domains[r->domain].queued--;
  shmi_count_out(s, r);
  r->state = SHMI_REQUEST_TAKEN;
  r->next = r->previous = SHMI_NONE;
}

/* The child at the cursor took one message: when its turn is over, the next child's begins. Call
 * after shmi_queue_remove, which moves the cursor itself when the child has nothing left. */
static void turn_taken(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  shmi_ring_t *ring = &s->domains[domain].rings[priority];
  if (ring->cursor != child + 1) return;
  if (++ring->turns < s->weights[child]) return;
  ring->cursor = shmi_queue_of(s, domain, priority, child)->ring_next;
  ring->turns = 0;
}

void shmi_queue_use_turn(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  uint32_t cursor = s->domains[domain].rings[priority].cursor;
  const shmi_queue_t *q = shmi_queue_of(s, domain, priority, child);
  if (cursor == child + 1) {
    turn_taken(s, domain, priority, child);
  } else if (q->head != SHMI_NONE && q->ring_next != cursor) {
    ring_leave(s, domain, priority, child);
    ring_enter(s, domain, priority, child);
  }
}

uint32_t shmi_queue_take_head(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  uint32_t number = shmi_queue_of(s, domain, priority, child)->head;
  shmi_queue_remove(s, number);
  turn_taken(s, domain, priority, child);
  return number;
}
