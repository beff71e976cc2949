/* descriptor -- the list of every descriptor the broker holds in this process.
 *
 * A forked role must keep exactly its own descriptors: an end of somebody else's pipe that
 * stays open hides that somebody's death. So each room that makes a descriptor enters it
 * here, and a new role closes in one sweep all that it does not keep. Descriptors of the
 * user's program are never in the list and never touched.
 *
 * Owns: the list. Must never: make a descriptor itself.
 */
#ifndef SHMI_DESCRIPTOR_H
#define SHMI_DESCRIPTOR_H

#include "base/status.h"

/* Enter fd (when it is one) and return it, so that a making call can be wrapped; when the list
 * itself cannot grow, fd is closed and -1 returned with errno set. */
int shmi_descriptor_own(int fd);
/* Is this number in the list? */
int shmi_descriptor_owns(int fd);
/* Close *fd when it is open, take it out of the list and set it to -1. */
void shmi_descriptor_close(int *fd);
/* In a fresh role: close every listed descriptor but the count in keep. */
void shmi_descriptor_keep_only(const int keep[], int count);
/* How many are listed. */
int shmi_descriptor_count(void);
/* Make sure that `wanted` more descriptors can be opened, raising the soft limit if need be;
 * SHM_ESYSTEM with errno EMFILE when the hard limit forbids it. */
int shmi_descriptor_room(int wanted);

#endif
