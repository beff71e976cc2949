/* read -- a JSON array of numbers into memory. See json.h.
 *
 * The array ends with its bracket, which is no part of a number: so no loop over digits or blanks
 * looks for the end. */
#include "python/json/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 19, EXACT_POWERS = 22 };

/* No text is so long that its point could make up for such an exponent. */
static const int64_t most_exponent = INT64_C(1000000000000000);

static locale_t plain; /* a program's own may have another sign than the point */

static const double exact[EXACT_POWERS + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

typedef struct {
  uint64_t digits; /* the first 19 that count */
  int64_t exponent;
  bool is_negative, is_whole, is_cut; /* without point and exponent; there are digits more */
} decimal_t;

bool shmi_json_prepare(void) {
  shmi_powers_fill();
  if (plain == NULL) plain = newlocale(LC_ALL_MASK, "C", NULL);
  return plain != NULL;
}

static inline bool is_digit(char c) { return (unsigned)(c - '0') < 10; }

static inline const char *skip_blanks(const char *at) {
  while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
  return at;
}

/* Whether eight characters, as they lie in memory, are digits; and their number. */
static inline bool are_digits(uint64_t eight) {
  return ((eight & 0xF0F0F0F0F0F0F0F0u) |
          (((eight + 0x0606060606060606u) & 0xF0F0F0F0F0F0F0F0u) >> 4)) == 0x3333333333333333u;
}

static inline uint32_t number_of(uint64_t eight) {
  eight -= 0x3030303030303030u;
  eight = eight * 10 + (eight >> 8);
  return (uint32_t)(((eight & 0x000000FF000000FFu) * 0x000F424000000064u +
                     (eight >> 16 & 0x000000FF000000FFu) * 0x0000271000000001u) >>
                    32);
}

static inline const char *read_digits(const char *at, const char *end, uint64_t *digits) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  uint64_t eight;
  while (end - at >= 8 && (memcpy(&eight, at, 8), are_digits(eight))) {
    *digits = *digits * 100000000 + number_of(eight);
    at += 8;
  }
#endif
  for (; is_digit(*at); at++) *digits = *digits * 10 + (uint64_t)(*at - '0');
  return at;
}

/* The first 19 digits that count, of a number that has more; the exponent is as if it had no
 * others, or had them behind the point. */
static void cut(decimal_t *one, const char *at, const char *end, const char *point) {
  int taken = 0;
  one->digits = 0;
  while (*at == '0' || at == point) at++;
  for (; at < end && taken < MOST_DIGITS; at++) {
    if (at == point) continue;
    one->digits = one->digits * 10 + (uint64_t)(*at - '0');
    taken++;
  }
  one->is_cut = at < end;
  /* Without a point it stands behind the last digit. */
  if (point == NULL) point = end;
  one->exponent += at <= point ? point - at : point + 1 - at;
}

/* What follows the number, or NULL where none begins here. */
static inline const char *read_decimal(const char *at, const char *end, decimal_t *one) {
  one->is_negative = *at == '-';
  at += one->is_negative;
  const char *start = at, *point = NULL;
  one->digits = 0;
  at = read_digits(at, end, &one->digits);
  ptrdiff_t count = at - start;
  if (count == 0 || (*start == '0' && count > 1)) return NULL;
  one->exponent = 0;
  one->is_whole = true;
  one->is_cut = false;
  if (*at == '.') {
    point = at++;
    at = read_digits(at, end, &one->digits);
    one->exponent = point + 1 - at;
    if (one->exponent == 0) return NULL;
    count -= one->exponent;
    one->is_whole = false;
  }
  if (count > MOST_DIGITS) {
    one->exponent = 0;
    cut(one, start, at, point);
  }
  if (*at == 'e' || *at == 'E') {
    at++;
    const bool is_negative = *at == '-';
    at += is_negative || *at == '+';
    if (!is_digit(*at)) return NULL;
    int64_t exponent = 0;
    for (; is_digit(*at); at++) {
      if (exponent < most_exponent) exponent = exponent * 10 + (*at - '0');
    }
    one->exponent += is_negative ? -exponent : exponent;
    one->is_whole = false;
  }
  return at;
}

/* Whether the double next to digits times a power of ten is sure; it is neither subnormal nor
 * infinite then. */
static bool approximate(uint64_t digits, int64_t exponent, double *number) {
  if (exponent < SHMI_POWER_FIRST || exponent > SHMI_POWER_LAST) return false;
  const shmi_power_t *power = &shmi_powers[exponent - SHMI_POWER_FIRST];
  const int zeros = __builtin_clzll(digits);
  digits <<= zeros;
  const int64_t log2 = (217706 * exponent) >> 16;
  const shmi_wide_t product = (shmi_wide_t)digits * power->high;
  uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
  if ((high & 0x1FF) == 0x1FF && low + digits < low) {
    const shmi_wide_t rest = (shmi_wide_t)digits * power->low;
    const uint64_t more = (uint64_t)(rest >> 64);
    low += more;
    high += low < more;
    if ((high & 0x1FF) == 0x1FF && low == UINT64_MAX && (uint64_t)rest + digits < digits) {
      return false;
    }
  }
  const int top = (int)(high >> 63);
  uint64_t mantissa = high >> (top + 9);
  int64_t biased = log2 + 64 + 1023 - zeros - (1 ^ top);
  if (low == 0 && (high & 0x1FF) == 0 && (mantissa & 3) == 1) return false; /* maybe half-way */
  mantissa = (mantissa + (mantissa & 1)) >> 1;
  if (mantissa >> 53 != 0) {
    mantissa >>= 1;
    biased++;
  }
  if (biased <= 0 || biased >= 0x7FF) return false;
  const uint64_t bits = (uint64_t)biased << 52 | (mantissa & ((UINT64_C(1) << 52) - 1));
  memcpy(number, &bits, sizeof *number);
  return true;
}

static double double_of(const decimal_t *one, const char *text) {
  double number, other;
  if (one->digits == 0) {
    return one->is_negative && !one->is_whole ? -0.0 : 0.0; /* whole numbers have one 0 */
  }
  if (one->digits <= UINT64_C(1) << 53 && !one->is_cut && one->exponent >= -EXACT_POWERS &&
      one->exponent <= EXACT_POWERS) {
    number = (double)one->digits;
    number = one->exponent < 0 ? number / exact[-one->exponent] : number * exact[one->exponent];
    return one->is_negative ? -number : number;
  }
  if (approximate(one->digits, one->exponent, &number) &&
      (!one->is_cut ||
       (approximate(one->digits + 1, one->exponent, &other) && number == other))) {
    return one->is_negative ? -number : number;
  }
  return strtod_l(text, NULL, plain);
}

typedef struct {
  size_t size;
  uint64_t least, most; /* of whole numbers; least: how far below 0 */
} kind_t;

static const kind_t kinds[SHMI_JSON_KINDS] = {
    [SHMI_JSON_INT8] = {1, UINT64_C(1) << 7, INT8_MAX},
    [SHMI_JSON_INT16] = {2, UINT64_C(1) << 15, INT16_MAX},
    [SHMI_JSON_INT32] = {4, UINT64_C(1) << 31, INT32_MAX},
    [SHMI_JSON_INT64] = {8, UINT64_C(1) << 63, INT64_MAX},
    [SHMI_JSON_UINT8] = {1, 0, UINT8_MAX},
    [SHMI_JSON_UINT16] = {2, 0, UINT16_MAX},
    [SHMI_JSON_UINT32] = {4, 0, UINT32_MAX},
    [SHMI_JSON_UINT64] = {8, 0, UINT64_MAX},
    [SHMI_JSON_FLOAT32] = {4, 0, 0},
    [SHMI_JSON_FLOAT64] = {8, 0, 0},
};

size_t shmi_json_size(int kind) { return kinds[kind].size; }

/* Of a text whose double is known: rounding that once more is wrong where the text is beside the
 * middle of two floats, and the double in it. Subnormal ones have their middles elsewhere. */
static inline float float_of(double number, const char *text) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  const bool is_middle = (bits & 0x1FFFFFFF) == 0x10000000;
  if (is_middle || (fabs(number) < FLT_MIN && number != 0)) return strtof_l(text, NULL, plain);
  return (float)number;
}

static inline const char *read_float(const char *at, const char *end, double *number) {
  decimal_t one;
  const char *text = at;
  at = read_decimal(at, end, &one);
  if (at == NULL) return NULL;
  *number = double_of(&one, text);
  return isfinite(*number) ? at : NULL;
}

static const char *read_float32(const char *at, const char *end, const kind_t *kind, void *out) {
  (void)kind;
  double number;
  const char *text = at;
  at = read_float(at, end, &number);
  if (at == NULL) return NULL;
  const float narrow = float_of(number, text);
  memcpy(out, &narrow, sizeof narrow);
  return isfinite(narrow) ? at : NULL;
}

static const char *read_float64(const char *at, const char *end, const kind_t *kind, void *out) {
  (void)kind;
  double number;
  at = read_float(at, end, &number);
  if (at != NULL) memcpy(out, &number, sizeof number);
  return at;
}

static const char *read_whole(const char *at, const char *end, const kind_t *kind, void *out) {
  const bool is_negative = *at == '-';
  at += is_negative;
  const char *start = at;
  uint64_t number = 0;
  (void)end;
  for (; is_digit(*at); at++) {
    if (__builtin_mul_overflow(number, 10, &number)) return NULL;
    if (__builtin_add_overflow(number, (uint64_t)(*at - '0'), &number)) return NULL;
  }
  if (at == start || (*start == '0' && at - start > 1)) return NULL;
  if (number > (is_negative ? kind->least : kind->most)) return NULL;
  if (is_negative) number = 0 - number;
  switch (kind->size) {
    case 1: memcpy(out, &(uint8_t){(uint8_t)number}, 1); break;
    case 2: memcpy(out, &(uint16_t){(uint16_t)number}, 2); break;
    case 4: memcpy(out, &(uint32_t){(uint32_t)number}, 4); break;
    default: memcpy(out, &number, 8);
  }
  return at;
}

typedef const char *(*reader_t)(const char *, const char *, const kind_t *, void *);

/* How many arrays begin with that row, which is as many as end before it. */
static inline int arrays_at(size_t row, const size_t *shape, int axes) {
  int count = 0;
  for (size_t block = 1; count < axes && row % block == 0; count++) {
    if (count + 1 < axes) block *= shape[axes - 2 - count];
  }
  return count;
}

static inline __attribute__((always_inline)) bool read_all(reader_t reader, const kind_t *kind,
                                                           const char *at, const char *end,
                                                           char *out, const size_t *shape,
                                                           int axes) {
  const size_t length = shape[axes - 1];
  size_t rows = 1;
  for (int axis = 0; axis < axes - 1; axis++) rows *= shape[axis];
  for (size_t row = 0; row < rows; row++) {
    for (int begin = arrays_at(row, shape, axes); begin > 0; begin--) {
      at = skip_blanks(at);
      if (*at++ != '[') return false;
    }
    for (size_t i = 0; i < length; i++, out += kind->size) {
      at = reader(skip_blanks(at), end, kind, out);
      if (at == NULL) return false;
      at = skip_blanks(at);
      if (*at++ != (i + 1 < length ? ',' : ']')) return false;
    }
    for (int ends = arrays_at(row + 1, shape, axes); ends > 1; ends--) {
      if (at == end) return false; /* behind a bracket that may have been the last */
      at = skip_blanks(at);
      if (*at++ != ']') return false;
    }
    if (row + 1 < rows) {
      if (at == end) return false;
      at = skip_blanks(at);
      if (*at++ != ',') return false;
    }
  }
  return at == end;
}

bool shmi_json_read(int kind, const char *text, const char *end, void *out, const size_t *shape,
                    int axes) {
  if (end - text < 3 || *text != '[' || end[-1] != ']') return false;
  const kind_t *of = &kinds[kind];
  if (kind == SHMI_JSON_FLOAT32) return read_all(read_float32, of, text, end, out, shape, axes);
  if (kind == SHMI_JSON_FLOAT64) return read_all(read_float64, of, text, end, out, shape, axes);
  return read_all(read_whole, of, text, end, out, shape, axes);
}
