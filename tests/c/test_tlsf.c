/* The allocator of one arena: what its callers rely on, and every sort of misuse. */
#include "harness.h"

#include "memory/tlsf.h"

#define ARENA_BYTES ((size_t)1 << 20)

static unsigned char *range;
static shmi_tlsf_t *heap;

static void open_heap(size_t bytes) {
  range = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(range != MAP_FAILED);
  CHECK_EQ(shmi_tlsf_create(&heap, range, bytes), SHM_OK);
}

static void close_heap(size_t bytes) {
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  shmi_tlsf_destroy(heap);
  CHECK_SYS(munmap(range, bytes));
}

static shm_arena_stats_t stats(void) {
  shm_arena_stats_t s;
  shmi_tlsf_stats(heap, &s);
  return s;
}

static unsigned char *get(size_t size) {
  int status = 1;
  unsigned char *block = shmi_tlsf_malloc(heap, size, &status);
  CHECK(block != NULL);
  CHECK_EQ(status, SHM_OK);
  return block;
}

static void put(void *block) { CHECK_EQ(shmi_tlsf_free(heap, block), SHM_OK); }

static void expect_one_free_block(size_t bytes) {
  shm_arena_stats_t s = stats();
  CHECK_EQ(s.used_bytes, 0);
  CHECK_EQ(s.live_blocks, 0);
  CHECK_EQ(s.free_bytes, bytes);
  CHECK_EQ(s.largest_free_bytes, bytes);
}

TEST(create_refuses_what_it_cannot_divide) {
  static unsigned char page[8192] __attribute__((aligned(4096)));
  CHECK_EQ(shmi_tlsf_create(&heap, NULL, 4096), SHM_EBAD_CONFIG);
  CHECK_EQ(shmi_tlsf_create(&heap, page + 64, 4096), SHM_EBAD_CONFIG);
  CHECK_EQ(shmi_tlsf_create(&heap, page, 63), SHM_EBAD_SIZE);
  CHECK_EQ(shmi_tlsf_create(&heap, page, (size_t)SHMI_TLSF_MAX_BYTES + 1), SHM_EBAD_SIZE);
  CHECK(heap == NULL);
  shmi_tlsf_destroy(NULL);
}

TEST(every_byte_of_the_range_can_be_had_in_blocks_of_64) {
  open_heap(65536);
  for (size_t i = 0; i < 65536 / 64; i++) CHECK_EQ(get(64), range + i * 64);
  int status;
  CHECK(shmi_tlsf_malloc(heap, 1, &status) == NULL);
  CHECK_EQ(status, SHM_EARENA_FULL);
  CHECK_EQ(stats().largest_free_bytes, 0);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  for (size_t i = 0; i < 65536 / 64; i += 2) put(range + i * 64);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  CHECK(shmi_tlsf_malloc(heap, 65, &status) == NULL);
  CHECK_EQ(stats().largest_free_bytes, 64);
  for (size_t i = 1; i < 65536 / 64; i += 2) put(range + i * 64);
  expect_one_free_block(65536);
  CHECK_EQ(get(65536), range);
  close_heap(65536);
}

TEST(a_range_of_one_granule_works) {
  static unsigned char page[4096] __attribute__((aligned(4096)));
  CHECK_EQ(shmi_tlsf_create(&heap, page, 64 + 63), SHM_OK);
  CHECK_EQ(get(1), page);
  put(page);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  shmi_tlsf_destroy(heap);
}

TEST(impossible_sizes_are_bad_sizes) {
  open_heap(ARENA_BYTES);
  size_t bad[] = {0, ARENA_BYTES + 1, SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2, (size_t)1 << 38};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int status = 1;
    CHECK(shmi_tlsf_malloc(heap, bad[i], &status) == NULL);
    CHECK_EQ(status, SHM_EBAD_SIZE);
    CHECK(shmi_tlsf_memalign(heap, 4096, bad[i], &status) == NULL);
    CHECK_EQ(status, SHM_EBAD_SIZE);
  }
  CHECK(shmi_tlsf_malloc(heap, 0, NULL) == NULL);
  CHECK_EQ(stats().failures, 2 * sizeof bad / sizeof *bad + 1);
  expect_one_free_block(ARENA_BYTES);
  close_heap(ARENA_BYTES);
}

TEST(a_double_free_is_refused_and_changes_nothing) {
  open_heap(ARENA_BYTES);
  unsigned char *a = get(100), *b = get(5000), *c = get(64);
  put(b);
  CHECK_EQ(shmi_tlsf_free(heap, b), SHM_EBAD_FREE);
  put(a);
  CHECK_EQ(shmi_tlsf_free(heap, a), SHM_EBAD_FREE);
  CHECK_EQ(shmi_tlsf_free(heap, b), SHM_EBAD_FREE); /* b is now inside a free block */
  CHECK_EQ(shmi_tlsf_usable_size(heap, c), 64);
  CHECK_EQ(stats().live_blocks, 1);
  put(c);
  expect_one_free_block(ARENA_BYTES);
  close_heap(ARENA_BYTES);
}

TEST(a_foreign_or_interior_free_is_refused_and_changes_nothing) {
  open_heap(ARENA_BYTES);
  int local;
  unsigned char *block = get(9000);
  void *bad[] = {&local,       heap,          range - 64,          range + ARENA_BYTES,
                 block + 1,    block + 63,    block + 64,          block + 4096,
                 block + 8960, block + 16384, range + ARENA_BYTES - 64, (void *)UINTPTR_MAX,
                 (void *)64};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int status = 1;
    CHECK_EQ(shmi_tlsf_free(heap, bad[i]), SHM_EBAD_FREE);
    CHECK_EQ(shmi_tlsf_usable_size(heap, bad[i]), 0);
    CHECK(shmi_tlsf_realloc(heap, bad[i], 64, &status) == NULL);
    CHECK_EQ(status, SHM_EBAD_FREE);
  }
  CHECK_EQ(shmi_tlsf_usable_size(heap, block), 9024);
  CHECK_EQ(shmi_tlsf_free(heap, NULL), SHM_OK);
  CHECK_EQ(shmi_tlsf_usable_size(heap, NULL), 0);
  CHECK_EQ(stats().live_blocks, 1);
  put(block);
  close_heap(ARENA_BYTES);
}

TEST(every_neighbourhood_coalesces) {
  open_heap(ARENA_BYTES);
  size_t sizes[] = {64, 128, 192, 4096, 4160, 12288};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (unsigned order = 0; order < 6; order++) {
      static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                            {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
      unsigned char *wall[2], *block[3];
      wall[0] = get(64 * (1 + order * 7)); /* moves the blocks to other places in a page */
      for (unsigned i = 0; i < 3; i++) block[i] = get(sizes[s]);
      wall[1] = get(64);
      for (unsigned i = 0; i < 3; i++) {
        put(block[orders[order][i]]);
        CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
      }
      CHECK_EQ(get(3 * sizes[s]), block[0]);
      put(block[0]);
      put(wall[0]);
      put(wall[1]);
      expect_one_free_block(ARENA_BYTES);
    }
  }
  close_heap(ARENA_BYTES);
}

TEST(alignment_is_of_addresses_and_has_bounds) {
  open_heap((size_t)16 << 20);
  unsigned char *odd = get(64), *blocks[22];
  unsigned count = 0;
  for (size_t alignment = 1; alignment <= SHMI_TLSF_MAX_ALIGNMENT; alignment <<= 1) {
    int status = 1;
    unsigned char *block = shmi_tlsf_memalign(heap, alignment, 100, &status);
    CHECK(block != NULL);
    CHECK_EQ(status, SHM_OK);
    CHECK_EQ((uintptr_t)block % alignment, 0);
    CHECK_EQ((uintptr_t)block % 64, 0);
    CHECK_EQ(shmi_tlsf_usable_size(heap, block), 128);
    CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
    blocks[count++] = block;
  }
  size_t bad[] = {0, 3, 63, 65, 96, SHMI_TLSF_MAX_ALIGNMENT * 2, SIZE_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int status = 1;
    CHECK(shmi_tlsf_memalign(heap, bad[i], 64, &status) == NULL);
    CHECK_EQ(status, SHM_EBAD_ALIGN);
  }
  while (count) put(blocks[--count]);
  put(odd);
  expect_one_free_block((size_t)16 << 20);
  close_heap((size_t)16 << 20);
}

TEST(an_aligned_block_fits_exactly_where_only_it_can) {
  open_heap(8 * 4096);
  unsigned char *whole = get(8 * 4096);
  put(whole);
  CHECK_EQ(shmi_tlsf_memalign(heap, 4096, 8 * 4096, NULL), whole);
  put(whole);
  unsigned char *front = get(64);
  int status;
  CHECK_EQ(shmi_tlsf_memalign(heap, 4096, 7 * 4096, &status), whole + 4096);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  CHECK(shmi_tlsf_memalign(heap, 4096, 64, &status) == NULL);
  CHECK_EQ(status, SHM_EARENA_FULL);
  CHECK_EQ(stats().largest_free_bytes, 4096 - 64);
  put(front);
  put(whole + 4096);
  expect_one_free_block(8 * 4096);
  close_heap(8 * 4096);
}

TEST(realloc_stays_in_place_when_it_can_and_keeps_the_bytes) {
  open_heap(ARENA_BYTES);
  int status;
  unsigned char *block = shmi_tlsf_realloc(heap, NULL, 1000, &status);
  CHECK(block != NULL);
  for (size_t i = 0; i < 1000; i++) block[i] = (unsigned char)i;
  CHECK_EQ(shmi_tlsf_realloc(heap, block, 1024, &status), block);   /* same granules */
  CHECK_EQ(shmi_tlsf_realloc(heap, block, 50000, &status), block);  /* grows into the rest */
  CHECK_EQ(shmi_tlsf_usable_size(heap, block), 50048);
  unsigned char *wall = get(64);
  CHECK_EQ(wall, block + 50048);
  CHECK_EQ(shmi_tlsf_realloc(heap, block, 1000, &status), block);   /* shrinks */
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  CHECK_EQ(shmi_tlsf_realloc(heap, block, 50048, &status), block);  /* fills the gap exactly */
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  CHECK_EQ(shmi_tlsf_free(heap, block + 1024), SHM_EBAD_FREE);
  unsigned char *moved = shmi_tlsf_realloc(heap, block, 60000, &status);
  CHECK(moved != NULL && moved != block);
  for (size_t i = 0; i < 1000; i++) CHECK_EQ(moved[i], (unsigned char)i);
  CHECK_EQ(shmi_tlsf_free(heap, block), SHM_EBAD_FREE);
  CHECK_EQ(stats().live_blocks, 2);
  put(moved);
  put(wall);
  expect_one_free_block(ARENA_BYTES);
  CHECK_EQ(stats().peak_bytes, 50048 + 64 + 60032);
  close_heap(ARENA_BYTES);
}

TEST(a_realloc_to_its_own_size_changes_nothing) {
  enum { BLOCKS = 16, BYTES = 4096 };
  int status = 1;
  unsigned char *blocks[BLOCKS];
  open_heap(BLOCKS * BYTES); /* full: there is no free block that could be cut from instead */
  for (int i = 0; i < BLOCKS; i++) blocks[i] = get(BYTES);
  for (int i = 0; i < BLOCKS; i++) {
    CHECK_EQ(shmi_tlsf_realloc(heap, blocks[i], BYTES, &status), blocks[i]);
    CHECK_EQ(status, SHM_OK);
    CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  }
  put(blocks[3]); /* and here there is one */
  for (int i = 4; i < BLOCKS; i++) {
    CHECK_EQ(shmi_tlsf_realloc(heap, blocks[i], BYTES, &status), blocks[i]);
    CHECK_EQ(stats().free_bytes, BYTES);
    CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  }
  CHECK_EQ(get(BYTES), blocks[3]);
  for (int i = 0; i < BLOCKS; i++) put(blocks[i]);
  close_heap(BLOCKS * BYTES);
}

TEST(a_failing_realloc_leaves_the_block_untouched) {
  open_heap(ARENA_BYTES);
  int status;
  unsigned char *block = get(1000), *wall = get(64), *rest = get(ARENA_BYTES - 1024 - 64);
  memset(block, 0x5a, 1000);
  CHECK(shmi_tlsf_realloc(heap, block, 2000, &status) == NULL);
  CHECK_EQ(status, SHM_EARENA_FULL);
  CHECK(shmi_tlsf_realloc(heap, block, 0, &status) == NULL);
  CHECK_EQ(status, SHM_EBAD_SIZE);
  CHECK(shmi_tlsf_realloc(heap, block, SIZE_MAX, &status) == NULL);
  CHECK_EQ(status, SHM_EBAD_SIZE);
  CHECK_EQ(shmi_tlsf_usable_size(heap, block), 1024);
  for (size_t i = 0; i < 1000; i++) CHECK_EQ(block[i], 0x5a);
  put(rest);
  put(wall);
  put(block);
  close_heap(ARENA_BYTES);
}

TEST(the_largest_free_size_can_be_had_and_one_byte_more_cannot) {
  open_heap(ARENA_BYTES);
  uint32_t seed = 7;
  unsigned char *live[64] = {0};
  for (unsigned step = 0; step < 4000; step++) {
    seed = seed * 1664525u + 1013904223u;
    unsigned char **slot = &live[seed >> 26];
    if (*slot) put(*slot);
    *slot = shmi_tlsf_malloc(heap, 1 + (seed >> 4) % 60000, NULL);
    size_t largest = (size_t)stats().largest_free_bytes;
    if (largest) {
      CHECK(largest == ARENA_BYTES || !shmi_tlsf_malloc(heap, largest + 1, NULL));
      put(get(largest));
    }
    if (step % 64 == 0) CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  }
  for (unsigned i = 0; i < 64; i++) put(live[i]);
  expect_one_free_block(ARENA_BYTES);
  close_heap(ARENA_BYTES);
}

TEST(no_byte_of_the_arena_is_written_and_none_is_trusted) {
  open_heap(ARENA_BYTES);
  unsigned char *live[256] = {0};
  uint32_t seed = 3;
  memset(range, 0xff, ARENA_BYTES);
  for (unsigned step = 0; step < 3000; step++) {
    seed = seed * 1664525u + 1013904223u;
    unsigned char **slot = &live[seed >> 24];
    if (*slot) put(*slot);
    *slot = shmi_tlsf_malloc(heap, 1 + (seed >> 8) % 9000, NULL);
    if (step == 1500) {
      for (size_t i = 0; i < ARENA_BYTES; i++) CHECK_EQ(range[i], 0xff);
      for (size_t i = 0; i < ARENA_BYTES; i++) range[i] = (unsigned char)(i * 2654435761u >> 9);
    }
  }
  for (size_t i = 0; i < ARENA_BYTES; i++)
    CHECK_EQ(range[i], (unsigned char)(i * 2654435761u >> 9));
  for (unsigned i = 0; i < 256; i++) put(live[i]);
  expect_one_free_block(ARENA_BYTES);
  close_heap(ARENA_BYTES);
}

TEST(check_notices_a_damaged_side_table_and_survives_it) {
  open_heap(65536);
  for (size_t i = 0; i < 1000; i++) get(64);
  for (size_t i = 0; i < 1000; i += 2) put(range + i * 64);
  void *start;
  size_t bytes;
  shmi_tlsf_metadata(heap, &start, &bytes);
  unsigned char *table = start, *saved = malloc(bytes);
  CHECK(saved != NULL);
  memcpy(saved, table, bytes);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  size_t control = 256; /* the pointers and bounds by which check() finds its way stay whole */
  unsigned noticed = 0;
  uint32_t seed = 11;
  for (unsigned i = 0; i < 2000; i++) {
    seed = seed * 1664525u + 1013904223u;
    size_t at = control + seed % (8192 - control);
    table[at] ^= (unsigned char)(1u << (seed >> 29));
    noticed += shmi_tlsf_check(heap) == SHM_ECORRUPT;
    table[at] = saved[at];
  }
  CHECK(noticed > 1000);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_OK);
  memset(table + control, 0xff, bytes - control);
  CHECK_EQ(shmi_tlsf_check(heap), SHM_ECORRUPT);
  memcpy(table, saved, bytes);
  free(saved);
  close_heap(65536);
}

typedef struct {
  unsigned char *next;
  size_t live, free;
  int stop_at, seen;
} tour_t;

static int visit(void *address, size_t bytes, int is_live, void *ctx) {
  tour_t *tour = ctx;
  CHECK_EQ(address, tour->next);
  tour->next += bytes;
  *(is_live ? &tour->live : &tour->free) += bytes;
  return ++tour->seen == tour->stop_at ? 42 : 0;
}

TEST(walk_tiles_the_range_in_address_order_and_stops_when_told) {
  open_heap(ARENA_BYTES);
  unsigned char *a = get(100), *b = get(70000), *c = get(64);
  put(b);
  tour_t tour = {.next = range};
  CHECK_EQ(shmi_tlsf_walk(heap, visit, &tour), 0);
  CHECK_EQ(tour.next, range + ARENA_BYTES);
  CHECK_EQ(tour.live, 128 + 64);
  CHECK_EQ(tour.free, ARENA_BYTES - 128 - 64);
  CHECK_EQ(tour.seen, 4);
  tour = (tour_t){.next = range, .stop_at = 2};
  CHECK_EQ(shmi_tlsf_walk(heap, visit, &tour), 42);
  CHECK_EQ(tour.seen, 2);
  put(a);
  put(c);
  close_heap(ARENA_BYTES);
}

TEST(statistics_count_what_happened) {
  open_heap(ARENA_BYTES);
  unsigned char *a = get(1000), *b = get(1);
  CHECK(!shmi_tlsf_malloc(heap, ARENA_BYTES, NULL));
  put(a);
  shm_arena_stats_t s = stats();
  CHECK_EQ(s.capacity_bytes, ARENA_BYTES);
  CHECK_EQ(s.used_bytes, 64);
  CHECK_EQ(s.free_bytes, ARENA_BYTES - 64);
  CHECK_EQ(s.peak_bytes, 1024 + 64);
  CHECK_EQ(s.footprint_bytes, 1024 + 64);
  CHECK_EQ(s.largest_free_bytes, ARENA_BYTES - 1024 - 64);
  CHECK_EQ(s.live_blocks, 1);
  CHECK_EQ(s.allocations, 2);
  CHECK_EQ(s.frees, 1);
  CHECK_EQ(s.failures, 1);
  put(b);
  close_heap(ARENA_BYTES);
}

TEST(a_huge_range_costs_a_handful_of_pages) {
  if (HARNESS_SANITIZED) SKIP("the sanitizer's own shadow of 64 GiB would be counted");
  size_t bytes = (size_t)64 << 30;
  open_heap(bytes);
  unsigned char *small = get(64), *large = get(bytes - 128), *last = get(64);
  CHECK_EQ(last, range + bytes - 64);
  put(large);
  CHECK_EQ(stats().largest_free_bytes, bytes - 128);
  put(small);
  put(last);
  expect_one_free_block(bytes);
  void *start;
  size_t table_bytes;
  shmi_tlsf_metadata(heap, &start, &table_bytes);
  FILE *file = fopen("/proc/self/statm", "re");
  long total, resident;
  CHECK(file != NULL);
  CHECK_EQ(fscanf(file, "%ld %ld", &total, &resident), 2);
  fclose(file);
  CHECK(resident < 4096); /* 16 MiB, the program and its libraries included */
  shmi_tlsf_destroy(heap);
  CHECK_SYS(munmap(range, bytes));
}

TEST(a_heap_that_is_destroyed_leaves_no_memory) {
  size_t memory = 0;
  for (int round = 0; round < 2 * HARNESS_ROUNDS; round++) {
    open_heap(1 << 20);
    close_heap(1 << 20);
    if (round == HARNESS_ROUNDS) memory = harness_memory();
  }
  CHECK_EQ(harness_memory(), memory);
}
