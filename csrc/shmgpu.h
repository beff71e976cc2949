/* shmgpu -- the one public header.
 *
 * A *parent* forks *helpers*, which own the expensive sessions (a model, a CUDA
 * context), and *children*, which run the user's code and each own one private
 * shared-memory *arena*. A call is a 16-byte message {func_ptr, params}: its data is
 * already in the caller's arena, where the helper reads and writes it in place.
 *
 * Everything between the markers CDEF-BEGIN and CDEF-END is also what cffi parses for
 * the Python binding: plain C declarations only, no macros with arguments.
 *
 * Functions return 0 or a positive count on success and a negative SHM_E... code on
 * failure; shm_status_text() turns a code into a sentence. The library never prints
 * and never exits. errno is kept for SHM_ESYSTEM.
 */
#ifndef SHMGPU_H
#define SHMGPU_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__GNUC__)
#define SHM_PUBLIC __attribute__((visibility("default")))
#else
#define SHM_PUBLIC
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* CDEF-BEGIN */

/* ---- outcomes -------------------------------------------------------------- */

enum shm_status {
  SHM_OK = 0,
  SHM_EAGAIN = -1,
  SHM_EINTR = -2,
  SHM_EARENA_FULL = -3,
  SHM_EBAD_FREE = -4,
  SHM_EBAD_SIZE = -5,
  SHM_EBAD_ALIGN = -6,
  SHM_EBAD_FUNCTION = -7,
  SHM_EBAD_PARAMS = -8,
  SHM_EBAD_FRAME = -9,
  SHM_EWINDOW = -10,
  SHM_ETIMEOUT = -11,
  SHM_ECANCELLED = -12,
  SHM_EHELPER_DIED = -13,
  SHM_EBROKER_DIED = -14,
  SHM_EREMOTE = -15,
  SHM_ENEEDS_SPACE = -16,
  SHM_ENOT_CHILD = -17,
  SHM_ENOT_HELPER = -18,
  SHM_ENESTED = -19,
  SHM_EBAD_CONFIG = -20,
  SHM_ENO_MEMORY = -21,
  SHM_ESYSTEM = -22,
  SHM_ESEALED = -23,
  SHM_ETABLE_FULL = -24,
  SHM_ECHILD_FAILED = -25,
  SHM_ESESSION = -26,
  SHM_ESIGNALLED = -27,
  SHM_ESTOPPED = -28,
  SHM_EBAD_POOL = -29,
  SHM_ENO_HELPERS = -30,
  SHM_ECORRUPT = -31,
  SHM_ENOT_RUNNING = -32,
  SHM_ETOO_LARGE = -33,
  SHM_EUNSUPPORTED = -34,
  SHM_EPLACEMENT = -35,
  SHM_ENO_CHILD_SLOT = -36,
  SHM_ENO_BOARD = -37,
  SHM_EREFUSED = -38,
  SHM_EHELPER_GONE = -39,
  SHM_EABORTED = -40,
  SHM_EBAD_GANG = -41,
  SHM_ENOT_ALLOWED = -42,
  SHM_EQUEUE_FULL = -43,
  SHM_ERATE = -44
};

const char *shm_status_name(int status); /* "SHM_EARENA_FULL"; never NULL */
const char *shm_status_text(int status); /* one sentence; never NULL */

/* ---- launch, memory, messages ---------------------------------------------- */

typedef void (*shm_func_t)(void *params);

/* The message: which function, on which parameter block. 16 bytes. */
typedef struct shm_msg {
  shm_func_t func_ptr;
  void *params;
} shm_msg_t;

/* What one child runs. main_func's return value is the child's exit status: 0 is success. */
typedef struct shm_main_bundle {
  int (*main_func)(void *arg);
  void *arg;
} shm_main_bundle_t;

/* Fork helper_cnt helpers and child_cnt children, child i running bundles[i], each with an
 * arena of shm_block_size bytes; dispatch until every child has returned. Returns SHM_OK,
 * SHM_ECHILD_FAILED when a child returned non-zero or was killed, or what went wrong. */
int shm_launch(int child_cnt, const shm_main_bundle_t bundles[], size_t shm_block_size,
               int helper_cnt);

/* In a child: 64-byte aligned memory of its arena, visible to every helper at the same
 * address. NULL when the arena is full (see shm_last_status). */
void *shm_malloc(size_t size);
/* In a child: SHM_OK, or SHM_EBAD_FREE for a double, foreign or interior free, which
 * changes nothing. free(NULL) is SHM_OK. */
int shm_free(void *ptr);
/* In a child: send msg to some helper; SHM_EWINDOW when the window (one message, unless
 * shm_set_window raised it) is full. Does not wait. */
int shm_send_msg(const shm_msg_t *msg);
/* In a child: wait for the next answered message of shm_send_msg; fills *msg when it is not
 * NULL. Returns the outcome of that call. */
int shm_read_msg(shm_msg_t *msg);
/* The same for several at once, in one system call if possible. Returns how many were sent (the
 * window may allow fewer), or how many answers were taken (at least one; statuses[i] is the outcome
 * of msgs[i]). */
int shm_send_msgs(const shm_msg_t msgs[], int count);
int shm_read_msgs(shm_msg_t msgs[], int statuses[], int max);
/* In a helper: its number, from 0. SHM_ENOT_HELPER elsewhere. */
int shm_get_helper_id(void);

/* ---- what else a C program needs ------------------------------------------- */

/* Before shm_launch: allow children to call func on parameter blocks of params_size bytes.
 * func is called with the address of the block in the caller's arena. */
int shm_register(shm_func_t func, const char *name, size_t params_size);
int shm_get_child_id(void);                 /* in a child: its number, from 0 */
int shm_set_window(int messages);           /* in a child: how many shm_send_msg may be open */
int shm_last_status(void);                  /* why this thread's last shm_malloc... was NULL */
/* Send msg and wait for its own answer. timeout_ns < 0 waits for ever. After SHM_ETIMEOUT the
 * helper may still write to the block: a shm_free of it takes effect at the late answer. */
int shm_call(const shm_msg_t *msg, int64_t timeout_ns);
/* In a helper's function: 1 when [ptr, ptr + bytes) lies in the arena of the child being
 * served, so that a pointer found inside a parameter block can be trusted; else 0. */
int shm_in_arena(const void *ptr, size_t bytes);

void *shm_realloc(void *ptr, size_t size);
void *shm_memalign(size_t alignment, size_t size);
size_t shm_usable_size(const void *ptr);    /* 0 when ptr is not a live block's start */

typedef struct shm_arena_stats {
  uint64_t capacity_bytes;      /* what the arena can hold */
  uint64_t used_bytes;          /* in live blocks, rounded up to 64 */
  uint64_t peak_bytes;          /* the largest used_bytes so far */
  uint64_t footprint_bytes;     /* the highest byte ever handed out */
  uint64_t free_bytes;
  uint64_t largest_free_bytes;  /* the largest request that would succeed now */
  uint64_t live_blocks;
  uint64_t allocations;         /* since start */
  uint64_t frees;
  uint64_t failures;
} shm_arena_stats_t;
int shm_get_arena_stats(shm_arena_stats_t *stats);
/* Verify every invariant of the arena's allocator: SHM_OK or SHM_ECORRUPT. */
int shm_check(void);
/* Call visit(address, bytes, is_live, ctx) for each block in address order until it returns
 * non-zero, which is returned. visit must not allocate or free. */
int shm_walk(int (*visit)(void *address, size_t bytes, int is_live, void *ctx), void *ctx);

/* ---- for language bindings -------------------------------------------------- */

enum shm_limits {
  SHM_MAX_HELPERS = 64,
  SHM_MAX_POOLS = 16,
  SHM_MAX_FUNCTIONS = 4096,
  SHM_MAX_CHILDREN = 4096,
  SHM_MAX_WINDOW = 896,        /* messages: what a 64 KiB pipe is sure to hold */
  SHM_MAX_BATCH = 1024,        /* messages handed over as one batch */
  SHM_MAX_TRACE = 16777216,    /* records of the trace ring */
  SHM_NO_HELPER = 255          /* in a trace record: no helper was given the message */
};

/* Sizes that a binding or a monitor needs to know. */
enum shm_sizes {
  SHM_FRAME_BYTES = 64,        /* what a message takes of a pipe */
  SHM_UNIT_NS = 64,            /* of started_units and finished_units in a trace record */
  SHM_ALIGNMENT = 64,          /* of blocks of an arena; their sizes are multiples of it */
  SHM_BROADCAST_REPORT_BYTES = 4096, /* of a broadcast's output buffer, for each helper, where it
                                  reports a failure */
  SHM_GUARD_BYTES = 65536      /* addresses between two arenas, unless they ask for huge pages */
};

/* One row of the function table. func == NULL makes a row for a binding: the message's func_ptr
 * is then the row's own address (*row), and helpers get the call from shm_helper_take. */
enum shm_function_flags {
  SHM_FUNCTION_IDEMPOTENT = 1,
  SHM_FUNCTION_DROPS_OLDEST = 2 /* with max_queue: the call that has waited longest ends instead */
};
typedef struct shm_function_config {
  const char *name;
  shm_func_t func;
  size_t params_size;          /* bytes of the block that must lie in the arena */
  uint32_t batch_max_rows;     /* 0: never batched */
  uint32_t flags;
  uint64_t batch_delay_ns;     /* how long a batch may wait to fill; 0: greedy */
  uint64_t hang_after_ns;      /* after which a call counts as hung; 0: never */
  uint32_t max_queue;          /* calls that may wait at once: one more ends with SHM_EQUEUE_FULL;
                                * 0: any number */
  uint32_t reserved;
} shm_function_config_t;
int shm_register_function(const shm_function_config_t *config, uint64_t *row);
/* NULL when there is no such row. In an attached program the name is valid until the same thread
 * calls this again: copy it. */
const char *shm_function_name(uint64_t row);

enum shm_role { SHM_ROLE_NONE = 0, SHM_ROLE_PARENT = 1, SHM_ROLE_HELPER = 2, SHM_ROLE_CHILD = 3 };
int shm_get_role(void);

typedef struct shm_config {
  int child_count;             /* children to fork (or 1 with caller_is_child) */
  int helper_count;
  int pool_count;              /* at least 1 */
  int caller_is_child;         /* the calling process becomes child 0; a parent is forked */
  uint8_t helper_pool[64];     /* pool of each helper */
  uint8_t min_credit[16];      /* per pool: messages a helper may always hold ahead (0 means 1) */
  size_t arena_bytes;          /* per child; rounded up to a page */
  size_t scratch_bytes;        /* per helper; 0: none */
  uint32_t window;             /* messages a child may have outstanding; 0: 64 */
  uint32_t trace_records;      /* how many calls the trace ring keeps; 0: none */
  int prefault;                /* populate every arena at launch */
  int huge_pages;              /* ask for transparent huge pages */
  int max_deaths;              /* helper deaths within death_window_ns that end the launch; 0: 5 */
  uint64_t death_window_ns;    /* 0: ten seconds */
  uint64_t grace_ns;           /* how long a drain waits before TERM, and TERM before KILL; 0: 5 s */
  int restart;                 /* shm_restart: what happens to a child that failed */
  int max_restarts;            /* of one child; 0: 5 */
  int slot_count;              /* children at once, forked and joined; 0: child_count */
  int persistent;              /* shm_persistence */
  int listener_fd;             /* listening Unix socket (SOCK_SEQPACKET) where processes that were
                                  not forked ask to join; 0: none */
  int manifest_fd;             /* memory file that every attached program gets; 0: none */
  uint32_t listener_gid;       /* a group whose members may join beside the user; 0: none */
  int group_may_broadcast;     /* 1: so may members of that group, whose broadcasts outlive them */
  uint8_t helper_absent[64];   /* 1: no helper at first; shm_ask_scale may start one later */
  int by_deadline;             /* 1: calls that any helper of a pool may run are served earliest
                                  deadline first; 0: children take turns */
  char pool_name[16][32];      /* per pool: its name, for monitors */
  uint64_t idle_ns;            /* with SHM_UNTIL_TOLD: end when no program has been attached, and no
                                  call open, for so long; 0: never */
} shm_config_t;

/* Until when a broker runs. */
enum shm_persistence {
  SHM_UNTIL_CHILDREN_END = 0,  /* every child has ended: a launch */
  SHM_UNTIL_TOLD = 1,          /* a signal asks for the end */
  SHM_UNTIL_FIRST_LEFT = 2     /* the first client has left; or none came, and none is connecting */
};

enum shm_restart {
  SHM_RESTART_NEVER = 0,       /* the launch ends with SHM_ECHILD_FAILED */
  SHM_RESTART_ON_FAILURE = 1   /* its slot is cleared and its main runs again, max_restarts times */
};

enum shm_event_kind {
  SHM_EVENT_HELPER_STARTED = 1,   /* forked */
  SHM_EVENT_HELPER_READY = 2,     /* its session is made */
  SHM_EVENT_HELPER_FAILED = 3,    /* its session could not be made */
  SHM_EVENT_HELPER_DIED = 4,
  SHM_EVENT_CHILD_STARTED = 5,
  SHM_EVENT_CHILD_ENDED = 6,
  SHM_EVENT_READY = 7,            /* every helper is ready */
  SHM_EVENT_DRAINING = 8,
  SHM_EVENT_HELPER_HUNG = 9,
  SHM_EVENT_CHILD_PROTOCOL = 10,  /* a child broke the protocol */
  SHM_EVENT_OVER = 11,            /* every process has ended; statistics and trace are still here */
  SHM_EVENT_CHILD_CLEARED = 12,   /* a dead child's slot is free, its arena a new one */
  SHM_EVENT_HELPER_DELAYED = 13,  /* could not be forked: tried again in delay_ns */
  SHM_EVENT_CHILD_DELAYED = 14,
  SHM_EVENT_CHILD_JOINED = 15,    /* a process that was not forked took a slot */
  SHM_EVENT_CHILD_LEFT = 16,      /* and left it, or died */
  SHM_EVENT_CHILD_REFUSED = 17,   /* a process asked to join and was refused: reason in exit_status */
  SHM_EVENT_HELPER_RETIRED = 18,  /* one that its pool no longer needs finished its work and ended */
  SHM_EVENT_SCALED = 19,          /* a pool (index) gets attempts helpers; before it had deaths */
  SHM_EVENT_IDLE = 20,            /* the broker ends: no program has been attached for delay_ns */
  SHM_EVENT_SCALE_REFUSED = 21,   /* a pool (index) was to get attempts helpers: see exit_status, and
                                     shm_error_detail() */
  SHM_EVENT_PAUSED = 22,          /* a pool (index) starts no more calls */
  SHM_EVENT_RESUMED = 23,         /* and goes on */
  SHM_EVENT_HELPER_UNLOADED = 24  /* one that was idle for long has ended; another takes its place */
};
/* Why the broker itself ended a process. */
enum shm_reason {
  SHM_REASON_NONE = 0,         /* it did not: the process ended by itself or was ended by others */
  SHM_REASON_HUNG = 1,         /* a call took longer than its function's hang_after */
  SHM_REASON_PROTOCOL = 2,     /* it broke the protocol again and again */
  SHM_REASON_ENDING = 3,       /* the broker was told to end, or a child had failed */
  SHM_REASON_BROADCAST = 4     /* a broadcast failed there, so it may not be like the others */
};
typedef struct shm_event {
  int kind;
  int index;                   /* helper or child number */
  int pid;
  int exit_status;             /* what the process passed to exit, or -signal */
  uint32_t generation;
  int deaths;                  /* of this helper so far */
  int is_final;                /* a death: the helper (the child) is not replaced */
  int is_failure;              /* a child's end: it failed */
  int reason;                  /* a death: shm_reason */
  int attempts;                /* a helper's death: 1: it is given up, but will be tried again; 2: it
                                * had been let go, because its pool needs fewer, and is not replaced.
                                * A child's end: how often it was restarted since it last ran for
                                * long. A delay: how many tries have failed */
  uint64_t delay_ns;           /* a death that is not final: the least time until it is replaced */
  uint64_t sequence;           /* the call it was executing, when it was */
  uint64_t function;           /* and that call's func_ptr */
} shm_event_t;

/* What the host language lends the supervisor. Every member but fork may be NULL. */
typedef struct shm_host {
  int (*fork)(void);                                     /* as fork(): the host's own protocol */
  int (*run_helper)(int helper, uint32_t generation);    /* in the helper; returns its exit status */
  int (*run_child)(int child, uint32_t generation);      /* in the child; returns its exit status */
  void (*on_event)(const shm_event_t *event);            /* in the parent */
  int (*on_signal)(void);  /* in the parent: run the host's signal handlers; non-zero stops */
  int (*is_done)(int child); /* in the parent: 0 when a child that exited with 0 did not deliver its
                                result, which is a failure, too */
  void (*exit)(int status);                              /* in a role: end the process */
} shm_host_t;

/* Whether core dumps of this process, and of those that it forks, include the arenas and scratch
 * regions that are mapped from here on (1), or omit them (0, the default). */
void shm_dump_arenas(int wanted);

/* Whether a lone caller in this process, and in those that it forks, may watch for an answer that
 * usually comes soon, and the broker for its next call (1, the default), which takes processor time
 * and saves wake-ups, or each always sleeps (0). For brokers that are launched or joined from here
 * on. */
void shm_allow_spinning(int allowed);

/* Become the parent and dispatch until every child has ended (launch), or, with
 * config->caller_is_child, fork a parent and return in the caller, now child 0, once every helper
 * is ready. shm_error_detail() says more about a failure. */
int shm_run(const shm_config_t *config, const shm_host_t *host);
/* caller_is_child: leave; the parent drains, ends its helpers and is reaped. */
int shm_leave(void);

/* Join the broker at the other end of `connection_fd`, a socket connected to its listener: this
 * process becomes a child in a free slot. wait_ns: how long to wait for one (0: not at all; < 0:
 * for ever). heeds_signals: see shm_host_t.on_signal; SHM_EINTR then asks to be called again with
 * the same socket. One thread at a time: SHM_ENESTED is what another gets meanwhile. Leave with
 * shm_leave. *manifest_fd: the broker's manifest, for the caller to close. */
int shm_join(int connection_fd, const char *program, int64_t wait_ns, int heeds_signals,
             int *manifest_fd);
/* In a process that the user's own code forked from a child: give up what it inherited of that
 * child's slot, without effect on the child. It may then join by itself. Arrays stay readable. */
int shm_disown(void);
/* Ask the broker at the other end of `connection_fd`, a socket connected to its listener, about its
 * pool `pool`: *before gets how many helpers it is to have. *manifest_fd as for shm_join. */
int shm_ask(int connection_fd, int pool, int *before, int *manifest_fd);
/* Have that pool run `helpers` helpers: missing ones are forked, surplus ones finish what they hold
 * and end. Returns when that has begun. */
int shm_ask_scale(int connection_fd, int pool, int helpers, int *before);
/* Have the helpers of that pool get nothing, so that calls wait, until is_paused is 0. Returns when
 * that holds; what they have begun they finish. */
int shm_ask_pause(int connection_fd, int pool, int is_paused);
/* Have a broker with SHM_UNTIL_TOLD end when no program is attached and no call is open. Attached
 * programs may stay as long as they like. */
int shm_ask_retire(int connection_fd);

/* How much an attached program may use at most. In every member 0 means: no limit of its own. */
typedef struct shm_quota {
  char program[64];            /* for programs of this name; "": for all */
  uint32_t uid;                /* for this user's programs, if has_uid */
  uint32_t has_uid;
  uint32_t window;             /* messages outstanding */
  uint32_t weight;             /* messages a turn in the fair queue */
  uint64_t arena_bytes;        /* that its allocator gives out */
  uint64_t parked_bytes;       /* of results that a helper keeps until there is room for them */
  uint64_t calls_per_second;   /* on average; after a pause, as many as a second's at once */
} shm_quota_t;
enum shm_quota_rates { SHM_MAX_RATE = 1000000000 };
enum shm_quota_limits { SHM_MAX_QUOTAS = 256, SHM_MAX_WEIGHT = 1000 };
/* In the parent, before shm_run or in one of its callbacks: replace the whole table. A row with a
 * user or a program takes precedence over one with neither; if several such rows match, the
 * smallest value applies. Attached programs keep their arenas, and the other limits change for them
 * at once: with a smaller window, their library sends nothing until few enough calls are open. */
int shm_set_quotas(const shm_quota_t *rows, int count);

/* What this process must add to an address in its arena to get the broker's: 0 unless it joined
 * and the broker's range was taken here. */
int64_t shm_arena_shift(void);
const char *shm_error_detail(void); /* more about the last failure; "" if there is nothing more */
int shm_stop_signal(void);          /* after SHM_ESIGNALLED: which signal */

/* Whether the machine has `bytes` of memory left for arenas; shm_error_detail() says why not. */
int shm_check_memory(uint64_t bytes);

/* The child's arena, and the reservation in which all arenas lie. */
uint64_t shm_arena_base(int child);
uint64_t shm_arena_bytes(void);
/* How many memory files that child's arena had before the one that this process maps. In a helper
 * it is less than shm_child_stats_t.arenas until the helper maps the arena of the slot's new
 * occupant, which happens in the take after one that returned SHM_EINTR. In between, release what
 * you keep of the old one (a driver's registration). */
uint64_t shm_arena_version(int child);
uint64_t shm_reservation_base(void);
uint64_t shm_reservation_bytes(void);
uint64_t shm_scratch_base(int helper);

/* ---- a child's calls (the port) ---- */

typedef struct shm_call_config {  /* what all calls of one signature have in common */
  uint64_t function;           /* func_ptr of the message */
  uint64_t batch_key;          /* 0: never batched */
  uint64_t placement;          /* mask of helpers; 0: any of the pool */
  uint32_t rows;               /* what it adds to a batch */
  uint8_t pool;
  uint8_t priority;            /* 0 to 3, higher first */
  uint8_t gang;                /* 1: one call that runs on every helper of placement at once */
  uint8_t broadcast;           /* 1: runs once on each helper of the pool, and again on each that joins
                                  it: see shm_broadcast_make */
  uint32_t port;               /* shm_port_number() of the port it was made for; 0: any */
  uint32_t unused;
} shm_call_config_t;

typedef struct shm_reply {
  uint64_t sequence;
  uint64_t ticket;             /* what was given to shm_port_submit; 0 for other calls */
  uint64_t value;              /* what the helper passed to shm_helper_finish */
  uint64_t token;              /* after SHM_ENEEDS_SPACE: names this request for room, and no other */
  int32_t status;
  int32_t helper;              /* of a gang and of a broadcast: the one that failed, else its first */
  int32_t gang;                /* of a gang: SHM_GANG_COMMITTED or SHM_GANG_ABORTED; of a broadcast
                                  that takes effect: SHM_GANG_COMMITTED; else 0 */
  int32_t reserved;
} shm_reply_t;

/* A gang: one call that runs on several helpers at once, as one device. */
enum shm_gang_state {
  SHM_GANG_NONE = 0,
  SHM_GANG_RUNNING = 1,
  SHM_GANG_COMMITTED = 2,      /* all members have done what may fail: the call takes effect */
  SHM_GANG_ABORTED = 3         /* a member failed before that: nothing of it takes effect */
};
/* Why it was aborted. */
enum shm_gang_why {
  SHM_GANG_MEMBER_DIED = 1,
  SHM_GANG_MEMBER_FAILED = 2,  /* its function did */
  SHM_GANG_MISMATCH = 3,       /* members disagree about a collective */
  SHM_GANG_STUCK = 4           /* all members waited for each other */
};

/* deadline_ns is absolute, CLOCK_MONOTONIC; 0 means none. After SHM_ETIMEOUT, and after
 * shm_port_abandon, the call leaves the queue as if by shm_port_give_up, and its late reply comes out
 * of shm_port_drain: its memory must stay untouched until then. After SHM_EINTR resume with
 * shm_port_wait(reply->sequence, ...). When SHM_EINTR comes before there was room in the window,
 * reply->sequence is 0: call again. Likewise
 * after SHM_ENEEDS_SPACE with reply->sequence 0: submitted calls that fill the window ask for room;
 * give it to those that shm_port_take_growing returns, then call again. SHM_EWINDOW: the window is
 * full of calls of this very thread that this one interrupts and that ask for room, so it would
 * never have room. */
int shm_port_call(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                  shm_reply_t *reply);
int shm_port_wait(uint64_t sequence, uint64_t deadline_ns, shm_reply_t *reply);
int shm_port_abandon(uint64_t sequence);
/* How a binding's parameter block begins; what follows the addresses is the binding's own. */
typedef struct shm_block {
  uint32_t bytes;              /* of the whole block */
  uint16_t version;
  uint16_t array_count;
  uint64_t result;             /* address of the output buffer */
  uint64_t result_bytes;
  uint64_t arrays[];           /* addresses */
} shm_block_t;
/* A call that differs from the last one only in the addresses of its array arguments and of its
 * output buffer: writes them into the block and then does what shm_port_call does without a
 * deadline. */
typedef struct shm_repeat {
  shm_call_config_t config;
  uint64_t params;             /* a shm_block_t */
  uint64_t room_bytes;
  shm_reply_t *reply;
  uint64_t arguments;          /* how many arrays */
  uint64_t argument_bytes[];   /* of each */
} shm_repeat_t;
/* SHM_OK when the reply's value is 0, and 1 when it is not. SHM_EBAD_PARAMS with
 * reply->sequence 0: an argument does not lie in the arena, nothing was sent. */
int shm_port_repeat(const shm_repeat_t *repeat, const uint64_t arguments[], uint64_t room);
/* Never waits: SHM_EAGAIN when the window is full. Its replies come out of shm_port_drain, or of
 * shm_port_take_end and shm_port_take_growing, and carry the ticket. *sequence is written only if
 * the call is sent, before any reply can come. */
int shm_port_submit(const shm_call_config_t *config, uint64_t params, uint64_t deadline_ns,
                    uint64_t ticket, uint64_t *sequence);
/* As shm_port_repeat, for a call that is submitted. */
int shm_port_resubmit(const shm_repeat_t *repeat, const uint64_t arguments[], uint64_t room,
                      uint64_t ticket, uint64_t *sequence);
/* Offer a parked result more room at params; the same call goes on under the same sequence. (after
 * a shm_port_call: wait with shm_port_wait; after a submit: shm_port_drain.) params == 0 drops the
 * parked result. SHM_EBAD_FRAME when the call does not ask for that, or does so no longer: nothing
 * was sent. */
int shm_port_grow(uint64_t sequence, uint64_t token, uint64_t params);
/* Remove the call from the queue if it has not been handed to a helper; either way exactly one
 * reply comes (SHM_ECANCELLED when it was removed). */
int shm_port_cancel(uint64_t sequence);
/* The same for a call whose time is over: never blocks, and so does nothing where the broker is so far
 * behind that it would. */
int shm_port_give_up(uint64_t sequence);
/* Wait for the end of a submitted call, as its caller does who has nothing else to do: this thread
 * reads replies meanwhile, unless another does. SHM_OK: its reply waits for shm_port_take_end_of.
 * SHM_ENEEDS_SPACE: as from shm_port_call. SHM_ETIMEOUT and SHM_EINTR: it goes on as before.
 * SHM_EBAD_FRAME: it has ended and somebody took its reply, or another thread waits for it. */
int shm_port_await_end(uint32_t port, uint64_t sequence, uint64_t deadline_ns);
/* Whether such a wait, with the deadline SHM_GLANCE, is likely to find it: that looks for what has
 * come, for as long as a caller that waits for it looks before it sleeps. */
int shm_port_is_near(uint32_t port, uint64_t sequence);
enum { SHM_GLANCE = 1 };
/* The same, and takes the reply. With a descriptor beside it (-1: none), such as an event loop's, it
 * ends early where that becomes readable before the reply comes (SHM_EINTR), or where another thread
 * reads replies (SHM_EAGAIN). The other gives a reply back to where it was. */
int shm_port_await_reply(uint32_t port, uint64_t sequence, uint64_t deadline_ns, int beside_fd,
                         shm_reply_t *reply);
void shm_port_put_back(uint32_t port, const shm_reply_t *reply);
/* Replies of submitted and abandoned calls: how many were put into out; 0 at the time-out.
 * timeout_ns: 0 does not wait, negative waits for ever. SHM_EBROKER_DIED when none can come. */
int shm_port_drain(shm_reply_t *out, int max, int64_t timeout_ns);
/* The same wait, but nothing is taken: how many calls have ended, plus 2^32 for each reply that
 * asks for room. The other two then take one at a time; its sequence is 0 if there is none. */
int64_t shm_port_await(uint32_t port, int64_t timeout_ns);
shm_reply_t shm_port_take_end(uint32_t port);
shm_reply_t shm_port_take_end_of(uint32_t port, uint64_t sequence);
shm_reply_t shm_port_take_growing(uint32_t port);
/* The number of the port that is open in this process, counted from 1. A thread that was delayed
 * while the process left its broker and joined another one still has the number of the first port,
 * and with that it can neither send to the second broker nor take its replies. */
int shm_port_number(void);
int shm_port_fd(void);         /* readable when replies may have come */
int shm_port_event_fd(void);   /* readable when another thread has read replies that drain returns */
int shm_port_outstanding(void);
/* Whether the broker is gone, even if no call has noticed yet. */
int shm_port_is_lost(void);
int shm_port_window(void);

/* ---- a helper's calls (its port) ---- */

/* ---- a member of a gang: collectives with the other members ---- */

/* What elements are. SHM_BYTES: anything, which is moved and not computed with. */
enum shm_dtype {
  SHM_BYTES = 0,
  SHM_FLOAT16 = 1,
  SHM_BFLOAT16 = 2,
  SHM_FLOAT32 = 3,
  SHM_FLOAT64 = 4,
  SHM_INT8 = 5,
  SHM_INT16 = 6,
  SHM_INT32 = 7,
  SHM_INT64 = 8,
  SHM_UINT8 = 9,
  SHM_UINT16 = 10,
  SHM_UINT32 = 11,
  SHM_UINT64 = 12,
  SHM_DTYPES = 13
};
/* Reductions go in the order of the group's ranks. 16-bit floats are computed in float32 and
 * rounded once. Integers wrap. */
enum shm_reduction {
  SHM_REDUCE_SUM = 0,
  SHM_REDUCE_MEAN = 1,         /* floats only */
  SHM_REDUCE_MAX = 2,          /* a NaN wins */
  SHM_REDUCE_MIN = 3,
  SHM_REDUCE_PROD = 4,
  SHM_REDUCTIONS = 5
};
enum shm_collective_kind {
  SHM_BARRIER = 0,
  SHM_ALL_REDUCE = 1,          /* counts[0] elements of each member, reduced; in may be out */
  SHM_ALL_GATHER = 2,          /* counts[rank] elements of each member, end to end, to all */
  SHM_REDUCE_SCATTER = 3,      /* each member gets its counts[rank] elements of the reduction */
  SHM_ALL_TO_ALL = 4,          /* counts[rank] elements to each, received[rank] from each */
  SHM_BROADCAST = 5,           /* counts[0] elements of root's in, to the out of all others */
  SHM_SCATTER = 6,             /* counts[rank] elements from root to each member */
  SHM_GATHER = 7,              /* counts[rank] elements from each member to root */
  SHM_SEND = 8,                /* counts[0] elements: root sends, the other of the group receives */
  SHM_RECV = 9,
  SHM_COLLECTIVES = 10
};
/* How an all_reduce is done: the result is the same bit for bit. */
enum shm_algorithm {
  SHM_ALGORITHM_AUTO = 0,      /* by size */
  SHM_ALGORITHM_NAIVE = 1,     /* each member reads all and reduces all, in one step */
  SHM_ALGORITHM_RING = 2,      /* each member reads only from its predecessor */
  SHM_ALGORITHM_ALL_TO_ALL = 3, /* each member reduces one piece and reads the other results */
  SHM_ALGORITHMS = 4
};

typedef struct shm_collective {
  uint32_t id;                 /* its number in the gang, from 1 to 65535: they rise from each to the
                                  next, and all who take part call it the same */
  uint8_t kind;                /* shm_collective_kind */
  uint8_t dtype;               /* shm_dtype */
  uint8_t reduction;           /* shm_reduction */
  uint8_t algorithm;           /* shm_algorithm */
  uint8_t root;                /* a rank in the group */
  uint8_t size;                /* of the group; 0: all members */
  uint16_t reserved;
  uint8_t group[64];           /* ranks in the gang, in the order of ranks in the group */
  uint64_t counts[64];         /* elements, by rank in the group */
  uint64_t received[64];
} shm_collective_t;

/* In a helper, while a call of a gang runs there: this member's rank, and how many there are. Ranks
 * follow the helpers' numbers. SHM_EBAD_GANG where none runs. */
int shm_gang_rank(void);
int shm_gang_size(void);
/* The sum of its members' generations: it changes when one of them is replaced. */
uint64_t shm_gang_epoch(void);
/* Take part in it. SHM_EABORTED: the gang is given up, and nothing that came out counts.
 * SHM_EBAD_GANG: shm_error_detail() says what does not fit; where members disagree, this gives the
 * gang up. */
int shm_gang_collective(const shm_collective_t *collective, const void *in, void *out);
/* The same in two halves. shm_gang_start returns a handle; shm_gang_wait does the rest, under
 * another number. Between the two, leave the arrays alone. */
int shm_gang_start(const shm_collective_t *collective, const void *in, void *out);
int shm_gang_wait(int handle, uint32_t id);
/* This member has done all that may fail; wait until all members have. SHM_OK: the call takes
 * effect. SHM_EABORTED: the function must change nothing. No collective may follow. A function that
 * returns without a commit commits by returning, and does not learn the outcome. */
int shm_gang_commit(void);
/* Give it up: the others hear of it at their next collective. */
int shm_gang_abort(void);
int shm_gang_state(void);      /* shm_gang_state of the gang that runs here; SHM_GANG_NONE: none does */

/* What a helper may say before its call has ended, by a word in the caller's arena. The caller sets
 * it to SHM_NOT_SAID before the call is sent. */
enum shm_said {
  SHM_NOT_SAID = 0x6e6f7421,   /* unlikely elsewhere: where it is not found, nothing is written */
  SHM_SAID_RESULTS = 1,        /* the results are written, and the call goes on */
  SHM_SAID_FAILED = 2          /* it will fail; its answer says with what */
};

/* In the caller: sleep until something is said. Returns it, or SHM_NOT_SAID after timeout_ns or a
 * signal: then see whether the call has ended. */
uint32_t shm_word_wait(void *word, int64_t timeout_ns);
/* In a helper. The word lies in the caller's arena: see to that first. SHM_EBAD_PARAMS: it is no
 * word in which nothing was said yet; it stays as it is. */
int shm_word_say(void *word, uint32_t what);

/* A binding's parameter block for a gang: a table of blocks, one for each member by rank, and
 * behind it the blocks. A helper is told only of its own. */
typedef struct shm_gang_block {
  uint32_t bytes;              /* of the table and all blocks */
  uint16_t version;            /* 1 */
  uint16_t members;            /* how many */
  uint64_t mask;               /* of helpers: the call's own */
  uint32_t offsets[];          /* from the beginning of the table: multiples of 8 */
} shm_gang_block_t;

enum shm_work_kind {
  SHM_WORK_CALL = 0,
  SHM_WORK_GROW = 1,           /* copy a parked result into params (0: drop it) */
  SHM_WORK_GANG = 2,           /* a call that other helpers run, too; always alone */
  SHM_WORK_BROADCAST = 3,      /* a broadcast, here first: see shm_broadcast_make; always alone */
  SHM_WORK_APPLY = 4           /* a broadcast that has run elsewhere; always alone */
};
typedef struct shm_work {
  uint64_t delivery;           /* the number of this delivery, for shm_helper_finish */
  uint64_t function;           /* func_ptr of the message */
  uint64_t params;             /* its parameter block: at least block_bytes lie in the arena */
  uint64_t token;              /* grow: the token of the parked result. Broadcast and apply: the
                                  pool's version, once it has run */
  uint64_t sequence;
  uint64_t members;            /* gang: mask of the helpers that run it; else 0 */
  uint32_t block_bytes;        /* the block's first 32-bit word, checked against the arena */
  uint32_t generation;
  uint32_t rows;
  uint32_t ticket;             /* gang: its number */
  uint16_t slot;               /* the child's number */
  uint8_t kind;                /* shm_work_kind */
  uint8_t reserved;
} shm_work_t;

/* Report that the session is made (SHM_OK), or could not be made (SHM_ESESSION), even at a call
 * after SHM_OK: then finish what was taken first, and end. */
int shm_helper_ready(int status);
/* Wait for the next call: fills works with the messages of one batch and returns how many (at
 * least 1), SHM_EAGAIN at the time-out, SHM_ESTOPPED when the helper should end; SHM_EINTR when a
 * signal came, or when a child has left (shm_get_child_stats says which): release what you keep for
 * it, and call again. */
int shm_helper_take(shm_work_t *works, int max, int64_t timeout_ns);
int shm_helper_finish(uint64_t delivery, int status, uint64_t value);
/* shm_helper_finish(status, value) for everything that the last take returned, then shm_helper_take
 * without a time-out: one crossing of the binding for each call. */
int shm_helper_step(shm_work_t *works, int max, int status, uint64_t value);
/* From now on a take without a time-out returns SHM_EAGAIN when nothing has come for so long; 0:
 * never. */
int shm_helper_tell_idle(uint64_t after_ns);
/* Nothing has come for long, and nothing is kept here: offer to end. If no message is on its way,
 * the next take returns SHM_ESTOPPED, and the process that takes this one's place is no respawn after
 * a death. */
int shm_helper_offer_end(void);
/* What has become of the session; without a word of it there is one. While it is SHM_SESSION_LOADING
 * a call that waits for it does not count as hung, and its time begins when it is loaded. */
enum shm_session { SHM_SESSION_LOADED = 0, SHM_SESSION_NONE = 1, SHM_SESSION_LOADING = 2 };
int shm_helper_session(int state);
/* Everything of the last take is finished, but some work is left: send the replies at once. Until
 * the next take the helper counts as busy, and as hung if that takes too long; if it dies, no call
 * fails. That work may read the callers' arenas, but must not write there. */
int shm_helper_go_on(void);
/* In any role: 1 while that helper does such work. A caller that has its answer sees it, or that it
 * has ended. */
int shm_helper_goes_on(int helper);

/* Broadcasts: calls of bindings (func == NULL) that run once on each helper of a pool, and once more
 * on each helper that replaces one or is added, before it gets calls. SHM_WORK_BROADCAST: copy the
 * block and its arrays into a memory file, seal that, run the function on it; if that went well,
 * publish the file and finish with SHM_OK. Then the pool has a new version, the parent keeps the
 * file in place of this function's last, and all other helpers of the pool get SHM_WORK_APPLY: run
 * the function on the file (its params, if not 0, is the sender's block, where a failure may be
 * reported). A helper on which the function failed (SHM_EREMOTE, and with SHM_WORK_APPLY any
 * failure) gets nothing more, and is replaced. */
int shm_broadcast_make(uint64_t bytes);  /* a descriptor. SHM_ENO_MEMORY: see shm_error_detail() */
int shm_broadcast_seal(int fd);
int shm_broadcast_publish(int fd);
int shm_broadcast_take(void);            /* of the SHM_WORK_APPLY that was taken: its file */
void shm_broadcast_close(int fd);        /* of both */
uint64_t shm_broadcast_bytes(int fd);    /* 0: it is no sealed file */
/* Private pages: what is written there nobody else sees. NULL: see shm_error_detail(). */
void *shm_broadcast_map(int fd, uint64_t bytes);
void shm_broadcast_unmap(void *at, uint64_t bytes);
/* In any role, and in a monitor: how many broadcasts have taken effect in that pool. A call that is
 * made after this was read runs on a helper that has had them. */
uint64_t shm_broadcast_version(int pool);

/* ---- what is counted (the scoreboard) ---- */

enum shm_bytes_kind {
  SHM_BYTES_MARSHALLED = 0,    /* payload sent through a pipe or socket: always 0 */
  SHM_BYTES_GATHERED = 1,      /* copied into a batch */
  SHM_BYTES_COPIED_IN = 2,     /* copied into an arena by its child */
  SHM_BYTES_COPIED_OUT = 3,    /* copied into an arena by a helper */
  SHM_BYTES_HOST_TO_DEVICE = 4,
  SHM_BYTES_DEVICE_TO_HOST = 5,
  SHM_BYTES_KINDS = 6
};
void shm_count_bytes(int kind, uint64_t bytes); /* adds to the calling role's own counter */

enum shm_child_state {
  SHM_CHILD_UNUSED = 0,
  SHM_CHILD_RUNNING = 1,
  SHM_CHILD_ENDED = 2,
  SHM_CHILD_QUARANTINED = 3,   /* gone, but helpers may still write to its arena */
  SHM_CHILD_CLEARING = 4       /* gone; its arena's memory is being given back */
};
enum shm_helper_state {
  SHM_HELPER_UNUSED = 0,
  SHM_HELPER_STARTING = 1,
  SHM_HELPER_READY = 2,
  SHM_HELPER_DEAD = 3,
  SHM_HELPER_GIVEN_UP = 4,
  SHM_HELPER_LEAVING = 5,      /* finishes what it holds before it ends */
  SHM_HELPER_ABSENT = 6,       /* not needed now */
  SHM_HELPER_UNLOADED = 7,     /* ready: it makes its session when a call comes */
  SHM_HELPER_LOADING = 8       /* a call has come, and it makes its session */
};

typedef struct shm_child_stats {
  int32_t pid;
  int32_t state;               /* a shm_child_state */
  uint32_t generation;
  uint32_t queued;             /* now */
  uint64_t frames_sent;        /* by the child; counted by the child */
  uint64_t frames_received;
  uint64_t submitted;          /* calls seen by the dispatcher */
  uint64_t answered;
  uint64_t failed;             /* answered with a status other than SHM_OK */
  uint64_t dropped;            /* calls whose child died before they were answered */
  uint64_t protocol_errors;
  uint64_t restarts;           /* how often its main was run again */
  uint64_t arena_used_bytes;   /* last reported by the child */
  uint64_t parked_limit;       /* bytes of its results that a helper keeps; 0: no limit of its own */
  uint64_t window;             /* calls it may have open now; 0: no limit of its own */
  uint64_t arenas;             /* memory files that its slot's arena had before */
  uint64_t bytes[6];           /* by shm_bytes_kind */
} shm_child_stats_t;

typedef struct shm_helper_stats {
  int32_t pid;
  int32_t state;               /* a shm_helper_state */
  uint32_t generation;
  uint32_t pool;
  uint32_t in_flight;          /* now */
  uint32_t deaths;
  uint64_t frames_sent;        /* by the helper; counted by the helper */
  uint64_t frames_received;
  uint64_t finished;           /* messages */
  uint64_t batches;            /* batches of more than one message */
  uint64_t batched;            /* messages in those */
  uint64_t busy_ns;            /* executing calls, and work after their answers */
  uint64_t went_on;            /* how often work after an answer has ended */
  uint64_t bytes[6];
  char pool_name[32];          /* "": none */
  uint32_t goes_on;            /* 1: it still works for a call that is answered */
  uint32_t reserved;
  uint64_t collectives;        /* that it took part in */
  uint64_t collective_bytes;   /* what it received from other members in them */
  uint64_t collective_wait_ns; /* how long it waited for others in them */
  uint64_t naive_all_reduces;  /* of the collectives, those by each algorithm */
  uint64_t ring_all_reduces;
  uint64_t all_to_all_all_reduces;
  uint64_t version;            /* of its pool, as far as this helper has had the broadcasts */
} shm_helper_stats_t;

typedef struct shm_broker_stats {
  uint64_t started_ns;         /* CLOCK_MONOTONIC */
  uint64_t wakes;              /* of the dispatcher's poll */
  uint64_t submitted;
  uint64_t answered;
  uint64_t failed;
  uint64_t requeued;           /* calls taken back from a dead helper */
  uint64_t cancelled;
  uint64_t expired;            /* deadline passed while queued */
  uint64_t dropped;            /* calls whose child died first; and stale replies */
  uint64_t protocol_errors;
  uint64_t helper_deaths;
  uint64_t helper_respawns;
  uint64_t helper_hangs;       /* helpers ended because a call exceeded hang_after */
  uint64_t retried;            /* idempotent calls handed over once more after a helper's death */
  uint64_t child_deaths;       /* children that ended with an error or by a signal */
  uint64_t child_restarts;
  uint64_t arenas_cleared;     /* arenas of dead children that were given back */
  uint64_t cleared_bytes;      /* bytes of memory in those */
  uint64_t trace_written;      /* records written to the trace so far */
  uint32_t queued;             /* now */
  uint32_t in_flight;          /* now */
  int32_t parent_pid;
  int32_t children;            /* slots */
  int32_t helpers;
  int32_t window;
  uint64_t arena_bytes;        /* of each child */
  uint64_t broadcasts;         /* that have taken effect */
  uint64_t kept_files;         /* now: the last broadcast of each function, for helpers to come */
  uint64_t kept_bytes;         /* in those */
  uint64_t pool_version[16];   /* by pool: see shm_broadcast_version */
  uint64_t refused;            /* calls that ended because max_queue of their function waited, or
                                  because their child's quota allows no more of them a second */
  uint32_t paused_pools;       /* now: a mask */
  uint32_t reserved;
} shm_broker_stats_t;

int shm_get_broker_stats(shm_broker_stats_t *stats);
int shm_get_child_stats(int child, shm_child_stats_t *stats);
int shm_get_helper_stats(int helper, shm_helper_stats_t *stats);

/* The sealed table of functions, as the trace names them. */
typedef struct shm_function_row {
  uint64_t function;           /* func_ptr of the message */
  char name[80];
} shm_function_row_t;
int shm_get_functions(shm_function_row_t *out, int max); /* how many were put into out */

/* One call, from its request to its answer; times are CLOCK_MONOTONIC ns. */
typedef struct shm_trace_record {
  uint64_t sequence;
  uint64_t function;
  uint64_t queued_ns;          /* the dispatcher read it */
  uint64_t handed_ns;          /* written to the helper; 0: never was */
  uint64_t answered_ns;        /* written to the child */
  uint32_t started_units;      /* after handed_ns, in units of 64 ns */
  uint32_t finished_units;
  uint32_t rows;
  uint16_t slot;
  int16_t status;
  uint16_t batch;              /* messages in its batch */
  uint8_t helper;              /* or SHM_NO_HELPER */
  uint8_t priority;
  uint32_t generation;
  uint64_t members;            /* a gang: mask of its helpers, each of which has a record; else 0 */
  uint64_t moved_bytes;        /* a gang: what this helper received in collectives */
  uint32_t waited_units;       /* a gang: how long it waited for others in them, of 64 ns */
  uint32_t reserved;
} shm_trace_record_t;
/* Copy the records numbered from *next on into out, oldest first, skipping those that the ring has
 * overwritten; advances *next. Returns how many. */
int shm_read_trace(uint64_t *next, shm_trace_record_t *out, int max);

/* In a process without a broker: watch another one. fd is what the parent of that broker holds as
 * "memfd:shmgpu-scoreboard" (open /proc/PID/fd/N for reading); it may be closed afterwards. Then
 * the five functions above read that broker, until shm_monitor_close or until this process
 * launches. The broker does not notice. SHM_ENO_BOARD: fd is not a scoreboard, or not one of this
 * version; shm_error_detail() says why. SHM_ENESTED: this process has a broker, or has a monitor
 * open. */
int shm_monitor_open(int fd);
void shm_monitor_close(void);

/* CDEF-END */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
