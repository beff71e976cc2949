/* passing -- descriptors sent from process to process, with a message, over a socket.
 *
 * SCM_RIGHTS is the only method that needs neither /proc nor rights over the other process, and
 * that works across process namespaces. Whatever the other side sends, a receiver ends up with at
 * most as many descriptors as it asked for, close-on-exec and listed (base/descriptor.h), or with
 * none.
 *
 * Owns: nothing but the code. Must never: look into a message.
 */
#ifndef SHMI_PASSING_H
#define SHMI_PASSING_H

#include "base/status.h"

enum { SHMI_PASSING_MOST = 8 }; /* descriptors with one message */

/* Two non-blocking ends of a socket that preserves message boundaries. SHM_OK or SHM_ESYSTEM. */
int shmi_passing_make(int ends[2]);

/* Never waits. SHM_OK; SHM_EAGAIN when the other side must first receive some; SHM_EBROKER_DIED
 * when there is no other side; SHM_ESYSTEM. */
int shmi_passing_send(int fd, const void *message, size_t bytes, const int descriptors[],
                      int count);

/* Receive a message of exactly that many bytes; waits if fd is blocking. Returns how many
 * descriptors came with it, at most `most`, which belong to the caller from then on; the rest of
 * the array is -1. SHM_EINTR; SHM_EAGAIN; SHM_EBROKER_DIED at the end; SHM_EREFUSED for a message
 * of another length, or with more descriptors. */
int shmi_passing_receive(int fd, void *message, size_t bytes, int descriptors[], int most);

#endif
