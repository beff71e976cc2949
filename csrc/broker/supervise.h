/* supervise -- the parent's life: it starts every role, replaces each helper or child that dies,
 * and ends everything in order.
 *
 *   starting --all helpers ready--> running --all children ended----------------> closing --> over
 *       |                            |   |                                           ^
 *       |                            |   +-- a failed child, helpers given up --+    |
 *       |                            +------ a signal --> draining --held calls +    |
 *       |                                        answered, or the grace is over |    |
 *       +------------ failure --------------------------------------------> ending --+
 *
 * A broker that runs until it is told to end also goes from running to closing when it has an
 * idle_ns and, for that long, no program has been attached and no call has been open.
 *
 *   draining  helpers finish what they hold; what is queued, and what comes, waits
 *   ending    children are told to end (SIGTERM, then after the grace SIGKILL), and served again
 *   closing   helpers' pipes are closed: each serves what it holds and ends (then TERM, KILL)
 *
 * A dead helper is replaced (supervise_roles.c): at once the first time, then after 50 ms, doubling
 * up to 5 s, while its deaths come within death_window_ns of its starts; max_deaths of those in a
 * row end the launch. A broker that runs on its own keeps trying: from then on each such death
 * fails the calls that wait for the pool if it has no other helper, and the next try comes up to 30
 * s later. A child that fails is restarted in the same manner, if the launch says so and
 * max_restarts allows it, once no helper can write to its arena any more and the arena is zero
 * again.
 *
 * The parent has one thread, so it may fork at any time.
 *
 * Owns: the phases, and what follows from a death. Must never: touch an arena, read a frame, or
 * leave a process behind.
 */
#ifndef SHMI_SUPERVISE_H
#define SHMI_SUPERVISE_H

#include "base/status.h"

/* From the first helper's fork to the last process's end. Returns the outcome. */
int shmi_supervise(void);

#endif
