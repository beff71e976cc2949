/* tlsf -- the allocator of one arena, over nothing but (base, size).
 *
 * Owns: the division of one range of memory into blocks, and a private side table that
 * describes it. Must never: write into the range (not one byte, so that pages stay
 * untouched until the user touches them), read from it (realloc's copy apart), know
 * descriptors, processes, or locks. Not thread safe: the caller locks.
 *
 * Units: the range is divided into *granules* of 64 bytes; a block is a run of granules,
 * so every block is 64-byte aligned, has no header, and a 64-byte block costs 64 bytes.
 *
 * Alignment is of addresses in the process that allocates; a process that maps the same
 * arena elsewhere sees only the alignment that the two mappings share.
 */
#ifndef SHMI_TLSF_H
#define SHMI_TLSF_H

#include <stddef.h>
#include <stdint.h>

#include "shmgpu.h"

#define SHMI_TLSF_GRANULE ((size_t)SHM_ALIGNMENT)
#define SHMI_TLSF_MAX_ALIGNMENT ((size_t)2 << 20)
#define SHMI_TLSF_MAX_BYTES ((uint64_t)127 << 30) /* granule numbers stay below 2^31 */

typedef struct shmi_tlsf shmi_tlsf_t;

/* Divide [base, base + size) into one free block; a rest of size below 64 bytes stays unused.
 * base must be 4 KiB aligned (SHM_EBAD_CONFIG), size between 64 bytes and
 * SHMI_TLSF_MAX_BYTES (SHM_EBAD_SIZE). Address space for the side table, a sixth of size in the
 * worst case, is reserved; its pages take memory when they are used (SHM_ENO_MEMORY when it cannot
 * be reserved). */
int shmi_tlsf_create(shmi_tlsf_t **out, void *base, size_t size);
void shmi_tlsf_destroy(shmi_tlsf_t *t); /* forgets every block; the range itself is untouched */

/* A block of at least size bytes, or NULL with *status (which may be NULL) set:
 * SHM_EBAD_SIZE for 0 and for more than the range, SHM_EARENA_FULL when nothing fits now,
 * SHM_EBAD_ALIGN for an alignment that is no power of two up to 2 MiB. */
void *shmi_tlsf_malloc(shmi_tlsf_t *t, size_t size, int *status);
void *shmi_tlsf_memalign(shmi_tlsf_t *t, size_t alignment, size_t size, int *status);

/* Resize a block, in place when it shrinks or when the block behind it is free and large
 * enough. ptr NULL is malloc. On failure NULL, and the block stays as it was; SHM_EBAD_FREE
 * when ptr is not a live block's start. A moved block has the plain 64-byte alignment. */
void *shmi_tlsf_realloc(shmi_tlsf_t *t, void *ptr, size_t size, int *status);

/* SHM_OK (also for NULL), or SHM_EBAD_FREE, which changes nothing: ptr is not the start of a
 * live block of this allocator. Exact in every build. */
int shmi_tlsf_free(shmi_tlsf_t *t, void *ptr);

size_t shmi_tlsf_usable_size(const shmi_tlsf_t *t, const void *ptr); /* 0: not a live block */

/* An in-place realloc is neither an allocation nor a free, a moving one is both. */
uint64_t shmi_tlsf_used_bytes(const shmi_tlsf_t *t); /* in live blocks */
void shmi_tlsf_stats(const shmi_tlsf_t *t, shm_arena_stats_t *stats);

/* Verify every invariant: SHM_OK or SHM_ECORRUPT. Safe on a side table full of garbage.
 * Reads the whole table: time proportional to the range, for tests and for debugging. */
int shmi_tlsf_check(const shmi_tlsf_t *t);

/* visit each block in address order until it returns non-zero, which is returned. */
int shmi_tlsf_walk(const shmi_tlsf_t *t,
                   int (*visit)(void *address, size_t bytes, int is_live, void *ctx), void *ctx);

/* Where the side table lies, for those who count its resident pages. */
void shmi_tlsf_metadata(const shmi_tlsf_t *t, void **start, size_t *bytes);

#endif
