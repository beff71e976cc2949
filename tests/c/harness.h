/* harness.h -- a whole C test framework in one header.
 *
 * A test program is one file: #include "harness.h", then TEST functions; main() is here.
 *
 *     TEST(frees_return_their_memory) {
 *       void *block = shm_malloc(64);
 *       CHECK(block != NULL);
 *       CHECK_EQ(shm_free(block), SHM_OK);
 *     }
 *
 * The driver forks every test into a process of its own, so a crash, a hang or a changed
 * global is one test's business. It is the subreaper of whatever a test forks: a failed CHECK
 * in any descendant fails the test, and so does a process that outlives its test.
 *
 *     ./test_tlsf               run all: one line per failed or skipped test, then a summary
 *     ./test_tlsf -v            one line per test
 *     ./test_tlsf -l            list the names
 *     ./test_tlsf NAME...       only tests whose name contains one of these
 *     ./test_tlsf -n NAME       in this very process, without a deadline: for a debugger
 *
 * Exit status: 0 all passed, 1 something failed, 77 every test was skipped.
 * SHM_TEST_DEADLINE_SCALE multiplies the deadlines (valgrind, an overloaded machine).
 */
#ifndef SHMGPU_TESTS_HARNESS_H
#define SHMGPU_TESTS_HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HARNESS_DEADLINE_S 10
#define HARNESS_ORPHAN_GRACE_MS 2000
#define HARNESS_SKIPPED 77
#define HARNESS_UNUSED __attribute__((unused))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HARNESS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HARNESS_SANITIZED 1
#endif
#endif
#ifndef HARNESS_SANITIZED
#define HARNESS_SANITIZED 0 /* for tests that must be smaller under a sanitizer */
#endif

typedef struct harness_test {
  const char *name;
  void (*body)(void);
  int deadline_s;
  struct harness_test *next;
} harness_test_t;

static harness_test_t *harness_first;
static harness_test_t **harness_last = &harness_first;
/* Shared with every descendant: a grandchild's failed CHECK is not lost with its exit status. */
static volatile int *harness_failures;

/* TEST(name) { ... }, or TEST_WITHIN(name, seconds) { ... } for one that needs longer. */
#define TEST(name) TEST_WITHIN(name, HARNESS_DEADLINE_S)
#define TEST_WITHIN(test_name, seconds)                                                  \
  static void harness_body_##test_name(void);                                            \
  __attribute__((constructor)) static void harness_add_##test_name(void) {               \
    static harness_test_t test = {#test_name, harness_body_##test_name, (seconds), NULL}; \
    *harness_last = &test;                                                               \
    harness_last = &test.next;                                                           \
  }                                                                                      \
  static void harness_body_##test_name(void)

/* A failed check ends the process it happens in. */
#define CHECK(cond)                                                  \
  do {                                                               \
    if (!(cond)) harness_fail(__FILE__, __LINE__, "%s", #cond);      \
  } while (0)
/* Integers or pointers, compared and shown as such. */
#define CHECK_EQ(got, expected)                                                              \
  do {                                                                                       \
    intmax_t harness_got = (intmax_t)(got), harness_expected = (intmax_t)(expected);         \
    if (harness_got != harness_expected)                                                     \
      harness_fail(__FILE__, __LINE__, "%s is %jd (0x%jx), expected %s = %jd (0x%jx)", #got, \
                   harness_got, (uintmax_t)harness_got, #expected, harness_expected,         \
                   (uintmax_t)harness_expected);                                             \
  } while (0)
#define CHECK_STR_EQ(got, expected)                                                         \
  do {                                                                                      \
    const char *harness_got = (got), *harness_expected = (expected);                        \
    if (harness_got == NULL || harness_expected == NULL ||                                  \
        strcmp(harness_got, harness_expected) != 0)                                         \
      harness_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #got,               \
                   harness_got ? harness_got : "(null)",                                    \
                   harness_expected ? harness_expected : "(null)");                         \
  } while (0)
/* For system calls: shows errno's sentence. */
#define CHECK_SYS(call)                                                                     \
  do {                                                                                      \
    if ((call) == -1) harness_fail(__FILE__, __LINE__, "%s: %s", #call, strerror(errno));   \
  } while (0)
/* This machine cannot run the test; reason is a sentence. */
#define SKIP(reason)                        \
  do {                                      \
    printf("    skipped: %s\n", (reason));  \
    fflush(NULL);                           \
    _exit(HARNESS_SKIPPED);                 \
  } while (0)

__attribute__((noreturn, format(printf, 3, 4), unused)) static void harness_fail(
    const char *file, int line, const char *format, ...) {
  /* One write: lines of several processes must not mix. */
  char text[2048];
  int used = snprintf(text, sizeof text, "    %s:%d: [pid %d] CHECK failed: ", file, line,
                      (int)getpid());
  va_list args;
  va_start(args, format);
  used += vsnprintf(text + used, sizeof text - (size_t)used - 1, format, args);
  va_end(args);
  if (used > (int)sizeof text - 2) used = (int)sizeof text - 2;
  text[used] = '\n';
  fflush(NULL);
  if (write(STDOUT_FILENO, text, (size_t)used + 1) == -1) { /* the counter still tells */
  }
  if (harness_failures) __atomic_add_fetch(harness_failures, 1, __ATOMIC_SEQ_CST);
  _exit(1);
}

HARNESS_UNUSED static int64_t harness_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

HARNESS_UNUSED static void harness_sleep_ms(int ms) {
  struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&pause, &pause) == -1 && errno == EINTR) {
  }
}

/* How many descriptors this process has open: equal before and after, nothing leaked. */
HARNESS_UNUSED static int harness_open_fds(void) {
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) return -1;
  int count = -1; /* opendir's own */
  for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
    if (entry->d_name[0] != '.') count++;
  closedir(dir);
  return count;
}

/* How many mappings of this process have text in their line of /proc/self/maps. */
HARNESS_UNUSED static int harness_mappings(const char *text) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return -1;
  char line[1024];
  int count = 0;
  while (fgets(line, sizeof line, maps)) count += strstr(line, text) != NULL;
  fclose(maps);
  return count;
}

/* Bytes that malloc has given out or keeps at hand, and those that are mapped beside its heap and
 * the stack: equal after so many rounds and after more, nothing leaked. 0 under a sanitizer, which
 * keeps memory of its own. */
enum { HARNESS_ROUNDS = 12 };
HARNESS_UNUSED static size_t harness_memory(void) {
  size_t bytes = 0;
  if (HARNESS_SANITIZED) return bytes;
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  bytes = mallinfo2().uordblks;
#endif
  static char text[1 << 18]; /* without stdio, which keeps memory itself */
  size_t length = 0;
  int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  for (ssize_t got = 1; got > 0 && length < sizeof text - 1; length += got > 0 ? (size_t)got : 0) {
    got = read(maps, text + length, sizeof text - 1 - length);
  }
  close(maps);
  text[length] = '\0';
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    char *rest;
    unsigned long begin = strtoul(line, &rest, 16), end = strtoul(rest + 1, NULL, 16);
    if (!strstr(line, "[heap]") && !strstr(line, "[stack]")) bytes += end - begin;
  }
  return bytes;
}

/* The first child process of the driver, or 0; the driver has only one thread. */
static pid_t harness_any_child(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  FILE *list = fopen(path, "re");
  long pid = 0;
  if (list) {
    if (fscanf(list, "%ld", &pid) != 1) pid = 0;
    fclose(list);
  }
  return (pid_t)pid;
}

static void harness_reap(void) {
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

/* Orphans of the finished test have become the driver's children. Returns 1 when some had to
 * be killed. */
static int harness_end_orphans(int scale) {
  int64_t until = harness_now_ns() + (int64_t)HARNESS_ORPHAN_GRACE_MS * 1000000 * scale;
  for (;;) {
    harness_reap();
    if (!harness_any_child()) return 0;
    if (harness_now_ns() > until) break;
    harness_sleep_ms(5);
  }
  for (pid_t pid = harness_any_child(); pid; pid = harness_any_child()) {
    char path[64], name[64] = "?";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *comm = fopen(path, "re");
    if (comm) {
      if (fgets(name, sizeof name, comm)) name[strcspn(name, "\n")] = 0;
      fclose(comm);
    }
    printf("    process %d (%s) outlived its test\n", (int)pid, name);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0); /* its own children come to the driver next */
  }
  return 1;
}

/* Runs one test in a child process; returns 0, 1 or HARNESS_SKIPPED. */
static int harness_run(const harness_test_t *test, int scale) {
  *harness_failures = 0;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == -1) {
    printf("    fork: %s\n", strerror(errno));
    return 1;
  }
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a Ctrl-C that ends the driver ends the test too */
    test->body();
    fflush(NULL);
    exit(0); /* not _exit: the leak sanitizer looks now */
  }
  setpgid(pid, pid); /* both sides set it, so that neither can be too late for kill(-pid) */
  int64_t until = harness_now_ns() + (int64_t)test->deadline_s * scale * 1000000000;
  int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  struct pollfd waiting = {pidfd, POLLIN, 0};
  int late = 0;
  for (;;) {
    int64_t left_ms = (until - harness_now_ns()) / 1000000;
    int ready = poll(&waiting, 1, left_ms > 0 ? (int)left_ms : 0);
    if (ready > 0) break;
    if (ready == 0 && left_ms <= 0) {
      late = 1;
      break;
    }
  }
  if (pidfd != -1) close(pidfd);
  int status = 0;
  if (late) {
    printf("    not finished after %d s\n", test->deadline_s * scale);
    kill(pid, SIGABRT); /* a sanitizer prints a stack for it */
    harness_sleep_ms(200);
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
  }
  waitpid(pid, &status, 0);
  int orphans = harness_end_orphans(late ? 0 : scale);
  if (late) return 1;
  if (WIFSIGNALED(status)) {
    printf("    killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return 1;
  }
  int failures = __atomic_load_n(harness_failures, __ATOMIC_SEQ_CST);
  if (WEXITSTATUS(status) == HARNESS_SKIPPED && failures == 0 && !orphans) return HARNESS_SKIPPED;
  if (WEXITSTATUS(status) != 0 && failures == 0)
    printf("    exit status %d\n", WEXITSTATUS(status));
  return WEXITSTATUS(status) != 0 || failures != 0 || orphans;
}

static int harness_wanted(const harness_test_t *test, int count, char **names) {
  int any = 0;
  for (int i = 0; i < count; i++) {
    if (names[i][0] == '-') continue;
    any = 1;
    if (strstr(test->name, names[i])) return 1;
  }
  return !any;
}

int main(int argc, char **argv) {
  int verbose = 0, list = 0, here = 0, passed = 0, failed = 0, skipped = 0;
  for (int i = 1; i < argc; i++) {
    verbose |= strcmp(argv[i], "-v") == 0;
    list |= strcmp(argv[i], "-l") == 0;
    here |= strcmp(argv[i], "-n") == 0;
  }
  const char *program = strrchr(argv[0], '/');
  program = program ? program + 1 : argv[0];
  int scale = HARNESS_SANITIZED ? 4 : 1;
  const char *factor = getenv("SHM_TEST_DEADLINE_SCALE");
  if (factor && atoi(factor) > 0) scale *= atoi(factor);
  setvbuf(stdout, NULL, _IOLBF, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  void *page = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  harness_failures = page;
  for (const harness_test_t *test = harness_first; test; test = test->next) {
    if (!harness_wanted(test, argc - 1, argv + 1)) continue;
    if (list) {
      puts(test->name);
      continue;
    }
    if (here) {
      test->body();
      passed++;
      continue;
    }
    int outcome = harness_run(test, scale);
    passed += outcome == 0;
    skipped += outcome == HARNESS_SKIPPED;
    failed += outcome == 1;
    if (verbose || outcome != 0)
      printf("%s %s: %s\n", outcome == 0 ? "ok  " : outcome == 1 ? "FAIL" : "skip", program,
             test->name);
  }
  if (list) return 0;
  printf("%s: %d passed, %d failed, %d skipped\n", program, passed, failed, skipped);
  if (failed || passed + skipped == 0) return 1;
  return passed ? 0 : HARNESS_SKIPPED;
}

#endif
