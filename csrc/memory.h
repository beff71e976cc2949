/* memory -- how much the machine can still give, by arithmetic: nothing is touched to find out.
 *
 * Reads MemAvailable and free swap, the limits of this process's cgroup and of its ancestors
 * (v2 and v1), the commit limit where overcommit is off, and RLIMIT_AS.
 */
#ifndef SHMI_MEMORY_H
#define SHMI_MEMORY_H

#include "status.h"

/* Bytes of shared memory that can be had now, and which limit says so ("the machine", "its
 * cgroup", ...). */
uint64_t shmi_memory_available(const char **limited_by);
/* Bytes of address space that may still be reserved (RLIMIT_AS); UINT64_MAX without a limit. */
uint64_t shmi_memory_address_space(void);

#endif
