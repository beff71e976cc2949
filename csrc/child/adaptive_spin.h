/* adaptive_spin -- waiting for a lone call without sleeping.
 *
 * A round trip is four wake-ups, and waking an idle core costs more than all the rest. So a caller
 * whose recent replies came within SPIN_NS watches, for that long, the count of its answers that
 * the dispatcher keeps on the scoreboard, and only then sleeps in the read. It spins only while
 * there are cores to spare: twice as many as there are open calls in the whole broker. A caller
 * whose replies come later stops spinning. Every SPIN_RETRY calls it tries again, a few times in a
 * row, because the first try finds cores that are still in a deep sleep. At worst that costs 3 x
 * SPIN_NS in SPIN_RETRY calls of more than SPIN_NS.
 *
 * Owns: what one caller has learnt. Must never: make a system call, except to yield.
 */
#ifndef SHMI_ADAPTIVE_SPIN_H
#define SHMI_ADAPTIVE_SPIN_H

#include "base/status.h"

typedef struct shmi_spin {
  int cores; /* that this process may use */
  int trust, skipped;
  const uint64_t *answered; /* the dispatcher's count */
  uint64_t seen;            /* of that, before the call */
} shmi_spin_t;

void shmi_spin_open(shmi_spin_t *spin, const uint64_t *answered);
/* Before a call is sent. */
void shmi_spin_note(shmi_spin_t *spin);
/* Whether an answer is worth to be spun for now. */
int shmi_spin_pays(shmi_spin_t *spin);
/* After it was sent. 1: the answer is on its way. */
int shmi_spin(shmi_spin_t *spin);

#endif
