/* process_table -- see process_table.h. */
#include "broker/process_table_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/fault.h"
#include "base/passing.h"
#include "child/heap.h"
#include "child/port.h"
#include "helper/helper_port.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"
#include "process/role.h"

enum { REAP_AT_ONCE = 64 };

shmi_process_table_t shmi_process_table = {.epoll_fd = -1};

#define table shmi_process_table

void shmi_process_table_tell(shm_event_t event) {
  if (table.host.on_event != NULL) table.host.on_event(&event);
}

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

int shmi_process_table_watch(int fd, int what, int index) {
  struct epoll_event event = {
      .events = EPOLLIN,
      .data = {.u64 = (uint64_t)(uint32_t)what << 32 | (uint32_t)index}};
  return epoll_ctl(table.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? SHM_OK : SHM_ESYSTEM;
}

void shmi_process_table_unwatch(int fd) { epoll_ctl(table.epoll_fd, EPOLL_CTL_DEL, fd, NULL); }

static int watch(const shmi_process_t *process, int role, int index) {
  return shmi_process_table_watch(process->pidfd, role, index);
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

/* A process whose end could not be watched for would be waited for in vain: it ends here. */
static void end_unwatched(shmi_process_t *process) {
  int exit_status;
  shmi_error_detail_errno("watching a new process");
  shmi_process_signal(process, SIGKILL);
  shmi_process_reap(process, 1, &exit_status);
}

int shmi_process_table_start_helper(int index) {
  shmi_helper_entry_t *helper = &table.helpers[index];
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
  helper->failed = helper->told_ready = 0;
  helper->kill_ns = 0;
  helper->was_let_go = 0;
  helper->reason = SHM_REASON_NONE;
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
  helper->started_ns = shmi_clock_ns();
  helper->respawn_ns = 0;
  table.helpers_alive++;
  status = shmi_dispatch_add_helper(table.dispatch, index, down[1], up[0], files[0],
                                    helper->process.pid, helper->generation);
  if (status == SHM_OK) status = watch(&helper->process, SHM_ROLE_HELPER, index);
  if (status != SHM_OK) {
    shmi_victim_t none;
    end_unwatched(&helper->process);
    shmi_dispatch_remove_helper(table.dispatch, index, &none);
    table.helpers_alive--;
    return status;
  }
  if (helper->generation > 1) shmi_scoreboard()->broker->helper_respawns++;
  shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_HELPER_STARTED,
                               .index = index,
                               .pid = helper->process.pid,
                               .generation = helper->generation,
                               .deaths = helper->deaths});
  return SHM_OK;
}

int shmi_process_table_start_child(int index) {
  shmi_child_entry_t *child = &table.children[index];
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
  child->is_ours = 1;
  child->reason = SHM_REASON_NONE;
  child->started_ns = shmi_clock_ns();
  child->respawn_ns = 0;
  table.children_alive++;
  status = shmi_dispatch_add_child(table.dispatch, index, request[0], reply[1], child->process.pid);
  if (status == SHM_OK) status = watch(&child->process, SHM_ROLE_CHILD, index);
  if (status != SHM_OK) {
    end_unwatched(&child->process);
    shmi_dispatch_remove_child(table.dispatch, index);
    child->has_ended = 1;
    table.children_alive--;
    return status;
  }
  shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_CHILD_STARTED,
                               .index = index,
                               .pid = child->process.pid,
                               .generation = generation,
                               .attempts = child->restarts});
  return SHM_OK;
}

int shmi_process_table_admit_caller(pid_t caller, int request_fd, int reply_fd) {
  shmi_child_entry_t *first = &table.children[0];
  int status = shmi_process_open(caller, &first->process);
  if (status == SHM_OK) status = watch(&first->process, SHM_ROLE_CHILD, 0);
  if (status != SHM_OK) return status;
  table.children_alive = 1;
  return shmi_dispatch_add_child(table.dispatch, 0, request_fd, reply_fd, caller);
}

int shmi_process_table_admit_client(int index, shmi_process_t *client, uint32_t uid,
                                    const char *program, int request_fd, int reply_fd) {
  shmi_child_entry_t *child = &table.children[index];
  *child = (shmi_child_entry_t){.process = *client, .is_attached = 1, .uid = uid};
  strncpy(child->program, program, sizeof child->program - 1);
  int status = shmi_dispatch_add_child(table.dispatch, index, request_fd, reply_fd, client->pid);
  if (status == SHM_OK) status = watch(&child->process, SHM_ROLE_CHILD, index);
  if (status != SHM_OK) {
    shmi_dispatch_remove_child(table.dispatch, index);
    shmi_process_forget(&child->process);
    child->has_ended = 1;
    return status;
  }
  table.clients_alive++;
  shmi_process_table_tell((shm_event_t){
      .kind = SHM_EVENT_CHILD_JOINED,
      .index = index,
      .pid = client->pid,
      .generation = shmi_dispatch_child_generation(table.dispatch, index)});
  return SHM_OK;
}

const char *shmi_process_table_client(int index, uint32_t *uid) {
  const shmi_child_entry_t *child = &table.children[index];
  if (!child->is_attached || child->process.pid == 0) return NULL;
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

const shm_config_t *shmi_process_table_config(void) { return &table.config; }
shmi_dispatch_t *shmi_process_table_dispatch(void) { return table.dispatch; }
void shmi_process_table_retire(void) { table.config.idle_ns = 1; } /* 0 would be: never */

/* ---- more helpers, and fewer ---- */

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
  table.helpers[index].respawn_ns = 0;
  table.helpers[index].was_let_go = table.helpers[index].process.pid != 0;
  shmi_dispatch_retire_helper(table.dispatch, index);
}

static int want_helper(int index) {
  shmi_helper_entry_t *helper = &table.helpers[index];
  helper->is_wanted = 1;
  helper->short_deaths = 0;
  /* One that was let go and has not ended yet: its end makes way for the next. */
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
    shmi_process_table_tell((shm_event_t){
        .kind = SHM_EVENT_SCALED, .index = pool, .attempts = at, .deaths = before});
  }
  return status;
}

/* ---- signalling and reaping ---- */

void shmi_process_table_signal_children(int signal, int reason) {
  for (int i = 0; i < table.config.child_count; i++) { /* clients lie behind them */
    shmi_child_entry_t *child = &table.children[i];
    if (!child->is_ours || child->process.pid == 0) continue;
    if (child->reason == SHM_REASON_NONE) child->reason = reason;
    shmi_process_signal(&child->process, signal);
  }
}

void shmi_process_table_signal_helpers(int signal) {
  for (int i = 0; i < table.config.helper_count; i++) {
    shmi_process_signal(&table.helpers[i].process, signal);
  }
}

void shmi_process_table_look(const shmi_process_table_news_t *news) {
  struct epoll_event events[REAP_AT_ONCE];
  int count = epoll_wait(table.epoll_fd, events, REAP_AT_ONCE, 0);
  for (int i = 0; i < count; i++) {
    int what = (int)(events[i].data.u64 >> 32), index = (int)(uint32_t)events[i].data.u64;
    int exit_status = 0;
    if (what == SHMI_WATCH_LISTENER) {
      news->connecting(-1);
    } else if (what == SHMI_WATCH_CLIENT) {
      news->connecting(index);
    } else if (what == SHM_ROLE_HELPER) {
      int pid = table.helpers[index].process.pid;
      if (shmi_process_reap(&table.helpers[index].process, 0, &exit_status)) {
        news->helper_ended(index, pid, exit_status);
      }
    } else {
      shmi_child_entry_t *child = &table.children[index];
      int pid = child->process.pid;
      if (child->is_ours) {
        if (shmi_process_reap(&child->process, 0, &exit_status)) {
          news->child_ended(index, pid, exit_status);
        }
      } else if (pid != 0) {
        shmi_process_forget(&child->process);
        news->child_ended(index, pid, 0);
      }
    }
  }
}

/* ---- making and ending ---- */

int shmi_process_table_open(const shm_config_t *config, const shm_host_t *host) {
  table = (shmi_process_table_t){.config = *config, .host = *host};
  table.epoll_fd = shmi_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
  table.helpers = calloc((size_t)config->helper_count, sizeof *table.helpers);
  table.children = calloc((size_t)config->slot_count, sizeof *table.children);
  if (table.epoll_fd < 0 || table.helpers == NULL || table.children == NULL) return SHM_ESYSTEM;
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
                                     .supervisor_fd = table.epoll_fd};
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
  shmi_descriptor_close(&table.epoll_fd);
  free(table.helpers);
  free(table.children);
  table.helpers = NULL;
  table.children = NULL;
}
