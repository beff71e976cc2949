/* scoreboard -- see scoreboard.h. */
#include "ipc/scoreboard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"
#include "memory/available.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum {
  LAYOUT = 3, /* raise it when a field changes its meaning or offset and no struct its size */
  TRACE_LEAST = 64
};
static const char MAGIC[8] = "shmgpuB";

/* What a monitor checks before it reads anything else. */
typedef struct header {
  char magic[8]; /* written last */
  uint32_t layout;
  uint32_t header_bytes, broker_bytes, child_bytes, helper_bytes, trace_bytes, function_bytes;
  uint32_t child_page_bytes, helper_page_bytes;
  int32_t children, helpers;
  uint32_t trace_records;
  _Atomic uint32_t functions; /* rows of the table of names that are filled */
  uint32_t reserved;
} header_t;
_Static_assert(sizeof(header_t) == 64, "what follows stays aligned");

/* How this process came to its mapping. */
enum view { NONE, WRITER /* the parent, and before the first fork */, ROLE, MONITOR };

static shmi_scoreboard_t scoreboard;
static enum view view;
static int scoreboard_fd = -1; /* the writer's: a monitor finds it by its name under /proc */
static char *mapping;
static size_t mapping_bytes;
static shm_function_row_t *function_rows;
static _Atomic uint64_t *own_bytes; /* this role's byte counters */
static _Atomic uint64_t fallback_bytes[SHM_BYTES_KINDS]; /* of a process that has no page */

/* In the parent, by slot: the pages of attached programs. NULL: there is none. */
static shmi_child_page_t **pages_apart;
/* In an attached program: its own page. */
static shmi_child_page_t *own_page;
static int own_child = -1;

/* Any thread may read while another one leaves the broker. So the mapping stays until all readers
 * that had begun are done; later readers find nothing. */
static _Atomic int is_shown;
static _Atomic int readers;
static pthread_once_t forks_are_told = PTHREAD_ONCE_INIT;

/* Threads that were reading when a process forked do not exist in the fork. */
static void forget_readers(void) { atomic_store(&readers, 0); }
static void tell_forks(void) { pthread_atfork(NULL, NULL, forget_readers); }

static void show(void) {
  pthread_once(&forks_are_told, tell_forks);
  atomic_store(&is_shown, 1);
}

static void hide(void) {
  atomic_store(&is_shown, 0);
  while (atomic_load(&readers) != 0) {
    struct timespec moment = {.tv_nsec = 10000};
    nanosleep(&moment, NULL);
  }
}

/* Nobody is counted before the first scoreboard is shown, when forks are not told yet. */
static int begin_reading(void) {
  if (!atomic_load(&is_shown)) return 0;
  atomic_fetch_add(&readers, 1);
  if (atomic_load(&is_shown)) return 1;
  atomic_fetch_sub(&readers, 1);
  return 0;
}

/* Returns what it is given, for the caller to return. */
static int end_reading(int found) {
  atomic_fetch_sub(&readers, 1);
  return found;
}

static size_t pages(size_t bytes) { return shmi_memory_in_pages(bytes); }

static size_t child_page_bytes(void) { return pages(sizeof(shmi_child_page_t)); }
static size_t helper_page_bytes(void) { return pages(sizeof(shmi_helper_page_t)); }

/* Where each part lies, in bytes from the start. */
typedef struct parts {
  size_t broker, child_stats, helper_stats, detail, functions, child_pages, helper_pages, trace;
  size_t total;
} parts_t;

static size_t advance(size_t *at, size_t bytes) {
  size_t start = *at;
  *at += bytes;
  return start;
}

static parts_t lay_out(int children, int helpers, uint32_t ring) {
  size_t at = sizeof(header_t), child_count = (size_t)children, helper_count = (size_t)helpers;
  parts_t parts;
  parts.broker = advance(&at, sizeof(shm_broker_stats_t));
  parts.child_stats = advance(&at, child_count * sizeof(shm_child_stats_t));
  parts.helper_stats = advance(&at, helper_count * sizeof(shm_helper_stats_t));
  parts.detail = advance(&at, SHMI_SCOREBOARD_DETAIL_BYTES);
  at = pages(at);
  /* Rows that are never touched take no memory. */
  parts.functions = advance(&at, pages(SHM_MAX_FUNCTIONS * sizeof(shm_function_row_t)));
  parts.child_pages = advance(&at, child_count * child_page_bytes());
  parts.helper_pages = advance(&at, helper_count * helper_page_bytes());
  parts.trace = advance(&at, pages(ring * sizeof(shm_trace_record_t)));
  parts.total = at;
  return parts;
}

static void adopt(void *made, const parts_t *parts, int children, int helpers, uint32_t ring) {
  mapping = made;
  mapping_bytes = parts->total;
  scoreboard = (shmi_scoreboard_t){
      .broker = (shm_broker_stats_t *)(void *)(mapping + parts->broker),
      .child_stats = (shm_child_stats_t *)(void *)(mapping + parts->child_stats),
      .helper_stats = (shm_helper_stats_t *)(void *)(mapping + parts->helper_stats),
      .detail = mapping + parts->detail,
      .child_pages = mapping + parts->child_pages,
      .helper_pages = mapping + parts->helper_pages,
      .trace = (shm_trace_record_t *)(void *)(mapping + parts->trace),
      .trace_records = ring,
      .children = children,
      .helpers = helpers};
  function_rows = (shm_function_row_t *)(void *)(mapping + parts->functions);
}

static header_t *header(void) { return (header_t *)(void *)mapping; }

/* A header as this build writes it, except its magic. */
static header_t header_of(int children, int helpers, uint32_t ring) {
  return (header_t){.layout = LAYOUT,
                    .header_bytes = sizeof(header_t),
                    .broker_bytes = sizeof(shm_broker_stats_t),
                    .child_bytes = sizeof(shm_child_stats_t),
                    .helper_bytes = sizeof(shm_helper_stats_t),
                    .trace_bytes = sizeof(shm_trace_record_t),
                    .function_bytes = sizeof(shm_function_row_t),
                    .child_page_bytes = (uint32_t)child_page_bytes(),
                    .helper_page_bytes = (uint32_t)helper_page_bytes(),
                    .children = children,
                    .helpers = helpers,
                    .trace_records = ring};
}

/* The same file, open for reading only; without /proc the descriptor stays as it is. */
static int for_reading(int fd) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int opened = open(path, O_RDONLY | O_CLOEXEC);
  if (opened < 0 || shmi_descriptor_own(opened) < 0) return fd;
  shmi_descriptor_close(&fd);
  return opened;
}

int shmi_scoreboard_create(int children, int helpers, uint32_t trace_records) {
  shm_monitor_close(); /* one scoreboard for each process: its own comes before another broker's */
  uint32_t ring = 0;
  if (trace_records > 0) {
    ring = TRACE_LEAST;
    while (ring < trace_records && ring < SHM_MAX_TRACE) ring *= 2;
  }
  parts_t parts = lay_out(children, helpers, ring);
  int fd = shmi_descriptor_own(memfd_create("shmgpu-scoreboard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return SHM_ESYSTEM;
  void *made = MAP_FAILED;
  pages_apart = calloc((size_t)children, sizeof *pages_apart);
  if (pages_apart != NULL && ftruncate(fd, (off_t)parts.total) == 0) {
    made = mmap(NULL, parts.total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  /* Everybody who maps it can rely on its size, and it can be written to only through this mapping,
   * which forked roles inherit. */
  if (made == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW |
                                                       F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    int saved = errno;
    if (made != MAP_FAILED) munmap(made, parts.total);
    free(pages_apart);
    pages_apart = NULL;
    shmi_descriptor_close(&fd);
    errno = saved;
    return SHM_ESYSTEM;
  }
  scoreboard_fd = for_reading(fd);
  adopt(made, &parts, children, helpers, ring);
  view = WRITER;
  own_bytes = fallback_bytes;
  *header() = header_of(children, helpers, ring);
  atomic_thread_fence(memory_order_release);
  memcpy(header()->magic, MAGIC, sizeof MAGIC);
  show();
  return SHM_OK;
}

/* A forked role has closed its descriptors: its copy is gone, and the number may have been
 * reused. */
static void close_descriptor(void) {
  if (shmi_descriptor_owns(scoreboard_fd)) shmi_descriptor_close(&scoreboard_fd);
  scoreboard_fd = -1;
}

static void drop_page(shmi_child_page_t **page) {
  if (*page != NULL) munmap(*page, child_page_bytes());
  *page = NULL;
}

static void drop_pages(void) {
  for (int i = 0; pages_apart != NULL && i < scoreboard.children; i++) drop_page(&pages_apart[i]);
  free(pages_apart);
  pages_apart = NULL;
}

void shmi_scoreboard_destroy(void) {
  hide();
  drop_pages();
  drop_page(&own_page);
  own_child = -1;
  if (mapping != NULL) munmap(mapping, mapping_bytes);
  close_descriptor();
  mapping = NULL;
  mapping_bytes = 0;
  own_bytes = NULL;
  function_rows = NULL;
  view = NONE;
  memset(&scoreboard, 0, sizeof scoreboard);
}

const shmi_scoreboard_t *shmi_scoreboard(void) {
  return view == WRITER || view == ROLE ? &scoreboard : NULL;
}

int shmi_scoreboard_become(int role, int index) {
  close_descriptor();
  view = ROLE;
  drop_pages(); /* copies of the parent's mappings */
  if (mprotect(mapping, mapping_bytes, PROT_READ) != 0) return SHM_ESYSTEM;
  char *own = role == SHM_ROLE_HELPER ? (char *)shmi_scoreboard_helper(index)
                                      : (char *)shmi_scoreboard_child(index);
  size_t bytes = role == SHM_ROLE_HELPER ? helper_page_bytes() : child_page_bytes();
  if (mprotect(own, bytes, PROT_READ | PROT_WRITE) != 0) return SHM_ESYSTEM;
  own_bytes = role == SHM_ROLE_HELPER ? shmi_scoreboard_helper(index)->bytes
                                      : shmi_scoreboard_child(index)->bytes;
  return SHM_OK;
}

void shmi_scoreboard_name(uint32_t index, uint64_t function, const char *name) {
  if (view != WRITER || index >= SHM_MAX_FUNCTIONS) return;
  shm_function_row_t *row = &function_rows[index];
  row->function = function;
  strncpy(row->name, name, sizeof row->name - 1);
  atomic_store_explicit(&header()->functions, index + 1, memory_order_release);
}

void shmi_scoreboard_reset_helper(int helper) {
  /* Counters continue over generations; only what refers to deliveries is reset. */
  shmi_helper_page_t *page = shmi_scoreboard_helper(helper);
  atomic_store(&page->executing, 0);
  atomic_store(&page->executing_since_ns, 0);
  atomic_store(&page->deferred_row, 0);
  memset(page->finished, 0, sizeof page->finished);
}

static shmi_child_page_t *child_page(int child) {
  return (shmi_child_page_t *)(void *)(scoreboard.child_pages + (size_t)child * child_page_bytes());
}

shmi_child_page_t *shmi_scoreboard_child(int child) {
  if (own_page != NULL && child == own_child) return own_page;
  if (pages_apart != NULL && pages_apart[child] != NULL) return pages_apart[child];
  return child_page(child);
}

shmi_helper_page_t *shmi_scoreboard_helper(int helper) {
  return (shmi_helper_page_t *)(void *)(scoreboard.helper_pages + (size_t)helper * helper_page_bytes());
}

/* ---- pages of attached programs ---- */

static uint64_t load(_Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void copy(_Atomic uint64_t *to, _Atomic uint64_t *from) {
  atomic_store_explicit(to, load(from), memory_order_relaxed);
}

static void copy_page(shmi_child_page_t *to, shmi_child_page_t *from) {
  copy(&to->frames_sent, &from->frames_sent);
  copy(&to->frames_received, &from->frames_received);
  copy(&to->arena_used_bytes, &from->arena_used_bytes);
  for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) copy(&to->bytes[kind], &from->bytes[kind]);
}

int shmi_scoreboard_make_page(int child) {
  size_t bytes = child_page_bytes();
  int fd = shmi_descriptor_own(memfd_create("shmgpu-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return SHM_ESYSTEM;
  void *made = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (made == MAP_FAILED) {
    shmi_error_detail_errno("making an attached program's page");
    shmi_descriptor_close(&fd);
    return SHM_ESYSTEM;
  }
  shmi_scoreboard_drop_page(child);
  copy_page(made, child_page(child));
  pages_apart[child] = made;
  return fd;
}

void shmi_scoreboard_drop_page(int child) {
  if (pages_apart == NULL || pages_apart[child] == NULL) return;
  copy_page(child_page(child), pages_apart[child]);
  drop_page(&pages_apart[child]);
}

void shmi_scoreboard_copy_pages(void) {
  for (int i = 0; pages_apart != NULL && i < scoreboard.children; i++) {
    if (pages_apart[i] != NULL) copy_page(child_page(i), pages_apart[i]);
  }
}

void shmi_scoreboard_trace(const shm_trace_record_t *record) {
  if (scoreboard.trace_records == 0) return;
  uint64_t number = scoreboard.broker->trace_written;
  /* A reader that sees any byte of this record must also see the count of those before it: so it
     knows that this place is being overwritten. */
  atomic_thread_fence(memory_order_release);
  scoreboard.trace[number & (scoreboard.trace_records - 1)] = *record;
  /* Readers in other processes read the count first. */
  __atomic_store_n(&scoreboard.broker->trace_written, number + 1, __ATOMIC_RELEASE);
}

/* ---- the public readers ---- */

void shm_count_bytes(int kind, uint64_t bytes) {
  if (kind < 0 || kind >= SHM_BYTES_KINDS || !begin_reading()) return;
  if (own_bytes != NULL) shmi_count(&own_bytes[kind], bytes);
  end_reading(0);
}

int shm_get_broker_stats(shm_broker_stats_t *stats) {
  if (!begin_reading()) return SHM_ENOT_RUNNING;
  *stats = *scoreboard.broker;
  stats->in_flight = 0; /* added up here, by readers, to save the dispatcher the work */
  for (int h = 0; h < scoreboard.helpers; h++) stats->in_flight += scoreboard.helper_stats[h].in_flight;
  return end_reading(SHM_OK);
}

uint64_t shm_broadcast_version(int pool) {
  if (pool < 0 || pool >= SHM_MAX_POOLS || !begin_reading()) return 0;
  uint64_t version = __atomic_load_n(&scoreboard.broker->pool_version[pool], __ATOMIC_ACQUIRE);
  end_reading(SHM_OK);
  return version;
}

int shm_get_child_stats(int child, shm_child_stats_t *stats) {
  if (!begin_reading()) return SHM_ENOT_RUNNING;
  if (child < 0 || child >= scoreboard.children) return end_reading(SHM_EBAD_CONFIG);
  *stats = scoreboard.child_stats[child];
  shmi_child_page_t *page = shmi_scoreboard_child(child);
  stats->frames_sent = load(&page->frames_sent);
  stats->frames_received = load(&page->frames_received);
  stats->arena_used_bytes = load(&page->arena_used_bytes);
  for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) stats->bytes[kind] = load(&page->bytes[kind]);
  return end_reading(SHM_OK);
}

/* Of a helper that is ready. */
static int state_of_session(uint64_t session) {
  switch (session) {
    case SHM_SESSION_NONE: return SHM_HELPER_UNLOADED;
    case SHM_SESSION_LOADING: return SHM_HELPER_LOADING;
    default: return SHM_HELPER_READY;
  }
}

int shm_get_helper_stats(int helper, shm_helper_stats_t *stats) {
  if (!begin_reading()) return SHM_ENOT_RUNNING;
  if (helper < 0 || helper >= scoreboard.helpers) return end_reading(SHM_EBAD_CONFIG);
  *stats = scoreboard.helper_stats[helper];
  shmi_helper_page_t *page = shmi_scoreboard_helper(helper);
  if (stats->state == SHM_HELPER_READY) stats->state = state_of_session(load(&page->session));
  stats->frames_sent = load(&page->frames_sent);
  stats->frames_received = load(&page->frames_received);
  stats->went_on = load(&page->went_on);
  stats->goes_on = load(&page->deferred_row) != 0;
  stats->busy_ns += load(&page->deferred_ns);
  stats->collectives = load(&page->collectives);
  stats->collective_bytes = load(&page->collective_bytes);
  stats->collective_wait_ns = load(&page->collective_wait_ns);
  stats->naive_all_reduces = load(&page->all_reduces[SHM_ALGORITHM_NAIVE]);
  stats->ring_all_reduces = load(&page->all_reduces[SHM_ALGORITHM_RING]);
  stats->all_to_all_all_reduces = load(&page->all_reduces[SHM_ALGORITHM_ALL_TO_ALL]);
  for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) stats->bytes[kind] = load(&page->bytes[kind]);
  return end_reading(SHM_OK);
}

int shm_helper_goes_on(int helper) {
  if (!begin_reading()) return 0;
  return end_reading(helper >= 0 && helper < scoreboard.helpers &&
                     atomic_load_explicit(&shmi_scoreboard_helper(helper)->deferred_row,
                                          memory_order_acquire) != 0);
}

int shm_read_trace(uint64_t *next, shm_trace_record_t *out, int max) {
  if (!begin_reading()) return 0;
  if (scoreboard.trace_records == 0) return end_reading(0);
  uint64_t ring = scoreboard.trace_records;
  /* The oldest record is overwritten next: only the writer itself may read it. */
  uint64_t kept = view == WRITER ? ring : ring - 1;
  uint64_t written = __atomic_load_n(&scoreboard.broker->trace_written, __ATOMIC_ACQUIRE);
  uint64_t oldest = written > kept ? written - kept : 0;
  if (*next < oldest) *next = oldest;
  int count = 0;
  while (count < max && *next < written) {
    out[count++] = scoreboard.trace[*next & (ring - 1)];
    ++*next;
  }
  if (view == WRITER) return end_reading(count);
  /* Records that were overwritten while they were copied may be torn: drop them from the front. */
  atomic_thread_fence(memory_order_acquire);
  written = __atomic_load_n(&scoreboard.broker->trace_written, __ATOMIC_RELAXED);
  oldest = written > kept ? written - kept : 0;
  uint64_t first = *next - (uint64_t)count;
  if (oldest <= first) return end_reading(count);
  int torn = oldest - first < (uint64_t)count ? (int)(oldest - first) : count;
  memmove(out, out + torn, (size_t)(count - torn) * sizeof *out);
  return end_reading(count - torn);
}

/* ---- the monitor: another broker's scoreboard, read-only ---- */

static int refuse(const char *why) {
  shmi_error_detail_set("%s", why);
  return SHM_ENO_BOARD;
}

/* SHM_OK when a file of that size, with that header, is a scoreboard of this build. */
static int check_header(const header_t *found, uint64_t bytes) {
  if (memcmp(found->magic, MAGIC, sizeof MAGIC) != 0) return refuse("it does not begin as one");
  header_t expected = header_of(found->children, found->helpers, found->trace_records);
  if (memcmp(&expected.layout, &found->layout,
             offsetof(header_t, functions) - offsetof(header_t, layout)) != 0) {
    return refuse("it is of another version of shmgpu");
  }
  uint32_t ring = found->trace_records;
  int ring_is_good = ring == 0 || (ring >= TRACE_LEAST && ring <= SHM_MAX_TRACE &&
                                   (ring & (ring - 1)) == 0);
  if (found->children < 1 || found->children > SHM_MAX_CHILDREN || found->helpers < 1 ||
      found->helpers > SHM_MAX_HELPERS || !ring_is_good) {
    return refuse("its header is out of range");
  }
  if (lay_out(found->children, found->helpers, ring).total != bytes) {
    return refuse("its size is not what its header says");
  }
  return SHM_OK;
}

/* Map the scoreboard in fd, trusting nothing. */
static int map_foreign(int fd, enum view as) {
  if (mapping != NULL) return SHM_ENESTED;
  int seals = fcntl(fd, F_GET_SEALS);
  struct stat file;
  if (seals < 0 || fstat(fd, &file) != 0) return refuse("it is no memory file");
  /* If it were not sealed, it could shrink under the mapping, and a read would end in SIGBUS. */
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) return refuse("it is not sealed");
  if (file.st_size < (off_t)sizeof(header_t)) return refuse("it is too short");
  size_t bytes = (size_t)file.st_size;
  void *made = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (made == MAP_FAILED) {
    shmi_error_detail_errno("mapping a scoreboard");
    return SHM_ESYSTEM;
  }
  header_t found; /* a copy, so that what was checked is what is used */
  memcpy(&found, made, sizeof found);
  int status = check_header(&found, bytes);
  if (status != SHM_OK) {
    munmap(made, bytes);
    return status;
  }
  parts_t parts = lay_out(found.children, found.helpers, found.trace_records);
  adopt(made, &parts, found.children, found.helpers, found.trace_records);
  view = as;
  return SHM_OK;
}

int shm_monitor_open(int fd) {
  int status = map_foreign(fd, MONITOR);
  if (status == SHM_OK) show();
  return status;
}

int shmi_scoreboard_join(int fd, int child, int page_fd) {
  shm_monitor_close();
  int status = map_foreign(fd, ROLE);
  if (status != SHM_OK) return status;
  int seals = fcntl(page_fd, F_GET_SEALS);
  struct stat file;
  if (child < 0 || child >= scoreboard.children || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      fstat(page_fd, &file) != 0 || file.st_size < (off_t)child_page_bytes()) {
    shmi_error_detail_set("the broker's page for slot %d is not a sealed memory file of its size", child);
    return SHM_EREFUSED;
  }
  void *made = mmap(NULL, child_page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
  if (made == MAP_FAILED) {
    shmi_error_detail_errno("mapping a page");
    return SHM_ESYSTEM;
  }
  own_page = made;
  own_child = child;
  own_bytes = own_page->bytes;
  show();
  return SHM_OK;
}

int shmi_scoreboard_descriptor(void) { return scoreboard_fd; }

void shm_monitor_close(void) {
  if (view == MONITOR) shmi_scoreboard_destroy();
}

const char *shmi_scoreboard_function_name(uint64_t function) {
  static _Thread_local char name[sizeof function_rows->name];
  if (!begin_reading()) return NULL;
  int is_known = 0;
  uint32_t count = atomic_load_explicit(&header()->functions, memory_order_acquire);
  for (uint32_t i = 0; i < count && i < SHM_MAX_FUNCTIONS && !is_known; i++) {
    is_known = function_rows[i].function == function;
    if (is_known) memcpy(name, function_rows[i].name, sizeof name - 1);
  }
  return end_reading(is_known) ? name : NULL;
}

int shm_get_functions(shm_function_row_t *out, int max) {
  if (!begin_reading()) return SHM_ENOT_RUNNING;
  uint32_t count = atomic_load_explicit(&header()->functions, memory_order_acquire);
  if (count > SHM_MAX_FUNCTIONS) count = SHM_MAX_FUNCTIONS;
  if (max < 0) max = 0;
  if (count > (uint32_t)max) count = (uint32_t)max;
  for (uint32_t i = 0; i < count; i++) {
    out[i] = function_rows[i];
    out[i].name[sizeof out[i].name - 1] = '\0';
  }
  return end_reading((int)count);
}
