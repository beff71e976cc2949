/* arena -- the children's private shared memory: one address-space reservation, one sealed
 * memory file per child, and who maps what.
 *
 *   reservation (PROT_NONE, made by the parent before the first fork, address chosen by the
 *   kernel):  | guard | arena 0 | guard | arena 1 | ... | scratch 0 | guard | ...
 *
 * Every forked process inherits the reservation, so an arena has the same address wherever it is
 * mapped, and a pointer into another child's arena hits PROT_NONE instead of its memory. A child
 * maps its own arena, a helper maps all arenas and all scratch regions, the parent maps none.
 *
 * Each new occupant of a slot gets a memory file that nobody else has ever mapped: processes that
 * its predecessor forked, or a predecessor that kept its memory, still read and write the old one.
 * The parent makes the file and sends it to each helper that is to work for the new occupant.
 *
 * Owns: the reservation and the memory files. Must never: touch a byte inside an arena, or find out
 * by trying whether there is enough memory (beyond a cgroup's limit that ends in SIGKILL): that is
 * calculated first.
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

/* Whether the machine has `bytes` left: SHM_OK, or SHM_ENO_MEMORY with a sentence in the detail. */
int shmi_arena_check_memory(uint64_t bytes);
/* Reserve addresses and make every memfd. All or nothing. */
int shmi_arena_create(const shmi_arena_plan_t *plan);
/* Whether core dumps contain what is mapped from here on, in this process and those it forks. */
void shmi_arena_dump(int wanted);
/* In a process that joins: map its arena, at the broker's address if that range is free. */
int shmi_arena_join(int fd, int child, uint64_t broker_address, size_t bytes);
/* What to add to an address of this process to get the broker's. */
int64_t shmi_arena_shift(void);
/* Keep only this child's arena of the reservation, as in a process that joined. */
void shmi_arena_narrow(int child);
/* In the parent: the memory file of a child's arena, to be sent. */
int shmi_arena_descriptor(int child);
/* In the parent: give that slot another memory file, which is zero. All or nothing. */
int shmi_arena_renew(int child);
/* Which memory file of that slot this process maps, counted from 0. */
uint64_t shmi_arena_version(int child);
/* In the parent: send it to the helper at the other end of the socket. As shmi_passing_send. */
int shmi_arena_pass(int child, int socket_fd);
/* Send it a memory file that is no arena's, in turn with those that are. */
int shmi_arena_pass_other(int fd, int socket_fd);
/* In that helper: map the next one in place of the old. Which child's, or a negative status. If the
 * next one is no arena's, *other_fd gets its descriptor, which belongs to the caller from then on,
 * and the count of arenas is returned. */
int shmi_arena_take(int socket_fd, int *other_fd);
/* What is mapped there holds programs' data: omit it from core dumps, unless they are wanted. */
void shmi_arena_leave_out_of_dumps(void *at, size_t bytes);
/* Unmap everything and close the memfds, in whatever role. */
void shmi_arena_destroy(void);
/* Forget the reservation without unmapping it: the heap does that later. */
void shmi_arena_detach(void);
/* In a fresh role: map what it may access. The memory files can be closed afterwards. */
int shmi_arena_map_child(int child);
int shmi_arena_map_helper(void);
/* With prefault: populate, after calculating that there is enough memory. In a helper, once, before
 * it is ready. */
int shmi_arena_populate(int child);
/* In the parent: the first stretch of a child's arena from `from` on, at most `most` bytes, that
 * has ever been written to. 0: there is none. Touches no byte of it. */
int shmi_arena_next_data(int child, uint64_t from, uint64_t most, uint64_t *offset,
                         uint64_t *bytes);
/* Memory files belong to the parent: forked roles close them. */
void shmi_arena_close_descriptors(void);

uint64_t shmi_arena_address(int child);
size_t shmi_arena_bytes(void);
uint64_t shmi_arena_scratch_address(int helper);
size_t shmi_arena_scratch_bytes(void); /* of each helper; 0: there are none */
uint64_t shmi_arena_reservation(uint64_t *bytes);
int shmi_arena_count(void);

#endif
