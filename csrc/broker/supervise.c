/* supervise -- see supervise.h. */
#include "broker/supervise_internal.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/error_detail.h"
#include "broker/listener.h"
#include "ipc/scoreboard.h"
#include "process/signals.h"

enum {
  SIGNALS_EVERY_MS = 50,
  STOPPED_MS = 250, /* later than it was due: the loop was stopped (Ctrl-Z), or the machine */
  DRAIN_LOOK_MS = 5,  /* nobody reports that children have read their replies: so look */
  LINGER_MS = 20,     /* from a child's last reply until it is told to end */
  COPY_PAGES_MS = 50, /* from an attached program's message until others see what it has counted */
  UNWIND_MS = 100     /* from telling children to end until queued calls are handed out again */
};
#define MS SHMI_MS
#define SECOND SHMI_SECOND

static const shm_config_t *config;
static shmi_dispatch_t *dispatch;

static struct {
  enum shmi_phase phase;
  int outcome;
  int forced;             /* 1: TERM was sent in this phase; 2: KILL */
  int stops_handled;      /* how many requests to end were acted on */
  uint64_t signals_ns;    /* when signals were last let in by hand */
  uint64_t deadline_ns;   /* of the phase */
  uint64_t drained_ns;    /* draining: since when there has been nothing left to do; 0: there is */
  uint64_t release_ns;    /* ending: when calls are handed out again; 0: they are */
  uint64_t copy_pages_ns; /* when that is due; 0: nothing has happened since */
  uint64_t copied_at;     /* how many messages there had been then */
  uint64_t idle_since_ns; /* running: since when nobody has been attached; 0: somebody is */
} now;

enum shmi_phase shmi_supervise_phase(void) { return now.phase; }
int shmi_supervise_has_failed(void) { return now.outcome != SHM_OK; }

/* ---- the phases ---- */

static void enter_phase(enum shmi_phase phase) {
  now.phase = phase;
  now.forced = 0;
  /* Once no child is left, nobody waits for what helpers still execute: a second is enough. */
  uint64_t grace_ns = config->grace_ns;
  if (phase == SHMI_PHASE_CLOSING && grace_ns > SECOND) grace_ns = SECOND;
  now.deadline_ns = shmi_clock_ns() + grace_ns;
}

static void begin_ending(int signal) {
  int was_starting = now.phase == SHMI_PHASE_STARTING;
  enter_phase(SHMI_PHASE_ENDING);
  shmi_roles_cancel_restarts();
  shmi_roles_let_go(now.outcome);
  shmi_roles_signal_children(signal);
  if (was_starting) shmi_roles_signal_helpers(signal); /* nobody waits for a model that loads */
  now.forced = 1;
  /* A child that unwinds may still need an answer, and so does one that waits without unwinding;
   * but a call that is given up at once need not be begun. */
  now.release_ns = shmi_clock_ns() + UNWIND_MS * MS;
}

void shmi_supervise_fail(int outcome) {
  if (now.outcome == SHM_OK) now.outcome = outcome;
  if (now.phase >= SHMI_PHASE_DRAINING) return;
  shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_DRAINING, .exit_status = outcome});
  shmi_listener_shut();
  if (outcome == SHM_ESIGNALLED && now.phase == SHMI_PHASE_RUNNING) {
    enter_phase(SHMI_PHASE_DRAINING);
    shmi_dispatch_hold(dispatch, 1);
  } else {
    begin_ending(SIGTERM);
  }
}

static void begin_closing(void) {
  shmi_roles_let_go(SHM_ESTOPPED);
  shmi_listener_shut();
  enter_phase(SHMI_PHASE_CLOSING);
  shmi_dispatch_close_helpers(dispatch);
}

static int everybody_left(void) {
  if (now.phase == SHMI_PHASE_RUNNING && config->persistent != SHM_UNTIL_CHILDREN_END) {
    int first = config->child_count; /* the first client's slot */
    return config->persistent == SHM_UNTIL_FIRST_LEFT &&
           (shmi_process_table_child_is_over(first) ||
            (shmi_process_table_child_pid(first) == 0 && !shmi_listener_has_clients()));
  }
  /* Clients are let go when draining is over: until then they get their answers. */
  shmi_alive_t alive = shmi_process_table_alive();
  int waiting = now.phase == SHMI_PHASE_DRAINING ? alive.clients : 0;
  return alive.children == 0 && waiting == 0 && shmi_roles_restarts_waiting() == 0;
}

static void begin_running(void) {
  for (int i = 0; i < config->helper_count; i++) {
    if (shmi_process_table_helper_is_wanted(i) &&
        shmi_dispatch_helper_state(dispatch, i) != SHMI_PEER_UP) {
      return;
    }
  }
  int status = shmi_listener_open(config->listener_fd);
  if (status != SHM_OK) {
    shmi_supervise_fail(status);
    return;
  }
  shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_READY});
  enter_phase(SHMI_PHASE_RUNNING);
  if (config->caller_is_child) {
    shmi_dispatch_tell_ready(dispatch, 0, SHM_OK);
    return;
  }
  for (int i = 0; i < config->child_count; i++) {
    status = shmi_process_table_start_child(i);
    if (status != SHM_OK) {
      shmi_supervise_fail(status);
      return;
    }
  }
}

/* Enter the next phase if the present one is over. */
static void advance(void) {
  if (now.phase == SHMI_PHASE_STARTING) begin_running();
  if (now.phase >= SHMI_PHASE_RUNNING && now.phase <= SHMI_PHASE_ENDING && everybody_left()) {
    begin_closing();
  }
  if (now.phase == SHMI_PHASE_CLOSING && shmi_process_table_alive().helpers == 0) {
    now.phase = SHMI_PHASE_OVER;
  }
}

/* Draining is over when everything is answered and children have had a moment to read it. */
static void drain(uint64_t at_ns, uint64_t *next_ns) {
  if (!shmi_dispatch_is_drained(dispatch)) {
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
  shmi_alive_t alive = shmi_process_table_alive();
  return alive.children > 0 || alive.clients > 0 || shmi_listener_has_clients() ||
         !shmi_dispatch_is_drained(dispatch);
}

/* Close when the broker has been idle for long enough. No child is left who could be told to
 * end. */
static void end_idle(uint64_t at_ns, uint64_t *next_ns) {
  if (config->idle_ns == 0 || config->persistent != SHM_UNTIL_TOLD) return;
  if (is_in_use()) {
    now.idle_since_ns = 0;
    return;
  }
  if (now.idle_since_ns == 0) now.idle_since_ns = at_ns;
  if (at_ns - now.idle_since_ns < config->idle_ns) {
    shmi_clock_earliest(next_ns, now.idle_since_ns + config->idle_ns);
    return;
  }
  shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_IDLE, .delay_ns = config->idle_ns});
  begin_closing();
}

/* Hand out calls again when it is time. Afterwards this changes nothing. */
static void release(uint64_t at_ns, uint64_t *next_ns) {
  if (at_ns >= now.release_ns) {
    now.release_ns = 0;
    shmi_dispatch_hold(dispatch, 0);
  }
  shmi_clock_earliest(next_ns, now.release_ns);
}

/* The deadline of the present phase has passed: enter the next, or signal TERM first, then KILL. */
static void escalate(uint64_t at_ns) {
  if (now.phase < SHMI_PHASE_DRAINING || at_ns < now.deadline_ns) return;
  if (now.phase == SHMI_PHASE_DRAINING) {
    begin_ending(SIGTERM);
    return;
  }
  int signal = now.forced == 0 ? SIGTERM : SIGKILL;
  if (now.phase == SHMI_PHASE_ENDING) shmi_roles_signal_children(signal);
  else shmi_roles_signal_helpers(signal);
  now.forced = signal == SIGTERM ? 1 : 2;
  now.deadline_ns = at_ns + (config->grace_ns < SECOND ? config->grace_ns : SECOND);
}

/* ---- timers ---- */

/* Attached programs count on pages of their own, which nobody else sees: copy those. */
static void copy_pages(uint64_t at_ns, uint64_t *next_ns) {
  if (shmi_process_table_alive().clients == 0) return;
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

/* Do what is due by now; returns when something will be due next, 0: never. */
static uint64_t timers(uint64_t at_ns) {
  uint64_t next_ns = 0;
  escalate(at_ns);
  if (now.phase == SHMI_PHASE_DRAINING) drain(at_ns, &next_ns);
  if (now.phase >= SHMI_PHASE_DRAINING) shmi_clock_earliest(&next_ns, now.deadline_ns);
  if (now.phase == SHMI_PHASE_ENDING) release(at_ns, &next_ns);
  /* While others start, one may already have been idle for long enough to be replaced. */
  if (now.phase <= SHMI_PHASE_RUNNING) shmi_roles_replace(at_ns, &next_ns);
  if (now.phase == SHMI_PHASE_RUNNING) end_idle(at_ns, &next_ns);
  if (now.phase >= SHMI_PHASE_RUNNING && now.phase <= SHMI_PHASE_ENDING) {
    shmi_roles_end_hung(at_ns, &next_ns);
  }
  shmi_listener_timers(at_ns, &next_ns);
  copy_pages(at_ns, &next_ns);
  return next_ns;
}

/* ---- the loop ---- */

static void kill_all(void) {
  if (now.phase < SHMI_PHASE_ENDING) begin_ending(SIGKILL);
  shmi_roles_signal_children(SIGKILL);
  shmi_roles_signal_helpers(SIGKILL);
}

void shmi_supervise_handle_signals(void) {
  const shm_host_t *host = shmi_process_table_host();
  int requests = shmi_signals_requests();
  if (requests > now.stops_handled) {
    int is_first = now.stops_handled == 0 && requests == 1;
    now.stops_handled = requests;
    shmi_supervise_fail(SHM_ESIGNALLED);
    if (!is_first) kill_all(); /* asked twice: now */
  }
  if (host->on_signal != NULL && host->on_signal() != 0) shmi_supervise_fail(SHM_ESIGNALLED);
}

/* A wait that finds something ready at once delivers no signal, and in a busy broker every wait may
 * be like that: so let signals in from time to time. */
static void let_signals_in(uint64_t at_ns) {
  if (at_ns - now.signals_ns < SIGNALS_EVERY_MS * MS) return;
  now.signals_ns = at_ns;
  shmi_signals_let_in();
  shmi_supervise_handle_signals();
}

static int supervise(void) {
  for (int i = 0; i < config->helper_count && now.phase == SHMI_PHASE_STARTING; i++) {
    if (!shmi_process_table_helper_is_wanted(i)) continue;
    int status = shmi_process_table_start_helper(i);
    if (status != SHM_OK) shmi_supervise_fail(status);
  }
  for (uint64_t next_ns = 0;;) {
    uint64_t at_ns = shmi_clock_ns();
    if (next_ns != 0 && at_ns > next_ns + STOPPED_MS * MS) {
      shmi_dispatch_was_stopped(dispatch, at_ns);
    }
    enum shmi_phase before;
    do { /* one phase may be over as soon as it begins */
      before = now.phase;
      advance();
      next_ns = timers(at_ns);
    } while (now.phase != before);
    if (now.phase == SHMI_PHASE_OVER) {
      shmi_listener_close();
      return now.outcome;
    }
    int64_t timeout_ns = -1;
    if (next_ns != 0) timeout_ns = next_ns > at_ns ? (int64_t)(next_ns - at_ns) : 0;
    int turn = shmi_dispatch_turn(dispatch, timeout_ns, shmi_signals_wait_mask());
    if (turn < 0) {
      shmi_error_detail_errno("waiting for messages");
      shmi_supervise_fail(turn);
      kill_all();
      continue;
    }
    if (turn & SHMI_TURN_SIGNAL) shmi_supervise_handle_signals();
    else let_signals_in(at_ns);
    if (turn & SHMI_TURN_READY) shmi_roles_helpers_ready();
    if (turn & SHMI_TURN_SUPERVISOR) shmi_process_table_poll();
    if (turn & SHMI_TURN_LEFT) shmi_roles_callers_left();
    if (turn & SHMI_TURN_OFFENDED) shmi_roles_end_offenders();
    if (turn & SHMI_TURN_FREED) shmi_listener_slot_freed();
  }
}

int shmi_supervise(void) {
  memset(&now, 0, sizeof now);
  config = shmi_process_table_config();
  dispatch = shmi_process_table_dispatch();
  int outcome = shmi_roles_open();
  if (outcome == SHM_OK) outcome = supervise();
  shmi_roles_close();
  return outcome;
}
