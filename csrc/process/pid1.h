/* pid1 -- PID 1's one job, where the program that asks for a broker is a container's first process.
 *
 * The kernel gives every orphan to PID 1 and keeps from it each signal that it has no handler for.
 * A program knows nothing of that. So it goes on in a process forked here, and the first one stays
 * behind as an init: it hands on the signals it gets, reaps whatever ends, and ends as the program
 * ends. It closes every descriptor it inherited, so that what the program closes is closed.
 *
 *   - What a terminal sends (Ctrl-C, a new size) its whole foreground group has got already: that is
 *     not handed on. A hang-up is, because only the leader of the session hears of it.
 *   - A program that is stopped has not ended: the init waits until somebody continues it.
 *   - A process that has subprocesses of its own already keeps its place: they are waited for under
 *     its number only, and their exit status is worth more than an orphan's.
 *
 * Owns: PID 1 from the first broker on; the one place that waits for "any" child. Must never:
 * return in PID 1, flush what stdio holds, or run a hook of the program's end.
 */
#ifndef SHMI_INIT_H
#define SHMI_INIT_H

#include "base/status.h"

/* As PID 1: fork through the host's hook (NULL: fork()), return in the new process, and be the init
 * in this one. Anywhere else it does nothing. SHM_ESYSTEM when the fork fails: nothing has changed
 * then. To be called before anything of a broker exists. */
int shmi_init_stay_behind(int (*fork_hook)(void));

#endif
