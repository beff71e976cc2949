/* port -- see port.h, and port_internal.h for its files. */
#include "child/port_internal.h"

#include <stdlib.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "ipc/pipe.h"
#include "memory/arena.h"

enum { SPARE_ENTRIES = 64 };
enum { CLOSE_NS = 1000000000, CLOSE_LOOK_NS = 1000000 };

/* ---- sending ---- */

static int send_frames(const shmi_frame_t *frames, int count) {
  int sent = 0;
  SHMI_FAULT(BEFORE_REPLY);
  while (sent < count) {
    int got = shmi_pipe_write(shmi_port.request_fd, frames + sent, count - sent);
    if (got > 0) sent += got;
    else if (got != SHM_EINTR) return got == 0 ? SHM_ESYSTEM : got;
  }
  shmi_count(&shmi_port.page->frames_sent, (uint64_t)count);
  SHMI_FAULT(AFTER_REPLY);
  return SHM_OK;
}

static int send_one(const shmi_frame_t *frame) {
  int status = send_frames(frame, 1);
  if (status == SHM_EBROKER_DIED) shmi_port_settle_all(SHM_EBROKER_DIED, 0);
  return status;
}

static int send_cancel(uint64_t sequence) {
  shmi_frame_t frame = {.sequence = sequence, .kind = SHMI_FRAME_CANCEL};
  return send_one(&frame);
}

/* The room that the window's other calls may need is theirs: a submit never waits for the broker. */
void shmi_port_give_up(uint64_t sequence) {
  int others = (int)(shmi_port.window - shmi_port.outstanding);
  if (shmi_pipe_room(shmi_port.request_fd) > others) send_cancel(sequence);
}

/* An address of this process as the broker and its helpers see it; NULL stays NULL. */
static inline uint64_t to_broker_address(uint64_t address) {
  return address != 0 ? address + shmi_port.shift : 0;
}

static uint8_t flags_of(const shm_call_config_t *config) {
  if (config->broadcast) return SHMI_FRAME_BROADCAST;
  return config->gang ? SHMI_FRAME_GANG : 0;
}

/* Whether a thread waited for the last lone call itself: then, it is supposed, for this one, too. */
static uint8_t is_watched(void) {
  return shmi_port.watches && shmi_port.outstanding == 1 ? SHMI_FRAME_WATCHED : 0;
}

static void fill_call(shmi_frame_t *frame, const shm_call_config_t *config, uint64_t params,
                      uint64_t sequence, uint64_t deadline_ns) {
  *frame = (shmi_frame_t){.msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                                  .params = (void *)(uintptr_t)to_broker_address(params)},
                          .sequence = sequence,
                          .pool = config->pool,
                          .kind = SHMI_FRAME_CALL,
                          .priority = config->priority,
                          .flags = flags_of(config) | is_watched(),
                          .rows = config->rows,
                          .batch_key = config->batch_key,
                          .deadline_ns = deadline_ns,
                          .placement = config->placement};
}

static void send_grow(shmi_entry_t *entry, uint64_t token, uint64_t params) {
  shmi_frame_t frame = {.result = {.token = (uint32_t)token, .value = to_broker_address(params)},
                        .sequence = entry->sequence,
                        .kind = SHMI_FRAME_GROW};
  frame.slot = (uint16_t)entry->reply.helper;
  send_one(&frame);
}

/* Before a call is sent: how to spin for it, if it is the only one that is open. */
static shmi_spin_t *note_alone(const shm_call_config_t *config) {
  shmi_spin_t *spin = config->gang ? &shmi_port.gang_spin : &shmi_port.spin;
  int is_alone = shmi_port.outstanding == 1 && spin->cores > 1;
  shmi_port.lone = 0;
  if (!is_alone) return NULL;
  shmi_port.answered_before = __atomic_load_n(shmi_port.answered, __ATOMIC_RELAXED);
  return spin;
}

/* ---- the binding's calls ---- */

int shm_port_number(void) { return shmi_port.open ? (int)shmi_port.epoch + 1 : SHM_ENOT_CHILD; }

/* With the lock held: whether the caller means another port than this one. */
static int is_other(uint32_t number) {
  return !shmi_port.open || (number != 0 && number != shmi_port.epoch + 1);
}

static int check_port(uint32_t number) {
  if (is_other(number)) return SHM_ENOT_RUNNING;
  return shmi_port.broken ? SHM_EBROKER_DIED : SHM_OK;
}

int shm_port_call(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                  shm_reply_t *reply) {
  shm_msg_t msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                   .params = (void *)(uintptr_t)params};
  shmi_entry_t *entry;
  reply->sequence = 0;
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int status = check_port(config->port);
  if (status == SHM_OK) status = shmi_port_entry_take_waiting(&entry, &msg, deadline_ns);
  if (status == SHM_OK) {
    shmi_frame_t frame;
    fill_call(&frame, config, params, entry->sequence, deadline_ns);
    shmi_port.spins = note_alone(config);
    send_one(&frame); /* if the broker is gone, this settles the entry, and the wait returns that */
    status = shmi_port_entry_wait(entry, deadline_ns, reply);
    shmi_port.spins = NULL;
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

/* Writes the addresses into the block. */
static int fill_block(const shm_repeat_t *repeat, const uint64_t arguments[], uint64_t room) {
  shm_block_t *block = (shm_block_t *)(uintptr_t)repeat->params;
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  for (uint64_t i = 0; i < repeat->arguments; i++) {
    uint64_t bytes = repeat->argument_bytes[i];
    uint64_t address = bytes > 0 ? arguments[i] : shmi_port.arena_base; /* none lies anywhere */
    if (!shmi_range_inside(shmi_port.arena_base, shmi_port.arena_bytes, address, bytes)) {
      return SHM_EBAD_PARAMS;
    }
    block->arrays[i] = to_broker_address(address);
  }
  block->result = to_broker_address(room);
  block->result_bytes = repeat->room_bytes;
  return SHM_OK;
}

int shm_port_repeat(const shm_repeat_t *repeat, const uint64_t arguments[], uint64_t room) {
  repeat->reply->sequence = 0;
  int status = fill_block(repeat, arguments, room);
  if (status != SHM_OK) return status;
  status = shm_port_call(&repeat->config, repeat->params, 0, repeat->reply);
  return status == SHM_OK && repeat->reply->value != 0 ? 1 : status;
}

int shm_port_wait(uint64_t sequence, uint64_t deadline_ns, shm_reply_t *reply) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  shmi_entry_t *entry = shmi_port_entry_of(sequence);
  int status = SHM_EBAD_FRAME;
  if (entry != NULL && (entry->state == SHMI_ENTRY_WAITED || entry->state == SHMI_ENTRY_DONE)) {
    status = shmi_port_entry_wait(entry, deadline_ns, reply);
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

int shm_port_abandon(uint64_t sequence) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  shmi_entry_t *entry = shmi_port_entry_of(sequence);
  int status = entry != NULL ? SHM_OK : SHM_EBAD_FRAME;
  if (entry != NULL) {
    int was = entry->state;
    if (was == SHMI_ENTRY_GROWING) send_grow(entry, entry->reply.token, 0);
    if (was == SHMI_ENTRY_DONE && entry->reply.status != SHM_ENEEDS_SPACE) {
      shmi_replies_push(&shmi_port.queued, &entry->reply, &entry->msg);
      shmi_port_entry_free(entry);
      shmi_port_event_signal();
    } else if (entry->state != SHMI_ENTRY_FREE) {
      entry->state = SHMI_ENTRY_QUEUED;
      if (was == SHMI_ENTRY_DONE) shmi_port_entry_settle(entry, 0);
      if (was == SHMI_ENTRY_WAITED) shmi_port_give_up(sequence);
    }
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

int shm_port_submit(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                    uint64_t ticket, uint64_t *sequence) {
  shm_msg_t msg = {.func_ptr = (shm_func_t)(uintptr_t)config->function,
                   .params = (void *)(uintptr_t)params};
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int status = check_port(config->port);
  shmi_entry_t *entry = status == SHM_OK ? shmi_port_entry_take(SHMI_ENTRY_QUEUED, &msg) : NULL;
  if (status == SHM_OK && entry == NULL) status = SHM_EAGAIN;
  if (status == SHM_OK) {
    shmi_frame_t frame;
    entry->ticket = ticket;
    *sequence = entry->sequence;
    fill_call(&frame, config, params, entry->sequence, deadline_ns);
    if (note_alone(config) == &shmi_port.spin) shmi_port.lone = entry->sequence;
    send_one(&frame); /* if the broker is gone, this queues a reply that says so */
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

int shm_port_resubmit(const shm_repeat_t *repeat, const uint64_t arguments[], uint64_t room,
                      uint64_t ticket, uint64_t *sequence) {
  int status = fill_block(repeat, arguments, room);
  if (status != SHM_OK) return status;
  return shm_port_submit(&repeat->config, repeat->params, 0, ticket, sequence);
}

int shm_port_grow(uint64_t sequence, uint64_t token, uint64_t params) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  shmi_entry_t *entry = shmi_port_entry_of(sequence);
  int asks = entry != NULL && entry->state == SHMI_ENTRY_GROWING && entry->reply.token == token;
  int status = asks ? SHM_OK : SHM_EBAD_FRAME;
  if (entry == NULL && shmi_port.broken) status = SHM_EBROKER_DIED;
  if (status == SHM_OK) {
    entry->state = entry->grows_to;
    send_grow(entry, token, params);
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

static int leave_queue(uint64_t sequence, int may_block) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  shmi_entry_t *entry = shmi_port_entry_of(sequence);
  int status = entry != NULL ? SHM_OK : SHM_EBAD_FRAME;
  if (entry != NULL && entry->state != SHMI_ENTRY_DONE && entry->state != SHMI_ENTRY_GROWING) {
    if (may_block) status = send_cancel(sequence);
    else shmi_port_give_up(sequence);
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

int shm_port_cancel(uint64_t sequence) { return leave_queue(sequence, 1); }
int shm_port_give_up(uint64_t sequence) { return leave_queue(sequence, 0); }

static int pop_replies(shm_reply_t *out, int max) {
  int count = 0;
  while (count < max && (shmi_replies_pop(&shmi_port.growing, &out[count], NULL) ||
                         shmi_replies_pop(&shmi_port.queued, &out[count], NULL))) {
    count++;
  }
  shmi_port_event_lower();
  if (shmi_port.queued.count > 0 && !shmi_port.event_is_raised) {
    shmi_port_event_signal(); /* there are more than the caller had room for */
  }
  return count;
}

static shm_reply_t take_one(uint32_t number, shmi_replies_t *queue) {
  shm_reply_t reply = {0};
  pthread_mutex_lock(&shmi_port.lock);
  if (!is_other(number)) {
    shmi_replies_pop(queue, &reply, NULL);
    shmi_port_event_lower();
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return reply;
}

shm_reply_t shm_port_take_end_of(uint32_t number, uint64_t sequence) {
  shm_reply_t reply = {0};
  pthread_mutex_lock(&shmi_port.lock);
  if (!is_other(number)) {
    shmi_replies_take(&shmi_port.queued, &sequence, 1, &reply);
    shmi_port_event_lower();
  }
  pthread_mutex_unlock(&shmi_port.lock);
  return reply;
}

shm_reply_t shm_port_take_end(uint32_t number) { return take_one(number, &shmi_port.queued); }
shm_reply_t shm_port_take_growing(uint32_t number) { return take_one(number, &shmi_port.growing); }

int shm_port_await_reply(uint32_t number, uint64_t sequence, uint64_t deadline_ns, int beside_fd,
                         shm_reply_t *reply) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int status = is_other(number) ? SHM_ENOT_RUNNING
                                : shmi_port_end_wait(sequence, deadline_ns, beside_fd, reply);
  pthread_mutex_unlock(&shmi_port.lock);
  return status;
}

int shm_port_is_near(uint32_t number, uint64_t sequence) {
  if (!shmi_port.open) return 0;
  pthread_mutex_lock(&shmi_port.lock);
  int is_near = !is_other(number) && shmi_port.lone == sequence && shmi_spin_is_near(&shmi_port.spin);
  pthread_mutex_unlock(&shmi_port.lock);
  return is_near;
}

int shm_port_await_end(uint32_t number, uint64_t sequence, uint64_t deadline_ns) {
  return shm_port_await_reply(number, sequence, deadline_ns, -1, NULL);
}

void shm_port_put_back(uint32_t number, const shm_reply_t *reply) {
  static const shm_msg_t none;
  pthread_mutex_lock(&shmi_port.lock);
  if (!is_other(number)) {
    shmi_replies_push(&shmi_port.queued, reply, &none);
    shmi_port_event_signal();
  }
  pthread_mutex_unlock(&shmi_port.lock);
}

int64_t shm_port_await(uint32_t number, int64_t timeout_ns) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int64_t here = is_other(number) ? SHM_ENOT_RUNNING : shmi_port_await_replies(timeout_ns);
  pthread_mutex_unlock(&shmi_port.lock);
  return here;
}

int shm_port_drain(shm_reply_t *out, int max, int64_t timeout_ns) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int64_t here = shmi_port_await_replies(timeout_ns);
  int result = here > 0 ? pop_replies(out, max) : (int)here;
  pthread_mutex_unlock(&shmi_port.lock);
  return result;
}

int shmi_port_claim(const uint64_t sequences[], int count) {
  if (!shmi_port.open) return count > 0 ? 0 : -1;
  pthread_mutex_lock(&shmi_port.lock);
  if (!shmi_port.leading && !shmi_port.broken) shmi_port_lead_once(0, 0, -1);
  int claimed = shmi_replies_take(&shmi_port.queued, sequences, count, NULL);
  pthread_mutex_unlock(&shmi_port.lock);
  return claimed;
}

int shm_port_fd(void) { return shmi_port.open ? shmi_port.reply_fd : SHM_ENOT_CHILD; }

int shm_port_event_fd(void) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int fd = shmi_port_event_fd_make();
  pthread_mutex_unlock(&shmi_port.lock);
  return fd >= 0 ? fd : SHM_ESYSTEM;
}

int shm_port_outstanding(void) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int count = (int)shmi_port.outstanding;
  pthread_mutex_unlock(&shmi_port.lock);
  return count;
}
int shm_port_is_lost(void) { return shmi_port.open && shmi_port_has_ended(); }
int shm_port_window(void) { return shmi_port.open ? (int)shmi_port_window_now() : SHM_ENOT_CHILD; }

/* ---- shm_send_msgs and shm_read_msgs ---- */

int shmi_port_send(const shm_msg_t *msgs, int count, uint32_t limit) {
  static const shm_call_config_t plain = {.rows = 1};
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int status = SHM_OK, sent = 0;
  while (sent < count && status == SHM_OK) {
    shmi_frame_t frames[SHMI_PIPE_BURST];
    int piece = 0;
    while (piece < SHMI_PIPE_BURST && sent + piece < count &&
           shmi_port.messages_outstanding < limit) {
      const shm_msg_t *msg = &msgs[sent + piece];
      shmi_entry_t *entry = shmi_port_entry_take(SHMI_ENTRY_MESSAGE, msg);
      if (entry == NULL) break;
      shmi_port.messages_outstanding++;
      shmi_port.lone = 0;
      fill_call(&frames[piece], &plain, (uint64_t)(uintptr_t)msg->params, entry->sequence, 0);
      frames[piece++].msg.func_ptr = msg->func_ptr;
    }
    if (piece == 0) break;
    status = send_frames(frames, piece);
    if (status == SHM_EBROKER_DIED) shmi_port_settle_all(SHM_EBROKER_DIED, 0);
    sent += piece;
  }
  pthread_mutex_unlock(&shmi_port.lock);
  if (status != SHM_OK) return status;
  return sent > 0 || count == 0 ? sent : SHM_EWINDOW;
}

int shmi_port_receive(shm_msg_t *msgs, int *statuses, int max) {
  if (!shmi_port.open) return SHM_ENOT_CHILD;
  pthread_mutex_lock(&shmi_port.lock);
  int status = SHM_OK, count = 0;
  uint32_t epoch = shmi_port.epoch;
  while (shmi_port.messages.count == 0 && status == SHM_OK) {
    if (shmi_port.messages_outstanding == 0) {
      status = shmi_port.broken ? SHM_EBROKER_DIED : SHM_EAGAIN;
    } else if (!shmi_port.leading) {
      status = shmi_port_lead_once(-1, 0, -1);
    } else {
      /* Another thread reads, and may read this thread's answer: look again when it is done. */
      uint32_t seen = __atomic_load_n(&shmi_port.room_futex, __ATOMIC_ACQUIRE);
      shmi_port.room_waiters++;
      pthread_mutex_unlock(&shmi_port.lock);
      status = shmi_port_futex_wait(&shmi_port.room_futex, seen, 0);
      if (shmi_port_lock_again(epoch)) shmi_port.room_waiters--;
      else status = SHM_ENOT_RUNNING;
    }
    if (status == SHM_EINTR) status = SHM_OK; /* a C program's handlers have run already */
  }
  while (status == SHM_OK && count < max) {
    shm_reply_t reply;
    if (!shmi_replies_pop(&shmi_port.messages, &reply, msgs != NULL ? &msgs[count] : NULL)) break;
    statuses[count++] = reply.status;
  }
  /* This thread may have been woken to lead, and has its answer instead. */
  if (!shmi_port.leading && status != SHM_ENOT_RUNNING) shmi_port_lead_pass();
  pthread_mutex_unlock(&shmi_port.lock);
  return status != SHM_OK ? status : count;
}

/* ---- opening and closing ---- */

int shmi_port_open(int request_fd, int reply_fd, uint32_t window, int child) {
  pthread_mutex_lock(&shmi_port.lock);
  /* More than the window, for calls that are done but not yet taken by their threads. */
  uint32_t wanted = window + SPARE_ENTRIES;
  shmi_port.entry_count = wanted < SHMI_ENTRY_MASK ? wanted : SHMI_ENTRY_MASK;
  shmi_port.entries = calloc(shmi_port.entry_count, sizeof *shmi_port.entries);
  if (shmi_port.entries == NULL) {
    pthread_mutex_unlock(&shmi_port.lock);
    return SHM_ESYSTEM;
  }
  for (uint32_t i = shmi_port.entry_count; i > 0; i--) {
    shmi_port.entries[i - 1].next = shmi_port.free_list;
    shmi_port.free_list = i;
  }
  shmi_port.request_fd = request_fd;
  shmi_port.reply_fd = reply_fd;
  shmi_port.window = window;
  shmi_port.page = shmi_scoreboard_child(child);
  shmi_port.child = child;
  shmi_port.arena_base = shmi_arena_address(child);
  shmi_port.arena_bytes = shmi_arena_bytes();
  shmi_port.shift = (uint64_t)shmi_arena_shift();
  shmi_port.answered = &shmi_scoreboard()->child_stats[child].answered;
  shmi_spin_open(&shmi_port.spin, SHMI_SPIN_NS);
  shmi_spin_open(&shmi_port.gang_spin, SHMI_SPIN_FOR_GANG_NS);
  shmi_port.broken = 0;
  shmi_port.open = 1;
  pthread_mutex_unlock(&shmi_port.lock);
  return SHM_OK;
}

/* Release everything. No thread is inside any more; one that was left behind will touch nothing. */
static void empty(void) {
  shmi_port.epoch++;
  shmi_descriptor_close(&shmi_port.request_fd);
  shmi_descriptor_close(&shmi_port.reply_fd);
  shmi_descriptor_close(&shmi_port.event_fd);
  shmi_port.event_is_raised = 0;
  shmi_descriptor_close(&shmi_port.tick_fd);
  free(shmi_port.entries);
  shmi_port.entries = NULL;
  shmi_replies_free(&shmi_port.queued);
  shmi_replies_free(&shmi_port.growing);
  shmi_replies_free(&shmi_port.messages);
  shmi_port.window = shmi_port.entry_count = 0;
  shmi_port.free_list = shmi_port.followers = 0;
  shmi_port.outstanding = shmi_port.messages_outstanding = 0;
  shmi_port.room_waiters = shmi_port.drainers = 0;
  shmi_port.leading = shmi_port.heeds = 0;
}

/* Make every waiting thread return: its call has ended. A thread that does not return in time is
 * left behind, with the descriptors that it reads from, whose numbers must not be reused, and with
 * the table of entries. */
static void end_waits(void) {
  uint64_t until_ns = shmi_clock_ns() + CLOSE_NS;
  shmi_port_settle_all(shmi_port_has_ended() ? SHM_EBROKER_DIED : SHM_ENOT_RUNNING, 0);
  while (shmi_port.leading || shmi_port.followers != 0 || shmi_port.room_waiters > 0 ||
         shmi_port.drainers > 0) {
    if (shmi_clock_ns() > until_ns) {
      shmi_port.entries = NULL;
      if (shmi_port.leading) shmi_port.reply_fd = shmi_port.tick_fd = -1;
      break;
    }
    pthread_mutex_unlock(&shmi_port.lock);
    struct timespec moment = {.tv_nsec = CLOSE_LOOK_NS};
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&shmi_port.lock);
  }
}

void shmi_port_close(void) {
  if (!shmi_port.open) return;
  pthread_mutex_lock(&shmi_port.lock);
  shmi_port.open = 0;
  end_waits();
  empty();
  pthread_mutex_unlock(&shmi_port.lock);
}

void shmi_port_disown(void) {
  /* A thread that was not forked may hold the lock. */
  shmi_port.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  if (!shmi_port.open) return;
  shmi_port.open = 0;
  shmi_port.broken = 1;
  empty();
}

void shmi_port_heed_signals(void) {
  shmi_port.heeds = 1;
  shmi_port.tick_is_set = 0;
  shmi_port.tick_fd = shmi_descriptor_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
}

int shmi_port_is_open(void) { return shmi_port.open; }

int shmi_port_wait_ready(void) {
  shmi_frame_t frame;
  for (;;) {
    if (shmi_port.heeds) {
      int ready = shmi_port_wait_for_reply(shmi_port.reply_fd, shmi_port.tick_fd, -1);
      if (ready == SHM_EINTR) return SHM_EINTR;
    }
    int got = shmi_pipe_read(shmi_port.reply_fd, &frame, 1);
    if (got == SHM_EINTR) return SHM_EINTR;
    if (got < 0) return got;
    if (got == 1 && frame.kind == SHMI_FRAME_READY) return shmi_status_from_wire(frame.status);
  }
}
