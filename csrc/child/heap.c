/* heap -- see heap.h. */
#include "child/heap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/frame.h"
#include "ipc/scoreboard.h"
#include "memory/tlsf.h"

typedef struct retired {
  struct retired *next;
  shmi_tlsf_t *tlsf;
  uint64_t base, bytes, mapping, mapping_bytes;
} retired_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static shmi_tlsf_t *heap;
static uint64_t heap_base, heap_bytes;
static retired_t *retired;
static shmi_child_page_t *page; /* where monitors read how full the arena is */
static _Thread_local int last_status;

int shmi_heap_open(uint64_t base, size_t bytes, int child) {
  page = shmi_scoreboard_child(child);
  int status = shmi_tlsf_create(&heap, (void *)(uintptr_t)base, bytes);
  heap_base = status == SHM_OK ? base : 0;
  heap_bytes = status == SHM_OK ? bytes : 0;
  return status;
}

static uint64_t live_blocks(const shmi_tlsf_t *tlsf) {
  shm_arena_stats_t stats;
  shmi_tlsf_stats(tlsf, &stats);
  return stats.live_blocks;
}

int shmi_heap_retire(uint64_t mapping, uint64_t mapping_bytes) {
  pthread_mutex_lock(&lock);
  int alive = heap != NULL && live_blocks(heap) > 0;
  if (alive) {
    retired_t *kept = malloc(sizeof *kept);
    if (kept != NULL) {
      *kept = (retired_t){.next = retired,
                          .tlsf = heap,
                          .base = heap_base,
                          .bytes = heap_bytes,
                          .mapping = mapping,
                          .mapping_bytes = mapping_bytes};
      retired = kept;
    } /* else the mapping is never given back, which is better than unmapping live memory */
  } else if (heap != NULL) {
    shmi_tlsf_destroy(heap);
  }
  heap = NULL;
  heap_base = heap_bytes = 0;
  pthread_mutex_unlock(&lock);
  return alive;
}

int shmi_heap_disown(uint64_t mapping, uint64_t mapping_bytes) {
  int in_use = pthread_mutex_trylock(&lock) != 0; /* a thread that was not forked held it */
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  if (!in_use) return shmi_heap_retire(mapping, mapping_bytes);
  heap = NULL; /* it may be in the middle of a change: never used again */
  retired = NULL;
  heap_base = heap_bytes = 0;
  return 1;
}

static void *keep(void *made, int status) {
  last_status = made != NULL ? SHM_OK : status;
  return made;
}

/* Unlock after an allocation or a free of the open heap. */
static void leave(const shmi_tlsf_t *tlsf) {
  if (tlsf != NULL) {
    atomic_store_explicit(&page->arena_used_bytes, shmi_tlsf_used_bytes(tlsf),
                          memory_order_relaxed);
  }
  pthread_mutex_unlock(&lock);
}

static shmi_tlsf_t *enter(int *status) {
  pthread_mutex_lock(&lock);
  *status = heap != NULL ? SHM_OK : SHM_ENOT_CHILD;
  return heap;
}

void *shm_malloc(size_t size) {
  int status;
  shmi_tlsf_t *tlsf = enter(&status);
  void *made = tlsf != NULL ? shmi_tlsf_malloc(tlsf, size, &status) : NULL;
  leave(tlsf);
  return keep(made, status);
}

void *shm_memalign(size_t alignment, size_t size) {
  int status;
  shmi_tlsf_t *tlsf = enter(&status);
  void *made = tlsf != NULL ? shmi_tlsf_memalign(tlsf, alignment, size, &status) : NULL;
  leave(tlsf);
  return keep(made, status);
}

void *shmi_heap_realloc(void *ptr, size_t size) {
  int status;
  shmi_tlsf_t *tlsf = enter(&status);
  void *made = tlsf != NULL ? shmi_tlsf_realloc(tlsf, ptr, size, &status) : NULL;
  leave(tlsf);
  return keep(made, status);
}

static int retired_free(void *ptr) {
  for (retired_t **at = &retired; *at != NULL; at = &(*at)->next) {
    retired_t *old = *at;
    if (!shmi_range_inside(old->base, old->bytes, (uint64_t)(uintptr_t)ptr, 1)) continue;
    int status = shmi_tlsf_free(old->tlsf, ptr);
    if (live_blocks(old->tlsf) == 0) {
      *at = old->next;
      shmi_tlsf_destroy(old->tlsf);
      munmap((void *)(uintptr_t)old->mapping, old->mapping_bytes);
      free(old);
    }
    return status;
  }
  return SHM_EBAD_FREE;
}

int shmi_heap_free(void *ptr) {
  if (ptr == NULL) return SHM_OK;
  pthread_mutex_lock(&lock);
  int status;
  if (heap != NULL && shmi_range_inside(heap_base, heap_bytes, (uint64_t)(uintptr_t)ptr, 1)) {
    status = shmi_tlsf_free(heap, ptr);
  } else {
    status = retired_free(ptr);
    if (status == SHM_EBAD_FREE && heap == NULL && retired == NULL) status = SHM_ENOT_CHILD;
  }
  leave(heap);
  return status;
}

size_t shm_usable_size(const void *ptr) {
  int status;
  const shmi_tlsf_t *tlsf = enter(&status);
  size_t bytes = tlsf != NULL ? shmi_tlsf_usable_size(tlsf, ptr) : 0;
  pthread_mutex_unlock(&lock);
  return bytes;
}

int shm_get_arena_stats(shm_arena_stats_t *stats) {
  int status;
  const shmi_tlsf_t *tlsf = enter(&status);
  if (tlsf != NULL) shmi_tlsf_stats(tlsf, stats);
  pthread_mutex_unlock(&lock);
  return status;
}

int shm_check(void) {
  int status;
  const shmi_tlsf_t *tlsf = enter(&status);
  if (tlsf != NULL) status = shmi_tlsf_check(tlsf);
  pthread_mutex_unlock(&lock);
  return status;
}

int shm_walk(int (*visit)(void *address, size_t bytes, int is_live, void *ctx), void *ctx) {
  int status;
  const shmi_tlsf_t *tlsf = enter(&status);
  if (tlsf != NULL) status = shmi_tlsf_walk(tlsf, visit, ctx);
  pthread_mutex_unlock(&lock);
  return status;
}

int shm_last_status(void) { return last_status; }
