/* passing -- see passing.h. */
#include "base/passing.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"

typedef union control {
  char bytes[CMSG_SPACE(SHMI_PASSING_MOST * sizeof(int))];
  struct cmsghdr aligned;
} control_t;

int shmi_passing_make(int ends[2]) {
  int made[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, made) != 0) {
    shmi_error_detail_errno("making a socket");
    return SHM_ESYSTEM;
  }
  for (int i = 0; i < 2; i++) ends[i] = shmi_descriptor_own(made[i]);
  if (ends[0] >= 0 && ends[1] >= 0) return SHM_OK;
  int saved = errno;
  for (int i = 0; i < 2; i++) shmi_descriptor_close(&ends[i]);
  errno = saved;
  return SHM_ESYSTEM;
}

int shmi_passing_send(int fd, const void *message, size_t bytes, const int descriptors[],
                      int count) {
  control_t control;
  memset(&control, 0, sizeof control);
  struct iovec piece = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
  struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
  if (count > SHMI_PASSING_MOST) return SHM_EBAD_SIZE;
  if (count > 0) {
    size_t length = (size_t)count * sizeof(int);
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(length);
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(rights), descriptors, length);
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == (ssize_t)bytes) return SHM_OK;
  /* This user has too many descriptors in transit: as with a full socket, try again later. */
  if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)) return SHM_EAGAIN;
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return SHM_EBROKER_DIED;
  return SHM_ESYSTEM;
}

/* List the first descriptors and close those beyond them. Returns how many came. */
static int take(struct msghdr *header, int descriptors[], int most) {
  int count = 0;
  for (struct cmsghdr *at = CMSG_FIRSTHDR(header); at != NULL; at = CMSG_NXTHDR(header, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    size_t here = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; i++, count++) {
      int fd;
      memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
      if (count < most) descriptors[count] = shmi_descriptor_own(fd);
      else close(fd);
    }
  }
  return count;
}

int shmi_passing_receive(int fd, void *message, size_t bytes, int descriptors[], int most) {
  control_t control;
  struct iovec piece = {.iov_base = message, .iov_len = bytes};
  struct msghdr header = {.msg_iov = &piece,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};
  for (int i = 0; i < most; i++) descriptors[i] = -1;
  ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
  /* A peer that closed before it read our message is reported once; then its own can be read. */
  if (got < 0 && errno == ECONNRESET) got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
  if (got < 0 && errno == EINTR) return SHM_EINTR;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return SHM_EAGAIN;
  if (got <= 0) return SHM_EBROKER_DIED;
  int count = take(&header, descriptors, most);
  if (got == (ssize_t)bytes && count <= most && (header.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0) {
    return count;
  }
  for (int i = 0; i < most; i++) shmi_descriptor_close(&descriptors[i]);
  return SHM_EREFUSED;
}
