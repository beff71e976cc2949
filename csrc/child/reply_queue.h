/* reply_queue -- a queue of replies, each with the message that it answers.
 *
 * A ring that grows: replies outlive the entries of their calls, and wait here until they are read.
 *
 * Owns: its memory. Must never: take a lock; its owner holds one.
 */
#ifndef SHMI_REPLY_QUEUE_H
#define SHMI_REPLY_QUEUE_H

#include "base/status.h"

typedef struct shmi_replies {
  shm_reply_t *replies;
  shm_msg_t *msgs;
  uint32_t head, count, capacity;
} shmi_replies_t;

/* SHM_OK, or SHM_ESYSTEM when there is no memory. */
int shmi_replies_push(shmi_replies_t *queue, const shm_reply_t *reply, const shm_msg_t *msg);
/* 0: the queue is empty. reply and msg may be NULL. */
int shmi_replies_pop(shmi_replies_t *queue, shm_reply_t *reply, shm_msg_t *msg);
int shmi_replies_has(const shmi_replies_t *queue, uint64_t sequence);
/* Remove the first reply that belongs to one of these calls: the call's index, or -1. reply may be
 * NULL. */
int shmi_replies_take(shmi_replies_t *queue, const uint64_t sequences[], int count,
                      shm_reply_t *reply);
void shmi_replies_free(shmi_replies_t *queue);

#endif
