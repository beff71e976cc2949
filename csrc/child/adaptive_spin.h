/* adaptive_spin -- waiting for a lone call without sleeping.
 *
 * A round trip is four wake-ups, and waking a core that fell idle costs more than all the rest.
 * So a caller whose replies have lately come within SPIN_NS watches, for that long, the count of
 * its answers that the dispatcher keeps on the scoreboard, and sleeps in the read only then. It
 * watches only while there are cores to spare: as many as twice the calls that are out in the
 * whole broker. Replies that come later cost it the habit; every SPIN_RETRY calls it looks again
 * whether times have changed, a few times in a row, because the first of a row finds cores that
 * still sleep deeply. At worst that is 3 x SPIN_NS in SPIN_RETRY calls of more than SPIN_NS.
 *
 * Owns: what one caller has learnt. Must never: make a system call but to yield.
 */
#ifndef SHMI_SPIN_H
#define SHMI_SPIN_H

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
/* After it was. 1: the answer is on its way. */
int shmi_spin(shmi_spin_t *spin);

#endif
