/* process -- see process.h. */
#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

enum { OOM_OFFER = 300, OOM_MOST = 1000 };

static int pidfd_of(pid_t pid) {
  return shmi_descriptor_own((int)syscall(SYS_pidfd_open, pid, 0)); /* close-on-exec by itself */
}

int shmi_process_open(pid_t pid, shmi_process_t *process) {
  int fd = pidfd_of(pid);
  /* EPERM: a container's filter refuses a call that it does not know. */
  if (fd < 0) return errno == ENOSYS || errno == EPERM ? SHM_EUNSUPPORTED : SHM_ESYSTEM;
  process->pid = pid;
  process->pidfd = fd;
  return SHM_OK;
}

int shmi_process_fork(int (*hook)(void), shmi_process_t *process) {
  pid_t pid = hook != NULL ? (pid_t)hook() : fork();
  if (pid < 0) {
    if (errno == EAGAIN) {
      shmi_error_detail_set("forking: %s: raise ulimit -u, or the container's limit on pids (shmgpu "
                      "doctor says which)", strerror(EAGAIN));
      errno = EAGAIN;
    } else {
      shmi_error_detail_errno("forking");
    }
    return SHM_ESYSTEM;
  }
  if (pid == 0) return 0;
  int status = shmi_process_open(pid, process);
  if (status != SHM_OK) {
    int saved = errno;
    shmi_error_detail_errno("opening a pidfd");
    kill(pid, SIGKILL); /* our own child, not reaped yet: the pid is still its own */
    waitpid(pid, NULL, 0);
    errno = saved;
    return status;
  }
  return 1;
}

int shmi_process_signal(const shmi_process_t *process, int signal) {
  if (process->pid <= 0) return SHM_OK;
  return syscall(SYS_pidfd_send_signal, process->pidfd, signal, NULL, 0) == 0 || errno == ESRCH
             ? SHM_OK
             : SHM_ESYSTEM;
}

int shmi_process_reap(shmi_process_t *process, int block, int *exit_status) {
  if (process->pid <= 0) return 0;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  int got;
  do {
    got = waitid((idtype_t)P_PIDFD, (id_t)process->pidfd, &info, WEXITED | (block ? 0 : WNOHANG));
  } while (got != 0 && errno == EINTR);
  if (got != 0) {
    if (errno != ECHILD) return 0;
    /* Somebody else reaped it, or SIGCHLD is ignored: it has ended, but how is unknown. */
    *exit_status = 255;
  } else if (info.si_pid == 0) {
    return 0;
  } else {
    *exit_status = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
  }
  shmi_process_forget(process);
  return 1;
}

int shmi_process_has_ended(const shmi_process_t *process) {
  struct pollfd end = {.fd = process->pidfd, .events = POLLIN};
  return poll(&end, 1, 0) == 1;
}

void shmi_process_forget(shmi_process_t *process) {
  shmi_descriptor_close(&process->pidfd);
  process->pid = 0;
}

int shmi_process_die_with(pid_t parent, int signal) {
  /* First set, then look: so a parent that dies in between is noticed, too. */
  if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0) return SHM_ESYSTEM;
  return getppid() == parent ? 1 : 0;
}

void shmi_process_offer_to_oom(void) {
  int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  /* Relative to the parent's own score, which is inherited and must not be lowered. Raising it
   * needs no privilege. If it fails, nothing is lost. */
  char text[16] = {0};
  ssize_t got = pread(fd, text, sizeof text - 1, 0);
  long raised = (got > 0 ? strtol(text, NULL, 10) : 0) + OOM_OFFER;
  int length = snprintf(text, sizeof text, "%ld", raised < OOM_MOST ? raised : OOM_MOST);
  got = pwrite(fd, text, (size_t)length, 0);
  (void)got;
  close(fd);
}
