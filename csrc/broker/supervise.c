/* supervise -- see supervise.h. */
#include "broker/supervise.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/error_detail.h"
#include "broker/listener.h"
#include "broker/process_table_internal.h"
#include "ipc/scoreboard.h"
#include "process/signals.h"

enum {
  BACKOFF_FIRST_MS = 50,
  BACKOFF_MAX_MS = 5000,
  GIVEN_UP_MAX_MS = 30000, /* of a helper that is given up and, by a broker that stands by itself, tried again */
  SIGNALS_EVERY_MS = 50,
  HANG_GRACE_MS = 1000, /* between SIGABRT, which leaves a stack, and SIGKILL */
  DRAIN_LOOK_MS = 5,    /* whether children have read their replies is told by nobody */
  EXIT_TOLD = 128 + SIGTERM, /* what a child that unwound on SIGTERM leaves */
  LINGER_MS = 20,       /* from a child's last reply until it is told to end */
  COPY_PAGES_MS = 50,   /* from an attached program's message until others see what it has counted */
  UNWIND_MS = 100       /* from then until queued calls are handed out again */
};
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

enum phase { STARTING, RUNNING, DRAINING, ENDING, CLOSING, OVER };

static struct {
  enum phase phase;
  int outcome;
  int forced;             /* 1: TERM was sent in this phase; 2: KILL */
  int stops_handled;      /* of the requests to end */
  int restarts_waiting;   /* children that are to be started anew */
  uint64_t signals_ns;    /* when signals were last let in by hand */
  uint64_t deadline_ns;   /* of the phase */
  uint64_t drained_ns;    /* draining: since when there has been nothing left to do; 0: there is */
  uint64_t release_ns;    /* ending: when calls are handed out again; 0: they are */
  uint64_t copy_pages_ns; /* when that is due; 0: nothing has happened since */
  uint64_t copied_at;     /* how many messages there had been then */
  uint64_t idle_since_ns; /* running: when somebody was last joined; 0: somebody is */
} now;

#define table shmi_process_table

/* ---- the phases ---- */

static void enter_phase(enum phase phase) {
  now.phase = phase;
  now.forced = 0;
  /* Once no child is left nobody waits for what helpers still execute: a second to end is enough. */
  uint64_t grace_ns = table.config.grace_ns;
  if (phase == CLOSING && grace_ns > SECOND) grace_ns = SECOND;
  now.deadline_ns = shmi_clock_ns() + grace_ns;
}

/* Children that we did not fork are only let go: their next call says that the broker is gone. */
static void let_go(int outcome) {
  for (int i = 0; i < table.config.slot_count; i++) {
    shmi_child_entry_t *child = &table.children[i];
    if (child->is_ours || child->has_ended || child->process.pid <= 0) continue;
    strncpy(shmi_scoreboard()->detail, shm_error_detail(), SHMI_BOARD_DETAIL_BYTES - 1);
    shmi_dispatch_tell_ready(table.dispatch, i, outcome); /* read only if it still waits */
    shmi_dispatch_remove_child(table.dispatch, i);
    shmi_process_forget(&child->process);
    child->has_ended = 1;
    if (child->is_attached) table.clients_alive--;
    else table.children_alive--;
  }
}

static void begin_ending(int signal) {
  int was_starting = now.phase == STARTING;
  enter_phase(ENDING);
  now.restarts_waiting = 0;
  let_go(now.outcome);
  shmi_process_table_signal_children(signal, SHM_REASON_ENDING);
  if (was_starting) shmi_process_table_signal_helpers(signal); /* nobody waits for a model that loads */
  now.forced = 1;
  /* A child that unwinds may still want an answer, and one that waits in the queue and does not
   * unwind gets it; but what is given up at once need not be begun. */
  now.release_ns = shmi_clock_ns() + UNWIND_MS * MS;
}

static void fail(int outcome) {
  if (now.outcome == SHM_OK) now.outcome = outcome;
  if (now.phase >= DRAINING) return;
  shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_DRAINING, .exit_status = outcome});
  shmi_listener_shut();
  if (outcome == SHM_ESIGNALLED && now.phase == RUNNING) {
    enter_phase(DRAINING);
    shmi_dispatch_hold(table.dispatch, 1);
  } else {
    begin_ending(SIGTERM);
  }
}

static void begin_closing(void) {
  let_go(SHM_ESTOPPED);
  shmi_listener_shut();
  enter_phase(CLOSING);
  shmi_dispatch_close_helpers(table.dispatch);
}

static int everybody_left(void) {
  if (now.phase == RUNNING && table.config.persistent != SHM_UNTIL_CHILDREN_END) {
    const shmi_child_entry_t *first = &table.children[table.config.child_count];
    return table.config.persistent == SHM_UNTIL_FIRST_LEFT &&
           (first->has_ended || (first->process.pid == 0 && !shmi_listener_has_clients()));
  }
  /* Clients are let go when draining is over: until then they get their answers. */
  int waiting = now.phase == DRAINING ? table.clients_alive : 0;
  return table.children_alive == 0 && waiting == 0 && now.restarts_waiting == 0;
}

static void begin_running(void) {
  for (int i = 0; i < table.config.helper_count; i++) {
    if (table.helpers[i].is_wanted &&
        shmi_dispatch_helper_state(table.dispatch, i) != SHMI_PEER_UP) {
      return;
    }
  }
  int status = shmi_listener_open(table.config.listener_fd);
  if (status != SHM_OK) {
    fail(status);
    return;
  }
  shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_READY});
  enter_phase(RUNNING);
  if (table.config.caller_is_child) {
    shmi_dispatch_tell_ready(table.dispatch, 0, SHM_OK);
    return;
  }
  for (int i = 0; i < table.config.child_count; i++) {
    status = shmi_process_table_start_child(i);
    if (status != SHM_OK) {
      fail(status);
      return;
    }
  }
}

/* Go on to the next phase where the present one is done. */
static void advance(void) {
  if (now.phase == STARTING) begin_running();
  if (now.phase >= RUNNING && now.phase <= ENDING && everybody_left()) {
    begin_closing();
  }
  if (now.phase == CLOSING && table.helpers_alive == 0) now.phase = OVER;
}

/* Draining is over when everything is answered and children have had a moment to take it in. */
static void drain(uint64_t at_ns, uint64_t *next_ns) {
  if (!shmi_dispatch_is_drained(table.dispatch)) {
    now.drained_ns = 0;
  } else if (now.drained_ns == 0) {
    now.drained_ns = at_ns;
  } else if (at_ns - now.drained_ns >= LINGER_MS * MS) {
    begin_ending(SIGTERM);
    return;
  }
  shmi_clock_earliest(next_ns, at_ns + DRAIN_LOOK_MS * MS);
}

static int is_in_use(void) {
  return table.children_alive > 0 || table.clients_alive > 0 || shmi_listener_has_clients() ||
         !shmi_dispatch_is_drained(table.dispatch);
}

/* Nobody is left who could be told to end, and no call: on to the end at once. */
static void end_idle(uint64_t at_ns, uint64_t *next_ns) {
  if (table.config.idle_ns == 0 || table.config.persistent != SHM_UNTIL_TOLD) return;
  if (is_in_use()) {
    now.idle_since_ns = 0;
    return;
  }
  if (now.idle_since_ns == 0) now.idle_since_ns = at_ns;
  if (at_ns - now.idle_since_ns < table.config.idle_ns) {
    shmi_clock_earliest(next_ns, now.idle_since_ns + table.config.idle_ns);
    return;
  }
  shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_IDLE, .delay_ns = table.config.idle_ns});
  begin_closing();
}

/* Hand calls out again when it is time; from then on this changes nothing. */
static void release(uint64_t at_ns, uint64_t *next_ns) {
  if (at_ns >= now.release_ns) {
    now.release_ns = 0;
    shmi_dispatch_hold(table.dispatch, 0);
  }
  shmi_clock_earliest(next_ns, now.release_ns);
}

/* The time for the present phase is up: on to the next, or TERM first, then KILL. */
static void press(uint64_t at_ns) {
  if (now.phase < DRAINING || at_ns < now.deadline_ns) return;
  if (now.phase == DRAINING) {
    begin_ending(SIGTERM);
    return;
  }
  int signal = now.forced == 0 ? SIGTERM : SIGKILL;
  if (now.phase == ENDING) shmi_process_table_signal_children(signal, SHM_REASON_ENDING);
  else shmi_process_table_signal_helpers(signal);
  now.forced = signal == SIGTERM ? 1 : 2;
  now.deadline_ns = at_ns + (table.config.grace_ns < SECOND ? table.config.grace_ns : SECOND);
}

/* ---- deaths ---- */

/* The first at once, then later and later. */
static uint64_t backoff_ns(int in_a_row, uint64_t most_ms) {
  if (in_a_row <= 1) return 0;
  int doublings = in_a_row - 2 < 16 ? in_a_row - 2 : 16;
  uint64_t wait_ms = (uint64_t)BACKOFF_FIRST_MS << doublings;
  return (wait_ms < most_ms ? wait_ms : most_ms) * MS;
}

static int in_a_row(int so_far, uint64_t started_ns, uint64_t ended_ns) {
  return ended_ns - started_ns < table.config.death_window_ns ? so_far + 1 : 1;
}

/* A client has left or died. Whoever comes next finds its place clean. */
static void client_left(int index, int pid) {
  table.children[index].has_ended = 1;
  table.clients_alive--;
  shmi_dispatch_remove_child(table.dispatch, index);
  shmi_process_table_tell(
      (shm_event_t){.kind = SHM_EVENT_CHILD_LEFT,
                    .index = index,
                    .pid = pid,
                    .generation = shmi_dispatch_child_generation(table.dispatch, index),
                    .reason = table.children[index].reason});
  shmi_dispatch_clear_child(table.dispatch, index);
}

static void handle_signals(void);

static void child_ended(int index, int pid, int exit_status) {
  shmi_child_entry_t *child = &table.children[index];
  if (child->has_ended) return;
  if (child->is_attached) {
    client_left(index, pid);
    return;
  }
  /* Who told the whole process group to end told us first: then this is no failure. */
  shmi_signals_let_in();
  handle_signals();
  int was_told = exit_status == -SIGTERM || exit_status == EXIT_TOLD;
  if (now.phase >= DRAINING && was_told) child->reason = SHM_REASON_ENDING;
  uint64_t at_ns = shmi_clock_ns();
  int failed = exit_status != 0 && child->is_ours;
  if (exit_status == 0 && child->is_ours && table.host.is_done != NULL && now.phase == RUNNING) {
    failed = !table.host.is_done(index);
  }
  child->short_lives = in_a_row(child->short_lives, child->started_ns, at_ns);
  if (child->short_lives == 1) child->restarts = 0; /* the bound is for those that keep failing */
  int again = failed && now.phase == RUNNING &&
              table.config.restart == SHM_RESTART_ON_FAILURE &&
              child->restarts < table.config.max_restarts;
  table.children_alive--;
  child->has_ended = !again;
  shmi_dispatch_remove_child(table.dispatch, index);
  if (failed && child->reason != SHM_REASON_ENDING) shmi_scoreboard()->broker->child_deaths++;
  shmi_process_table_tell(
      (shm_event_t){.kind = SHM_EVENT_CHILD_ENDED,
                    .index = index,
                    .pid = pid,
                    .exit_status = exit_status,
                    .generation = shmi_dispatch_child_generation(table.dispatch, index),
                    .is_final = !again,
                    .is_failure = failed && child->reason != SHM_REASON_ENDING,
                    .reason = child->reason,
                    .attempts = child->restarts,
                    .delay_ns = again ? backoff_ns(child->short_lives, BACKOFF_MAX_MS) : 0});
  if (again) {
    child->respawn_ns = at_ns + backoff_ns(child->short_lives, BACKOFF_MAX_MS);
    now.restarts_waiting++;
    shmi_dispatch_clear_child(table.dispatch, index);
    return;
  }
  if (now.phase == STARTING) fail(SHM_ESTOPPED); /* an init() that was interrupted */
  if (!failed) return;
  if (now.outcome == SHM_OK) { /* those that end after it were told to */
    shmi_error_detail_set("child %d ended with %s %d", index,
                    exit_status < 0 ? "signal" : "exit status",
                    exit_status < 0 ? -exit_status : exit_status);
  }
  fail(SHM_ECHILD_FAILED);
}

static int others_are_up(int index) {
  for (int i = 0; i < table.config.helper_count; i++) {
    if (i != index && table.helpers[i].is_wanted &&
        table.config.helper_pool[i] == table.config.helper_pool[index] &&
        shmi_dispatch_helper_state(table.dispatch, i) == SHMI_PEER_UP) {
      return 1;
    }
  }
  return 0;
}

/* One that its pool no longer needs has ended, or has died over what it still held; maybe the pool
 * needs one again by now. */
static void retired(int index, int pid, int exit_status, int has_died, const shmi_victim_t *victim,
                    uint64_t at_ns) {
  shmi_helper_entry_t *helper = &table.helpers[index];
  helper->was_let_go = 0;
  helper->deaths += has_died;
  shmi_process_table_tell((shm_event_t){
      .kind = has_died ? SHM_EVENT_HELPER_DIED : SHM_EVENT_HELPER_RETIRED,
      .index = index,
      .pid = pid,
      .exit_status = exit_status,
      .generation = helper->generation,
      .deaths = helper->deaths,
      .reason = helper->reason,
      .attempts = has_died && !helper->is_wanted ? 2 : 0,
      .sequence = victim->sequence,
      .function = victim->function});
  if (helper->is_wanted) helper->respawn_ns = at_ns;
}

static void helper_ended(int index, int pid, int exit_status) {
  shmi_helper_entry_t *helper = &table.helpers[index];
  uint64_t at_ns = shmi_clock_ns();
  shmi_victim_t victim;
  int was_asked = shmi_dispatch_helper_is_closed(table.dispatch, index);
  shmi_dispatch_remove_helper(table.dispatch, index, &victim);
  table.helpers_alive--;
  if (now.phase >= ENDING) return;
  if (now.phase != STARTING && helper->was_let_go) {
    retired(index, pid, exit_status, !was_asked, &victim, at_ns);
    return;
  }
  helper->deaths++;
  helper->short_deaths = in_a_row(helper->short_deaths, helper->started_ns, at_ns);
  int given_up = helper->short_deaths >= table.config.max_deaths;
  /* A broker that others rely on goes on, and tries again; a launch ends. */
  int goes_on = given_up && table.config.persistent == SHM_UNTIL_TOLD;
  uint64_t wait_ns = backoff_ns(helper->short_deaths, goes_on ? GIVEN_UP_MAX_MS : BACKOFF_MAX_MS);
  shmi_process_table_tell((shm_event_t){
      .kind = helper->failed ? SHM_EVENT_HELPER_FAILED : SHM_EVENT_HELPER_DIED,
      .index = index,
      .pid = pid,
      .exit_status = exit_status,
      .generation = helper->generation,
      .deaths = helper->deaths,
      .is_final = (given_up && !goes_on) || now.phase != RUNNING,
      .reason = helper->reason,
      .attempts = goes_on,
      .delay_ns = wait_ns,
      .sequence = victim.sequence,
      .function = victim.function});
  if (now.phase == STARTING) { /* a launch is all or nothing */
    shmi_error_detail_set("helper %d ended while it was starting (%s %d)", index,
                    exit_status < 0 ? "killed by signal" : "exit status",
                    exit_status < 0 ? -exit_status : exit_status);
    fail(SHM_ESESSION);
    return;
  }
  if (goes_on) { /* those that wait would do so through the pause, maybe for the next death */
    shmi_dispatch_give_up_helper(table.dispatch, index, !others_are_up(index));
  } else if (given_up) {
    shmi_error_detail_set("helper %d died %d times, each within %llu s of its start", index,
                    helper->short_deaths,
                    (unsigned long long)(table.config.death_window_ns / SECOND));
    shmi_dispatch_give_up_helper(table.dispatch, index, 1);
    fail(helper->failed ? SHM_ESESSION : SHM_ENO_HELPERS);
    return;
  }
  helper->respawn_ns = at_ns + wait_ns;
}

/* One that we did not fork is over for us, whatever it goes on to do. */
static void let_caller_go(int index) {
  int pid = table.children[index].process.pid;
  shmi_process_forget(&table.children[index].process);
  child_ended(index, pid, 0);
}

static void callers_left(void) {
  for (int i = 0; i < table.config.slot_count; i++) {
    if (table.children[i].is_ours || table.children[i].has_ended) continue;
    if (shmi_dispatch_child_state(table.dispatch, i) == SHMI_PEER_LEFT) {
      let_caller_go(i);
    }
  }
}

static void end_offenders(void) {
  for (int i = 0; i < table.config.slot_count; i++) {
    shmi_child_entry_t *child = &table.children[i];
    if (shmi_dispatch_child_state(table.dispatch, i) != SHMI_PEER_OFFENDED) continue;
    if (child->reason == SHM_REASON_PROTOCOL) continue; /* its end will come */
    child->reason = SHM_REASON_PROTOCOL;
    shmi_process_table_tell((shm_event_t){
        .kind = SHM_EVENT_CHILD_PROTOCOL, .index = i, .pid = child->process.pid});
    if (child->is_ours) shmi_process_signal(&child->process, SIGKILL);
    /* Who errs may go on writing to its arena: a client's is given to nobody before its end. */
    else if (child->is_attached) shmi_dispatch_remove_child(table.dispatch, i);
    else let_caller_go(i);
  }
}

static void helpers_ready(void) {
  for (int i = 0; i < table.config.helper_count; i++) {
    shmi_helper_entry_t *helper = &table.helpers[i];
    int state = shmi_dispatch_helper_state(table.dispatch, i);
    if (state == SHMI_PEER_FAILED && !helper->failed) {
      helper->failed = 1;
      if (now.phase == STARTING) {
        shmi_error_detail_set("helper %d could not make its session", i);
        shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_HELPER_FAILED, .index = i,
                                     .pid = helper->process.pid, .is_final = 1,
                                     .generation = helper->generation});
        fail(SHM_ESESSION);
      }
    } else if (state == SHMI_PEER_UP && !helper->told_ready) {
      helper->told_ready = 1;
      shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_HELPER_READY, .index = i,
                                   .pid = helper->process.pid,
                                   .generation = helper->generation,
                                   .deaths = helper->deaths});
    }
  }
}

/* ---- timers ---- */

/* Told at the 1st, 2nd, 4th, 8th, ... time, so that the log stays readable. */
static void tell_delay(int kind, int index, int *delays) {
  ++*delays;
  if ((*delays & (*delays - 1)) != 0) return;
  shmi_process_table_tell((shm_event_t){
      .kind = kind, .index = index, .attempts = *delays, .delay_ns = SECOND});
}

static void replace_helpers(uint64_t at_ns, uint64_t *next_ns) {
  for (int i = 0; i < table.config.helper_count; i++) {
    shmi_helper_entry_t *helper = &table.helpers[i];
    if (helper->process.pid != 0 || helper->respawn_ns == 0 || !helper->is_wanted) continue;
    if (helper->respawn_ns <= at_ns) {
      if (shmi_process_table_start_helper(i) == SHM_OK) {
        helper->delays = 0;
      } else { /* no process or descriptor to be had now: try again later, others serve on */
        helper->respawn_ns = at_ns + SECOND;
        tell_delay(SHM_EVENT_HELPER_DELAYED, i, &helper->delays);
      }
    }
    if (helper->process.pid == 0) shmi_clock_earliest(next_ns, helper->respawn_ns);
  }
}

static void restart_children(uint64_t at_ns, uint64_t *next_ns) {
  for (int i = 0; i < table.config.child_count && now.restarts_waiting > 0; i++) {
    shmi_child_entry_t *child = &table.children[i];
    if (child->process.pid != 0 || child->respawn_ns == 0) continue;
    if (child->respawn_ns > at_ns) {
      shmi_clock_earliest(next_ns, child->respawn_ns);
    } else if (shmi_dispatch_child_state(table.dispatch, i) == SHMI_PEER_NONE) {
      child->restarts++;
      if (shmi_process_table_start_child(i) == SHM_OK) {
        now.restarts_waiting--;
        child->delays = 0;
        shmi_scoreboard()->broker->child_restarts++;
        shmi_scoreboard()->child_stats[i].restarts++;
      } else {
        child->restarts--;
        child->respawn_ns = at_ns + SECOND;
        shmi_clock_earliest(next_ns, child->respawn_ns);
        tell_delay(SHM_EVENT_CHILD_DELAYED, i, &child->delays);
      }
    } /* else its arena is not clear yet: the dispatcher will say */
  }
}

/* The ladder: SIGABRT leaves a stack, SIGKILL ends whatever is left. */
static void end_hung_helpers(uint64_t at_ns, uint64_t *next_ns) {
  uint64_t look_ns;
  uint64_t hung = shmi_dispatch_hung(table.dispatch, at_ns, &look_ns);
  shmi_clock_earliest(next_ns, look_ns);
  for (; hung != 0; hung &= hung - 1) {
    int i = __builtin_ctzll(hung);
    shmi_helper_entry_t *helper = &table.helpers[i];
    if (helper->reason == SHM_REASON_HUNG) continue;
    helper->reason = SHM_REASON_HUNG;
    shmi_scoreboard()->broker->helper_hangs++;
    shmi_process_table_tell((shm_event_t){.kind = SHM_EVENT_HELPER_HUNG, .index = i,
                                 .pid = helper->process.pid,
                                 .generation = helper->generation});
    shmi_process_signal(&helper->process, SIGABRT);
    helper->kill_ns = at_ns + HANG_GRACE_MS * MS;
  }
  for (int i = 0; i < table.config.helper_count; i++) {
    shmi_helper_entry_t *helper = &table.helpers[i];
    if (helper->kill_ns == 0 && helper->was_let_go &&
        shmi_dispatch_helper_is_closed(table.dispatch, i)) {
      helper->kill_ns = at_ns + table.config.grace_ns; /* it has nothing left to do but to end */
    }
    if (helper->kill_ns == 0 || helper->process.pid == 0) continue;
    if (helper->kill_ns <= at_ns) {
      shmi_process_signal(&helper->process, SIGKILL);
      helper->kill_ns = 0;
    }
    shmi_clock_earliest(next_ns, helper->kill_ns);
  }
}

/* An attached program counts on a page apart, which nobody else sees. */
static void copy_pages(uint64_t at_ns, uint64_t *next_ns) {
  if (table.clients_alive == 0) return;
  const shm_broker_stats_t *broker = shmi_scoreboard()->broker;
  uint64_t messages = broker->submitted + broker->answered;
  if (now.copy_pages_ns == 0 && messages != now.copied_at) {
    now.copy_pages_ns = at_ns + COPY_PAGES_MS * MS;
  }
  if (now.copy_pages_ns != 0 && now.copy_pages_ns <= at_ns) {
    shmi_scoreboard_copy_pages();
    now.copied_at = messages;
    now.copy_pages_ns = 0;
  }
  shmi_clock_earliest(next_ns, now.copy_pages_ns);
}

/* What is due by the clock; returns when something will be, 0: never. */
static uint64_t timers(uint64_t at_ns) {
  uint64_t next_ns = 0;
  press(at_ns);
  if (now.phase == DRAINING) drain(at_ns, &next_ns);
  if (now.phase >= DRAINING) shmi_clock_earliest(&next_ns, now.deadline_ns);
  if (now.phase == ENDING) release(at_ns, &next_ns);
  if (now.phase == RUNNING) {
    replace_helpers(at_ns, &next_ns);
    if (now.restarts_waiting > 0) restart_children(at_ns, &next_ns);
    end_idle(at_ns, &next_ns);
  }
  if (now.phase >= RUNNING && now.phase <= ENDING) end_hung_helpers(at_ns, &next_ns);
  shmi_listener_timers(at_ns, &next_ns);
  copy_pages(at_ns, &next_ns);
  return next_ns;
}

/* ---- the loop ---- */

static void kill_all(void) {
  if (now.phase < ENDING) begin_ending(SIGKILL);
  shmi_process_table_signal_children(SIGKILL, SHM_REASON_ENDING);
  shmi_process_table_signal_helpers(SIGKILL);
}

static void handle_signals(void) {
  int requests = shmi_signals_requests();
  if (requests > now.stops_handled) {
    int is_first = now.stops_handled == 0 && requests == 1;
    now.stops_handled = requests;
    fail(SHM_ESIGNALLED);
    if (!is_first) kill_all(); /* asked twice: now */
  }
  if (table.host.on_signal != NULL && table.host.on_signal() != 0) fail(SHM_ESIGNALLED);
}

/* A wait that finds something ready at once delivers no signal, and a busy broker may wait like
 * that for ever: so let them in from time to time. */
static void let_signals_in(uint64_t at_ns) {
  if (at_ns - now.signals_ns < SIGNALS_EVERY_MS * MS) return;
  now.signals_ns = at_ns;
  shmi_signals_let_in();
  handle_signals();
}

static const shmi_process_table_news_t news = {
    .helper_ended = helper_ended, .child_ended = child_ended, .connecting = shmi_listener_look};

int shmi_supervise(void) {
  memset(&now, 0, sizeof now);
  for (int i = 0; i < table.config.helper_count && now.phase == STARTING; i++) {
    if (!table.helpers[i].is_wanted) continue;
    int status = shmi_process_table_start_helper(i);
    if (status != SHM_OK) fail(status);
  }
  for (;;) {
    uint64_t at_ns = shmi_clock_ns(), next_ns;
    enum phase before;
    do { /* one phase may be over as soon as it begins */
      before = now.phase;
      advance();
      next_ns = timers(at_ns);
    } while (now.phase != before);
    if (now.phase == OVER) {
      shmi_listener_close();
      return now.outcome;
    }
    int64_t timeout_ns = -1;
    if (next_ns != 0) timeout_ns = next_ns > at_ns ? (int64_t)(next_ns - at_ns) : 0;
    int turn = shmi_dispatch_turn(table.dispatch, timeout_ns, shmi_signals_wait_mask());
    if (turn < 0) {
      shmi_error_detail_errno("waiting for messages");
      fail(turn);
      kill_all();
      continue;
    }
    if (turn & SHMI_TURN_SIGNAL) handle_signals();
    else let_signals_in(at_ns);
    if (turn & SHMI_TURN_READY) helpers_ready();
    if (turn & SHMI_TURN_SUPERVISOR) shmi_process_table_look(&news);
    if (turn & SHMI_TURN_LEFT) callers_left();
    if (turn & SHMI_TURN_OFFENDED) end_offenders();
    if (turn & SHMI_TURN_FREED) shmi_listener_slot_freed();
  }
}
