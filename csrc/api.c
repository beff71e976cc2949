/* api -- the public interface: each call is a few lines over a wing.
 *
 * Owns: how many messages of shm_send_msg may be open, and the blocks of calls that timed out: a
 * helper may still write to those, so a shm_free of one takes effect at the late answer. Must
 * never: decide anything that a file below could decide.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "ipc/adaptive_spin.h"
#include "child/attach.h"
#include "child/heap.h"
#include "child/port.h"
#include "helper/helper_port.h"
#include "ipc/function_table.h"
#include "ipc/scoreboard.h"
#include "ipc/word.h"
#include "memory/arena.h"
#include "memory/kept_file.h"
#include "process/role.h"

/* ---- before a launch ---- */

int shm_register_function(const shm_function_config_t *config, uint64_t *row) {
  const shmi_function_t *made;
  int status = shmi_function_table_add(config, &made);
  if (status == SHM_OK && row != NULL) {
    *row = config->func != NULL ? (uint64_t)(uintptr_t)config->func : (uint64_t)(uintptr_t)made;
  }
  return status;
}

int shm_register(shm_func_t func, const char *name, size_t params_size) {
  if (func == NULL) return SHM_EBAD_FUNCTION;
  shm_function_config_t config = {.name = name, .func = func, .params_size = params_size};
  return shm_register_function(&config, NULL);
}

const char *shm_function_name(uint64_t row) {
  if (shmi_attach_is_client()) return shmi_scoreboard_function_name(row);
  const shmi_function_t *function = shmi_function_table_find(row);
  return function != NULL ? function->name : NULL;
}

void shm_dump_arenas(int wanted) { shmi_arena_dump(wanted); }

void shm_allow_spinning(int allowed) { shmi_spin_allow(allowed); }

uint32_t shm_word_wait(void *word, int64_t timeout_ns) { return shmi_word_wait(word, timeout_ns); }

int shm_word_say(void *word, uint32_t what) { return shmi_word_say(word, what); }

/* ---- launching C programs ---- */

enum { SCRATCH_BYTES = 4 << 20 }; /* of each helper: pages that are never used take none */

static const shm_main_bundle_t *launch_bundles;

/* Flush stdio before each fork and at a role's end, so that each process writes its own output
 * once. A role runs none of the exit handlers of the program that it was forked from. */
static int flush_and_fork(void) {
  fflush(NULL);
  return fork();
}

static void flush_and_exit(int status) {
  fflush(NULL);
  _exit(status);
}

static int run_bundle(int child, uint32_t generation) {
  (void)generation;
  return launch_bundles[child].main_func(launch_bundles[child].arg);
}

int shm_launch(int child_cnt, const shm_main_bundle_t bundles[], size_t shm_block_size,
               int helper_cnt) {
  if (bundles == NULL) {
    shmi_error_detail_set("the list of bundles is NULL");
    return SHM_EBAD_CONFIG;
  }
  shm_config_t config = {.child_count = child_cnt,
                         .helper_count = helper_cnt,
                         .pool_count = 1,
                         .arena_bytes = shm_block_size,
                         .scratch_bytes = SCRATCH_BYTES,
                         .window = SHM_MAX_WINDOW,
                         .trace_records = 65536};
  for (int i = 0; i < child_cnt && child_cnt <= SHM_MAX_CHILDREN; i++) {
    if (bundles[i].main_func == NULL) {
      shmi_error_detail_set("bundle %d has no main_func", i);
      return SHM_EBAD_CONFIG;
    }
  }
  shm_host_t host = {.fork = flush_and_fork, .run_child = run_bundle, .exit = flush_and_exit};
  launch_bundles = bundles;
  return shm_run(&config, &host);
}

/* ---- messages ---- */

static uint32_t message_window = 1;

int shm_set_window(int messages) {
  if (!shmi_port_is_open()) return SHM_ENOT_CHILD;
  if (messages < 1 || messages > shm_port_window()) return SHM_EBAD_SIZE;
  message_window = (uint32_t)messages;
  return SHM_OK;
}

int shm_send_msgs(const shm_msg_t msgs[], int count) {
  return shmi_port_send(msgs, count, message_window);
}

int shm_send_msg(const shm_msg_t *msg) {
  int sent = shmi_port_send(msg, 1, message_window);
  return sent == 1 ? SHM_OK : sent;
}

int shm_read_msgs(shm_msg_t msgs[], int statuses[], int max) {
  return shmi_port_receive(msgs, statuses, max);
}

int shm_read_msg(shm_msg_t *msg) {
  int status = SHM_OK;
  int got = shmi_port_receive(msg, &status, 1);
  return got == 1 ? status : got;
}

/* ---- calls with a deadline, and the blocks they leave behind ---- */

typedef struct late { /* a block of a call that timed out */
  struct late *next;
  uint64_t sequence;
  void *block;
  int free_it; /* its owner freed it meanwhile */
} late_t; /* several calls may have timed out on one block: it is freed after the last of them */

static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static late_t *late_calls;

static late_t *late_of(const void *block) {
  late_t *call = late_calls;
  while (call != NULL && call->block != block) call = call->next;
  return call;
}

static void late_settle(void) {
  enum { AT_ONCE = 64 };
  for (int claimed = 0; claimed >= 0;) {
    uint64_t sequences[AT_ONCE];
    int count = 0;
    for (late_t *call = late_calls; call != NULL && count < AT_ONCE; call = call->next) {
      sequences[count++] = call->sequence;
    }
    if (count == 0 || (claimed = shmi_port_claim(sequences, count)) < 0) return;
    late_t **at = &late_calls;
    while ((*at)->sequence != sequences[claimed]) at = &(*at)->next;
    late_t *over = *at;
    __atomic_store_n(at, over->next, __ATOMIC_RELEASE);
    if (over->free_it && late_of(over->block) == NULL) shmi_heap_free(over->block);
    free(over);
  }
}

int shm_free(void *ptr) {
  if (__atomic_load_n(&late_calls, __ATOMIC_ACQUIRE) == NULL) return shmi_heap_free(ptr);
  pthread_mutex_lock(&late_lock);
  late_settle();
  late_t *held = late_of(ptr);
  int status = held != NULL && held->free_it ? SHM_EBAD_FREE : SHM_OK; /* freed twice */
  for (late_t *call = held; call != NULL; call = call->next) {
    if (call->block == ptr) call->free_it = 1;
  }
  pthread_mutex_unlock(&late_lock);
  return held != NULL ? status : shmi_heap_free(ptr);
}

void *shm_realloc(void *ptr, size_t size) {
  pthread_mutex_lock(&late_lock);
  if (late_calls != NULL) late_settle();
  int is_late = ptr != NULL && late_of(ptr) != NULL;
  pthread_mutex_unlock(&late_lock);
  if (!is_late) return shmi_heap_realloc(ptr, size);
  /* A helper may still write to it: it stays where it is, as with shm_free. */
  void *made = shm_malloc(size);
  size_t bytes = shm_usable_size(ptr);
  if (made != NULL) {
    memcpy(made, ptr, bytes < size ? bytes : size);
    shm_free(ptr);
  }
  return made;
}

int shm_call(const shm_msg_t *msg, int64_t timeout_ns) {
  shm_call_config_t config = {.function = (uint64_t)(uintptr_t)msg->func_ptr, .rows = 1};
  uint64_t deadline_ns = timeout_ns < 0 ? 0 : shmi_clock_ns() + (uint64_t)timeout_ns;
  shm_reply_t reply;
  int status = shm_port_call(&config, (uint64_t)(uintptr_t)msg->params, deadline_ns, &reply);
  while (status == SHM_EINTR || (status == SHM_ENEEDS_SPACE && reply.sequence == 0)) {
    if (status == SHM_ENEEDS_SPACE) sched_yield(); /* for calls of the host: it serves them */
    status = reply.sequence != 0
                 ? shm_port_wait(reply.sequence, deadline_ns, &reply)
                 : shm_port_call(&config, (uint64_t)(uintptr_t)msg->params, deadline_ns, &reply);
  }
  pthread_mutex_lock(&late_lock);
  late_settle();
  late_t *call = status == SHM_ETIMEOUT && reply.sequence != 0 ? malloc(sizeof *call) : NULL;
  if (call != NULL) {
    /* Using a block in a call after freeing it is the caller's mistake; it stays freed. */
    late_t *other = late_of(msg->params);
    *call = (late_t){.next = late_calls,
                     .sequence = reply.sequence,
                     .block = msg->params,
                     .free_it = other != NULL && other->free_it};
    __atomic_store_n(&late_calls, call, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&late_lock);
  return status;
}

/* ---- who am I, what is where ---- */

int shm_get_helper_id(void) {
  int helper = shmi_helper_port_helper();
  return helper >= 0 ? helper : SHM_ENOT_HELPER;
}

int shm_get_child_id(void) {
  return shmi_role() == SHM_ROLE_CHILD ? shmi_role_index() : SHM_ENOT_CHILD;
}

int shm_broadcast_make(uint64_t bytes) { return shmi_kept_file_make(bytes); }
int shm_broadcast_seal(int fd) { return shmi_kept_file_seal(fd); }
void shm_broadcast_close(int fd) { shmi_descriptor_close(&fd); }
uint64_t shm_broadcast_bytes(int fd) { return shmi_kept_file_bytes(fd); }
void *shm_broadcast_map(int fd, uint64_t bytes) { return shmi_kept_file_map(fd, bytes); }
void shm_broadcast_unmap(void *at, uint64_t bytes) { shmi_kept_file_unmap(at, bytes); }

int shm_in_arena(const void *ptr, size_t bytes) {
  return shmi_helper_port_in_arena((uint64_t)(uintptr_t)ptr, bytes);
}

int shm_check_memory(uint64_t bytes) { return shmi_arena_check_memory(bytes); }
uint64_t shm_arena_base(int child) { return shmi_arena_address(child); }
uint64_t shm_arena_bytes(void) { return shmi_arena_bytes(); }
int64_t shm_arena_shift(void) { return shmi_arena_shift(); }
uint64_t shm_scratch_base(int helper) { return shmi_arena_scratch_address(helper); }

uint64_t shm_arena_version(int child) { return shmi_arena_version(child); }

uint64_t shm_reservation_base(void) {
  uint64_t bytes;
  return shmi_arena_reservation(&bytes);
}

uint64_t shm_reservation_bytes(void) {
  uint64_t bytes;
  shmi_arena_reservation(&bytes);
  return bytes;
}
