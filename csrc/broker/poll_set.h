/* poll_set -- one epoll set: descriptors that are watched, each with a tag that says whose it is.
 *
 * The dispatcher waits on one such set. The table of processes has a second one, for pidfds and
 * the listener, which the dispatcher watches as a single descriptor.
 *
 * Owns: the epoll descriptor. Must never: read or write what it watches, or know what a tag means.
 */
#ifndef SHMI_POLL_SET_H
#define SHMI_POLL_SET_H

#include <signal.h>
#include <sys/epoll.h>

#include "base/status.h"

typedef struct shmi_poll_set {
  int fd;           /* -1: closed */
  int coarse_waits; /* the kernel has no epoll_pwait2: waits are rounded up to milliseconds */
} shmi_poll_set_t;

/* When a descriptor is reported. */
enum shmi_poll_when {
  SHMI_POLL_READABLE = EPOLLIN,                  /* as long as there is something to read */
  SHMI_POLL_ARRIVALS = (int)(EPOLLIN | EPOLLET), /* once for what has arrived since the last report */
  SHMI_POLL_ROOM = (int)(EPOLLOUT | EPOLLET)     /* once, when a full pipe has been read from */
};

int shmi_poll_set_open(shmi_poll_set_t *set);
void shmi_poll_set_close(shmi_poll_set_t *set);

int shmi_poll_set_add(const shmi_poll_set_t *set, int fd, enum shmi_poll_when when, int kind,
                      int index);
/* Report fd again, although what it holds has been reported. */
void shmi_poll_set_rearm(const shmi_poll_set_t *set, int fd, enum shmi_poll_when when, int kind,
                         int index);
void shmi_poll_set_remove(const shmi_poll_set_t *set, int fd);
void shmi_poll_set_remove_and_close(const shmi_poll_set_t *set, int *fd);

/* Wait at most timeout_ns (< 0: no limit) with the signal mask given. Returns how many events were
 * filled in, or -1 with errno. */
int shmi_poll_set_wait(shmi_poll_set_t *set, struct epoll_event *events, int most,
                       int64_t timeout_ns, const sigset_t *mask);

static inline int shmi_poll_kind(const struct epoll_event *event) {
  return (int)(event->data.u64 >> 32);
}
static inline int shmi_poll_index(const struct epoll_event *event) {
  return (int)(uint32_t)event->data.u64;
}
/* The other end is closed. */
static inline int shmi_poll_at_end(const struct epoll_event *event) {
  return (event->events & (EPOLLHUP | EPOLLERR)) != 0;
}

#endif
