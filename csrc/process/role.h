/* role -- which part this process plays, and how a forked process takes up its part.
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
/* Is it the role of the process from which the user's own code forked this one? */
int shmi_role_is_inherited(void);

/* What every forked role does first: its signals, its tie to the parent, its memory, its own
 * ends of pipes and sockets and no other descriptor of the broker's. SHM_OK, or why it must end at once. */
int shmi_role_begin(int role, int index, pid_t parent, const int ends[],
                    int count);
/* The end of a forked role, by the host's own way out. */
_Noreturn void shmi_role_end(const shm_host_t *host, int status);

#endif
