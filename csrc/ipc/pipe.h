/* pipe -- pipes that carry frames: the only code that makes, reads and writes pipes.
 *
 * A pipe end is a descriptor; whether it blocks is decided when it is made. Frames never tear: a
 * write of at most PIPE_BUF bytes is atomic, so every write here is cut into pieces of that size,
 * and readers ask for whole frames and complete what a signal cut short.
 *
 * Owns: nothing but the code. Must never: look into a frame.
 */
#ifndef SHMI_PIPE_H
#define SHMI_PIPE_H

#include "ipc/frame.h"

enum { SHMI_PIPE_BURST = 64 }; /* frames in one atomic write: PIPE_BUF / 64 */

/* A pipe: ends[0] to read, ends[1] to write; the ends named in nonblocking (bit 0, bit 1) are
 * O_NONBLOCK. *capacity gets the frames it is sure to hold. SHM_OK or SHM_ESYSTEM. */
int shmi_pipe_make(int ends[2], int nonblocking, int *capacity);

/* Read what is there, at most max frames. Returns how many; 0 when a non-blocking end is empty;
 * SHM_EINTR; SHM_EBROKER_DIED at end of file (nobody holds the other end); SHM_EBAD_FRAME when the
 * other side wrote a torn frame; SHM_ESYSTEM. */
int shmi_pipe_read(int fd, shmi_frame_t *frames, int max);

/* Write count frames. Returns how many were written: fewer than count when a non-blocking end
 * is full; SHM_EBROKER_DIED when nobody reads (never a SIGPIPE);
 * SHM_EINTR only when nothing was written. */
int shmi_pipe_write(int fd, const shmi_frame_t *frames, int count);

/* Say whether SIGPIPE is ignored in this process; every role does so when it begins. Until then
 * every write blocks the signal around itself. */
void shmi_pipe_sigpipe(int is_ignored);

/* Wait until fd is readable: 1, 0 at the time-out (< 0: none), SHM_EINTR or SHM_ESYSTEM. */
int shmi_pipe_wait(int fd, int64_t timeout_ns);
/* The same for two descriptors; 2 when only the other one is readable. */
int shmi_pipe_wait_either(int fd, int other_fd, int64_t timeout_ns);

/* Bytes that were written and not read yet; works at either end. */
int shmi_pipe_unread(int fd);

/* Whether nobody holds the writing end of this pipe any more. */
int shmi_pipe_has_ended(int fd);

/* How many more frames are sure to go into this pipe without waiting; below 0 where it holds more than
 * that already. */
int shmi_pipe_room(int fd);

#endif
