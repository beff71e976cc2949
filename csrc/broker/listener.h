/* listener -- where processes that the broker did not fork ask to join, and are let in or refused.
 *
 * A listening Unix socket that the host lends. Who may enter is the kernel's word (SO_PEERCRED):
 * the broker's own user, root, and one group where the launch names it. A guest says hello, is given
 * a free slot and the descriptors of what it may use, and from then on is a child like any other,
 * but for this: it is never signalled, and its end is no failure.
 *
 * No guest can hold the broker up: its socket never blocks, there is room for a few dozen at the
 * door, some of it kept from those that wait, and one that says nothing is sent away.
 *
 * Owns: the socket and the guests that have no slot yet. Must never: block, or trust a number that a
 * guest says of itself.
 */
#ifndef SHMI_DOOR_H
#define SHMI_DOOR_H

#include "base/status.h"

/* From the start of the launch on; lent_fd stays the caller's. 0: there is no door. */
int shmi_door_open(int lent_fd);
/* From now on send everybody away, who stands there and who comes, with the word that the broker is
 * ending; then, at its end, close. */
void shmi_door_shut(void);
void shmi_door_close(void);
/* Something happened at the door (guest < 0) or with a guest. */
void shmi_door_look(int guest);
/* A slot has become free: whoever waits may have it. */
void shmi_door_slot_freed(void);
/* Is there anybody who has not been let in or sent away? */
int shmi_door_has_somebody(void);
/* Send away who has waited too long; *next_ns, made earlier: when to come again. */
void shmi_door_timers(uint64_t at_ns, uint64_t *next_ns);

#endif
