/* attach -- joining: this process becomes a child of a broker that runs already.
 *
 * Owns: what shm_join gave this process. Must never: keep anything of the user's, or anything at
 * all after a refusal.
 */
#ifndef SHMI_JOIN_H
#define SHMI_JOIN_H

#include "base/status.h"

/* Did this process join the broker it is in? */
int shmi_join_is_member(void);
/* It leaves: arrays that live on keep their memory. */
void shmi_join_leave(void);

#endif
