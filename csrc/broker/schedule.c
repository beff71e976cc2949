/* schedule -- see schedule.h.
 *
 * A *domain* is a set of queues that one or more helpers serve: one domain per pool and one
 * per helper (for messages bound to it). In a domain and priority each child has a FIFO, and
 * the children whose FIFO is not empty stand in a ring. The ring's cursor is whose turn it is.
 * All of it lies in two reserved, lazily touched tables, so nothing moves and nothing is
 * allocated while running.
 */
#include "broker/schedule.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HOLDS = 64, VISITS_PER_ROW = 2, VISITS_AT_LEAST = 32, RUN = 16 };

enum { FREE = 0, QUEUED = 1, HELD = 2, EXPIRED = 3, TAKEN = 4, GANGED = 5 };

typedef struct queue { /* one child's FIFO in one domain and priority */
  uint32_t head, tail;
  uint32_t ring_next, ring_previous; /* child + 1 */
} queue_t;

typedef struct ring {
  uint32_t cursor; /* child + 1 whose turn it is; 0: empty */
  uint32_t turns;  /* messages the child at the cursor has taken of its turn */
} ring_t;

typedef struct domain {
  ring_t rings[SHMI_PRIORITIES];
  uint32_t queued;
  uint8_t ready; /* bit p: rings[p] is not empty */
} domain_t;

typedef struct hold { /* messages of one batch key that wait for company */
  uint64_t key;
  uint64_t due_ns;
  uint64_t rows;
  uint32_t head, tail;
  uint32_t max_rows;
  uint8_t domain, priority, used;
} hold_t;

typedef struct helper {
  uint64_t outstanding_ns; /* estimated service time of what it holds */
  uint32_t in_flight;
  uint8_t up, pool, min_credit, pool_first;
} helper_t;

struct shmi_schedule {
  shmi_schedule_config_t config;
  size_t requests_bytes, queues_bytes;
  shmi_request_t *requests; /* [1 ..] */
  queue_t *queues;          /* [domain][priority][child] */
  domain_t domains[SHM_MAX_POOLS + SHM_MAX_HELPERS];
  helper_t helpers[SHM_MAX_HELPERS];
  hold_t holds[HOLDS];
  int holds_used;
  uint64_t hold_timer; /* earliest due_ns of all holds */
  uint64_t estimates[SHM_MAX_FUNCTIONS]; /* up to the answer */
  uint64_t more[SHM_MAX_FUNCTIONS];      /* and what goes on after it */
  uint32_t *queued_of; /* by child, held ones included */
  uint32_t *weights;
  uint32_t free_list, made, capacity;
  uint32_t expired;
  uint32_t queued;
  uint32_t gang_head, gang_tail; /* gangs that wait, of all children */
  uint32_t pool_up[SHM_MAX_POOLS]; /* helpers of each pool that are up */
  uint64_t gang_claims;          /* helpers that get nothing new until the first gang has run */
  uint64_t spared;               /* helpers that get nothing at all for now */
  uint64_t expected;             /* helpers that there are, or will be again */
  int run_helper; /* the helper that got the last messages, and how many in a row: short */
  int run_left;   /* messages go to one helper in runs, because a wake-up costs more than they */
};

static void *reserve(size_t bytes) {
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

int shmi_schedule_create(shmi_schedule_t **out, const shmi_schedule_config_t *config) {
  shmi_schedule_t *s = reserve(sizeof *s);
  if (s == NULL) return SHM_ESYSTEM;
  s->config = *config;
  s->capacity = (uint32_t)config->children * config->window;
  s->requests_bytes = ((size_t)s->capacity + 1) * sizeof *s->requests;
  s->queues_bytes = (size_t)(config->pools + config->helpers) * SHMI_PRIORITIES *
                    (size_t)config->children * sizeof *s->queues;
  s->requests = reserve(s->requests_bytes);
  s->queues = reserve(s->queues_bytes);
  s->queued_of = calloc((size_t)config->children, sizeof *s->queued_of);
  s->weights = calloc((size_t)config->children, sizeof *s->weights);
  if (s->requests == NULL || s->queues == NULL || s->queued_of == NULL || s->weights == NULL) {
    shmi_schedule_destroy(s);
    return SHM_ESYSTEM;
  }
  for (int child = 0; child < config->children; child++) s->weights[child] = 1;
  for (int h = 0; h < config->helpers; h++) {
    s->expected |= UINT64_C(1) << h;
    s->helpers[h].pool = config->helper_pool[h];
    uint8_t credit = config->min_credit[config->helper_pool[h]];
    s->helpers[h].min_credit = credit > 0 ? credit : 1;
  }
  *out = s;
  return SHM_OK;
}

void shmi_schedule_destroy(shmi_schedule_t *s) {
  if (s == NULL) return;
  if (s->requests != NULL) munmap(s->requests, s->requests_bytes);
  if (s->queues != NULL) munmap(s->queues, s->queues_bytes);
  free(s->queued_of);
  free(s->weights);
  munmap(s, sizeof *s);
}

shmi_request_t *shmi_schedule_request(shmi_schedule_t *s, uint32_t number) {
  return &s->requests[number];
}

/* ---- queues and rings ---- */

static queue_t *queue_of(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  return &s->queues[((size_t)domain * SHMI_PRIORITIES + (size_t)priority) *
                        (size_t)s->config.children + child];
}

static void ring_enter(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  domain_t *d = &s->domains[domain];
  ring_t *ring = &d->rings[priority];
  queue_t *own = queue_of(s, domain, priority, child);
  uint32_t me = child + 1;
  if (ring->cursor == 0) {
    own->ring_next = own->ring_previous = me;
    ring->cursor = me;
    ring->turns = 0;
    d->ready |= (uint8_t)(1 << priority);
    return;
  }
  /* Behind everybody: just before the one whose turn it is. */
  queue_t *first = queue_of(s, domain, priority, ring->cursor - 1);
  queue_t *last = queue_of(s, domain, priority, first->ring_previous - 1);
  own->ring_next = ring->cursor;
  own->ring_previous = first->ring_previous;
  last->ring_next = me;
  first->ring_previous = me;
}

static void ring_leave(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  domain_t *d = &s->domains[domain];
  ring_t *ring = &d->rings[priority];
  queue_t *own = queue_of(s, domain, priority, child);
  uint32_t me = child + 1;
  if (own->ring_next == me) {
    ring->cursor = 0;
    d->ready &= (uint8_t)~(1 << priority);
  } else {
    queue_of(s, domain, priority, own->ring_next - 1)->ring_previous = own->ring_previous;
    queue_of(s, domain, priority, own->ring_previous - 1)->ring_next = own->ring_next;
    if (ring->cursor == me) {
      ring->cursor = own->ring_next;
      ring->turns = 0;
    }
  }
  own->ring_next = own->ring_previous = 0;
}

static void link_request(shmi_schedule_t *s, uint32_t number, int at_front) {
  shmi_request_t *r = &s->requests[number];
  uint32_t child = r->frame.slot;
  queue_t *q = queue_of(s, r->domain, r->frame.priority, child);
  r->state = QUEUED;
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

static void count_out(shmi_schedule_t *s, const shmi_request_t *r) {
  s->queued--;
  s->queued_of[r->frame.slot]--;
}

static void unlink_request(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  queue_t *q = queue_of(s, r->domain, r->frame.priority, r->frame.slot);
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else q->head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else q->tail = r->previous;
  if (q->head == SHMI_NONE) ring_leave(s, r->domain, r->frame.priority, r->frame.slot);
  s->domains[r->domain].queued--;
  count_out(s, r);
  r->state = TAKEN;
  r->next = r->previous = SHMI_NONE;
}

/* The child at the cursor took one message: when its turn is over, the next child's begins.
 * Called after the unlink, which moves the cursor itself when the child has nothing left. */
static void turn_taken(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  ring_t *ring = &s->domains[domain].rings[priority];
  if (ring->cursor != child + 1) return;
  if (++ring->turns < s->weights[child]) return;
  ring->cursor = queue_of(s, domain, priority, child)->ring_next;
  ring->turns = 0;
}

/* The child's message was taken along in a batch, in its turn or before it: either way its next
 * one waits for the next round. */
static void turn_used(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  uint32_t cursor = s->domains[domain].rings[priority].cursor;
  const queue_t *q = queue_of(s, domain, priority, child);
  if (cursor == child + 1) {
    turn_taken(s, domain, priority, child);
  } else if (q->head != SHMI_NONE && q->ring_next != cursor) {
    ring_leave(s, domain, priority, child);
    ring_enter(s, domain, priority, child);
  }
}

/* ---- holds: batches that wait to fill ---- */

static void hold_timer_update(shmi_schedule_t *s) {
  s->hold_timer = 0;
  for (int i = 0; i < HOLDS && s->holds_used > 0; i++) {
    if (s->holds[i].used && (s->hold_timer == 0 || s->holds[i].due_ns < s->hold_timer)) {
      s->hold_timer = s->holds[i].due_ns;
    }
  }
}

static void hold_release(shmi_schedule_t *s, hold_t *hold) {
  uint32_t number = hold->head;
  while (number != SHMI_NONE) {
    uint32_t next = s->requests[number].next;
    count_out(s, &s->requests[number]);
    link_request(s, number, 0);
    number = next;
  }
  hold->used = 0;
  s->holds_used--;
  hold_timer_update(s);
}

static void hold_unlink(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  hold_t *hold = &s->holds[r->hold - 1];
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else hold->head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else hold->tail = r->previous;
  hold->rows -= r->frame.rows;
  count_out(s, r);
  r->state = TAKEN;
  r->hold = 0;
  if (hold->head == SHMI_NONE) {
    hold->used = 0;
    s->holds_used--;
    hold_timer_update(s);
  }
}

/* Put r with those of its key; nothing to do when every hold is taken: it is queued at once. */
static int hold_enter(shmi_schedule_t *s, uint32_t number, uint64_t now_ns) {
  shmi_request_t *r = &s->requests[number];
  hold_t *found = NULL;
  for (int i = 0; i < HOLDS; i++) {
    hold_t *hold = &s->holds[i];
    if (hold->used && hold->key == r->frame.batch_key && hold->domain == r->domain &&
        hold->priority == r->frame.priority) {
      found = hold;
      break;
    }
    if (!hold->used && found == NULL) found = hold;
  }
  if (found == NULL) return 0;
  if (!found->used) {
    *found = (hold_t){.key = r->frame.batch_key,
                      .due_ns = now_ns + r->function->batch_delay_ns,
                      .max_rows = r->function->batch_max_rows,
                      .domain = r->domain,
                      .priority = r->frame.priority,
                      .used = 1};
    s->holds_used++;
    if (s->hold_timer == 0 || found->due_ns < s->hold_timer) s->hold_timer = found->due_ns;
  }
  r->state = HELD;
  r->hold = (uint16_t)(found - s->holds + 1);
  r->next = SHMI_NONE;
  r->previous = found->tail;
  if (found->tail != SHMI_NONE) s->requests[found->tail].next = number;
  else found->head = number;
  found->tail = number;
  found->rows += r->frame.rows;
  s->queued++;
  s->queued_of[r->frame.slot]++;
  if (found->rows >= found->max_rows) hold_release(s, found);
  return 1;
}

static void holds_due(shmi_schedule_t *s, uint64_t now_ns) {
  if (s->hold_timer == 0 || now_ns < s->hold_timer) return;
  for (int i = 0; i < HOLDS; i++) {
    if (s->holds[i].used && s->holds[i].due_ns <= now_ns) hold_release(s, &s->holds[i]);
  }
}

/* ---- gangs ---- */

static void gang_enter(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  r->state = GANGED;
  r->next = SHMI_NONE;
  r->previous = s->gang_tail;
  if (s->gang_tail != SHMI_NONE) s->requests[s->gang_tail].next = number;
  else s->gang_head = number;
  s->gang_tail = number;
  s->queued++;
  s->queued_of[r->frame.slot]++;
}

static void gang_unlink(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  if (r->previous != SHMI_NONE) s->requests[r->previous].next = r->next;
  else s->gang_head = r->next;
  if (r->next != SHMI_NONE) s->requests[r->next].previous = r->previous;
  else s->gang_tail = r->previous;
  count_out(s, r);
  r->state = TAKEN;
  r->next = r->previous = SHMI_NONE;
  s->gang_claims = 0;
}

/* ---- entering ---- */

/* The queue where it belongs; -1: it is bound to helpers that are all gone. */
static int place(const shmi_schedule_t *s, const shmi_frame_t *frame) {
  if (frame->placement == 0) return frame->pool;
  int best = -1;
  uint64_t mask = frame->placement & s->expected;
  while (mask != 0) {
    int h = __builtin_ctzll(mask);
    mask &= mask - 1;
    /* A helper that is down will be replaced, but one that is up is better. */
    if (best < 0 || (s->helpers[h].up && !s->helpers[best].up) ||
        (s->helpers[h].up == s->helpers[best].up &&
         s->helpers[h].outstanding_ns + s->domains[s->config.pools + h].queued <
             s->helpers[best].outstanding_ns + s->domains[s->config.pools + best].queued)) {
      best = h;
    }
  }
  return best < 0 ? -1 : s->config.pools + best;
}

uint32_t shmi_schedule_admit(shmi_schedule_t *s, const shmi_frame_t *frame, uint64_t now_ns) {
  uint32_t number = s->free_list;
  if (number != SHMI_NONE) s->free_list = s->requests[number].next;
  else if (s->made < s->capacity) number = ++s->made;
  else return SHMI_NONE;
  shmi_request_t *r = &s->requests[number];
  r->frame = *frame;
  r->function = NULL;
  r->queued_ns = now_ns;
  r->handed_ns = 0;
  r->delivery = 0;
  r->estimate_ns = 0;
  r->members = 0;
  r->attempts = 0;
  r->batch = 1;
  r->helper = SHM_NO_HELPER;
  r->hold = 0;
  r->state = TAKEN;
  r->next = r->previous = SHMI_NONE;
  return number;
}

uint32_t shmi_schedule_enqueue(shmi_schedule_t *s, const shmi_frame_t *frame,
                               const shmi_function_t *function, uint64_t now_ns) {
  uint32_t number = shmi_schedule_admit(s, frame, now_ns);
  if (number == SHMI_NONE) return SHMI_NONE;
  shmi_request_t *r = &s->requests[number];
  r->function = function;
  if (shmi_request_is_gang(r)) {
    gang_enter(s, number);
    return number;
  }
  int domain = place(s, frame);
  if (domain < 0) {
    shmi_schedule_free(s, number);
    return SHMI_NONE;
  }
  r->domain = (uint8_t)domain;
  if (function->batch_delay_ns > 0 && frame->batch_key != 0 && function->batch_max_rows > 0 &&
      frame->rows < function->batch_max_rows && hold_enter(s, number, now_ns)) {
    return number;
  }
  link_request(s, number, 0);
  return number;
}

void shmi_schedule_free(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  r->state = FREE;
  r->next = s->free_list;
  s->free_list = number;
}

/* ---- choosing ---- */

static uint64_t estimate_of(const shmi_schedule_t *s, const shmi_request_t *r) {
  uint64_t estimate = s->estimates[r->function->index];
  /* Never measured: taken for long, so that nothing waits behind a surprise. */
  if (estimate == 0) return SHMI_CREDIT_UNKNOWN_NS;
  estimate += s->more[r->function->index];
  return estimate < SHMI_CREDIT_FLOOR_NS ? SHMI_CREDIT_FLOOR_NS : estimate;
}

static int has_credit(const shmi_schedule_t *s, int helper) {
  const helper_t *h = &s->helpers[helper];
  if (!h->up || ((s->gang_claims | s->spared) >> helper & 1) != 0) return 0;
  if (h->in_flight < h->min_credit) return 1;
  if (h->outstanding_ns < SHMI_CREDIT_BUDGET_NS) return h->in_flight < SHMI_CREDIT_MAX;
  /* Where more waits than all helpers of the pool can begin, one message ahead costs nobody a
   * turn, and saves the helper a wait for the next: 130 us of every 4 ms, measured. */
  return h->in_flight == h->min_credit && h->outstanding_ns <= SHMI_CREDIT_AHEAD_NS &&
         s->domains[h->pool].queued > s->pool_up[h->pool];
}

/* The domain this helper should take from: the higher priority; at equal priority its own and
 * the pool's in turn. -1: both are empty. */
static int domain_for(shmi_schedule_t *s, int helper) {
  helper_t *h = &s->helpers[helper];
  uint8_t pool = s->domains[h->pool].ready;
  uint8_t bound = s->domains[s->config.pools + helper].ready;
  if ((pool | bound) == 0) return -1;
  if (bound == 0) return h->pool;
  if (pool == 0) return s->config.pools + helper;
  int top_pool = 31 - __builtin_clz(pool), top_bound = 31 - __builtin_clz(bound);
  if (top_pool != top_bound) return top_pool > top_bound ? h->pool : s->config.pools + helper;
  h->pool_first ^= 1;
  return h->pool_first ? h->pool : s->config.pools + helper;
}

/* The helper that should get the next messages: it has credit, has something to take, and holds
 * least. A run of short messages stays with one helper. */
static int choose_helper(shmi_schedule_t *s) {
  if (s->run_left > 0) {
    int h = s->run_helper;
    if (has_credit(s, h) &&
        (s->domains[s->helpers[h].pool].ready | s->domains[s->config.pools + h].ready) != 0) {
      return h;
    }
    s->run_left = 0;
  }
  int best = -1;
  for (int h = 0; h < s->config.helpers; h++) {
    const helper_t *candidate = &s->helpers[h];
    if ((s->domains[candidate->pool].ready | s->domains[s->config.pools + h].ready) == 0) continue;
    if (!has_credit(s, h)) continue;
    if (best < 0 || candidate->outstanding_ns < s->helpers[best].outstanding_ns ||
        (candidate->outstanding_ns == s->helpers[best].outstanding_ns &&
         candidate->in_flight < s->helpers[best].in_flight)) {
      best = h;
    }
  }
  return best;
}

static uint32_t take_head(shmi_schedule_t *s, int domain, int priority, uint32_t child) {
  uint32_t number = queue_of(s, domain, priority, child)->head;
  unlink_request(s, number);
  turn_taken(s, domain, priority, child);
  return number;
}

static int is_expired(const shmi_request_t *r, uint64_t now_ns) {
  return r->frame.deadline_ns != 0 && r->frame.deadline_ns <= now_ns;
}

static void set_aside(shmi_schedule_t *s, uint32_t number) {
  s->requests[number].state = EXPIRED;
  s->requests[number].next = s->expired;
  s->expired = number;
}

/* Company for the request in out[0]: one message a child and round, while it has the same key
 * and fits. Visits are bounded, so a crowd with other keys costs no more than a full batch. */
static int gather(shmi_schedule_t *s, int domain, int priority, uint64_t now_ns, uint32_t out[],
                  int max) {
  const shmi_request_t *first = &s->requests[out[0]];
  uint64_t rows = first->frame.rows, limit = first->function->batch_max_rows;
  uint64_t key = first->frame.batch_key;
  int count = 1;
  ring_t *ring = &s->domains[domain].rings[priority];
  uint64_t visits = limit * VISITS_PER_ROW + VISITS_AT_LEAST;
  uint32_t child = ring->cursor, missed = 0; /* the first of the children passed over in a row */
  while (child != 0 && child != missed && count < max && rows < limit && visits-- > 0) {
    queue_t *q = queue_of(s, domain, priority, child - 1);
    uint32_t number = q->head, following = q->ring_next;
    const shmi_request_t *r = &s->requests[number];
    if (r->frame.batch_key == key && r->function == first->function &&
        rows + r->frame.rows <= limit) {
      if (following == child && r->next == SHMI_NONE) following = 0; /* the ring ends here */
      unlink_request(s, number);
      missed = 0;
      if (is_expired(r, now_ns)) {
        set_aside(s, number);
      } else {
        rows += r->frame.rows;
        out[count++] = number;
        turn_used(s, domain, priority, child - 1);
      }
    } else if (missed == 0) {
      missed = child;
    }
    child = following;
  }
  return count;
}

int shmi_schedule_next(shmi_schedule_t *s, uint64_t now_ns, int *helper, uint32_t out[], int max) {
  holds_due(s, now_ns);
  for (;;) {
    if (s->queued == 0) return 0;
    int h = choose_helper(s);
    if (h < 0) return 0;
    int domain = domain_for(s, h);
    int priority = 31 - __builtin_clz(s->domains[domain].ready);
    uint32_t child = s->domains[domain].rings[priority].cursor - 1;
    uint32_t number = take_head(s, domain, priority, child);
    shmi_request_t *r = &s->requests[number];
    if (is_expired(r, now_ns)) {
      set_aside(s, number);
      continue;
    }
    out[0] = number;
    int count = 1;
    if (r->frame.batch_key != 0 && r->function->batch_max_rows > r->frame.rows) {
      count = gather(s, domain, priority, now_ns, out, max);
    }
    helper_t *to = &s->helpers[h];
    uint64_t estimate = estimate_of(s, r);
    for (int i = 0; i < count; i++) {
      shmi_request_t *taken = &s->requests[out[i]];
      /* The batch is one piece of work: its first message carries the estimate. */
      taken->estimate_ns = i == 0 ? estimate : 0;
      taken->helper = (uint8_t)h;
      taken->batch = (uint16_t)count;
      taken->handed_ns = now_ns;
      taken->attempts++;
    }
    to->in_flight += (uint32_t)count;
    to->outstanding_ns += estimate;
    if (s->run_left > 0 && s->run_helper == h) {
      s->run_left--;
    } else if (estimate * RUN < SHMI_CREDIT_BUDGET_NS) {
      s->run_helper = h;
      s->run_left = RUN - 1;
    }
    *helper = h;
    return count;
  }
}

static void set_aside_gang(shmi_schedule_t *s, uint32_t number) {
  gang_unlink(s, number);
  set_aside(s, number);
}

uint32_t shmi_schedule_next_gang(shmi_schedule_t *s, uint64_t now_ns) {
  while (s->gang_head != SHMI_NONE && is_expired(&s->requests[s->gang_head], now_ns)) {
    set_aside_gang(s, s->gang_head);
  }
  uint32_t number = s->gang_head;
  if (number == SHMI_NONE) return SHMI_NONE;
  shmi_request_t *r = &s->requests[number];
  uint64_t mask = r->frame.placement, left = mask;
  s->gang_claims = 0; /* the claim keeps others off, not the gang itself */
  int ready = 1;
  while (left != 0 && ready) {
    ready = has_credit(s, __builtin_ctzll(left));
    left &= left - 1;
  }
  if (!ready) {
    if (now_ns - r->queued_ns >= SHMI_GANG_AGE_NS) s->gang_claims = mask;
    return SHMI_NONE;
  }
  gang_unlink(s, number);
  r->members = mask;
  r->gang_status = SHM_OK;
  r->gang_value = 0;
  r->estimate_ns = estimate_of(s, r);
  r->handed_ns = now_ns;
  r->helper = (uint8_t)__builtin_ctzll(mask);
  r->batch = 1;
  r->attempts++;
  for (left = mask; left != 0; left &= left - 1) {
    helper_t *member = &s->helpers[__builtin_ctzll(left)];
    member->in_flight++;
    member->outstanding_ns += r->estimate_ns;
  }
  return number;
}

uint32_t shmi_schedule_take_expired(shmi_schedule_t *s) {
  uint32_t number = s->expired;
  if (number != SHMI_NONE) {
    s->expired = s->requests[number].next;
    s->requests[number].state = TAKEN;
  }
  return number;
}

/* ---- ending ---- */

static void give_back(shmi_schedule_t *s, const shmi_request_t *r, int helper) {
  helper_t *h = &s->helpers[helper];
  h->in_flight--;
  h->outstanding_ns -= r->estimate_ns < h->outstanding_ns ? r->estimate_ns : h->outstanding_ns;
  if (h->in_flight == 0) h->outstanding_ns = 0;
}

/* A running mean over about eight calls that believes a longer one at once by half: being wrong
 * about a long call is what makes others wait. */
static void learn(uint64_t *mean_ns, uint64_t ns) {
  if (*mean_ns == 0) *mean_ns = ns;
  else if (ns > *mean_ns) *mean_ns += (ns - *mean_ns) / 2;
  else *mean_ns -= (*mean_ns - ns) / 8;
}

void shmi_schedule_finished(shmi_schedule_t *s, uint32_t number, uint64_t service_ns) {
  shmi_request_t *r = &s->requests[number];
  give_back(s, r, r->helper);
  if (service_ns == 0 || r->estimate_ns == 0) return;
  uint64_t *estimate = &s->estimates[r->function->index];
  learn(estimate, service_ns);
  if (*estimate == 0) *estimate = 1;
}

void shmi_schedule_went_on(shmi_schedule_t *s, uint32_t function_index, uint64_t more_ns) {
  learn(&s->more[function_index], more_ns);
}

int shmi_schedule_gang_finished(shmi_schedule_t *s, uint32_t number, int helper) {
  shmi_request_t *r = &s->requests[number];
  give_back(s, r, helper);
  r->members &= ~(UINT64_C(1) << helper);
  return __builtin_popcountll(r->members);
}

int shmi_schedule_requeue(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  int domain = place(s, &r->frame);
  give_back(s, r, r->helper);
  if (domain < 0) return 0;
  r->domain = (uint8_t)domain;
  r->helper = SHM_NO_HELPER;
  r->batch = 1;
  link_request(s, number, 1);
  return 1;
}

/* ---- taking out ---- */

static void take_out(shmi_schedule_t *s, uint32_t number) {
  if (s->requests[number].state == HELD) hold_unlink(s, number);
  else if (s->requests[number].state == GANGED) gang_unlink(s, number);
  else unlink_request(s, number);
}

/* Among the messages that are held, and the gangs. */
static uint32_t find_held(const shmi_schedule_t *s, int child, int by_sequence, uint64_t sequence) {
  for (int i = 0; i < HOLDS && s->holds_used > 0; i++) {
    if (!s->holds[i].used) continue;
    for (uint32_t n = s->holds[i].head; n != SHMI_NONE; n = s->requests[n].next) {
      const shmi_frame_t *frame = &s->requests[n].frame;
      if (frame->slot == child && (!by_sequence || frame->sequence == sequence)) return n;
    }
  }
  for (uint32_t n = s->gang_head; n != SHMI_NONE; n = s->requests[n].next) {
    const shmi_frame_t *frame = &s->requests[n].frame;
    if (frame->slot == child && (!by_sequence || frame->sequence == sequence)) return n;
  }
  return SHMI_NONE;
}

uint32_t shmi_schedule_cancel(shmi_schedule_t *s, int child, uint64_t sequence) {
  if (s->queued_of[child] == 0) return SHMI_NONE;
  for (int domain = 0; domain < s->config.pools + s->config.helpers; domain++) {
    if (s->domains[domain].queued == 0) continue;
    for (int priority = 0; priority < SHMI_PRIORITIES; priority++) {
      uint32_t n = queue_of(s, domain, priority, (uint32_t)child)->head;
      while (n != SHMI_NONE && s->requests[n].frame.sequence != sequence) n = s->requests[n].next;
      if (n != SHMI_NONE) {
        take_out(s, n);
        return n;
      }
    }
  }
  uint32_t held = find_held(s, child, 1, sequence);
  if (held != SHMI_NONE) take_out(s, held);
  return held;
}

uint32_t shmi_schedule_drop_child(shmi_schedule_t *s, int child) {
  if (s->queued_of[child] == 0) return SHMI_NONE;
  uint32_t found = find_held(s, child, 0, 0);
  for (int domain = 0; found == SHMI_NONE && domain < s->config.pools + s->config.helpers;
       domain++) {
    for (int priority = 0; found == SHMI_NONE && priority < SHMI_PRIORITIES; priority++) {
      found = queue_of(s, domain, priority, (uint32_t)child)->head;
    }
  }
  if (found != SHMI_NONE) take_out(s, found);
  return found;
}

static uint32_t take_out_of_domain(shmi_schedule_t *s, int domain) {
  uint32_t number = SHMI_NONE;
  for (int i = 0; i < HOLDS && s->holds_used > 0 && number == SHMI_NONE; i++) {
    if (s->holds[i].used && s->holds[i].domain == domain) number = s->holds[i].head;
  }
  if (number == SHMI_NONE && s->domains[domain].ready != 0) {
    int priority = 31 - __builtin_clz(s->domains[domain].ready);
    uint32_t child = s->domains[domain].rings[priority].cursor - 1;
    number = queue_of(s, domain, priority, child)->head;
  }
  if (number != SHMI_NONE) take_out(s, number);
  return number;
}

/* One that the helper alone would have run. What others may run as well waits for them now. */
static uint32_t take_out_of_helper(shmi_schedule_t *s, int helper) {
  uint32_t number;
  while ((number = take_out_of_domain(s, s->config.pools + helper)) != SHMI_NONE) {
    shmi_request_t *r = &s->requests[number];
    int domain = place(s, &r->frame);
    if (domain < 0) break;
    r->domain = (uint8_t)domain;
    link_request(s, number, 0);
  }
  return number;
}

uint32_t shmi_schedule_drop_helper(shmi_schedule_t *s, int helper, int pool_too) {
  shmi_schedule_expect_helper(s, helper, 0);
  for (uint32_t n = s->gang_head; n != SHMI_NONE; n = s->requests[n].next) {
    if ((s->requests[n].frame.placement >> helper & 1) != 0) {
      gang_unlink(s, n);
      return n;
    }
  }
  uint32_t number = take_out_of_helper(s, helper);
  if (number == SHMI_NONE && pool_too) number = take_out_of_domain(s, s->helpers[helper].pool);
  return number;
}

/* ---- helpers, weights, figures ---- */

void shmi_schedule_helper_up(shmi_schedule_t *s, int helper) {
  if (!s->helpers[helper].up) s->pool_up[s->helpers[helper].pool]++;
  s->helpers[helper].up = 1;
}

void shmi_schedule_expect_helper(shmi_schedule_t *s, int helper, int on) {
  uint64_t bit = UINT64_C(1) << helper;
  s->expected = on ? s->expected | bit : s->expected & ~bit;
}

uint64_t shmi_schedule_expected(const shmi_schedule_t *s) { return s->expected; }

void shmi_schedule_helper_down(shmi_schedule_t *s, int helper) {
  if (s->helpers[helper].up) s->pool_up[s->helpers[helper].pool]--;
  s->helpers[helper].up = 0;
  if (s->run_helper == helper) s->run_left = 0;
}

void shmi_schedule_spare_helper(shmi_schedule_t *s, int helper, int on) {
  uint64_t bit = UINT64_C(1) << helper;
  s->spared = on ? s->spared | bit : s->spared & ~bit;
}

void shmi_schedule_set_weight(shmi_schedule_t *s, int child, uint32_t weight) {
  s->weights[child] = weight > 0 ? weight : 1;
}

uint64_t shmi_schedule_next_timer(const shmi_schedule_t *s) { return s->hold_timer; }
uint32_t shmi_schedule_queued(const shmi_schedule_t *s) { return s->queued; }
uint32_t shmi_schedule_queued_of(const shmi_schedule_t *s, int child) {
  return s->queued_of[child];
}
uint32_t shmi_schedule_in_flight(const shmi_schedule_t *s, int helper) {
  return s->helpers[helper].in_flight;
}
uint64_t shmi_schedule_estimate(const shmi_schedule_t *s, uint32_t function_index) {
  return s->estimates[function_index] + s->more[function_index];
}
