/* descriptor -- the list of every descriptor the broker holds in this process.
 *
 * A forked role must keep exactly its own descriptors: an open copy of another process's pipe end
 * hides that process's death. So each module that makes a descriptor lists it here, and a new role
 * closes all that it does not keep in one sweep. Descriptors of the user's program are never listed
 * and never touched.
 *
 * Owns: the list. Must never: make a descriptor itself.
 */
#ifndef SHMI_DESCRIPTOR_H
#define SHMI_DESCRIPTOR_H

#include "base/status.h"

/* List fd (if it is not negative) and return it, so that the call that makes it can be wrapped.
 * When the list cannot grow, fd is closed, and -1 is returned with errno set. */
int shmi_descriptor_own(int fd);
/* Is this number in the list? */
int shmi_descriptor_owns(int fd);
/* Close *fd if it is open, remove it from the list and set it to -1. */
void shmi_descriptor_close(int *fd);
/* In a fresh role: close every listed descriptor but the count in keep. */
void shmi_descriptor_keep_only(const int keep[], int count);
/* How many are listed. */
int shmi_descriptor_count(void);
/* Make sure that `wanted` more descriptors can be opened, raising the soft limit if need be;
 * SHM_ESYSTEM with errno EMFILE when the hard limit forbids it. */
int shmi_descriptor_room(int wanted);

#endif
