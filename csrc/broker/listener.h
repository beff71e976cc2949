/* listener -- where processes that the broker did not fork ask to join, and are let in or refused.
 *
 * A listening Unix socket that the host lends. Who may enter is the kernel's word (SO_PEERCRED):
 * the broker's own user, root, and one group where the launch names it. A client says hello, is given
 * a free slot and the descriptors of what it may use, and from then on is a child like any other,
 * but for this: it is never signalled, and its end is no failure.
 *
 * No client can hold the broker up: its socket never blocks, there is room for a few dozen
 * connections, some of it kept from those that wait, and one that says nothing is sent away.
 *
 * Owns: the socket and the clients that have no slot yet. Must never: block, or trust a number that a
 * client says of itself.
 */
#ifndef SHMI_LISTENER_H
#define SHMI_LISTENER_H

#include "base/status.h"

/* From the start of the launch on; lent_fd stays the caller's. 0: there is no listener. */
int shmi_listener_open(int lent_fd);
/* From now on send everybody away, who is connected and who connects, with the word that the broker is
 * ending; then, at its end, close. */
void shmi_listener_shut(void);
void shmi_listener_close(void);
/* Somebody connects (client < 0), or a client that has no slot yet speaks. */
void shmi_listener_look(int client);
/* A slot has become free: whoever waits may have it. */
void shmi_listener_slot_freed(void);
/* Is there anybody who has not been let in or sent away? */
int shmi_listener_has_clients(void);
/* Send away who has waited too long; *next_ns, made earlier: when to come again. */
void shmi_listener_timers(uint64_t at_ns, uint64_t *next_ns);

#endif
