/* attach_handshake -- what a program that attaches sends, and what it is answered. Two datagrams on
 * a SOCK_SEQPACKET socket; the descriptors come with the second one.
 *
 *   client -> broker  hello: let me join
 *   broker -> client  welcome, with its arena, the scoreboard, its page, its two pipe ends
 *                     [, the manifest]
 *
 *   client -> broker  hello: tell me what you are; give a pool more or fewer helpers; or end when no
 *                     program is attached
 *   broker -> client  welcome, with the manifest, if there is one
 *
 * A refusal is a welcome with a negative status and a sentence.
 *
 * Owns: the layout. Must never: know a socket.
 */
#ifndef SHMI_ATTACH_HANDSHAKE_H
#define SHMI_ATTACH_HANDSHAKE_H

#include "base/passing.h"
#include "base/status.h"

enum {
  SHMI_ATTACH_VERSION = 7, /* raised with any change of frames, scoreboard, manifest or this file */
  SHMI_ATTACH_NAME_BYTES = 64,
  SHMI_ATTACH_SENTENCE_BYTES = 256
};
#define SHMI_ATTACH_MAGIC UINT32_C(0x756d6873) /* "shmu" */

/* In the order in which they are sent. Whatever several programs get is read-only: a receiver can
 * write only to what is its own, and can change no size and no seals. */
enum shmi_attach_descriptor {
  SHMI_ATTACH_ARENA,    /* its own */
  SHMI_ATTACH_SCOREBOARD, /* read-only */
  SHMI_ATTACH_PAGE,     /* its own, for what it counts */
  SHMI_ATTACH_REQUESTS, /* the end to write */
  SHMI_ATTACH_REPLIES,  /* the end to read */
  SHMI_ATTACH_MANIFEST, /* read-only */
  SHMI_ATTACH_DESCRIPTORS
};
_Static_assert((int)SHMI_ATTACH_DESCRIPTORS <= (int)SHMI_PASSING_MOST,
               "they travel with one message");

enum shmi_hello_kind {
  SHMI_HELLO_JOIN = 0,
  SHMI_HELLO_ASK = 1,   /* how many helpers a pool has; the manifest */
  SHMI_HELLO_SCALE = 2, /* give a pool so many helpers; the broker's own user only */
  SHMI_HELLO_RETIRE = 3, /* end when no program is attached; the broker's own user only */
  SHMI_HELLO_PAUSE = 4,  /* have a pool's helpers get nothing; the broker's own user only */
  SHMI_HELLO_RESUME = 5  /* and have them go on */
};

typedef struct shmi_hello {
  uint32_t magic, version;
  int32_t kind, pool, helpers; /* all but JOIN: which pool; SCALE: how many helpers */
  int32_t reserved;
  int64_t wait_ns; /* for a free slot; 0: not at all, negative: for ever */
  char program[SHMI_ATTACH_NAME_BYTES];
} shmi_hello_t;

typedef struct shmi_welcome {
  uint32_t magic, version;
  int32_t status;
  int32_t slot;
  uint32_t generation;
  uint32_t window; /* the most it can ever be; how much it is now: child_stats.window */
  uint64_t arena_address; /* in the broker's range */
  uint64_t arena_bytes;
  int32_t helpers_before, helpers_now; /* of the pool in question */
  char sentence[SHMI_ATTACH_SENTENCE_BYTES]; /* in a refusal: why */
} shmi_welcome_t;

#endif
