/* broker.h -- what the tests of a running broker share: a page that every process of a test
 * sees, functions a helper can run, launches by one line, and a guard that nothing is left.
 */
#ifndef SHMGPU_TESTS_BROKER_H
#define SHMGPU_TESTS_BROKER_H

#include "harness.h"

#include <fcntl.h>
#include <stdatomic.h>

#include "shmgpu.h"

#define MIB ((size_t)1 << 20)
#define SECOND_NS INT64_C(1000000000)

/* Wait for a condition; in vain is a failure. */
#define AWAIT(condition)                                                                      \
  do {                                                                                        \
    int64_t await_until = harness_now_ns() + 8 * SECOND_NS * (HARNESS_SANITIZED ? 3 : 1);     \
    while (!(condition)) {                                                                    \
      if (harness_now_ns() > await_until)                                                     \
        harness_fail(__FILE__, __LINE__, "waited in vain for %s", #condition);                \
      harness_pause();                                                                        \
    }                                                                                         \
  } while (0)

HARNESS_UNUSED static void harness_pause(void) {
  struct timespec pause = {0, 200000};
  nanosleep(&pause, NULL);
}

/* ---- notes: words that every process of the test may read and write ---- */

enum { NOTES = 4096 };
static _Atomic uint64_t *notes;

HARNESS_UNUSED static void notes_open(void) {
  void *made = mmap(NULL, NOTES * sizeof *notes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  notes = made;
}

/* ---- functions for helpers ---- */

typedef struct echo {
  uint64_t in, out;
  uint64_t runs;       /* how often this block was served */
  int64_t helper;
  uint64_t note;       /* which note to set or to wait for */
} echo_t;

/* out = in + 1 */
HARNESS_UNUSED static void fn_add_one(void *params) {
  echo_t *echo = params;
  echo->out = echo->in + 1;
  echo->helper = shm_get_helper_id();
  echo->runs++;
}

/* Raise notes[note], then wait until notes[note + 1] is not 0. */
HARNESS_UNUSED static void fn_gate(void *params) {
  echo_t *echo = params;
  uint64_t note = echo->note;
  echo->helper = shm_get_helper_id();
  atomic_fetch_add(&notes[note], 1);
  AWAIT(atomic_load(&notes[note + 1]) != 0);
  echo->out = echo->in + 1;
  echo->runs++;
}

/* This very process ends in the middle of the call. */
HARNESS_UNUSED static void fn_die(void *params) {
  echo_t *echo = params;
  echo->runs++;
  kill(getpid(), SIGKILL);
  AWAIT(0);
}

HARNESS_UNUSED static void functions_register(void) {
  CHECK_EQ(shm_register(fn_add_one, "add_one", sizeof(echo_t)), SHM_OK);
  CHECK_EQ(shm_register(fn_gate, "gate", sizeof(echo_t)), SHM_OK);
  CHECK_EQ(shm_register(fn_die, "die", sizeof(echo_t)), SHM_OK);
}

/* In a child: a zeroed block of its arena. */
HARNESS_UNUSED static echo_t *echo_new(uint64_t in) {
  echo_t *echo = shm_malloc(sizeof *echo);
  CHECK(echo != NULL);
  *echo = (echo_t){.in = in, .helper = -1};
  return echo;
}

HARNESS_UNUSED static int call(shm_func_t func, void *params) {
  shm_msg_t msg = {.func_ptr = func, .params = params};
  return shm_call(&msg, -1);
}

/* In a child: one call that must work. */
HARNESS_UNUSED static void expect_service(void) {
  echo_t *echo = echo_new(41);
  CHECK_EQ(call(fn_add_one, echo), SHM_OK);
  CHECK_EQ(echo->out, 42);
  CHECK_EQ(echo->runs, 1);
  CHECK_EQ(shm_free(echo), SHM_OK);
}

/* ---- launching ---- */

static shm_config_t config;  /* what launch() uses; reset by broker_open() */
static shm_host_t host;

HARNESS_UNUSED static int host_fork(void) {
  fflush(NULL);
  return fork();
}
static void host_exit(int status) {
  fflush(NULL);
  _exit(status);
}

static int (*child_body)(int child);
static int host_run_child(int child, uint32_t generation) {
  (void)generation;
  return child_body(child);
}

typedef struct guard {
  int fds;
  struct sigaction handlers[NSIG];
  sigset_t mask;
} guard_t;
static guard_t guard;
static uint64_t users_fds[16]; /* bit fd: it was open before the broker was */

/* Before anything else in a test: notes, functions, defaults, and what must be as before. */
HARNESS_UNUSED static void broker_open(int children, int helpers) {
  notes_open();
  functions_register();
  config = (shm_config_t){.child_count = children,
                          .helper_count = helpers,
                          .pool_count = 1,
                          .arena_bytes = MIB,
                          .trace_records = 1024};
  host = (shm_host_t){.fork = host_fork, .run_child = host_run_child, .exit = host_exit};
  guard.fds = harness_open_fds();
  for (int fd = 0; fd < 1024; fd++) {
    if (fcntl(fd, F_GETFD) != -1) users_fds[fd / 64] |= UINT64_C(1) << (fd % 64);
  }
  for (int number = 1; number < NSIG; number++) sigaction(number, NULL, &guard.handlers[number]);
  pthread_sigmask(SIG_SETMASK, NULL, &guard.mask);
}

/* Descriptors, processes, mappings and signal handlers are what they were. */
HARNESS_UNUSED static void expect_nothing_left(void) {
  CHECK_EQ(harness_open_fds(), guard.fds);
  CHECK_EQ(harness_mappings("shmgpu-"), 0);
  int got = waitpid(-1, NULL, WNOHANG);
  CHECK_EQ(got, -1);
  CHECK_EQ(errno, ECHILD);
  CHECK_EQ(shm_get_role(), SHM_ROLE_NONE);
  for (int number = 1; number < NSIG; number++) {
    struct sigaction now;
    if (sigaction(number, NULL, &now) != 0) continue;
    if (now.sa_handler != guard.handlers[number].sa_handler)
      harness_fail(__FILE__, __LINE__, "the handler of signal %d was changed", number);
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  for (int number = 1; number < NSIG; number++)
    CHECK_EQ(sigismember(&mask, number), sigismember(&guard.mask, number));
}

HARNESS_UNUSED static int launch(int (*body)(int child)) {
  child_body = body;
  return shm_run(&config, &host);
}

/* A launch that must end well, and leave nothing. */
HARNESS_UNUSED static void launch_well(int (*body)(int child)) {
  int status = launch(body);
  if (status != SHM_OK)
    harness_fail(__FILE__, __LINE__, "launch: %s (%s)", shm_status_name(status),
                 shm_error_detail());
  expect_nothing_left();
}

/* ---- looking at this process ---- */

/* The permissions of the mapping that holds address ("rw-s"), or "none". */
HARNESS_UNUSED static const char *permissions_at(uint64_t address) {
  static char permissions[8];
  FILE *maps = fopen("/proc/self/maps", "re");
  CHECK(maps != NULL);
  char line[1024];
  snprintf(permissions, sizeof permissions, "none");
  while (fgets(line, sizeof line, maps)) {
    unsigned long long from, to;
    char found[8];
    if (sscanf(line, "%llx-%llx %7s", &from, &to, found) == 3 && address >= from && address < to) {
      snprintf(permissions, sizeof permissions, "%s", found);
    }
  }
  fclose(maps);
  return permissions;
}

/* The descriptor of the child's request pipe: the one pipe it has got that is written to. */
HARNESS_UNUSED static int request_pipe(void) {
  int found = -1;
  for (int fd = 3; fd < 1024; fd++) {
    char path[64], name[64];
    if ((users_fds[fd / 64] >> (fd % 64) & 1) != 0) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0) continue;
    name[length] = 0;
    if (strncmp(name, "pipe:", 5) != 0) continue;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "re");
    char line[128];
    unsigned flags = 0;
    while (info != NULL && fgets(line, sizeof line, info)) sscanf(line, "flags: %o", &flags);
    if (info != NULL) fclose(info);
    if ((flags & 3) == 1) found = fd;
  }
  CHECK(found >= 0);
  return found;
}

#endif
