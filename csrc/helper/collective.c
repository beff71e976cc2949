/* collective -- see collective.h. */
#include "helper/collective_internal.h"

#include "base/error_detail.h"
#include "helper/reduction.h"
#include "ipc/scoreboard.h"

enum {
  PIECE_BYTES = 1 << 18, /* of one post: it lies in the cache until the others have read it */
  STARTED = 64
};

static struct started {
  int is_used;
  shm_collective_t asked;
  shmi_run_t run;
} started[STARTED];

/* ---- what was asked for ---- */

static int read_group(shmi_run_t *run) {
  const shm_collective_t *c = run->asked;
  const shmi_gang_member_t *member = shmi_meet_member();
  uint64_t seen = 0;
  run->size = c->size > 0 ? c->size : member->size;
  run->me = -1;
  run->group = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
  for (int i = 0; i < run->size; i++) {
    int rank = c->size > 0 ? c->group[i] : i;
    if (rank >= member->size) {
      return shmi_run_refuse(run, "its group names a rank that the gang does not have");
    }
    if ((seen >> rank & 1) != 0) return shmi_run_refuse(run, "its group names a member twice");
    seen |= UINT64_C(1) << rank;
    if (rank == member->rank) run->me = i;
    else run->others |= UINT64_C(1) << shmi_meet_helper(rank);
    run->helpers[i] = (uint8_t)shmi_meet_helper(rank);
    run->group = (run->group ^ (uint64_t)run->helpers[i]) * UINT64_C(0x100000001b3);
  }
  return run->me >= 0 ? SHM_OK : shmi_run_refuse(run, "this member is not in its group");
}

/* The group says who is at the other end of a send; both ends call it a send. */
static uint32_t what_of(const shm_collective_t *c, int reduces) {
  uint32_t kind = c->kind == SHM_RECV ? SHM_SEND : c->kind;
  return kind << 24 | (uint32_t)c->root << 16 | (reduces ? (uint32_t)c->reduction << 8 : 0u) | c->dtype;
}

static int check_number(shmi_run_t *run, uint32_t id) {
  shmi_gang_member_t *member = shmi_meet_member();
  if (id < 1 || id > 0xffff) return shmi_run_refuse(run, "numbers go from 1 to 65535");
  uint64_t position = shmi_gang_position(member->ticket, id, 0);
  if (shmi_gang_is_past(member->last, position)) {
    return shmi_run_refuse(run, "numbers must rise from one to the next, and this one does not");
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

static int open_run(shmi_run_t *run, const shm_collective_t *c, const void *in, void *out) {
  if (c->kind >= SHM_COLLECTIVES || c->dtype >= SHM_DTYPES || c->algorithm >= SHM_ALGORITHMS) {
    shmi_error_detail_set("there is no such collective");
    return SHM_EBAD_GANG;
  }
  int status = check_gang();
  if (status != SHM_OK) return status;
  *run = (shmi_run_t){
      .asked = c, .in = in, .out = out, .id = c->id, .item = shmi_dtype_bytes(c->dtype)};
  int reduces = is_reducing(c->kind);
  run->what = what_of(c, reduces);
  status = read_group(run);
  if (status == SHM_OK) status = check_number(run, c->id);
  if (status != SHM_OK) return status;
  if (reduces && !shmi_reduction_is_known(c->dtype, c->reduction)) {
    return shmi_run_refuse(run, c->reduction == SHM_REDUCE_MEAN
                                    ? "a mean needs floats: convert, or use sum"
                                    : "there is no such reduction of that type");
  }
  if (c->root >= run->size) return shmi_run_refuse(run, "its root is not in its group");
  size_t slot = shmi_meet_slot_bytes();
  run->piece = min_size(slot, PIECE_BYTES);
  if (c->kind == SHM_BARRIER || run->size == 1) return SHM_OK;
  if (slot < (size_t)run->size * SHMI_GANG_LINE) {
    return shmi_run_refuse(run, slot == 0
                                    ? "helpers have no scratch regions: launch with scratch=4MiB"
                                    : "the scratch regions are too small for so many members: launch "
                                      "with a larger scratch");
  }
  return SHM_OK;
}

/* ---- running ---- */

/* How many bytes a member receives from the others by the definition of the collective, whatever
 * the algorithm. */
static uint64_t moved_bytes(const shmi_run_t *run) {
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
static int run_alone(shmi_run_t *run) {
  const shm_collective_t *c = run->asked;
  uint64_t count = c->kind == SHM_BARRIER ? 0 : c->counts[0];
  if (run->out != NULL && run->in != NULL) copy(run->out, run->in, count * run->item);
  return SHM_OK;
}

static int perform(shmi_run_t *run) {
  static int (*const kinds[SHM_COLLECTIVES])(shmi_run_t *) = {
      [SHM_BARRIER] = shmi_run_barrier,
      [SHM_ALL_REDUCE] = shmi_run_all_reduce,
      [SHM_ALL_GATHER] = shmi_run_all_gather,
      [SHM_REDUCE_SCATTER] = shmi_run_reduce_scatter,
      [SHM_ALL_TO_ALL] = shmi_run_all_to_all,
      [SHM_BROADCAST] = shmi_run_broadcast,
      [SHM_SCATTER] = shmi_run_scatter,
      [SHM_GATHER] = shmi_run_gather,
      [SHM_SEND] = shmi_run_send,
      [SHM_RECV] = shmi_run_send};
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
  shmi_run_t run;
  int status = open_run(&run, collective, in, out);
  return status == SHM_OK ? perform(&run) : status;
}

/* ---- started, and waited for ---- */

static void stage(shmi_run_t *run) {
  static void (*const posts[SHM_COLLECTIVES])(const shmi_run_t *, uint64_t, int) = {
      [SHM_ALL_REDUCE] = shmi_run_post_to_reduce,
      [SHM_ALL_GATHER] = shmi_run_post_gathered,
      [SHM_REDUCE_SCATTER] = shmi_run_post_scattered};
  const shm_collective_t *c = run->asked;
  uint64_t most = 0;
  if (c->kind == SHM_ALL_REDUCE) {
    most = shmi_run_chunks(run);
  } else if (c->kind == SHM_ALL_GATHER) {
    most = pieces_of(c->counts[run->me], run->piece / run->item);
  } else if (c->kind == SHM_REDUCE_SCATTER) {
    for (int rank = 0; rank < run->size; rank++) {
      uint64_t pieces = pieces_of(c->counts[rank], shmi_run_scattered_each(run));
      if (pieces > most) most = pieces;
    }
  }
  for (; run->staged < SHMI_RUN_STAGED && (uint64_t)run->staged < most; run->staged++) {
    int slot = shmi_meet_slot(1);
    if (slot < 0) return;
    run->staged_slots[run->staged] = slot;
    run->staged_steps[run->staged] = c->kind == SHM_ALL_REDUCE
                                         ? shmi_run_step_of_chunk((uint64_t)run->staged)
                                         : (uint32_t)run->staged + 1;
    posts[c->kind](run, (uint64_t)run->staged, slot);
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
  shmi_run_t *run = &started[at].run;
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
  shmi_run_t *run = &started[handle].run;
  int status = check_gang();
  if (status == SHM_OK) status = check_number(run, id);
  started[handle].is_used = 0;
  if (status != SHM_OK) return status;
  run->id = id;
  for (int i = 0; i < run->staged; i++) {
    /* readers report under this number that they have read it */
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
