/* rendezvous -- how a helper meets the other members of the gang that it runs.
 *
 * A member *posts*: it writes into a slot of its scratch region, which all helpers map, and says in
 * its line up to which position its posts are ready. Another member waits for that position, finds
 * the slot by it, reads the post, and says in its own line how far it has read. A slot is reused
 * only when all its readers are past its post. Each side loads lines and stores to its own; there
 * is a futex for whoever sleeps. So there is no lock, no message, and no system call while
 * everybody is awake.
 *
 * A member that waits spins for a moment first, if there is a core for each member. Then it sleeps,
 * for a tenth of a second at most, and looks whether the gang still runs. A gang that is aborted
 * ends every wait at once.
 *
 * A posted slot may be *pinned*: the post of a started collective stays until somebody waits for
 * the collective, whatever comes in between. SHMI_MEET_FREE slots are never pinned. One collective
 * needs no more than those at once, so it never waits for itself.
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
/* The member's function has ended with that status: arrive, or abort the gang. Returns the member's
 * answer. */
int shmi_meet_end(uint32_t ticket, int status);
shmi_gang_member_t *shmi_meet_member(void);
int shmi_meet_helper(int rank); /* which helper is the member of that rank */

/* Bytes of a slot; 0: there is no scratch region. */
size_t shmi_meet_slot_bytes(void);
/* Get a slot to write to, waiting if none is free: its number, or SHM_EABORTED. pin: never wait;
 * SHM_EAGAIN if none can be pinned now. */
int shmi_meet_slot(int pin);
char *shmi_meet_at(int helper, int slot);
/* Post what was written to the slot: it is ready for these readers, at that position. */
void shmi_meet_post(int slot, uint64_t position, uint64_t readers, const shmi_gang_post_t *head);
/* Unpin a slot: all have read it when they are past that position. */
void shmi_meet_unpin(int slot, uint64_t until);
/* Go on to that position without a post. */
void shmi_meet_pass(uint64_t position, uint64_t readers);
/* Wait until these helpers have posted all up to that position: SHM_OK or SHM_EABORTED. */
int shmi_meet_wait(uint64_t helpers, uint64_t position);
/* In which slot that helper posted that position; -1: in none. */
int shmi_meet_find(int helper, uint64_t position);
/* This helper has read all up to that position. Wake these helpers if they wait for that. */
void shmi_meet_have_read(uint64_t position, uint64_t posters);

/* All that may fail is done. Waits for the others: SHM_OK, or SHM_EABORTED. */
int shmi_meet_commit(void);
int shmi_meet_abort(int why);

#endif
