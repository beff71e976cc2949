/* listener -- where programs that the broker did not fork attach, and are admitted or refused.
 *
 * A listening Unix socket that the host lends. Who may attach is decided by what the kernel says of
 * the process (SO_PEERCRED): the broker's own user, root, and one group if the launch names it. A
 * client sends a hello and gets a free slot and the descriptors of what it may use. From then on it
 * is a child like any other, except that it is never signalled and that its end is not a failure.
 *
 * No client can hold up the broker: its socket never blocks, there is room for a few dozen
 * connections, some of it reserved for clients that only ask something, and a client that sends
 * nothing is disconnected.
 *
 * Owns: the socket and the clients that have no slot yet. Must never: block, or trust a number that
 * a client says of itself.
 */
#ifndef SHMI_LISTENER_H
#define SHMI_LISTENER_H

#include "base/status.h"

/* Listen from now on. lent_fd stays the caller's; 0: there is no listener. */
int shmi_listener_open(int lent_fd);
/* Refuse everybody from now on, connected clients too: the broker is ending. */
void shmi_listener_shut(void);
/* At the broker's end. */
void shmi_listener_close(void);
/* Accept new connections (client < 0), or read what a client without a slot has sent. */
void shmi_listener_read(int client);
/* A slot has become free: give it to a client that waits. */
void shmi_listener_slot_freed(void);
/* Is there a client that has been neither admitted nor refused? */
int shmi_listener_has_clients(void);
/* Refuse clients that have waited too long; *next_ns becomes the earliest time to come again. */
void shmi_listener_timers(uint64_t at_ns, uint64_t *next_ns);

#endif
