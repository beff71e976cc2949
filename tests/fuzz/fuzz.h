/* fuzz.h -- what a fuzz target is: a function of bytes that aborts when something that must
 * hold does not. libFuzzer calls it with inputs it invents, replay.c with those of files.
 */
#ifndef SHMGPU_TESTS_FUZZ_H
#define SHMGPU_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                        \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                    \
    }                                                                             \
  } while (0)

/* The input as a sequence of numbers; zeros when it has run out. */
typedef struct input {
  const uint8_t *at, *end;
} input_t;

static inline void take_bytes(input_t *in, void *into, size_t count) {
  size_t left = (size_t)(in->end - in->at), taken = left < count ? left : count;
  memset(into, 0, count);
  if (taken > 0) memcpy(into, in->at, taken);
  in->at += taken;
}
static inline uint64_t take(input_t *in, size_t bytes) { /* little endian, at most 8 */
  uint8_t raw[8] = {0};
  uint64_t value = 0;
  take_bytes(in, raw, bytes);
  for (size_t i = 0; i < bytes; i++) value |= (uint64_t)raw[i] << (8 * i);
  return value;
}

#endif
