/* Replies that wait to be read: in order, each with its message, however many they are. */
#include "harness.h"

#include "child/reply_queue.h"

static shmi_replies_t queue;
static uint64_t pushed, popped;

static void push(int count) {
  for (int i = 0; i < count; i++) {
    uint64_t number = ++pushed;
    shm_reply_t reply = {.sequence = number};
    shm_msg_t msg = {.params = (void *)(uintptr_t)(number * 7)};
    CHECK_EQ(shmi_replies_push(&queue, &reply, &msg), SHM_OK);
  }
}

static void pop_one(uint64_t number) {
  shm_reply_t reply;
  shm_msg_t msg;
  CHECK_EQ(shmi_replies_pop(&queue, &reply, &msg), 1);
  CHECK_EQ(reply.sequence, number);
  CHECK_EQ((uintptr_t)msg.params, number * 7);
}

static void pop(int count) {
  for (int i = 0; i < count; i++) pop_one(++popped);
}

TEST(it_grows_wherever_its_head_is_and_keeps_their_order) {
  push(50);
  pop(50);
  push(64); /* as many as it holds at first, from its middle on and around its end */
  CHECK_EQ(queue.capacity, 64);
  push(1);
  CHECK_EQ(queue.capacity, 128);
  push(100);
  CHECK_EQ(queue.count, 165);
  pop(165);
  CHECK_EQ(shmi_replies_pop(&queue, NULL, NULL), 0);
  shmi_replies_free(&queue);
}

TEST(the_first_that_belongs_to_one_of_the_calls_is_taken_out_and_no_other) {
  push(60);
  pop(60);
  push(10); /* 61 to 70, around the end */
  /* None of them is there: those were popped, and behind the end lies what was there before. */
  const uint64_t wanted[] = {68, 66, 99}, none[] = {60, 71, 7}, beside[] = {99, 66};
  shm_reply_t taken = {0};
  CHECK_EQ(shmi_replies_take(&queue, none, 3, &taken), -1);
  CHECK_EQ(shmi_replies_take(&queue, beside, 1, &taken), -1);
  CHECK_EQ(taken.sequence, 0);
  CHECK_EQ(queue.count, 10);
  CHECK_EQ(shmi_replies_take(&queue, wanted, 3, &taken), 1);
  CHECK_EQ(taken.sequence, 66);
  CHECK_EQ(shmi_replies_take(&queue, wanted, 3, NULL), 0);
  CHECK_EQ(shmi_replies_take(&queue, wanted, 3, NULL), -1);
  CHECK_EQ(queue.count, 8);
  for (uint64_t number = 61; number <= 70; number++) {
    if (number != 66 && number != 68) pop_one(number);
  }
  CHECK_EQ(shmi_replies_pop(&queue, NULL, NULL), 0);
  shmi_replies_free(&queue);
}
