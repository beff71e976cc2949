/* attacks.h -- what hostile children do: frames, blocks and bytes that no library wrote.
 *
 * Everything random here comes from one seed, so a run can be repeated. A hostile child knows
 * what a real one could: its descriptors, its own arena, addresses of everything.
 */
#ifndef SHMGPU_TESTS_ATTACKS_H
#define SHMGPU_TESTS_ATTACKS_H

#include "broker.h"

#include "ipc/frame.h"

typedef struct dice {
  uint64_t state;
} dice_t;

/* splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) */
HARNESS_UNUSED static uint64_t roll(dice_t *dice) {
  uint64_t z = (dice->state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}
HARNESS_UNUSED static uint64_t below(dice_t *dice, uint64_t limit) { return roll(dice) % limit; }

HARNESS_UNUSED static void scribble(dice_t *dice, void *at, size_t bytes) {
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word = roll(dice);
    memcpy((char *)at + i, &word, 8);
  }
}

/* Not registered: whoever calls it has called a forged pointer. */
enum { NOTE_FORBIDDEN = NOTES - 1 };
HARNESS_UNUSED static void fn_forbidden(void *params) {
  (void)params;
  notes[NOTE_FORBIDDEN]++;
}

/* Bytes straight into the request pipe, whatever they are; 0 when the pipe is full or gone. */
HARNESS_UNUSED static size_t write_raw(int fd, const void *bytes, size_t count) {
  struct pollfd one = {fd, POLLOUT, 0};
  if (poll(&one, 1, 0) != 1) return 0;
  ssize_t n = write(fd, bytes, count);
  return n > 0 ? (size_t)n : 0;
}

HARNESS_UNUSED static shmi_frame_t call_frame(uint64_t func, uint64_t params, uint64_t sequence) {
  return (shmi_frame_t){.msg = {.func_ptr = (shm_func_t)(uintptr_t)func,
                                .params = (void *)(uintptr_t)params},
                        .sequence = sequence,
                        .kind = SHMI_FRAME_CALL,
                        .rows = 1};
}

#endif
