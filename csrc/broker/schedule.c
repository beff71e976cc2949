/* schedule -- requests enter, are chosen for a helper, alone or gathered into a batch, and are taken
 * out again. See schedule.h, and schedule_internal.h for the other files and the structures. */
#include "broker/schedule_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { VISITS_PER_ROW = 2, VISITS_AT_LEAST = 32, RUN = 16 };

static void *reserve(size_t bytes) {
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

int shmi_schedule_create(shmi_schedule_t **out, const shmi_schedule_config_t *config) {
  shmi_schedule_t *s = reserve(sizeof *s);
  if (s == NULL) return SHM_ESYSTEM;
  s->config = *config;
  /* Children may use all of theirs and wait for broadcasts: those run by requests of the dispatcher
   * itself, one a helper, and one of each pool may outlive the child that sent it. */
  s->capacity = (uint32_t)config->children * config->window +
                (uint32_t)(config->helpers + config->pools);
  s->requests_bytes = ((size_t)s->capacity + 1) * sizeof *s->requests;
  s->queues_bytes = (size_t)(config->pools + config->helpers + 1) * SHMI_PRIORITIES *
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

/* ---- entering ---- */

int shmi_domain_of(const shmi_schedule_t *s, const shmi_frame_t *frame) {
  if ((frame->flags & SHMI_FRAME_GANG) != 0) {
    return (frame->placement & ~s->expected) == 0 ? shmi_gang_domain(s) : -1;
  }
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
  r->ticket = 0;
  r->attempts = 0;
  r->batch = 1;
  r->helper = SHM_NO_HELPER;
  r->hold = 0;
  r->state = SHMI_REQUEST_TAKEN;
  r->next = r->previous = SHMI_NONE;
  return number;
}

uint32_t shmi_schedule_enqueue(shmi_schedule_t *s, const shmi_frame_t *frame,
                               const shmi_function_t *function, uint64_t now_ns) {
  uint32_t number = shmi_schedule_admit(s, frame, now_ns);
  if (number == SHMI_NONE || shmi_schedule_put(s, number, function, now_ns)) return number;
  shmi_schedule_free(s, number);
  return SHMI_NONE;
}

int shmi_schedule_put(shmi_schedule_t *s, uint32_t number, const shmi_function_t *function,
                      uint64_t now_ns) {
  shmi_request_t *r = &s->requests[number];
  const shmi_frame_t *frame = &r->frame;
  r->function = function;
  int domain = shmi_domain_of(s, frame);
  if (domain < 0) return 0;
  r->domain = (uint8_t)domain;
  if (function->batch_delay_ns > 0 && frame->batch_key != 0 && function->batch_max_rows > 0 &&
      frame->rows < function->batch_max_rows && !shmi_request_is_gang(r) &&
      shmi_hold_put(s, number, now_ns)) {
    return 1;
  }
  shmi_queue_put(s, number, 0);
  return 1;
}

void shmi_schedule_free(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  r->state = SHMI_REQUEST_FREE;
  r->next = s->free_list;
  s->free_list = number;
}

/* ---- choosing ---- */

/* The domain this helper should take from: the higher priority; at equal priority its own and
 * the pool's in turn. -1: both are empty. */
static int domain_for(shmi_schedule_t *s, int helper) {
  shmi_load_t *h = &s->helpers[helper];
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

/* Something waits that this helper may take, and it has credit. */
static int may_take(const shmi_schedule_t *s, int helper) {
  int urgency = shmi_most_urgent(s, helper);
  return urgency >= 0 && urgency >= s->helpers[helper].kept_above && shmi_credit_allows(s, helper);
}

/* The helper that should get the next messages: it has credit, has something to take, and holds
 * least. A run of short messages stays with one helper. */
static int choose_helper(shmi_schedule_t *s) {
  if (s->run_left > 0) {
    if (may_take(s, s->run_helper)) return s->run_helper;
    s->run_left = 0;
  }
  int best = -1;
  for (int h = 0; h < s->config.helpers; h++) {
    const shmi_load_t *candidate = &s->helpers[h];
    if (!may_take(s, h)) continue;
    if (best < 0 || candidate->outstanding_ns < s->helpers[best].outstanding_ns ||
        (candidate->outstanding_ns == s->helpers[best].outstanding_ns &&
         candidate->in_flight < s->helpers[best].in_flight)) {
      best = h;
    }
  }
  return best;
}

/* Form a batch around the request in out[0]: add queued messages with the same key that fit, one
 * for each child and round. Visits are bounded, so many messages with other keys cost no more than
 * a full batch. Returns how many messages it has. */
static int gather(shmi_schedule_t *s, int domain, int priority, uint64_t now_ns, uint32_t out[],
                  int max) {
  const shmi_request_t *first = &s->requests[out[0]];
  uint64_t rows = first->frame.rows, limit = first->function->batch_max_rows;
  uint64_t key = first->frame.batch_key;
  int count = 1;
  shmi_ring_t *ring = &s->domains[domain].rings[priority];
  uint64_t visits = limit * VISITS_PER_ROW + VISITS_AT_LEAST;
  uint32_t child = ring->cursor, missed = 0; /* the first of the children passed over in a row */
  while (child != 0 && child != missed && count < max && rows < limit && visits-- > 0) {
    shmi_queue_t *q = shmi_queue_of(s, domain, priority, child - 1);
    uint32_t number = q->head, following = q->ring_next;
    const shmi_request_t *r = &s->requests[number];
    if (r->frame.batch_key == key && r->function == first->function &&
        rows + r->frame.rows <= limit) {
      if (following == child && r->next == SHMI_NONE) following = 0; /* the ring ends here */
      shmi_queue_remove(s, number);
      missed = 0;
      if (shmi_request_is_expired(r, now_ns)) {
        shmi_set_aside(s, number);
      } else {
        rows += r->frame.rows;
        out[count++] = number;
        shmi_queue_use_turn(s, domain, priority, child - 1);
      }
    } else if (missed == 0) {
      missed = child;
    }
    child = following;
  }
  return count;
}

int shmi_schedule_next(shmi_schedule_t *s, uint64_t now_ns, int *helper, uint32_t out[], int max) {
  if (s->hold_timer != 0 && now_ns >= s->hold_timer) shmi_hold_release_due(s, now_ns);
  for (;;) {
    if (s->queued == 0) return 0;
    int h = choose_helper(s);
    if (h < 0) return 0;
    int domain = domain_for(s, h);
    int priority = 31 - __builtin_clz(s->domains[domain].ready);
    uint32_t child = shmi_queue_next_child(s, domain, priority);
    uint32_t number = shmi_queue_take_head(s, domain, priority, child);
    shmi_request_t *r = &s->requests[number];
    if (shmi_request_is_expired(r, now_ns)) {
      shmi_set_aside(s, number);
      continue;
    }
    out[0] = number;
    int count = 1;
    if (r->frame.batch_key != 0 && r->function->batch_max_rows > r->frame.rows) {
      count = gather(s, domain, priority, now_ns, out, max);
    }
    shmi_load_t *to = &s->helpers[h];
    uint64_t estimate = shmi_credit_estimate(s, r);
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
    s->owing &= ~(UINT64_C(1) << h);
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

uint32_t shmi_schedule_take_expired(shmi_schedule_t *s) {
  uint32_t number = s->expired;
  if (number != SHMI_NONE) {
    s->expired = s->requests[number].next;
    s->requests[number].state = SHMI_REQUEST_TAKEN;
  }
  return number;
}

/* ---- ending ---- */

int shmi_schedule_requeue(shmi_schedule_t *s, uint32_t number) {
  shmi_request_t *r = &s->requests[number];
  int domain = shmi_domain_of(s, &r->frame);
  shmi_credit_return(s, r, r->helper);
  if (domain < 0) return 0;
  r->domain = (uint8_t)domain;
  r->helper = SHM_NO_HELPER;
  r->batch = 1;
  shmi_queue_put(s, number, 1);
  return 1;
}

/* ---- taking out ---- */

void shmi_take_out(shmi_schedule_t *s, uint32_t number) {
  if (s->requests[number].state == SHMI_REQUEST_HELD) shmi_hold_remove(s, number);
  else shmi_queue_remove(s, number);
}

/* Among the messages that are held. */
static uint32_t find_held(const shmi_schedule_t *s, int child, int by_sequence, uint64_t sequence) {
  for (int i = 0; i < SHMI_HOLDS && s->holds_used > 0; i++) {
    if (!s->holds[i].used) continue;
    for (uint32_t n = s->holds[i].head; n != SHMI_NONE; n = s->requests[n].next) {
      const shmi_frame_t *frame = &s->requests[n].frame;
      if (frame->slot == child && (!by_sequence || frame->sequence == sequence)) return n;
    }
  }
  return SHMI_NONE;
}

uint32_t shmi_schedule_cancel(shmi_schedule_t *s, int child, uint64_t sequence) {
  if (s->queued_of[child] == 0) return SHMI_NONE;
  for (int domain = 0; domain <= shmi_gang_domain(s); domain++) {
    if (s->domains[domain].queued == 0) continue;
    for (int priority = 0; priority < SHMI_PRIORITIES; priority++) {
      uint32_t n = shmi_queue_of(s, domain, priority, (uint32_t)child)->head;
      while (n != SHMI_NONE && s->requests[n].frame.sequence != sequence) n = s->requests[n].next;
      if (n != SHMI_NONE) {
        shmi_take_out(s, n);
        return n;
      }
    }
  }
  uint32_t held = find_held(s, child, 1, sequence);
  if (held != SHMI_NONE) shmi_take_out(s, held);
  return held;
}

uint32_t shmi_schedule_drop_child(shmi_schedule_t *s, int child) {
  if (s->queued_of[child] == 0) return SHMI_NONE;
  uint32_t found = find_held(s, child, 0, 0);
  for (int domain = 0; found == SHMI_NONE && domain <= shmi_gang_domain(s); domain++) {
    for (int priority = 0; found == SHMI_NONE && priority < SHMI_PRIORITIES; priority++) {
      found = shmi_queue_of(s, domain, priority, (uint32_t)child)->head;
    }
  }
  if (found != SHMI_NONE) shmi_take_out(s, found);
  return found;
}

static uint32_t take_out_of_domain(shmi_schedule_t *s, int domain) {
  uint32_t number = SHMI_NONE;
  for (int i = 0; i < SHMI_HOLDS && s->holds_used > 0 && number == SHMI_NONE; i++) {
    if (s->holds[i].used && s->holds[i].domain == domain) number = s->holds[i].head;
  }
  if (number == SHMI_NONE && s->domains[domain].ready != 0) {
    int priority = 31 - __builtin_clz(s->domains[domain].ready);
    uint32_t child = s->domains[domain].rings[priority].cursor - 1;
    number = shmi_queue_of(s, domain, priority, child)->head;
  }
  if (number != SHMI_NONE) shmi_take_out(s, number);
  return number;
}

/* Take out a message that only this helper could run. Messages that others may run, too, are queued
 * for those. */
static uint32_t take_out_of_helper(shmi_schedule_t *s, int helper) {
  uint32_t number;
  while ((number = take_out_of_domain(s, s->config.pools + helper)) != SHMI_NONE) {
    shmi_request_t *r = &s->requests[number];
    int domain = shmi_domain_of(s, &r->frame);
    if (domain < 0) break;
    r->domain = (uint8_t)domain;
    shmi_queue_put(s, number, 0);
  }
  return number;
}

uint32_t shmi_schedule_drop_helper(shmi_schedule_t *s, int helper, int pool_too) {
  shmi_schedule_expect_helper(s, helper, 0);
  uint32_t number = shmi_gang_take_out(s, helper);
  if (number == SHMI_NONE) number = take_out_of_helper(s, helper);
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
  shmi_gang_keep_none(s); /* gangs that need this helper cannot start now */
  if (s->run_helper == helper) s->run_left = 0;
}

void shmi_schedule_spare_helper(shmi_schedule_t *s, int helper, int on) {
  uint64_t bit = UINT64_C(1) << helper;
  s->spared = on ? s->spared | bit : s->spared & ~bit;
}

void shmi_schedule_pause_pool(shmi_schedule_t *s, int pool, int on) {
  for (int h = 0; h < s->config.helpers; h++) {
    uint64_t bit = UINT64_C(1) << h;
    if (s->helpers[h].pool == pool) s->paused = on ? s->paused | bit : s->paused & ~bit;
  }
  shmi_gang_keep_none(s); /* gangs that need these helpers cannot start now */
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
