/* allocator -- allocation traces, replayed against our TLSF and against other people's malloc.
 *
 *   build:  cc -std=c11 -D_GNU_SOURCE -O2 -Icsrc benchmarks/c/allocator.c csrc/memory/tlsf.c \
 *              csrc/base/status.c -o allocator
 *   usage:  allocator [--rounds N] [--mimalloc LIBRARY] TRACE...      (N is 5 unless told)
 *
 * Every round of every trace runs twice, first glibc, then tlsf (A B A B ...), each in a
 * process that was executed for it, so that all memory is untouched: tlsf works over a fresh
 * memfd, mapped shared, of twice the trace's peak (at least 64 MiB). With --mimalloc it runs
 * once, on the malloc of that library, which takes glibc's place in that process. Prints one
 * line of JSON for each run and exits 0, or a sentence on stderr and exits 1. Its keys:
 *
 *   allocator            "glibc", "tlsf" or "mimalloc"
 *   trace, round         the trace's file name without its ending; from 0
 *   operations           allocations and frees in the trace
 *   ns_per_op            first replay on untouched memory, faults included. As a user would,
 *                        it writes a byte to every page of a block when it gets it
 *   warm_ns_per_op       the same replay once more in the same process
 *   median_pair_ns       one free and one malloc, 64 B to 1 KiB, among 1,024 live blocks of
 *                        such sizes: median over batches of 32 pairs
 *   peak_live_bytes      most bytes that the trace had asked for and not yet freed
 *   peak_footprint_bytes heap_bytes + metadata_bytes
 *   heap_bytes           tlsf: highest byte ever handed out, in pages. The others: growth of
 *                        the peak resident set, their block headers included
 *   metadata_bytes       tlsf: resident pages of the side table. The others: 0
 *   footprint_ratio      peak_footprint_bytes / peak_live_bytes
 *
 * heap, metadata and footprint are those of the first replay.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "memory/tlsf.h"

#define PAGE 4096
#define PAIR_BLOCKS 1024u
#define PAIR_BATCH 32u
#define PAIR_SAMPLES 4001u

__attribute__((noreturn)) static void die(const char *what) {
  fprintf(stderr, "allocator: %s: %s\n", what, strerror(errno));
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nothing of the benchmark's own comes from malloc, so that glibc's heap starts empty. */
static void *pages(size_t bytes) {
  void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (map == MAP_FAILED) die("cannot map memory");
  return map;
}

/* ---- traces ------------------------------------------------------------------------ */

typedef struct {
  uint64_t size;  /* 0: free */
  uint32_t block; /* number of the allocation */
} event_t;

typedef struct {
  event_t *events;
  size_t count, blocks;
  uint64_t peak_bytes;
} trace_t;

static trace_t load(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (fd == -1 || fstat(fd, &info) == -1) die(path);
  size_t bytes = (size_t)info.st_size;
  char *text = pages(bytes + 1);
  for (size_t done = 0; done < bytes;) {
    ssize_t got = read(fd, text + done, bytes - done);
    if (got <= 0) die(path);
    done += (size_t)got;
  }
  close(fd);
  size_t lines = 1;
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  trace_t trace = {.events = pages(lines * sizeof(event_t))};
  uint64_t live = 0;
  uint64_t *sizes = pages(lines * sizeof *sizes);
  for (char *line = text; *line;) {
    char *end = strchr(line, '\n');
    if (!end) end = line + strlen(line);
    if (*line != '#' && end > line) {
      unsigned long long number = strtoull(line + 1, NULL, 10);
      bool valid = number && (*line == '+' || (*line == '-' && number <= trace.blocks));
      if (!valid) {
        fprintf(stderr, "allocator: %s holds a line that is neither +BYTES nor -AGE\n", path);
        exit(1);
      }
      event_t *event = &trace.events[trace.count++];
      if (*line == '+') {
        *event = (event_t){number, (uint32_t)trace.blocks};
        sizes[trace.blocks++] = number;
        live += number;
      } else {
        *event = (event_t){0, (uint32_t)(trace.blocks - number)};
        live -= sizes[event->block];
      }
      if (live > trace.peak_bytes) trace.peak_bytes = live;
    }
    line = *end ? end + 1 : end;
  }
  if (!trace.count) {
    fprintf(stderr, "allocator: %s is empty\n", path);
    exit(1);
  }
  return trace;
}

/* ---- the allocators ---------------------------------------------------------------- */

static shmi_tlsf_t *tlsf;

static inline void *get(bool ours, size_t size) {
  void *block = ours ? shmi_tlsf_malloc(tlsf, size, NULL) : malloc(size);
  if (!block) {
    fprintf(stderr, "allocator: %zu bytes could not be had\n", size);
    exit(1);
  }
  return block;
}

static inline void put(bool ours, void *block) {
  if (!ours) {
    free(block);
  } else if (shmi_tlsf_free(tlsf, block) != SHM_OK) {
    fprintf(stderr, "allocator: a block could not be freed\n");
    exit(1);
  }
}

static inline void touch(void *block, size_t size) {
  volatile unsigned char *bytes = block;
  for (size_t i = 0; i < size; i += PAGE) bytes[i] = 1;
  bytes[size - 1] = 1;
}

/* Replays and frees what is left; the time of the trace itself. */
static inline uint64_t replay(bool ours, const trace_t *trace, void **blocks) {
  uint64_t begin = now_ns();
  for (size_t i = 0; i < trace->count; i++) {
    const event_t *event = &trace->events[i];
    if (event->size) {
      touch(blocks[event->block] = get(ours, event->size), event->size);
    } else {
      put(ours, blocks[event->block]);
      blocks[event->block] = NULL;
    }
  }
  uint64_t taken = now_ns() - begin;
  for (size_t i = 0; i < trace->blocks; i++) {
    if (blocks[i]) put(ours, blocks[i]);
    blocks[i] = NULL;
  }
  return taken;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline double median_pair(bool ours) {
  double *samples = pages(PAIR_SAMPLES * sizeof *samples);
  void **live = pages(PAIR_BLOCKS * sizeof *live);
  uint32_t seed = 12345;
  for (unsigned i = 0; i < PAIR_BLOCKS; i++) touch(live[i] = get(ours, 64 + i % 961), 64);
  for (unsigned s = 0; s < PAIR_SAMPLES; s++) {
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < PAIR_BATCH; i++) {
      seed = seed * 1664525u + 1013904223u;
      void **slot = &live[seed >> 22];
      put(ours, *slot);
      *slot = get(ours, 64 + ((seed >> 8) & 0xffff) * 961 / 65536);
      *(volatile unsigned char *)*slot = 1;
    }
    samples[s] = (double)(now_ns() - begin) / PAIR_BATCH;
  }
  for (unsigned i = 0; i < PAIR_BLOCKS; i++) put(ours, live[i]);
  qsort(samples, PAIR_SAMPLES, sizeof *samples, by_value);
  return samples[PAIR_SAMPLES / 2];
}

/* ---- memory ------------------------------------------------------------------------ */

static uint64_t status_kib(const char *key) {
  char text[8192];
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd == -1 ? -1 : read(fd, text, sizeof text - 1);
  if (got <= 0) die("cannot read /proc/self/status");
  close(fd);
  text[got] = 0;
  const char *at = strstr(text, key);
  return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static uint64_t metadata_bytes(void) {
  void *start;
  size_t bytes;
  shmi_tlsf_metadata(tlsf, &start, &bytes);
  size_t count = (bytes + PAGE - 1) / PAGE;
  unsigned char *resident = pages(count);
  if (mincore(start, bytes, resident) == -1) die("mincore");
  uint64_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += resident[i] & 1;
  return sum * PAGE;
}

static void make_arena(uint64_t peak_bytes) {
  size_t size = (size_t)peak_bytes * 2;
  if (size < (size_t)64 << 20) size = (size_t)64 << 20;
  size = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
  int fd = memfd_create("allocator", MFD_CLOEXEC);
  if (fd == -1 || ftruncate(fd, (off_t)size) == -1) die("cannot make a memfd");
  void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) die("cannot map the memfd");
  close(fd);
  int status = shmi_tlsf_create(&tlsf, base, size);
  if (status != SHM_OK) {
    fprintf(stderr, "allocator: %s\n", shm_status_text(status));
    exit(1);
  }
}

/* ---- runs -------------------------------------------------------------------------- */

/* Whose malloc this process has: a library that could not be preloaded leaves glibc's. */
static void check_malloc(bool wanted) {
  bool there = dlsym(RTLD_DEFAULT, "mi_version") != NULL;
  if (there == wanted) return;
  fprintf(stderr, "allocator: this process's malloc is %s\n",
          there ? "mimalloc's already" : "not mimalloc's: it could not be preloaded");
  exit(1);
}

static void run(const char *which, const char *path, const char *round) {
  bool ours = strcmp(which, "tlsf") == 0;
  check_malloc(strcmp(which, "mimalloc") == 0);
  trace_t trace = load(path);
  void **blocks = pages(trace.blocks * sizeof *blocks);
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  uint64_t metadata = 0, heap = 0;
  if (ours) make_arena(trace.peak_bytes);
  uint64_t before_kib = status_kib("VmRSS:");
  uint64_t first = ours ? replay(true, &trace, blocks) : replay(false, &trace, blocks);
  if (ours) {
    shm_arena_stats_t stats;
    shmi_tlsf_stats(tlsf, &stats);
    heap = (stats.footprint_bytes + PAGE - 1) / PAGE * PAGE;
    metadata = metadata_bytes();
  } else {
    heap = (status_kib("VmHWM:") - before_kib) * 1024;
  }
  uint64_t warm = ours ? replay(true, &trace, blocks) : replay(false, &trace, blocks);
  double pair_ns = ours ? median_pair(true) : median_pair(false);
  double count = (double)trace.count;
  printf("{\"allocator\": \"%s\", \"trace\": \"%.*s\", \"round\": %s, \"operations\": %zu, "
         "\"ns_per_op\": %.1f, \"warm_ns_per_op\": %.1f, \"median_pair_ns\": %.1f, "
         "\"peak_live_bytes\": %llu, \"peak_footprint_bytes\": %llu, \"heap_bytes\": %llu, "
         "\"metadata_bytes\": %llu, \"footprint_ratio\": %.4f}\n",
         which, (int)strcspn(name, "."), name, round, trace.count,
         (double)first / count, (double)warm / count, pair_ns,
         (unsigned long long)trace.peak_bytes, (unsigned long long)(heap + metadata),
         (unsigned long long)heap, (unsigned long long)metadata,
         (double)(heap + metadata) / (double)trace.peak_bytes);
}

static void run_in_fresh_process(const char *which, const char *library, char *path, int round) {
  char number[16];
  snprintf(number, sizeof number, "%d", round);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == -1) die("fork");
  if (pid == 0) {
    if (library && setenv("LD_PRELOAD", library, 1) == -1) die("setenv");
    execl("/proc/self/exe", "allocator", "--run", which, path, number, (char *)NULL);
    die("cannot execute itself");
  }
  int status;
  if (waitpid(pid, &status, 0) != pid || status != 0) {
    fprintf(stderr, "allocator: the run of %s on %s failed\n", which, path);
    exit(1);
  }
}

int main(int argc, char **argv) {
  if (argc == 5 && strcmp(argv[1], "--run") == 0) {
    run(argv[2], argv[3], argv[4]);
    return 0;
  }
  int first = 1, rounds = 5;
  const char *mimalloc = NULL;
  for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
    if (strcmp(argv[first], "--rounds") == 0)
      rounds = atoi(argv[first + 1]);
    else if (strcmp(argv[first], "--mimalloc") == 0)
      mimalloc = argv[first + 1];
    else
      rounds = 0; /* an unknown name: fall through to the usage line */
  }
  if (first >= argc || rounds < 1) {
    fprintf(stderr, "usage: allocator [--rounds N] [--mimalloc LIBRARY] TRACE...\n");
    return 1;
  }
  for (int i = first; i < argc; i++) {
    for (int round = 0; round < rounds; round++) {
      if (mimalloc) {
        run_in_fresh_process("mimalloc", mimalloc, argv[i], round);
        continue;
      }
      run_in_fresh_process("glibc", NULL, argv[i], round);
      run_in_fresh_process("tlsf", NULL, argv[i], round);
    }
  }
  return 0;
}
