/* dispatch_broadcasts -- calls that run once on each helper of a pool, and again on each that joins
 * it. See dispatch_internal.h.
 *
 * A broadcast is queued like any call, one of each pool at a time; others wait in a line. The helper
 * that is given it (the first) makes the memory file, runs the function, and hands the file over
 * with its answer. The instant at which that answer is read is when the broadcast takes effect: the
 * pool has a new version, the file is kept in place of the function's last, and every other helper
 * gets an APPLY. From the hand-over to its answer a helper gets no call. So whether a call runs
 * before or after a broadcast depends on when the call was handed over, and on nothing else,
 * whichever helper it goes to: nobody who has seen a version is served an older one later.
 *
 * A helper that has just made its session gets, in the order of versions, what is kept, and counts
 * as up only when it is at the pool's version. One on which a broadcast failed may be half changed:
 * it gets nothing more, ends when it has finished what it holds, and is replaced.
 *
 * Owns: the files that are kept, the lines, the versions. Must never: map a file.
 */
#include "broker/dispatch_internal.h"

#include <stdlib.h>

#include "base/descriptor.h"
#include "base/passing.h"
#include "ipc/function_table.h"
#include "memory/arena.h"
#include "memory/kept_file.h"

typedef struct kept {
  const shmi_function_t *function;
  uint64_t version;
  uint64_t bytes;
  int fd;
} kept_t;

typedef struct line {
  kept_t *kept; /* of each function that was broadcast, in no order */
  uint32_t kept_count, kept_room;
  uint32_t active;        /* the request whose turn it is: queued, run, or applied elsewhere */
  uint32_t head, tail;    /* of those that wait for their turn */
  uint64_t outstanding;   /* mask of the helpers that are to apply the active one */
  uint64_t version;       /* how many have taken effect */
  int status;             /* of the active one: that of the first helper on which it failed, */
  uint64_t value;         /* and what that helper returned with it */
  uint32_t started, finished;
} line_t;

struct shmi_broadcasts {
  line_t pools[SHM_MAX_POOLS];
  uint64_t versions[SHM_MAX_HELPERS]; /* of each helper */
};

int shmi_broadcasts_create(shmi_broadcasts_t **out) {
  *out = calloc(1, sizeof **out);
  return *out != NULL ? SHM_OK : SHM_ESYSTEM;
}

void shmi_broadcasts_destroy(shmi_broadcasts_t *all) {
  if (all == NULL) return;
  for (int pool = 0; pool < SHM_MAX_POOLS; pool++) {
    line_t *line = &all->pools[pool];
    for (uint32_t i = 0; i < line->kept_count; i++) shmi_descriptor_close(&line->kept[i].fd);
    free(line->kept);
  }
  free(all);
}

static uint64_t bit(int h) { return UINT64_C(1) << h; }
static line_t *line_of(shmi_dispatch_t *d, int h) {
  return &d->broadcasts->pools[d->config.helper_pool[h]];
}

int shmi_dispatch_is_broadcast(const shmi_frame_t *frame) {
  return frame->kind == SHMI_FRAME_CALL && (frame->flags & SHMI_FRAME_BROADCAST) != 0;
}

/* ---- lines ---- */

static void begin_next(shmi_dispatch_t *d, line_t *line) {
  while (line->active == SHMI_NONE && line->head != SHMI_NONE) {
    uint32_t number = line->head;
    shmi_request_t *r = shmi_schedule_request(d->schedule, number);
    line->head = r->next;
    line->active = number;
    line->outstanding = 0;
    line->status = SHM_OK;
    line->value = 0;
    r->has_effect = 0;
    shmi_schedule_put(d->schedule, number, r->function, r->queued_ns); /* a pool is never gone */
  }
}

void shmi_dispatch_take_broadcast(shmi_dispatch_t *d, uint32_t number,
                                  const shmi_function_t *function) {
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  line_t *line = &d->broadcasts->pools[r->frame.pool];
  r->function = function;
  r->next = SHMI_NONE;
  if (line->head == SHMI_NONE) line->head = number;
  else shmi_schedule_request(d->schedule, line->tail)->next = number;
  line->tail = number;
  begin_next(d, line);
}

void shmi_dispatch_broadcast_over(shmi_dispatch_t *d, uint32_t number) {
  line_t *line = &d->broadcasts->pools[shmi_schedule_request(d->schedule, number)->frame.pool];
  if (line->active != number) return;
  line->active = SHMI_NONE;
  line->outstanding = 0;
  begin_next(d, line);
}

uint32_t shmi_dispatch_drop_broadcast(shmi_dispatch_t *d, int slot, uint64_t sequence) {
  for (int pool = 0; pool < d->config.pools; pool++) {
    line_t *line = &d->broadcasts->pools[pool];
    uint32_t before = SHMI_NONE;
    for (uint32_t n = line->head; n != SHMI_NONE;) {
      shmi_request_t *r = shmi_schedule_request(d->schedule, n);
      if (r->frame.slot == slot && (sequence == 0 || r->frame.sequence == sequence)) {
        if (before == SHMI_NONE) line->head = r->next;
        else shmi_schedule_request(d->schedule, before)->next = r->next;
        if (line->tail == n) line->tail = before;
        r->next = SHMI_NONE;
        return n;
      }
      before = n;
      n = r->next;
    }
  }
  return SHMI_NONE;
}

/* ---- what is kept ---- */

static kept_t *find_kept(line_t *line, const shmi_function_t *function) {
  for (uint32_t i = 0; i < line->kept_count; i++) {
    if (line->kept[i].function == function) return &line->kept[i];
  }
  return NULL;
}

/* Keep the file in place of the function's last one: nobody will be sent that any more. */
static int keep(shmi_dispatch_t *d, line_t *line, const shmi_function_t *function, int fd) {
  shm_broker_stats_t *stats = d->scoreboard->broker;
  kept_t *kept = find_kept(line, function);
  if (kept == NULL && line->kept_count == line->kept_room) {
    uint32_t room = line->kept_room == 0 ? 4 : 2 * line->kept_room;
    kept_t *more = realloc(line->kept, room * sizeof *more);
    if (more == NULL) return SHM_ESYSTEM;
    line->kept = more;
    line->kept_room = room;
  }
  if (kept == NULL) {
    kept = &line->kept[line->kept_count++];
    *kept = (kept_t){.function = function, .fd = -1};
    stats->kept_files++;
  }
  shmi_descriptor_close(&kept->fd);
  stats->kept_bytes -= kept->bytes;
  kept->fd = fd;
  kept->bytes = shmi_kept_file_bytes(fd);
  stats->kept_bytes += kept->bytes;
  kept->version = ++line->version;
  stats->broadcasts++;
  __atomic_store_n(&stats->pool_version[line - d->broadcasts->pools], line->version,
                   __ATOMIC_RELEASE);
  return SHM_OK;
}

/* The file that the first helper has sent with its answer. */
static int take_file(shmi_dispatch_t *d, int h) {
  uint64_t head[2];
  int fd = -1;
  int count = shmi_passing_receive(d->helpers[h].files_fd, head, sizeof head, &fd, 1);
  if (count == 1 && shmi_kept_file_bytes(fd) > 0) return fd;
  shmi_descriptor_close(&fd);
  return -1;
}

int shmi_dispatch_pass_kept(shmi_dispatch_t *d, int h, shmi_frame_t *frame) {
  const shmi_function_t *function =
      shmi_function_table_find((uint64_t)(uintptr_t)frame->msg.func_ptr);
  const kept_t *kept = find_kept(line_of(d, h), function);
  frame->version = kept->version; /* meanwhile there may be a later one */
  return shmi_arena_pass_other(kept->fd, d->helpers[h].files_fd);
}

/* ---- helpers ---- */

static void set_version(shmi_dispatch_t *d, int h, uint64_t version) {
  d->broadcasts->versions[h] = version;
  d->scoreboard->helper_stats[h].version = version;
}

/* It may be half changed: it gets nothing more, and is replaced. */
static void condemn(shmi_dispatch_t *d, int h) {
  shmi_helper_t *helper = &d->helpers[h];
  helper->is_condemned = 1;
  shmi_dispatch_spare(d, h);
  d->retiring |= bit(h);
}

/* The active broadcast is over once no helper is to apply it any more. */
static void look_whether_over(shmi_dispatch_t *d, line_t *line) {
  uint32_t number = line->active;
  if (number == SHMI_NONE || line->outstanding != 0) return;
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  if (!r->has_effect) return; /* it is queued, or runs on its first helper */
  r->frame.flags |= SHMI_FRAME_COMMITTED;
  uint64_t value = line->status == SHM_OK ? line->version : line->value;
  shmi_dispatch_answer(d, number, line->status, value, 0, line->started, line->finished);
}

/* A failure of the active broadcast is reported in its sender's arena, if that is still there. */
static void name_sender(shmi_dispatch_t *d, const line_t *line, shmi_frame_t *frame) {
  const shmi_frame_t *sent = &shmi_schedule_request(d->schedule, line->active)->frame;
  const shmi_child_t *child = &d->children[sent->slot];
  if (child->state != SHMI_PEER_UP || child->generation != sent->generation) return;
  frame->msg.params = sent->msg.params;
  frame->sequence = sent->sequence;
  frame->slot = sent->slot;
  frame->generation = sent->generation;
}

/* Give helper h the kept file with the lowest version above its own. Returns whether it has to wait
 * for that. */
static int advance(shmi_dispatch_t *d, int h) {
  line_t *line = line_of(d, h);
  shmi_helper_t *helper = &d->helpers[h];
  const kept_t *next = NULL;
  for (uint32_t i = 0; i < line->kept_count; i++) {
    const kept_t *kept = &line->kept[i];
    if (kept->version <= d->broadcasts->versions[h]) continue;
    if (next == NULL || kept->version < next->version) next = kept;
  }
  if (next == NULL) return 0;
  shmi_frame_t frame = {.kind = SHMI_FRAME_APPLY};
  frame.msg.func_ptr = (shm_func_t)(uintptr_t)shmi_function_table_address(next->function);
  frame.version = next->version;
  if ((line->outstanding & bit(h)) != 0) name_sender(d, line, &frame);
  uint32_t number = shmi_schedule_admit(d->schedule, &frame, d->now_ns);
  if (number == SHMI_NONE) return 1; /* tried again with the next turn */
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  r->function = next->function;
  r->helper = (uint8_t)h;
  r->handed_ns = d->now_ns;
  helper->applies = 1;
  d->to_advance &= ~bit(h);
  shmi_dispatch_put_out(d, h, number, 0);
  return 1;
}

uint64_t shmi_dispatch_advance_helpers(shmi_dispatch_t *d) {
  uint64_t touched = 0;
  for (uint64_t left = d->to_advance; left != 0; left &= left - 1) {
    int h = __builtin_ctzll(left);
    const shmi_helper_t *helper = &d->helpers[h];
    if (helper->applies || helper->is_retiring || helper->is_condemned) continue;
    if (shmi_helper_span(helper) >= SHMI_SPAN_OF_GROWS) continue;
    if (advance(d, h)) touched |= bit(h);
  }
  return touched;
}

int shmi_dispatch_must_catch_up(shmi_dispatch_t *d, int h) {
  set_version(d, h, 0);
  if (line_of(d, h)->version == 0) return 0;
  d->to_advance |= bit(h);
  return 1;
}

void shmi_dispatch_broadcast_handed(shmi_dispatch_t *d, int h, shmi_frame_t *frame) {
  frame->flags |= SHMI_FRAME_BROADCAST;
  frame->version = line_of(d, h)->version + 1;
  d->helpers[h].applies = 1;
  shmi_dispatch_spare(d, h);
}

/* ---- what helpers answer ---- */

/* The function has run on the first helper: from here on it is to run on all the others. */
static void take_effect(shmi_dispatch_t *d, int first) {
  line_t *line = line_of(d, first);
  set_version(d, first, line->version);
  for (int h = 0; h < d->config.helpers; h++) {
    const shmi_helper_t *helper = &d->helpers[h];
    if (h == first || line_of(d, h) != line || helper->state != SHMI_PEER_UP) continue;
    if (helper->is_retiring || helper->is_condemned) continue;
    line->outstanding |= bit(h);
    d->to_advance |= bit(h);
    d->helpers[h].is_behind = 1;
    shmi_dispatch_spare(d, h);
  }
}

void shmi_dispatch_broadcast_ran(shmi_dispatch_t *d, int h, uint32_t number, int status,
                                 uint64_t value, uint32_t started, uint32_t finished) {
  shmi_helper_t *helper = &d->helpers[h];
  line_t *line = line_of(d, h);
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  helper->applies = 0;
  int has_run = status == SHM_OK || status == SHM_EREMOTE;
  if (status == SHM_OK) {
    int fd = take_file(d, h);
    status = fd >= 0 ? keep(d, line, r->function, fd) : SHM_ESYSTEM;
    if (status != SHM_OK) shmi_descriptor_close(&fd);
  }
  if (status != SHM_OK) {
    if (has_run) condemn(d, h);
    else shmi_dispatch_spare(d, h);
    shmi_dispatch_answer(d, number, status, value, helper->generation, started, finished);
    return;
  }
  r->has_effect = 1;
  line->started = started;
  line->finished = finished;
  take_effect(d, h);
  shmi_dispatch_spare(d, h);
  look_whether_over(d, line);
}

void shmi_dispatch_applied(shmi_dispatch_t *d, int h, uint32_t number, int status, uint64_t value,
                           uint32_t started, uint32_t finished) {
  shmi_helper_t *helper = &d->helpers[h];
  line_t *line = line_of(d, h);
  shmi_request_t *r = shmi_schedule_request(d->schedule, number);
  uint64_t version = r->frame.version;
  int has_died = status == SHM_EHELPER_DIED;
  if (d->scoreboard->trace_records > 0 && r->frame.msg.params != NULL) {
    shm_trace_record_t life = shmi_dispatch_life_of(d, r, status, started, finished);
    shmi_scoreboard_trace(&life);
  }
  shmi_schedule_free(d->schedule, number);
  helper->applies = 0;
  if (status == SHM_OK) {
    set_version(d, h, version);
    if (version < line->version) d->to_advance |= bit(h);
    else helper->is_behind = 0;
    if (helper->state == SHMI_PEER_STARTING && version == line->version) shmi_dispatch_made_up(d, h);
  } else if (!has_died) {
    condemn(d, h);
  }
  shmi_dispatch_spare(d, h);
  if ((line->outstanding & bit(h)) == 0) return;
  line->outstanding &= ~bit(h);
  if (status != SHM_OK && !has_died && line->status == SHM_OK) {
    line->status = status;
    line->value = value;
    shmi_schedule_request(d->schedule, line->active)->helper = (uint8_t)h;
  }
  look_whether_over(d, line);
}

void shmi_dispatch_excuse(shmi_dispatch_t *d, int h) {
  line_t *line = line_of(d, h);
  d->to_advance &= ~bit(h);
  if ((line->outstanding & bit(h)) == 0) return;
  line->outstanding &= ~bit(h);
  look_whether_over(d, line);
}
