/* collective_moves -- collectives that move elements and compute nothing. See collective_internal.h.
 */
#include "helper/collective_internal.h"

/* ---- barrier, broadcast, scatter, gather, send ---- */

int shmi_run_barrier(shmi_run_t *run) {
  int slot = shmi_meet_slot(0);
  if (slot < 0) return slot;
  close_post(run, slot, 1, 0, run->others);
  int status = meet(run, run->others, 1);
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    const void *data;
    if (rank != run->me) status = shmi_run_find(run, rank, 1, 0, 0, &data);
  }
  if (status == SHM_OK) have_read(run, 1, run->others);
  return status;
}

int shmi_run_broadcast(shmi_run_t *run) {
  uint64_t count = run->asked->counts[0];
  int root = run->asked->root;
  int status = shmi_run_check_steps(run, pieces_of(count, run->piece / run->item));
  if (status != SHM_OK) return status;
  if (run->me != root) return shmi_run_get(run, root, run->out, count, 1);
  status = shmi_run_give(run, run->in, count, 1, run->others);
  if (run->out != NULL) copy(run->out, run->in, count * run->item);
  return status;
}

int shmi_run_scatter(shmi_run_t *run) {
  const uint64_t *counts = run->asked->counts;
  int root = run->asked->root;
  uint64_t each = run->piece / run->item, steps = 0, at = 0;
  for (int rank = 0; rank < run->size; rank++) steps += pieces_of(counts[rank], each);
  int status = shmi_run_check_steps(run, steps);
  uint32_t step = 1;
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    int is_mine = rank == run->me, pieces = (int)pieces_of(counts[rank], each);
    if (run->me == root && is_mine) {
      copy(run->out, run->in + at * run->item, counts[rank] * run->item);
    } else if (run->me == root) {
      status = shmi_run_give(run, run->in + at * run->item, counts[rank], step, bit_of(run, rank));
    } else if (is_mine) {
      status = shmi_run_get(run, root, run->out, counts[rank], step);
    }
    step += (uint32_t)pieces;
    at += counts[rank];
  }
  return status;
}

int shmi_run_gather(shmi_run_t *run) {
  const uint64_t *counts = run->asked->counts;
  int root = run->asked->root, status = SHM_OK;
  for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
    status = shmi_run_check_steps(run, pieces_of(counts[rank], run->piece / run->item));
  }
  if (status != SHM_OK) return status;
  if (run->me != root) return shmi_run_give(run, run->in, counts[run->me], 1, bit_of(run, root));
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
      status = shmi_run_find(run, rank, (uint32_t)round + 1, bytes, 0, &from);
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

int shmi_run_send(shmi_run_t *run) {
  if (run->size != 2) return shmi_run_refuse(run, "its group is the two who take part");
  uint64_t count = run->asked->counts[0];
  int root = run->asked->root;
  int status = shmi_run_check_steps(run, pieces_of(count, run->piece / run->item));
  if (status != SHM_OK) return status;
  if ((run->me == root) != (run->asked->kind == SHM_SEND)) {
    return shmi_run_refuse(run, "who sends is its root, and the other one receives");
  }
  if (run->me == root) return shmi_run_give(run, run->in, count, 1, run->others);
  return shmi_run_get(run, root, run->out, count, 1);
}

/* ---- all_gather ---- */

void shmi_run_post_gathered(const shmi_run_t *run, uint64_t round, int slot) {
  uint64_t count = run->asked->counts[run->me], each = run->piece / run->item;
  size_t bytes = min_size(count - round * each, each) * run->item;
  char *to = shmi_meet_at(run->helpers[run->me], slot);
  memcpy(to, run->in + round * each * run->item, bytes);
  close_post(run, slot, (uint32_t)round + 1, bytes, run->others);
}

int shmi_run_all_gather(shmi_run_t *run) {
  const uint64_t *counts = run->asked->counts;
  uint64_t each = run->piece / run->item, rounds = 0, begins[SHM_MAX_HELPERS], at = 0;
  for (int rank = 0; rank < run->size; at += counts[rank++]) {
    begins[rank] = at;
    if (pieces_of(counts[rank], each) > rounds) rounds = pieces_of(counts[rank], each);
  }
  int status = shmi_run_check_steps(run, rounds);
  uint64_t mine = pieces_of(counts[run->me], each);
  uint64_t next = (uint64_t)run->staged;
  for (uint64_t round = 0; round < rounds && status == SHM_OK; round++) {
    int posted = shmi_run_post_ahead(run, &next, mine, round, shmi_run_post_gathered);
    if (posted != SHM_OK) return posted;
    for (int rank = 0; rank < run->size && status == SHM_OK; rank++) {
      if (rank == run->me || round * each >= counts[rank]) continue;
      size_t bytes = min_size(counts[rank] - round * each, each) * run->item;
      const void *from;
      status = shmi_run_find(run, rank, (uint32_t)round + 1, bytes, 1, &from);
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

/* ---- all_to_all ---- */

/* In the s-th exchange, each rank sends to the rank that is s places further. Each exchange has a
 * range of steps of its own, because only its two ends know how many steps it takes. */
int shmi_run_all_to_all(shmi_run_t *run) {
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
      return shmi_run_check_steps(run, SHMI_GANG_LAST_STEP);
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
      int status = shmi_run_find(run, from, step, bytes, 0, &data);
      if (status != SHM_OK) return status;
      memcpy(run->out + (out_at[from] + round * each) * run->item, data, bytes);
      have_read(run, step, bit_of(run, from));
    }
  }
  return SHM_OK;
}
