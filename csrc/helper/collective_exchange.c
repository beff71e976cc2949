/* collective_exchange -- one step of a collective: what is posted, what is found, and whether the
 * two agree. See collective_internal.h.
 */
#include <stdio.h>

#include "base/error_detail.h"
#include "helper/collective_internal.h"

static const char *const kind_names[SHM_COLLECTIVES] = {
    [SHM_BARRIER] = "barrier",   [SHM_ALL_REDUCE] = "all_reduce", [SHM_ALL_GATHER] = "all_gather",
    [SHM_REDUCE_SCATTER] = "reduce_scatter", [SHM_ALL_TO_ALL] = "all_to_all",
    [SHM_BROADCAST] = "broadcast", [SHM_SCATTER] = "scatter", [SHM_GATHER] = "gather",
    [SHM_SEND] = "send", [SHM_RECV] = "recv"};
static const char *const dtype_names[SHM_DTYPES] = {
    "bytes", "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64"};
static const char *const reduction_names[SHM_REDUCTIONS] = {"sum", "mean", "max", "min", "prod"};

int shmi_run_refuse(const shmi_run_t *run, const char *why) {
  shmi_error_detail_set("collective %u (%s): %s", run->asked->id, kind_names[run->asked->kind], why);
  return SHM_EBAD_GANG;
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

static int mismatch(const shmi_run_t *run, int rank, const shmi_gang_post_t *found, uint64_t bytes) {
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

int shmi_run_find(const shmi_run_t *run, int rank, uint32_t step, uint64_t bytes, int may_be_staged,
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

int shmi_run_check_steps(const shmi_run_t *run, uint64_t steps) {
  if (steps < SHMI_GANG_LAST_STEP) return SHM_OK;
  return shmi_run_refuse(run, "it moves more than the scratch regions can carry in one: launch with a "
                              "larger scratch, or move it in parts");
}

int shmi_run_post_ahead(const shmi_run_t *run, uint64_t *next, uint64_t end, uint64_t round,
                        void (*post)(const shmi_run_t *run, uint64_t piece, int slot)) {
  for (; *next < end && *next <= round + 1; (*next)++) {
    int slot = shmi_meet_slot(0);
    if (slot < 0) return slot;
    post(run, *next, slot);
  }
  return SHM_OK;
}

int shmi_run_give(const shmi_run_t *run, const char *from, uint64_t count, uint32_t step,
                  uint64_t readers) {
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

int shmi_run_get(const shmi_run_t *run, int rank, char *to, uint64_t count, uint32_t step) {
  size_t each = run->piece / run->item;
  for (uint64_t at = 0; at < count; at += each, step++) {
    size_t bytes = min_size(count - at, each) * run->item;
    const void *from;
    int status = shmi_run_find(run, rank, step, bytes, 0, &from);
    if (status != SHM_OK) return status;
    memcpy(to + at * run->item, from, bytes);
    have_read(run, step, bit_of(run, rank));
  }
  return SHM_OK;
}
