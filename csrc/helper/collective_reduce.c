/* collective_reduce -- collectives that reduce: reduce_scatter, and the three ways to do an
 * all_reduce. Reductions go in the order of ranks. See collective_internal.h.
 */
#include "helper/collective_internal.h"
#include "helper/reduction.h"
#include "ipc/scoreboard.h"

enum {
  NAIVE_BYTES = 1 << 15, /* up to here an all_reduce in one meeting is the quickest */
  BLOCK_BYTES = 1 << 14  /* that are reduced, and then posted from the cache */
};

/* ---- reduce_scatter ---- */

/* How many elements of each rank's piece one post holds: it has room for the pieces of all other
 * ranks. */
uint64_t shmi_run_scattered_each(const shmi_run_t *run) {
  return run->piece / (size_t)(run->size - 1) / run->item;
}

void shmi_run_post_scattered(const shmi_run_t *run, uint64_t round, int slot) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = shmi_run_scattered_each(run), at = 0;
  size_t used = 0;
  char *to = shmi_meet_at(run->helpers[run->me], slot);
  for (int rank = 0; rank < run->size; at += counts[rank++]) {
    if (rank == run->me || round * each >= counts[rank]) continue;
    size_t bytes = min_size(counts[rank] - round * each, each) * run->item;
    memcpy(to + used, run->in + (at + round * each) * run->item, bytes);
    used += bytes;
  }
  close_post(run, slot, (uint32_t)round + 1, used, run->others);
}

/* Bytes of what a member posts in that round, and where in it the piece of `reader` begins. */
static size_t scattered_bytes(const shmi_run_t *run, uint64_t round, int poster, int reader,
                              size_t *begin) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = shmi_run_scattered_each(run);
  size_t used = 0;
  for (int rank = 0; rank < run->size; rank++) {
    if (rank == reader) *begin = used;
    if (rank == poster || round * each >= counts[rank]) continue;
    used += min_size(counts[rank] - round * each, each) * run->item;
  }
  return used;
}

int shmi_run_reduce_scatter(shmi_run_t *run) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = shmi_run_scattered_each(run), rounds = 0, at = 0, mine = counts[run->me];
  for (int rank = 0; rank < run->size; rank++) {
    if (pieces_of(counts[rank], each) > rounds) rounds = pieces_of(counts[rank], each);
    if (rank < run->me) at += counts[rank];
  }
  int status = shmi_run_check_steps(run, rounds);
  uint64_t next = (uint64_t)run->staged;
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    int posted = shmi_run_post_ahead(run, &next, rounds, round, shmi_run_post_scattered);
    if (posted != SHM_OK) return posted;
    const void *sources[SHM_MAX_HELPERS];
    status = meet(run, run->others, (uint32_t)round + 1);
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      if (rank == run->me) {
        sources[rank] = run->in + (at + round * each) * run->item;
        continue;
      }
      size_t begin = 0, bytes = scattered_bytes(run, round, rank, run->me, &begin);
      status = shmi_run_find(run, rank, (uint32_t)round + 1, bytes, 1, &sources[rank]);
      if (status == SHM_OK) sources[rank] = (const char *)sources[rank] + begin;
    }
    if (status != SHM_OK) return status;
    if (round * each < mine) {
      shmi_reduce(run->asked->dtype, run->asked->reduction, run->out + round * each * run->item,
                  sources, run->size, min_size(mine - round * each, each));
    }
    have_read(run, (uint32_t)round + 1, run->others);
  }
  return status;
}

/* ---- all_reduce ---- */

/* Everybody posts all of a chunk, and reduces all of it. */
static int reduce_naively(shmi_run_t *run) {
  uint64_t count = run->asked->counts[0], each = run->piece / run->item;
  uint64_t rounds = pieces_of(count, each), next = 0;
  int status = shmi_run_check_steps(run, rounds);
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    for (; next < rounds && next <= round + 1; next++) {
      status = shmi_run_give(run, run->in + next * each * run->item,
                             min_size(count - next * each, each), (uint32_t)next + 1, run->others);
      if (status != SHM_OK) return status;
    }
    size_t n = min_size(count - round * each, each);
    const void *sources[SHM_MAX_HELPERS];
    status = meet(run, run->others, (uint32_t)round + 1);
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      sources[rank] = run->in + round * each * run->item;
      if (rank != run->me) {
        status = shmi_run_find(run, rank, (uint32_t)round + 1, n * run->item, 0, &sources[rank]);
      }
    }
    if (status != SHM_OK) return status;
    shmi_reduce(run->asked->dtype, run->asked->reduction, run->out + round * each * run->item,
                sources, run->size, n);
    have_read(run, (uint32_t)round + 1, run->others);
  }
  return status;
}

/* A chunk is cut into a piece for each rank. Each member posts the others' pieces (step A), reduces
 * its own piece, posts the result (step B), and reads the others' results. Step A of the next chunk
 * comes before step B of this one, and results are read after both, so that nobody waits for a
 * member that is a little behind. */
uint32_t shmi_run_step_of_chunk(uint64_t chunk) { return chunk == 0 ? 1 : 2 * (uint32_t)chunk; }
static uint32_t step_of_reduced(uint64_t chunk) { return 2 * (uint32_t)chunk + 3; }

typedef struct chunk {
  uint64_t at, n; /* elements */
} chunk_t;

static uint64_t elements_a_chunk(const shmi_run_t *run) {
  uint64_t size = (uint64_t)run->size, each = run->piece / run->item;
  return each * size / (size - 1); /* what the others' pieces of it fill */
}

static chunk_t chunk_of(const shmi_run_t *run, uint64_t number) {
  uint64_t each = elements_a_chunk(run), count = run->asked->counts[0];
  return (chunk_t){.at = number * each, .n = min_size(count - number * each, each)};
}

void shmi_run_post_to_reduce(const shmi_run_t *run, uint64_t number, int slot) {
  chunk_t chunk = chunk_of(run, number);
  size_t used = 0;
  char *to = shmi_meet_at(run->helpers[run->me], slot);
  const char *from = run->in + chunk.at * run->item;
  size_t begin = cut(chunk.n, run->size, run->me) * run->item;
  size_t end = cut(chunk.n, run->size, run->me + 1) * run->item;
  memcpy(to, from, begin); /* all but its own piece */
  memcpy(to + begin, from + end, chunk.n * run->item - end);
  used = chunk.n * run->item - (end - begin);
  close_post(run, slot, shmi_run_step_of_chunk(number), used, run->others);
}

/* The reduction into `out` and, a block behind, into what others read. That they have lines of it
 * makes each of a loop's stores wait, where cores share no cache; those of a copy do so together. */
static void reduce_and_post(const shmi_run_t *run, char *out, char *posted,
                            const void *const sources[], size_t n) {
  const void *from[SHM_MAX_HELPERS];
  size_t each = BLOCK_BYTES / run->item;
  for (size_t at = 0; at < n; at += each) {
    size_t some = min_size(n - at, each), offset = at * run->item;
    for (int rank = 0; rank < run->size; rank++) from[rank] = (const char *)sources[rank] + offset;
    shmi_reduce(run->asked->dtype, run->asked->reduction, out + offset, from, run->size, some);
    memcpy(posted + offset, out + offset, some * run->item);
  }
}

static int reduce_own_piece(shmi_run_t *run, uint64_t number) {
  chunk_t chunk = chunk_of(run, number);
  size_t begin = cut(chunk.n, run->size, run->me), end = cut(chunk.n, run->size, run->me + 1);
  const void *sources[SHM_MAX_HELPERS];
  int status = meet(run, run->others, shmi_run_step_of_chunk(number));
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    if (rank == run->me) {
      sources[rank] = run->in + (chunk.at + begin) * run->item;
      continue;
    }
    size_t theirs = cut(chunk.n, run->size, rank), their_end = cut(chunk.n, run->size, rank + 1);
    size_t bytes = (chunk.n - (their_end - theirs)) * run->item;
    status = shmi_run_find(run, rank, shmi_run_step_of_chunk(number), bytes, 1, &sources[rank]);
    if (status != SHM_OK) return status;
    size_t skipped = rank < run->me ? their_end - theirs : 0; /* its own piece is not in its post */
    sources[rank] = (const char *)sources[rank] + (begin - skipped) * run->item;
  }
  char *slot_at;
  int slot;
  if (status == SHM_OK) status = open_post(run, &slot, &slot_at);
  if (status != SHM_OK) return status;
  char *out = run->out + (chunk.at + begin) * run->item;
  reduce_and_post(run, out, slot_at, sources, end - begin);
  close_post(run, slot, step_of_reduced(number), (end - begin) * run->item, run->others);
  return SHM_OK;
}

static int read_reduced(shmi_run_t *run, uint64_t number) {
  chunk_t chunk = chunk_of(run, number);
  int status = shmi_meet_wait(run->others, position(run->id, step_of_reduced(number)));
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    if (rank == run->me) continue;
    size_t begin = cut(chunk.n, run->size, rank), end = cut(chunk.n, run->size, rank + 1);
    const void *from;
    status = shmi_run_find(run, rank, step_of_reduced(number), (end - begin) * run->item, 0, &from);
    if (status != SHM_OK) return status;
    memcpy(run->out + (chunk.at + begin) * run->item, from, (end - begin) * run->item);
  }
  if (status == SHM_OK) have_read(run, step_of_reduced(number), run->others);
  return status;
}

uint64_t shmi_run_chunks(const shmi_run_t *run) {
  return pieces_of(run->asked->counts[0], elements_a_chunk(run));
}

static int reduce_all_to_all(shmi_run_t *run) {
  uint64_t chunks = shmi_run_chunks(run), next = (uint64_t)run->staged;
  int status = shmi_run_check_steps(run, 2 * chunks + 3);
  for (uint64_t number = 0; number < chunks && status == SHM_OK; number++) {
    int posted = shmi_run_post_ahead(run, &next, chunks, number, shmi_run_post_to_reduce);
    if (posted != SHM_OK) return posted;
    status = reduce_own_piece(run, number);
    if (status == SHM_OK && number > 0) status = read_reduced(run, number - 1);
  }
  return status == SHM_OK && chunks > 0 ? read_reduced(run, chunks - 1) : status;
}

/* Each member reads only from its predecessor. A chunk's partial result goes from rank 0 to the
 * last rank, which then has the result. From there the result goes on around the ring, after the
 * next chunk's partial result. */
static uint32_t step_of_partial(uint64_t chunk) { return chunk == 0 ? 1 : 2 * (uint32_t)chunk; }
static uint32_t step_of_result(uint64_t chunk) { return 2 * (uint32_t)chunk + 3; }

static int pass_partial(shmi_run_t *run, uint64_t number, uint64_t each) {
  int last = run->size - 1, before = (run->me + last) % run->size;
  uint64_t at = number * each;
  size_t n = min_size(run->asked->counts[0] - at, each);
  size_t partial_bytes = shmi_dtype_partial_bytes(run->asked->dtype);
  int dtype = run->asked->dtype, op = run->asked->reduction;
  const char *own = run->in + at * run->item;
  const void *partial = NULL;
  uint64_t after = bit_of(run, (run->me + 1) % run->size);
  if (run->me > 0) {
    int status = shmi_run_find(run, before, step_of_partial(number), n * partial_bytes, 0, &partial);
    if (status != SHM_OK) return status;
  }
  char *to;
  int slot, status = open_post(run, &slot, &to);
  if (status != SHM_OK) return status;
  if (run->me == 0) shmi_reduce_first(dtype, to, own, n);
  else shmi_reduce_next(dtype, op, to, partial, own, n);
  if (run->me < last) {
    close_post(run, slot, step_of_partial(number), n * partial_bytes, after);
  } else {
    shmi_reduce_last(dtype, op, run->out + at * run->item, to, run->size, n);
    memcpy(to, run->out + at * run->item, n * run->item);
    close_post(run, slot, step_of_result(number), n * run->item, after);
  }
  if (run->me > 0) have_read(run, step_of_partial(number), bit_of(run, before));
  return SHM_OK;
}

static int pass_result(shmi_run_t *run, uint64_t number, uint64_t each) {
  int last = run->size - 1, before = (run->me + last) % run->size;
  if (run->me == last) return SHM_OK;
  uint64_t at = number * each;
  size_t bytes = min_size(run->asked->counts[0] - at, each) * run->item;
  const void *result;
  int status = shmi_run_find(run, before, step_of_result(number), bytes, 0, &result);
  if (status != SHM_OK) return status;
  memcpy(run->out + at * run->item, result, bytes);
  if (run->me + 1 < last) { /* the last one has it */
    status = shmi_run_give(run, run->out + at * run->item, bytes / run->item, step_of_result(number),
                  bit_of(run, run->me + 1));
  }
  have_read(run, step_of_result(number), bit_of(run, before));
  return status;
}

static int reduce_around_ring(shmi_run_t *run) {
  uint64_t each = run->piece / shmi_dtype_partial_bytes(run->asked->dtype);
  uint64_t chunks = pieces_of(run->asked->counts[0], each), next = 0;
  int status = shmi_run_check_steps(run, 2 * chunks + 3);
  for (uint64_t number = 0; number < chunks && status == SHM_OK; number++) {
    for (; next < chunks && next <= number + 1 && status == SHM_OK; next++) {
      status = pass_partial(run, next, each);
    }
    if (status == SHM_OK) status = pass_result(run, number, each);
  }
  return status;
}

static int algorithm_of(const shmi_run_t *run) {
  if (run->asked->algorithm != SHM_ALGORITHM_AUTO) return run->asked->algorithm;
  int is_small = run->asked->counts[0] * run->item <= NAIVE_BYTES;
  return is_small ? SHM_ALGORITHM_NAIVE : SHM_ALGORITHM_ALL_TO_ALL;
}

int shmi_run_all_reduce(shmi_run_t *run) {
  static int (*const algorithms[SHM_ALGORITHMS])(shmi_run_t *) = {
      [SHM_ALGORITHM_NAIVE] = reduce_naively,
      [SHM_ALGORITHM_RING] = reduce_around_ring,
      [SHM_ALGORITHM_ALL_TO_ALL] = reduce_all_to_all};
  int algorithm = run->started_id != 0 ? SHM_ALGORITHM_ALL_TO_ALL : algorithm_of(run);
  shmi_count(&shmi_scoreboard_helper(run->helpers[run->me])->all_reduces[algorithm], 1);
  return algorithms[algorithm](run);
}
