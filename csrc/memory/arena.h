/* arena -- the children's private shared memory: one address-space reservation, one sealed
 * memory file per child, and who maps what.
 *
 *   reservation (PROT_NONE, made by the parent before the first fork, address chosen by the
 *   kernel):  | guard | arena 0 | guard | arena 1 | ... | scratch 0 | guard | ...
 *
 * Every forked process inherits the reservation, so an arena has the same address wherever it
 * is mapped and a stranger's pointer hits PROT_NONE instead of somebody's memory. A child maps
 * its own arena, a helper maps all arenas and all scratch regions, the parent maps none.
 *
 * Whoever comes into a slot after somebody finds a memory file that nobody else has ever mapped:
 * what its predecessor forked, or kept, goes on reading and writing the old one. The parent makes
 * it and passes it on to each helper that is to work for the new occupant.
 *
 * Owns: the reservation and the memory files. Must never: touch a byte inside an arena, or decide by
 * trying whether memory can be had (over a cgroup's limit a try ends in SIGKILL): that is
 * arithmetic, done first.
 */
#ifndef SHMI_ARENA_H
#define SHMI_ARENA_H

#include "base/status.h"

typedef struct shmi_arena_plan {
  int children;
  size_t arena_bytes;
  int helpers;
  size_t scratch_bytes;
  int prefault;
  int huge_pages;
} shmi_arena_plan_t;

/* Can the machine give `bytes`? SHM_OK, or SHM_ENO_MEMORY with a sentence in the detail. */
int shmi_arena_check_memory(uint64_t bytes);
/* Reserve addresses and make every memfd. All or nothing. */
int shmi_arena_create(const shmi_arena_plan_t *plan);
/* Whether what is mapped from here on, in this process and those it forks, is in core dumps. */
void shmi_arena_dump(int wanted);
/* In a process that joins: map its arena, at the broker's address where that range is free. */
int shmi_arena_join(int fd, int child, uint64_t broker_address, size_t bytes);
/* What turns an address of this process into the broker's. */
int64_t shmi_arena_shift(void);
/* Of the reservation keep this child's arena only, as one that joined has it. */
void shmi_arena_narrow(int child);
/* In the parent: the memory file of a child's arena, to be handed over. */
int shmi_arena_descriptor(int child);
/* In the parent: give that slot another memory file, which is zero. All or nothing. */
int shmi_arena_renew(int child);
/* Which memory file of that slot this process knows, counted from 0. */
uint64_t shmi_arena_version(int child);
/* In the parent: hand it to the helper at the other end of the socket. As shmi_passing_send. */
int shmi_arena_pass(int child, int socket_fd);
/* In that helper: map the next one instead of the old. Which child's, or a negative status. */
int shmi_arena_take(int socket_fd);
/* Unmap everything and close the memfds, in whatever role. */
void shmi_arena_destroy(void);
/* Forget the reservation without unmapping it: somebody else does, later. */
void shmi_arena_detach(void);
/* In a fresh role: map what it may see. The memfds can be closed afterwards. */
int shmi_arena_map_child(int child);
int shmi_arena_map_helper(void);
/* With prefault: populate, after the arithmetic. In a helper, once, before it is ready. */
int shmi_arena_populate(int child);
/* In the parent: the first stretch of a child's arena from `from` on, at most `most` bytes, that
 * has ever been written to. 0: there is none. Touches no byte of it. */
int shmi_arena_next_data(int child, uint64_t from, uint64_t most, uint64_t *offset,
                         uint64_t *bytes);
/* The memfds are the parent's: forked roles let them go. */
void shmi_arena_close_descriptors(void);

uint64_t shmi_arena_address(int child);
size_t shmi_arena_bytes(void);
uint64_t shmi_arena_scratch_address(int helper);
uint64_t shmi_arena_reservation(uint64_t *bytes);
int shmi_arena_count(void);

#endif
