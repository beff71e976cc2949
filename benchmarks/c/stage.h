/* stage.h -- what relay.c and messages.c share: arguments, the common start, the counting
 * and the one line of JSON, so that the two programs differ in nothing but who carries the
 * messages.
 *
 * The stage is one shared anonymous mapping, made before anything is forked. A separate
 * clock process waits until every child stands at the start, lets them run, and reads their
 * counters once at the beginning and once at the end of the measured span: neither start-up
 * nor shutdown is measured, and no child needs to look at a clock to know when to stop.
 */
#ifndef BENCH_STAGE_H
#define BENCH_STAGE_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
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

enum {
  STAGE_MAX_CHILDREN = 1024,
  STAGE_MAX_HELPERS = 64,
  STAGE_MAX_WINDOW = 64,       /* 64 frames of 64 bytes: one page, one atomic write */
  STAGE_SAMPLES = 1 << 18,     /* the last so many round trips are kept per timed child */
  STAGE_START_LIMIT_S = 60
};

typedef struct {
  int children;    /* processes */
  int active;      /* how many of them call; the others sleep */
  int helpers;
  int window;      /* messages a child has out at a time */
  int handover;    /* frames handed to a helper ahead, at most */
  int service_us;  /* how long a helper's function takes */
  int spins;       /* whether it needs a core for that, or waits as for a device */
  double seconds;  /* the measured span */
} stage_options_t;

typedef struct {
  _Alignas(128) _Atomic uint64_t round_trips; /* one writer each: its child */
} stage_counter_t;

/* One writer each: its helper. A service that goes on is counted from `began_ns` by who reads. */
typedef struct {
  _Alignas(128) _Atomic uint64_t served_ns;
  _Atomic uint64_t began_ns; /* 0: none goes on */
} stage_service_t;

typedef struct {
  _Alignas(128) _Atomic uint32_t ready;
  _Alignas(128) _Atomic uint32_t go;
  _Alignas(128) _Atomic uint32_t stop;
  _Alignas(128) _Atomic uint32_t measuring;
  int failed;
  double measured_s;
  uint64_t round_trips;
  uint64_t least, most; /* of the active children: who was served least and most */
  _Atomic uint64_t samples;
  uint64_t served_ns; /* by all helpers within the span */
  _Atomic uint32_t helpers_seen;
  stage_service_t service[STAGE_MAX_HELPERS];
  stage_counter_t counter[STAGE_MAX_CHILDREN];
  uint32_t sample_ns[STAGE_SAMPLES]; /* written by child 0, and only when it is alone */
} stage_t;

static inline uint64_t stage_now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void stage_sleep_s(double seconds)
{
  struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

static inline void stage_wait(_Atomic uint32_t *word)
{
  while (atomic_load(word) == 0)
    syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static inline void stage_raise(_Atomic uint32_t *word)
{
  atomic_store(word, 1);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline _Noreturn void stage_die(const char *what)
{
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static inline stage_options_t stage_options(int argc, char **argv)
{
  stage_options_t o = {32, 0, 2, 1, 16, 0, 0, 1.0};
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *name = argv[i];
    const char *value = argv[i + 1];
    if (strcmp(name, "--children") == 0)
      o.children = atoi(value);
    else if (strcmp(name, "--active") == 0)
      o.active = atoi(value);
    else if (strcmp(name, "--helpers") == 0)
      o.helpers = atoi(value);
    else if (strcmp(name, "--window") == 0)
      o.window = atoi(value);
    else if (strcmp(name, "--handover") == 0)
      o.handover = atoi(value);
    else if (strcmp(name, "--service-us") == 0)
      o.service_us = atoi(value);
    else if (strcmp(name, "--spins") == 0)
      o.spins = atoi(value);
    else if (strcmp(name, "--seconds") == 0)
      o.seconds = atof(value);
    else
      argc = 0; /* an unknown name: fall through to the usage line */
  }
  if (o.active == 0)
    o.active = o.children;
  if (argc % 2 == 0 || o.children < 1 || o.children > STAGE_MAX_CHILDREN || o.active < 1 ||
      o.active > o.children || o.helpers < 1 || o.helpers > STAGE_MAX_HELPERS || o.window < 1 ||
      o.window > STAGE_MAX_WINDOW || o.handover < 1 || o.handover > STAGE_MAX_WINDOW ||
      o.service_us < 0 || !(o.seconds > 0)) {
    fprintf(stderr,
            "usage: %s [--children 1..%d] [--active 1..children] [--helpers 1..%d]\n"
            "          [--window 1..%d] [--handover 1..%d] [--service-us N] [--spins 0|1] [--seconds S]\n",
            argv[0], STAGE_MAX_CHILDREN, STAGE_MAX_HELPERS, STAGE_MAX_WINDOW, STAGE_MAX_WINDOW);
    exit(2);
  }
  return o;
}

static inline stage_t *stage_open(void)
{
  stage_t *stage =
      mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (stage == MAP_FAILED)
    stage_die("mmap");
  return stage;
}

/* ---- in a child ------------------------------------------------------------- */

/* Stand at the start. Returns 1 when this child is to call, 0 when it only had to be there:
 * an idle child sleeps here until the end and wakes nobody meanwhile. */
static inline int stage_enter(stage_t *stage, const stage_options_t *o, int child)
{
  atomic_fetch_add(&stage->ready, 1);
  if (child >= o->active) {
    stage_wait(&stage->stop);
    return 0;
  }
  stage_wait(&stage->go);
  return 1;
}

static inline int stage_stopped(stage_t *stage)
{
  return atomic_load_explicit(&stage->stop, memory_order_relaxed) != 0;
}

static inline void stage_count(stage_t *stage, int child, uint64_t total)
{
  atomic_store_explicit(&stage->counter[child].round_trips, total, memory_order_relaxed);
}

static inline int stage_timed(const stage_options_t *o)
{
  return o->active == 1 && o->window == 1;
}

static inline void stage_sample(stage_t *stage, uint64_t ns)
{
  if (!atomic_load_explicit(&stage->measuring, memory_order_relaxed))
    return;
  uint64_t n = atomic_load_explicit(&stage->samples, memory_order_relaxed);
  stage->sample_ns[n % STAGE_SAMPLES] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
  atomic_store_explicit(&stage->samples, n + 1, memory_order_relaxed);
}

/* ---- in a helper ------------------------------------------------------------ */

/* Whoever serves first becomes helper 0 of the stage: it needs no number but its own. */
static inline stage_service_t *stage_helper(stage_t *stage)
{
  static stage_service_t *mine;
  if (mine == NULL) {
    mine = &stage->service[atomic_fetch_add(&stage->helpers_seen, 1) % STAGE_MAX_HELPERS];
    prctl(PR_SET_TIMERSLACK, 1); /* ns: by default a sleep may last 50 us longer */
  }
  return mine;
}

/* Take the time that a helper's function takes. How long it really took is what is counted. */
static inline void stage_serve(stage_t *stage, const stage_options_t *o)
{
  if (o->service_us == 0)
    return;
  stage_service_t *mine = stage_helper(stage);
  uint64_t began_ns = stage_now_ns();
  atomic_store_explicit(&mine->began_ns, began_ns, memory_order_relaxed);
  uint64_t wanted_ns = (uint64_t)o->service_us * 1000u, now_ns;
  if (!o->spins)
    stage_sleep_s((double)o->service_us * 1e-6);
  while ((now_ns = stage_now_ns()) - began_ns < wanted_ns) {
  }
  uint64_t served_ns = atomic_load_explicit(&mine->served_ns, memory_order_relaxed);
  atomic_store_explicit(&mine->began_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&mine->served_ns, served_ns + now_ns - began_ns, memory_order_release);
}

/* ---- the clock -------------------------------------------------------------- */

/* The service done until now, by all helpers, what goes on included. */
static inline uint64_t stage_served_ns(const stage_t *stage, uint64_t now_ns)
{
  uint64_t sum_ns = 0;
  for (int i = 0; i < STAGE_MAX_HELPERS; i++) {
    const stage_service_t *service = &stage->service[i];
    sum_ns += atomic_load_explicit(&service->served_ns, memory_order_acquire);
    uint64_t began_ns = atomic_load_explicit(&service->began_ns, memory_order_relaxed);
    if (began_ns != 0 && began_ns < now_ns)
      sum_ns += now_ns - began_ns;
  }
  return sum_ns;
}

static inline void stage_clock(stage_t *stage, const stage_options_t *o)
{
  static uint64_t before[STAGE_MAX_CHILDREN];
  uint64_t limit_ns = stage_now_ns() + (uint64_t)STAGE_START_LIMIT_S * 1000000000u;
  while (atomic_load(&stage->ready) < (uint32_t)o->children) {
    if (stage_now_ns() > limit_ns) {
      stage->failed = 1;
      stage_raise(&stage->stop);
      stage_raise(&stage->go);
      return;
    }
    stage_sleep_s(0.001);
  }
  stage_raise(&stage->go);
  stage_sleep_s(o->seconds < 0.5 ? o->seconds / 10 : 0.05); /* warm up */
  uint64_t began_ns = stage_now_ns();
  for (int i = 0; i < o->active; i++)
    before[i] = atomic_load(&stage->counter[i].round_trips);
  uint64_t served_ns = stage_served_ns(stage, began_ns);
  atomic_store(&stage->measuring, 1);
  stage_sleep_s(o->seconds);
  atomic_store(&stage->measuring, 0);
  stage->least = UINT64_MAX;
  for (int i = 0; i < o->active; i++) {
    uint64_t served = atomic_load(&stage->counter[i].round_trips) - before[i];
    stage->round_trips += served;
    stage->least = served < stage->least ? served : stage->least;
    stage->most = served > stage->most ? served : stage->most;
  }
  uint64_t ended_ns = stage_now_ns();
  stage->served_ns = stage_served_ns(stage, ended_ns) - served_ns;
  stage->measured_s = (double)(ended_ns - began_ns) * 1e-9;
  stage_raise(&stage->stop);
}

/* Fork the clock. Call it before the children are made; it holds no descriptor of theirs. */
static inline pid_t stage_start_clock(stage_t *stage, const stage_options_t *o)
{
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0)
    stage_die("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
      stage_clock(stage, o);
    _exit(0);
  }
  return pid;
}

/* ---- the result ------------------------------------------------------------- */

static inline int stage_compare(const void *a, const void *b)
{
  uint32_t x = *(const uint32_t *)a;
  uint32_t y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* Wait for the clock and print the result. Returns the program's exit status. */
static inline int stage_report(stage_t *stage, const stage_options_t *o, const char *program,
                               pid_t clock)
{
  waitpid(clock, NULL, 0);
  if (stage->failed || stage->round_trips == 0) {
    fprintf(stderr, "%s: %s\n", program,
            stage->failed ? "not every child reached the start" : "no message was answered");
    return 1;
  }
  uint64_t samples = atomic_load(&stage->samples);
  size_t kept = samples < STAGE_SAMPLES ? (size_t)samples : (size_t)STAGE_SAMPLES;
  printf("{\"program\": \"%s\", \"children\": %d, \"active\": %d, \"helpers\": %d, "
         "\"window\": %d, \"handover\": %d, \"seconds\": %.6f, \"round_trips\": %llu, "
         "\"rate\": %.1f, \"least\": %llu, \"most\": %llu",
         program, o->children, o->active, o->helpers, o->window, o->handover, stage->measured_s,
         (unsigned long long)stage->round_trips,
         (double)stage->round_trips / stage->measured_s, (unsigned long long)stage->least,
         (unsigned long long)stage->most);
  if (o->service_us > 0)
    printf(", \"service_us\": %d, \"busy\": %.6f", o->service_us,
           (double)stage->served_ns * 1e-9 / (stage->measured_s * o->helpers));
  if (kept > 0) {
    qsort(stage->sample_ns, kept, sizeof stage->sample_ns[0], stage_compare);
    printf(", \"samples\": %zu, \"median_ns\": %u, \"p99_ns\": %u", kept,
           stage->sample_ns[kept / 2], stage->sample_ns[kept - 1 - kept / 100]);
  }
  printf("}\n");
  return 0;
}

#endif
