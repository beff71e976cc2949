/* helper_port -- a helper's end of the connection: it takes calls and answers them.
 *
 * Everything in the pipe is read at once into a private queue. Before a call is executed, the
 * control page says so; when it is finished, the page has the outcome before the reply frame is
 * written. So if this process dies at any point, the dispatcher knows exactly which call was
 * executing, which had finished and which were never begun. While calls are short, their replies
 * are gathered and written in one go.
 *
 * Owns: the two pipe ends, the queue, the replies not yet written. Must never: call a function, or
 * read a block's length twice (it is read once, checked, and passed on).
 */
#ifndef SHMI_HELPER_PORT_H
#define SHMI_HELPER_PORT_H

#include "ipc/frame.h"

/* In a fresh helper: use these two pipe ends; memory files come over files_fd. */
int shmi_helper_port_open(int down_fd, int up_fd, int files_fd, int helper, uint32_t generation);
void shmi_helper_port_close(void);
/* Run C functions until the broker stops: what a helper without a binding does. Returns its exit
 * status. */
int shmi_helper_port_serve(void);
int shmi_helper_port_helper(void); /* number, or -1 outside a helper */
/* Whether the range lies in the arena of the child whose call is executing. */
int shmi_helper_port_in_arena(uint64_t address, uint64_t bytes);

#endif
