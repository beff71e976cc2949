/* reply_queue -- see reply_queue.h. */
#include "child/reply_queue.h"

#include <stdlib.h>
#include <string.h>

int shmi_replies_push(shmi_replies_t *queue, const shm_reply_t *reply, const shm_msg_t *msg) {
  if (queue->count == queue->capacity) {
    uint32_t capacity = queue->capacity > 0 ? queue->capacity * 2 : 64;
    shm_reply_t *replies = malloc(capacity * sizeof *replies);
    shm_msg_t *msgs = malloc(capacity * sizeof *msgs);
    if (replies == NULL || msgs == NULL) {
      free(replies);
      free(msgs);
      return SHM_ESYSTEM;
    }
    for (uint32_t i = 0; i < queue->count; i++) {
      replies[i] = queue->replies[(queue->head + i) & (queue->capacity - 1)];
      msgs[i] = queue->msgs[(queue->head + i) & (queue->capacity - 1)];
    }
    free(queue->replies);
    free(queue->msgs);
    queue->replies = replies;
    queue->msgs = msgs;
    queue->head = 0;
    queue->capacity = capacity;
  }
  uint32_t at = (queue->head + queue->count++) & (queue->capacity - 1);
  queue->replies[at] = *reply;
  queue->msgs[at] = *msg;
  return SHM_OK;
}

int shmi_replies_pop(shmi_replies_t *queue, shm_reply_t *reply, shm_msg_t *msg) {
  if (queue->count == 0) return 0;
  if (reply != NULL) *reply = queue->replies[queue->head];
  if (msg != NULL) *msg = queue->msgs[queue->head];
  queue->head = (queue->head + 1) & (queue->capacity - 1);
  queue->count--;
  return 1;
}

int shmi_replies_has(const shmi_replies_t *queue, uint64_t sequence) {
  for (uint32_t i = 0; i < queue->count; i++) {
    if (queue->replies[(queue->head + i) & (queue->capacity - 1)].sequence == sequence) return 1;
  }
  return 0;
}

int shmi_replies_take(shmi_replies_t *queue, const uint64_t sequences[], int count,
                      shm_reply_t *reply) {
  int found = -1;
  for (uint32_t i = 0; i < queue->count && found < 0; i++) {
    uint32_t at = (queue->head + i) & (queue->capacity - 1);
    for (int s = 0; s < count && found < 0; s++) {
      if (queue->replies[at].sequence == sequences[s]) found = s;
    }
    if (found < 0) continue;
    if (reply != NULL) *reply = queue->replies[at];
    for (; i > 0; i--) { /* those before it move up */
      uint32_t to = (queue->head + i) & (queue->capacity - 1);
      uint32_t from = (queue->head + i - 1) & (queue->capacity - 1);
      queue->replies[to] = queue->replies[from];
      queue->msgs[to] = queue->msgs[from];
    }
    shmi_replies_pop(queue, NULL, NULL);
  }
  return found;
}

void shmi_replies_free(shmi_replies_t *queue) {
  free(queue->replies);
  free(queue->msgs);
  memset(queue, 0, sizeof *queue);
}
