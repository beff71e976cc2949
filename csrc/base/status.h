/* status -- every outcome the library can name: code, name, sentence.
 *
 * One table, SHMI_STATUS_TABLE, has the name and the sentence for each code. Functions return 0
 * (SHM_OK) or a negative code; in a frame a code travels as its positive magnitude (16 bits).
 *
 * Owns: that table. Must never: print.
 */
#ifndef SHMI_STATUS_H
#define SHMI_STATUS_H

#include "shmgpu.h"

/* X(name, code, sentence): a sentence says what was wrong and what to do, and never
 * names an address, a descriptor or a process id. */
#define SHMI_STATUS_TABLE(X)                                                                       \
  X(SHM_OK, 0, "success")                                                                          \
  X(SHM_EAGAIN, -1, "nothing is ready yet: try again, or wait")                                    \
  X(SHM_EINTR, -2, "a signal arrived while waiting: handle it, then resume the wait")              \
  X(SHM_EARENA_FULL, -3,                                                                           \
    "the arena has no free block of that size: free arrays, or launch with a larger arena")        \
  X(SHM_EBAD_FREE, -4,                                                                             \
    "the pointer is not the start of a live block of this arena (freed twice, foreign, or "        \
    "interior): free each block once, with the pointer that shm_malloc returned")                  \
  X(SHM_EBAD_SIZE, -5, "the size is zero, overflows, or exceeds the arena: ask for less")          \
  X(SHM_EBAD_ALIGN, -6, "the alignment is not a power of two of at most 2 MiB: use one that is")   \
  X(SHM_EBAD_FUNCTION, -7,                                                                         \
    "the function is not in the table that was sealed at launch: register (or decorate) it "       \
    "before launching")                                                                            \
  X(SHM_EBAD_PARAMS, -8,                                                                           \
    "the parameter block does not lie inside the caller's own arena: allocate it with "            \
    "shm_malloc and pass its start")                                                               \
  X(SHM_EBAD_FRAME, -9, "a frame broke the protocol: write to the pipe through this library only") \
  X(SHM_EWINDOW, -10,                                                                              \
    "the window of outstanding messages is full: read a reply first, or launch with a larger "     \
    "window")                                                                                      \
  X(SHM_ETIMEOUT, -11, "the call did not end before its deadline: allow more time")                \
  X(SHM_ECANCELLED, -12, "the call was cancelled before it was started")                           \
  X(SHM_EHELPER_DIED, -13,                                                                         \
    "the helper died while it was executing this call: look at its log, then call again")          \
  X(SHM_EBROKER_DIED, -14, "the broker is gone: launch again")                                     \
  X(SHM_EREMOTE, -15, "the function failed in the helper")                                         \
  X(SHM_ENEEDS_SPACE, -16, "the result needs more space than the caller set aside")                \
  X(SHM_ENOT_CHILD, -17, "only a child can do this: call it inside a child's main")                \
  X(SHM_ENOT_HELPER, -18, "only a helper can do this: call it inside a helper's function")         \
  X(SHM_ENESTED, -19,                                                                              \
    "a broker is already running in this process or above it: end it, or launch from a fresh "     \
    "process")                                                                                     \
  X(SHM_EBAD_CONFIG, -20, "a setting is out of range")                                             \
  X(SHM_ENO_MEMORY, -21,                                                                           \
    "the machine (or its cgroup) does not have the memory for these arenas: use fewer children "   \
    "or smaller arenas")                                                                           \
  X(SHM_ESYSTEM, -22, "a system call failed")                                                      \
  X(SHM_ESEALED, -23,                                                                              \
    "the function table is sealed while a broker runs: register before launching")                 \
  X(SHM_ETABLE_FULL, -24, "the function table is full: register fewer functions, 4,096 at most")   \
  X(SHM_ECHILD_FAILED, -25, "a child ended with an error")                                         \
  X(SHM_ESESSION, -26, "a helper could not make its session")                                      \
  X(SHM_ESIGNALLED, -27, "a signal asked the broker to stop")                                      \
  X(SHM_ESTOPPED, -28, "the broker is stopping")                                                   \
  X(SHM_EBAD_POOL, -29, "no pool of helpers has that number: use one that launch was given")       \
  X(SHM_ENO_HELPERS, -30,                                                                          \
    "a helper died again and again soon after its start: fix what kills it (the log says what), "  \
    "then launch again, or, where the broker goes on, call again later")                           \
  X(SHM_ECORRUPT, -31,                                                                             \
    "the arena's free lists were overwritten: something wrote past the end of its block")          \
  X(SHM_ENOT_RUNNING, -32, "no broker is running: launch one first")                               \
  X(SHM_ETOO_LARGE, -33,                                                                           \
    "the result is larger than a helper keeps for its caller: declare its shape with out=, or "    \
    "raise SHMGPU_PARKED, or parked in the broker's quotas")                                       \
  X(SHM_EUNSUPPORTED, -34, "this kernel lacks what the broker needs: use Linux 5.10 or newer")     \
  X(SHM_EPLACEMENT, -35, "none of the helpers asked for exists: name helpers that were launched")  \
  X(SHM_ENO_CHILD_SLOT, -36,                                                                       \
    "every slot for a child is taken: wait for one, or start the broker with more")                   \
  X(SHM_ENO_BOARD, -37,                                                                            \
    "the file does not hold a broker's statistics that can be read here: watch a broker with the " \
    "version of shmgpu that it runs")                                                              \
  X(SHM_EREFUSED, -38,                                                                             \
    "the broker does not let this process in: it must be started by the same user, with the same "  \
    "version of shmgpu")                                                                           \
  X(SHM_EHELPER_GONE, -39,                                                                         \
    "the helper that it was to run on is not there, because its pool was scaled (shmgpu scale, "    \
    "gpu_workers): name one that is, or none")                                                      \
  X(SHM_EABORTED, -40,                                                                             \
    "the call on several helpers was given up before any of it took effect, because one of them "  \
    "failed, or because they waited for each other: call again, or look at what it runs")          \
  X(SHM_EBAD_GANG, -41,                                                                            \
    "the collective does not fit the call on several helpers that runs here")                      \
  X(SHM_ENOT_ALLOWED, -42,                                                                         \
    "the broker belongs to another user, whose programs alone may broadcast, because that lasts "  \
    "when its sender has left: call the function, or have the broker started with --trust-group")  \
  X(SHM_EQUEUE_FULL, -43,                                                                          \
    "more calls of the function would wait than its max_queue says: call again later, or less "     \
    "often")                                                                                        \
  X(SHM_ERATE, -44,                                                                                \
    "the broker's quotas allow this program no more calls a second: call again later, or less "      \
    "often, or have its rate raised")

#endif
