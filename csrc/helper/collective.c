/* collective -- see collective.h. */
#include "helper/collective.h"

#include <stdio.h>
#include <string.h>

#include "base/error_detail.h"
#include "helper/reduction.h"
#include "helper/rendezvous.h"
#include "ipc/scoreboard.h"

enum {
  PIECE_BYTES = 1 << 18,  /* of one post: it lies in the cache until the others have read it */
  NAIVE_BYTES = 1 << 15,  /* up to here an all_reduce in one meeting is the quickest */
  STARTED = 64,
  STAGED = 2              /* posts of a started collective */
};

typedef struct run { /* one collective, as this member takes part in it */
  const shm_collective_t *asked;
  const char *in;
  char *out;
  uint32_t id;         /* of what it posts from here on */
  uint32_t started_id; /* of what it has posted when it was started; 0: it was not */
  int staged;          /* how many posts that are */
  int staged_slots[STAGED];
  uint32_t staged_steps[STAGED];
  int size, me;        /* ranks are those of the group */
  size_t item;         /* bytes of an element */
  size_t piece;        /* bytes of a post, at most */
  uint64_t others;     /* as a mask of helpers */
  uint8_t helpers[SHM_MAX_HELPERS];
  uint64_t group;
  uint32_t what;
} run_t;

static struct started {
  int is_used;
  shm_collective_t asked;
  run_t run;
} started[STARTED];

static const char *const kind_names[SHM_COLLECTIVES] = {
    [SHM_BARRIER] = "barrier",   [SHM_ALL_REDUCE] = "all_reduce", [SHM_ALL_GATHER] = "all_gather",
    [SHM_REDUCE_SCATTER] = "reduce_scatter", [SHM_ALL_TO_ALL] = "all_to_all",
    [SHM_BROADCAST] = "broadcast", [SHM_SCATTER] = "scatter", [SHM_GATHER] = "gather",
    [SHM_SEND] = "send", [SHM_RECV] = "recv"};
static const char *const dtype_names[SHM_DTYPES] = {
    "bytes", "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64"};
static const char *const reduction_names[SHM_REDUCTIONS] = {"sum", "mean", "max", "min", "prod"};

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static uint64_t pieces_of(uint64_t count, uint64_t each) { return (count + each - 1) / each; }

/* ---- what was asked for ---- */

static int refuse(const run_t *run, const char *why) {
  shmi_error_detail_set("collective %u (%s): %s", run->asked->id, kind_names[run->asked->kind], why);
  return SHM_EBAD_GANG;
}

static int read_group(run_t *run) {
  const shm_collective_t *c = run->asked;
  const shmi_gang_member_t *member = shmi_meet_member();
  uint64_t seen = 0;
  run->size = c->size > 0 ? c->size : member->size;
  run->me = -1;
  run->group = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
  for (int i = 0; i < run->size; i++) {
    int rank = c->size > 0 ? c->group[i] : i;
    if (rank >= member->size) return refuse(run, "its group names a rank that the gang does not have");
    if ((seen >> rank & 1) != 0) return refuse(run, "its group names a member twice");
    seen |= UINT64_C(1) << rank;
    if (rank == member->rank) run->me = i;
    else run->others |= UINT64_C(1) << shmi_meet_helper(rank);
    run->helpers[i] = (uint8_t)shmi_meet_helper(rank);
    run->group = (run->group ^ (uint64_t)run->helpers[i]) * UINT64_C(0x100000001b3);
  }
  return run->me >= 0 ? SHM_OK : refuse(run, "this member is not in its group");
}

static int is_reducing(int kind) { return kind == SHM_ALL_REDUCE || kind == SHM_REDUCE_SCATTER; }

/* Who is at the other end of a send is told by the group; both ends call it a send. */
static uint32_t what_of(const shm_collective_t *c, int reduces) {
  uint32_t kind = c->kind == SHM_RECV ? SHM_SEND : c->kind;
  return kind << 24 | (uint32_t)c->root << 16 | (reduces ? (uint32_t)c->reduction << 8 : 0u) | c->dtype;
}

static int check_number(run_t *run, uint32_t id) {
  shmi_gang_member_t *member = shmi_meet_member();
  if (id < 1 || id > 0xffff) return refuse(run, "numbers go from 1 to 65535");
  uint64_t position = shmi_gang_position(member->ticket, id, 0);
  if (shmi_gang_is_past(member->last, position)) {
    return refuse(run, "numbers must rise from one to the next, and this one does not");
  }
  member->last = position;
  return SHM_OK;
}

static int check_gang(void) {
  const shmi_gang_member_t *member = shmi_meet_member();
  if (member->ticket == 0) {
    shmi_error_detail_set("no call on several helpers runs here");
    return SHM_EBAD_GANG;
  }
  if (member->is_decided) {
    shmi_error_detail_set("the call has committed: collectives come before that");
    return SHM_EBAD_GANG;
  }
  return SHM_OK;
}

static int open_run(run_t *run, const shm_collective_t *c, const void *in, void *out) {
  if (c->kind >= SHM_COLLECTIVES || c->dtype >= SHM_DTYPES || c->algorithm >= SHM_ALGORITHMS) {
    shmi_error_detail_set("there is no such collective");
    return SHM_EBAD_GANG;
  }
  int status = check_gang();
  if (status != SHM_OK) return status;
  *run = (run_t){.asked = c, .in = in, .out = out, .id = c->id, .item = shmi_dtype_bytes(c->dtype)};
  int reduces = is_reducing(c->kind);
  run->what = what_of(c, reduces);
  status = read_group(run);
  if (status == SHM_OK) status = check_number(run, c->id);
  if (status != SHM_OK) return status;
  if (reduces && !shmi_reduction_is_known(c->dtype, c->reduction)) {
    return refuse(run, c->reduction == SHM_REDUCE_MEAN ? "a mean needs floats: convert, or use sum"
                                                       : "there is no such reduction of that type");
  }
  if (c->root >= run->size) return refuse(run, "its root is not in its group");
  size_t slot = shmi_meet_slot_bytes();
  run->piece = min_size(slot, PIECE_BYTES);
  if (c->kind == SHM_BARRIER || run->size == 1) return SHM_OK;
  if (slot < (size_t)run->size * SHMI_GANG_LINE) {
    return refuse(run, slot == 0 ? "helpers have no scratch regions: launch with scratch=4MiB"
                                 : "the scratch regions are too small for so many members: launch "
                                   "with a larger scratch");
  }
  return SHM_OK;
}

/* ---- meeting ---- */

static uint64_t position(uint32_t id, uint32_t step) {
  return shmi_gang_position(shmi_meet_member()->ticket, id, step);
}

static int describe(char *text, size_t bytes, uint32_t what, uint64_t posted_bytes) {
  uint32_t kind = what >> 24, reduction = what >> 8 & 0xff, dtype = what & 0xff;
  int reduces = kind < SHM_COLLECTIVES && is_reducing((int)kind);
  return snprintf(text, bytes, "%s%s%s of %llu bytes of %s from rank %u",
                  kind < SHM_COLLECTIVES ? kind_names[kind] : "?", reduces ? " by " : "",
                  reduces && reduction < SHM_REDUCTIONS ? reduction_names[reduction] : "",
                  (unsigned long long)posted_bytes, dtype < SHM_DTYPES ? dtype_names[dtype] : "?",
                  what >> 16 & 0xff);
}

static int mismatch(const run_t *run, int rank, const shmi_gang_post_t *found, uint64_t bytes) {
  char theirs[160], ours[160];
  int helper = run->helpers[rank], me = run->helpers[run->me];
  if (found == NULL) {
    shmi_error_detail_set("collective %u: helper %d waited for helper %d, which went on without it",
                          run->id, me, helper);
  } else if (found->group != run->group) {
    shmi_error_detail_set("collective %u: helpers %d and %d do not mean the same group", run->id,
                          helper, me);
  } else {
    describe(theirs, sizeof theirs, found->what, found->bytes);
    describe(ours, sizeof ours, run->what, bytes);
    shmi_error_detail_set("collective %u: helper %d has %s, and helper %d expected %s", run->id,
                          helper, theirs, me, ours);
  }
  shmi_meet_abort(SHM_GANG_MISMATCH);
  return SHM_EBAD_GANG;
}

/* What the member of that rank has posted at that step, which has as many bytes: into *data. The
 * caller has waited for it, unless it may have been posted when it was started. */
static int find(const run_t *run, int rank, uint32_t step, uint64_t bytes, int may_be_staged,
                const void **data) {
  int helper = run->helpers[rank], slot = -1, status;
  uint64_t bit = UINT64_C(1) << helper;
  if (may_be_staged && run->started_id != 0) {
    status = shmi_meet_wait(bit, position(run->started_id, SHMI_GANG_LAST_STEP));
    if (status != SHM_OK) return status;
    slot = shmi_meet_find(helper, position(run->started_id, step));
  }
  if (slot < 0) {
    status = shmi_meet_wait(bit, position(run->id, step));
    if (status != SHM_OK) return status;
    slot = shmi_meet_find(helper, position(run->id, step));
  }
  if (slot < 0) return mismatch(run, rank, NULL, bytes);
  const shmi_gang_post_t *post = &shmi_gang_posts(helper)[slot];
  if (post->bytes != bytes || post->what != run->what || post->group != run->group) {
    return mismatch(run, rank, post, bytes);
  }
  *data = shmi_meet_at(helper, slot);
  return SHM_OK;
}

/* Of all others at once, where none of it was started. */
static int meet(const run_t *run, uint64_t helpers, uint32_t step) {
  return run->started_id != 0 ? SHM_OK : shmi_meet_wait(helpers, position(run->id, step));
}

static int open_post(const run_t *run, int *slot, char **at) {
  *slot = shmi_meet_slot(0);
  if (*slot < 0) return *slot;
  *at = shmi_meet_at(run->helpers[run->me], *slot);
  return SHM_OK;
}

static void close_post(const run_t *run, int slot, uint32_t step, uint64_t bytes, uint64_t readers) {
  shmi_gang_post_t head = {.bytes = bytes, .group = run->group, .what = run->what};
  shmi_meet_post(slot, position(run->id, step), readers, &head);
}

static void have_read(const run_t *run, uint32_t step, uint64_t posters) {
  shmi_meet_have_read(position(run->id, step), posters);
}

static uint64_t bit_of(const run_t *run, int rank) { return UINT64_C(1) << run->helpers[rank]; }

/* n elements dealt out to the ranks: where the piece of each begins. */
static size_t cut(size_t n, int size, int rank) {
  size_t each = n / (size_t)size, rest = n % (size_t)size, r = (size_t)rank;
  return each * r + (r < rest ? r : rest);
}

static void copy(void *to, const void *from, size_t bytes) {
  if (to != from && bytes > 0) memmove(to, from, bytes);
}

static int too_many_steps(const run_t *run, uint64_t steps) {
  if (steps < SHMI_GANG_LAST_STEP) return SHM_OK;
  return refuse(run, "it moves more than the scratch regions can carry in one: launch with a larger "
                     "scratch, or move it in parts");
}

/* ---- barrier, broadcast, scatter, gather, send ---- */

static int run_barrier(run_t *run) {
  int slot = shmi_meet_slot(0);
  if (slot < 0) return slot;
  close_post(run, slot, 1, 0, run->others);
  int status = meet(run, run->others, 1);
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    const void *data;
    if (rank != run->me) status = find(run, rank, 1, 0, 0, &data);
  }
  if (status == SHM_OK) have_read(run, 1, run->others);
  return status;
}

/* count elements from the root, at steps from `step` on, to the readers. */
static int give(const run_t *run, const char *from, uint64_t count, uint32_t step, uint64_t readers) {
  size_t each = run->piece / run->item;
  for (uint64_t at = 0; at < count; at += each, step++) {
    size_t bytes = min_size(count - at, each) * run->item;
    char *to;
    int slot, status = open_post(run, &slot, &to);
    if (status != SHM_OK) return status;
    memcpy(to, from + at * run->item, bytes);
    close_post(run, slot, step, bytes, readers);
  }
  return SHM_OK;
}

static int get(const run_t *run, int rank, char *to, uint64_t count, uint32_t step) {
  size_t each = run->piece / run->item;
  for (uint64_t at = 0; at < count; at += each, step++) {
    size_t bytes = min_size(count - at, each) * run->item;
    const void *from;
    int status = find(run, rank, step, bytes, 0, &from);
    if (status != SHM_OK) return status;
    memcpy(to + at * run->item, from, bytes);
    have_read(run, step, bit_of(run, rank));
  }
  return SHM_OK;
}

static int run_broadcast(run_t *run) {
  uint64_t count = run->asked->counts[0];
  int root = run->asked->root, status = too_many_steps(run, pieces_of(count, run->piece / run->item));
  if (status != SHM_OK) return status;
  if (run->me != root) return get(run, root, run->out, count, 1);
  status = give(run, run->in, count, 1, run->others);
  if (run->out != NULL) copy(run->out, run->in, count * run->item);
  return status;
}

static int run_scatter(run_t *run) {
  const uint64_t *counts = run->asked->counts;
  int root = run->asked->root;
  uint64_t each = run->piece / run->item, steps = 0, at = 0;
  for (int rank = 0; rank < run->size; rank++) steps += pieces_of(counts[rank], each);
  int status = too_many_steps(run, steps);
  uint32_t step = 1;
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    int is_mine = rank == run->me, pieces = (int)pieces_of(counts[rank], each);
    if (run->me == root && is_mine) {
      copy(run->out, run->in + at * run->item, counts[rank] * run->item);
    } else if (run->me == root) {
      status = give(run, run->in + at * run->item, counts[rank], step, bit_of(run, rank));
    } else if (is_mine) {
      status = get(run, root, run->out, counts[rank], step);
    }
    step += (uint32_t)pieces;
    at += counts[rank];
  }
  return status;
}

static int run_gather(run_t *run) {
  const uint64_t *counts = run->asked->counts;
  int root = run->asked->root, status = SHM_OK;
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    status = too_many_steps(run, pieces_of(counts[rank], run->piece / run->item));
  }
  if (status != SHM_OK) return status;
  if (run->me != root) return give(run, run->in, counts[run->me], 1, bit_of(run, root));
  uint64_t each = run->piece / run->item, rounds = 0;
  for (int rank = 0; rank < run->size; rank++) {
    uint64_t pieces = pieces_of(counts[rank], each);
    if (rank != root && pieces > rounds) rounds = pieces;
  }
  for (uint64_t round = 0; round < rounds; round++) { /* in turn, so that nobody waits for a slot */
    uint64_t at = 0;
    for (int rank = 0; rank < run->size; at += counts[rank++]) {
      if (rank == root || round * each >= counts[rank]) continue;
      size_t bytes = min_size(counts[rank] - round * each, each) * run->item;
      const void *from;
      status = find(run, rank, (uint32_t)round + 1, bytes, 0, &from);
      if (status != SHM_OK) return status;
      memcpy(run->out + (at + round * each) * run->item, from, bytes);
    }
    have_read(run, (uint32_t)round + 1, run->others);
  }
  uint64_t at = 0;
  for (int rank = 0; rank < root; rank++) at += counts[rank];
  copy(run->out + at * run->item, run->in, counts[root] * run->item);
  return SHM_OK;
}

static int run_send(run_t *run) {
  if (run->size != 2) return refuse(run, "its group is the two who take part");
  uint64_t count = run->asked->counts[0];
  int root = run->asked->root, status = too_many_steps(run, pieces_of(count, run->piece / run->item));
  if (status != SHM_OK) return status;
  if ((run->me == root) != (run->asked->kind == SHM_SEND)) {
    return refuse(run, "who sends is its root, and the other one receives");
  }
  if (run->me == root) return give(run, run->in, count, 1, run->others);
  return get(run, root, run->out, count, 1);
}

/* ---- all_gather ---- */

static int post_gathered(run_t *run, uint64_t round, int slot) {
  uint64_t count = run->asked->counts[run->me], each = run->piece / run->item;
  size_t bytes = min_size(count - round * each, each) * run->item;
  char *to = shmi_meet_at(run->helpers[run->me], slot);
  memcpy(to, run->in + round * each * run->item, bytes);
  close_post(run, slot, (uint32_t)round + 1, bytes, run->others);
  return SHM_OK;
}

static int run_all_gather(run_t *run) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = run->piece / run->item, rounds = 0, begins[SHM_MAX_HELPERS], at = 0;
  for (int rank = 0; rank < run->size; at += counts[rank++]) {
    begins[rank] = at;
    if (pieces_of(counts[rank], each) > rounds) rounds = pieces_of(counts[rank], each);
  }
  int status = too_many_steps(run, rounds);
  uint64_t mine = pieces_of(counts[run->me], each);
  uint64_t next = (uint64_t)run->staged;
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    for (; next < mine && next <= round + 1; next++) {
      int slot = shmi_meet_slot(0);
      if (slot < 0) return slot;
      post_gathered(run, next, slot);
    }
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      if (rank == run->me || round * each >= counts[rank]) continue;
      size_t bytes = min_size(counts[rank] - round * each, each) * run->item;
      const void *from;
      status = find(run, rank, (uint32_t)round + 1, bytes, 1, &from);
      if (status != SHM_OK) return status;
      memcpy(run->out + (begins[rank] + round * each) * run->item, from, bytes);
    }
    have_read(run, (uint32_t)round + 1, run->others);
  }
  if (status == SHM_OK) {
    copy(run->out + begins[run->me] * run->item, run->in, counts[run->me] * run->item);
  }
  return status;
}

/* ---- reduce_scatter ---- */

/* Elements of each rank's piece that one post holds: the pieces of all others lie in it. */
static uint64_t scattered_each(const run_t *run) {
  return run->piece / (size_t)(run->size - 1) / run->item;
}

static void post_scattered(run_t *run, uint64_t round, int slot) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = scattered_each(run), at = 0;
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
static size_t scattered_bytes(const run_t *run, uint64_t round, int poster, int reader, size_t *begin) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = scattered_each(run);
  size_t used = 0;
  for (int rank = 0; rank < run->size; rank++) {
    if (rank == reader) *begin = used;
    if (rank == poster || round * each >= counts[rank]) continue;
    used += min_size(counts[rank] - round * each, each) * run->item;
  }
  return used;
}

static int run_reduce_scatter(run_t *run) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = scattered_each(run), rounds = 0, at = 0, mine = counts[run->me];
  for (int rank = 0; rank < run->size; rank++) {
    if (pieces_of(counts[rank], each) > rounds) rounds = pieces_of(counts[rank], each);
    if (rank < run->me) at += counts[rank];
  }
  int status = too_many_steps(run, rounds);
  uint64_t next = (uint64_t)run->staged;
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    for (; next < rounds && next <= round + 1; next++) {
      int slot = shmi_meet_slot(0);
      if (slot < 0) return slot;
      post_scattered(run, next, slot);
    }
    const void *sources[SHM_MAX_HELPERS];
    status = meet(run, run->others, (uint32_t)round + 1);
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      if (rank == run->me) {
        sources[rank] = run->in + (at + round * each) * run->item;
        continue;
      }
      size_t begin = 0, bytes = scattered_bytes(run, round, rank, run->me, &begin);
      status = find(run, rank, (uint32_t)round + 1, bytes, 1, &sources[rank]);
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

/* ---- all_to_all ---- */

/* In the s-th exchange each rank sends to the one that is s further. Steps of an exchange have a range
 * of their own, because how many they are is known to its two ends alone. */
static int run_all_to_all(run_t *run) {
  const uint64_t *sent = run->asked->counts, *received = run->asked->received;
  uint64_t each = run->piece / run->item;
  uint32_t range = SHMI_GANG_LAST_STEP / (uint32_t)run->size;
  uint64_t out_at[SHM_MAX_HELPERS], in_at[SHM_MAX_HELPERS], in_all = 0, out_all = 0;
  for (int rank = 0; rank < run->size; rank++) {
    in_at[rank] = in_all;
    out_at[rank] = out_all;
    in_all += sent[rank];
    out_all += received[rank];
    if (pieces_of(sent[rank], each) >= range || pieces_of(received[rank], each) >= range) {
      return too_many_steps(run, SHMI_GANG_LAST_STEP);
    }
  }
  copy(run->out + out_at[run->me] * run->item, run->in + in_at[run->me] * run->item,
       sent[run->me] * run->item);
  for (int shift = 1; shift < run->size; shift++) {
    int to = (run->me + shift) % run->size, from = (run->me + run->size - shift) % run->size;
    uint64_t outgoing = pieces_of(sent[to], each), incoming = pieces_of(received[from], each);
    uint64_t next = 0;
    for (uint64_t round = 0; round < outgoing || round < incoming; round++) {
      for (; next < outgoing && next <= round + 1; next++) {
        size_t bytes = min_size(sent[to] - next * each, each) * run->item;
        char *at;
        int slot, status = open_post(run, &slot, &at);
        if (status != SHM_OK) return status;
        memcpy(at, run->in + (in_at[to] + next * each) * run->item, bytes);
        close_post(run, slot, (uint32_t)shift * range + (uint32_t)next, bytes, bit_of(run, to));
      }
      if (round >= incoming) continue;
      size_t bytes = min_size(received[from] - round * each, each) * run->item;
      uint32_t step = (uint32_t)shift * range + (uint32_t)round;
      const void *data;
      int status = find(run, from, step, bytes, 0, &data);
      if (status != SHM_OK) return status;
      memcpy(run->out + (out_at[from] + round * each) * run->item, data, bytes);
      have_read(run, step, bit_of(run, from));
    }
  }
  return SHM_OK;
}

/* ---- all_reduce ---- */

/* Everybody posts all of a chunk, and reduces all of it. */
static int reduce_naively(run_t *run) {
  uint64_t count = run->asked->counts[0], each = run->piece / run->item;
  uint64_t rounds = pieces_of(count, each), next = 0;
  int status = too_many_steps(run, rounds);
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    for (; next < rounds && next <= round + 1; next++) {
      status = give(run, run->in + next * each * run->item, min_size(count - next * each, each),
                    (uint32_t)next + 1, run->others);
      if (status != SHM_OK) return status;
    }
    size_t n = min_size(count - round * each, each);
    const void *sources[SHM_MAX_HELPERS];
    status = meet(run, run->others, (uint32_t)round + 1);
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      sources[rank] = run->in + round * each * run->item;
      if (rank != run->me) {
        status = find(run, rank, (uint32_t)round + 1, n * run->item, 0, &sources[rank]);
      }
    }
    if (status != SHM_OK) return status;
    shmi_reduce(run->asked->dtype, run->asked->reduction, run->out + round * each * run->item,
                sources, run->size, n);
    have_read(run, (uint32_t)round + 1, run->others);
  }
  return status;
}

/* A chunk is cut into a piece for each rank. Everybody posts the others' pieces of it (step A),
 * reduces its own and posts that (step B), and reads the others'. A of the next chunk comes before B
 * of this one, and reading B after both, so that nobody waits for who is a little behind. */
static uint32_t step_a(uint64_t chunk) { return chunk == 0 ? 1 : 2 * (uint32_t)chunk; }
static uint32_t step_b(uint64_t chunk) { return 2 * (uint32_t)chunk + 3; }

typedef struct chunk {
  uint64_t at, n; /* elements */
} chunk_t;

static uint64_t elements_a_chunk(const run_t *run) {
  uint64_t size = (uint64_t)run->size, each = run->piece / run->item;
  return each * size / (size - 1) - size; /* what the others' pieces of it fill */
}

static chunk_t chunk_of(const run_t *run, uint64_t number) {
  uint64_t each = elements_a_chunk(run), count = run->asked->counts[0];
  return (chunk_t){.at = number * each, .n = min_size(count - number * each, each)};
}

static void post_to_reduce(run_t *run, uint64_t number, int slot) {
  chunk_t chunk = chunk_of(run, number);
  size_t used = 0;
  char *to = shmi_meet_at(run->helpers[run->me], slot);
  const char *from = run->in + chunk.at * run->item;
  size_t begin = cut(chunk.n, run->size, run->me) * run->item;
  size_t end = cut(chunk.n, run->size, run->me + 1) * run->item;
  memcpy(to, from, begin); /* all but its own piece */
  memcpy(to + begin, from + end, chunk.n * run->item - end);
  used = chunk.n * run->item - (end - begin);
  close_post(run, slot, step_a(number), used, run->others);
}

static int reduce_own_piece(run_t *run, uint64_t number) {
  chunk_t chunk = chunk_of(run, number);
  size_t begin = cut(chunk.n, run->size, run->me), end = cut(chunk.n, run->size, run->me + 1);
  const void *sources[SHM_MAX_HELPERS];
  int status = meet(run, run->others, step_a(number));
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    if (rank == run->me) {
      sources[rank] = run->in + (chunk.at + begin) * run->item;
      continue;
    }
    size_t theirs = cut(chunk.n, run->size, rank), their_end = cut(chunk.n, run->size, rank + 1);
    size_t bytes = (chunk.n - (their_end - theirs)) * run->item;
    status = find(run, rank, step_a(number), bytes, 1, &sources[rank]);
    if (status != SHM_OK) return status;
    size_t skipped = rank < run->me ? their_end - theirs : 0; /* its own piece is not in its post */
    sources[rank] = (const char *)sources[rank] + (begin - skipped) * run->item;
  }
  char *slot_at;
  int slot;
  if (status == SHM_OK) status = open_post(run, &slot, &slot_at);
  if (status != SHM_OK) return status;
  char *out = run->out + (chunk.at + begin) * run->item;
  shmi_reduce(run->asked->dtype, run->asked->reduction, slot_at, sources, run->size, end - begin);
  memcpy(out, slot_at, (end - begin) * run->item);
  close_post(run, slot, step_b(number), (end - begin) * run->item, run->others);
  return SHM_OK;
}

static int read_reduced(run_t *run, uint64_t number) {
  chunk_t chunk = chunk_of(run, number);
  int status = shmi_meet_wait(run->others, position(run->id, step_b(number)));
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    if (rank == run->me) continue;
    size_t begin = cut(chunk.n, run->size, rank), end = cut(chunk.n, run->size, rank + 1);
    const void *from;
    status = find(run, rank, step_b(number), (end - begin) * run->item, 0, &from);
    if (status != SHM_OK) return status;
    memcpy(run->out + (chunk.at + begin) * run->item, from, (end - begin) * run->item);
  }
  if (status == SHM_OK) have_read(run, step_b(number), run->others);
  return status;
}

static uint64_t chunks_of(const run_t *run) {
  return pieces_of(run->asked->counts[0], elements_a_chunk(run));
}

static int reduce_all_to_all(run_t *run) {
  uint64_t chunks = chunks_of(run), next = (uint64_t)run->staged;
  int status = too_many_steps(run, 2 * chunks + 3);
  for (uint64_t number = 0; number < chunks && status == SHM_OK; number++) {
    for (; next < chunks && next <= number + 1; next++) {
      int slot = shmi_meet_slot(0);
      if (slot < 0) return slot;
      post_to_reduce(run, next, slot);
    }
    status = reduce_own_piece(run, number);
    if (status == SHM_OK && number > 0) status = read_reduced(run, number - 1);
  }
  return status == SHM_OK && chunks > 0 ? read_reduced(run, chunks - 1) : status;
}

/* Each reads of its predecessor alone. A chunk's partial result goes from rank 0 to the last, which
 * has the result; that goes on from there around the ring. The next chunk's partial comes first. */
static uint32_t step_of_partial(uint64_t chunk) { return chunk == 0 ? 1 : 2 * (uint32_t)chunk; }
static uint32_t step_of_result(uint64_t chunk) { return 2 * (uint32_t)chunk + 3; }

static int pass_partial(run_t *run, uint64_t number, uint64_t each) {
  int last = run->size - 1, before = (run->me + last) % run->size;
  uint64_t at = number * each;
  size_t n = min_size(run->asked->counts[0] - at, each);
  size_t partial_bytes = shmi_dtype_partial_bytes(run->asked->dtype);
  int dtype = run->asked->dtype, op = run->asked->reduction;
  const char *own = run->in + at * run->item;
  const void *partial = NULL;
  uint64_t after = bit_of(run, (run->me + 1) % run->size);
  if (run->me > 0) {
    int status = find(run, before, step_of_partial(number), n * partial_bytes, 0, &partial);
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

static int pass_result(run_t *run, uint64_t number, uint64_t each) {
  int last = run->size - 1, before = (run->me + last) % run->size;
  if (run->me == last) return SHM_OK;
  uint64_t at = number * each;
  size_t bytes = min_size(run->asked->counts[0] - at, each) * run->item;
  const void *result;
  int status = find(run, before, step_of_result(number), bytes, 0, &result);
  if (status != SHM_OK) return status;
  memcpy(run->out + at * run->item, result, bytes);
  if (run->me + 1 < last) { /* the last one has it */
    status = give(run, run->out + at * run->item, bytes / run->item, step_of_result(number),
                  bit_of(run, run->me + 1));
  }
  have_read(run, step_of_result(number), bit_of(run, before));
  return status;
}

static int reduce_around_ring(run_t *run) {
  uint64_t each = run->piece / shmi_dtype_partial_bytes(run->asked->dtype);
  uint64_t chunks = pieces_of(run->asked->counts[0], each), next = 0;
  int status = too_many_steps(run, 2 * chunks + 3);
  for (uint64_t number = 0; number < chunks && status == SHM_OK; number++) {
    for (; next < chunks && next <= number + 1 && status == SHM_OK; next++) {
      status = pass_partial(run, next, each);
    }
    if (status == SHM_OK) status = pass_result(run, number, each);
  }
  return status;
}

static int algorithm_of(const run_t *run) {
  if (run->asked->algorithm != SHM_ALGORITHM_AUTO) return run->asked->algorithm;
  int is_small = run->asked->counts[0] * run->item <= NAIVE_BYTES;
  return is_small ? SHM_ALGORITHM_NAIVE : SHM_ALGORITHM_ALL_TO_ALL;
}

static int run_all_reduce(run_t *run) {
  static int (*const algorithms[SHM_ALGORITHMS])(run_t *) = {
      [SHM_ALGORITHM_NAIVE] = reduce_naively,
      [SHM_ALGORITHM_RING] = reduce_around_ring,
      [SHM_ALGORITHM_ALL_TO_ALL] = reduce_all_to_all};
  int algorithm = run->started_id != 0 ? SHM_ALGORITHM_ALL_TO_ALL : algorithm_of(run);
  shmi_count(&shmi_scoreboard_helper(run->helpers[run->me])->all_reduces[algorithm], 1);
  return algorithms[algorithm](run);
}

/* ---- running ---- */

/* What a member receives of the others, by the definition of the collective: not by how it is done. */
static uint64_t moved_bytes(const run_t *run) {
  const shm_collective_t *c = run->asked;
  uint64_t n = c->counts[0], others = (uint64_t)run->size - 1, sum = 0;
  uint64_t own = cut(n, run->size, run->me + 1) - cut(n, run->size, run->me);
  int is_root = run->me == c->root;
  for (int rank = 0; rank < run->size; rank++) {
    if (rank != run->me) sum += c->kind == SHM_ALL_TO_ALL ? c->received[rank] : c->counts[rank];
  }
  switch (c->kind) {
    case SHM_ALL_REDUCE: return (own * others + (n - own)) * run->item;
    case SHM_REDUCE_SCATTER: return c->counts[run->me] * others * run->item;
    case SHM_ALL_GATHER:
    case SHM_ALL_TO_ALL: return sum * run->item;
    case SHM_BROADCAST:
    case SHM_SEND:
    case SHM_RECV: return is_root ? 0 : n * run->item;
    case SHM_SCATTER: return is_root ? 0 : c->counts[run->me] * run->item;
    case SHM_GATHER: return is_root ? sum * run->item : 0;
    default: return 0;
  }
}

/* With nobody else. */
static int run_alone(run_t *run) {
  const shm_collective_t *c = run->asked;
  uint64_t count = c->kind == SHM_BARRIER ? 0 : c->counts[0];
  if (run->out != NULL && run->in != NULL) copy(run->out, run->in, count * run->item);
  return SHM_OK;
}

static int perform(run_t *run) {
  static int (*const kinds[SHM_COLLECTIVES])(run_t *) = {
      [SHM_BARRIER] = run_barrier,     [SHM_ALL_REDUCE] = run_all_reduce,
      [SHM_ALL_GATHER] = run_all_gather, [SHM_REDUCE_SCATTER] = run_reduce_scatter,
      [SHM_ALL_TO_ALL] = run_all_to_all, [SHM_BROADCAST] = run_broadcast,
      [SHM_SCATTER] = run_scatter,     [SHM_GATHER] = run_gather,
      [SHM_SEND] = run_send,           [SHM_RECV] = run_send};
  int status = run->size == 1 ? run_alone(run) : kinds[run->asked->kind](run);
  if (status != SHM_OK) return status;
  shmi_helper_page_t *page = shmi_scoreboard_helper(shmi_meet_member()->helper);
  uint64_t moved = moved_bytes(run);
  shmi_count(&page->collectives, 1);
  shmi_count(&page->collective_bytes, moved);
  shmi_meet_member()->moved_bytes += moved;
  return SHM_OK;
}

int shm_gang_collective(const shm_collective_t *collective, const void *in, void *out) {
  run_t run;
  int status = open_run(&run, collective, in, out);
  return status == SHM_OK ? perform(&run) : status;
}

/* ---- started, and waited for ---- */

static void stage(run_t *run) {
  static void (*const posts[SHM_COLLECTIVES])(run_t *, uint64_t, int) = {
      [SHM_ALL_REDUCE] = post_to_reduce, [SHM_REDUCE_SCATTER] = post_scattered};
  const shm_collective_t *c = run->asked;
  uint64_t most = 0;
  if (c->kind == SHM_ALL_REDUCE) {
    most = chunks_of(run);
  } else if (c->kind == SHM_ALL_GATHER) {
    most = pieces_of(c->counts[run->me], run->piece / run->item);
  } else if (c->kind == SHM_REDUCE_SCATTER) {
    for (int rank = 0; rank < run->size; rank++) {
      uint64_t pieces = pieces_of(c->counts[rank], scattered_each(run));
      if (pieces > most) most = pieces;
    }
  }
  for (; run->staged < STAGED && (uint64_t)run->staged < most; run->staged++) {
    int slot = shmi_meet_slot(1);
    if (slot < 0) return;
    run->staged_slots[run->staged] = slot;
    run->staged_steps[run->staged] = c->kind == SHM_ALL_REDUCE ? step_a((uint64_t)run->staged)
                                                                : (uint32_t)run->staged + 1;
    if (c->kind == SHM_ALL_GATHER) post_gathered(run, (uint64_t)run->staged, slot);
    else posts[c->kind](run, (uint64_t)run->staged, slot);
  }
}

int shm_gang_start(const shm_collective_t *collective, const void *in, void *out) {
  int at = 0;
  while (at < STARTED && started[at].is_used) at++;
  if (at == STARTED) {
    shmi_error_detail_set("%d collectives are started and not waited for: wait for one", STARTED);
    return SHM_EBAD_GANG;
  }
  started[at].asked = *collective;
  run_t *run = &started[at].run;
  int status = open_run(run, &started[at].asked, in, out);
  if (status != SHM_OK) return status;
  if (run->size > 1) {
    stage(run);
    shmi_meet_pass(position(run->id, SHMI_GANG_LAST_STEP), run->others);
  }
  run->started_id = run->id;
  started[at].is_used = 1;
  return at;
}

int shm_gang_wait(int handle, uint32_t id) {
  if (handle < 0 || handle >= STARTED || !started[handle].is_used) {
    shmi_error_detail_set("collective %u waits for one that was not started", id);
    return SHM_EBAD_GANG;
  }
  run_t *run = &started[handle].run;
  int status = check_gang();
  if (status == SHM_OK) status = check_number(run, id);
  started[handle].is_used = 0;
  if (status != SHM_OK) return status;
  run->id = id;
  for (int i = 0; i < run->staged; i++) {
    /* Whoever reads it says so under this number. */
    shmi_meet_unpin(run->staged_slots[i], position(id, run->staged_steps[i]));
  }
  return perform(run);
}

void shmi_collective_forget(void) {
  for (int i = 0; i < STARTED; i++) started[i].is_used = 0;
}

/* ---- the gang itself ---- */

int shm_gang_rank(void) {
  const shmi_gang_member_t *member = shmi_meet_member();
  return member->ticket != 0 ? member->rank : SHM_EBAD_GANG;
}

int shm_gang_size(void) {
  const shmi_gang_member_t *member = shmi_meet_member();
  return member->ticket != 0 ? member->size : SHM_EBAD_GANG;
}

uint64_t shm_gang_epoch(void) {
  const shmi_gang_member_t *member = shmi_meet_member();
  return member->ticket != 0 ? shmi_gang_epoch(member->ticket) : 0;
}

int shm_gang_commit(void) {
  int status = check_gang();
  return status == SHM_OK ? shmi_meet_commit() : status;
}

int shm_gang_abort(void) {
  int status = check_gang();
  if (status == SHM_OK) shmi_meet_abort(SHM_GANG_MEMBER_FAILED);
  return status;
}

int shm_gang_state(void) {
  const shmi_gang_member_t *member = shmi_meet_member();
  return member->ticket != 0 ? shmi_gang_fate(member->ticket).state : SHM_GANG_NONE;
}
