/* launch -- a broker from its settings to its end: shm_run and shm_leave.
 *
 * shm_run checks what it was asked for, makes what every process inherits (arenas, scoreboard, the
 * sealed table of functions), and then either becomes the parent itself, or, for an init(), forks
 * one and becomes its child 0.
 *
 * Owns: the order in which a broker is made and destroyed. Must never: leave anything behind when a
 * step fails.
 */
#include "shmgpu.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/fault.h"
#include "broker/process_table.h"
#include "broker/supervise.h"
#include "child/attach.h"
#include "child/heap.h"
#include "child/port.h"
#include "ipc/function_table.h"
#include "ipc/gang.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"
#include "process/pid1.h"
#include "process/process.h"
#include "process/role.h"
#include "process/signals.h"

enum { DEFAULT_WINDOW = 64, DEFAULT_MAX_DEATHS = 5, DEFAULT_MAX_RESTARTS = 5 };
#define SECOND UINT64_C(1000000000)

/* What the caller asked for, defaults filled in. */
static shm_config_t settings;
static shm_host_t host;

/* Of a caller that became a child. */
static shmi_process_t parent_process = {.pid = 0, .pidfd = -1};

/* ---- making and ending a broker ---- */

static int check_config(const shm_config_t *config) {
  struct {
    const char *what;
    long long value, least, most;
  } rules[] = {
      {"children", config->child_count, config->slot_count > 0 ? 0 : 1, SHM_MAX_CHILDREN},
      {"slots", config->slot_count, 0, SHM_MAX_CHILDREN},
      {"helpers", config->helper_count, 1, SHM_MAX_HELPERS},
      {"pools", config->pool_count, 1, SHM_MAX_POOLS},
      {"window", config->window, 0, SHM_MAX_WINDOW},
      {"max_deaths", config->max_deaths, 0, 1000000},
      {"restart", config->restart, SHM_RESTART_NEVER, SHM_RESTART_ON_FAILURE},
      {"max_restarts", config->max_restarts, 0, 1000000},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    if (rules[i].value < rules[i].least || rules[i].value > rules[i].most) {
      shmi_error_detail_set("%s must be from %lld to %lld, not %lld", rules[i].what, rules[i].least,
                      rules[i].most, rules[i].value);
      return SHM_EBAD_CONFIG;
    }
  }
  for (int i = 0; i < config->helper_count; i++) {
    if (config->helper_pool[i] >= config->pool_count) {
      shmi_error_detail_set("helper %d is in pool %d, but there are %d pools", i,
                      config->helper_pool[i], config->pool_count);
      return SHM_EBAD_CONFIG;
    }
  }
  if (config->arena_bytes == 0) {
    shmi_error_detail_set("an arena must have at least one byte");
    return SHM_EBAD_SIZE;
  }
  return SHM_OK;
}

static void destroy_broker(void) {
  shmi_arena_destroy();
  shmi_gang_destroy();
  shmi_scoreboard_destroy();
  shmi_function_table_unseal();
  shmi_role_set(SHM_ROLE_NONE, -1);
}

static int create_broker(void) {
  /* Per child three descriptors (memory file, two pipe ends) and a pidfd; per helper likewise, and
   * a socket over which memory files are passed. */
  int status = shmi_descriptor_room(5 * (settings.slot_count + settings.helper_count) + 16);
  if (status != SHM_OK) {
    shmi_error_detail_set("%d children and %d helpers need more open files than the limit allows: "
                    "raise it with ulimit -n",
                    settings.slot_count, settings.helper_count);
    return status;
  }
  shmi_arena_plan_t plan = {.children = settings.slot_count,
                            .arena_bytes = settings.arena_bytes,
                            .helpers = settings.helper_count,
                            .scratch_bytes = settings.scratch_bytes,
                            .prefault = settings.prefault,
                            .huge_pages = settings.huge_pages};
  status = shmi_arena_create(&plan);
  if (status == SHM_OK) {
    status = shmi_scoreboard_create(settings.slot_count, settings.helper_count,
                               settings.trace_records);
  }
  if (status == SHM_OK) status = shmi_gang_create(settings.helper_count);
  if (status == SHM_OK) status = shmi_function_table_seal();
  if (status != SHM_OK) destroy_broker();
  return status;
}

/* The parent's whole life, from the first fork to the last reaped process. Returns the outcome.
 * caller: the process that becomes child 0, 0: none. */
static int be_parent(int request_fd, int reply_fd, pid_t caller) {
  shmi_role_set(SHM_ROLE_PARENT, -1);
  SHMI_FAULT_ROLE(SHM_ROLE_PARENT, 0, 1);
  shmi_signals_take(settings.caller_is_child);
  int status = shmi_process_table_open(&settings, &host);
  if (status == SHM_OK && caller > 0) {
    status = shmi_process_table_admit_caller(caller, request_fd, reply_fd);
  }
  if (status == SHM_OK) status = shmi_supervise();
  shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_OVER, .exit_status = status});
  shmi_process_table_close();
  shmi_signals_give_back();
  return status;
}

/* An init(): fork a parent, become child 0. */
static int become_first_child(void) {
  int reply[2], request[2], capacity;
  int status = shmi_process_table_two_pipes(reply, request, &capacity);
  if (status != SHM_OK) {
    destroy_broker();
    return status;
  }
  pid_t caller = getpid();
  int forked = shmi_process_fork(host.fork, &parent_process);
  if (forked == 0) {
    shmi_descriptor_close(&reply[0]);
    shmi_descriptor_close(&request[1]);
    status = be_parent(request[0], reply[1], caller);
    if (status != SHM_OK) { /* read only if it still waits */
      strncpy(shmi_scoreboard()->detail, shm_error_detail(), SHMI_SCOREBOARD_DETAIL_BYTES - 1);
    }
    shmi_role_end(&host, status == SHM_OK ? 0 : 1);
  }
  if (forked < 0) {
    shmi_descriptor_keep_only(NULL, 0);
    destroy_broker();
    return forked;
  }
  int ends[3] = {request[1], reply[0], parent_process.pidfd};
  int mapped = shmi_arena_map_child(0);
  shmi_arena_close_descriptors();
  shmi_gang_destroy();
  shmi_descriptor_keep_only(ends, 3);
  shmi_role_set(SHM_ROLE_CHILD, 0);
  SHMI_FAULT_ROLE(SHM_ROLE_CHILD, 0, 1);
  uint32_t window = shmi_process_table_window(settings.window, capacity);
  status = shmi_scoreboard_become(SHM_ROLE_CHILD, 0);
  if (status == SHM_OK) status = mapped;
  if (status == SHM_OK) status = shmi_arena_populate(0);
  if (status == SHM_OK) status = shmi_port_open(request[1], reply[0], window, 0);
  if (status == SHM_OK) status = shmi_heap_open(shmi_arena_address(0), shmi_arena_bytes(), 0);
  if (!shmi_port_is_open()) { /* then closing it is not what tells the parent to end */
    shmi_descriptor_close(&request[1]);
    shmi_descriptor_close(&reply[0]);
  }
  if (host.on_signal != NULL) shmi_port_heed_signals();
  while (status == SHM_OK) {
    status = shmi_port_wait_ready();
    if (status != SHM_EINTR) break;
    /* Ctrl-C while models load: the host decides; otherwise wait on. */
    status = host.on_signal != NULL && host.on_signal() != 0 ? SHM_ESIGNALLED : SHM_OK;
  }
  if (status != SHM_OK) {
    if (shmi_scoreboard()->detail[0] != '\0') shmi_error_detail_set("%s", shmi_scoreboard()->detail);
    shm_leave();
  }
  return status;
}

int shm_run(const shm_config_t *config, const shm_host_t *lent) {
  if (shmi_role() != SHM_ROLE_NONE) return SHM_ENESTED;
  shmi_error_detail_set("%s", "");
  int status = check_config(config);
  if (status == SHM_OK) status = shmi_pid1_stay_behind(lent->fork);
  if (status != SHM_OK) return status;
  settings = *config;
  host = *lent;
  if (settings.window == 0) settings.window = DEFAULT_WINDOW;
  if (settings.max_deaths == 0) settings.max_deaths = DEFAULT_MAX_DEATHS;
  if (settings.death_window_ns == 0) settings.death_window_ns = 10 * SECOND;
  if (settings.grace_ns == 0) settings.grace_ns = 5 * SECOND;
  if (settings.max_restarts == 0) settings.max_restarts = DEFAULT_MAX_RESTARTS;
  if (settings.caller_is_child) settings.child_count = 1;
  if (settings.slot_count < settings.child_count) settings.slot_count = settings.child_count;
  status = create_broker();
  if (status != SHM_OK) return status;
  if (settings.caller_is_child) return become_first_child();
  status = be_parent(-1, -1, 0);
  destroy_broker();
  return status;
}

int shm_leave(void) {
  if (shmi_attach_is_client()) {
    shmi_attach_leave();
    return SHM_OK;
  }
  if (shmi_role() != SHM_ROLE_CHILD || parent_process.pid == 0) return SHM_ENOT_RUNNING;
  shmi_port_close(); /* the parent sees its only child leave, drains and ends */
  uint64_t grace_ns = 4 * settings.grace_ns;
  uint64_t until_ns = shmi_clock_ns() + grace_ns;
  int exit_status;
  while (!shmi_process_reap(&parent_process, 0, &exit_status)) {
    uint64_t now_ns = shmi_clock_ns();
    if (now_ns >= until_ns) { /* its helpers die with it */
      shmi_process_signal(&parent_process, SIGKILL);
      shmi_process_reap(&parent_process, 1, &exit_status);
      break;
    }
    shmi_pipe_wait(parent_process.pidfd, (int64_t)(until_ns - now_ns));
  }
  uint64_t bytes;
  uint64_t mapping = shmi_arena_reservation(&bytes);
  if (shmi_heap_retire(mapping, bytes)) shmi_arena_detach();
  destroy_broker();
  return SHM_OK;
}
