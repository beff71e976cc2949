/* heap -- the allocator over this child's arena, made safe for threads and for late frees.
 *
 * Owns: one TLSF over the arena, its lock, and *retired* arenas, of brokers that this process left
 * while blocks were still alive. A retired arena stays mapped, so that an array that outlives its
 * broker can still be read, and is unmapped with its last block. Must never: call other modules
 * while it holds the lock.
 */
#ifndef SHMI_HEAP_H
#define SHMI_HEAP_H

#include "base/status.h"

int shmi_heap_open(uint64_t base, size_t bytes, int child);
/* Call when leaving the broker. Returns 1 when blocks are alive: the caller must then leave
 * [mapping, mapping + mapping_bytes) mapped; the heap unmaps it with the last block. */
int shmi_heap_retire(uint64_t mapping, uint64_t mapping_bytes);
/* The same in a process that was forked from the owner of the heap: what it inherited stays
 * readable, and freeing it changes nothing for the owner. */
int shmi_heap_disown(uint64_t mapping, uint64_t mapping_bytes);
/* Free or resize at once, even if a helper may still use the block. */
int shmi_heap_free(void *ptr);
void *shmi_heap_realloc(void *ptr, size_t size);

#endif
