/* supervise_internal -- what the supervisor's two files share.
 *
 * supervise.c           the phases of a broker's life, its timers, its loop
 * supervise_roles.c     what becomes of each helper and child: ready, dead, replaced, hung
 *
 * For these two alone: others see supervise.h.
 */
#ifndef SHMI_SUPERVISE_INTERNAL_H
#define SHMI_SUPERVISE_INTERNAL_H

#include "broker/process_table.h"
#include "broker/supervise.h"

#define SHMI_MS UINT64_C(1000000)
#define SHMI_SECOND UINT64_C(1000000000)

enum shmi_phase {
  SHMI_PHASE_STARTING,
  SHMI_PHASE_RUNNING,
  SHMI_PHASE_DRAINING,
  SHMI_PHASE_ENDING,
  SHMI_PHASE_CLOSING,
  SHMI_PHASE_OVER
};

/* ---- supervise.c ---- */

enum shmi_phase shmi_supervise_phase(void);
/* The launch has failed with this outcome, or is to end: on to the phase that follows from it. The
 * first outcome stands. */
void shmi_supervise_fail(int outcome);
int shmi_supervise_has_failed(void);
/* Look at the signals that have arrived so far. */
void shmi_supervise_handle_signals(void);

/* ---- supervise_roles.c ---- */

/* Records for the helpers and children of this launch, and an observer of the process table. */
int shmi_roles_open(void);
void shmi_roles_close(void);

/* Children that wait to be restarted. */
int shmi_roles_restarts_waiting(void);
void shmi_roles_cancel_restarts(void);

/* Signal the children that we forked, or the helpers. */
void shmi_roles_signal_children(int signal);
void shmi_roles_signal_helpers(int signal);
/* Children that we did not fork are only let go: their next call says that the broker is gone. */
void shmi_roles_let_go(int outcome);

/* After a turn of the dispatcher that reported something of the kind. */
void shmi_roles_helpers_ready(void);
void shmi_roles_callers_left(void);
void shmi_roles_end_offenders(void);

/* Timers; *next_ns becomes the earliest time at which one is due. */
void shmi_roles_replace(uint64_t at_ns, uint64_t *next_ns);
void shmi_roles_end_hung(uint64_t at_ns, uint64_t *next_ns);

#endif
