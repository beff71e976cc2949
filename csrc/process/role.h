/* role -- which role this process has, and how a forked process takes on its role.
 *
 * Owns: the role's name and number. Must never: fork, or outlive the process that forked it.
 */
#ifndef SHMI_ROLE_H
#define SHMI_ROLE_H

#include <sys/types.h>

#include "base/status.h"

/* Which role this process has in the running broker, and its number. */
int shmi_role(void);
int shmi_role_index(void);
void shmi_role_set(int role, int index);
/* Whether it is the role of a process from which the user's own code forked this one. */
int shmi_role_is_inherited(void);

/* What every forked role does first: it sets up its signals and its memory, ties its life to the
 * parent's, and closes every descriptor of the broker's except its own pipe ends and sockets.
 * SHM_OK, or why it must end at once. */
int shmi_role_begin(int role, int index, pid_t parent, const int ends[],
                    int count);
/* End a forked role, through the host's exit function if it has one. */
_Noreturn void shmi_role_end(const shm_host_t *host, int status);

#endif
