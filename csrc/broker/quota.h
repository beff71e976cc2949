/* quota -- what a process that joins may use at most, by who it is.
 *
 * A table that the host replaces as a whole. Who the user is, the kernel says; what the program is
 * called, it says itself: so a program's row can narrow what its user has, and never widen it.
 *
 * Owns: the table. Knows no socket and no child. Must never: enforce anything.
 */
#ifndef SHMI_QUOTA_H
#define SHMI_QUOTA_H

#include "base/status.h"

/* A copy is taken; SHM_EBAD_CONFIG when it is too long or a value out of range. */
int shmi_quota_set(const shm_quota_t *rows, int count);
/* What holds for that program of that user; 0: no limit. Its program and user mean nothing. */
shm_quota_t shmi_quota_of(uint32_t uid, const char *program);

#endif
