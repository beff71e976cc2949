/* process -- making, signalling and reaping the processes we fork, always by pidfd.
 *
 * A pid may be reused the moment it is reaped; a pidfd never names another process. Nothing here
 * waits for any child other than the one it is given, so the user's own subprocesses keep their
 * exit status.
 *
 * Owns: pidfds. Must never: install a SIGCHLD handler, wait for "any" child.
 */
#ifndef SHMI_PROCESS_H
#define SHMI_PROCESS_H

#include <sys/types.h>

#include "base/status.h"

typedef struct shmi_process {
  pid_t pid;  /* 0: none */
  int pidfd;
} shmi_process_t;

/* Fork through the host's hook (NULL: fork()). Returns 1 in the forking process with *process
 * filled, 0 in the new one, or SHM_ESYSTEM. */
int shmi_process_fork(int (*hook)(void), shmi_process_t *process);
/* Watch a process that we did not fork. */
int shmi_process_open(pid_t pid, shmi_process_t *process);
int shmi_process_signal(const shmi_process_t *process, int signal);
/* 1: it has ended, *exit_status is what it passed to exit or -signal, and it is forgotten. 0: it
 * still runs. block: wait for it. */
int shmi_process_reap(shmi_process_t *process, int block, int *exit_status);
/* Whether it has ended, reaped or not. */
int shmi_process_has_ended(const shmi_process_t *process);
/* Forget without waiting (a process we did not fork). */
void shmi_process_forget(shmi_process_t *process);
/* In a new process: have the kernel send `signal` when the process that forked it dies; 0 when that
 * is dead already. */
int shmi_process_die_with(pid_t parent, int signal);
/* In a role: have the kernel kill it before the parent when memory runs out. */
void shmi_process_offer_to_oom(void);

#endif
