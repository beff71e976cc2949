/* process_table -- the broker's processes: who there is, how one is forked, watched, signalled and
 * reaped.
 *
 * Every process is watched and signalled through its pidfd, all pidfds in one epoll set. One that
 * we did not fork (the caller of an init()) is watched and never signalled.
 *
 * Owns: the tables of helpers and children, and their pidfds. Must never: decide what becomes of a
 * process (supervise does), or touch an arena in the parent.
 */
#ifndef SHMI_CREW_H
#define SHMI_CREW_H

#include "broker/dispatch.h"
#include "process/process.h"

typedef struct shmi_crew_helper {
  shmi_process_t process;
  uint32_t generation;
  int deaths;       /* in all */
  int short_deaths; /* in a row, each within the death window of its start */
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be replaced */
  uint64_t kill_ns;    /* a hung one was told to abort: kill it then; 0: no */
  int reason;          /* shm_reason: why we end it */
  int failed;          /* it said that its session could not be made */
  int told_ready;
  int delays; /* forks in vain, in a row */
  int was_let_go;      /* told to finish and end */
  int is_wanted;       /* its pool is to have it: it is replaced when it dies */
} shmi_crew_helper_t;

typedef struct shmi_crew_child {
  shmi_process_t process;
  int is_ours;   /* forked here; else never signalled */
  int is_guest;  /* joined through the door: its end is nobody's failure */
  uint32_t uid;  /* of a guest: the kernel's word */
  char program[64]; /* of a guest: its own word */
  int has_ended; /* for good */
  int restarts;    /* since its last long life */
  int short_lives; /* in a row, each within the death window of its start */
  int delays;      /* forks in vain, in a row */
  int reason;      /* shm_reason: why we end it */
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be restarted */
} shmi_crew_child_t;

typedef struct shmi_crew {
  shm_config_t config;
  shm_host_t host;
  shmi_dispatch_t *dispatch;
  shmi_crew_helper_t *helpers;
  shmi_crew_child_t *children;
  int epoll_fd; /* all pidfds, and the door */
  int children_alive, guests_alive, helpers_alive;
} shmi_crew_t;

/* Of the parent, while it runs; a role that was just forked still reads it. */
extern shmi_crew_t shmi_crew;

/* In the parent: tables, pidfd set, dispatcher. */
int shmi_crew_open(const shm_config_t *config, const shm_host_t *host);
void shmi_crew_close(void);

int shmi_crew_start_helper(int index);
int shmi_crew_start_child(int index);
/* The process that called init() becomes child 0. */
int shmi_crew_admit_caller(pid_t caller, int request_fd, int reply_fd);
/* A guest takes a slot. Takes over its pidfd and both pipe ends, in any case. */
int shmi_crew_admit_guest(int index, shmi_process_t *guest, int request_fd, int reply_fd);
/* How many helpers a pool is to have, and the most it can; -1: there is no such pool. */
int shmi_crew_wanted(int pool, int *most);
/* Have so many, from 1 to the most: start what is missing, or let the last ones go. */
int shmi_crew_scale(int pool, int helpers);
/* Have shmi_crew_look tell when fd is readable. */
enum shmi_watch { SHMI_WATCH_DOOR = 16, SHMI_WATCH_GUEST = 17 }; /* beside the roles */
int shmi_crew_watch(int fd, int what, int index);
void shmi_crew_unwatch(int fd);
/* Two pipes between the parent and a role: towards[] carries frames to it. *capacity: frames that
 * either is sure to hold. */
int shmi_crew_two_pipes(int towards[2], int from[2], int *capacity);
/* The window is what the pipe holds at most, so that a reply never waits for its reader. */
static inline uint32_t shmi_crew_window(uint32_t wanted, int capacity) {
  return wanted < (uint32_t)capacity ? wanted : (uint32_t)capacity;
}

void shmi_crew_signal_children(int signal, int reason);
void shmi_crew_signal_helpers(int signal);

/* Call back for every process that has ended, and for the door (-1) and guests that speak. */
typedef struct shmi_crew_news {
  void (*helper_ended)(int index, int pid, int exit_status);
  void (*child_ended)(int index, int pid, int exit_status);
  void (*door)(int guest);
} shmi_crew_news_t;
void shmi_crew_look(const shmi_crew_news_t *news);

/* Tell the host. */
void shmi_crew_tell(shm_event_t event);

#endif
