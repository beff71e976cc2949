/* reduction -- see reduction.h. */
#include "helper/reduction.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
  VECTOR = 32,     /* bytes */
  BLOCK = 2048     /* elements that are reduced at once: all of it stays in the nearest cache */
};

/* ---- one kernel a type and operation, over vectors ----
 *
 * Loads and stores are memcpy, so sources need no alignment, and out may be one of them: a vector
 * is read before it is written. A rest that does not fill a vector is padded. */

#define SUM(type, x, y) ((x) + (y))
#define PROD(type, x, y) ((x) * (y))
#define SELECT(type, mask, x, y) \
  ((type##_v)(((type##_m)(x) & (mask)) | ((type##_m)(y) & ~(mask))))
#define MAX(type, x, y) SELECT(type, ((x) > (y)) | ((x) != (x)), x, y)
#define MIN(type, x, y) SELECT(type, ((x) < (y)) | ((x) != (x)), x, y)

#define VECTOR_OF(type, element, mask_element)                          \
  typedef element type##_v __attribute__((vector_size(VECTOR)));        \
  typedef mask_element type##_m __attribute__((vector_size(VECTOR)));

/* Sums and products of signed numbers wrap as those of unsigned ones do. */
VECTOR_OF(f32, float, int32_t)
VECTOR_OF(f64, double, int64_t)
VECTOR_OF(i8, int8_t, int8_t)
VECTOR_OF(i16, int16_t, int16_t)
VECTOR_OF(i32, int32_t, int32_t)
VECTOR_OF(i64, int64_t, int64_t)
VECTOR_OF(u8, uint8_t, int8_t)
VECTOR_OF(u16, uint16_t, int16_t)
VECTOR_OF(u32, uint32_t, int32_t)
VECTOR_OF(u64, uint64_t, int64_t)

typedef void (*binary_t)(void *out, const void *a, const void *b, size_t n);
typedef void (*convert_t)(void *out, const void *in, size_t n);
typedef void (*divide_t)(void *partial, int count, size_t n);

#define BINARY(attribute, suffix, type, op, OP)                                              \
  attribute static void type##_##op##suffix(void *out, const void *a, const void *b,         \
                                            size_t n) {                                      \
    size_t bytes = n * sizeof(((type##_v){0})[0]);                                           \
    size_t at = 0;                                                                           \
    for (; at + VECTOR <= bytes; at += VECTOR) {                                             \
      type##_v x, y;                                                                         \
      memcpy(&x, (const char *)a + at, VECTOR);                                              \
      memcpy(&y, (const char *)b + at, VECTOR);                                              \
      x = OP(type, x, y);                                                                    \
      memcpy((char *)out + at, &x, VECTOR);                                                  \
    }                                                                                        \
    if (at == bytes) return;                                                                 \
    type##_v x = {0}, y = {0};                                                               \
    memcpy(&x, (const char *)a + at, bytes - at);                                            \
    memcpy(&y, (const char *)b + at, bytes - at);                                            \
    x = OP(type, x, y);                                                                      \
    memcpy((char *)out + at, &x, bytes - at);                                                \
  }

#define DIVIDE(attribute, suffix, type)                                                      \
  attribute static void type##_divide##suffix(void *partial, int count, size_t n) {          \
    size_t bytes = n * sizeof(((type##_v){0})[0]);                                           \
    for (size_t at = 0; at < bytes; at += VECTOR) {                                          \
      size_t some = bytes - at < VECTOR ? bytes - at : VECTOR;                               \
      type##_v x = {0};                                                                      \
      memcpy(&x, (char *)partial + at, some);                                                \
      x /= (type##_v){0} + (float)count;                                                     \
      memcpy((char *)partial + at, &x, some);                                                \
    }                                                                                        \
  }

#define COMPARING(attribute, suffix, type)                \
  BINARY(attribute, suffix, type, max, MAX)               \
  BINARY(attribute, suffix, type, min, MIN)
#define ARITHMETIC(attribute, suffix, type)               \
  BINARY(attribute, suffix, type, sum, SUM)               \
  BINARY(attribute, suffix, type, prod, PROD)

#define KERNELS(attribute, suffix)                        \
  ARITHMETIC(attribute, suffix, f32)                      \
  ARITHMETIC(attribute, suffix, f64)                      \
  ARITHMETIC(attribute, suffix, u8)                       \
  ARITHMETIC(attribute, suffix, u16)                      \
  ARITHMETIC(attribute, suffix, u32)                      \
  ARITHMETIC(attribute, suffix, u64)                      \
  DIVIDE(attribute, suffix, f32)                          \
  DIVIDE(attribute, suffix, f64)                          \
  COMPARING(attribute, suffix, f32)                       \
  COMPARING(attribute, suffix, f64)                       \
  COMPARING(attribute, suffix, i8)                        \
  COMPARING(attribute, suffix, i16)                       \
  COMPARING(attribute, suffix, i32)                       \
  COMPARING(attribute, suffix, i64)                       \
  COMPARING(attribute, suffix, u8)                        \
  COMPARING(attribute, suffix, u16)                       \
  COMPARING(attribute, suffix, u32)                       \
  COMPARING(attribute, suffix, u64)

/* ---- 16-bit floats and float32 ---- */

static inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline uint32_t widened_half(uint32_t half) {
  uint32_t bits = (half & 0x7fff) << 13, exponent = bits & (0x7c00u << 13);
  bits += (127u - 15) << 23;
  if (exponent == 0x7c00u << 13) { /* infinite, or none */
    bits += (128u - 16) << 23;
  } else if (exponent == 0) { /* subnormal: exact by a subtraction */
    bits = bits_of(float_of(bits + (1u << 23)) - float_of(113u << 23));
  }
  return bits | (half & 0x8000) << 16;
}

static inline uint32_t narrowed_half(uint32_t bits) { /* to nearest, ties to even */
  uint32_t sign = bits & 0x80000000u, half;
  bits ^= sign;
  if (bits >= (127u + 16) << 23) {
    half = bits > 0x7f800000u ? 0x7e00 : 0x7c00;
  } else if (bits < 113u << 23) { /* the sum rounds at the last bit of the subnormal */
    const uint32_t magic = ((127u - 15) + (23 - 10) + 1) << 23;
    half = bits_of(float_of(bits) + float_of(magic)) - magic;
  } else {
    half = (bits + ((15u - 127) << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  return half | sign >> 16;
}

static void f16_widen(void *out, const void *in, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint16_t half;
    memcpy(&half, (const char *)in + i * sizeof half, sizeof half);
    ((float *)out)[i] = float_of(widened_half(half));
  }
}
static void f16_narrow(void *out, const void *in, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint16_t half = (uint16_t)narrowed_half(bits_of(((const float *)in)[i]));
    memcpy((char *)out + i * sizeof half, &half, sizeof half);
  }
}

typedef uint16_t halves_t __attribute__((vector_size(VECTOR / 2)));
enum { HALVES = VECTOR / 2 / sizeof(uint16_t) };

/* What does not fill a vector is done in one that is filled up. */
#define BRAINS(attribute, suffix)                                                             \
  attribute static void bf16_widen##suffix(void *out, const void *in, size_t n) {             \
    for (size_t at = 0; at < n; at += HALVES) {                                               \
      size_t some = n - at < HALVES ? n - at : HALVES;                                        \
      halves_t halves = {0};                                                                  \
      if (some == HALVES) memcpy(&halves, (const uint16_t *)in + at, sizeof halves);          \
      else memcpy(&halves, (const uint16_t *)in + at, some * sizeof(uint16_t));               \
      u32_v bits = __builtin_convertvector(halves, u32_v) << 16;                              \
      if (some == HALVES) memcpy((float *)out + at, &bits, sizeof bits);                      \
      else memcpy((float *)out + at, &bits, some * sizeof(float));                            \
    }                                                                                         \
  }                                                                                           \
  attribute static void bf16_narrow##suffix(void *out, const void *in, size_t n) {            \
    for (size_t at = 0; at < n; at += HALVES) {                                               \
      size_t some = n - at < HALVES ? n - at : HALVES;                                        \
      u32_v bits = {0};                                                                       \
      if (some == HALVES) memcpy(&bits, (const float *)in + at, sizeof bits);                 \
      else memcpy(&bits, (const float *)in + at, some * sizeof(float));                       \
      u32_v is_nan = (u32_v)((bits & 0x7fffffffu) > 0x7f800000u);                             \
      u32_v rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;                               \
      u32_v quiet = bits >> 16 | 0x40;                                                        \
      halves_t halves = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), halves_t); \
      if (some == HALVES) memcpy((uint16_t *)out + at, &halves, sizeof halves);               \
      else memcpy((uint16_t *)out + at, &halves, some * sizeof(uint16_t));                    \
    }                                                                                         \
  }

/* ---- tables ---- */

typedef struct kernels {
  binary_t binary[SHM_DTYPES][SHM_REDUCTIONS];
  convert_t widen[SHM_DTYPES], narrow[SHM_DTYPES];
  divide_t divide_float, divide_double;
} kernels_t;

#define ROW(dtype, suffix, type, wrapping)                                                      \
  [dtype] = {[SHM_REDUCE_SUM] = wrapping##_sum##suffix, [SHM_REDUCE_PROD] = wrapping##_prod##suffix, \
             [SHM_REDUCE_MAX] = type##_max##suffix, [SHM_REDUCE_MIN] = type##_min##suffix}
#define TABLE(suffix, widen_half, narrow_half)                                               \
  {.binary = {ROW(SHM_FLOAT16, suffix, f32, f32), ROW(SHM_BFLOAT16, suffix, f32, f32),       \
              ROW(SHM_FLOAT32, suffix, f32, f32), ROW(SHM_FLOAT64, suffix, f64, f64),        \
              ROW(SHM_INT8, suffix, i8, u8), ROW(SHM_INT16, suffix, i16, u16),               \
              ROW(SHM_INT32, suffix, i32, u32), ROW(SHM_INT64, suffix, i64, u64),            \
              ROW(SHM_UINT8, suffix, u8, u8), ROW(SHM_UINT16, suffix, u16, u16),             \
              ROW(SHM_UINT32, suffix, u32, u32), ROW(SHM_UINT64, suffix, u64, u64)},         \
   .widen = {[SHM_FLOAT16] = widen_half, [SHM_BFLOAT16] = bf16_widen##suffix},               \
   .narrow = {[SHM_FLOAT16] = narrow_half, [SHM_BFLOAT16] = bf16_narrow##suffix},            \
   .divide_float = f32_divide##suffix,                                                       \
   .divide_double = f64_divide##suffix}

KERNELS(, _plain)
BRAINS(, _plain)
static const kernels_t plain = TABLE(_plain, f16_widen, f16_narrow);

#if defined(__x86_64__)
#define WITH_AVX2 __attribute__((target("avx2,f16c")))
KERNELS(WITH_AVX2, _avx2)
BRAINS(WITH_AVX2, _avx2)

WITH_AVX2 static void f16_widen_avx2(void *out, const void *in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)((const char *)in + 2 * i));
    _mm256_storeu_ps((float *)out + i, _mm256_cvtph_ps(halves));
  }
  f16_widen((float *)out + i, (const char *)in + 2 * i, n - i);
}
WITH_AVX2 static void f16_narrow_avx2(void *out, const void *in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps((const float *)in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(void *)((char *)out + 2 * i), halves);
  }
  f16_narrow((char *)out + 2 * i, (const float *)in + i, n - i);
}
static const kernels_t avx2 = TABLE(_avx2, f16_widen_avx2, f16_narrow_avx2);
#endif

static const kernels_t *chosen;

void shmi_reduction_be_plain(void) { chosen = &plain; }

static const kernels_t *kernels(void) {
  if (chosen != NULL) return chosen;
  chosen = &plain;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) chosen = &avx2;
#endif
  return chosen;
}

/* ---- reducing ---- */

static const uint8_t dtype_bytes[SHM_DTYPES] = {
    [SHM_BYTES] = 1,  [SHM_FLOAT16] = 2, [SHM_BFLOAT16] = 2, [SHM_FLOAT32] = 4, [SHM_FLOAT64] = 8,
    [SHM_INT8] = 1,   [SHM_INT16] = 2,   [SHM_INT32] = 4,    [SHM_INT64] = 8,   [SHM_UINT8] = 1,
    [SHM_UINT16] = 2, [SHM_UINT32] = 4,  [SHM_UINT64] = 8};

static int is_float(int dtype) { return dtype >= SHM_FLOAT16 && dtype <= SHM_FLOAT64; }
static int is_wide(int dtype) { return kernels()->widen[dtype] == NULL; }

size_t shmi_dtype_bytes(int dtype) {
  return dtype >= 0 && dtype < SHM_DTYPES ? dtype_bytes[dtype] : 0;
}

size_t shmi_dtype_partial_bytes(int dtype) {
  return is_wide(dtype) ? shmi_dtype_bytes(dtype) : sizeof(float);
}

int shmi_reduction_is_known(int dtype, int op) {
  if (dtype <= SHM_BYTES || dtype >= SHM_DTYPES || op < SHM_REDUCE_SUM || op >= SHM_REDUCTIONS) return 0;
  return op != SHM_REDUCE_MEAN || is_float(dtype);
}

static binary_t binary_of(int dtype, int op) {
  return kernels()->binary[dtype][op == SHM_REDUCE_MEAN ? SHM_REDUCE_SUM : op];
}

static void divide(int dtype, void *partial, int count, size_t n) {
  (dtype == SHM_FLOAT64 ? kernels()->divide_double : kernels()->divide_float)(partial, count, n);
}

void shmi_reduce_first(int dtype, void *partial, const void *source, size_t n) {
  if (is_wide(dtype)) memmove(partial, source, n * shmi_dtype_bytes(dtype));
  else kernels()->widen[dtype](partial, source, n);
}

void shmi_reduce_next(int dtype, int op, void *partial, const void *before, const void *source,
                      size_t n) {
  if (is_wide(dtype)) {
    binary_of(dtype, op)(partial, before, source, n);
    return;
  }
  float wide[BLOCK];
  for (size_t at = 0; at < n; at += BLOCK) {
    size_t some = n - at < BLOCK ? n - at : BLOCK;
    kernels()->widen[dtype](wide, (const uint16_t *)source + at, some);
    binary_of(dtype, op)((float *)partial + at, (const float *)before + at, wide, some);
  }
}

void shmi_reduce_last(int dtype, int op, void *out, const void *partial, int count, size_t n) {
  _Alignas(VECTOR) char block[BLOCK * sizeof(double)];
  size_t wide_bytes = shmi_dtype_partial_bytes(dtype), bytes = shmi_dtype_bytes(dtype);
  for (size_t at = 0; at < n; at += BLOCK) {
    size_t some = n - at < BLOCK ? n - at : BLOCK;
    memcpy(block, (const char *)partial + at * wide_bytes, some * wide_bytes);
    if (op == SHM_REDUCE_MEAN) divide(dtype, block, count, some);
    if (is_wide(dtype)) memcpy((char *)out + at * bytes, block, some * bytes);
    else kernels()->narrow[dtype]((char *)out + at * bytes, block, some);
  }
}

/* One block of each source, before the first byte of out is written. */
static void reduce_block(int dtype, int op, char *out, const void *const sources[], int count,
                         size_t at, size_t n) {
  _Alignas(VECTOR) char partial[BLOCK * sizeof(double)];
  size_t bytes = shmi_dtype_bytes(dtype);
  shmi_reduce_first(dtype, partial, (const char *)sources[0] + at * bytes, n);
  for (int i = 1; i < count; i++) {
    shmi_reduce_next(dtype, op, partial, partial, (const char *)sources[i] + at * bytes, n);
  }
  if (op == SHM_REDUCE_MEAN) divide(dtype, partial, count, n);
  if (is_wide(dtype)) memcpy(out + at * bytes, partial, n * bytes);
  else kernels()->narrow[dtype](out + at * bytes, partial, n);
}

void shmi_reduce(int dtype, int op, void *out, const void *const sources[], int count, size_t n) {
  if (count == 2 && is_wide(dtype) && op != SHM_REDUCE_MEAN) {
    binary_of(dtype, op)(out, sources[0], sources[1], n);
    return;
  }
  for (size_t at = 0; at < n; at += BLOCK) {
    reduce_block(dtype, op, out, sources, count, at, n - at < BLOCK ? n - at : BLOCK);
  }
}
