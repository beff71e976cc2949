/* collective_internal -- what the files of the collectives share.
 *
 * collective.c            a collective is checked, run, started and waited for; the gang's own calls
 * collective_exchange.c   one step of it: what is posted, what is found, and whether the two agree
 * collective_moves.c      barrier, broadcast, scatter, gather, send, all_gather, all_to_all
 * collective_reduce.c     reduce_scatter, and the three ways to do an all_reduce
 *
 * A *run* is one collective as this member takes part in it. Ranks are those of its group.
 *
 * Owns: the layout of a run. Must never: be included by any other file; others use collective.h.
 */
#ifndef SHMI_COLLECTIVE_INTERNAL_H
#define SHMI_COLLECTIVE_INTERNAL_H

#include <string.h>

#include "helper/collective.h"
#include "helper/rendezvous.h"

enum { SHMI_RUN_STAGED = 2 }; /* the most posts that a started collective keeps */

typedef struct shmi_run { /* one collective, as this member takes part in it */
  const shm_collective_t *asked;
  const char *in;
  char *out;
  uint32_t id;         /* number of the posts from here on */
  uint32_t started_id; /* number of its posts at its start; 0: it was not started */
  int staged;          /* how many posts it made at its start */
  int staged_slots[SHMI_RUN_STAGED];
  uint32_t staged_steps[SHMI_RUN_STAGED];
  int size, me;        /* ranks are those of the group */
  size_t item;         /* bytes of an element */
  size_t piece;        /* bytes of a post, at most */
  uint64_t others;     /* as a mask of helpers */
  uint8_t helpers[SHM_MAX_HELPERS];
  uint64_t group;
  uint32_t what;
} shmi_run_t;

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline uint64_t pieces_of(uint64_t count, uint64_t each) { return (count + each - 1) / each; }
static inline int is_reducing(int kind) {
  return kind == SHM_ALL_REDUCE || kind == SHM_REDUCE_SCATTER;
}

static inline uint64_t bit_of(const shmi_run_t *run, int rank) {
  return UINT64_C(1) << run->helpers[rank];
}

static inline uint64_t position(uint32_t id, uint32_t step) {
  return shmi_gang_position(shmi_meet_member()->ticket, id, step);
}

/* n elements cut into a piece for each rank: where that of `rank` begins. */
static inline size_t cut(size_t n, int size, int rank) {
  size_t each = n / (size_t)size, rest = n % (size_t)size, r = (size_t)rank;
  return each * r + (r < rest ? r : rest);
}

static inline void copy(void *to, const void *from, size_t bytes) {
  if (to != from && bytes > 0) memmove(to, from, bytes);
}

/* ---- collective_exchange.c ---- */

/* Set the error's detail: SHM_EBAD_GANG. */
int shmi_run_refuse(const shmi_run_t *run, const char *why);
/* SHM_EBAD_GANG if a run cannot number so many steps. */
int shmi_run_check_steps(const shmi_run_t *run, uint64_t steps);
/* Set *data to what the member of that rank has posted at that step, which must have that many
 * bytes. The caller has waited for the post, unless it may have been made when the collective was
 * started. */
int shmi_run_find(const shmi_run_t *run, int rank, uint32_t step, uint64_t bytes, int may_be_staged,
                  const void **data);

/* Wait until these helpers have posted that step. For a started collective, shmi_run_find waits. */
static inline int meet(const shmi_run_t *run, uint64_t helpers, uint32_t step) {
  return run->started_id != 0 ? SHM_OK : shmi_meet_wait(helpers, position(run->id, step));
}

static inline int open_post(const shmi_run_t *run, int *slot, char **at) {
  *slot = shmi_meet_slot(0);
  if (*slot < 0) return *slot;
  *at = shmi_meet_at(run->helpers[run->me], *slot);
  return SHM_OK;
}

static inline void close_post(const shmi_run_t *run, int slot, uint32_t step, uint64_t bytes,
                              uint64_t readers) {
  shmi_gang_post_t head = {.bytes = bytes, .group = run->group, .what = run->what};
  shmi_meet_post(slot, position(run->id, step), readers, &head);
}

static inline void have_read(const shmi_run_t *run, uint32_t step, uint64_t posters) {
  shmi_meet_have_read(position(run->id, step), posters);
}

/* Post pieces from *next on, up to the one after this round's and at most to `end`, each in a
 * slot. */
int shmi_run_post_ahead(const shmi_run_t *run, uint64_t *next, uint64_t end, uint64_t round,
                        void (*post)(const shmi_run_t *run, uint64_t piece, int slot));
/* Give the readers `count` elements of this member, in steps from `step` on. */
int shmi_run_give(const shmi_run_t *run, const char *from, uint64_t count, uint32_t step,
                  uint64_t readers);
/* Receive what the member of that rank gives. */
int shmi_run_get(const shmi_run_t *run, int rank, char *to, uint64_t count, uint32_t step);

/* ---- collective_moves.c ---- */

int shmi_run_barrier(shmi_run_t *run);
int shmi_run_broadcast(shmi_run_t *run);
int shmi_run_scatter(shmi_run_t *run);
int shmi_run_gather(shmi_run_t *run);
int shmi_run_send(shmi_run_t *run);
int shmi_run_all_gather(shmi_run_t *run);
int shmi_run_all_to_all(shmi_run_t *run);
/* Post this member's piece of that round in that slot. */
void shmi_run_post_gathered(const shmi_run_t *run, uint64_t round, int slot);

/* ---- collective_reduce.c ---- */

int shmi_run_reduce_scatter(shmi_run_t *run);
int shmi_run_all_reduce(shmi_run_t *run);
/* Elements of each rank's piece that one post of a reduce_scatter holds. */
uint64_t shmi_run_scattered_each(const shmi_run_t *run);
void shmi_run_post_scattered(const shmi_run_t *run, uint64_t round, int slot);
/* How many chunks an all_reduce in pieces has; the step at which the first half of one is posted. */
uint64_t shmi_run_chunks(const shmi_run_t *run);
uint32_t shmi_run_step_of_chunk(uint64_t chunk);
void shmi_run_post_to_reduce(const shmi_run_t *run, uint64_t chunk, int slot);

#endif
