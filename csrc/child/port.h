/* port -- a child's end of the conversation: it sends calls and hands each reply to the thread
 * that waits for it.
 *
 * A call takes an *entry* of a table as large as the window; the entry's number is the low part
 * of the call's sequence, so a reply finds its entry without a search. At most one thread, the
 * *leader*, reads the reply pipe; a blocking caller leads until its own reply has come and
 * then passes the lead on, others sleep on their entry's futex. Replies that nobody waits for
 * (submitted, abandoned, or sent by shm_send_msg) are queued, and an eventfd tells a sleeping
 * drainer or an event loop about those that somebody else read.
 *
 * Owns: the two pipe ends, the entries, the queues. Must never: touch arena bytes, or give an
 * entry away while the broker may still answer it.
 */
#ifndef SHMI_PORT_H
#define SHMI_PORT_H

#include "ipc/frame.h"

/* In a fresh child: speak over these two ends. */
int shmi_port_open(int request_fd, int reply_fd, uint32_t window, int child);
/* Close both ends: the dispatcher sees the child leave. */
void shmi_port_close(void);
/* In a process forked from the one whose port it is: let go of the copy. */
void shmi_port_disown(void);
/* The host has signal handlers that want to be run: no wait goes on for long without a look. */
void shmi_port_heed_signals(void);
int shmi_port_is_open(void);
/* Wait for the parent's READY frame (a caller that became a child): the status it carries. */
int shmi_port_wait_ready(void);

/* Which of these calls has its late reply here? Its index, or -1; takes that reply, and no other,
 * out of what shm_port_drain returns. Does not wait. Once the port is closed, all have. */
int shmi_port_claim(const uint64_t sequences[], int count);

/* The talk's calls. */
int shmi_port_send(const shm_msg_t *msgs, int count, uint32_t limit);
int shmi_port_receive(shm_msg_t *msgs, int *statuses, int max);

#endif
