/* pipe -- see pipe.h. */
#include "ipc/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"

_Static_assert(SHMI_PIPE_BURST * SHM_FRAME_BYTES <= PIPE_BUF, "a burst is written atomically");

/* How many frames a pipe of so many bytes is sure to hold: one page less, because a page stays in use
 * until its last frame is read. */
static int frames_of(int bytes) {
  int page = (int)sysconf(_SC_PAGESIZE), pages = bytes / page;
  return (pages > 1 ? pages - 1 : 1) * (page / SHM_FRAME_BYTES);
}

int shmi_pipe_make(int ends[2], int nonblocking, int *capacity) {
  int made[2];
  if (pipe2(made, O_CLOEXEC) != 0) {
    shmi_error_detail_errno("making a pipe");
    return SHM_ESYSTEM;
  }
  ends[0] = shmi_descriptor_own(made[0]);
  ends[1] = shmi_descriptor_own(made[1]);
  int failed = ends[0] < 0 || ends[1] < 0;
  for (int end = 0; end < 2 && !failed; end++) {
    if ((nonblocking >> end & 1) != 0) failed = fcntl(ends[end], F_SETFL, O_NONBLOCK) != 0;
  }
  /* Beyond a user's soft limit of pipe pages the kernel makes smaller pipes. */
  int bytes = failed ? 0 : fcntl(ends[1], F_GETPIPE_SZ);
  if (failed || bytes <= 0) {
    int saved = errno;
    shmi_descriptor_close(&ends[0]);
    shmi_descriptor_close(&ends[1]);
    errno = saved;
    return SHM_ESYSTEM;
  }
  *capacity = frames_of(bytes);
  return SHM_OK;
}

int shmi_pipe_read(int fd, shmi_frame_t *frames, int max) {
  size_t got = 0;
  for (;;) {
    ssize_t n = read(fd, (char *)frames + got, (size_t)max * SHM_FRAME_BYTES - got);
    if (n > 0) {
      got += (size_t)n;
      if (got % SHM_FRAME_BYTES == 0) return (int)(got / SHM_FRAME_BYTES);
      continue; /* the rest of a frame is coming: writers write whole ones */
    }
    if (n == 0) return got == 0 ? SHM_EBROKER_DIED : SHM_EBAD_FRAME;
    if (errno == EINTR) {
      if (got == 0) return SHM_EINTR;
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return got == 0 ? 0 : SHM_EBAD_FRAME;
    return SHM_ESYSTEM;
  }
}

/* SIGPIPE belongs to the user: the signal that our own write raised is removed before it is
 * delivered. Called only when a write failed with EPIPE. */
static void swallow_sigpipe(const sigset_t *pipe_set) {
  struct timespec zero = {0, 0};
  while (sigtimedwait(pipe_set, NULL, &zero) < 0 && errno == EINTR) {
  }
}

/* A write with SIGPIPE blocked. It takes three more system calls, so not if the signal is
 * ignored. */
static ssize_t write_guarded(int fd, const char *from, size_t bytes) {
  sigset_t pipe_set, old, pending;
  sigemptyset(&pipe_set);
  sigaddset(&pipe_set, SIGPIPE);
  sigpending(&pending);
  int was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
  ssize_t n = write(fd, from, bytes);
  int saved = errno;
  if (n < 0 && saved == EPIPE && !was_pending) swallow_sigpipe(&pipe_set);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  errno = saved;
  return n;
}

static int sigpipe_ignored; /* in this process: EPIPE alone reports that the reader is gone */

void shmi_pipe_sigpipe(int is_ignored) { sigpipe_ignored = is_ignored; }

int shmi_pipe_write(int fd, const shmi_frame_t *frames, int count) {
  int written = 0;
  while (written < count) {
    int piece = count - written < SHMI_PIPE_BURST ? count - written : SHMI_PIPE_BURST;
    const char *from = (const char *)(frames + written);
    size_t bytes = (size_t)piece * SHM_FRAME_BYTES;
    ssize_t n = sigpipe_ignored ? write(fd, from, bytes) : write_guarded(fd, from, bytes);
    if (n > 0) {
      written += (int)(n / SHM_FRAME_BYTES); /* atomic: the whole piece */
      continue;
    }
    if (errno == EINTR) {
      if (written == 0) return SHM_EINTR;
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return written;
    if (errno == EPIPE) return SHM_EBROKER_DIED;
    return SHM_ESYSTEM;
  }
  return written;
}

static int wait_readable(struct pollfd *fds, nfds_t count, int64_t timeout_ns) {
  struct timespec limit = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
  int ready = ppoll(fds, count, timeout_ns < 0 ? NULL : &limit, NULL);
  if (ready > 0) return 1;
  if (ready == 0) return 0;
  return errno == EINTR ? SHM_EINTR : SHM_ESYSTEM;
}

int shmi_pipe_wait(int fd, int64_t timeout_ns) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return wait_readable(&one, 1, timeout_ns);
}

int shmi_pipe_wait_either(int fd, int other_fd, int64_t timeout_ns) {
  struct pollfd both[] = {{.fd = fd, .events = POLLIN}, {.fd = other_fd, .events = POLLIN}};
  int ready = wait_readable(both, 2, timeout_ns);
  return ready == 1 && both[0].revents == 0 ? 2 : ready;
}

int shmi_pipe_unread(int fd) {
  int bytes = 0;
  return fd >= 0 && ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : 0;
}

int shmi_pipe_has_ended(int fd) {
  struct pollfd one = {.fd = fd};
  return fd >= 0 && poll(&one, 1, 0) == 1 && (one.revents & POLLHUP) != 0;
}

int shmi_pipe_room(int fd) {
  int bytes = fcntl(fd, F_GETPIPE_SZ);
  return bytes > 0 ? frames_of(bytes) - shmi_pipe_unread(fd) / SHM_FRAME_BYTES : 0;
}
