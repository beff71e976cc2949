/* process_table -- see process_table.h. */
#include "broker/process_table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/fault.h"
#include "base/passing.h"
#include "broker/poll_set.h"
#include "child/heap.h"
#include "child/port.h"
#include "helper/helper_port.h"
#include "ipc/attach_handshake.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"
#include "process/role.h"

enum { EVENTS = 64 };

enum { WATCHED_HELPER, WATCHED_CHILD, WATCHED_CLIENT };

typedef struct helper {
  shmi_process_t process;
  uint32_t generation;
  int was_let_go;
  int is_wanted;
} helper_t;

typedef struct child {
  shmi_process_t process;
  enum shmi_child_kind kind;
  int is_over;
  uint32_t uid;                         /* of a client: what the kernel says */
  char program[SHMI_ATTACH_NAME_BYTES]; /* of a client: what it says itself */
} child_t;

/* Of the parent, while it runs; a role that was just forked still reads it. */
static struct {
  shm_config_t config;
  shm_host_t host;
  const shmi_process_observer_t *observer;
  shmi_dispatch_t *dispatch;
  shmi_poll_set_t poll_set;
  helper_t *helpers;
  child_t *children;
  shmi_alive_t alive;
} table = {.poll_set = {.fd = -1}};

void shmi_process_table_report(shm_event_t event) {
  if (table.host.on_event != NULL) table.host.on_event(&event);
}

void shmi_process_table_observe(const shmi_process_observer_t *observer) {
  table.observer = observer;
}

const shm_config_t *shmi_process_table_config(void) { return &table.config; }
const shm_host_t *shmi_process_table_host(void) { return &table.host; }
shmi_dispatch_t *shmi_process_table_dispatch(void) { return table.dispatch; }
shmi_alive_t shmi_process_table_alive(void) { return table.alive; }

/* ---- a role's whole life, in the new process ---- */

static _Noreturn void run_helper(int index, pid_t parent, int down_fd, int up_fd, int files_fd) {
  uint32_t generation = table.helpers[index].generation;
  int ends[3] = {down_fd, up_fd, files_fd};
  int status = shmi_role_begin(SHM_ROLE_HELPER, index, parent, ends, 3);
  if (status == SHM_OK) status = shmi_helper_port_open(down_fd, up_fd, files_fd, index, generation);
  if (status != SHM_OK) shmi_role_end(&table.host, 1);
  SHMI_FAULT_ROLE(SHM_ROLE_HELPER, index, generation);
  int code = table.host.run_helper != NULL ? table.host.run_helper(index, generation)
                                          : shmi_helper_port_serve();
  shmi_helper_port_close();
  shmi_role_end(&table.host, code);
}

static _Noreturn void run_child(int index, pid_t parent, int request_fd, int reply_fd,
                                uint32_t window, uint32_t generation) {
  int ends[2] = {request_fd, reply_fd};
  int status = shmi_role_begin(SHM_ROLE_CHILD, index, parent, ends, 2);
  if (status == SHM_OK) status = shmi_arena_populate(index);
  if (status == SHM_OK) status = shmi_port_open(request_fd, reply_fd, window, index);
  if (status == SHM_OK) {
    status = shmi_heap_open(shmi_arena_address(index), shmi_arena_bytes(), index);
  }
  if (status != SHM_OK) shmi_role_end(&table.host, 1);
  if (table.host.on_signal != NULL) shmi_port_heed_signals();
  SHMI_FAULT_ROLE(SHM_ROLE_CHILD, index, generation);
  shmi_role_end(&table.host,
                table.host.run_child != NULL ? table.host.run_child(index, generation) : 0);
}

/* ---- forking roles, in the parent ---- */

int shmi_process_table_watch(int fd, int client) {
  return shmi_poll_set_add(&table.poll_set, fd, SHMI_POLL_READABLE, WATCHED_CLIENT, client);
}

/* Before the descriptor is closed. Whoever was forked meanwhile may still have a copy of it, and
 * what comes there would be told for as long: of whoever is in that place by then. */
void shmi_process_table_unwatch(int fd) { shmi_poll_set_remove(&table.poll_set, fd); }

static int watch(const shmi_process_t *process, int kind, int index) {
  return shmi_poll_set_add(&table.poll_set, process->pidfd, SHMI_POLL_READABLE, kind, index);
}

/* It is watched no more, and its number may be another's. */
static void forget(shmi_process_t *process) {
  shmi_process_table_unwatch(process->pidfd);
  shmi_process_forget(process);
}

/* Whether a process that is watched has ended. */
static int has_ended(shmi_process_t *process, int kind, int index, int *exit_status) {
  shmi_process_table_unwatch(process->pidfd);
  if (shmi_process_reap(process, 0, exit_status)) return 1;
  if (process->pid != 0) watch(process, kind, index);
  return 0;
}

int shmi_process_table_two_pipes(int towards[2], int from[2], int *capacity) {
  int other = 0;
  int status = shmi_pipe_make(towards, 2, capacity);
  if (status != SHM_OK) return status;
  status = shmi_pipe_make(from, 1, &other);
  if (status != SHM_OK) {
    shmi_descriptor_close(&towards[0]);
    shmi_descriptor_close(&towards[1]);
    return status;
  }
  if (other < *capacity) *capacity = other;
  return status;
}

static void close_ends(int towards[2], int from[2]) {
  for (int end = 0; end < 2; end++) {
    shmi_descriptor_close(&towards[end]);
    shmi_descriptor_close(&from[end]);
  }
}

/* The end of a process that cannot be watched would never be noticed: so it ends here. */
static void end_unwatched(shmi_process_t *process) {
  int exit_status;
  shmi_error_detail_errno("watching a new process");
  shmi_process_signal(process, SIGKILL);
  shmi_process_reap(process, 1, &exit_status);
}

int shmi_process_table_start_helper(int index) {
  helper_t *helper = &table.helpers[index];
  int down[2], up[2], files[2], capacity;
  int status = shmi_process_table_two_pipes(down, up, &capacity);
  if (status == SHM_OK) {
    status = shmi_passing_make(files);
    if (status != SHM_OK) close_ends(down, up);
  }
  if (status != SHM_OK) {
    shmi_error_detail_errno("making a helper's pipes");
    return status;
  }
  shmi_scoreboard_reset_helper(index);
  helper->generation++;
  helper->was_let_go = 0;
  pid_t parent = getpid();
  int forked = shmi_process_fork(table.host.fork, &helper->process);
  if (forked == 0) {
    shmi_descriptor_close(&down[1]);
    shmi_descriptor_close(&up[0]);
    shmi_descriptor_close(&files[0]);
    run_helper(index, parent, down[0], up[1], files[1]);
  }
  shmi_descriptor_close(&down[0]);
  shmi_descriptor_close(&up[1]);
  shmi_descriptor_close(&files[1]);
  if (forked < 0) {
    shmi_descriptor_close(&down[1]);
    shmi_descriptor_close(&up[0]);
    shmi_descriptor_close(&files[0]);
    return forked;
  }
  table.alive.helpers++;
  status = shmi_dispatch_add_helper(table.dispatch, index, down[1], up[0], files[0],
                                    helper->process.pid, helper->generation);
  if (status == SHM_OK) status = watch(&helper->process, WATCHED_HELPER, index);
  if (status != SHM_OK) {
    shmi_victim_t none;
    end_unwatched(&helper->process);
    shmi_dispatch_remove_helper(table.dispatch, index, &none);
    table.alive.helpers--;
    return status;
  }
  if (helper->generation > 1) shmi_scoreboard()->broker->helper_respawns++;
  table.observer->helper_started(index);
  return SHM_OK;
}

int shmi_process_table_start_child(int index) {
  child_t *child = &table.children[index];
  int reply[2], request[2], capacity;
  int status = shmi_process_table_two_pipes(reply, request, &capacity);
  if (status != SHM_OK) {
    shmi_error_detail_errno("making a child's pipes");
    return status;
  }
  uint32_t window = shmi_process_table_window(table.config.window, capacity);
  uint32_t generation = shmi_dispatch_child_generation(table.dispatch, index) + 1;
  pid_t parent = getpid();
  int forked = shmi_process_fork(table.host.fork, &child->process);
  if (forked == 0) {
    shmi_descriptor_close(&reply[1]);
    shmi_descriptor_close(&request[0]);
    run_child(index, parent, request[1], reply[0], window, generation);
  }
  shmi_descriptor_close(&reply[0]);
  shmi_descriptor_close(&request[1]);
  if (forked < 0) {
    shmi_descriptor_close(&reply[1]);
    shmi_descriptor_close(&request[0]);
    return forked;
  }
  child->kind = SHMI_CHILD_FORKED;
  child->is_over = 0;
  table.alive.children++;
  status = shmi_dispatch_add_child(table.dispatch, index, request[0], reply[1], child->process.pid);
  if (status == SHM_OK) status = watch(&child->process, WATCHED_CHILD, index);
  if (status != SHM_OK) {
    end_unwatched(&child->process);
    shmi_dispatch_remove_child(table.dispatch, index);
    shmi_process_table_child_gone(index, 1);
    return status;
  }
  table.observer->child_started(index);
  return SHM_OK;
}

int shmi_process_table_admit_caller(pid_t caller, int request_fd, int reply_fd) {
  child_t *first = &table.children[0];
  int status = shmi_process_open(caller, &first->process);
  if (status == SHM_OK) status = watch(&first->process, WATCHED_CHILD, 0);
  if (status != SHM_OK) return status;
  first->kind = SHMI_CHILD_CALLER;
  table.alive.children = 1;
  return shmi_dispatch_add_child(table.dispatch, 0, request_fd, reply_fd, caller);
}

int shmi_process_table_admit_client(int index, shmi_process_t *client, uint32_t uid,
                                    const char *program, int request_fd, int reply_fd) {
  child_t *child = &table.children[index];
  *child = (child_t){.process = *client, .kind = SHMI_CHILD_CLIENT, .uid = uid};
  strncpy(child->program, program, sizeof child->program - 1);
  int status = shmi_dispatch_add_child(table.dispatch, index, request_fd, reply_fd, client->pid);
  if (status == SHM_OK) status = watch(&child->process, WATCHED_CHILD, index);
  int is_own = uid == geteuid() || uid == 0;
  shmi_dispatch_let_broadcast(table.dispatch, index, is_own || table.config.group_may_broadcast);
  if (status != SHM_OK) {
    shmi_dispatch_remove_child(table.dispatch, index);
    shmi_process_forget(&child->process);
    child->is_over = 1;
    return status;
  }
  table.alive.clients++;
  table.observer->child_started(index);
  return SHM_OK;
}

const char *shmi_process_table_client(int index, uint32_t *uid) {
  const child_t *child = &table.children[index];
  if (child->kind != SHMI_CHILD_CLIENT || child->process.pid == 0) return NULL;
  *uid = child->uid;
  return child->program;
}

int shmi_process_table_free_slot(void) {
  for (int i = table.config.child_count; i < table.config.slot_count; i++) {
    int has_peer = shmi_dispatch_child_state(table.dispatch, i) != SHMI_PEER_NONE;
    if (table.children[i].process.pid == 0 && !has_peer) return i;
  }
  return -1;
}

int shmi_process_table_frees_a_slot(void) {
  for (int i = table.config.child_count; i < table.config.slot_count; i++) {
    const shmi_process_t *process = &table.children[i].process;
    if (process->pid == 0 || shmi_process_has_ended(process)) return 1;
    if (shmi_dispatch_child_has_left(table.dispatch, i)) return 1;
  }
  return 0;
}

enum shmi_child_kind shmi_process_table_child_kind(int index) {
  return table.children[index].kind;
}

int shmi_process_table_child_pid(int index) { return table.children[index].process.pid; }
int shmi_process_table_child_is_over(int index) { return table.children[index].is_over; }

int shmi_process_table_release_child(int index) {
  int pid = table.children[index].process.pid;
  forget(&table.children[index].process);
  return pid;
}

void shmi_process_table_child_gone(int index, int for_good) {
  child_t *child = &table.children[index];
  child->is_over = for_good;
  if (child->kind == SHMI_CHILD_CLIENT) table.alive.clients--;
  else table.alive.children--;
}

void shmi_process_table_retire(void) { table.config.idle_ns = 1; } /* 0 would be: never */

/* ---- helpers: more, and fewer ---- */

int shmi_process_table_helper_pid(int index) { return table.helpers[index].process.pid; }
uint32_t shmi_process_table_helper_generation(int index) { return table.helpers[index].generation; }
int shmi_process_table_helper_is_wanted(int index) { return table.helpers[index].is_wanted; }
int shmi_process_table_helper_was_let_go(int index) { return table.helpers[index].was_let_go; }

int shmi_process_table_wanted(int pool, int *most) {
  int wanted = 0;
  *most = 0;
  for (int i = 0; i < table.config.helper_count; i++) {
    if (table.config.helper_pool[i] != pool) continue;
    ++*most;
    wanted += table.helpers[i].is_wanted;
  }
  return *most > 0 ? wanted : -1;
}

static void let_helper_go(int index) {
  table.helpers[index].is_wanted = 0;
  table.helpers[index].was_let_go = table.helpers[index].process.pid != 0;
  shmi_dispatch_retire_helper(table.dispatch, index);
}

static int want_helper(int index) {
  helper_t *helper = &table.helpers[index];
  helper->is_wanted = 1;
  table.observer->helper_wanted(index);
  /* One that was let go and has not ended yet: the next starts when it has. */
  return helper->process.pid != 0 ? SHM_OK : shmi_process_table_start_helper(index);
}

int shmi_process_table_scale(int pool, int helpers) {
  int most, before = shmi_process_table_wanted(pool, &most), status = SHM_OK;
  int at = before;
  for (int i = 0; i < table.config.helper_count && at < helpers && status == SHM_OK; i++) {
    if (table.config.helper_pool[i] != pool || table.helpers[i].is_wanted) continue;
    status = want_helper(i);
    if (status == SHM_OK) at++;
    else table.helpers[i].is_wanted = 0;
  }
  for (int i = table.config.helper_count - 1; i >= 0 && at > helpers; i--) {
    if (table.config.helper_pool[i] != pool || !table.helpers[i].is_wanted) continue;
    let_helper_go(i);
    at--;
  }
  if (at != before) {
    shmi_process_table_report((shm_event_t){
        .kind = SHM_EVENT_SCALED, .index = pool, .attempts = at, .deaths = before});
  }
  return status;
}

void shmi_process_table_pause(int pool, int on) {
  if (!shmi_dispatch_pause_pool(table.dispatch, pool, on)) return; /* it was so before */
  shmi_process_table_report(
      (shm_event_t){.kind = on ? SHM_EVENT_PAUSED : SHM_EVENT_RESUMED, .index = pool});
}

/* ---- signalling and reaping ---- */

void shmi_process_table_signal_helper(int index, int signal) {
  shmi_process_signal(&table.helpers[index].process, signal);
}

int shmi_process_table_signal_child(int index, int signal) {
  const child_t *child = &table.children[index];
  if (child->kind != SHMI_CHILD_FORKED || child->process.pid == 0) return 0;
  shmi_process_signal(&child->process, signal);
  return 1;
}

static void helper_is_readable(int index) {
  helper_t *helper = &table.helpers[index];
  int exit_status = 0, pid = helper->process.pid, was_let_go = helper->was_let_go;
  if (!has_ended(&helper->process, WATCHED_HELPER, index, &exit_status)) return;
  helper->was_let_go = 0;
  table.alive.helpers--;
  table.observer->helper_ended(index, pid, exit_status, was_let_go);
}

static void child_is_readable(int index) {
  child_t *child = &table.children[index];
  int exit_status = 0, pid = child->process.pid;
  if (child->kind == SHMI_CHILD_FORKED) {
    if (!has_ended(&child->process, WATCHED_CHILD, index, &exit_status)) return;
  } else {
    if (pid == 0) return;
    forget(&child->process);
  }
  table.observer->child_ended(index, pid, exit_status);
}

void shmi_process_table_poll(void) {
  struct epoll_event events[EVENTS];
  int count = shmi_poll_set_wait(&table.poll_set, events, EVENTS, 0, NULL);
  for (int i = 0; i < count; i++) {
    int index = shmi_poll_index(&events[i]);
    switch (shmi_poll_kind(&events[i])) {
      case WATCHED_HELPER: helper_is_readable(index); break;
      case WATCHED_CHILD: child_is_readable(index); break;
      default: table.observer->client_readable(index);
    }
  }
}

/* ---- making and ending ---- */

int shmi_process_table_open(const shm_config_t *config, const shm_host_t *host) {
  table.config = *config;
  table.host = *host;
  table.observer = NULL;
  table.alive = (shmi_alive_t){0};
  int status = shmi_poll_set_open(&table.poll_set);
  table.helpers = calloc((size_t)config->helper_count, sizeof *table.helpers);
  table.children = calloc((size_t)config->slot_count, sizeof *table.children);
  if (status != SHM_OK || table.helpers == NULL || table.children == NULL) return SHM_ESYSTEM;
  for (int i = 0; i < config->helper_count; i++) {
    table.helpers[i].process.pidfd = -1;
    table.helpers[i].is_wanted = !config->helper_absent[i];
  }
  for (int i = 0; i < config->slot_count; i++) table.children[i].process.pidfd = -1;
  shmi_dispatch_config_t dispatch = {.children = config->slot_count,
                                     .helpers = config->helper_count,
                                     .pools = config->pool_count,
                                     .window = config->window,
                                     .helper_pool = table.config.helper_pool,
                                     .min_credit = table.config.min_credit,
                                     .helper_absent = table.config.helper_absent,
                                     .by_deadline = config->by_deadline,
                                     .supervisor_fd = table.poll_set.fd};
  shm_broker_stats_t *stats = shmi_scoreboard()->broker;
  stats->started_ns = shmi_clock_ns();
  stats->parent_pid = getpid();
  stats->children = config->slot_count;
  stats->helpers = config->helper_count;
  stats->window = (int32_t)config->window;
  stats->arena_bytes = shmi_arena_bytes();
  for (int i = 0; i < config->helper_count; i++) {
    memcpy(shmi_scoreboard()->helper_stats[i].pool_name, config->pool_name[config->helper_pool[i]],
           sizeof config->pool_name[0] - 1);
  }
  return shmi_dispatch_create(&table.dispatch, &dispatch);
}

void shmi_process_table_close(void) {
  shmi_dispatch_destroy(table.dispatch);
  table.dispatch = NULL;
  shmi_poll_set_close(&table.poll_set);
  free(table.helpers);
  free(table.children);
  table.helpers = NULL;
  table.children = NULL;
}
