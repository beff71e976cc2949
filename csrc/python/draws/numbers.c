/* numbers -- see numbers.h. */
#include "python/draws/numbers.h"

#include <math.h>
#include <string.h>

enum { LANES = 64, GROUP = 4 * LANES, ROUNDS = 10 };

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS void draw_words(uint32_t words[GROUP], uint64_t seed, uint64_t first) {
  for (int i = 0; i < LANES; i++) {
    const uint64_t block = first + (uint64_t)i;
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = 0, d = 0;
    uint32_t key = (uint32_t)seed, other_key = (uint32_t)(seed >> 32);
    for (int round = 0; round < ROUNDS; round++) {
      const uint64_t one = (uint64_t)0xD2511F53u * a;
      const uint64_t two = (uint64_t)0xCD9E8D57u * c;
      a = (uint32_t)(two >> 32) ^ b ^ key;
      c = (uint32_t)(one >> 32) ^ d ^ other_key;
      b = (uint32_t)two;
      d = (uint32_t)one;
      key += 0x9E3779B9u;
      other_key += 0xBB67AE85u;
    }
    words[i] = a;
    words[LANES + i] = b;
    words[2 * LANES + i] = c;
    words[3 * LANES + i] = d;
  }
}

/* From 0 up to 1, which is none of them. */
ALWAYS void make_uniform(float out[GROUP], const uint32_t words[GROUP]) {
  for (int i = 0; i < GROUP; i++) out[i] = (float)(int32_t)(words[i] >> 8) * 0x1p-24f;
}

ALWAYS float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

ALWAYS uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

/* The distance from the middle for a word: the square root of -2 log u, u from 2^-31 to 1. */
ALWAYS float radius_of(uint32_t word) {
  const float u = (float)(int32_t)(word >> 1 | 1) * 0x1p-31f;
  const uint32_t bits = bits_of(u);
  const float part = float_of((bits & 0x7FFFFFu) | 0x3F000000u); /* from 0.5 up to 1 */
  const int is_small = part < 0.707106781186547524f;
  const float exponent = (float)((int32_t)(bits >> 23) - 126 - is_small);
  const float x = part + (is_small ? part : 0.0f) - 1.0f;
  const float z = x * x;
  float y = 7.0376836292e-2f;
  y = y * x + -1.1514610310e-1f;
  y = y * x + 1.1676998740e-1f;
  y = y * x + -1.2420140846e-1f;
  y = y * x + 1.4249322787e-1f;
  y = y * x + -1.6668057665e-1f;
  y = y * x + 2.0000714765e-1f;
  y = y * x + -2.4999993993e-1f;
  y = y * x + 3.3333331174e-1f;
  y = y * x * z;
  y = y + exponent * -2.12194440e-4f;
  y = y - 0.5f * z;
  const float logarithm = x + y + exponent * 0.693359375f;
  return sqrtf(logarithm * -2.0f);
}

/* Two numbers: the word's direction is that part of a turn. */
ALWAYS void turn(float radius, uint32_t word, float *cosine, float *sine) {
  const uint32_t quarter = (word + 0x20000000u) >> 30;
  const float x = (float)(int32_t)(word - (quarter << 30)) * 1.4629180792671596e-9f; /* pi / 2^31 */
  const float z = x * x;
  float s = -1.9515295891e-4f;
  s = s * z + 8.3321608736e-3f;
  s = s * z + -1.6666654611e-1f;
  s = s * z * x + x;
  float c = 2.443315711809948e-5f;
  c = c * z + -1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  c = c * z * z - 0.5f * z + 1.0f;
  const int is_odd = quarter & 1;
  const float along = (is_odd ? s : c) * radius, across = (is_odd ? c : s) * radius;
  /* The sign bits of (c, s), (-s, c), (-c, -s), (s, -c). */
  *cosine = float_of(bits_of(along) ^ ((quarter + 1) >> 1 & 1) << 31);
  *sine = float_of(bits_of(across) ^ (quarter >> 1 & 1) << 31);
}

ALWAYS void make_normal(float out[GROUP], const uint32_t words[GROUP]) {
  for (int half = 0; half < GROUP; half += 2 * LANES) {
    for (int i = half; i < half + LANES; i++) {
      float cosine, sine;
      turn(radius_of(words[i]), words[i + LANES], &cosine, &sine);
      out[i] = cosine;
      out[i + LANES] = sine;
    }
  }
}

ALWAYS void draw(int distribution, uint64_t seed, float *out, size_t n) {
  uint32_t words[GROUP];
  float last[GROUP];
  for (size_t at = 0; at < n; at += GROUP) {
    const size_t some = n - at < GROUP ? n - at : GROUP;
    float *to = some < GROUP ? last : out + at;
    draw_words(words, seed, at / 4);
    if (distribution == SHMI_NORMAL) {
      make_normal(to, words);
    } else {
      make_uniform(to, words);
    }
    if (to == last) memcpy(out + at, last, some * sizeof *out);
  }
}

typedef void (*draw_t)(int distribution, uint64_t seed, float *out, size_t n);

static void draw_plainly(int distribution, uint64_t seed, float *out, size_t n) {
  draw(distribution, seed, out, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void draw_avx2(int distribution, uint64_t seed, float *out,
                                                      size_t n) {
  draw(distribution, seed, out, n);
}

__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) static void draw_avx512(
    int distribution, uint64_t seed, float *out, size_t n) {
  draw(distribution, seed, out, n);
}

static const draw_t WAYS[] = {draw_plainly, draw_avx2, draw_avx512};

int shmi_draw_widest(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return 2;
  }
  return __builtin_cpu_supports("avx2") != 0;
}
#else
static const draw_t WAYS[] = {draw_plainly};

int shmi_draw_widest(void) { return 0; }
#endif

static draw_t way = draw_plainly;

void shmi_draw_use(int width) { way = WAYS[width]; }

void shmi_draw(int distribution, uint64_t seed, float *out, size_t n) {
  way(distribution, seed, out, n);
}
