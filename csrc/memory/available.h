/* available -- how much memory the machine has left, calculated without touching any, and the size
 * of its pages.
 *
 * Reads MemAvailable and free swap, the limits of this process's cgroup and of its ancestors (v2
 * and v1), the commit limit if overcommit is off, and RLIMIT_AS.
 *
 * Owns: nothing but the arithmetic. Must never: take memory in order to find out.
 */
#ifndef SHMI_MEMORY_H
#define SHMI_MEMORY_H

#include "base/status.h"

/* How many bytes of shared memory are available now, and which limit says so ("the machine", "its
 * cgroup", ...). */
uint64_t shmi_memory_available(const char **limited_by);
/* Bytes of address space that may still be reserved (RLIMIT_AS); UINT64_MAX without a limit. */
uint64_t shmi_memory_address_space(void);

/* Bytes of a page, the unit of mapping and protection: 4 KiB, on other machines 16 or 64. A build
 * with
 * -DSHMI_PAGE_BYTES=65536 assumes that size, so that it can be tested where pages are smaller. */
size_t shmi_memory_page_bytes(void);
/* Rounded up to whole pages. */
size_t shmi_memory_in_pages(size_t bytes);

#endif
