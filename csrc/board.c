/* board -- see board.h. */
#include "board.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "descriptor.h"

enum { PAGE = 4096 };

static shmi_board_t board;
static char *mapping;
static size_t mapping_bytes;
static _Atomic uint64_t *own_bytes; /* this role's byte counters */
static _Atomic uint64_t fallback_bytes[SHM_BYTES_KINDS]; /* of a process that has no page */

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

static size_t parent_bytes(int children, int helpers) {
  return pages(sizeof(shm_broker_stats_t) + (size_t)children * sizeof(shm_child_stats_t) +
               (size_t)helpers * sizeof(shm_helper_stats_t) + SHMI_BOARD_DETAIL_BYTES);
}

static size_t child_page_bytes(void) { return pages(sizeof(shmi_child_page_t)); }
static size_t helper_page_bytes(void) { return pages(sizeof(shmi_helper_page_t)); }

int shmi_board_create(int children, int helpers, uint32_t trace_records) {
  uint32_t ring = 0;
  if (trace_records > 0) {
    ring = 64;
    while (ring < trace_records && ring < UINT32_C(1) << 24) ring *= 2;
  }
  size_t parent = parent_bytes(children, helpers);
  size_t child_part = (size_t)children * child_page_bytes();
  size_t helper_part = (size_t)helpers * helper_page_bytes();
  size_t total = parent + child_part + helper_part + pages(ring * sizeof(shm_trace_record_t));

  int fd = shmi_descriptor_own(memfd_create("shmgpu-board", MFD_CLOEXEC));
  if (fd < 0) return SHM_ESYSTEM;
  void *made = MAP_FAILED;
  if (ftruncate(fd, (off_t)total) == 0) {
    made = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  int saved = errno;
  shmi_descriptor_close(&fd); /* the mapping keeps the memory */
  if (made == MAP_FAILED) {
    errno = saved;
    return SHM_ESYSTEM;
  }
  mapping = made;
  mapping_bytes = total;
  board.broker = (shm_broker_stats_t *)mapping;
  board.child_stats = (shm_child_stats_t *)(void *)(mapping + sizeof(shm_broker_stats_t));
  board.helper_stats = (shm_helper_stats_t *)(void *)(board.child_stats + children);
  board.detail = (char *)(board.helper_stats + helpers);
  board.child_pages = mapping + parent;
  board.helper_pages = board.child_pages + child_part;
  board.trace = (shm_trace_record_t *)(void *)(board.helper_pages + helper_part);
  board.trace_records = ring;
  board.children = children;
  board.helpers = helpers;
  own_bytes = fallback_bytes;
  return SHM_OK;
}

void shmi_board_destroy(void) {
  if (mapping != NULL) munmap(mapping, mapping_bytes);
  mapping = NULL;
  mapping_bytes = 0;
  own_bytes = NULL;
  memset(&board, 0, sizeof board);
}

const shmi_board_t *shmi_board(void) { return mapping != NULL ? &board : NULL; }

int shmi_board_become(int role, int index) {
  if (mprotect(mapping, mapping_bytes, PROT_READ) != 0) return SHM_ESYSTEM;
  char *own = role == SHM_ROLE_HELPER ? (char *)shmi_board_helper(index)
                                      : (char *)shmi_board_child(index);
  size_t bytes = role == SHM_ROLE_HELPER ? helper_page_bytes() : child_page_bytes();
  if (mprotect(own, bytes, PROT_READ | PROT_WRITE) != 0) return SHM_ESYSTEM;
  own_bytes = role == SHM_ROLE_HELPER ? shmi_board_helper(index)->bytes
                                      : shmi_board_child(index)->bytes;
  return SHM_OK;
}

void shmi_board_reset_helper(int helper) {
  /* Counters go on over generations; only what names deliveries starts anew. */
  shmi_helper_page_t *page = shmi_board_helper(helper);
  atomic_store(&page->executing, 0);
  atomic_store(&page->executing_since_ns, 0);
  memset(page->finished, 0, sizeof page->finished);
}

shmi_child_page_t *shmi_board_child(int child) {
  return (shmi_child_page_t *)(void *)(board.child_pages + (size_t)child * child_page_bytes());
}

shmi_helper_page_t *shmi_board_helper(int helper) {
  return (shmi_helper_page_t *)(void *)(board.helper_pages + (size_t)helper * helper_page_bytes());
}

void shmi_board_trace(const shm_trace_record_t *record) {
  if (board.trace_records == 0) return;
  uint64_t number = board.broker->trace_written;
  board.trace[number & (board.trace_records - 1)] = *record;
  /* Readers in other processes look at the count first. */
  __atomic_store_n(&board.broker->trace_written, number + 1, __ATOMIC_RELEASE);
}

/* ---- the public readers ---- */

void shm_count_bytes(int kind, uint64_t bytes) {
  if (own_bytes != NULL && kind >= 0 && kind < SHM_BYTES_KINDS) shmi_count(&own_bytes[kind], bytes);
}

int shm_get_broker_stats(shm_broker_stats_t *stats) {
  if (mapping == NULL) return SHM_ENOT_RUNNING;
  *stats = *board.broker;
  return SHM_OK;
}

static uint64_t load(_Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

int shm_get_child_stats(int child, shm_child_stats_t *stats) {
  if (mapping == NULL) return SHM_ENOT_RUNNING;
  if (child < 0 || child >= board.children) return SHM_EBAD_CONFIG;
  *stats = board.child_stats[child];
  shmi_child_page_t *page = shmi_board_child(child);
  stats->frames_sent = load(&page->frames_sent);
  stats->frames_received = load(&page->frames_received);
  stats->arena_used_bytes = load(&page->arena_used_bytes);
  for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) stats->bytes[kind] = load(&page->bytes[kind]);
  return SHM_OK;
}

int shm_get_helper_stats(int helper, shm_helper_stats_t *stats) {
  if (mapping == NULL) return SHM_ENOT_RUNNING;
  if (helper < 0 || helper >= board.helpers) return SHM_EBAD_CONFIG;
  *stats = board.helper_stats[helper];
  shmi_helper_page_t *page = shmi_board_helper(helper);
  stats->frames_sent = load(&page->frames_sent);
  stats->frames_received = load(&page->frames_received);
  for (int kind = 0; kind < SHM_BYTES_KINDS; kind++) stats->bytes[kind] = load(&page->bytes[kind]);
  return SHM_OK;
}

int shm_read_trace(uint64_t *next, shm_trace_record_t *out, int max) {
  if (mapping == NULL || board.trace_records == 0) return 0;
  uint64_t written = __atomic_load_n(&board.broker->trace_written, __ATOMIC_ACQUIRE);
  uint64_t oldest = written > board.trace_records ? written - board.trace_records : 0;
  if (*next < oldest) *next = oldest;
  int count = 0;
  while (count < max && *next < written) {
    out[count++] = board.trace[*next & (board.trace_records - 1)];
    ++*next;
  }
  return count;
}
