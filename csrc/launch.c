/* launch -- see launch.h. */
#include "launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "arena.h"
#include "board.h"
#include "channel.h"
#include "clock.h"
#include "descriptor.h"
#include "desk.h"
#include "detail.h"
#include "dispatch.h"
#include "heap.h"
#include "port.h"
#include "process.h"
#include "registry.h"

enum {
  DEFAULT_WINDOW = 64,
  DEFAULT_MAX_DEATHS = 5,
  BACKOFF_FIRST_MS = 50,
  BACKOFF_MAX_MS = 5000,
  REAP_AT_ONCE = 64,
  SIGNALS_EVERY_MS = 50,
  HANG_GRACE_MS = 1000 /* between SIGABRT, which leaves a stack, and SIGKILL */
};
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

enum phase { STARTING, RUNNING, ENDING, CLOSING, OVER };

typedef struct helper {
  shmi_process_t process;
  uint32_t generation;
  int deaths;       /* in all */
  int short_deaths; /* in a row, each within the death window of its start */
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be replaced */
  uint64_t kill_ns;    /* a hung one was told to abort: kill it then; 0: no */
  int was_hung;        /* it was told to abort; its end will come */
  int failed;          /* it said that its session could not be made */
  int told_ready;
} helper_t;

typedef struct child {
  shmi_process_t process;
  int is_ours;
  int has_ended;
} child_t;

static struct supervisor {
  shm_config_t config;
  shm_host_t host;
  shmi_dispatch_t *dispatch;
  helper_t *helpers;
  child_t *children;
  int process_epoll; /* all pidfds */
  pid_t pid;
  enum phase phase;
  int outcome;
  int forced; /* 1: TERM was sent in this phase; 2: KILL */
  int stops_handled; /* of stop_requests */
  uint64_t signals_ns; /* when signals were last let in by hand */
  uint64_t phase_deadline_ns;
  int children_alive, helpers_alive;
  sigset_t caller_mask, wait_mask;
  struct sigaction caller_int, caller_term, caller_chld, caller_pipe;
} sup = {.process_epoll = -1};

static int role = SHM_ROLE_NONE, role_index = -1;
static pid_t role_pid;

/* Of a caller that became a child. */
static shmi_process_t parent_process = {.pid = 0, .pidfd = -1};

/* Written by handlers. */
static volatile sig_atomic_t stop_requests, stop_signal;

int shmi_role(void) { return role; }
int shmi_role_index(void) { return role_index; }
int shm_get_role(void) { return role; }
int shm_stop_signal(void) { return (int)stop_signal; }

/* ---- events ---- */

static void tell(shm_event_t event) {
  if (sup.host.on_event != NULL) sup.host.on_event(&event);
}

/* ---- signals ---- */

static void on_stop_signal(int signal) {
  stop_requests = stop_requests + 1;
  stop_signal = signal;
}

static void signals_take(void) {
  struct sigaction stop = {.sa_handler = on_stop_signal};
  struct sigaction standard = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
  sigemptyset(&stop.sa_mask);
  /* Blocked but in the poll: a signal can never slip in between looking and waiting. */
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &sup.caller_mask);
  sup.wait_mask = sup.caller_mask;
  sigdelset(&sup.wait_mask, SIGINT);
  sigdelset(&sup.wait_mask, SIGTERM);
  stop_requests = 0;
  stop_signal = 0;
  /* The parent of an init() shares the caller's terminal: Ctrl-C there is the caller's own. */
  sigaction(SIGINT, sup.config.caller_is_child ? &ignore : &stop, &sup.caller_int);
  sigaction(SIGTERM, &stop, &sup.caller_term);
  sigaction(SIGCHLD, &standard, &sup.caller_chld); /* ignored, it would reap behind our back */
  sigaction(SIGPIPE, &ignore, &sup.caller_pipe);
  shmi_channel_sigpipe(1);
}

static void signals_give_back(void) {
  sigaction(SIGINT, &sup.caller_int, NULL);
  sigaction(SIGTERM, &sup.caller_term, NULL);
  sigaction(SIGCHLD, &sup.caller_chld, NULL);
  sigaction(SIGPIPE, &sup.caller_pipe, NULL);
  pthread_sigmask(SIG_SETMASK, &sup.caller_mask, NULL);
  shmi_channel_sigpipe(0);
}

static void signals_of_role(void) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, standard = {.sa_handler = SIG_DFL};
  sigaction(SIGINT, &ignore, NULL); /* the parent decides about Ctrl-C */
  sigaction(SIGTERM, &standard, NULL);
  sigaction(SIGPIPE, &ignore, NULL); /* a dead peer is an outcome, not a death */
  sigaction(SIGCHLD, &sup.caller_chld, NULL);
  pthread_sigmask(SIG_SETMASK, &sup.caller_mask, NULL);
  shmi_channel_sigpipe(1);
}

/* ---- becoming a role, in the new process ---- */

static _Noreturn void end_role(int status) {
  if (sup.host.exit != NULL) sup.host.exit(status);
  _exit(status);
}

/* What every forked role does first. descriptors: its own two pipe ends. */
static int become(int new_role, int index, const int descriptors[2]) {
  role = new_role;
  role_index = index;
  role_pid = getpid();
  signals_of_role();
  if (shmi_process_die_with(sup.pid, SIGKILL) != 1) return SHM_EBROKER_DIED;
  shmi_process_offer_to_oom();
  int status = new_role == SHM_ROLE_HELPER ? shmi_arena_map_helper() : shmi_arena_map_child(index);
  if (status != SHM_OK) return status;
  shmi_arena_close_descriptors();
  shmi_descriptor_keep_only(descriptors, 2);
  return shmi_board_become(new_role, index);
}

static _Noreturn void run_helper(int index, int down_fd, int up_fd) {
  uint32_t generation = sup.helpers[index].generation;
  int ends[2] = {down_fd, up_fd};
  int status = become(SHM_ROLE_HELPER, index, ends);
  if (status == SHM_OK) status = shmi_desk_open(down_fd, up_fd, index, generation);
  if (status != SHM_OK) end_role(1);
  int code = sup.host.run_helper != NULL ? sup.host.run_helper(index, generation)
                                         : shmi_desk_serve();
  shmi_desk_close();
  end_role(code);
}

static _Noreturn void run_child(int index, int request_fd, int reply_fd, uint32_t window,
                                uint32_t generation) {
  int ends[2] = {request_fd, reply_fd};
  int status = become(SHM_ROLE_CHILD, index, ends);
  if (status == SHM_OK) status = shmi_arena_populate(index);
  if (status == SHM_OK) status = shmi_port_open(request_fd, reply_fd, window, index);
  if (status == SHM_OK) {
    status = shmi_heap_open(shmi_arena_address(index), shmi_arena_bytes(), index);
  }
  if (status != SHM_OK) end_role(1);
  end_role(sup.host.run_child != NULL ? sup.host.run_child(index, generation) : 0);
}

/* ---- forking roles, in the parent ---- */

static uint64_t watch_tag(int of_role, int index) {
  return (uint64_t)(uint32_t)of_role << 32 | (uint32_t)index;
}

static int watch(const shmi_process_t *process, int of_role, int index) {
  struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = watch_tag(of_role, index)}};
  return epoll_ctl(sup.process_epoll, EPOLL_CTL_ADD, process->pidfd, &event) == 0 ? SHM_OK
                                                                                 : SHM_ESYSTEM;
}

/* Two pipes between the parent and a role: towards[] carries frames to the role. */
static int two_pipes(int towards[2], int from[2], int *capacity) {
  int other = 0;
  int status = shmi_channel_make(towards, 2, capacity);
  if (status != SHM_OK) return status;
  status = shmi_channel_make(from, 1, &other);
  if (status != SHM_OK) {
    shmi_descriptor_close(&towards[0]);
    shmi_descriptor_close(&towards[1]);
    return status;
  }
  if (other < *capacity) *capacity = other;
  return status;
}

/* A process whose end could not be watched for would be waited for in vain: it ends here. */
static void end_unwatched(shmi_process_t *process) {
  int exit_status;
  shmi_detail_errno("watching a new process");
  shmi_process_signal(process, SIGKILL);
  shmi_process_reap(process, 1, &exit_status);
}

static int spawn_helper(int index) {
  helper_t *helper = &sup.helpers[index];
  int down[2], up[2], capacity;
  int status = two_pipes(down, up, &capacity);
  if (status != SHM_OK) {
    shmi_detail_errno("making a helper's pipes");
    return status;
  }
  shmi_board_reset_helper(index);
  helper->generation++;
  helper->failed = helper->told_ready = 0;
  helper->kill_ns = 0;
  helper->was_hung = 0;
  int forked = shmi_process_fork(sup.host.fork, &helper->process);
  if (forked == 0) {
    shmi_descriptor_close(&down[1]);
    shmi_descriptor_close(&up[0]);
    run_helper(index, down[0], up[1]);
  }
  shmi_descriptor_close(&down[0]);
  shmi_descriptor_close(&up[1]);
  if (forked < 0) {
    shmi_descriptor_close(&down[1]);
    shmi_descriptor_close(&up[0]);
    return forked;
  }
  helper->started_ns = shmi_clock_ns();
  helper->respawn_ns = 0;
  sup.helpers_alive++;
  status = shmi_dispatch_add_helper(sup.dispatch, index, down[1], up[0], helper->process.pid,
                                    helper->generation);
  if (status == SHM_OK) status = watch(&helper->process, SHM_ROLE_HELPER, index);
  if (status != SHM_OK) {
    shmi_victim_t none;
    end_unwatched(&helper->process);
    shmi_dispatch_remove_helper(sup.dispatch, index, &none);
    sup.helpers_alive--;
    return status;
  }
  tell((shm_event_t){.kind = SHM_EVENT_HELPER_STARTED, .index = index,
                     .pid = helper->process.pid, .generation = helper->generation,
                     .deaths = helper->deaths});
  return SHM_OK;
}

static int spawn_child(int index) {
  child_t *child = &sup.children[index];
  int reply[2], request[2], capacity;
  int status = two_pipes(reply, request, &capacity);
  if (status != SHM_OK) {
    shmi_detail_errno("making a child's pipes");
    return status;
  }
  /* The window is what the pipe holds at most, so that a reply never waits for its reader. */
  uint32_t window = sup.config.window;
  if (window > (uint32_t)capacity) window = (uint32_t)capacity;
  uint32_t generation = shmi_dispatch_child_generation(sup.dispatch, index) + 1;
  int forked = shmi_process_fork(sup.host.fork, &child->process);
  if (forked == 0) {
    shmi_descriptor_close(&reply[1]);
    shmi_descriptor_close(&request[0]);
    run_child(index, request[1], reply[0], window, generation);
  }
  shmi_descriptor_close(&reply[0]);
  shmi_descriptor_close(&request[1]);
  if (forked < 0) {
    shmi_descriptor_close(&reply[1]);
    shmi_descriptor_close(&request[0]);
    return forked;
  }
  child->is_ours = 1;
  sup.children_alive++;
  status = shmi_dispatch_add_child(sup.dispatch, index, request[0], reply[1], child->process.pid);
  if (status == SHM_OK) status = watch(&child->process, SHM_ROLE_CHILD, index);
  if (status != SHM_OK) {
    end_unwatched(&child->process);
    shmi_dispatch_remove_child(sup.dispatch, index);
    child->has_ended = 1;
    sup.children_alive--;
    return status;
  }
  tell((shm_event_t){.kind = SHM_EVENT_CHILD_STARTED, .index = index, .pid = child->process.pid,
                     .generation = generation});
  return SHM_OK;
}

/* ---- the phases ---- */

static void enter_phase(enum phase phase) {
  sup.phase = phase;
  sup.forced = 0;
  /* Once no child is left nobody waits for what helpers still execute: a second to end is enough. */
  uint64_t grace_ns = sup.config.grace_ns;
  if (phase == CLOSING && grace_ns > SECOND) grace_ns = SECOND;
  sup.phase_deadline_ns = shmi_clock_ns() + grace_ns;
}

static void signal_children(int signal) {
  for (int i = 0; i < sup.config.child_count; i++) {
    if (sup.children[i].is_ours) shmi_process_signal(&sup.children[i].process, signal);
  }
}

static void signal_helpers(int signal) {
  for (int i = 0; i < sup.config.helper_count; i++) {
    shmi_process_signal(&sup.helpers[i].process, signal);
  }
}

static void fail(int outcome) {
  int was_starting = sup.phase == STARTING;
  if (sup.outcome == SHM_OK) sup.outcome = outcome;
  if (sup.phase >= ENDING) return;
  tell((shm_event_t){.kind = SHM_EVENT_DRAINING, .exit_status = outcome});
  enter_phase(ENDING);
  for (int i = 0; i < sup.config.child_count; i++) {
    /* One that we did not fork is only let go: its next call says that the broker is gone. */
    if (!sup.children[i].is_ours && !sup.children[i].has_ended) {
      if (sup.children[i].process.pid > 0) {
        strncpy(shmi_board()->detail, shm_error_detail(), SHMI_BOARD_DETAIL_BYTES - 1);
        shmi_dispatch_tell_ready(sup.dispatch, i, outcome); /* read only if it still waits */
        shmi_dispatch_remove_child(sup.dispatch, i);
        shmi_process_forget(&sup.children[i].process);
        sup.children[i].has_ended = 1;
        sup.children_alive--;
      }
    }
  }
  signal_children(SIGTERM);
  if (was_starting) signal_helpers(SIGTERM); /* nobody waits for a model that still loads */
  sup.forced = 1;
}

static void close_helpers(void) {
  enter_phase(CLOSING);
  shmi_dispatch_close_helpers(sup.dispatch);
}

static void advance(void) {
  if (sup.phase == STARTING) {
    for (int i = 0; i < sup.config.helper_count; i++) {
      if (shmi_dispatch_helper_state(sup.dispatch, i) != SHMI_PEER_UP) return;
    }
    tell((shm_event_t){.kind = SHM_EVENT_READY});
    enter_phase(RUNNING);
    if (sup.config.caller_is_child) {
      shmi_dispatch_tell_ready(sup.dispatch, 0, SHM_OK);
      return;
    }
    for (int i = 0; i < sup.config.child_count; i++) {
      int status = spawn_child(i);
      if (status != SHM_OK) {
        fail(status);
        break;
      }
    }
  }
  if ((sup.phase == RUNNING || sup.phase == ENDING) && sup.children_alive == 0) close_helpers();
  if (sup.phase == CLOSING && sup.helpers_alive == 0) sup.phase = OVER;
}

/* The time for the present phase is up: TERM first, then KILL. */
static void press(uint64_t now_ns) {
  if ((sup.phase != ENDING && sup.phase != CLOSING) || now_ns < sup.phase_deadline_ns) return;
  int signal = sup.forced == 0 ? SIGTERM : SIGKILL;
  if (sup.phase == ENDING) signal_children(signal);
  else signal_helpers(signal);
  sup.forced = signal == SIGTERM ? 1 : 2;
  sup.phase_deadline_ns = now_ns + (sup.config.grace_ns < SECOND ? sup.config.grace_ns : SECOND);
}

/* ---- deaths ---- */

static void child_ended(int index, int exit_status) {
  child_t *child = &sup.children[index];
  if (child->has_ended) return;
  child->has_ended = 1;
  sup.children_alive--;
  shmi_dispatch_remove_child(sup.dispatch, index);
  tell((shm_event_t){.kind = SHM_EVENT_CHILD_ENDED, .index = index, .exit_status = exit_status,
                     .generation = shmi_dispatch_child_generation(sup.dispatch, index)});
  if (sup.phase == STARTING) fail(SHM_ESTOPPED); /* an init() that was interrupted */
  if (exit_status == 0 || !child->is_ours) return;
  if (sup.outcome == SHM_OK) { /* those that end after it were told to */
    shmi_detail_set("child %d ended with %s %d", index,
                    exit_status < 0 ? "signal" : "exit status",
                    exit_status < 0 ? -exit_status : exit_status);
  }
  fail(SHM_ECHILD_FAILED);
}

static void helper_died(int index, int pid, int exit_status) {
  helper_t *helper = &sup.helpers[index];
  uint64_t now_ns = shmi_clock_ns();
  shmi_victim_t victim;
  shmi_dispatch_remove_helper(sup.dispatch, index, &victim);
  sup.helpers_alive--;
  if (sup.phase == CLOSING || sup.phase == ENDING) return;
  helper->deaths++;
  int was_short = now_ns - helper->started_ns < sup.config.death_window_ns;
  helper->short_deaths = was_short ? helper->short_deaths + 1 : 1;
  shm_event_t event = {.kind = helper->failed ? SHM_EVENT_HELPER_FAILED : SHM_EVENT_HELPER_DIED,
                       .index = index,
                       .pid = pid,
                       .exit_status = exit_status,
                       .generation = helper->generation,
                       .deaths = helper->deaths,
                       .is_final = sup.phase == STARTING ||
                                   helper->short_deaths >= sup.config.max_deaths,
                       .sequence = victim.sequence,
                       .function = victim.function};
  tell(event);
  if (sup.phase == STARTING) { /* a launch is all or nothing */
    shmi_detail_set("helper %d ended while it was starting (%s %d)", index,
                    exit_status < 0 ? "killed by signal" : "exit status",
                    exit_status < 0 ? -exit_status : exit_status);
    fail(SHM_ESESSION);
    return;
  }
  if (helper->short_deaths >= sup.config.max_deaths) {
    shmi_detail_set("helper %d died %d times, each within %llu s of its start", index,
                    helper->short_deaths,
                    (unsigned long long)(sup.config.death_window_ns / SECOND));
    shmi_dispatch_give_up_helper(sup.dispatch, index, 1);
    fail(helper->failed ? SHM_ESESSION : SHM_ENO_HELPERS);
    return;
  }
  uint64_t wait_ms = 0;
  if (helper->short_deaths > 1) {
    wait_ms = (uint64_t)BACKOFF_FIRST_MS << (helper->short_deaths - 2);
    if (wait_ms > BACKOFF_MAX_MS) wait_ms = BACKOFF_MAX_MS;
  }
  helper->respawn_ns = now_ns + wait_ms * MS;
}

static void reap(void) {
  struct epoll_event events[REAP_AT_ONCE];
  int count = epoll_wait(sup.process_epoll, events, REAP_AT_ONCE, 0);
  for (int i = 0; i < count; i++) {
    int of_role = (int)(events[i].data.u64 >> 32), index = (int)(uint32_t)events[i].data.u64;
    int exit_status = 0;
    if (of_role == SHM_ROLE_HELPER) {
      int pid = sup.helpers[index].process.pid;
      if (shmi_process_reap(&sup.helpers[index].process, 0, &exit_status)) {
        helper_died(index, pid, exit_status);
      }
    } else if (sup.children[index].is_ours) {
      if (shmi_process_reap(&sup.children[index].process, 0, &exit_status)) {
        child_ended(index, exit_status);
      }
    } else {
      shmi_process_forget(&sup.children[index].process);
      child_ended(index, 0);
    }
  }
}

static void children_left(void) {
  for (int i = 0; i < sup.config.child_count; i++) {
    if (sup.children[i].is_ours || sup.children[i].has_ended) continue;
    if (shmi_dispatch_child_state(sup.dispatch, i) == SHMI_PEER_LEFT) {
      shmi_process_forget(&sup.children[i].process);
      child_ended(i, 0);
    }
  }
}

static void end_offenders(void) {
  for (int i = 0; i < sup.config.child_count; i++) {
    if (shmi_dispatch_child_state(sup.dispatch, i) != SHMI_PEER_OFFENDED) continue;
    tell((shm_event_t){.kind = SHM_EVENT_CHILD_PROTOCOL, .index = i,
                       .pid = sup.children[i].process.pid});
    if (sup.children[i].is_ours) {
      shmi_process_signal(&sup.children[i].process, SIGKILL);
    } else {
      shmi_process_forget(&sup.children[i].process);
      child_ended(i, 0);
    }
  }
}

static void helpers_ready(void) {
  for (int i = 0; i < sup.config.helper_count; i++) {
    helper_t *helper = &sup.helpers[i];
    int state = shmi_dispatch_helper_state(sup.dispatch, i);
    if (state == SHMI_PEER_FAILED && !helper->failed) {
      helper->failed = 1;
      if (sup.phase == STARTING) {
        shmi_detail_set("helper %d could not make its session", i);
        tell((shm_event_t){.kind = SHM_EVENT_HELPER_FAILED, .index = i,
                           .pid = helper->process.pid, .generation = helper->generation});
        fail(SHM_ESESSION);
      }
    } else if (state == SHMI_PEER_UP && !helper->told_ready) {
      helper->told_ready = 1;
      tell((shm_event_t){.kind = SHM_EVENT_HELPER_READY, .index = i,
                         .pid = helper->process.pid, .generation = helper->generation,
                         .deaths = helper->deaths});
    }
  }
}

/* ---- the loop ---- */

static void sooner(uint64_t *at_ns, uint64_t candidate_ns) {
  if (candidate_ns != 0 && (*at_ns == 0 || candidate_ns < *at_ns)) *at_ns = candidate_ns;
}

/* What is due by the clock; *next_ns: when something will be. */
static void timers(uint64_t now_ns, uint64_t *next_ns) {
  *next_ns = 0;
  press(now_ns);
  if (sup.phase == ENDING || sup.phase == CLOSING) sooner(next_ns, sup.phase_deadline_ns);
  if (sup.phase != RUNNING) return;
  for (int i = 0; i < sup.config.helper_count; i++) {
    helper_t *helper = &sup.helpers[i];
    if (helper->process.pid == 0 && helper->respawn_ns != 0) {
      if (helper->respawn_ns <= now_ns) {
        int status = spawn_helper(i);
        /* No process or descriptor to be had now: try again later, others serve on. */
        if (status != SHM_OK) helper->respawn_ns = now_ns + SECOND;
      }
      if (helper->process.pid == 0) sooner(next_ns, helper->respawn_ns);
    }
    if (helper->kill_ns != 0 && helper->process.pid != 0) {
      if (helper->kill_ns <= now_ns) {
        shmi_process_signal(&helper->process, SIGKILL);
        helper->kill_ns = 0;
      } else {
        sooner(next_ns, helper->kill_ns);
      }
    }
  }
  uint64_t look_ns;
  int hung = shmi_dispatch_hung(sup.dispatch, now_ns, &look_ns);
  if (hung >= 0 && !sup.helpers[hung].was_hung) {
    sup.helpers[hung].was_hung = 1;
    tell((shm_event_t){.kind = SHM_EVENT_HELPER_HUNG, .index = hung,
                       .pid = sup.helpers[hung].process.pid,
                       .generation = sup.helpers[hung].generation});
    shmi_process_signal(&sup.helpers[hung].process, SIGABRT); /* leaves its stack in the log */
    sup.helpers[hung].kill_ns = now_ns + HANG_GRACE_MS * MS;
    sooner(next_ns, sup.helpers[hung].kill_ns);
  }
  sooner(next_ns, look_ns);
}

static void handle_signals(void) {
  if (stop_requests > sup.stops_handled) {
    int is_first = sup.stops_handled == 0;
    sup.stops_handled = stop_requests;
    if (is_first) {
      fail(SHM_ESIGNALLED);
    } else { /* asked twice: now */
      signal_children(SIGKILL);
      signal_helpers(SIGKILL);
    }
  }
  if (sup.host.on_signal != NULL && sup.host.on_signal() != 0) fail(SHM_ESIGNALLED);
}

/* A wait that finds something ready at once delivers no signal, and a busy broker may wait like
 * that for ever: so let them in from time to time. */
static void let_signals_in(uint64_t now_ns) {
  if (now_ns - sup.signals_ns < SIGNALS_EVERY_MS * MS) return;
  sup.signals_ns = now_ns;
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, &sup.wait_mask, &blocked);
  pthread_sigmask(SIG_SETMASK, &blocked, NULL);
  handle_signals();
}

static void supervise(void) {
  for (int i = 0; i < sup.config.helper_count && sup.phase == STARTING; i++) {
    int status = spawn_helper(i);
    if (status != SHM_OK) fail(status);
  }
  advance();
  while (sup.phase != OVER) {
    uint64_t next_ns, now_ns = shmi_clock_ns();
    timers(now_ns, &next_ns);
    advance();
    if (sup.phase == OVER) break;
    int64_t timeout_ns = -1;
    if (next_ns != 0) timeout_ns = next_ns > now_ns ? (int64_t)(next_ns - now_ns) : 0;
    int turn = shmi_dispatch_turn(sup.dispatch, timeout_ns, &sup.wait_mask);
    if (turn < 0) {
      shmi_detail_errno("waiting for messages");
      fail(turn);
      signal_children(SIGKILL);
      signal_helpers(SIGKILL);
      continue;
    }
    if (turn & SHMI_TURN_SIGNAL) handle_signals();
    else let_signals_in(now_ns);
    if (turn & SHMI_TURN_READY) helpers_ready();
    if (turn & SHMI_TURN_SUPERVISOR) reap();
    if (turn & SHMI_TURN_LEFT) children_left();
    if (turn & SHMI_TURN_OFFENDED) end_offenders();
    if (turn != 0) advance();
  }
}

/* ---- making and ending a broker ---- */

static int check_config(const shm_config_t *config) {
  struct {
    const char *what;
    long long value, least, most;
  } rules[] = {
      {"children", config->child_count, 1, SHM_MAX_CHILDREN},
      {"helpers", config->helper_count, 1, SHM_MAX_HELPERS},
      {"pools", config->pool_count, 1, SHM_MAX_POOLS},
      {"window", config->window, 0, SHM_MAX_WINDOW},
      {"max_deaths", config->max_deaths, 0, 1000000},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    if (rules[i].value < rules[i].least || rules[i].value > rules[i].most) {
      shmi_detail_set("%s must be from %lld to %lld, not %lld", rules[i].what, rules[i].least,
                      rules[i].most, rules[i].value);
      return SHM_EBAD_CONFIG;
    }
  }
  for (int i = 0; i < config->helper_count; i++) {
    if (config->helper_pool[i] >= config->pool_count) {
      shmi_detail_set("helper %d is in pool %d, but there are %d pools", i,
                      config->helper_pool[i], config->pool_count);
      return SHM_EBAD_CONFIG;
    }
  }
  if (config->arena_bytes == 0) {
    shmi_detail_set("an arena must have at least one byte");
    return SHM_EBAD_SIZE;
  }
  return SHM_OK;
}

static int open_supervisor(void) {
  sup.pid = getpid();
  sup.phase = STARTING;
  sup.process_epoll = shmi_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
  sup.helpers = calloc((size_t)sup.config.helper_count, sizeof *sup.helpers);
  sup.children = calloc((size_t)sup.config.child_count, sizeof *sup.children);
  if (sup.process_epoll < 0 || sup.helpers == NULL || sup.children == NULL) return SHM_ESYSTEM;
  for (int i = 0; i < sup.config.helper_count; i++) sup.helpers[i].process.pidfd = -1;
  for (int i = 0; i < sup.config.child_count; i++) sup.children[i].process.pidfd = -1;
  shmi_dispatch_config_t dispatch = {.children = sup.config.child_count,
                                     .helpers = sup.config.helper_count,
                                     .pools = sup.config.pool_count,
                                     .window = sup.config.window,
                                     .helper_pool = sup.config.helper_pool,
                                     .min_credit = sup.config.min_credit,
                                     .supervisor_fd = sup.process_epoll};
  shm_broker_stats_t *stats = shmi_board()->broker;
  stats->started_ns = shmi_clock_ns();
  stats->parent_pid = sup.pid;
  stats->children = sup.config.child_count;
  stats->helpers = sup.config.helper_count;
  stats->window = (int32_t)sup.config.window;
  return shmi_dispatch_create(&sup.dispatch, &dispatch);
}

static void close_supervisor(void) {
  shmi_dispatch_destroy(sup.dispatch);
  sup.dispatch = NULL;
  shmi_descriptor_close(&sup.process_epoll);
  free(sup.helpers);
  free(sup.children);
  sup.helpers = NULL;
  sup.children = NULL;
}

static void destroy_broker(void) {
  shmi_arena_destroy();
  shmi_board_destroy();
  shmi_registry_unseal();
  role = SHM_ROLE_NONE;
  role_index = -1;
}

static int create_broker(void) {
  /* Per child three descriptors (memfd, two pipe ends) and a pidfd; per helper likewise. */
  int status = shmi_descriptor_room(4 * (sup.config.child_count + sup.config.helper_count) + 16);
  if (status != SHM_OK) {
    shmi_detail_set("%d children and %d helpers need more open files than the limit allows: "
                    "raise it with ulimit -n",
                    sup.config.child_count, sup.config.helper_count);
    return status;
  }
  shmi_arena_plan_t plan = {.children = sup.config.child_count,
                            .arena_bytes = sup.config.arena_bytes,
                            .helpers = sup.config.helper_count,
                            .scratch_bytes = sup.config.scratch_bytes,
                            .prefault = sup.config.prefault,
                            .huge_pages = sup.config.huge_pages};
  status = shmi_arena_create(&plan);
  if (status == SHM_OK) {
    status = shmi_board_create(sup.config.child_count, sup.config.helper_count,
                               sup.config.trace_records);
  }
  if (status == SHM_OK) status = shmi_registry_seal();
  if (status != SHM_OK) destroy_broker();
  return status;
}

/* The parent's whole life, from the first fork to the last reaped process. Returns the outcome. */
static int be_parent(int request_fd, int reply_fd, pid_t caller) {
  role = SHM_ROLE_PARENT;
  role_pid = getpid();
  signals_take();
  int status = open_supervisor();
  if (status == SHM_OK && caller > 0) {
    child_t *first = &sup.children[0];
    status = shmi_process_open(caller, &first->process);
    if (status == SHM_OK) status = watch(&first->process, SHM_ROLE_CHILD, 0);
    if (status == SHM_OK) {
      sup.children_alive = 1;
      status = shmi_dispatch_add_child(sup.dispatch, 0, request_fd, reply_fd, caller);
    }
  }
  if (status == SHM_OK) {
    sup.outcome = SHM_OK;
    supervise();
    status = sup.outcome;
  }
  tell((shm_event_t){.kind = SHM_EVENT_OVER, .exit_status = status});
  close_supervisor();
  signals_give_back();
  return status;
}

/* An init(): fork a parent, become child 0. */
static int become_first_child(void) {
  int reply[2], request[2], capacity;
  int status = two_pipes(reply, request, &capacity);
  if (status != SHM_OK) return status;
  pid_t caller = getpid();
  pthread_sigmask(SIG_SETMASK, NULL, &sup.caller_mask);
  int forked = shmi_process_fork(sup.host.fork, &parent_process);
  if (forked == 0) {
    shmi_descriptor_close(&reply[0]);
    shmi_descriptor_close(&request[1]);
    status = be_parent(request[0], reply[1], caller);
    end_role(status == SHM_OK ? 0 : 1);
  }
  if (forked < 0) {
    shmi_descriptor_keep_only(NULL, 0);
    destroy_broker();
    return forked;
  }
  int ends[3] = {request[1], reply[0], parent_process.pidfd};
  shmi_arena_map_child(0);
  shmi_arena_close_descriptors();
  shmi_descriptor_keep_only(ends, 3);
  role = SHM_ROLE_CHILD;
  role_index = 0;
  role_pid = caller;
  uint32_t window = sup.config.window;
  if (window > (uint32_t)capacity) window = (uint32_t)capacity;
  status = shmi_board_become(SHM_ROLE_CHILD, 0);
  if (status == SHM_OK) status = shmi_arena_populate(0);
  if (status == SHM_OK) status = shmi_port_open(request[1], reply[0], window, 0);
  if (status == SHM_OK) status = shmi_heap_open(shmi_arena_address(0), shmi_arena_bytes(), 0);
  while (status == SHM_OK) {
    status = shmi_port_wait_ready();
    if (status != SHM_EINTR) break;
    /* Ctrl-C while models load: the host decides; otherwise wait on. */
    status = sup.host.on_signal != NULL && sup.host.on_signal() != 0 ? SHM_ESIGNALLED : SHM_OK;
  }
  if (status != SHM_OK) {
    if (shmi_board()->detail[0] != '\0') shmi_detail_set("%s", shmi_board()->detail);
    shm_leave();
  }
  return status;
}

int shm_run(const shm_config_t *config, const shm_host_t *host) {
  if (role != SHM_ROLE_NONE) return SHM_ENESTED;
  shmi_detail_set("%s", "");
  int status = check_config(config);
  if (status != SHM_OK) return status;
  sup = (struct supervisor){.config = *config, .host = *host, .process_epoll = -1};
  if (sup.config.window == 0) sup.config.window = DEFAULT_WINDOW;
  if (sup.config.max_deaths == 0) sup.config.max_deaths = DEFAULT_MAX_DEATHS;
  if (sup.config.death_window_ns == 0) sup.config.death_window_ns = 10 * SECOND;
  if (sup.config.grace_ns == 0) sup.config.grace_ns = 5 * SECOND;
  if (sup.config.caller_is_child) sup.config.child_count = 1;
  status = create_broker();
  if (status != SHM_OK) return status;
  if (sup.config.caller_is_child) return become_first_child();
  status = be_parent(-1, -1, 0);
  destroy_broker();
  return status;
}

int shm_leave(void) {
  if (role != SHM_ROLE_CHILD || parent_process.pid == 0) return SHM_ENOT_RUNNING;
  shmi_port_close(); /* the parent sees its only child leave, drains and ends */
  uint64_t grace_ns = 4 * sup.config.grace_ns;
  uint64_t until_ns = shmi_clock_ns() + grace_ns;
  int exit_status;
  while (!shmi_process_reap(&parent_process, 0, &exit_status)) {
    uint64_t now_ns = shmi_clock_ns();
    if (now_ns >= until_ns) { /* its helpers die with it */
      shmi_process_signal(&parent_process, SIGKILL);
      shmi_process_reap(&parent_process, 1, &exit_status);
      break;
    }
    shmi_channel_wait(parent_process.pidfd, (int64_t)(until_ns - now_ns));
  }
  uint64_t bytes;
  uint64_t mapping = shmi_arena_reservation(&bytes);
  if (shmi_heap_retire(mapping, bytes)) shmi_arena_detach();
  destroy_broker();
  return SHM_OK;
}
