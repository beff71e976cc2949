/* gang -- the fate of a call that runs on several helpers at once, as one atomic word, and the line
 * by which each helper meets the others.
 *
 * One memfd, mapped by the parent before the first fork, sealed against any other writable mapping,
 * and inherited by helpers; a child unmaps it, so no child can touch it. It holds
 *
 *   | a word for each gang that runs, by its ticket | for each helper a line, and heads of its posts |
 *
 * The parent numbers gangs: a *ticket*, of 32 bits. Its word goes
 *
 *   RUNNING --the last member arrives--> COMMITTED
 *      +------a member fails, or the parent sees one die----> ABORTED, by whom and why
 *
 * in one compare-and-swap, so exactly one of the two wins, whoever tries. The word holds its ticket:
 * whoever comes with an old one changes nothing. A ticket lives until all members have answered or
 * are dead, and then its place is given to another.
 *
 * A *position* says how far a helper is: ticket, number of the collective in it, step in that. They
 * are serial numbers, which never start anew and wrap. A helper's line says what it has posted for
 * others and what it has read of theirs, and whom it waits for. A dead helper's gangs are aborted
 * first; then its line says that it is past everything, so that nobody waits for it.
 *
 * Owns: the mapping and the words. Must never: hold data, block, or know what a gang computes.
 */
#ifndef SHMI_GANG_H
#define SHMI_GANG_H

#include <stdatomic.h>

#include "base/status.h"

enum {
  SHMI_GANGS = 1024,   /* that run at once */
  SHMI_GANG_LINE = 64, /* bytes of a cache line */
  SHMI_GANG_SIZES = 64 /* a member is a bit of a mask */
};
_Static_assert((int)SHM_MAX_HELPERS <= (int)SHMI_GANG_SIZES, "a mask holds every helper");

/* What a helper has posted: one of a few places in its scratch region, and what lies there. */
enum { SHMI_GANG_SLOTS = 8 };
typedef struct shmi_gang_post {
  _Alignas(SHMI_GANG_LINE) _Atomic uint64_t position;
  uint64_t bytes;
  uint64_t group; /* a hash of who takes part, in order */
  uint32_t what;  /* kind, operation and element type */
  uint32_t unused;
} shmi_gang_post_t;

typedef struct shmi_gang_line { /* written by its helper, but for the bell */
  _Alignas(SHMI_GANG_LINE) _Atomic uint64_t posted; /* all posts up to this position are ready */
  _Atomic uint64_t read;        /* nothing up to this position is read any more */
  _Atomic uint64_t waiting_for; /* mask of helpers; 0: it waits for none */
  _Atomic uint64_t waits_until; /* until they are at this position */
  _Atomic uint32_t waits_to_read; /* 1: until it is posted; 0: until it is read */
  _Atomic uint32_t asleep;
  _Atomic uint32_t bell;        /* rises when the helper should look again; a futex */
  uint32_t reserved;
} shmi_gang_line_t;
_Static_assert(sizeof(shmi_gang_line_t) == SHMI_GANG_LINE, "a line of its own for each helper");

/* Value of a member's answer SHM_EABORTED: the gang was aborted before this member began. */
enum { SHMI_GANG_NOT_BEGUN = 1 };

typedef struct shmi_gang_fate { /* what a word says */
  int state;  /* shm_gang_state */
  int helper; /* of an aborted one: who is the reason, or SHM_NO_HELPER */
  int why;    /* shm_gang_why */
} shmi_gang_fate_t;

/* ---- positions ---- */

#define SHMI_GANG_LAST_STEP UINT32_C(0xffff)
static inline uint64_t shmi_gang_position(uint32_t ticket, uint32_t collective, uint32_t step) {
  return (uint64_t)ticket << 32 | (uint64_t)collective << 16 | step;
}
/* Past everything in that gang. */
static inline uint64_t shmi_gang_end_of(uint32_t ticket) {
  return (uint64_t)ticket << 32 | UINT32_MAX;
}
/* Is a at b, or past it? They may have wrapped in between. */
static inline int shmi_gang_is_past(uint64_t a, uint64_t b) { return (int64_t)(a - b) >= 0; }

/* ---- making it; who maps it ---- */

int shmi_gang_create(int helpers);
/* Unmap it: at the end, or in a role that may not see it. */
void shmi_gang_destroy(void);

shmi_gang_line_t *shmi_gang_line(int helper);
shmi_gang_post_t *shmi_gang_posts(int helper); /* SHMI_GANG_SLOTS of them */

/* ---- the parent ---- */

/* Can one more run? */
int shmi_gang_has_room(void);
/* A ticket for a gang of these helpers, which is RUNNING from here on. There must be room. */
uint32_t shmi_gang_open(uint64_t members, uint64_t epoch);
/* All members have answered or are dead: its place is free. */
void shmi_gang_close(uint32_t ticket);
/* This helper is dead: abort what it is a member of and is not decided, then let nobody wait for it. */
void shmi_gang_member_died(int helper);
/* Does that helper wait for a member of its gang that is not there yet? */
int shmi_gang_waits(int helper);
/* Is that gang stuck: does each member that has not ended wait for another one that is not there?
 * Two looks in a row must find the same; *last has what the previous one found. */
int shmi_gang_is_stuck(uint32_t ticket, uint64_t running, uint64_t *last);
/* For tests: the next ticket is this one, or the first free one after it. number_from: as if no
 * ticket had been given to anybody before. skip_to: as if those in between had been given to
 * others. */
void shmi_gang_number_from(uint32_t ticket);
void shmi_gang_skip_to(uint32_t ticket);

/* ---- a member, and the parent ---- */

/* RUNNING until the last member has arrived; ABORTED for a ticket that is not open. */
shmi_gang_fate_t shmi_gang_fate(uint32_t ticket);
uint64_t shmi_gang_epoch(uint32_t ticket);
/* One member has done all that may fail. Returns the state of the gang after that. */
int shmi_gang_arrive(uint32_t ticket);
/* Abort it, and wake whoever waits in it. Returns whether this call decided it. */
int shmi_gang_abort(uint32_t ticket, int helper, int why);
/* Have these helpers look again. Never blocks. */
void shmi_gang_ring(uint64_t helpers);

#endif
