/* attach -- this process joins a broker that is already running, and becomes a child of it.
 *
 * Owns: what shm_join gave this process. Must never: keep anything that belongs to the user, or
 * anything at all after a refusal.
 */
#ifndef SHMI_ATTACH_H
#define SHMI_ATTACH_H

#include "base/status.h"

/* Whether this process joined its broker, rather than being forked by it. */
int shmi_attach_is_client(void);
/* Leave the broker. Arrays that are still in use keep their memory. */
void shmi_attach_leave(void);

#endif
