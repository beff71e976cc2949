/* available -- how much the machine can still give, by arithmetic (nothing is touched to find out),
 * and in what pages.
 *
 * Reads MemAvailable and free swap, the limits of this process's cgroup and of its ancestors
 * (v2 and v1), the commit limit where overcommit is off, and RLIMIT_AS.
 *
 * Owns: nothing but the arithmetic. Must never: take memory in order to find out.
 */
#ifndef SHMI_MEMORY_H
#define SHMI_MEMORY_H

#include "base/status.h"

/* Bytes of shared memory that can be had now, and which limit says so ("the machine", "its
 * cgroup", ...). */
uint64_t shmi_memory_available(const char **limited_by);
/* Bytes of address space that may still be reserved (RLIMIT_AS); UINT64_MAX without a limit. */
uint64_t shmi_memory_address_space(void);

/* Bytes of a page: what is mapped and protected by itself. 4 KiB, and on other machines 16 or 64.
 * A build with -DSHMI_PAGE_BYTES=65536 takes that for it, to be tested where pages are smaller. */
size_t shmi_memory_page_bytes(void);
/* Rounded up to whole pages. */
size_t shmi_memory_in_pages(size_t bytes);

#endif
