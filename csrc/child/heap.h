/* heap -- the allocator over this child's arena, made safe for threads and for late frees.
 *
 * Owns: one TLSF over the arena, its lock, and *retired* arenas: memory of a broker that was
 * left while blocks were still alive. Those stay mapped, so that an array that outlives its
 * broker reads its own memory, and are unmapped with their last block.
 * Must never: call out while it holds the lock.
 */
#ifndef SHMI_HEAP_H
#define SHMI_HEAP_H

#include "base/status.h"

int shmi_heap_open(uint64_t base, size_t bytes, int child);
/* The broker is left. Returns 1 when blocks are alive: the caller must then leave
 * [mapping, mapping + mapping_bytes) mapped, the heap unmaps it with the last block. */
int shmi_heap_retire(uint64_t mapping, uint64_t mapping_bytes);
/* The same in a process forked from the one whose heap it is: what was inherited stays readable,
 * and a free of it changes nothing there. */
int shmi_heap_disown(uint64_t mapping, uint64_t mapping_bytes);
/* The free and the resize themselves, whoever still uses the block. */
int shmi_heap_free(void *ptr);
void *shmi_heap_realloc(void *ptr, size_t size);

#endif
