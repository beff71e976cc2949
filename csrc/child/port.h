/* port -- a child's end of the connection: it sends calls and hands each reply to the thread that
 * waits for it.
 *
 * A call takes an *entry* of a table as large as the window. The entry's number is the low part of
 * the call's sequence number, so a reply finds its entry without a search. At most one thread, the
 * *leader*, reads the reply pipe: a blocking caller leads until its own reply has come and then
 * passes the lead on; others sleep on their entry's futex. Replies that no thread waits for (of
 * submitted or abandoned calls, or of shm_send_msg) are queued, and an eventfd tells a sleeping
 * drainer or an event loop about those that another thread has read.
 *
 * Owns: the two pipe ends, the entries, the queues. Must never: touch arena bytes, or reuse an
 * entry while the broker may still answer its call.
 */
#ifndef SHMI_PORT_H
#define SHMI_PORT_H

#include "ipc/frame.h"

/* In a fresh child: use these two pipe ends. */
int shmi_port_open(int request_fd, int reply_fd, uint32_t window, int child);
/* Close both ends: the dispatcher sees the child leave. */
void shmi_port_close(void);
/* In a process that was forked from the owner of the port: drop the copy. */
void shmi_port_disown(void);
/* The host has signal handlers of its own: waits return at short intervals so that it can run
 * them. */
void shmi_port_heed_signals(void);
int shmi_port_is_open(void);
/* Wait for the parent's READY frame (a caller that became a child): the status it carries. */
int shmi_port_wait_ready(void);

/* Whether the late reply of one of these calls has come: the call's index, or -1. Takes that reply,
 * and no other, out of what shm_port_drain returns. Does not wait. Once the port is closed, all
 * count as answered. */
int shmi_port_claim(const uint64_t sequences[], int count);

/* For shm_send_msgs and shm_read_msgs. */
int shmi_port_send(const shm_msg_t *msgs, int count, uint32_t limit);
int shmi_port_receive(shm_msg_t *msgs, int *statuses, int max);

#endif
