/* collective -- what members of a gang compute and move together: all_reduce, all_gather, and so on.
 *
 * Each is a walk over chunks, of which a member posts its own and reads the others'
 * (helper/rendezvous.h). A chunk is posted before the one before it is read, so members rarely wait.
 * Whatever the algorithm, the chunks and the group's size, reductions go in the order of ranks, so
 * every member gets the same bits.
 *
 * Collectives of a gang have numbers that rise, the same for all who take part: so they meet in one
 * order, whatever the groups. With what is posted stands what it is for; a member that finds something
 * else than it expects aborts the gang and says what differs.
 *
 * A collective may be *started*: what fits is posted, and the rest is done when it is waited for,
 * under a number of its own. Others may lie in between.
 *
 * The public calls are shm_gang_...() in shmgpu.h.
 *
 * Owns: the algorithms, and what was started. Must never: write to what it was given to read.
 */
#ifndef SHMI_COLLECTIVE_H
#define SHMI_COLLECTIVE_H

#include "base/status.h"

/* The gang has ended here: nothing of it is started any more. */
void shmi_collective_forget(void);

#endif
