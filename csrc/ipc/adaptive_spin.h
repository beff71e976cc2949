/* adaptive_spin -- waiting without sleeping for what usually comes soon, in a broker with one caller.
 *
 * A round trip is four wake-ups, and waking an idle core costs more than all the rest: 30 us a hop
 * instead of 10. So a caller whose answers usually come soon enough watches, for twice that usual
 * time, the count of its answers that the dispatcher keeps on the scoreboard, and only then
 * sleeps in the read. The dispatcher does likewise when it has answered the only call there was: it
 * watches for the next one. Either spins only while there are cores to spare: twice as many as there
 * are open calls in the whole broker. While it spins it offers its core to others; if somebody takes
 * it and keeps it, the machine is busy, and the next 64 waits sleep at once, or twice as many as the
 * last time that was found.
 *
 * A gang's members may want all cores, so its caller, who learns how long gangs take apart from other
 * calls, watches only for what takes little longer than the wake-ups.
 *
 * Owns: what one process has learnt of one kind of wait. Must never: make a system call, except to
 * yield.
 */
#ifndef SHMI_ADAPTIVE_SPIN_H
#define SHMI_ADAPTIVE_SPIN_H

#include "base/status.h"

enum { /* what is waited for may usually take so long, and so long at most is spun */
  SHMI_SPIN_NS = 400000,          /* by a caller, for its answer, */
  SHMI_SPIN_FOR_GANG_NS = 200000, /* or a gang's, */
  SHMI_SPIN_FOR_NEXT_NS = 100000  /* and by the dispatcher, for the next call */
};

typedef struct shmi_spin {
  int cores;              /* that this process may use */
  uint32_t skip, to_skip; /* waits after the latest lost core that do not spin: in all, and yet */
  uint32_t far;           /* calls since one whose answer was not near was looked for */
  uint64_t longest_ns;    /* one of the above */
  uint64_t usual_ns;      /* that such waits last; 0: none has been */
} shmi_spin_t;

/* In this process, and those it forks, from the next shmi_spin_open() on: 0: nobody spins. */
void shmi_spin_allow(int allowed);
void shmi_spin_open(shmi_spin_t *spin, uint64_t longest_ns);
/* Whether an answer usually comes so soon that nothing else is worth to be begun. */
int shmi_spin_is_near(shmi_spin_t *spin);
/* Watches until is_here(what), which is asked `looks` times before others are offered the core. 1: it
 * is here. */
int shmi_spin(shmi_spin_t *spin, int looks, int (*is_here)(void *), void *what);
/* So long such a wait lasted, spinning or asleep. */
void shmi_spin_learn(shmi_spin_t *spin, uint64_t waited_ns);

#endif
