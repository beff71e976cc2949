/* served.c -- what simulate.py predicts, measured: children that call a function which takes time.
 *
 * Beside stage.h's arguments it takes --service-us (0: the function returns at once) and --kind:
 * "device" sleeps, as a session that waits for its GPU does, and needs no core; "core" computes for
 * that much time of a core. Every child times every call, from the sending to the reading of its
 * answer, so that the latency is that of a loaded broker and not of a lone child.
 *
 * The clock process of this program looks on through shmgpu's monitor. At both ends of the measured
 * span it reads what each role has used of the cores and how often the dispatcher has turned: that is
 * what a model can be fitted to, which a rate alone is not.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>

#include "shmgpu.h"
#include "stage.h"

enum {
  ARENA_BYTES = 1 << 20,
  /* Latencies are counted in bins, 64 to an octave of nanoseconds: within 1.1 %. */
  BINS_OCTAVE = 64, BINS = 34 * BINS_OCTAVE
};

typedef struct {
  uint64_t sent_ns;
  uint64_t service_ns;
  uint64_t is_core;
  uint64_t unused[5];
} block_t;

typedef struct {
  _Alignas(128) uint64_t sum_ns;
  uint32_t count[BINS];
} latencies_t;

typedef struct { /* at one moment */
  uint64_t at_ns, round_trips, turns;
  double dispatcher_s, helpers_s, children_s; /* of cores */
  double busy_s;                              /* helpers, in the function */
} account_t;

static stage_options_t options;
static stage_t *stage;
static latencies_t *latencies; /* by child */
static account_t *accounts;    /* at the begin and at the end */
static uint64_t service_ns;
static int is_core;

static int failed(const char *what, int status)
{
  fprintf(stderr, "served: %s: %s\n", what, shm_status_text(status));
  return 1;
}

static double seconds_of(struct timespec t)
{
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- in a helper ------------------------------------------------------------ */

static void compute(uint64_t ns)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  double end_s = seconds_of(t) + (double)ns * 1e-9;
  do
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  while (seconds_of(t) < end_s);
}

static void serve(void *params)
{
  static int is_sharp;
  const block_t *block = params;
  if (block->service_ns == 0)
    return;
  if (!is_sharp) { /* a device's answer is not rounded up by 50 us */
    is_sharp = 1;
    prctl(PR_SET_TIMERSLACK, 1);
  }
  if (block->is_core)
    compute(block->service_ns);
  else
    stage_sleep_s((double)block->service_ns * 1e-9);
}

/* ---- in a child ------------------------------------------------------------- */

static int bin_of(uint64_t ns)
{
  if (ns < BINS_OCTAVE)
    return (int)ns;
  int octave = 63 - __builtin_clzll(ns); /* at least 6 */
  int bin = (octave - 5) * BINS_OCTAVE + (int)(ns >> (octave - 6)) - BINS_OCTAVE;
  return bin < BINS ? bin : BINS - 1;
}

static double middle_of(int bin)
{
  if (bin < BINS_OCTAVE)
    return bin;
  int octave = bin / BINS_OCTAVE + 5;
  return ldexp((double)(BINS_OCTAVE + bin % BINS_OCTAVE) + 0.5, octave - 6);
}

static int run_child(void *arg)
{
  (void)arg;
  int child = shm_get_child_id();
  shm_msg_t messages[STAGE_MAX_WINDOW];
  int statuses[STAGE_MAX_WINDOW];
  latencies_t *mine = &latencies[child];
  uint64_t total = 0;
  int status = shm_set_window(options.window);
  if (status < 0)
    return failed("shm_set_window", status);
  for (int i = 0; i < options.window; i++) {
    block_t *block = shm_malloc(sizeof *block);
    if (block == NULL)
      return failed("shm_malloc", shm_last_status());
    *block = (block_t){.service_ns = service_ns, .is_core = (uint64_t)is_core};
    messages[i] = (shm_msg_t){serve, block};
  }
  if (!stage_enter(stage, &options, child))
    return 0;

  int out = 0, ready = options.window; /* send again, in one go, as many as were answered */
  for (;;) {
    uint64_t now_ns = stage_now_ns();
    for (int i = 0; i < ready; i++)
      ((block_t *)messages[i].params)->sent_ns = now_ns;
    int sent = shm_send_msgs(messages, ready);
    if (sent < 0)
      return failed("shm_send_msgs", sent);
    out += sent;
    ready = shm_read_msgs(messages, statuses, options.window);
    if (ready < 0)
      return failed("shm_read_msgs", ready);
    out -= ready;
    now_ns = stage_now_ns();
    int counts = atomic_load_explicit(&stage->measuring, memory_order_relaxed) != 0;
    for (int i = 0; i < ready; i++) {
      if (statuses[i] < 0)
        return failed("a message", statuses[i]);
      uint64_t took_ns = now_ns - ((block_t *)messages[i].params)->sent_ns;
      mine->sum_ns += counts ? took_ns : 0;
      mine->count[bin_of(took_ns)] += (uint32_t)counts;
    }
    stage_count(stage, child, total += (uint64_t)ready);
    if (stage_stopped(stage))
      break;
  }
  while (out > 0) {
    ready = shm_read_msgs(messages, statuses, options.window);
    if (ready < 0)
      return failed("shm_read_msgs", ready);
    out -= ready;
  }
  return 0;
}

/* ---- the clock -------------------------------------------------------------- */

static double core_s(pid_t pid)
{
  clockid_t clock;
  struct timespec t = {0};
  if (pid > 0 && clock_getcpuclockid(pid, &clock) == 0)
    clock_gettime(clock, &t);
  return seconds_of(t);
}

static account_t account(void)
{
  account_t a = {.at_ns = stage_now_ns()};
  shm_broker_stats_t broker;
  if (shm_get_broker_stats(&broker) == SHM_OK)
    a.turns = broker.wakes;
  a.dispatcher_s = core_s(getppid());
  for (int i = 0; i < options.helpers; i++) {
    shm_helper_stats_t helper;
    if (shm_get_helper_stats(i, &helper) != SHM_OK)
      continue;
    a.helpers_s += core_s(helper.pid);
    a.busy_s += (double)helper.busy_ns * 1e-9;
  }
  for (int i = 0; i < options.children; i++) {
    shm_child_stats_t child;
    a.round_trips += atomic_load(&stage->counter[i].round_trips);
    if (shm_get_child_stats(i, &child) == SHM_OK)
      a.children_s += core_s(child.pid);
  }
  return a;
}

/* Open the parent's scoreboard for reading, which is among its descriptors by name. */
static int look_on(pid_t parent)
{
  char folder[64], path[400], name[64];
  snprintf(folder, sizeof folder, "/proc/%d/fd", (int)parent);
  DIR *descriptors = opendir(folder);
  if (descriptors == NULL)
    return SHM_ENO_BOARD;
  int status = SHM_ENO_BOARD;
  struct dirent *entry;
  while (status != SHM_OK && (entry = readdir(descriptors)) != NULL) {
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    ssize_t length = readlink(path, name, sizeof name - 1);
    name[length > 0 ? length : 0] = 0;
    if (strncmp(name, "/memfd:shmgpu-scoreboard", 19) != 0)
      continue;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    status = shm_monitor_open(fd);
    close(fd);
  }
  closedir(descriptors);
  return status;
}

static void run_clock(pid_t parent)
{
  uint64_t limit_ns = stage_now_ns() + (uint64_t)STAGE_START_LIMIT_S * 1000000000u;
  while (atomic_load(&stage->ready) < (uint32_t)options.children && stage_now_ns() < limit_ns)
    stage_sleep_s(0.001);
  stage->failed = atomic_load(&stage->ready) < (uint32_t)options.children ||
                  look_on(parent) != SHM_OK;
  stage_raise(&stage->go);
  if (!stage->failed) {
    /* Warm up, and longer where a round of all children takes longer. */
    double round_s = (double)service_ns * 1e-9 * options.active * options.window / options.helpers;
    stage_sleep_s(round_s > 0.05 ? round_s : 0.05);
    accounts[0] = account();
    atomic_store(&stage->measuring, 1);
    stage_sleep_s(options.seconds);
    atomic_store(&stage->measuring, 0);
    accounts[1] = account();
    stage->round_trips = accounts[1].round_trips - accounts[0].round_trips;
  }
  stage_raise(&stage->stop);
}

static pid_t start_clock(void)
{
  pid_t parent = getpid(), pid = fork();
  if (pid < 0)
    stage_die("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
      run_clock(parent);
    _exit(0);
  }
  return pid;
}

/* ---- the result ------------------------------------------------------------- */

static double quantile_us(const uint64_t count[], uint64_t total, double share)
{
  uint64_t passed = 0;
  int bin = 0;
  while (bin < BINS - 1 && (double)(passed += count[bin]) < share * (double)total)
    bin++;
  return middle_of(bin) / 1000;
}

static int report(pid_t clock)
{
  waitpid(clock, NULL, 0);
  static uint64_t count[BINS];
  uint64_t total = 0;
  double sum_ns = 0;
  for (int child = 0; child < options.children; child++) {
    sum_ns += (double)latencies[child].sum_ns;
    for (int bin = 0; bin < BINS; bin++) {
      count[bin] += latencies[child].count[bin];
      total += latencies[child].count[bin];
    }
  }
  if (stage->failed || stage->round_trips == 0 || total == 0) {
    fprintf(stderr, "served: %s\n",
            stage->failed ? "not every child reached the start" : "no message was answered");
    return 1;
  }
  const account_t *from = &accounts[0], *to = &accounts[1];
  double span_s = (double)(to->at_ns - from->at_ns) * 1e-9;
  double each = 1e6 / (double)stage->round_trips; /* microseconds a message */
  printf("{\"seconds\": %.6f, \"rate\": %.2f, \"mean_us\": %.3f, \"median_us\": %.3f, "
         "\"p99_us\": %.3f, \"dispatcher_us\": %.4f, \"helpers_us\": %.4f, \"children_us\": %.4f, "
         "\"turns\": %.5f, \"busy\": %.4f}\n",
         span_s, (double)stage->round_trips / span_s, sum_ns / (double)total / 1000,
         quantile_us(count, total, 0.5), quantile_us(count, total, 0.99),
         (to->dispatcher_s - from->dispatcher_s) * each, (to->helpers_s - from->helpers_s) * each,
         (to->children_s - from->children_s) * each,
         (double)(to->turns - from->turns) / (double)stage->round_trips,
         (to->busy_s - from->busy_s) / span_s / options.helpers);
  return 0;
}

/* Take our own pairs out of the arguments; stage_options() refuses what is left and unknown. */
static int take_own(int argc, char **argv)
{
  int kept = 1;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && strcmp(argv[i], "--service-us") == 0) {
      service_ns = (uint64_t)(atof(argv[i + 1]) * 1000);
    } else if (i + 1 < argc && strcmp(argv[i], "--kind") == 0) {
      is_core = strcmp(argv[i + 1], "core") == 0;
    } else {
      argv[kept++] = argv[i];
      if (i + 1 < argc)
        argv[kept++] = argv[i + 1];
    }
  }
  return kept;
}

static void *shared(size_t bytes)
{
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    stage_die("mmap");
  return memory;
}

int main(int argc, char **argv)
{
  options = stage_options(take_own(argc, argv), argv);
  stage = stage_open();
  latencies = shared(sizeof *latencies * (size_t)options.children);
  accounts = shared(2 * sizeof *accounts);
  int status = shm_register(serve, "serve", sizeof(block_t));
  if (status < 0)
    return failed("shm_register", status);
  pid_t clock = start_clock();
  static shm_main_bundle_t bundles[STAGE_MAX_CHILDREN];
  for (int i = 0; i < options.children; i++)
    bundles[i] = (shm_main_bundle_t){run_child, NULL};
  status = shm_launch(options.children, bundles, ARENA_BYTES, options.helpers);
  if (status < 0) {
    kill(clock, SIGKILL);
    waitpid(clock, NULL, 0);
    return failed("shm_launch", status);
  }
  return report(clock);
}
