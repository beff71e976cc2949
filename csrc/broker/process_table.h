/* process_table -- the broker's processes: who there is, how one is forked, watched, signalled and
 * reaped.
 *
 * Every process is watched and signalled through its pidfd, all pidfds in one epoll set. One that
 * we did not fork (the caller of an init()) is watched and never signalled.
 *
 * Owns: the tables of helpers and children, and their pidfds. What is in them, only supervise sees
 * beside it (process_table_internal.h). Must never: decide what becomes of a process (supervise
 * does), or touch an arena in the parent.
 */
#ifndef SHMI_PROCESS_TABLE_H
#define SHMI_PROCESS_TABLE_H

#include "broker/dispatch.h"
#include "process/process.h"

/* In the parent: tables, pidfd set, dispatcher. */
int shmi_process_table_open(const shm_config_t *config, const shm_host_t *host);
void shmi_process_table_close(void);

int shmi_process_table_start_helper(int index);
int shmi_process_table_start_child(int index);
/* The process that called init() becomes child 0. */
int shmi_process_table_admit_caller(pid_t caller, int request_fd, int reply_fd);
/* An attached program takes a slot. Takes over its pidfd and both pipe ends, in any case. The user
 * is the kernel's word, the name of the program its own: cut at SHMI_ATTACH_NAME_BYTES. */
int shmi_process_table_admit_client(int index, shmi_process_t *client, uint32_t uid,
                                    const char *program, int request_fd, int reply_fd);
/* Which program is attached there, and of which user; NULL: none. */
const char *shmi_process_table_client(int index, uint32_t *uid);
/* A slot for an attached program, or -1. */
int shmi_process_table_free_slot(void);
/* What the launch was asked for. */
const shm_config_t *shmi_process_table_config(void);
/* NULL: none in this process. */
shmi_dispatch_t *shmi_process_table_dispatch(void);
/* End as soon as nobody is attached. */
void shmi_process_table_retire(void);
/* How many helpers a pool is to have, and the most it can; -1: there is no such pool. */
int shmi_process_table_wanted(int pool, int *most);
/* Have so many, from 1 to the most: start what is missing, or let the last ones go. */
int shmi_process_table_scale(int pool, int helpers);
/* Have shmi_process_table_look tell when fd is readable. */
enum shmi_watch { SHMI_WATCH_LISTENER = 16, SHMI_WATCH_CLIENT = 17 }; /* beside the roles */
int shmi_process_table_watch(int fd, int what, int index);
void shmi_process_table_unwatch(int fd);
/* Two pipes between the parent and a role: towards[] carries frames to it. *capacity: frames that
 * either is sure to hold. */
int shmi_process_table_two_pipes(int towards[2], int from[2], int *capacity);
/* The window is what the pipe holds at most, so that a reply never waits for its reader. */
static inline uint32_t shmi_process_table_window(uint32_t wanted, int capacity) {
  return wanted < (uint32_t)capacity ? wanted : (uint32_t)capacity;
}

void shmi_process_table_signal_children(int signal, int reason);
void shmi_process_table_signal_helpers(int signal);

/* Call back for every process that has ended, and for the listener (-1) and its clients that speak. */
typedef struct shmi_process_table_news {
  void (*helper_ended)(int index, int pid, int exit_status);
  void (*child_ended)(int index, int pid, int exit_status);
  void (*connecting)(int client);
} shmi_process_table_news_t;
void shmi_process_table_look(const shmi_process_table_news_t *news);

/* Tell the host. */
void shmi_process_table_tell(shm_event_t event);

#endif
