/* process_table -- the broker's processes: who there is, how one is forked, watched, signalled and
 * reaped.
 *
 * Every process is watched and signalled through its pidfd; all pidfds are in one poll set. A
 * process that we did not fork (the caller of an init(), an attached client) is watched but never
 * signalled.
 *
 * Owns: the rows of helpers and children, and their pidfds. Nobody else sees a row. Must never:
 * decide what happens to a process (supervise does that), or touch an arena in the parent.
 */
#ifndef SHMI_PROCESS_TABLE_H
#define SHMI_PROCESS_TABLE_H

#include "broker/dispatch.h"
#include "process/process.h"

/* In the parent: the tables, the poll set, the dispatcher. */
int shmi_process_table_open(const shm_config_t *config, const shm_host_t *host);
void shmi_process_table_close(void);

/* What the launch was asked for, and the functions that the host lent. */
const shm_config_t *shmi_process_table_config(void);
const shm_host_t *shmi_process_table_host(void);
/* NULL: none in this process. */
shmi_dispatch_t *shmi_process_table_dispatch(void);
/* Report an event to the host. */
void shmi_process_table_report(shm_event_t event);

/* Who is called when a process starts or ends, and when the listener (-1) or one of its clients can
 * be read. Ends and clients are found by shmi_process_table_poll. */
typedef struct shmi_process_observer {
  void (*helper_started)(int index);
  void (*helper_ended)(int index, int pid, int exit_status, int was_let_go);
  void (*helper_wanted)(int index); /* its pool was scaled up: its record starts afresh */
  void (*child_started)(int index);
  void (*child_ended)(int index, int pid, int exit_status);
  void (*client_readable)(int client);
} shmi_process_observer_t;
void shmi_process_table_observe(const shmi_process_observer_t *observer);
/* Reap what has ended and call the observer for each event. */
void shmi_process_table_poll(void);

/* How many of each kind are alive. */
typedef struct shmi_alive {
  int helpers, children, clients;
} shmi_alive_t;
shmi_alive_t shmi_process_table_alive(void);

/* ---- helpers ---- */

int shmi_process_table_start_helper(int index);
void shmi_process_table_signal_helper(int index, int signal);
int shmi_process_table_helper_pid(int index); /* 0: none is running */
uint32_t shmi_process_table_helper_generation(int index);
/* Its pool is to have it: it is replaced when it dies. */
int shmi_process_table_helper_is_wanted(int index);
/* It was told to finish what it holds and then to end. */
int shmi_process_table_helper_was_let_go(int index);
/* How many helpers a pool is to have, and the most it can have; -1: there is no such pool. */
int shmi_process_table_wanted(int pool, int *most);
/* Have that many, from 1 to the most: start those that are missing, or let the last ones go. */
int shmi_process_table_scale(int pool, int helpers);
/* Have a pool's helpers get nothing (on), or go on. */
void shmi_process_table_pause(int pool, int on);

/* ---- children ---- */

enum shmi_child_kind {
  SHMI_CHILD_NONE,   /* the slot was never used */
  SHMI_CHILD_FORKED, /* by this parent, which alone makes it ours to signal */
  SHMI_CHILD_CALLER, /* the process that called init() */
  SHMI_CHILD_CLIENT  /* a program that attached through the listener */
};

int shmi_process_table_start_child(int index);
/* The process that called init() becomes child 0. */
int shmi_process_table_admit_caller(pid_t caller, int request_fd, int reply_fd);
/* An attached program takes a slot. Takes over its pidfd and both pipe ends, even on failure. The
 * user is what the kernel says, the program's name what it says itself: cut at
 * SHMI_ATTACH_NAME_BYTES. */
int shmi_process_table_admit_client(int index, shmi_process_t *client, uint32_t uid,
                                    const char *program, int request_fd, int reply_fd);
/* Which program is attached there, and of which user; NULL: none. */
const char *shmi_process_table_client(int index, uint32_t *uid);
/* A free slot for an attached program, or -1. */
int shmi_process_table_free_slot(void);
/* Whether some attached program has left, and its slot is only being cleared. */
int shmi_process_table_frees_a_slot(void);

enum shmi_child_kind shmi_process_table_child_kind(int index);
int shmi_process_table_child_pid(int index); /* 0: none is running */
/* Its slot will not be used again, or not before the next client takes it. */
int shmi_process_table_child_is_over(int index);
/* Returns whether it was signalled: only a running child that we forked is. */
int shmi_process_table_signal_child(int index, int signal);
/* Stop watching a process that we did not fork, whatever it does next. Returns its pid. */
int shmi_process_table_release_child(int index);
/* A child has ended: it no longer counts as alive. for_good: it is not restarted. */
void shmi_process_table_child_gone(int index, int for_good);

/* ---- for the listener ---- */

/* End as soon as nobody is attached. */
void shmi_process_table_retire(void);
/* Have client_readable called when fd can be read: for the listener itself (-1) or for a client. */
int shmi_process_table_watch(int fd, int client);
void shmi_process_table_unwatch(int fd);
/* Two pipes between the parent and a role: towards[] carries frames to it. *capacity: how many
 * frames either pipe is sure to hold. */
int shmi_process_table_two_pipes(int towards[2], int from[2], int *capacity);
/* The window is at most what the pipe holds, so that a reply never waits for its reader. */
static inline uint32_t shmi_process_table_window(uint32_t wanted, int capacity) {
  return wanted < (uint32_t)capacity ? wanted : (uint32_t)capacity;
}

#endif
