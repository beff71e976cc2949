/* Reductions, held against plain loops: each type and operation, any length and alignment. */
#include "harness.h"

#include <math.h>

#include "helper/reduction.h"

enum { MOST = 5000, SOURCES = 5 };

static unsigned char raw[SOURCES][MOST * 8 + 64], got[MOST * 8 + 64], expected[MOST * 8 + 64];
static uint64_t dice = 88172645463325252u;

static uint64_t roll(uint64_t sides) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return (dice >> 11) % sides;
}

static const int dtypes[] = {SHM_FLOAT16, SHM_BFLOAT16, SHM_FLOAT32, SHM_FLOAT64, SHM_INT8,
                             SHM_INT16,   SHM_INT32,    SHM_INT64,   SHM_UINT8,   SHM_UINT16,
                             SHM_UINT32,  SHM_UINT64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static float half_value(uint16_t half) {
  int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
  float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                : exponent ? ldexpf((float)(mantissa + 1024), exponent - 25)
                           : ldexpf((float)mantissa, -24);
  return half & 0x8000 ? -value : value;
}
static float brain_value(uint16_t brain) {
  uint32_t bits = (uint32_t)brain << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* The nearest of all 65,536, ties to the even one: too slow to be wrong. */
static uint16_t nearest(float value, float (*of)(uint16_t)) {
  uint16_t low = 0, high = of == half_value ? 0x7c00 : 0x7f80; /* positive ones are in order */
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double size = fabs((double)value);
  if (isnan(value)) return (uint16_t)(high + 1);
  while (high - low > 1) {
    uint16_t middle = (uint16_t)((low + high) / 2);
    if ((double)of(middle) <= size) low = middle;
    else high = middle;
  }
  int is_last = high == (of == half_value ? 0x7c00 : 0x7f80);
  double above = is_last ? 2 * (double)of(low) - (double)of((uint16_t)(low - 1)) : (double)of(high);
  double middle = ((double)of(low) + above) / 2;
  uint16_t chosen = size < middle || (size == middle && (low & 1) == 0) ? low : high;
  if ((double)of(low) == size) chosen = low;
  return chosen | sign;
}

#define PLAINLY(type, unsigned_type)                                                     \
  for (size_t i = 0; i < n; i++) {                                                       \
    type result, x;                                                                      \
    memcpy(&result, (const char *)sources[0] + i * sizeof result, sizeof result);        \
    for (int s = 1; s < count; s++) {                                                    \
      memcpy(&x, (const char *)sources[s] + i * sizeof x, sizeof x);                     \
      switch (op) {                                                                      \
        case SHM_REDUCE_MEAN:                                                            \
        case SHM_REDUCE_SUM: result = (type)((unsigned_type)result + (unsigned_type)x); break;  \
        case SHM_REDUCE_PROD: result = (type)((unsigned_type)result * (unsigned_type)x); break; \
        case SHM_REDUCE_MAX: if (!(result > x) && result == result) result = x; break;   \
        case SHM_REDUCE_MIN: if (!(result < x) && result == result) result = x; break;   \
      }                                                                                  \
    }                                                                                    \
    if (op == SHM_REDUCE_MEAN) result = (type)(result / (type)count);                    \
    memcpy(expected + i * sizeof result, &result, sizeof result);                        \
  }

static void reduce_halves(float (*of)(uint16_t), int op, const void *const sources[], int count, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float result = 0;
    for (int s = 0; s < count; s++) {
      uint16_t bits;
      memcpy(&bits, (const char *)sources[s] + 2 * i, 2);
      float x = of(bits);
      if (s == 0) result = x;
      else if (op == SHM_REDUCE_SUM || op == SHM_REDUCE_MEAN) result += x;
      else if (op == SHM_REDUCE_PROD) result *= x;
      else if (op == SHM_REDUCE_MAX && !(result > x) && result == result) result = x;
      else if (op == SHM_REDUCE_MIN && !(result < x) && result == result) result = x;
    }
    if (op == SHM_REDUCE_MEAN) result /= (float)count;
    uint16_t bits = nearest(result, of);
    memcpy(expected + 2 * i, &bits, 2);
  }
}

static void reduce_plainly(int dtype, int op, const void *const sources[], int count, size_t n) {
  switch (dtype) {
    case SHM_FLOAT16: reduce_halves(half_value, op, sources, count, n); break;
    case SHM_BFLOAT16: reduce_halves(brain_value, op, sources, count, n); break;
    case SHM_FLOAT32: PLAINLY(float, float) break;
    case SHM_FLOAT64: PLAINLY(double, double) break;
    case SHM_INT8: PLAINLY(int8_t, uint32_t) break;
    case SHM_INT16: PLAINLY(int16_t, uint32_t) break;
    case SHM_INT32: PLAINLY(int32_t, uint32_t) break;
    case SHM_INT64: PLAINLY(int64_t, uint64_t) break;
    case SHM_UINT8: PLAINLY(uint8_t, uint32_t) break;
    case SHM_UINT16: PLAINLY(uint16_t, uint32_t) break;
    case SHM_UINT32: PLAINLY(uint32_t, uint32_t) break;
    case SHM_UINT64: PLAINLY(uint64_t, uint64_t) break;
  }
}

static int is_nan_at(int dtype, const unsigned char *at) {
  float value;
  double twice;
  uint16_t half;
  memcpy(&half, at, 2);
  memcpy(&value, at, 4);
  memcpy(&twice, at, 8);
  if (dtype == SHM_FLOAT16) return isnan(half_value(half));
  if (dtype == SHM_BFLOAT16) return isnan(brain_value(half));
  return dtype == SHM_FLOAT32 ? isnan(value) : dtype == SHM_FLOAT64 && isnan(twice);
}

static void expect_same(int dtype, int op, int count, size_t n) {
  size_t bytes = shmi_dtype_bytes(dtype);
  for (size_t i = 0; i < n; i++) {
    if (memcmp(got + i * bytes, expected + i * bytes, bytes) == 0) continue;
    if (is_nan_at(dtype, got + i * bytes) && is_nan_at(dtype, expected + i * bytes)) continue;
    harness_fail(__FILE__, __LINE__, "dtype %d, op %d, %d sources: element %zu of %zu is %02x%02x, expected %02x%02x",
                 dtype, op, count, i, n, got[i * bytes + 1], got[i * bytes], expected[i * bytes + 1],
                 expected[i * bytes]);
  }
}

static void reduce_everything(void) {
  for (int round = 0; round < (HARNESS_SANITIZED ? 4 : 20); round++) {
    for (int d = 0; d < DTYPES; d++) {
      for (int op = 0; op < SHM_REDUCTIONS; op++) {
        if (!shmi_reduction_is_known(dtypes[d], op)) continue;
        int count = 1 + (int)roll(SOURCES);
        size_t n = roll(3) == 0 ? roll(MOST) : roll(70), shift = roll(3) * shmi_dtype_bytes(dtypes[d]);
        const void *sources[SOURCES];
        for (int s = 0; s < count; s++) {
          for (size_t i = 0; i < sizeof raw[s]; i++) raw[s][i] = (unsigned char)roll(256);
          sources[s] = raw[s] + shift;
        }
        reduce_plainly(dtypes[d], op, sources, count, n);
        int in_place = (int)roll(2) == 0 ? (int)roll((uint64_t)count) : -1;
        void *out = in_place >= 0 ? raw[in_place] + shift : got;
        shmi_reduce(dtypes[d], op, out, sources, count, n);
        if (out != got) memcpy(got, out, n * shmi_dtype_bytes(dtypes[d]));
        expect_same(dtypes[d], op, count, n);
      }
    }
  }
}

TEST_WITHIN(each_type_and_operation_gives_what_a_plain_loop_does, 60) { reduce_everything(); }
TEST_WITHIN(and_on_a_machine_without_wide_vectors, 60) {
  shmi_reduction_be_plain();
  reduce_everything();
}

TEST(in_pieces_the_result_is_the_same_bit_for_bit) {
  static unsigned char partial[MOST * 8], next[MOST * 8];
  for (int d = 0; d < DTYPES; d++) {
    for (int op = 0; op < SHM_REDUCTIONS; op++) {
      if (!shmi_reduction_is_known(dtypes[d], op)) continue;
      const void *sources[4];
      size_t n = 1000 + roll(MOST - 1000);
      for (int s = 0; s < 4; s++) {
        for (size_t i = 0; i < sizeof raw[s]; i++) raw[s][i] = (unsigned char)roll(256);
        sources[s] = raw[s];
      }
      shmi_reduce(dtypes[d], op, expected, sources, 4, n);
      shmi_reduce_first(dtypes[d], partial, sources[0], n);
      shmi_reduce_next(dtypes[d], op, next, partial, sources[1], n);
      shmi_reduce_next(dtypes[d], op, next, next, sources[2], n);
      shmi_reduce_next(dtypes[d], op, partial, next, sources[3], n);
      shmi_reduce_last(dtypes[d], op, got, partial, 4, n);
      expect_same(dtypes[d], op, 4, n);
    }
  }
}

TEST(every_16_bit_float_goes_through_float32_unchanged) {
  static uint16_t all[65536], back[65536];
  for (uint32_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
  const void *sources[1] = {all};
  for (int d = 0; d < 2; d++) {
    shmi_reduce(dtypes[d], SHM_REDUCE_SUM, back, sources, 1, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
      float (*of)(uint16_t) = d == 0 ? half_value : brain_value;
      if (isnan(of(all[i]))) CHECK(isnan(of(back[i])));
      else CHECK_EQ(back[i], all[i]);
    }
  }
}

TEST(a_mean_is_of_floats_and_bytes_are_not_computed_with) {
  CHECK(shmi_reduction_is_known(SHM_BFLOAT16, SHM_REDUCE_MEAN));
  CHECK(!shmi_reduction_is_known(SHM_INT32, SHM_REDUCE_MEAN));
  CHECK(!shmi_reduction_is_known(SHM_BYTES, SHM_REDUCE_SUM));
  CHECK(!shmi_reduction_is_known(SHM_FLOAT32, SHM_REDUCTIONS));
  CHECK_EQ(shmi_dtype_partial_bytes(SHM_FLOAT16), 4);
  CHECK_EQ(shmi_dtype_partial_bytes(SHM_INT16), 2);
}

TEST(each_type_has_its_size_and_what_is_none_has_none) {
  static const size_t sizes[] = {
      [SHM_BYTES] = 1, [SHM_FLOAT16] = 2, [SHM_BFLOAT16] = 2, [SHM_FLOAT32] = 4, [SHM_FLOAT64] = 8,
      [SHM_INT8] = 1, [SHM_INT16] = 2, [SHM_INT32] = 4, [SHM_INT64] = 8, [SHM_UINT8] = 1,
      [SHM_UINT16] = 2, [SHM_UINT32] = 4, [SHM_UINT64] = 8};
  int count = (int)(sizeof sizes / sizeof *sizes);
  for (int dtype = 0; dtype < count; dtype++) CHECK_EQ(shmi_dtype_bytes(dtype), sizes[dtype]);
  CHECK_EQ(shmi_dtype_bytes(-1), 0);
  CHECK_EQ(shmi_dtype_bytes(count), 0);
}
