/* attach_handshake -- what a process that asks to join says, and what it is told. Two datagrams on
 * a SOCK_SEQPACKET socket; with the second one come the descriptors.
 *
 *   client -> broker  hello: it asks to join
 *   broker -> client  welcome, with: its arena, the scoreboard, its page,
 *                         its two pipe ends[, the manifest]
 *   client -> broker  hello: it asks what the broker is, that a pool gets more or fewer helpers, or
 *                        that it ends when nobody is joined
 *   broker -> client  welcome, with: the manifest, where there is one
 *
 * or a refusal: a welcome whose status is negative, with a sentence.
 *
 * Owns: the layout. Must never: know a socket.
 */
#ifndef SHMI_ATTACH_HANDSHAKE_H
#define SHMI_ATTACH_HANDSHAKE_H

#include "base/passing.h"
#include "base/status.h"

enum {
  SHMI_ATTACH_VERSION = 5, /* raised with any change of frames, scoreboard or this file */
  SHMI_ATTACH_NAME_BYTES = 64,
  SHMI_ATTACH_SENTENCE_BYTES = 256
};
#define SHMI_ATTACH_MAGIC UINT32_C(0x756d6873) /* "shmu" */

/* In the order in which they are sent. What several are handed is for reading: a receiver can
 * write to what is its own alone, and can change the size or the seals of nothing. */
enum shmi_attach_descriptor {
  SHMI_ATTACH_ARENA,    /* its own */
  SHMI_ATTACH_SCOREBOARD,    /* for reading */
  SHMI_ATTACH_PAGE,     /* its own: what it counts */
  SHMI_ATTACH_REQUESTS, /* the end to write */
  SHMI_ATTACH_REPLIES,  /* the end to read */
  SHMI_ATTACH_MANIFEST, /* for reading */
  SHMI_ATTACH_DESCRIPTORS
};
_Static_assert((int)SHMI_ATTACH_DESCRIPTORS <= (int)SHMI_PASSING_MOST,
               "they travel with one message");

enum shmi_hello_kind {
  SHMI_HELLO_JOIN = 0,
  SHMI_HELLO_ASK = 1,  /* how many helpers a pool has, and the manifest */
  SHMI_HELLO_SCALE = 2, /* give a pool so many; of the broker's own user only */
  SHMI_HELLO_RETIRE = 3 /* end with the last who has joined; of the broker's own user only */
};

typedef struct shmi_hello {
  uint32_t magic, version;
  int32_t kind, pool, helpers; /* of ASK and SCALE: of which pool, and how many */
  int32_t reserved;
  int64_t wait_ns; /* for a free slot; 0: not at all, negative: for ever */
  char program[SHMI_ATTACH_NAME_BYTES];
} shmi_hello_t;

typedef struct shmi_welcome {
  uint32_t magic, version;
  int32_t status;
  int32_t slot;
  uint32_t generation;
  uint32_t window; /* the most it may ever be given; by now: the scoreboard's child_stats.window */
  uint64_t arena_address; /* the broker's */
  uint64_t arena_bytes;
  int32_t helpers_before, helpers_now; /* of the pool asked for */
  char sentence[SHMI_ATTACH_SENTENCE_BYTES]; /* of a refusal */
} shmi_welcome_t;

#endif
