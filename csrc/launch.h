/* launch -- the supervisor: forks the roles, keeps them alive, ends them in order.
 *
 *   starting --all helpers ready--> running --all children ended--> closing --> over
 *       |                              |  signal, failed child,         ^
 *       +------------ failure ---------+--helpers given up--> ending ---+
 *
 *   ending   children are told to end (SIGTERM, then after the grace SIGKILL)
 *   closing  helpers' pipes are closed: each serves what it holds and ends (then TERM, KILL)
 *
 * The parent has one thread, so it may fork at any time. Signal handlers only count; the loop
 * acts. Every process is watched and signalled through its pidfd; one that we did not fork (the
 * caller of an init()) is watched and never signalled.
 *
 * Owns: the processes, the states, the signal dispositions while it runs. Must never: touch an
 * arena, read a frame, or leave anything behind.
 */
#ifndef SHMI_LAUNCH_H
#define SHMI_LAUNCH_H

#include "status.h"

/* Which role this process has in the running broker, and its number. */
int shmi_role(void);
int shmi_role_index(void);

#endif
