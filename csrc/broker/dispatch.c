/* dispatch -- see dispatch.h. */
#include "broker/dispatch_internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "ipc/function_table.h"
#include "ipc/pipe.h"

enum {
  EVENTS = 256,      /* children served per turn; the rest stay ready for the next */
  LATE_NS = 10000000 /* until what was not available is tried again */
};

static int64_t shorter(int64_t timeout_ns, uint64_t at_ns, uint64_t now_ns) {
  if (at_ns == 0) return timeout_ns;
  int64_t left = at_ns > now_ns ? (int64_t)(at_ns - now_ns) : 0;
  return timeout_ns < 0 || left < timeout_ns ? left : timeout_ns;
}

typedef struct glance {
  shmi_poll_set_t *set;
  struct epoll_event *events;
  const sigset_t *mask;
  int ready;
} glance_t;

static int has_come(void *glance) {
  glance_t *g = glance;
  g->ready = shmi_poll_set_wait(g->set, g->events, EVENTS, 0, g->mask);
  return g->ready != 0;
}

/* As shmi_poll_set_wait(). Whoever watched for the last answer, and was alone, may soon call again,
 * and would have to wake this process. Not so who sleeps, or does other things until an answer comes: a
 * server's worker, whose next call is its client's, and who needs the core. */
static int await_events(shmi_dispatch_t *d, struct epoll_event *events, int64_t timeout_ns,
                        const sigset_t *mask) {
  if (!d->is_quiet || (timeout_ns >= 0 && timeout_ns < SHMI_SPIN_FOR_NEXT_NS)) {
    return shmi_poll_set_wait(&d->poll_set, events, EVENTS, timeout_ns, mask);
  }
  glance_t glance = {.set = &d->poll_set, .events = events, .mask = mask};
  uint64_t began_ns = shmi_clock_ns();
  if (!shmi_spin(&d->spin, 1, has_come, &glance)) {
    glance.ready = shmi_poll_set_wait(&d->poll_set, events, EVENTS, timeout_ns, mask);
  }
  shmi_spin_learn(&d->spin, shmi_clock_ns() - began_ns);
  return glance.ready;
}

int shmi_dispatch_turn(shmi_dispatch_t *d, int64_t timeout_ns, const sigset_t *mask) {
  /* While calls are held back, a batch that is due changes nothing. */
  uint64_t timer = d->holding ? 0 : shmi_schedule_next_timer(d->schedule);
  if (timer != 0) timeout_ns = shorter(timeout_ns, timer, shmi_clock_ns());
  if (d->flags != 0) timeout_ns = 0;
  /* A reply that did not fit is tried again soon; see write_replies. */
  if (d->dirty != 0) timeout_ns = shorter(timeout_ns, d->now_ns + 1000000, d->now_ns);
  if (d->is_late) timeout_ns = shorter(timeout_ns, d->now_ns + LATE_NS, d->now_ns);
  d->is_late = 0;
  if (d->holding_several != 0) timeout_ns = shorter(timeout_ns, d->look_ns, d->now_ns);
  if (d->gangs > 0) timeout_ns = shorter(timeout_ns, d->gang_look_ns, d->now_ns);
  struct epoll_event events[EVENTS];
  int ready = await_events(d, events, timeout_ns, mask);
  if (ready < 0 && errno != EINTR) return SHM_ESYSTEM;
  d->scoreboard->broker->wakes++;
  d->now_ns = shmi_clock_ns();
  int flags = ready < 0 ? SHMI_TURN_SIGNAL : 0;
  if (ready > 0) SHMI_FAULT(BEFORE_READ);
  for (int i = 0; i < ready; i++) {
    int index = shmi_poll_index(&events[i]), at_end = shmi_poll_at_end(&events[i]);
    switch ((enum shmi_watched)shmi_poll_kind(&events[i])) {
      case SHMI_WATCHED_CHILD:
        shmi_dispatch_read_child(d, index, at_end);
        break;
      case SHMI_WATCHED_HELPER:
        shmi_dispatch_read_helper(d, index, at_end);
        break;
      case SHMI_WATCHED_SUPERVISOR:
        flags |= SHMI_TURN_SUPERVISOR;
        break;
      case SHMI_WATCHED_ROOM: /* what waits for it is written with all the rest */
        break;
    }
  }
  if (d->holding_several != 0 && d->now_ns >= d->look_ns) {
    d->look_ns = d->now_ns + SHMI_LOOK_NS;
    shmi_dispatch_look_at_pages(d);
  }
  if (d->gangs > 0 && d->now_ns >= d->gang_look_ns) {
    d->gang_look_ns = d->now_ns + SHMI_GANG_LOOK_NS;
    shmi_dispatch_look_at_gangs(d);
  }
  if (shmi_schedule_queued(d->schedule) > 0) SHMI_FAULT(IN_FUNCTION);
  shmi_dispatch_hand_out(d);
  if (d->dirty != 0) SHMI_FAULT(BEFORE_REPLY);
  d->is_quiet = d->is_watched && d->dirty != 0 && shmi_scoreboard_calls_out() == 0;
  shmi_dispatch_flush_replies(d);
  if (d->retiring != 0) shmi_dispatch_close_retired(d);
  if (ready > 0) SHMI_FAULT(AFTER_REPLY);
  d->scoreboard->broker->queued = shmi_schedule_queued(d->schedule);
  flags |= d->flags;
  d->flags = 0;
  return flags;
}

void shmi_dispatch_hold(shmi_dispatch_t *d, int on) {
  if (d->holding == on) return;
  d->holding = on;
  if (on) return;
  d->now_ns = shmi_clock_ns();
  shmi_dispatch_hand_out(d);
  shmi_dispatch_flush_replies(d);
}

int shmi_dispatch_pause_pool(shmi_dispatch_t *d, int pool, int on) {
  uint32_t *paused = &d->scoreboard->broker->paused_pools, bit = UINT32_C(1) << pool;
  if (((*paused & bit) != 0) == (on != 0)) return 0;
  *paused ^= bit;
  shmi_schedule_pause_pool(d->schedule, pool, on);
  if (on) return 1;
  d->now_ns = shmi_clock_ns();
  shmi_dispatch_hand_out(d);
  shmi_dispatch_flush_replies(d);
  return 1;
}

/* A reply that could not be written belongs to a child whose pipe is full, so it counts as
 * unread. */
int shmi_dispatch_is_drained(const shmi_dispatch_t *d) {
  for (int h = 0; h < d->config.helpers; h++) {
    if (d->helpers[h].in_flight > 0 || d->helpers[h].grow_head != SHMI_NONE) return 0;
  }
  for (int slot = 0; slot < d->config.children; slot++) {
    const shmi_child_t *child = &d->children[slot];
    if (child->state != SHMI_PEER_UP) continue;
    if (child->parked > 0 || shmi_pipe_unread(child->reply_fd) > 0) return 0;
  }
  return 1;
}

int shmi_dispatch_create(shmi_dispatch_t **out, const shmi_dispatch_config_t *config) {
  shmi_dispatch_t *d = calloc(1, sizeof *d);
  if (d == NULL) return SHM_ESYSTEM;
  d->config = *config;
  d->scoreboard = shmi_scoreboard();
  for (uint32_t i = 0; i < shmi_function_table_count(); i++) {
    uint64_t hang_ns = shmi_function_table_row(i)->hang_after_ns;
    if (hang_ns > 0 && (d->least_hang_ns == 0 || hang_ns < d->least_hang_ns)) {
      d->least_hang_ns = hang_ns;
    }
  }
  shmi_spin_open(&d->spin, SHMI_SPIN_FOR_NEXT_NS);
  int opened = shmi_poll_set_open(&d->poll_set);
  d->children = calloc((size_t)config->children, sizeof *d->children);
  d->helpers = calloc((size_t)config->helpers, sizeof *d->helpers);
  shmi_schedule_config_t policy = {.children = config->children,
                                   .helpers = config->helpers,
                                   .pools = config->pools,
                                   .window = config->window,
                                   .helper_pool = config->helper_pool,
                                   .min_credit = config->min_credit,
                                   .by_deadline = config->by_deadline};
  int status = opened == SHM_OK && d->children != NULL && d->helpers != NULL
                   ? shmi_schedule_create(&d->schedule, &policy)
                   : SHM_ESYSTEM;
  if (status == SHM_OK) status = shmi_broadcasts_create(&d->broadcasts);
  for (int i = 0; d->children != NULL && i < config->children; i++) {
    d->children[i].request_fd = d->children[i].reply_fd = -1;
  }
  for (int h = 0; d->helpers != NULL && h < config->helpers; h++) {
    d->helpers[h].down_fd = d->helpers[h].up_fd = d->helpers[h].files_fd = -1;
    if (config->helper_absent == NULL || !config->helper_absent[h]) continue;
    if (status == SHM_OK) shmi_schedule_expect_helper(d->schedule, h, 0);
    d->scoreboard->helper_stats[h].state = SHM_HELPER_ABSENT;
    d->scoreboard->helper_stats[h].pool = config->helper_pool[h];
  }
  if (status == SHM_OK) { /* reported as long as it is readable: some of it may be left for later */
    status = shmi_poll_set_add(&d->poll_set, config->supervisor_fd, SHMI_POLL_READABLE,
                               SHMI_WATCHED_SUPERVISOR, 0);
  }
  if (status != SHM_OK) {
    shmi_dispatch_destroy(d);
    return status;
  }
  *out = d;
  return SHM_OK;
}

void shmi_dispatch_destroy(shmi_dispatch_t *d) {
  if (d == NULL) return;
  for (int i = 0; d->children != NULL && i < d->config.children; i++) {
    shmi_descriptor_close(&d->children[i].request_fd);
    shmi_descriptor_close(&d->children[i].reply_fd);
  }
  for (int h = 0; d->helpers != NULL && h < d->config.helpers; h++) {
    shmi_descriptor_close(&d->helpers[h].down_fd);
    shmi_descriptor_close(&d->helpers[h].up_fd);
    shmi_descriptor_close(&d->helpers[h].files_fd);
  }
  shmi_poll_set_close(&d->poll_set);
  shmi_schedule_destroy(d->schedule);
  shmi_broadcasts_destroy(d->broadcasts);
  free(d->children);
  free(d->helpers);
  free(d);
}
