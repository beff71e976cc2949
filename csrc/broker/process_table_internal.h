/* process_table_internal -- what the table of processes holds: of process_table and supervise alone.
 *
 * Owns: the layout of a row. Must never: be included by anybody else.
 */
#ifndef SHMI_PROCESS_TABLE_INTERNAL_H
#define SHMI_PROCESS_TABLE_INTERNAL_H

#include "broker/process_table.h"
#include "ipc/attach_handshake.h"

typedef struct shmi_helper_entry {
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
} shmi_helper_entry_t;

typedef struct shmi_child_entry {
  shmi_process_t process;
  int is_ours;   /* forked here; else never signalled */
  int is_attached;  /* joined through the listener: its end is nobody's failure */
  uint32_t uid;  /* of a client: the kernel's word */
  char program[SHMI_ATTACH_NAME_BYTES]; /* of a client: its own word */
  int has_ended; /* for good */
  int restarts;    /* since its last long life */
  int short_lives; /* in a row, each within the death window of its start */
  int delays;      /* forks in vain, in a row */
  int reason;      /* shm_reason: why we end it */
  uint64_t started_ns;
  uint64_t respawn_ns; /* 0: not waiting to be restarted */
} shmi_child_entry_t;

typedef struct shmi_process_table {
  shm_config_t config;
  shm_host_t host;
  shmi_dispatch_t *dispatch;
  shmi_helper_entry_t *helpers;
  shmi_child_entry_t *children;
  int epoll_fd; /* all pidfds, and the listener */
  int children_alive, clients_alive, helpers_alive;
} shmi_process_table_t;

/* Of the parent, while it runs; a role that was just forked still reads it. */
extern shmi_process_table_t shmi_process_table;

#endif
