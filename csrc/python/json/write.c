/* write -- floats as JSON. See json.h.
 *
 * Names and steps are those of Giulietti's paper: c 2^q is the number, the numbers that are read as
 * it lie between cbl 2^(q-2) and cbr 2^(q-2), and 10^k is the largest power of ten that is no wider
 * than these are apart. */
#include "python/json/json.h"

#include <string.h>

typedef struct {
  uint64_t digits;
  int exponent; /* of ten */
} rounded_t;

/* What differs between the two types of floats. */
typedef struct {
  int fraction_bits, bias; /* of the exponent, where the significand is a whole number */
  int plain_from, plain_to; /* exponents of numbers that are written without one */
  int digits;               /* the most that a number needs */
  uint64_t least;           /* whole number of so many */
} format_t;

static const format_t float32 = {23, 150, -6, 12, 9, UINT64_C(100000000)};
static const format_t float64 = {52, 1075, -5, 15, 17, UINT64_C(10000000000000000)};

static inline int floor_log2_pow10(int e) { return (e * 1741647) >> 19; }
static inline int floor_log10(int q, bool is_closer) {
  return (q * 1262611 - (is_closer ? 524031 : 0)) >> 22;
}

/* The power that is not below the true one; up to 10^27 and 10^55 they are exact. */
static inline uint64_t power_above32(int e) {
  return shmi_powers[e - SHMI_POWER_FIRST].high + (e < 0 || e > 27);
}

static inline shmi_power_t power_above64(int e) {
  shmi_power_t power = shmi_powers[e - SHMI_POWER_FIRST];
  if (e < 0 || e > 55) power.high += ++power.low == 0;
  return power;
}

/* The product's upper part; its last bit says whether there is any below. */
static inline uint64_t product32(uint64_t power, uint64_t c) {
  const shmi_wide_t product = (shmi_wide_t)power * c;
  return (uint64_t)(product >> 64) | ((uint32_t)(product >> 32) > 1);
}

static inline uint64_t product64(shmi_power_t power, uint64_t c) {
  const uint64_t low = (uint64_t)(((shmi_wide_t)power.low * c) >> 64);
  const shmi_wide_t product = (shmi_wide_t)power.high * c + low;
  return (uint64_t)(product >> 64) | ((uint64_t)product > 1);
}

/* The number of fewest digits from vbl to vbr, and of these the closest to vb, all four times as
 * large and inexact but for their last bit. What decides is as good as random: so nothing branches,
 * and one digit less is a 0 at the end. */
static inline uint64_t closest(uint64_t vbl, uint64_t vb, uint64_t vbr, bool is_even) {
  const uint64_t lower = vbl + !is_even, upper = vbr - !is_even;
  const uint64_t s = vb / 4, shorter = s / 10 * 10, middle = 4 * s + 2;
  const bool is_shorter_below = lower <= 4 * shorter, is_shorter_above = 4 * shorter + 40 <= upper;
  const bool is_below = lower <= 4 * s, is_above = 4 * s + 4 <= upper;
  const bool rounds_up = (vb > middle) | ((vb == middle) & (s & 1));
  const uint64_t same = s + (is_below != is_above ? is_above : rounds_up);
  const uint64_t less = shorter + (is_shorter_above ? 10 : 0);
  return (is_shorter_below != is_shorter_above) & (s >= 10) ? less : same;
}

static inline rounded_t shortest(const format_t *format, uint64_t fraction, int biased) {
  uint64_t c = fraction;
  int q = 1 - format->bias;
  if (biased != 0) {
    c |= UINT64_C(1) << format->fraction_bits;
    q = biased - format->bias;
    if (q <= 0 && -q <= format->fraction_bits && (c & ((UINT64_C(1) << -q) - 1)) == 0) {
      return (rounded_t){c >> -q, 0};
    }
  }
  const bool is_closer = fraction == 0 && biased > 1; /* the number below */
  const int k = floor_log10(q, is_closer), h = q + floor_log2_pow10(-k) + 1;
  const uint64_t cbl = 4 * c - 2 + is_closer, cb = 4 * c, cbr = 4 * c + 2;
  if (format == &float32) {
    const uint64_t power = power_above32(-k);
    return (rounded_t){closest(product32(power, cbl << h), product32(power, cb << h),
                               product32(power, cbr << h), c % 2 == 0),
                       k};
  }
  const shmi_power_t power = power_above64(-k);
  return (rounded_t){closest(product64(power, cbl << h), product64(power, cb << h),
                             product64(power, cbr << h), c % 2 == 0),
                     k};
}

/* The eight digits of a number, one a byte, the last in the lowest. */
static inline uint64_t eight_digits(uint64_t number) {
  const uint64_t fours = number + (UINT64_C(0x100000000) - 10000) * ((number * 0x68DB8BB) >> 40);
  const uint64_t twos = fours + (0x10000 - 100) * ((fours * 0x147B) >> 19 & 0x7F0000007F);
  return twos + (0x100 - 10) * ((twos * 0x67) >> 10 & 0xF000F000F000F);
}

enum { EIGHT = 100000000, WORDS = 16 };

/* A number's 17 digits, zeros at the end included, and how many there are without those. */
typedef struct {
  char first;
  uint64_t words[2]; /* the others as they lie in memory */
  int count, exponent; /* of the first digit */
} digits_t;

static inline digits_t digits_of(rounded_t one, const format_t *format) {
  digits_t made = {.exponent = one.exponent + format->digits - 1};
  uint64_t number = one.digits;
  for (; number < format->least; number *= 10) made.exponent--;
  uint64_t last = 0;
  if (format->digits > 9) {
    last = eight_digits(number % EIGHT);
    number /= EIGHT;
  }
  const uint64_t middle = eight_digits(number % EIGHT);
  made.first = (char)('0' + number / EIGHT);
  made.words[0] = __builtin_bswap64(middle) | 0x3030303030303030u;
  made.words[1] = __builtin_bswap64(last) | 0x3030303030303030u;
  made.count = last != 0     ? 17 - __builtin_ctzll(last) / 8
               : middle != 0 ? 9 - __builtin_ctzll(middle) / 8
                             : 1;
  return made;
}

static char *put_exponent(char *out, int exponent) {
  *out++ = 'e';
  *out++ = exponent < 0 ? '-' : '+';
  const int size = exponent < 0 ? -exponent : exponent;
  if (size >= 100) *out++ = (char)('0' + size / 100);
  if (size >= 10) *out++ = (char)('0' + size / 10 % 10);
  *out++ = (char)('0' + size % 10);
  return out;
}

/* Copies are of a fixed length, which is quicker: what is behind the number is written over. */
static inline char *put_decimal(char *out, rounded_t one, const format_t *format) {
  const digits_t made = digits_of(one, format);
  const int count = made.count, exponent = made.exponent;
  if (exponent < 0 && exponent >= format->plain_from) {
    memcpy(out, "0.000000", 8);
    out += 1 - exponent;
    out[0] = made.first;
    memcpy(out + 1, made.words, WORDS);
    return out + count;
  }
  out[0] = made.first;
  out[1] = '.';
  memcpy(out + 2, made.words, WORDS);
  if (exponent == 0) return out + (count > 1 ? count + 1 : 3);
  if (exponent > 0 && exponent <= format->plain_to) {
    memmove(out + 1, out + 2, (size_t)exponent);
    out[1 + exponent] = '.';
    return out + (count > exponent + 1 ? count + 1 : exponent + 3);
  }
  return put_exponent(out + (count > 1 ? count + 1 : 1), exponent);
}

static char *put_text(char *out, const char *text) {
  const size_t length = strlen(text);
  memcpy(out, text, length);
  return out + length;
}

static inline char *put_float(char *out, const format_t *format, uint64_t bits, int exponent_bits) {
  const uint64_t fraction = bits & ((UINT64_C(1) << format->fraction_bits) - 1);
  const int most = (1 << exponent_bits) - 1;
  const int biased = (int)(bits >> format->fraction_bits) & most;
  const bool is_negative = (bits >> (format->fraction_bits + exponent_bits)) != 0;
  if (biased == most && fraction != 0) return put_text(out, "NaN");
  if (is_negative) *out++ = '-';
  if (biased == most) return put_text(out, "Infinity");
  if (biased == 0 && fraction == 0) return put_text(out, "0.0");
  return put_decimal(out, shortest(format, fraction, biased), format);
}

size_t shmi_json_write(int kind, const void *numbers, size_t n, char *out) {
  char *at = out;
  *at++ = '[';
  for (size_t i = 0; i < n; i++) {
    if (i > 0) *at++ = ',';
    if (kind == SHMI_JSON_FLOAT32) {
      uint32_t bits;
      memcpy(&bits, (const char *)numbers + i * sizeof bits, sizeof bits);
      at = put_float(at, &float32, bits, 8);
    } else {
      uint64_t bits;
      memcpy(&bits, (const char *)numbers + i * sizeof bits, sizeof bits);
      at = put_float(at, &float64, bits, 11);
    }
  }
  *at++ = ']';
  return (size_t)(at - out);
}
