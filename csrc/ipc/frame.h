/* frame -- what travels on a pipe, 64 bytes each; and the validation of frames.
 *
 * A frame is the 16-byte message of the public interface with what is needed to deliver it.
 * Requests and replies share the layout; where a field's meaning depends on the direction, there is
 * a union. Nothing here knows descriptors, processes or queues: validation is a pure function of
 * the frame and of given bounds.
 *
 * Directions:   child -> dispatcher   CALL, GROW, CANCEL
 *               dispatcher -> helper  CALL, APPLY, GROW, CLEAR, GONE
 *               helper -> dispatcher  REPLY, READY
 *               dispatcher -> child   REPLY
 *
 * Owns: the layout and the validation. Must never: read what a frame points to.
 */
#ifndef SHMI_FRAME_H
#define SHMI_FRAME_H

#include "base/status.h"

enum shmi_frame_kind {
  SHMI_FRAME_CALL = 1,   /* run msg.func_ptr on msg.params */
  SHMI_FRAME_GROW = 2,   /* room for a parked result: msg.func_ptr is its token */
  SHMI_FRAME_CANCEL = 3, /* remove the call with that sequence number from the queue */
  SHMI_FRAME_REPLY = 4,  /* how the call ended */
  SHMI_FRAME_READY = 5,  /* a helper's session is made, or could not be made */
  SHMI_FRAME_CLEAR = 6,  /* to a helper: give back result.token bytes of memory at result.value */
  SHMI_FRAME_GONE = 7,   /* to a helper: a child has left; the scoreboard says which. No answer */
  SHMI_FRAME_APPLY = 8,  /* to a helper: run msg.func_ptr on the kept file that was sent before it */
  SHMI_FRAME_IDLE = 9    /* from a helper: it has had nothing to do for long, and may end. No answer */
};

enum shmi_frame_flag {
  SHMI_FRAME_MORE = 1, /* to a helper: the next frame belongs to the same batch */
  SHMI_FRAME_GANG = 2, /* to run on every helper of the placement mask at once */
  SHMI_FRAME_NEW_ARENA = 4, /* to a helper: first map the memory file that was sent for its slot */
  SHMI_FRAME_TO_PASS = 8,   /* within the dispatcher: that memory file has not been sent yet */
  SHMI_FRAME_COMMITTED = 16, /* reply of a gang or a broadcast: what it did stands, whatever the
                                status */
  SHMI_FRAME_BROADCAST = 32, /* to run once on each helper of the pool; see dispatch_broadcasts.c */
  SHMI_FRAME_FILE_TO_PASS = 64, /* within the dispatcher: an APPLY's file has not been sent yet */
  SHMI_FRAME_WATCHED = 128 /* from a child: a thread waits for this, its only call, as for the last */
};

enum { SHMI_PRIORITIES = 4 };

typedef struct shmi_frame {
  union {
    shm_msg_t msg;  /* the message */
    struct {        /* in a reply: what the helper returned with the status */
      uint64_t token;
      uint64_t value;
    } result;
  };
  uint64_t sequence;   /* the child's own number for the call */
  uint16_t slot;       /* request: the child, stamped by the dispatcher; reply: the helper */
  uint8_t pool;
  uint8_t kind;
  uint32_t generation; /* of the child's slot, stamped by the dispatcher */
  uint8_t priority;
  uint8_t flags;
  uint16_t status;     /* reply: the positive magnitude of a status code */
  union {
    uint32_t rows;     /* what the call adds to a batch */
    uint32_t ticket;   /* of a gang, to a helper: its number */
  };
  union {
    uint64_t batch_key; /* from a child: calls of one key may share a batch; 0: never */
    uint64_t delivery;  /* to and from a helper: number of this delivery, from 1 */
  };
  union {
    uint64_t deadline_ns; /* from a child: absolute, CLOCK_MONOTONIC; 0: none */
    uint64_t members;     /* of a gang, to a helper: mask of the helpers that run it */
    uint64_t version;     /* of a broadcast, to a helper: the pool's, once it has run */
  };
  union {
    uint64_t placement; /* from a child: mask of helpers that may run it; 0: any */
    uint64_t handed_ns; /* to a helper: when it was handed over */
    struct {            /* reply: since then, in units of 64 ns, saturated */
      uint32_t started_units;
      uint32_t finished_units;
    };
  };
} shmi_frame_t;

_Static_assert(sizeof(shm_msg_t) == 16, "a message is 16 bytes");
_Static_assert(sizeof(shmi_frame_t) == SHM_FRAME_BYTES, "a frame is 64 bytes");
_Static_assert(offsetof(shmi_frame_t, sequence) == 16, "layout");
_Static_assert(offsetof(shmi_frame_t, slot) == 24, "layout");
_Static_assert(offsetof(shmi_frame_t, generation) == 28, "layout");
_Static_assert(offsetof(shmi_frame_t, priority) == 32, "layout");
_Static_assert(offsetof(shmi_frame_t, rows) == 36, "layout");
_Static_assert(offsetof(shmi_frame_t, batch_key) == 40, "layout");
_Static_assert(offsetof(shmi_frame_t, deadline_ns) == 48, "layout");
_Static_assert(offsetof(shmi_frame_t, placement) == 56, "layout");

/* What a child's frame is validated against. */
typedef struct shmi_frame_bounds {
  uint64_t arena_base;
  uint64_t arena_bytes;
  uint64_t helper_mask; /* helpers that exist */
  int pool_count;
} shmi_frame_bounds_t;

/* Whether [address, address + bytes) lies in [base, base + capacity). Cannot overflow. */
static inline int shmi_range_inside(uint64_t base, uint64_t capacity, uint64_t address,
                                    uint64_t bytes) {
  uint64_t offset = address - base; /* wraps to a huge number below base */
  return offset <= capacity && bytes <= capacity - offset;
}

/* Validate a child's frame, except its function (see function_table): SHM_OK, SHM_EBAD_FRAME (the
 * protocol is broken), SHM_EBAD_POOL or SHM_EPLACEMENT. */
int shmi_frame_check_request(const shmi_frame_t *frame, const shmi_frame_bounds_t *bounds);

/* Validate the address of its parameter block: at least params_bytes of it must lie in the arena,
 * 8-byte aligned. NULL is valid when params_bytes is 0. SHM_OK or SHM_EBAD_PARAMS. */
int shmi_frame_check_params(const shmi_frame_t *frame, const shmi_frame_bounds_t *bounds,
                            uint64_t params_bytes);

static inline uint16_t shmi_status_to_wire(int status) { return (uint16_t)-status; }
static inline int shmi_status_from_wire(uint16_t wire) { return -(int)wire; }

#endif
