/* dispatch -- see dispatch.h. */
#include "broker/dispatch_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "ipc/function_table.h"
#include "ipc/pipe.h"

enum {
  EVENTS = 256,      /* children served per turn; the rest stay ready for the next */
  LATE_NS = 10000000 /* until what could not be had is asked for again */
};

static struct epoll_event event_of(enum shmi_peer peer, int index) {
  /* Level-triggered for the supervisor, which may leave some of it for later. */
  return (struct epoll_event){.events = EPOLLIN | (peer == SHMI_PEER_IS_SUPERVISOR ? 0u : EPOLLET),
                              .data = {.u64 = (uint64_t)peer << 32 | (uint32_t)index}};
}

int shmi_dispatch_watch(shmi_dispatch_t *d, int fd, enum shmi_peer peer, int index) {
  struct epoll_event event = event_of(peer, index);
  return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? SHM_OK : SHM_ESYSTEM;
}

void shmi_dispatch_watch_anew(shmi_dispatch_t *d, int fd, enum shmi_peer peer, int index) {
  struct epoll_event event = event_of(peer, index);
  epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, fd, &event);
}

void shmi_dispatch_watch_room(shmi_dispatch_t *d, int h, int on) {
  shmi_helper_t *helper = &d->helpers[h];
  struct epoll_event event = {.events = EPOLLOUT | EPOLLET,
                              .data = {.u64 = (uint64_t)SHMI_PEER_HAS_ROOM << 32 | (uint32_t)h}};
  if (helper->is_blocked == on) return;
  epoll_ctl(d->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, helper->down_fd, &event);
  helper->is_blocked = (uint8_t)on;
}

void shmi_dispatch_unwatch(shmi_dispatch_t *d, int *fd) {
  epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
  shmi_descriptor_close(fd);
}

/* epoll_pwait with a time-out in nanoseconds where the kernel has it (Linux 5.11). */
static int wait_events(shmi_dispatch_t *d, struct epoll_event *events, int64_t timeout_ns,
                       const sigset_t *mask) {
#ifdef SYS_epoll_pwait2
  if (timeout_ns > 0 && !d->coarse_waits) {
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000,
                             .tv_nsec = timeout_ns % 1000000000};
    long got = syscall(SYS_epoll_pwait2, d->epoll_fd, events, EVENTS, &limit, mask,
                       mask != NULL ? _NSIG / 8 : 0);
    /* A container's filter that does not know the call refuses it with EPERM. */
    if (got >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)got;
    d->coarse_waits = 1;
  }
#endif
  int64_t timeout_ms = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
  return epoll_pwait(d->epoll_fd, events, EVENTS,
                     timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms, mask);
}

static int64_t shorter(int64_t timeout_ns, uint64_t at_ns, uint64_t now_ns) {
  if (at_ns == 0) return timeout_ns;
  int64_t left = at_ns > now_ns ? (int64_t)(at_ns - now_ns) : 0;
  return timeout_ns < 0 || left < timeout_ns ? left : timeout_ns;
}

int shmi_dispatch_turn(shmi_dispatch_t *d, int64_t timeout_ns, const sigset_t *mask) {
  /* While calls are held back nothing happens when a batch is due. */
  uint64_t timer = d->holding ? 0 : shmi_schedule_next_timer(d->schedule);
  if (timer != 0) timeout_ns = shorter(timeout_ns, timer, shmi_clock_ns());
  if (d->flags != 0) timeout_ns = 0;
  /* A reply that did not fit is tried again soon; see write_replies. */
  if (d->dirty != 0) timeout_ns = shorter(timeout_ns, d->now_ns + 1000000, d->now_ns);
  if (d->is_late) timeout_ns = shorter(timeout_ns, d->now_ns + LATE_NS, d->now_ns);
  d->is_late = 0;
  if (d->holding_several != 0) timeout_ns = shorter(timeout_ns, d->look_ns, d->now_ns);
  struct epoll_event events[EVENTS];
  int ready = wait_events(d, events, timeout_ns, mask);
  if (ready < 0 && errno != EINTR) return SHM_ESYSTEM;
  d->scoreboard->broker->wakes++;
  d->now_ns = shmi_clock_ns();
  int flags = ready < 0 ? SHMI_TURN_SIGNAL : 0;
  if (ready > 0) SHMI_FAULT(BEFORE_READ);
  for (int i = 0; i < ready; i++) {
    int index = (int)(uint32_t)events[i].data.u64;
    int at_end = (events[i].events & (EPOLLHUP | EPOLLERR)) != 0;
    switch ((enum shmi_peer)(events[i].data.u64 >> 32)) {
      case SHMI_PEER_IS_CHILD:
        shmi_dispatch_read_child(d, index, at_end);
        break;
      case SHMI_PEER_IS_HELPER:
        shmi_dispatch_read_helper(d, index, at_end);
        break;
      case SHMI_PEER_IS_SUPERVISOR:
        flags |= SHMI_TURN_SUPERVISOR;
        break;
      case SHMI_PEER_HAS_ROOM: /* what waits for it is written with all the rest */
        break;
    }
  }
  if (d->holding_several != 0 && d->now_ns >= d->look_ns) {
    d->look_ns = d->now_ns + SHMI_LOOK_NS;
    shmi_dispatch_look_at_pages(d);
  }
  if (shmi_schedule_queued(d->schedule) > 0) SHMI_FAULT(IN_FUNCTION);
  shmi_dispatch_hand_out(d);
  if (d->dirty != 0) SHMI_FAULT(BEFORE_REPLY);
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

/* A reply that could not be written is one of a child whose pipe is full. */
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
  d->epoll_fd = shmi_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
  d->children = calloc((size_t)config->children, sizeof *d->children);
  d->helpers = calloc((size_t)config->helpers, sizeof *d->helpers);
  shmi_schedule_config_t policy = {.children = config->children,
                                   .helpers = config->helpers,
                                   .pools = config->pools,
                                   .window = config->window,
                                   .helper_pool = config->helper_pool,
                                   .min_credit = config->min_credit};
  int status = d->epoll_fd >= 0 && d->children != NULL && d->helpers != NULL
                   ? shmi_schedule_create(&d->schedule, &policy)
                   : SHM_ESYSTEM;
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
  if (status == SHM_OK) status = shmi_dispatch_watch(d, config->supervisor_fd, SHMI_PEER_IS_SUPERVISOR, 0);
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
  shmi_descriptor_close(&d->epoll_fd);
  shmi_schedule_destroy(d->schedule);
  free(d->children);
  free(d->helpers);
  free(d);
}
