/* collective -- what members of a gang compute and move together: all_reduce, all_gather, and so on.
 *
 * Data is exchanged in chunks: of each, a member posts its own part and reads the others'
 * (helper/rendezvous.h). The next chunk is posted before the present one is read, so members rarely
 * wait. Whatever the algorithm, the chunks and the group's size, reductions go in the order of
 * ranks, so every member gets the same bits.
 *
 * The collectives of a gang have rising numbers, and all who take part use the same number. So they
 * meet in one order, whatever the groups. Each post says what it is for. A member that finds
 * another post than it expects aborts the gang and says what differs.
 *
 * A collective may be *started*: what fits is posted at once, and the rest is done when it is
 * waited for, under a second number. Other collectives may run in between.
 *
 * The public calls are shm_gang_...() in shmgpu.h.
 *
 * Owns: the algorithms, and what was started. Must never: write to what it was given to read.
 */
#ifndef SHMI_COLLECTIVE_H
#define SHMI_COLLECTIVE_H

#include "base/status.h"

/* The gang has ended here: forget the collectives that it started. */
void shmi_collective_forget(void);

#endif
