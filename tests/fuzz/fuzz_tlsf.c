/* fuzz_tlsf -- the allocator against a plain list of blocks, while their memory is written.
 *
 * Input: operations of six bytes: what, which block or alignment, four bytes of size. Every
 * block holds a pattern of its own, from its first byte to its last, until it is freed; so a
 * block that overlaps another, or metadata that lies inside one, is seen.
 */
#include "fuzz.h"

#include <sys/mman.h>

#include "memory/tlsf.h"

enum { CAPACITY = 1 << 18, BLOCKS = 256 };

typedef struct block {
  uint8_t *at;
  size_t size, usable;
  uint8_t fill;
} block_t;

static uint8_t *memory;
static block_t blocks[BLOCKS];
static int count;
static uint8_t fills;

static void fill(block_t *block) {
  block->fill = ++fills;
  memset(block->at, block->fill, block->usable);
}

static void expect_filled(const block_t *block, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) REQUIRE(block->at[i] == block->fill);
}

static void expect_apart(const block_t *block) {
  REQUIRE(block->at >= memory && block->at + block->usable <= memory + CAPACITY);
  REQUIRE(block->usable >= block->size && (uintptr_t)block->at % SHMI_TLSF_GRANULE == 0);
  for (int i = 0; i < count; i++) {
    if (&blocks[i] == block) continue;
    REQUIRE(block->at + block->usable <= blocks[i].at ||
            blocks[i].at + blocks[i].usable <= block->at);
  }
}

static void adopt(shmi_tlsf_t *t, void *made, size_t size) {
  block_t *block = &blocks[count];
  *block = (block_t){.at = made, .size = size, .usable = shmi_tlsf_usable_size(t, made)};
  expect_apart(block);
  count++;
  fill(block);
}

static void forget(int index) { blocks[index] = blocks[--count]; }

static int is_live(const void *at) {
  for (int i = 0; i < count; i++) {
    if (blocks[i].at == at) return 1;
  }
  return 0;
}

/* No hole between the live blocks is as large as what was refused. */
static size_t largest_hole(void) {
  static uint8_t taken[CAPACITY / SHMI_TLSF_GRANULE];
  memset(taken, 0, sizeof taken);
  for (int i = 0; i < count; i++) {
    memset(taken + (size_t)(blocks[i].at - memory) / SHMI_TLSF_GRANULE, 1,
           blocks[i].usable / SHMI_TLSF_GRANULE);
  }
  size_t best = 0, run = 0;
  for (size_t i = 0; i < sizeof taken; i++) {
    run = taken[i] ? 0 : run + 1;
    if (run > best) best = run;
  }
  return best * SHMI_TLSF_GRANULE;
}

static void expect_consistent(const shmi_tlsf_t *t) {
  REQUIRE(shmi_tlsf_check(t) == SHM_OK);
  uint64_t used = 0;
  for (int i = 0; i < count; i++) used += blocks[i].usable;
  shm_arena_stats_t stats;
  shmi_tlsf_stats(t, &stats);
  REQUIRE(stats.used_bytes == used && stats.live_blocks == (uint64_t)count);
  REQUIRE(stats.free_bytes == CAPACITY - used);
}

static void one_operation(shmi_tlsf_t *t, input_t *in) {
  uint64_t what = take(in, 1) % 8, which = take(in, 1), number = take(in, 4);
  /* Small sizes as a rule; some of any size, those that no range can have among them. */
  size_t size = (which & 7) == 7 ? (size_t)number << (number & 31) : number % 5000;
  int index = count > 0 ? (int)(which % (uint64_t)count) : -1;
  int status = SHM_OK;
  switch (what) {
    case 0: case 1: case 2: {
      size_t alignment = what == 2 ? (size_t)1 << (which % 24) : SHMI_TLSF_GRANULE;
      if (count == BLOCKS) break;
      void *made = what == 2 ? shmi_tlsf_memalign(t, alignment, size, &status)
                             : shmi_tlsf_malloc(t, size, &status);
      if (made != NULL) {
        REQUIRE(size > 0 && (uintptr_t)made % alignment == 0);
        adopt(t, made, size);
      } else if (status == SHM_EBAD_SIZE) {
        REQUIRE(size == 0 || size > CAPACITY);
      } else if (status == SHM_EBAD_ALIGN) {
        REQUIRE(alignment > SHMI_TLSF_MAX_ALIGNMENT);
      } else {
        REQUIRE(status == SHM_EARENA_FULL);
        if (alignment <= SHMI_TLSF_GRANULE) REQUIRE(largest_hole() < size);
      }
      break;
    }
    case 3: case 4:
      if (index < 0) break;
      expect_filled(&blocks[index], blocks[index].usable);
      REQUIRE(shmi_tlsf_free(t, blocks[index].at) == SHM_OK);
      REQUIRE(shmi_tlsf_free(t, blocks[index].at) == SHM_EBAD_FREE);
      forget(index);
      break;
    case 5: {
      if (index < 0) break;
      block_t old = blocks[index];
      void *made = shmi_tlsf_realloc(t, old.at, size, &status);
      if (made == NULL) {
        REQUIRE(shmi_tlsf_usable_size(t, old.at) == old.usable);
        expect_filled(&old, old.usable);
        break;
      }
      forget(index);
      block_t kept = old;
      kept.at = made;
      expect_filled(&kept, old.usable < size ? old.usable : size);
      adopt(t, made, size);
      break;
    }
    case 6: { /* any address: refused, unless it is a live block's start */
      void *at = memory + (int64_t)(number % (CAPACITY + 8192)) - 4096;
      if (is_live(at)) break;
      REQUIRE(shmi_tlsf_free(t, at) == SHM_EBAD_FREE);
      REQUIRE(shmi_tlsf_usable_size(t, at) == 0);
      REQUIRE(shmi_tlsf_realloc(t, at, 64, &status) == NULL && status == SHM_EBAD_FREE);
      break;
    }
    default: /* the owner writes anew, between the blocks too: nothing there is the allocator's */
      for (size_t i = 0; i < CAPACITY; i += 4096) memory[i + number % 4096] = (uint8_t)which;
      for (int i = 0; i < count; i++) fill(&blocks[i]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (memory == NULL) {
    size_t aligned = (size_t)4 << 20; /* so that alignment comes out the same in every run */
    uint8_t *made = mmap(NULL, 2 * aligned, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(made != MAP_FAILED);
    memory = made + (aligned - (uintptr_t)made % aligned);
  }
  input_t in = {data, data + size};
  shmi_tlsf_t *t;
  REQUIRE(shmi_tlsf_create(&t, memory, CAPACITY) == SHM_OK);
  count = 0;
  fills = 0;
  for (int operations = 1; in.at < in.end; operations++) {
    one_operation(t, &in);
    if (operations % 8 == 0) expect_consistent(t);
  }
  expect_consistent(t);
  while (count > 0) {
    expect_filled(&blocks[0], blocks[0].usable);
    REQUIRE(shmi_tlsf_free(t, blocks[0].at) == SHM_OK);
    forget(0);
  }
  shm_arena_stats_t stats;
  shmi_tlsf_stats(t, &stats);
  REQUIRE(shmi_tlsf_check(t) == SHM_OK && stats.largest_free_bytes == CAPACITY);
  shmi_tlsf_destroy(t);
  return 0;
}
