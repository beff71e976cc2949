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

/* What any helper of a pool may run has no order that its sender could rely on. */
static int is_by_deadline(const shmi_schedule_t *s, int domain) {
  return s->config.by_deadline && domain < s->config.pools;
}

static uint64_t due_ns(const shmi_request_t *r) {
  return r->frame.deadline_ns != 0 ? r->frame.deadline_ns : UINT64_MAX;
}

/* The message of the queue that a new one goes before; SHMI_NONE: it goes last. */
static uint32_t following(const shmi_schedule_t *s, const shmi_queue_t *q, const shmi_request_t *r,
                          int at_front) {
  if (!is_by_deadline(s, r->domain)) return at_front ? q->head : SHMI_NONE;
  uint32_t found = SHMI_NONE;
  for (uint32_t n = q->tail; n != SHMI_NONE; n = s->requests[n].previous) {
    uint64_t due = due_ns(&s->requests[n]);
    if (due < due_ns(r) || (due == due_ns(r) && !at_front)) break;
    found = n;
  }
  return found;
}

void shmi_queue_put(shmi_schedule_t *s, uint32_t number, int at_front) {
  shmi_request_t *r = &s->requests[number];
  uint32_t child = r->frame.slot;
  shmi_queue_t *q = shmi_queue_of(s, r->domain, r->frame.priority, child);
  r->state = SHMI_REQUEST_QUEUED;
  r->hold = 0;
  if (q->head == SHMI_NONE) ring_enter(s, r->domain, r->frame.priority, child);
  r->next = following(s, q, r, at_front);
  r->previous = r->next != SHMI_NONE ? s->requests[r->next].previous : q->tail;
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = number;
  else q->head = number;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = number;
  else q->tail = number;
  s->domains[r->domain].queued++;
  shmi_count_in(s, number);
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
  shmi_count_out(s, number);
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

uint32_t shmi_queue_next_child(shmi_schedule_t *s, int domain, int priority) {
  uint32_t first = s->domains[domain].rings[priority].cursor, found = first;
  if (!is_by_deadline(s, domain)) return first - 1;
  uint64_t earliest = UINT64_MAX;
  uint32_t child = first;
  do {
    const shmi_queue_t *q = shmi_queue_of(s, domain, priority, child - 1);
    uint64_t due = due_ns(&s->requests[q->head]);
    if (due < earliest) {
      earliest = due;
      found = child;
    }
    child = q->ring_next;
  } while (child != first);
  return found - 1;
}

uint32_t shmi_queue_take_head(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  uint32_t number = shmi_queue_of(s, domain, priority, child)->head;
  shmi_queue_remove(s, number);
  turn_taken(s, domain, priority, child);
  return number;
}
