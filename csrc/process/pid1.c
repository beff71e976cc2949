/* pid1 -- see pid1.h. */
#include "process/pid1.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/process.h"

enum { SIGNALLED_BASE = 128 };

/* From a keyboard or a window: the terminal sends these to its whole foreground group. */
static int is_of_terminal(const siginfo_t *info) {
  static const int signals[] = {SIGINT, SIGQUIT, SIGTSTP, SIGWINCH};
  if (info->si_code != SI_KERNEL) return 0;
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    if (info->si_signo == signals[i]) return 1;
  }
  return 0;
}

static void close_range_of(int from, int to) {
#ifdef SYS_close_range
  if (from > to || syscall(SYS_close_range, from, to, 0) == 0) return;
#endif
  long limit = sysconf(_SC_OPEN_MAX);
  if (limit > 0 && to > limit) to = (int)limit;
  for (int fd = from; fd <= to; fd++) close(fd);
}

/* A pipe end that stays open here would keep its reader waiting for ever. */
static void let_go_of_descriptors(int keep) {
  int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= STDERR_FILENO && nowhere >= 0; fd++) {
    if (fd != keep && fd != nowhere) dup2(nowhere, fd);
  }
  close_range_of(STDERR_FILENO + 1, keep - 1);
  close_range_of(keep > STDERR_FILENO ? keep + 1 : STDERR_FILENO + 1, (int)(~0U >> 1));
}

/* Not forwarded: the end of the program, and faults of this very process. */
static int stays_here(int signal) {
  static const int signals[] = {SIGCHLD, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    if (signal == signals[i]) return 1;
  }
  return 0;
}

static shmi_process_t program;

/* Acts at once, in whichever thread the kernel chose: threads of a library may still exist here,
 * and a signal that one of them gets would be lost to a main thread that waits with signals
 * blocked. */
static void hand_on(int signal, siginfo_t *info, void *context) {
  (void)context;
  int saved = errno;
  /* The program that signals its whole group has signalled itself already. */
  int is_echo = info->si_code <= 0 && info->si_pid == program.pid;
  if (!is_echo && !is_of_terminal(info)) shmi_process_signal(&program, signal);
  errno = saved;
}

static void hand_on_signals(void) {
  struct sigaction action = {.sa_sigaction = hand_on, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigfillset(&action.sa_mask);
  for (int signal = 1; signal < NSIG; signal++) {
    if (!stays_here(signal)) sigaction(signal, &action, NULL); /* refused for some: KILL, STOP */
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void be_init(void) {
  prctl(PR_SET_NAME, "shmgpu-init", 0, 0, 0);
  let_go_of_descriptors(program.pidfd);
  hand_on_signals();
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == ECHILD) _exit(EXIT_FAILURE); /* cannot happen: the program is our child */
    if (pid != program.pid) continue;
    _exit(WIFSIGNALED(status) ? SIGNALLED_BASE + WTERMSIG(status) : WEXITSTATUS(status));
  }
}

static int has_subprocesses(void) {
  siginfo_t info;
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

int shmi_pid1_stay_behind(int (*fork_hook)(void)) {
  if (getpid() != 1 || has_subprocesses()) return SHM_OK;
  sigset_t all, mask;
  struct sigaction standard = {.sa_handler = SIG_DFL}, of_program;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask); /* signals that come meanwhile are forwarded later */
  sigaction(SIGCHLD, &standard, &of_program); /* if it were ignored, the kernel would reap for us */
  int forked = shmi_process_fork(fork_hook, &program);
  if (forked == 1) be_init();
  sigaction(SIGCHLD, &of_program, NULL);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  return forked;
}
