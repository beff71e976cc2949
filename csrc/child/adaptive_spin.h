/* adaptive_spin -- waiting for a lone call without sleeping.
 *
 * A round trip is four wake-ups, and waking an idle core costs more than all the rest: 30 us a hop
 * instead of 10. So a caller whose answers usually come soon enough watches, for twice that usual
 * time, the count of its answers that the dispatcher keeps on the scoreboard, and only then
 * sleeps in the read. It spins only while there are cores to spare: twice as many as there are open
 * calls in the whole broker. While it spins it offers its core to others; if somebody takes it and
 * keeps it, the machine is busy, and the next 64 calls sleep at once, or twice as many as the last
 * time that was found.
 *
 * A gang's members may want all cores, so its caller, who learns how long gangs take apart from other
 * calls, watches only for what takes little longer than the wake-ups.
 *
 * Owns: what one caller has learnt. Must never: make a system call, except to yield.
 */
#ifndef SHMI_ADAPTIVE_SPIN_H
#define SHMI_ADAPTIVE_SPIN_H

#include "base/status.h"

enum { /* what answers may usually take, and how long at most is spun */
  SHMI_SPIN_NS = 400000,
  SHMI_SPIN_FOR_GANG_NS = 200000
};

typedef struct shmi_spin {
  int cores;                /* that this process may use */
  uint32_t skip, to_skip;   /* calls after the latest lost core that do not spin: in all, and yet */
  uint32_t far;             /* calls since one whose answer was not near was looked for */
  uint64_t longest_ns;      /* one of the above */
  uint64_t usual_ns;        /* that lone calls wait; 0: none has */
  const uint64_t *answered; /* the dispatcher's count */
  uint64_t seen;            /* of that, before the call */
} shmi_spin_t;

/* In this process, and those it forks, from the next shmi_spin_open() on: 0: no caller spins. */
void shmi_spin_allow(int allowed);
void shmi_spin_open(shmi_spin_t *spin, const uint64_t *answered, uint64_t longest_ns);
/* Before a call is sent. */
void shmi_spin_note(shmi_spin_t *spin);
/* Whether an answer usually comes so soon that nothing else is worth to be begun. */
int shmi_spin_is_near(shmi_spin_t *spin);
/* After it was sent. 1: the answer is on its way. */
int shmi_spin(shmi_spin_t *spin);
/* So long a lone call waited, spinning or asleep. */
void shmi_spin_learn(shmi_spin_t *spin, uint64_t waited_ns);

#endif
