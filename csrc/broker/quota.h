/* quota -- how much an attached program may use at most, by its user and its name.
 *
 * A table that the host replaces as a whole. The kernel says who the user is; the program itself
 * says what it is called. So a program's row can narrow what its user has, but never widen it.
 *
 * Owns: the table. Knows no socket and no child. Must never: enforce anything.
 */
#ifndef SHMI_QUOTA_H
#define SHMI_QUOTA_H

#include "base/status.h"

/* A copy is taken; SHM_EBAD_CONFIG when it is too long or a value out of range. */
int shmi_quota_set(const shm_quota_t *rows, int count);
/* The limits of that program of that user; 0: no limit. The program and user of the result are not
 * set. */
shm_quota_t shmi_quota_of(uint32_t uid, const char *program);

#endif
