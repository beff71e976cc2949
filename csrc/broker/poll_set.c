/* poll_set -- see poll_set.h. */
#include "broker/poll_set.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"

int shmi_poll_set_open(shmi_poll_set_t *set) {
  set->coarse_waits = 0;
  set->fd = shmi_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
  return set->fd >= 0 ? SHM_OK : SHM_ESYSTEM;
}

void shmi_poll_set_close(shmi_poll_set_t *set) { shmi_descriptor_close(&set->fd); }

static struct epoll_event event_of(enum shmi_poll_when when, int kind, int index) {
  return (struct epoll_event){.events = (uint32_t)when,
                              .data = {.u64 = (uint64_t)(uint32_t)kind << 32 | (uint32_t)index}};
}

int shmi_poll_set_add(const shmi_poll_set_t *set, int fd, enum shmi_poll_when when, int kind,
                      int index) {
  struct epoll_event event = event_of(when, kind, index);
  return epoll_ctl(set->fd, EPOLL_CTL_ADD, fd, &event) == 0 ? SHM_OK : SHM_ESYSTEM;
}

void shmi_poll_set_rearm(const shmi_poll_set_t *set, int fd, enum shmi_poll_when when, int kind,
                         int index) {
  struct epoll_event event = event_of(when, kind, index);
  epoll_ctl(set->fd, EPOLL_CTL_MOD, fd, &event);
}

void shmi_poll_set_remove(const shmi_poll_set_t *set, int fd) {
  epoll_ctl(set->fd, EPOLL_CTL_DEL, fd, NULL);
}

void shmi_poll_set_remove_and_close(const shmi_poll_set_t *set, int *fd) {
  shmi_poll_set_remove(set, *fd);
  shmi_descriptor_close(fd);
}

int shmi_poll_set_wait(shmi_poll_set_t *set, struct epoll_event *events, int most,
                       int64_t timeout_ns, const sigset_t *mask) {
#ifdef SYS_epoll_pwait2 /* time-outs in nanoseconds (Linux 5.11) */
  if (timeout_ns > 0 && !set->coarse_waits) {
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000,
                             .tv_nsec = timeout_ns % 1000000000};
    long got = syscall(SYS_epoll_pwait2, set->fd, events, most, &limit, mask,
                       mask != NULL ? _NSIG / 8 : 0);
    /* A container's filter that does not know the call refuses it with EPERM. */
    if (got >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)got;
    set->coarse_waits = 1;
  }
#endif
  int64_t timeout_ms = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
  return epoll_pwait(set->fd, events, most, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms,
                     mask);
}
