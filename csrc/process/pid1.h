/* pid1 -- the duties of PID 1, when the program that starts a broker is a container's first
 * process.
 *
 * The kernel makes PID 1 the parent of every orphan, and does not deliver signals to it for which
 * it has no handler. Ordinary programs are not prepared for that. So the program continues in a
 * process forked here, and the first one stays behind as an init: it forwards the signals it gets,
 * reaps whatever ends, and ends as the program ends. It closes every descriptor it inherited, so
 * that what the program closes is closed.
 *
 *   - What a terminal sends (Ctrl-C, a new size) goes to its whole foreground group anyway, so it is not
 *     forwarded. A hang-up is, because only the leader of the session gets it.
 *   - A program that is stopped has not ended: the init waits until it is continued.
 *   - A process that already has subprocesses remains PID 1: only under its number can they be waited
 *     for, and their exit status matters more than an orphan's.
 *
 * Owns: PID 1 from the first broker on; the only code that waits for "any" child. Must never:
 * return in PID 1, flush stdio buffers, or run the program's exit hooks.
 */
#ifndef SHMI_PID1_H
#define SHMI_PID1_H

#include "base/status.h"

/* In PID 1: fork through the host's hook (NULL: fork()), return in the new process, and become the
 * init in this one. In any other process it does nothing. SHM_ESYSTEM when the fork fails; then
 * nothing has changed. Call it before anything of a broker exists. */
int shmi_pid1_stay_behind(int (*fork_hook)(void));

#endif
