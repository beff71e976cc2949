/* guest -- what a process that asks to join says, and what it is told. Two datagrams on a
 * SOCK_SEQPACKET socket; with the second one come the descriptors.
 *
 *   guest -> door   hello
 *   door  -> guest  welcome, with: its arena, the board, its two pipe ends[, the manifest];
 *                   or a refusal: a welcome whose status is negative, with a sentence
 *
 * Owns: the layout. Knows no socket.
 */
#ifndef SHMI_GUEST_H
#define SHMI_GUEST_H

#include "status.h"

enum {
  SHMI_GUEST_VERSION = 1, /* raised with any change of frames, board or this file */
  SHMI_GUEST_NAME_BYTES = 64,
  SHMI_GUEST_SENTENCE_BYTES = 256
};
#define SHMI_GUEST_MAGIC UINT32_C(0x756d6873) /* "shmu" */

/* In the order in which they are sent. */
enum shmi_guest_descriptor {
  SHMI_GUEST_ARENA,
  SHMI_GUEST_BOARD,
  SHMI_GUEST_REQUESTS, /* the end to write */
  SHMI_GUEST_REPLIES,  /* the end to read */
  SHMI_GUEST_MANIFEST,
  SHMI_GUEST_DESCRIPTORS
};

typedef struct shmi_hello {
  uint32_t magic, version;
  int64_t wait_ns; /* for a free slot; 0: not at all, negative: for ever */
  char program[SHMI_GUEST_NAME_BYTES];
} shmi_hello_t;

typedef struct shmi_welcome {
  uint32_t magic, version;
  int32_t status;
  int32_t slot;
  uint32_t generation;
  uint32_t window;
  uint64_t arena_address; /* the broker's */
  uint64_t arena_bytes;
  char sentence[SHMI_GUEST_SENTENCE_BYTES]; /* of a refusal */
} shmi_welcome_t;

#endif
