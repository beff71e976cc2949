/* helper_port -- see helper_port.h. */
#include "helper/helper_port.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "helper/collective.h"
#include "helper/rendezvous.h"
#include "ipc/function_table.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum {
  QUEUE = SHMI_DELIVERY_RING,
  REPLIES = SHMI_PIPE_BURST,
  GROWS_IN_A_ROW = 64, /* GROWs go first, but after so many of them a waiting call has its turn */
  HOLD_REPLIES_NS = 100000, /* the longest that a reply is expected to wait for others */
  LOOK_AGAIN_NS = 200000    /* read the pipe again after so long: a GROW overtakes queued calls */
};

static struct port {
  int down_fd, up_fd, files_fd;
  uint32_t files_due;   /* memory files that wait in files_fd */
  int kept_fd;          /* the file of the APPLY that comes next; -1: none */
  uint32_t clear_head, clear_count;
  int helper;
  int stopping; /* end of file was seen: what is queued is still served */
  uint32_t generation;
  uint32_t head, count; /* of queue */
  uint32_t grow_head, grow_count, grows_in_a_row;
  uint32_t reply_count;
  uint64_t first_reply_ns, last_look_ns, now_ns;
  uint64_t lowest, highest; /* deliveries begun and not all finished */
  uint32_t begun;
  uint32_t taken_count; /* of the last take */
  uint16_t serving_slot;
  shmi_helper_page_t *page;
  shmi_frame_t queue[QUEUE];
  shmi_frame_t grows[QUEUE];
  shmi_frame_t clears[QUEUE];
  shmi_frame_t taken[QUEUE]; /* by delivery % QUEUE: what finish needs to know */
  uint64_t started_ns[QUEUE];
  uint16_t function[QUEUE];  /* by delivery % QUEUE: 1 + index of its row, 0: none */
  uint8_t is_short[SHM_MAX_FUNCTIONS]; /* the function's last call took less than HOLD_REPLIES_NS */
  uint64_t last_take[SHM_MAX_BATCH];
  uint64_t deferred_began_ns; /* when the work after an answer began; 0: there is none */
  uint64_t tell_idle_ns; /* a take ends when nothing has come for so long; 0: it waits on */
  shmi_frame_t replies[REPLIES];
} port = {.down_fd = -1, .up_fd = -1, .files_fd = -1, .kept_fd = -1, .helper = -1};

static int flush(void) {
  uint32_t count = port.reply_count;
  port.reply_count = 0;
  if (count == 0) return SHM_OK;
  SHMI_FAULT(BEFORE_REPLY);
  int got; /* the pipe takes a burst whole, and waits for room */
  while ((got = shmi_pipe_write(port.up_fd, port.replies, (int)count)) == SHM_EINTR) continue;
  if (got < 0) return SHM_ESTOPPED; /* nobody reads: the parent is gone */
  shmi_count(&port.page->frames_sent, count);
  SHMI_FAULT(AFTER_REPLY);
  return SHM_OK;
}

/* Read everything in the pipe. timeout_ns < 0: wait until there is something. */
static int look(int64_t timeout_ns) {
  /* The private queue holds as much as the control ring, which is more than can be in flight. */
  uint32_t room = QUEUE - (port.count > port.grow_count ? port.count : port.grow_count);
  if (room < SHMI_PIPE_BURST) return SHM_OK;
  shmi_frame_t frames[SHMI_PIPE_BURST * 4];
  int max = room < SHMI_PIPE_BURST * 4 ? (int)room : SHMI_PIPE_BURST * 4;
  if (timeout_ns >= 0) {
    int ready = shmi_pipe_wait(port.down_fd, timeout_ns);
    if (ready == 0) return SHM_EAGAIN;
    if (ready < 0) return ready;
  }
  SHMI_FAULT(BEFORE_READ);
  int got = shmi_pipe_read(port.down_fd, frames, max);
  if (got == SHM_EINTR) return SHM_EINTR;
  if (got < 0) {
    port.stopping = 1;
    return SHM_OK;
  }
  int has_heard = 0;
  for (int i = 0; i < got; i++) {
    if ((frames[i].flags & SHMI_FRAME_NEW_ARENA) != 0) {
      has_heard = 1;
      port.files_due++;
    }
    if (frames[i].kind == SHMI_FRAME_APPLY) {
      has_heard = 1;
      port.files_due++;
    }
    if (frames[i].kind == SHMI_FRAME_GONE) {
      has_heard = 1;
      continue;
    }
    if (frames[i].kind == SHMI_FRAME_CLEAR) { /* its arena may be one that is still to be mapped */
      has_heard = 1;
      port.clears[(port.clear_head + port.clear_count++) % QUEUE] = frames[i];
      continue;
    }
    int is_grow = frames[i].kind == SHMI_FRAME_GROW;
    shmi_frame_t *ring = is_grow ? port.grows : port.queue;
    uint32_t at = is_grow ? port.grow_head + port.grow_count++ : port.head + port.count++;
    ring[at % QUEUE] = frames[i];
  }
  shmi_count(&port.page->frames_received, (uint64_t)got);
  SHMI_FAULT(AFTER_READ);
  return has_heard ? SHM_EINTR : SHM_OK; /* the host releases what it keeps, and calls again */
}

static uint32_t units(uint64_t from_ns, uint64_t to_ns) {
  uint64_t passed = to_ns > from_ns ? (to_ns - from_ns) / SHM_UNIT_NS : 0;
  return passed < UINT32_MAX ? (uint32_t)passed : UINT32_MAX;
}

static int is_gang(const shmi_frame_t *frame) { return (frame->flags & SHMI_FRAME_GANG) != 0; }

static void publish_executing(void) {
  uint64_t value = port.begun == 0 ? 0 : port.lowest << 16 | (port.highest - port.lowest + 1);
  atomic_store_explicit(&port.page->executing, value, memory_order_release);
}

/* Whether it runs a function, in its turn. */
static int is_run(const shmi_frame_t *frame) {
  return frame->kind == SHMI_FRAME_CALL || frame->kind == SHMI_FRAME_APPLY;
}

/* Advance to the lowest call that was begun and has not ended: later calls may have ended before
 * it, and some numbers between them belong to other messages. */
static void skip_finished(void) {
  while (port.lowest <= port.highest) {
    const shmi_frame_t *frame = &port.taken[port.lowest % QUEUE];
    if (frame->delivery == port.lowest && is_run(frame)) return;
    port.lowest++;
  }
}

/* ---- gangs ---- */

/* A binding's block of a gang is a table of blocks. It is read once, to find this member's own
 * block, which is then checked like any other. */
static int own_block(const shmi_frame_t *frame, uint64_t *address) {
  uint64_t base = shmi_arena_address(frame->slot), capacity = shmi_arena_bytes(), table = *address;
  shm_gang_block_t head;
  if ((table & 7) != 0 || !shmi_range_inside(base, capacity, table, sizeof head)) return SHM_EBAD_PARAMS;
  memcpy(&head, (const void *)(uintptr_t)table, sizeof head);
  const shmi_gang_member_t *member = shmi_meet_member();
  uint64_t heads = sizeof head + (uint64_t)member->size * sizeof(uint32_t);
  if (head.version != 1 || head.members != member->size || head.mask != frame->members ||
      head.bytes < heads || !shmi_range_inside(base, capacity, table, head.bytes)) {
    return SHM_EBAD_PARAMS;
  }
  const uint32_t *offsets = (const uint32_t *)(uintptr_t)(table + sizeof head);
  uint64_t offset = __atomic_load_n(&offsets[member->rank], __ATOMIC_RELAXED);
  if ((offset & 7) != 0 || offset < heads || offset > head.bytes - sizeof(uint64_t)) {
    return SHM_EBAD_PARAMS;
  }
  *address = table + offset;
  return SHM_OK;
}

/* If the frame belongs to a gang, enter the gang and find this member's block. */
static int enter_gang(const shmi_frame_t *frame, shm_work_t *work) {
  if (!is_gang(frame)) return SHM_OK;
  int status = shmi_meet_begin(frame->ticket, frame->members);
  if (status != SHM_OK) return status;
  const shmi_function_t *function = shmi_function_table_find(work->function);
  return function == NULL || function->func != NULL ? SHM_OK : own_block(frame, &work->params);
}

/* End this member's part: it arrives, or gives the gang up. The control page gets what it has
 * cost. */
static int leave_gang(const shmi_frame_t *call, int status) {
  const shmi_gang_member_t *member = shmi_meet_member();
  shmi_gang_cost_t *cost = &port.page->costs[call->delivery % SHMI_DELIVERY_RING];
  *cost = (shmi_gang_cost_t){.moved_bytes = member->moved_bytes,
                             .waited_units = units(0, member->waited_ns)};
  shmi_collective_forget();
  if (status == SHM_ENEEDS_SPACE) status = SHM_ETOO_LARGE; /* a gang keeps nothing back */
  return shmi_meet_end(call->ticket, status);
}

/* ---- answers ---- */

int shm_helper_finish(uint64_t delivery, int status, uint64_t value) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  shmi_frame_t *call = &port.taken[delivery % QUEUE];
  if (delivery == 0 || call->delivery != delivery) return SHM_EBAD_FRAME;
  if (is_gang(call)) {
    int ended = leave_gang(call, status);
    if (ended != status) value = 0;
    status = ended;
  }
  call->delivery = 0; /* finished once */
  uint64_t now = shmi_clock_ns();
  port.now_ns = now;
  uint32_t started = units(call->handed_ns, port.started_ns[delivery % QUEUE]);
  uint32_t finished = units(call->handed_ns, now);
  if (port.function[delivery % QUEUE] > 0) {
    port.is_short[port.function[delivery % QUEUE] - 1] =
        now - port.started_ns[delivery % QUEUE] < HOLD_REPLIES_NS;
  }

  shmi_outcome_t *outcome = &port.page->finished[delivery % SHMI_DELIVERY_RING];
  outcome->value = value;
  outcome->status = shmi_status_to_wire(status);
  outcome->started_units = started;
  outcome->finished_units = finished;
  atomic_store_explicit(&outcome->delivery, delivery, memory_order_release);
  if (is_run(call)) {
    port.begun--;
    skip_finished();
    publish_executing();
  }

  if (port.reply_count == 0) port.first_reply_ns = now;
  port.replies[port.reply_count++] =
      (shmi_frame_t){.result = {.token = port.generation, .value = value},
                     .sequence = call->sequence,
                     .slot = (uint16_t)port.helper,
                     .kind = SHMI_FRAME_REPLY,
                     .generation = call->generation,
                     .status = shmi_status_to_wire(status),
                     .rows = call->rows,
                     .delivery = delivery,
                     .started_units = started,
                     .finished_units = finished};
  /* The token carries our generation: only the process that parked a result can find it again. */
  if (port.reply_count == REPLIES) return flush();
  return SHM_OK;
}

/* Whether the function is known; others are told that this helper runs it. */
static int note_function(const shmi_frame_t *frame, const shmi_function_t **out) {
  const shmi_function_t *function =
      shmi_function_table_find((uint64_t)(uintptr_t)frame->msg.func_ptr);
  if (function == NULL) return SHM_EBAD_FUNCTION;
  port.function[frame->delivery % QUEUE] = (uint16_t)(function->index + 1);
  if (out != NULL) *out = function;
  return SHM_OK;
}

/* A binding's block begins with its own length: read it once, and check it against the arena of the
 * child that sent the message. */
static int block_bytes_of(const shmi_frame_t *frame, uint64_t address, uint32_t *bytes) {
  const shmi_function_t *function;
  int status = note_function(frame, &function);
  if (status != SHM_OK) return status;
  *bytes = (uint32_t)function->params_bytes;
  if (function->func == NULL) {
    *bytes = __atomic_load_n((const uint32_t *)(uintptr_t)address, __ATOMIC_RELAXED);
  }
  if (*bytes == 0 && address == 0) return SHM_OK;
  if (*bytes < function->params_bytes ||
      !shmi_range_inside(shmi_arena_address(frame->slot), shmi_arena_bytes(), address, *bytes)) {
    return SHM_EBAD_PARAMS;
  }
  return SHM_OK;
}

static void begin(const shmi_frame_t *frame, shm_work_t *work) {
  uint64_t delivery = frame->delivery;
  port.taken[delivery % QUEUE] = *frame;
  port.started_ns[delivery % QUEUE] = port.now_ns;
  port.function[delivery % QUEUE] = 0;
  *work = (shm_work_t){.delivery = delivery,
                       .function = (uint64_t)(uintptr_t)frame->msg.func_ptr,
                       .params = (uint64_t)(uintptr_t)frame->msg.params,
                       .sequence = frame->sequence,
                       .generation = frame->generation,
                       .rows = frame->rows,
                       .slot = frame->slot};
  if (is_gang(frame)) {
    work->members = frame->members;
    work->ticket = frame->ticket;
    work->rows = 1;
    work->kind = SHM_WORK_GANG;
  } else if (frame->kind == SHMI_FRAME_APPLY || (frame->flags & SHMI_FRAME_BROADCAST) != 0) {
    work->kind = frame->kind == SHMI_FRAME_APPLY ? SHM_WORK_APPLY : SHM_WORK_BROADCAST;
    work->token = frame->version;
  }
}

/* The block of a call, or a gang's. An APPLY names the block of the program that broadcasts, if
 * that is still there, and needs it only to report a failure. */
static int find_block(const shmi_frame_t *frame, shm_work_t *work) {
  int is_apply = frame->kind == SHMI_FRAME_APPLY;
  int status = is_apply && work->params == 0
                   ? note_function(frame, NULL)
                   : block_bytes_of(frame, work->params, &work->block_bytes);
  if (!is_apply || status != SHM_EBAD_PARAMS) return status;
  work->params = work->block_bytes = 0;
  return SHM_OK;
}

/* ---- broadcasts ---- */

int shm_broadcast_publish(int fd) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  int status;
  /* The parent takes it once it has our answer to this call, and the socket is empty until then.
   * Only other processes of this user could have too many descriptors in transit. */
  while ((status = shmi_arena_pass_other(fd, port.files_fd)) == SHM_EAGAIN) {
    struct timespec moment = {.tv_nsec = 1000000};
    nanosleep(&moment, NULL);
  }
  return status;
}

int shm_broadcast_take(void) {
  int fd = port.kept_fd;
  port.kept_fd = -1;
  return fd;
}


/* That arena has no occupant any more: give back its memory, even if processes that the last
 * occupant forked still map it. Pages that a driver has pinned are freed when it unpins them. */
static void clear(const shmi_frame_t *frame) {
  uint64_t address = frame->result.value, bytes = frame->result.token;
  int is_good = shmi_range_inside(shmi_arena_address(frame->slot), shmi_arena_bytes(), address,
                                  bytes);
  shm_work_t work;
  begin(frame, &work);
  void *at = (void *)(uintptr_t)address;
  if (is_good && madvise(at, bytes, MADV_REMOVE) != 0) memset(at, 0, bytes);
  shm_helper_finish(frame->delivery, is_good ? SHM_OK : SHM_EBAD_PARAMS, 0);
}

/* Take the files that were sent. Slots have new occupants: map their memory files. The host was told
 * before (SHM_EINTR) and has released what it kept of the old ones. No queued call belongs to an old
 * occupant. */
static int settle_files(void) {
  for (; port.files_due > 0; port.files_due--) {
    int fd = -1, child = shmi_arena_take(port.files_fd, &fd);
    if (child < 0) return child; /* this helper ends, and another one gets the calls that need it */
    if (fd < 0) continue;
    shmi_descriptor_close(&port.kept_fd);
    port.kept_fd = fd;
  }
  for (; port.clear_count > 0; port.clear_count--) {
    clear(&port.clears[port.clear_head++ % QUEUE]);
  }
  return SHM_OK;
}

/* Whether it is one that can be served. */
static int take_grow(shm_work_t *work) {
  const shmi_frame_t frame = port.grows[port.grow_head++ % QUEUE];
  port.grow_count--;
  begin(&frame, work);
  work->kind = SHM_WORK_GROW;
  work->token = frame.result.token;
  work->function = 0;
  uint64_t address = frame.result.value;
  work->params = address;
  if (address != 0) {
    /* Room for a result is a block like any other: its first word is its length. */
    uint64_t base = shmi_arena_address(frame.slot), capacity = shmi_arena_bytes();
    if ((address & 7) != 0 || !shmi_range_inside(base, capacity, address, 8)) return 0;
    work->block_bytes = __atomic_load_n((const uint32_t *)(uintptr_t)address, __ATOMIC_RELAXED);
    if (!shmi_range_inside(base, capacity, address, work->block_bytes)) return 0;
  }
  port.last_take[0] = work->delivery;
  port.taken_count = 1;
  port.grows_in_a_row++;
  return 1;
}

/* Take the next batch out of the queue: how many of its messages are valid. */
static int take_batch(shm_work_t *works, int max) {
  int good = 0, more = 1;
  uint64_t first = port.queue[port.head % QUEUE].delivery, last = first;
  for (uint32_t i = 0; i < port.count; i++) { /* the whole batch is in the queue */
    const shmi_frame_t *frame = &port.queue[(port.head + i) % QUEUE];
    last = frame->delivery;
    port.taken[last % QUEUE] = *frame; /* all count as begun before the first of them can end */
    if ((frame->flags & SHMI_FRAME_MORE) == 0) break;
  }
  port.grows_in_a_row = 0;
  if (port.begun == 0) port.lowest = first;
  port.highest = last;
  port.begun += (uint32_t)(last - first + 1);
  /* The time first: a reader that sees what is executing must not see the last call's start
   * time. */
  atomic_store_explicit(&port.page->executing_since_ns, port.now_ns, memory_order_relaxed);
  publish_executing();
  while (more && port.count > 0) {
    const shmi_frame_t *frame = &port.queue[port.head++ % QUEUE];
    port.count--;
    more = (frame->flags & SHMI_FRAME_MORE) != 0;
    shm_work_t work;
    begin(frame, &work);
    int status = enter_gang(frame, &work);
    uint64_t value = status == SHM_EABORTED ? SHMI_GANG_NOT_BEGUN : 0;
    if (status == SHM_OK) status = find_block(frame, &work);
    if (status != SHM_OK || good == max) {
      shm_helper_finish(frame->delivery, status != SHM_OK ? status : SHM_EBAD_FRAME, value);
      continue;
    }
    works[good] = work;
    port.last_take[good++] = work.delivery;
  }
  port.taken_count = (uint32_t)good;
  if (good > 0) port.serving_slot = works[0].slot;
  return good;
}

/* Whether the whole batch at the head of the queue is here: a batch of more than one burst may have
 * been cut by the end of a read. */
static int batch_is_whole(void) {
  for (uint32_t i = 0; i < port.count; i++) {
    if ((port.queue[(port.head + i) % QUEUE].flags & SHMI_FRAME_MORE) == 0) return 1;
  }
  return 0;
}

/* Whether ready replies may wait until the call at the head of the queue has run: not if it is
 * known to be long, nor if nothing is known about it. */
static int may_hold_replies(void) {
  if (port.now_ns - port.first_reply_ns > HOLD_REPLIES_NS) return 0;
  const shmi_frame_t *next = &port.queue[port.head % QUEUE];
  const shmi_function_t *function =
      shmi_function_table_find((uint64_t)(uintptr_t)next->msg.func_ptr);
  return function != NULL && port.is_short[function->index];
}

int shm_helper_go_on(void) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  if (port.taken_count > 0 && port.deferred_began_ns == 0) {
    uint64_t delivery = port.last_take[port.taken_count - 1];
    port.deferred_began_ns = port.now_ns;
    /* Before the reply: a caller that has it must see that the helper is still busy, or has
     * finished. */
    atomic_store_explicit(&port.page->deferred_since_ns, port.started_ns[delivery % QUEUE],
                          memory_order_relaxed);
    atomic_store_explicit(&port.page->deferred_row, port.function[delivery % QUEUE],
                          memory_order_release);
  }
  return flush();
}

static void end_deferred(void) {
  port.now_ns = shmi_clock_ns();
  shmi_count(&port.page->deferred_ns, port.now_ns - port.deferred_began_ns);
  port.deferred_began_ns = 0;
  atomic_store_explicit(&port.page->deferred_row, 0, memory_order_release);
  shmi_count(&port.page->went_on, 1);
}

static int grow_is_next(void) {
  if (port.grow_count == 0) return 0;
  return port.grows_in_a_row < GROWS_IN_A_ROW || port.count == 0 || !batch_is_whole();
}

int shm_helper_take(shm_work_t *works, int max, int64_t timeout_ns) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  if (port.deferred_began_ns != 0) end_deferred();
  port.taken_count = 0;
  if (max < 1) return SHM_EBAD_SIZE;
  if (port.files_due > 0 || port.clear_count > 0) {
    int status = settle_files();
    if (status != SHM_OK) return status;
  }
  for (;;) {
    if (grow_is_next()) {
      if (take_grow(works)) return 1;
      shm_helper_finish(works[0].delivery, SHM_EBAD_PARAMS, 0);
      continue;
    }
    if (port.count > 0 && batch_is_whole()) {
      if (port.reply_count > 0 && !may_hold_replies() && flush() != SHM_OK) return SHM_ESTOPPED;
      if (port.now_ns - port.last_look_ns > LOOK_AGAIN_NS && !port.stopping) {
        port.last_look_ns = port.now_ns;
        int status = look(0);
        if (status == SHM_EINTR) return status;
        if (grow_is_next()) continue;
      }
      int got = take_batch(works, max);
      if (got > 0) return got;
      continue;
    }
    if (flush() != SHM_OK || port.stopping) return SHM_ESTOPPED;
    int waits_for_ever = timeout_ns < 0 && port.tell_idle_ns == 0;
    int status = look(waits_for_ever || timeout_ns >= 0 ? timeout_ns : (int64_t)port.tell_idle_ns);
    port.now_ns = shmi_clock_ns();
    port.last_look_ns = port.now_ns;
    if (status != SHM_OK) return status;
  }
}

int shm_helper_step(shm_work_t *works, int max, int status, uint64_t value) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  for (uint32_t i = 0; i < port.taken_count; i++) {
    int finished = shm_helper_finish(port.last_take[i], status, value);
    if (finished == SHM_ESTOPPED) return finished;
  }
  return shm_helper_take(works, max, -1);
}

/* To the parent, about this helper rather than a call. */
static int tell(int kind, int status) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  shmi_frame_t frame = {.slot = (uint16_t)port.helper,
                        .kind = (uint8_t)kind,
                        .generation = port.generation,
                        .status = shmi_status_to_wire(status)};
  port.replies[port.reply_count++] = frame;
  return flush();
}

int shm_helper_ready(int status) { return tell(SHMI_FRAME_READY, status); }

/* ---- sessions that come and go ---- */

int shm_helper_tell_idle(uint64_t after_ns) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  port.tell_idle_ns = after_ns < INT64_MAX ? after_ns : INT64_MAX;
  return SHM_OK;
}

int shm_helper_offer_end(void) { return tell(SHMI_FRAME_IDLE, SHM_OK); }

int shm_helper_session(int state) {
  if (port.helper < 0) return SHM_ENOT_HELPER;
  if (state < SHM_SESSION_LOADED || state > SHM_SESSION_LOADING) return SHM_EBAD_CONFIG;
  if (state == SHM_SESSION_LOADED) { /* what was taken has waited for it, and begins only now */
    port.now_ns = shmi_clock_ns();
    for (uint32_t i = 0; i < port.taken_count; i++) {
      port.started_ns[port.last_take[i] % QUEUE] = port.now_ns;
    }
    atomic_store_explicit(&port.page->executing_since_ns, port.now_ns, memory_order_relaxed);
  }
  atomic_store_explicit(&port.page->session, (uint64_t)state, memory_order_release);
  return SHM_OK;
}

int shmi_helper_port_serve(void) {
  static shm_work_t works[SHM_MAX_BATCH];
  int count = shm_helper_ready(SHM_OK);
  if (count != SHM_OK) return 0;
  count = shm_helper_take(works, SHM_MAX_BATCH, -1);
  for (;;) {
    if (count == SHM_EINTR) {
      count = shm_helper_take(works, SHM_MAX_BATCH, -1);
      continue;
    }
    if (count < 0) return count == SHM_ESTOPPED ? 0 : 1;
    int status = SHM_OK;
    for (int i = 0; i < count; i++) {
      const shmi_function_t *function = shmi_function_table_find(works[i].function);
      port.serving_slot = works[i].slot;
      int is_plain = works[i].kind == SHM_WORK_CALL || works[i].kind == SHM_WORK_GANG;
      if (!is_plain || function == NULL || function->func == NULL) {
        status = SHM_EBAD_FUNCTION;
        continue;
      }
      SHMI_FAULT(IN_FUNCTION);
      function->func((void *)(uintptr_t)works[i].params);
    }
    count = shm_helper_step(works, SHM_MAX_BATCH, status, 0);
  }
}

int shmi_helper_port_helper(void) { return port.helper; }

int shmi_helper_port_in_arena(uint64_t address, uint64_t bytes) {
  return port.helper >= 0 && shmi_range_inside(shmi_arena_address(port.serving_slot),
                                               shmi_arena_bytes(), address, bytes);
}

int shmi_helper_port_open(int down_fd, int up_fd, int files_fd, int helper, uint32_t generation) {
  port.down_fd = down_fd;
  port.up_fd = up_fd;
  port.files_fd = files_fd;
  port.helper = helper;
  port.generation = generation;
  port.page = shmi_scoreboard_helper(helper);
  shmi_meet_open(helper);
  port.lowest = 1;
  port.now_ns = shmi_clock_ns();
  return SHM_OK;
}

void shmi_helper_port_close(void) {
  if (port.helper >= 0) flush();
  shmi_descriptor_close(&port.down_fd);
  shmi_descriptor_close(&port.up_fd);
  shmi_descriptor_close(&port.files_fd);
  shmi_descriptor_close(&port.kept_fd);
  port.helper = -1;
}
