/* signals -- see signals.h. */
#include "process/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "ipc/pipe.h"

static struct {
  sigset_t caller_mask, wait_mask;
  struct sigaction caller_int, caller_term, caller_hup, caller_chld, caller_pipe;
} kept;
static pthread_t waiter; /* the parent's loop */
static int hangup_ends;  /* SIGHUP would have killed the host of a launch: it asks for the end */

/* Written by handlers. */
static volatile sig_atomic_t stop_requests, stop_signal;

int shm_stop_signal(void) { return (int)stop_signal; }
int shmi_signals_requests(void) { return (int)stop_requests; }
const sigset_t *shmi_signals_wait_mask(void) { return &kept.wait_mask; }

/* A signal is meant for the loop, which it wakes. If the kernel picked another thread, of the host
 * or of a library, that one forwards it. */
static int was_handed_on(int signal) {
  if (pthread_equal(pthread_self(), waiter)) return 0;
  int before = errno;
  pthread_kill(waiter, signal);
  errno = before;
  return 1;
}

static void on_hangup(int signal) {
  if (!was_handed_on(signal)) kept.caller_hup.sa_handler(signal);
}

static void on_stop_signal(int signal) {
  if (was_handed_on(signal)) return;
  stop_requests = stop_requests + 1;
  stop_signal = signal;
}

static int has_handler(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler != SIG_DFL &&
         action->sa_handler != SIG_IGN;
}

static int is_standard(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == SIG_DFL;
}

void shmi_signals_take(int ignore_interrupt) {
  struct sigaction stop = {.sa_handler = on_stop_signal};
  struct sigaction standard = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
  struct sigaction hangup = {.sa_handler = on_hangup};
  waiter = pthread_self();
  sigemptyset(&stop.sa_mask);
  sigemptyset(&hangup.sa_mask);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGHUP); /* the host's own handler runs while the loop waits */
  pthread_sigmask(SIG_BLOCK, &blocked, &kept.caller_mask);
  kept.wait_mask = kept.caller_mask;
  sigdelset(&kept.wait_mask, SIGINT);
  sigdelset(&kept.wait_mask, SIGTERM);
  stop_requests = 0;
  stop_signal = 0;
  /* The parent of an init() shares the caller's terminal: Ctrl-C there is meant for the caller. */
  sigaction(SIGINT, ignore_interrupt ? &ignore : &stop, &kept.caller_int);
  sigaction(SIGTERM, &stop, &kept.caller_term);
  sigaction(SIGHUP, NULL, &kept.caller_hup);
  if (has_handler(&kept.caller_hup)) sigaction(SIGHUP, &hangup, NULL);
  hangup_ends = !ignore_interrupt && is_standard(&kept.caller_hup);
  if (hangup_ends) sigaction(SIGHUP, &stop, NULL);
  sigaction(SIGCHLD, &standard, &kept.caller_chld); /* if ignored, the kernel would reap for us */
  sigaction(SIGPIPE, &ignore, &kept.caller_pipe);
  shmi_pipe_sigpipe(1);
}

void shmi_signals_give_back(void) {
  sigaction(SIGINT, &kept.caller_int, NULL);
  sigaction(SIGTERM, &kept.caller_term, NULL);
  sigaction(SIGHUP, &kept.caller_hup, NULL);
  sigaction(SIGCHLD, &kept.caller_chld, NULL);
  sigaction(SIGPIPE, &kept.caller_pipe, NULL);
  pthread_sigmask(SIG_SETMASK, &kept.caller_mask, NULL);
  shmi_pipe_sigpipe(0);
}

/* `timeout` and service managers signal the whole group. Helpers must finish what they hold even
 * then, so a helper ends only when its parent says so, and what a session forked only with the
 * session. */
static void on_term_of_helper(int number, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_pid != getppid()) return;
  signal(number, SIG_DFL);
  raise(number); /* delivered as soon as this handler returns */
}

void shmi_signals_of_role(int role) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, standard = {.sa_handler = SIG_DFL};
  struct sigaction term = {.sa_sigaction = on_term_of_helper, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigemptyset(&term.sa_mask);
  sigaction(SIGINT, &ignore, NULL);
  sigaction(SIGTERM, role == SHM_ROLE_HELPER ? &term : &standard, NULL);
  sigaction(SIGPIPE, &ignore, NULL);
  sigaction(SIGHUP, hangup_ends ? &ignore : &kept.caller_hup, NULL);
  sigaction(SIGCHLD, &kept.caller_chld, NULL);
  pthread_sigmask(SIG_SETMASK, &kept.caller_mask, NULL);
  shmi_pipe_sigpipe(1);
}

void shmi_signals_let_in(void) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, &kept.wait_mask, &blocked);
  pthread_sigmask(SIG_SETMASK, &blocked, NULL);
}
