/* signals -- what signals mean to the parent and to its roles; and the caller's handlers, restored.
 *
 *            parent of a launch()   parent of an init()   a forked role
 *   SIGINT   asks for the end       ignored               ignored: the parent decides
 *   SIGTERM  asks for the end       asks for the end      a child: it ends; a helper: it ends when
 *                                                         the parent says so, and lives on when a
 *                                                         whole process group was told; what a
 *                                                         session forks: when its own parent does
 *   SIGHUP   the host's; asks for   the host's            as the caller had it; ignored where it
 *            the end if it has none                       asks the parent for the end
 *   SIGCHLD  the standard           the standard          as the caller had it
 *   SIGPIPE  ignored                ignored               ignored: a dead peer is an outcome
 *
 * Handlers only count. SIGINT, SIGTERM and SIGHUP are blocked except while the loop waits, so none
 * can arrive between looking and waiting. A signal that another thread gets is forwarded to the
 * loop's.
 *
 * Owns: the dispositions while a broker runs. Must never: act on a signal.
 */
#ifndef SHMI_SIGNALS_H
#define SHMI_SIGNALS_H

#include <signal.h>

#include "base/status.h"

/* In the parent: take over the signals, until they are given back. */
void shmi_signals_take(int ignore_interrupt);
void shmi_signals_give_back(void);
/* In a forked role. */
void shmi_signals_of_role(int role);

/* How many times the parent was asked to end. */
int shmi_signals_requests(void);
/* The mask to wait with. */
const sigset_t *shmi_signals_wait_mask(void);
/* Deliver what is pending, without waiting. */
void shmi_signals_let_in(void);

#endif
