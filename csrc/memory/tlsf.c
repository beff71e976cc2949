/* tlsf -- two-level segregated fit with its metadata out of band.
 *
 * M. Masmano, I. Ripoll, A. Crespo, J. Real, "TLSF: a new dynamic memory allocator for
 * real-time systems", ECRTS 2004: free blocks hang in lists by size class, the first level
 * being a power of two and the second its linear subdivision; two levels of bitmaps find the
 * next class that is not empty in two bit scans.
 *
 * What differs here is where the metadata is kept. An arena is written by its child, by every
 * helper and by DMA, so a list inside it could be damaged, and its fresh pages are expensive (a
 * page of a memfd costs a fault and its zeroing). So no metadata is kept in the arena:
 *
 *   rows    32 private bytes for each 4 KiB of arena, that is for 64 granules: a bit for each
 *           granule where a block starts, a bit for each where a free one starts, and a word for
 *           each block that crosses the row's edge: one that runs on into the next row, and one
 *           that began in an earlier row and ends here.
 *   nodes   one 20-byte record for each free block: where, how long, its list links. Records
 *           are reused last in, first out, so the pool stays small and warm.
 *
 * A live block's length is the distance to the next start in its row, or the row's word about the
 * block that runs on; a free one's is in its node. So every question about a block is answered by
 * one row, and whether the block before it is free by that row or the one before.
 *
 * The gain: a stray write damages data, never the allocator; whether an address is the start of a
 * live block takes a look at two bits, so double, foreign and interior frees are always noticed;
 * 64-byte blocks cost 64 bytes. The price: 0.8 % of the arena below the highest block, in whole
 * pages, and 20 bytes for each free block at a time.
 *
 * Budget of the hot path. malloc: two bit scans, at most SCAN_LIMIT nodes looked at, at most
 * three rows and two nodes written. free: at most four rows and three nodes. Free blocks inside
 * one row hang in that row's chain, which is walked: free blocks never touch, so it has at most 32
 * nodes, as a rule one. If nothing larger is free, malloc looks at up to LAST_RESORT_LIMIT nodes of
 * each smaller class. No loop depends on the number of blocks; no system call; no byte of the arena
 * touched.
 *
 * Three strengths of checking: arguments are checked in every build; shmi_tlsf_check() is
 * called by tests; -DSHMI_TLSF_PARANOID runs it after every change and aborts.
 */
#include "memory/tlsf.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

#define GRANULE_SHIFT 6
#define SL_BITS 5                  /* 32 classes for each power of two: 3 % apart */
#define SL_COUNT (1u << SL_BITS)
#define FL_COUNT (32u - SL_BITS)
#define ROW_SHIFT 6                /* 64 granules a row: one bit each in a word */
#define ROW_GRANULES (1u << ROW_SHIFT)
#define SCAN_LIMIT 8u              /* nodes of the request's own class that malloc looks at */
#define LAST_RESORT_LIMIT 1024u    /* nodes of each class, before the arena is full */
#define NO_FIT UINT32_MAX

_Static_assert(SHMI_TLSF_GRANULE == 1u << GRANULE_SHIFT, "granule and its shift differ");
_Static_assert(SHMI_TLSF_MAX_BYTES >> GRANULE_SHIFT <= INT32_MAX, "sums need the 32nd bit");
_Static_assert(SL_COUNT <= 32 && FL_COUNT <= 32, "a bitmap is one 32-bit word");

typedef struct node {
  uint32_t start, size; /* granules */
  uint32_t prev, next;  /* nodes of the same class; 0 ends the list */
  uint32_t chain;       /* the next free block inside the same row; 0 ends the chain */
} node_t;

typedef struct row {
  uint64_t starts;  /* granules where a block starts */
  uint64_t frees;   /* those of them where a free block starts */
  uint32_t runs_on; /* about the last block to start here, if it reaches the row's end or beyond:
                       its size in granules when it is live, its node when it is free */
  uint32_t ends;    /* node of the free block that started in an earlier row and has its last
                       granule here; else 0 */
  uint32_t chain;   /* first node of the free blocks that start here and end before the row */
  uint32_t unused;
} row_t;

_Static_assert(sizeof(node_t) == 20, "a free block's record is 20 bytes");
_Static_assert(sizeof(row_t) == 32, "a row is half a cache line");

struct shmi_tlsf {
  unsigned char *base;
  row_t *rows;           /* all start bits after the last granule are set: a block ends there */
  node_t *nodes;         /* [0] is never used */
  uint32_t granules;
  uint32_t idle_node;    /* records given back, linked by next */
  uint32_t used_nodes;   /* records ever used, [0] included */
  uint32_t node_limit;
  uint32_t fl_bitmap;
  uint32_t sl_bitmap[FL_COUNT];
  uint32_t heads[FL_COUNT][SL_COUNT];
  uint32_t used, peak, high; /* granules: in live blocks now, at most, highest one handed out */
  uint64_t live_blocks, allocations, frees, failures;
  size_t map_bytes;
};

#ifdef SHMI_TLSF_PARANOID
#define VERIFY(t) ((void)(shmi_tlsf_check(t) == SHM_OK || (abort(), 0)))
#else
#define VERIFY(t) ((void)0)
#endif

/* ---- size classes ---------------------------------------------------------------- */

static inline uint32_t high_bit(uint32_t x) { return 31u - (uint32_t)__builtin_clz(x); }

typedef struct {
  uint32_t fl, sl;
} class_t;

/* The class that holds blocks of n granules: exact below SL_COUNT. */
static inline class_t class_of(uint32_t n) {
  if (n < SL_COUNT) return (class_t){0, n};
  uint32_t bit = high_bit(n);
  return (class_t){bit - SL_BITS + 1, (n >> (bit - SL_BITS)) & (SL_COUNT - 1)};
}

/* The first class all of whose blocks have at least n granules. */
static inline class_t class_above(uint32_t n) {
  if (n >= SL_COUNT) n += (1u << (high_bit(n) - SL_BITS)) - 1;
  return class_of(n);
}

static inline bool class_equal(class_t a, class_t b) { return a.fl == b.fl && a.sl == b.sl; }

/* The first class from c upwards with a block in it; false when there is none. */
static inline bool next_class(const shmi_tlsf_t *t, class_t *c) {
  if (c->fl >= FL_COUNT) return false;
  uint32_t map = c->sl < SL_COUNT ? t->sl_bitmap[c->fl] & (~0u << c->sl) : 0;
  if (!map) {
    uint32_t above = c->fl + 1 < FL_COUNT ? t->fl_bitmap & (~0u << (c->fl + 1)) : 0;
    if (!above) return false;
    c->fl = (uint32_t)__builtin_ctz(above);
    map = t->sl_bitmap[c->fl];
  }
  c->sl = (uint32_t)__builtin_ctz(map);
  return true;
}

/* ---- nodes and their lists ------------------------------------------------------- */

static inline void list_push(shmi_tlsf_t *t, uint32_t id) {
  node_t *node = &t->nodes[id];
  class_t c = class_of(node->size);
  uint32_t head = t->heads[c.fl][c.sl];
  node->prev = 0;
  node->next = head;
  if (head) t->nodes[head].prev = id;
  t->heads[c.fl][c.sl] = id;
  t->sl_bitmap[c.fl] |= 1u << c.sl;
  t->fl_bitmap |= 1u << c.fl;
}

static inline void list_remove(shmi_tlsf_t *t, uint32_t id) {
  const node_t *node = &t->nodes[id];
  if (node->next) t->nodes[node->next].prev = node->prev;
  if (node->prev) {
    t->nodes[node->prev].next = node->next;
    return;
  }
  class_t c = class_of(node->size);
  t->heads[c.fl][c.sl] = node->next;
  if (node->next) return;
  t->sl_bitmap[c.fl] &= ~(1u << c.sl);
  if (!t->sl_bitmap[c.fl]) t->fl_bitmap &= ~(1u << c.fl);
}

/* ---- rows: which granules start a block, and what lies there ----------------------- */

static inline row_t *row_of(const shmi_tlsf_t *t, uint32_t granule) {
  return &t->rows[granule >> ROW_SHIFT];
}

static inline uint32_t column_of(uint32_t granule) { return granule & (ROW_GRANULES - 1); }

static inline uint64_t bit_of(uint32_t granule) { return (uint64_t)1 << column_of(granule); }

/* Whether [start, start + n) reaches the end of the row where it starts. */
static inline bool fills_row(uint32_t start, uint32_t n) {
  return column_of(start) + n >= ROW_GRANULES;
}

static inline bool is_free_start(const shmi_tlsf_t *t, uint32_t granule) {
  return (row_of(t, granule)->frees & bit_of(granule)) != 0;
}

/* Distance to the next start in the row; 0 when the block reaches the row's end. */
static inline uint32_t size_in_row(const row_t *row, uint32_t start) {
  uint64_t above = row->starts & (~(uint64_t)1 << column_of(start));
  return above ? (uint32_t)__builtin_ctzll(above) - column_of(start) : 0;
}

static inline uint32_t live_size(const shmi_tlsf_t *t, uint32_t start) {
  const row_t *row = row_of(t, start);
  uint32_t size = size_in_row(row, start);
  return size ? size : row->runs_on;
}

static inline void mark_live(shmi_tlsf_t *t, uint32_t start, uint32_t n) {
  row_t *row = row_of(t, start);
  row->starts |= bit_of(start);
  if (fills_row(start, n)) row->runs_on = n;
}

static inline void mark_free(shmi_tlsf_t *t, uint32_t id) {
  node_t *node = &t->nodes[id];
  row_t *row = row_of(t, node->start), *last = row_of(t, node->start + node->size - 1);
  row->starts |= bit_of(node->start);
  row->frees |= bit_of(node->start);
  if (last != row) last->ends = id;
  if (fills_row(node->start, node->size)) {
    row->runs_on = id;
  } else {
    node->chain = row->chain;
    row->chain = id;
  }
}

static inline void unmark_free(shmi_tlsf_t *t, uint32_t id) {
  const node_t *node = &t->nodes[id];
  row_t *row = row_of(t, node->start), *last = row_of(t, node->start + node->size - 1);
  row->starts &= ~bit_of(node->start);
  row->frees &= ~bit_of(node->start);
  if (last != row) last->ends = 0;
  if (fills_row(node->start, node->size)) return;
  uint32_t *link = &row->chain;
  while (*link != id) link = &t->nodes[*link].chain;
  *link = node->chain;
}

/* The node in row's chain that starts at granule; 0 when there is none. */
static inline uint32_t chained(const shmi_tlsf_t *t, const row_t *row, uint32_t granule) {
  uint32_t id = row->chain;
  while (id && t->nodes[id].start != granule) id = t->nodes[id].chain;
  return id;
}

/* The free block that starts at granule (which may be the end of the range); 0 when none does. */
static inline uint32_t free_from(const shmi_tlsf_t *t, uint32_t granule) {
  if (!is_free_start(t, granule)) return 0;
  const row_t *row = row_of(t, granule);
  return size_in_row(row, granule) ? chained(t, row, granule) : row->runs_on;
}

/* The free block that ends just before granule, where a block ends; 0 when that one is live. */
static inline uint32_t free_before(const shmi_tlsf_t *t, uint32_t granule) {
  if (!granule) return 0;
  uint32_t last = granule - 1;
  const row_t *row = row_of(t, last);
  uint64_t upto = row->starts & (~(uint64_t)0 >> (ROW_GRANULES - 1 - column_of(last)));
  if (!upto) return row->ends;
  uint32_t start = (last & ~(ROW_GRANULES - 1)) + 63u - (uint32_t)__builtin_clzll(upto);
  if (!is_free_start(t, start)) return 0;
  return column_of(last) == ROW_GRANULES - 1 ? row->runs_on : chained(t, row, start);
}

/* ---- cutting and joining --------------------------------------------------------- */

/* Free blocks never touch each other, so there are at most half as many as granules, and the
 * pool cannot run out. */
static inline void node_make(shmi_tlsf_t *t, uint32_t start, uint32_t size) {
  uint32_t id = t->idle_node;
  if (id)
    t->idle_node = t->nodes[id].next;
  else
    id = t->used_nodes++;
  t->nodes[id] = (node_t){.start = start, .size = size};
  list_push(t, id);
  mark_free(t, id);
}

/* For an unmarked node. */
static inline void node_drop(shmi_tlsf_t *t, uint32_t id) {
  list_remove(t, id);
  t->nodes[id] = (node_t){.next = t->idle_node};
  t->idle_node = id;
}

/* Change the extent of an unmarked node. Most changes of a large free block leave it in its class:
 * then its list stays as it is. */
static inline void node_place(shmi_tlsf_t *t, uint32_t id, uint32_t start, uint32_t size) {
  node_t *node = &t->nodes[id];
  bool moves = !class_equal(class_of(node->size), class_of(size));
  if (moves) list_remove(t, id);
  node->start = start;
  node->size = size;
  if (moves) list_push(t, id);
  mark_free(t, id);
}

/* Cut n granules at start + gap out of free block id; the caller marks the cut. */
static inline void cut(shmi_tlsf_t *t, uint32_t id, uint32_t gap, uint32_t n) {
  uint32_t start = t->nodes[id].start;
  uint32_t rest = t->nodes[id].size - gap - n;
  unmark_free(t, id);
  if (gap) {
    node_place(t, id, start, gap);
    if (rest) node_make(t, start + gap + n, rest);
  } else if (rest) {
    node_place(t, id, start + n, rest);
  } else {
    node_drop(t, id);
  }
}

/* Free [start, start + n), at whose ends blocks begin and end; join it with adjacent free blocks. */
static inline void join(shmi_tlsf_t *t, uint32_t start, uint32_t n) {
  uint32_t left = free_before(t, start), right = free_from(t, start + n);
  row_of(t, start)->starts &= ~bit_of(start);
  if (left) {
    unmark_free(t, left);
    start = t->nodes[left].start;
    n += t->nodes[left].size;
  }
  if (right) {
    unmark_free(t, right);
    n += t->nodes[right].size;
    if (left) node_drop(t, right);
  }
  if (left || right)
    node_place(t, left ? left : right, start, n);
  else
    node_make(t, start, n);
}

/* ---- choosing -------------------------------------------------------------------- */

/* How many granules to leave free in front so that n aligned ones fit in the block (align in
 * granules, a power of two); NO_FIT when they do not. */
static inline uint32_t gap_for(const shmi_tlsf_t *t, const node_t *node, uint32_t n,
                               uint32_t align) {
  uint64_t address = ((uintptr_t)t->base >> GRANULE_SHIFT) + node->start;
  uint32_t gap = (uint32_t)(-address & (align - 1u));
  return (uint64_t)gap + n <= node->size ? gap : NO_FIT;
}

/* The tightest of the first limit nodes of a list; 0 when none of them fits. */
static uint32_t tightest(const shmi_tlsf_t *t, uint32_t id, uint32_t n, uint32_t align,
                         uint32_t limit) {
  uint32_t best = 0, best_size = UINT32_MAX;
  for (; id && limit; limit--, id = t->nodes[id].next) {
    const node_t *node = &t->nodes[id];
    if (node->size >= best_size || gap_for(t, node, n, align) == NO_FIT) continue;
    best = id;
    best_size = node->size;
    if (best_size == n) break;
  }
  return best;
}

/* A free block with room for n granules at the alignment; 0 when there is none.
 *
 * TLSF proper rounds the request up to a class whose blocks all fit, and so misses a block of
 * exactly this size that was freed a moment ago; programs with tensors ask for the same sizes again
 * and again. So a bounded search of the request's own class comes first. */
static inline uint32_t choose(const shmi_tlsf_t *t, uint32_t n, uint32_t align) {
  class_t own = class_of(n);
  uint32_t id = tightest(t, t->heads[own.fl][own.sl], n, align, SCAN_LIMIT);
  if (id) return id;
  uint32_t enough = n + align - 1;
  class_t c = enough <= t->granules ? class_above(enough) : (class_t){FL_COUNT, 0};
  if (next_class(t, &c)) return t->heads[c.fl][c.sl];
  for (c = own; next_class(t, &c); c.sl++) {
    id = tightest(t, t->heads[c.fl][c.sl], n, align, LAST_RESORT_LIMIT);
    if (id) return id;
  }
  return 0;
}

/* ---- the interface --------------------------------------------------------------- */

static void *fail(shmi_tlsf_t *t, int why, int *status) {
  t->failures++;
  if (status) *status = why;
  return NULL;
}

/* Granules for size bytes; 0 for sizes that can never be allocated. */
static inline uint32_t granules_for(const shmi_tlsf_t *t, size_t size) {
  if (size == 0 || size > (size_t)t->granules << GRANULE_SHIFT) return 0;
  return (uint32_t)((size + SHMI_TLSF_GRANULE - 1) >> GRANULE_SHIFT);
}

static inline void count_used(shmi_tlsf_t *t, uint32_t more, uint32_t end) {
  t->used += more;
  if (t->used > t->peak) t->peak = t->used;
  if (end > t->high) t->high = end;
}

static inline void *allocate(shmi_tlsf_t *t, size_t size, uint32_t align, int *status) {
  uint32_t n = granules_for(t, size), id = n ? choose(t, n, align) : 0;
  if (!id) return fail(t, n ? SHM_EARENA_FULL : SHM_EBAD_SIZE, status);
  uint32_t gap = gap_for(t, &t->nodes[id], n, align);
  uint32_t start = t->nodes[id].start + gap;
  cut(t, id, gap, n);
  mark_live(t, start, n);
  t->live_blocks++;
  t->allocations++;
  count_used(t, n, start + n);
  VERIFY(t);
  if (status) *status = SHM_OK;
  return t->base + ((size_t)start << GRANULE_SHIFT);
}

void *shmi_tlsf_malloc(shmi_tlsf_t *t, size_t size, int *status) {
  return allocate(t, size, 1, status);
}

void *shmi_tlsf_memalign(shmi_tlsf_t *t, size_t alignment, size_t size, int *status) {
  if (alignment == 0 || (alignment & (alignment - 1)) || alignment > SHMI_TLSF_MAX_ALIGNMENT)
    return fail(t, SHM_EBAD_ALIGN, status);
  uint32_t align = (uint32_t)(alignment >> GRANULE_SHIFT);
  return allocate(t, size, align ? align : 1, status);
}

/* The granule where ptr's block starts, when ptr is the start of a live block. */
static inline bool live_start(const shmi_tlsf_t *t, const void *ptr, uint32_t *start) {
  uintptr_t offset = (uintptr_t)ptr - (uintptr_t)t->base; /* wraps to huge below base */
  if (offset & (SHMI_TLSF_GRANULE - 1)) return false;
  offset >>= GRANULE_SHIFT;
  if (offset >= t->granules) return false;
  *start = (uint32_t)offset;
  const row_t *row = row_of(t, *start);
  return (row->starts & ~row->frees & bit_of(*start)) != 0;
}

int shmi_tlsf_free(shmi_tlsf_t *t, void *ptr) {
  uint32_t start;
  if (!ptr) return SHM_OK;
  if (!live_start(t, ptr, &start)) return SHM_EBAD_FREE;
  uint32_t n = live_size(t, start);
  join(t, start, n);
  t->used -= n;
  t->live_blocks--;
  t->frees++;
  VERIFY(t);
  return SHM_OK;
}

void *shmi_tlsf_realloc(shmi_tlsf_t *t, void *ptr, size_t size, int *status) {
  uint32_t start;
  if (!ptr) return shmi_tlsf_malloc(t, size, status);
  if (!live_start(t, ptr, &start)) return fail(t, SHM_EBAD_FREE, status);
  uint32_t want = granules_for(t, size), have = live_size(t, start);
  if (!want) return fail(t, SHM_EBAD_SIZE, status);
  uint32_t behind = want > have ? free_from(t, start + have) : 0;
  if (want < have) {
    mark_live(t, start, want);
    join(t, start + want, have - want);
    t->used -= have - want;
  } else if (behind && t->nodes[behind].size >= want - have) {
    cut(t, behind, 0, want - have);
    mark_live(t, start, want);
    count_used(t, want - have, start + want);
  } else if (want > have) {
    void *moved = shmi_tlsf_malloc(t, size, status);
    if (!moved) return NULL;
    memcpy(moved, ptr, (size_t)have << GRANULE_SHIFT);
    shmi_tlsf_free(t, ptr);
    return moved;
  }
  VERIFY(t);
  if (status) *status = SHM_OK;
  return ptr;
}

size_t shmi_tlsf_usable_size(const shmi_tlsf_t *t, const void *ptr) {
  uint32_t start;
  return live_start(t, ptr, &start) ? (size_t)live_size(t, start) << GRANULE_SHIFT : 0;
}

/* The side table in one mapping: control, rows, nodes. Huge pages are
 * declined, since one would cost an idle process 2 MiB for a few words. */
int shmi_tlsf_create(shmi_tlsf_t **out, void *base, size_t size) {
  *out = NULL;
  if (!base || (uintptr_t)base & 4095) return SHM_EBAD_CONFIG;
  if (size < SHMI_TLSF_GRANULE || (uint64_t)size > SHMI_TLSF_MAX_BYTES) return SHM_EBAD_SIZE;
  uint32_t granules = (uint32_t)(size >> GRANULE_SHIFT);
  uint32_t node_limit = granules / 2 + 2;
  size_t rows_at = (sizeof(shmi_tlsf_t) + 63) & ~(size_t)63;
  size_t nodes_at = rows_at + ((size_t)(granules >> ROW_SHIFT) + 1) * sizeof(row_t);
  size_t map_bytes = (nodes_at + (size_t)node_limit * sizeof(node_t) + 4095) & ~(size_t)4095;
  unsigned char *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return SHM_ENO_MEMORY;
  (void)madvise(map, map_bytes, MADV_NOHUGEPAGE);
  shmi_tlsf_t *t = (shmi_tlsf_t *)(void *)map;
  t->base = base;
  t->rows = (row_t *)(void *)(map + rows_at);
  t->nodes = (node_t *)(void *)(map + nodes_at);
  t->granules = granules;
  t->used_nodes = 1;
  t->node_limit = node_limit;
  t->map_bytes = map_bytes;
  row_of(t, granules)->starts = ~(uint64_t)0 << column_of(granules);
  node_make(t, 0, granules);
  *out = t;
  return SHM_OK;
}

void shmi_tlsf_destroy(shmi_tlsf_t *t) {
  if (t) (void)munmap(t, t->map_bytes);
}

void shmi_tlsf_metadata(const shmi_tlsf_t *t, void **start, size_t *bytes) {
  *start = (void *)(uintptr_t)t;
  *bytes = t->map_bytes;
}

/* The largest request that would succeed: the largest block of the topmost class, as far as
 * choose() would look for it. */
static uint32_t largest_free(const shmi_tlsf_t *t) {
  if (!t->fl_bitmap) return 0;
  uint32_t fl = high_bit(t->fl_bitmap), largest = 0;
  uint32_t id = t->heads[fl][high_bit(t->sl_bitmap[fl])];
  for (uint32_t i = 0; id && i < LAST_RESORT_LIMIT; i++, id = t->nodes[id].next)
    if (t->nodes[id].size > largest) largest = t->nodes[id].size;
  return largest;
}

uint64_t shmi_tlsf_used_bytes(const shmi_tlsf_t *t) { return (uint64_t)t->used << GRANULE_SHIFT; }

void shmi_tlsf_stats(const shmi_tlsf_t *t, shm_arena_stats_t *stats) {
  *stats = (shm_arena_stats_t){
      .capacity_bytes = (uint64_t)t->granules << GRANULE_SHIFT,
      .used_bytes = (uint64_t)t->used << GRANULE_SHIFT,
      .peak_bytes = (uint64_t)t->peak << GRANULE_SHIFT,
      .footprint_bytes = (uint64_t)t->high << GRANULE_SHIFT,
      .free_bytes = (uint64_t)(t->granules - t->used) << GRANULE_SHIFT,
      .largest_free_bytes = (uint64_t)largest_free(t) << GRANULE_SHIFT,
      .live_blocks = t->live_blocks,
      .allocations = t->allocations,
      .frees = t->frees,
      .failures = t->failures,
  };
}

/* ---- check and walk -------------------------------------------------------------- */

static bool is_node(const shmi_tlsf_t *t, uint32_t id) { return id != 0 && id < t->used_nodes; }

/* The size of the block that starts at a granule, and its node when it is free; 0 when the row
 * does not say. Trusts nothing, unlike live_size() and free_from(). */
static uint32_t block_at(const shmi_tlsf_t *t, uint32_t at, uint32_t *id) {
  const row_t *row = row_of(t, at);
  uint32_t in_row = size_in_row(row, at), size = in_row ? in_row : row->runs_on;
  *id = 0;
  if (!(row->starts & bit_of(at))) return 0;
  if (row->frees & bit_of(at)) {
    *id = row->runs_on;
    if (in_row) {
      unsigned steps = 0;
      for (*id = row->chain; is_node(t, *id) && t->nodes[*id].start != at; steps++) {
        if (steps == ROW_GRANULES) return 0;
        *id = t->nodes[*id].chain;
      }
    }
    if (!is_node(t, *id) || t->nodes[*id].start != at) return 0;
    size = t->nodes[*id].size;
    if (in_row && in_row != size) return 0;
  }
  bool fits = size > 0 && size <= t->granules - at;
  return fits && (in_row || fills_row(at, size)) ? size : 0;
}

/* What the rows say: blocks tile the range, free ones are known to a node, no two free blocks
 * touch, and no row says more than that. Returns the number of free blocks, or -1. */
static int64_t check_rows(const shmi_tlsf_t *t) {
  uint64_t live = 0, used = 0;
  int64_t free_blocks = 0, ends = 0, in_chains = 0, starts = 0;
  bool after_free = false;
  for (uint32_t at = 0, size, id; at < t->granules; at += size) {
    size = block_at(t, at, &id);
    if (!size || (id && after_free)) return -1;
    if (id && row_of(t, at) != row_of(t, at + size - 1)) {
      if (row_of(t, at + size - 1)->ends != id) return -1;
      ends++;
    }
    in_chains += id && !fills_row(at, size);
    after_free = id != 0;
    free_blocks += id != 0;
    live += id == 0;
    used += id ? 0 : size;
    starts++;
  }
  /* The walk has seen everything that must be there; is there anything else? */
  starts += ROW_GRANULES - column_of(t->granules);
  for (uint32_t r = 0; r <= t->granules >> ROW_SHIFT; r++) {
    const row_t *row = &t->rows[r];
    if (row->frees & ~row->starts) return -1;
    starts -= __builtin_popcountll(row->starts);
    ends -= row->ends != 0;
    for (uint32_t id = row->chain; id; id = t->nodes[id].chain)
      if (!is_node(t, id) || in_chains-- == 0) return -1;
  }
  if (starts || ends || in_chains) return -1;
  return live == t->live_blocks && used == t->used ? free_blocks : -1;
}

/* What the lists say: each node lies in the list of its class, links agree both ways, the
 * bitmaps name just the lists that are not empty. Returns the number of nodes, or -1. */
static int64_t check_lists(const shmi_tlsf_t *t) {
  int64_t listed = 0;
  for (uint32_t fl = 0; fl < FL_COUNT; fl++) {
    if (((t->fl_bitmap >> fl) & 1) != (t->sl_bitmap[fl] != 0)) return -1;
    for (uint32_t sl = 0; sl < SL_COUNT; sl++) {
      uint32_t prev = 0, id = t->heads[fl][sl];
      if (((t->sl_bitmap[fl] >> sl) & 1) != (id != 0)) return -1;
      for (; id; prev = id, id = t->nodes[id].next) {
        if (!is_node(t, id) || ++listed >= (int64_t)t->used_nodes) return -1;
        const node_t *node = &t->nodes[id];
        if (node->prev != prev || node->size == 0 || node->start >= t->granules) return -1;
        if (!class_equal(class_of(node->size), (class_t){fl, sl})) return -1;
        if (!is_free_start(t, node->start)) return -1;
      }
    }
  }
  return listed;
}

int shmi_tlsf_check(const shmi_tlsf_t *t) {
  if (t->used_nodes > t->node_limit || t->used > t->peak || t->high > t->granules)
    return SHM_ECORRUPT;
  int64_t idle = 0;
  for (uint32_t id = t->idle_node; id; id = t->nodes[id].next)
    if (!is_node(t, id) || ++idle >= (int64_t)t->used_nodes) return SHM_ECORRUPT;
  int64_t free_blocks = check_rows(t);
  if (free_blocks < 0 || check_lists(t) != free_blocks) return SHM_ECORRUPT;
  return free_blocks + idle == (int64_t)t->used_nodes - 1 ? SHM_OK : SHM_ECORRUPT;
}

int shmi_tlsf_walk(const shmi_tlsf_t *t,
                   int (*visit)(void *address, size_t bytes, int is_live, void *ctx),
                   void *ctx) {
  for (uint32_t at = 0, size; at < t->granules; at += size) {
    uint32_t id = free_from(t, at);
    size = id ? t->nodes[id].size : live_size(t, at);
    int stop = visit(t->base + ((size_t)at << GRANULE_SHIFT), (size_t)size << GRANULE_SHIFT,
                     id == 0, ctx);
    if (stop) return stop;
  }
  return SHM_OK;
}
