/* shmgpu.h -- the one public header.
 *
 * A *parent* forks *helpers*, which own the expensive sessions (a model, a CUDA
 * context), and *children*, which run the user's code and each own one private
 * shared-memory *arena*. A call is a 16-byte message {func_ptr, params}: the data it
 * speaks of already lies in the caller's arena, where the helper reads and writes it
 * in place.
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
  SHM_ENO_CHILD_SLOT = -36
};

const char *shm_status_name(int status); /* "SHM_EARENA_FULL"; never NULL */
const char *shm_status_text(int status); /* one sentence; never NULL */

/* ---- the talk's interface -------------------------------------------------- */

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
/* In a child: hand msg to some helper; SHM_EWINDOW when the window (one, unless
 * shm_set_window raised it) is full. Does not wait. */
int shm_send_msg(const shm_msg_t *msg);
/* In a child: wait for the next answered message of shm_send_msg; fills *msg when it is not
 * NULL. Returns the outcome of that call. */
int shm_read_msg(shm_msg_t *msg);
/* In a helper: its number, from 0. SHM_ENOT_HELPER elsewhere. */
int shm_get_helper_id(void);

/* ---- what a C program needs besides ---------------------------------------- */

/* Before shm_launch: allow children to call func on parameter blocks of params_size bytes.
 * func is called with the address of the block in the caller's arena. */
int shm_register(shm_func_t func, const char *name, size_t params_size);
int shm_get_child_id(void);                 /* in a child: its number, from 0 */
int shm_set_window(int messages);           /* in a child: how many shm_send_msg may be out */
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

/* CDEF-END */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
