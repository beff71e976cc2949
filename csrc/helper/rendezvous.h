/* rendezvous -- how a helper meets the other members of the gang that it runs.
 *
 * A member *posts*: it writes into a slot of its scratch region, which all helpers map, and says in
 * its line that all up to a position lies ready. Another one waits for that position, finds the slot
 * by it, reads there, and says in its own line how far it has read. A slot is written anew only when
 * all its readers are past what lay there. Both sides are plain stores and loads of one's own line,
 * and a futex for whoever sleeps: no lock, no message, no system call while everybody is awake.
 *
 * Who waits looks for a moment first, where each member has a core. It sleeps for a tenth of a second
 * at most, then looks whether the gang still runs. A gang that is aborted ends every wait at once.
 *
 * A posted slot may be *pinned*: what a started collective has posted stays until that is waited for,
 * whatever comes in between. SHMI_MEET_FREE slots are never pinned, which is what one collective needs
 * at once, so it never waits for itself.
 *
 * Owns: this helper's line, its slots, and which gang it is in. Must never: know what lies in a slot,
 * or take anything of a dead gang for good.
 */
#ifndef SHMI_RENDEZVOUS_H
#define SHMI_RENDEZVOUS_H

#include "ipc/gang.h"

enum { SHMI_MEET_FREE = 4 };

typedef struct shmi_gang_member { /* of the gang that runs */
  uint32_t ticket; /* 0: none does */
  int helper, rank, size;
  uint64_t members;
  int is_decided;      /* it has committed, or is known to be aborted */
  uint64_t last;       /* position of its last collective */
  uint64_t moved_bytes, waited_ns;
} shmi_gang_member_t;

/* In a fresh helper. */
void shmi_meet_open(int helper);
/* SHM_EABORTED: the gang was aborted before it began here. */
int shmi_meet_begin(uint32_t ticket, uint64_t members);
/* Its function has ended with that status: what the member answers. Arrives, or aborts the gang. */
int shmi_meet_end(uint32_t ticket, int status);
shmi_gang_member_t *shmi_meet_member(void);
int shmi_meet_helper(int rank); /* which helper is the member of that rank */

/* Bytes of a slot; 0: there is no scratch region. */
size_t shmi_meet_slot_bytes(void);
/* A slot to write to, free or waited for: its number, or SHM_EABORTED. pin: SHM_EAGAIN where none can be
 * pinned without waiting. */
int shmi_meet_slot(int pin);
char *shmi_meet_at(int helper, int slot);
/* What was written there is ready for these readers, at that position. */
void shmi_meet_post(int slot, uint64_t position, uint64_t readers, const shmi_gang_post_t *head);
/* A pinned slot is read at that position at the latest. */
void shmi_meet_unpin(int slot, uint64_t until);
/* Nothing is posted at that position, or none of it was: go on. */
void shmi_meet_pass(uint64_t position, uint64_t readers);
/* Until these helpers have posted all up to that position: SHM_OK or SHM_EABORTED. */
int shmi_meet_wait(uint64_t helpers, uint64_t position);
/* Where a helper that has posted that position put it; -1: it posted no such thing. */
int shmi_meet_find(int helper, uint64_t position);
/* Nothing up to that position is read any more; these helpers may wait for it. */
void shmi_meet_have_read(uint64_t position, uint64_t posters);

/* All that may fail is done. Waits for the others: SHM_OK, or SHM_EABORTED. */
int shmi_meet_commit(void);
int shmi_meet_abort(int why);

#endif
