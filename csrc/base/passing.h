/* passing -- descriptors that travel from process to process, with a message, over a socket.
 *
 * SCM_RIGHTS is the one way that needs neither /proc nor a right over the other process, and
 * works across process namespaces. Whatever the other side sends, a receiver is left with at most
 * as many descriptors as it has asked for, close-on-exec and in the list of ours, or with none.
 *
 * Owns: nothing but the code. Must never: look into a message.
 */
#ifndef SHMI_PASSING_H
#define SHMI_PASSING_H

#include "base/status.h"

enum { SHMI_PASSING_MOST = 8 }; /* descriptors with one message */

/* Two ends, which never block, of a socket that keeps messages apart. SHM_OK or SHM_ESYSTEM. */
int shmi_passing_make(int ends[2]);

/* Never waits. SHM_OK; SHM_EAGAIN when the other side must first take some; SHM_EBROKER_DIED when
 * there is nobody; SHM_ESYSTEM. */
int shmi_passing_send(int fd, const void *message, size_t bytes, const int descriptors[],
                      int count);

/* Waits where fd does. A message of exactly that many bytes: how many descriptors came with it, at
 * most `most`, which are the caller's from then on; the rest of the array is -1. SHM_EINTR;
 * SHM_EAGAIN; SHM_EBROKER_DIED at the end; SHM_EREFUSED for a message of another length, or with
 * more descriptors. */
int shmi_passing_receive(int fd, void *message, size_t bytes, int descriptors[], int most);

#endif
