/* clock -- the one clock: CLOCK_MONOTONIC in nanoseconds, comparable between processes.
 *
 * Must never: read a clock that somebody may set. */
#ifndef SHMI_CLOCK_H
#define SHMI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t shmi_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Set *at_ns to the earlier of the two times; 0 means none. */
static inline void shmi_clock_earliest(uint64_t *at_ns, uint64_t candidate_ns) {
  if (candidate_ns != 0 && (*at_ns == 0 || candidate_ns < *at_ns)) *at_ns = candidate_ns;
}

#endif
