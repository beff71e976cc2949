/* supervise_roles -- each helper and child while the broker runs: dead helpers are replaced, failed
 * children restarted, hung ones ended. See supervise_internal.h.
 */
#include "broker/supervise_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error_detail.h"
#include "broker/listener.h"
#include "ipc/scoreboard.h"
#include "process/signals.h"

enum {
  BACKOFF_FIRST_MS = 50,
  BACKOFF_MAX_MS = 5000,
  GIVEN_UP_MAX_MS = 30000, /* of a helper that is given up but tried again: in a broker on its own */
  HANG_GRACE_MS = 1000, /* between SIGABRT, which leaves a stack, and SIGKILL */
  EXIT_TOLD = 128 + SIGTERM /* the exit status of a child that unwound on SIGTERM */
};

typedef struct helper_record {
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be replaced */
  uint64_t kill_ns;    /* when to kill it, hung or leaving; 0: never */
  int deaths;          /* in all */
  int short_deaths;    /* in a row, each within the death window of its start */
  int delays;          /* failed forks, in a row */
  int reason;          /* shm_reason: why we end it */
  int failed;          /* it reported that its session could not be made */
  int was_reported_ready;
} helper_record_t;

typedef struct child_record {
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be restarted */
  int restarts;        /* since it last ran for long */
  int short_lives;     /* in a row, each within the death window of its start */
  int delays;          /* failed forks, in a row */
  int reason;          /* shm_reason: why we end it */
} child_record_t;

static const shm_config_t *config;
static shmi_dispatch_t *dispatch;
static helper_record_t *helpers;
static child_record_t *children;
static int restarts_waiting;

int shmi_roles_restarts_waiting(void) { return restarts_waiting; }
void shmi_roles_cancel_restarts(void) { restarts_waiting = 0; }

/* ---- what the process table reports: starts ---- */

static void helper_started(int index) {
  helper_record_t *helper = &helpers[index];
  helper->started_ns = shmi_clock_ns();
  helper->respawn_ns = helper->kill_ns = 0;
  helper->failed = helper->was_reported_ready = 0;
  helper->reason = SHM_REASON_NONE;
  shmi_process_table_report((shm_event_t){
      .kind = SHM_EVENT_HELPER_STARTED,
      .index = index,
      .pid = shmi_process_table_helper_pid(index),
      .generation = shmi_process_table_helper_generation(index),
      .deaths = helper->deaths});
}

static void helper_wanted(int index) { helpers[index].short_deaths = 0; }

static void child_started(int index) {
  child_record_t *child = &children[index];
  int is_client = shmi_process_table_child_kind(index) == SHMI_CHILD_CLIENT;
  if (is_client) *child = (child_record_t){0};
  child->reason = SHM_REASON_NONE;
  child->respawn_ns = 0;
  child->started_ns = shmi_clock_ns();
  shmi_process_table_report((shm_event_t){
      .kind = is_client ? SHM_EVENT_CHILD_JOINED : SHM_EVENT_CHILD_STARTED,
      .index = index,
      .pid = shmi_process_table_child_pid(index),
      .generation = shmi_dispatch_child_generation(dispatch, index),
      .attempts = child->restarts});
}

/* ---- and ends ---- */

/* The first replacement comes at once, the others after growing pauses. */
static uint64_t backoff_ns(int in_a_row, uint64_t most_ms) {
  if (in_a_row <= 1) return 0;
  int doublings = in_a_row - 2 < 16 ? in_a_row - 2 : 16;
  uint64_t wait_ms = (uint64_t)BACKOFF_FIRST_MS << doublings;
  return (wait_ms < most_ms ? wait_ms : most_ms) * SHMI_MS;
}

static int in_a_row(int so_far, uint64_t started_ns, uint64_t ended_ns) {
  return ended_ns - started_ns < config->death_window_ns ? so_far + 1 : 1;
}

/* A client has left or died. The next one finds a clean slot. */
static void client_left(int index, int pid) {
  shmi_process_table_child_gone(index, 1);
  shmi_dispatch_remove_child(dispatch, index);
  shmi_process_table_report(
      (shm_event_t){.kind = SHM_EVENT_CHILD_LEFT,
                    .index = index,
                    .pid = pid,
                    .generation = shmi_dispatch_child_generation(dispatch, index),
                    .reason = children[index].reason});
  shmi_dispatch_clear_child(dispatch, index);
}

static void child_ended(int index, int pid, int exit_status) {
  child_record_t *child = &children[index];
  if (shmi_process_table_child_is_over(index)) return;
  enum shmi_child_kind kind = shmi_process_table_child_kind(index);
  if (kind == SHMI_CHILD_CLIENT) {
    client_left(index, pid);
    return;
  }
  /* If the whole process group was told to end, we were told too: then this is no failure. */
  shmi_signals_let_in();
  shmi_supervise_handle_signals();
  enum shmi_phase phase = shmi_supervise_phase();
  const shm_host_t *host = shmi_process_table_host();
  int is_ours = kind == SHMI_CHILD_FORKED;
  int was_told = exit_status == -SIGTERM || exit_status == EXIT_TOLD;
  if (phase >= SHMI_PHASE_DRAINING && was_told) child->reason = SHM_REASON_ENDING;
  uint64_t at_ns = shmi_clock_ns();
  int failed = exit_status != 0 && is_ours;
  if (exit_status == 0 && is_ours && host->is_done != NULL && phase == SHMI_PHASE_RUNNING) {
    failed = !host->is_done(index);
  }
  child->short_lives = in_a_row(child->short_lives, child->started_ns, at_ns);
  if (child->short_lives == 1) child->restarts = 0; /* the bound is for those that keep failing */
  int again = failed && phase == SHMI_PHASE_RUNNING &&
              config->restart == SHM_RESTART_ON_FAILURE && child->restarts < config->max_restarts;
  shmi_process_table_child_gone(index, !again);
  shmi_dispatch_remove_child(dispatch, index);
  if (failed && child->reason != SHM_REASON_ENDING) shmi_scoreboard()->broker->child_deaths++;
  shmi_process_table_report(
      (shm_event_t){.kind = SHM_EVENT_CHILD_ENDED,
                    .index = index,
                    .pid = pid,
                    .exit_status = exit_status,
                    .generation = shmi_dispatch_child_generation(dispatch, index),
                    .is_final = !again,
                    .is_failure = failed && child->reason != SHM_REASON_ENDING,
                    .reason = child->reason,
                    .attempts = child->restarts,
                    .delay_ns = again ? backoff_ns(child->short_lives, BACKOFF_MAX_MS) : 0});
  if (again) {
    child->respawn_ns = at_ns + backoff_ns(child->short_lives, BACKOFF_MAX_MS);
    restarts_waiting++;
    shmi_dispatch_clear_child(dispatch, index);
    return;
  }
  if (phase == SHMI_PHASE_STARTING) shmi_supervise_fail(SHM_ESTOPPED); /* an interrupted init() */
  if (!failed) return;
  if (!shmi_supervise_has_failed()) { /* those that end later were told to */
    shmi_error_detail_set("child %d ended with %s %d", index,
                          exit_status < 0 ? "signal" : "exit status",
                          exit_status < 0 ? -exit_status : exit_status);
  }
  shmi_supervise_fail(SHM_ECHILD_FAILED);
}

static int is_up(int index) {
  return shmi_dispatch_helper_state(dispatch, index) == SHMI_PEER_UP;
}

static int others_are_up(int index) {
  for (int i = 0; i < config->helper_count; i++) {
    if (i != index && shmi_process_table_helper_is_wanted(i) &&
        config->helper_pool[i] == config->helper_pool[index] && is_up(i)) {
      return 1;
    }
  }
  return 0;
}

/* A helper that its pool no longer needs has ended, or has died over what it still held. By now the
 * pool may need one again. */
static void retired(int index, int pid, int exit_status, int has_died,
                    const shmi_victim_t *victim) {
  helper_record_t *helper = &helpers[index];
  int is_wanted = shmi_process_table_helper_is_wanted(index);
  helper->deaths += has_died;
  shmi_process_table_report((shm_event_t){
      .kind = has_died ? SHM_EVENT_HELPER_DIED : SHM_EVENT_HELPER_RETIRED,
      .index = index,
      .pid = pid,
      .exit_status = exit_status,
      .generation = shmi_process_table_helper_generation(index),
      .deaths = helper->deaths,
      .reason = helper->reason,
      .attempts = has_died && !is_wanted ? 2 : 0,
      .sequence = victim->sequence,
      .function = victim->function});
  if (is_wanted) helper->respawn_ns = shmi_clock_ns();
}

static void helper_ended(int index, int pid, int exit_status, int was_let_go) {
  helper_record_t *helper = &helpers[index];
  enum shmi_phase phase = shmi_supervise_phase();
  uint64_t at_ns = shmi_clock_ns();
  shmi_victim_t victim;
  int was_asked = shmi_dispatch_helper_is_closed(dispatch, index);
  int was_unloading = shmi_dispatch_helper_is_unloading(dispatch, index);
  if (shmi_dispatch_helper_is_condemned(dispatch, index) && helper->reason == SHM_REASON_NONE) {
    helper->reason = SHM_REASON_BROADCAST;
  }
  shmi_dispatch_remove_helper(dispatch, index, &victim);
  if (phase >= SHMI_PHASE_ENDING) return;
  if (phase != SHMI_PHASE_STARTING && was_let_go) {
    retired(index, pid, exit_status, !was_asked, &victim);
    return;
  }
  if (was_unloading) { /* it held nothing, however it ended */
    shmi_process_table_report(
        (shm_event_t){.kind = SHM_EVENT_HELPER_UNLOADED,
                      .index = index,
                      .pid = pid,
                      .exit_status = exit_status,
                      .generation = shmi_process_table_helper_generation(index)});
    helper->respawn_ns = at_ns;
    return;
  }
  helper->deaths++;
  /* A helper that served until a broadcast failed there is no sign that its successors will fail. */
  int has_served = helper->reason == SHM_REASON_BROADCAST && helper->was_reported_ready;
  helper->short_deaths =
      has_served ? 0 : in_a_row(helper->short_deaths, helper->started_ns, at_ns);
  int given_up = helper->short_deaths >= config->max_deaths;
  /* A broker that other programs rely on keeps trying; a launch ends. */
  int tries_on = given_up && config->persistent == SHM_UNTIL_TOLD;
  uint64_t wait_ns = backoff_ns(helper->short_deaths, tries_on ? GIVEN_UP_MAX_MS : BACKOFF_MAX_MS);
  shmi_process_table_report((shm_event_t){
      .kind = helper->failed ? SHM_EVENT_HELPER_FAILED : SHM_EVENT_HELPER_DIED,
      .index = index,
      .pid = pid,
      .exit_status = exit_status,
      .generation = shmi_process_table_helper_generation(index),
      .deaths = helper->deaths,
      .is_final = (given_up && !tries_on) || phase != SHMI_PHASE_RUNNING,
      .reason = helper->reason,
      .attempts = tries_on,
      .delay_ns = wait_ns,
      .sequence = victim.sequence,
      .function = victim.function});
  if (phase == SHMI_PHASE_STARTING) { /* a launch is all or nothing */
    shmi_error_detail_set("helper %d ended while it was starting (%s %d)", index,
                          exit_status < 0 ? "killed by signal" : "exit status",
                          exit_status < 0 ? -exit_status : exit_status);
    shmi_supervise_fail(SHM_ESESSION);
    return;
  }
  if (tries_on) { /* calls that wait would wait through the pause, maybe only for the next death */
    shmi_dispatch_give_up_helper(dispatch, index, !others_are_up(index));
  } else if (given_up) {
    shmi_error_detail_set("helper %d died %d times, each within %llu s of its start", index,
                          helper->short_deaths,
                          (unsigned long long)(config->death_window_ns / SHMI_SECOND));
    shmi_dispatch_give_up_helper(dispatch, index, 1);
    shmi_supervise_fail(helper->failed ? SHM_ESESSION : SHM_ENO_HELPERS);
    return;
  }
  helper->respawn_ns = at_ns + wait_ns;
}

/* ---- what the dispatcher reports ---- */

void shmi_roles_helpers_ready(void) {
  for (int i = 0; i < config->helper_count; i++) {
    helper_record_t *helper = &helpers[i];
    int state = shmi_dispatch_helper_state(dispatch, i);
    shm_event_t event = {.index = i,
                         .pid = shmi_process_table_helper_pid(i),
                         .generation = shmi_process_table_helper_generation(i),
                         .deaths = helper->deaths};
    if (state == SHMI_PEER_FAILED && !helper->failed) {
      helper->failed = 1;
      if (shmi_supervise_phase() == SHMI_PHASE_STARTING) {
        shmi_error_detail_set("helper %d could not make its session", i);
        event.kind = SHM_EVENT_HELPER_FAILED;
        event.is_final = 1;
        event.deaths = 0;
        shmi_process_table_report(event);
        shmi_supervise_fail(SHM_ESESSION);
      }
    } else if (state == SHMI_PEER_UP && !helper->was_reported_ready) {
      helper->was_reported_ready = 1;
      event.kind = SHM_EVENT_HELPER_READY;
      shmi_process_table_report(event);
    }
  }
}

/* A process that we did not fork has left as far as we are concerned, whatever it does next. */
static void release_caller(int index) {
  int pid = shmi_process_table_release_child(index);
  child_ended(index, pid, 0);
}

void shmi_roles_callers_left(void) {
  for (int i = 0; i < config->slot_count; i++) {
    if (shmi_process_table_child_kind(i) == SHMI_CHILD_FORKED) continue;
    if (shmi_process_table_child_is_over(i)) continue;
    if (shmi_dispatch_child_state(dispatch, i) == SHMI_PEER_LEFT) release_caller(i);
  }
}

void shmi_roles_end_offenders(void) {
  for (int i = 0; i < config->slot_count; i++) {
    child_record_t *child = &children[i];
    if (shmi_dispatch_child_state(dispatch, i) != SHMI_PEER_OFFENDED) continue;
    if (child->reason == SHM_REASON_PROTOCOL) continue; /* it has been signalled already */
    child->reason = SHM_REASON_PROTOCOL;
    shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_CHILD_PROTOCOL,
                                            .index = i,
                                            .pid = shmi_process_table_child_pid(i)});
    switch (shmi_process_table_child_kind(i)) {
      case SHMI_CHILD_FORKED:
        shmi_process_table_signal_child(i, SIGKILL);
        break;
      case SHMI_CHILD_CLIENT:
        /* It may go on writing to its arena, so nobody else gets that before it has ended. */
        shmi_dispatch_remove_child(dispatch, i);
        break;
      default:
        release_caller(i);
    }
  }
}

/* ---- ending ---- */

void shmi_roles_signal_children(int signal) {
  for (int i = 0; i < config->child_count; i++) { /* the slots of clients come after these */
    if (!shmi_process_table_signal_child(i, signal)) continue;
    if (children[i].reason == SHM_REASON_NONE) children[i].reason = SHM_REASON_ENDING;
  }
}

void shmi_roles_signal_helpers(int signal) {
  for (int i = 0; i < config->helper_count; i++) shmi_process_table_signal_helper(i, signal);
}

void shmi_roles_let_go(int outcome) {
  for (int i = 0; i < config->slot_count; i++) {
    if (shmi_process_table_child_kind(i) == SHMI_CHILD_FORKED) continue;
    if (shmi_process_table_child_is_over(i) || shmi_process_table_child_pid(i) <= 0) continue;
    strncpy(shmi_scoreboard()->detail, shm_error_detail(), SHMI_SCOREBOARD_DETAIL_BYTES - 1);
    shmi_dispatch_tell_ready(dispatch, i, outcome); /* read only by one that still waits for it */
    shmi_dispatch_remove_child(dispatch, i);
    shmi_process_table_release_child(i);
    shmi_process_table_child_gone(i, 1);
  }
}

/* ---- timers ---- */

/* Reported at the 1st, 2nd, 4th, 8th, ... time, so that the log stays readable. */
static void report_delay(int kind, int index, int *delays) {
  ++*delays;
  if ((*delays & (*delays - 1)) != 0) return;
  shmi_process_table_report((shm_event_t){
      .kind = kind, .index = index, .attempts = *delays, .delay_ns = SHMI_SECOND});
}

static void replace_helpers(uint64_t at_ns, uint64_t *next_ns) {
  for (int i = 0; i < config->helper_count; i++) {
    helper_record_t *helper = &helpers[i];
    if (shmi_process_table_helper_pid(i) != 0 || helper->respawn_ns == 0) continue;
    if (!shmi_process_table_helper_is_wanted(i)) continue;
    if (helper->respawn_ns <= at_ns) {
      if (shmi_process_table_start_helper(i) == SHM_OK) {
        helper->delays = 0;
      } else { /* no process or descriptor can be had now: try again later, others keep serving */
        helper->respawn_ns = at_ns + SHMI_SECOND;
        report_delay(SHM_EVENT_HELPER_DELAYED, i, &helper->delays);
      }
    }
    if (shmi_process_table_helper_pid(i) == 0) shmi_clock_earliest(next_ns, helper->respawn_ns);
  }
}

static void restart_children(uint64_t at_ns, uint64_t *next_ns) {
  for (int i = 0; i < config->child_count && restarts_waiting > 0; i++) {
    child_record_t *child = &children[i];
    if (shmi_process_table_child_pid(i) != 0 || child->respawn_ns == 0) continue;
    if (child->respawn_ns > at_ns) {
      shmi_clock_earliest(next_ns, child->respawn_ns);
    } else if (shmi_dispatch_child_state(dispatch, i) == SHMI_PEER_NONE) {
      child->restarts++;
      if (shmi_process_table_start_child(i) == SHM_OK) {
        restarts_waiting--;
        child->delays = 0;
        shmi_scoreboard()->broker->child_restarts++;
        shmi_scoreboard()->child_stats[i].restarts++;
      } else {
        child->restarts--;
        child->respawn_ns = at_ns + SHMI_SECOND;
        shmi_clock_earliest(next_ns, child->respawn_ns);
        report_delay(SHM_EVENT_CHILD_DELAYED, i, &child->delays);
      }
    } /* else its arena is not clear yet: the dispatcher will report when it is */
  }
}

void shmi_roles_replace(uint64_t at_ns, uint64_t *next_ns) {
  replace_helpers(at_ns, next_ns);
  if (restarts_waiting > 0) restart_children(at_ns, next_ns);
}

/* In two steps: SIGABRT leaves a stack, SIGKILL ends whatever is left. */
void shmi_roles_end_hung(uint64_t at_ns, uint64_t *next_ns) {
  uint64_t look_ns;
  uint64_t hung = shmi_dispatch_hung(dispatch, at_ns, &look_ns);
  shmi_clock_earliest(next_ns, look_ns);
  for (; hung != 0; hung &= hung - 1) {
    int i = __builtin_ctzll(hung);
    helper_record_t *helper = &helpers[i];
    if (helper->reason == SHM_REASON_HUNG) continue;
    helper->reason = SHM_REASON_HUNG;
    shmi_scoreboard()->broker->helper_hangs++;
    shmi_process_table_report((shm_event_t){
        .kind = SHM_EVENT_HELPER_HUNG,
        .index = i,
        .pid = shmi_process_table_helper_pid(i),
        .generation = shmi_process_table_helper_generation(i)});
    shmi_process_table_signal_helper(i, SIGABRT);
    helper->kill_ns = at_ns + HANG_GRACE_MS * SHMI_MS;
  }
  for (int i = 0; i < config->helper_count; i++) {
    helper_record_t *helper = &helpers[i];
    int is_to_end = shmi_process_table_helper_was_let_go(i) ||
                    shmi_dispatch_helper_is_unloading(dispatch, i) ||
                    shmi_dispatch_helper_is_condemned(dispatch, i);
    if (helper->kill_ns == 0 && is_to_end && shmi_dispatch_helper_is_closed(dispatch, i)) {
      helper->kill_ns = at_ns + config->grace_ns; /* it has nothing left to do but to end */
    }
    if (helper->kill_ns == 0 || shmi_process_table_helper_pid(i) == 0) continue;
    if (helper->kill_ns <= at_ns) {
      shmi_process_table_signal_helper(i, SIGKILL);
      helper->kill_ns = 0;
    }
    shmi_clock_earliest(next_ns, helper->kill_ns);
  }
}

/* ---- opening and closing ---- */

static const shmi_process_observer_t observer = {.helper_started = helper_started,
                                                 .helper_ended = helper_ended,
                                                 .helper_wanted = helper_wanted,
                                                 .child_started = child_started,
                                                 .child_ended = child_ended,
                                                 .client_readable = shmi_listener_read};

int shmi_roles_open(void) {
  config = shmi_process_table_config();
  dispatch = shmi_process_table_dispatch();
  restarts_waiting = 0;
  helpers = calloc((size_t)config->helper_count, sizeof *helpers);
  children = calloc((size_t)config->slot_count, sizeof *children);
  shmi_process_table_observe(&observer);
  return helpers != NULL && children != NULL ? SHM_OK : SHM_ESYSTEM;
}

void shmi_roles_close(void) {
  free(helpers);
  free(children);
  helpers = NULL;
  children = NULL;
}
