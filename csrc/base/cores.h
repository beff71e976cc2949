/* cores -- how many this process may use, and how it waits on one without sleeping.
 *
 * Must never: give a core up, or sleep. */
#ifndef SHMI_CORES_H
#define SHMI_CORES_H

#include <sched.h>

static inline int shmi_cores_allowed(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Between two looks at memory that another process writes. */
static inline void shmi_cores_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
