/* powers -- the powers of ten, of 128 bits. See json.h.
 *
 * Each is the one beside it times or by five, in a number long enough to be exact, or exact but for
 * the remainder: floor(floor(x / 5) / 5) is floor(x / 25). */
#include "python/json/json.h"

#include <string.h>

enum { LIMBS = 36, HIGHEST = 32 * (LIMBS - 1) }; /* 5^324 has 753 bits; 2^HIGHEST / 5^342, 325 */

shmi_power_t shmi_powers[SHMI_POWER_LAST - SHMI_POWER_FIRST + 1];

typedef struct {
  uint32_t limbs[LIMBS]; /* the lowest first */
} long_t;

static void times_five(long_t *number) {
  uint64_t carry = 0;
  for (int i = 0; i < LIMBS; i++) {
    carry += (uint64_t)number->limbs[i] * 5;
    number->limbs[i] = (uint32_t)carry;
    carry >>= 32;
  }
}

static void by_five(long_t *number) {
  uint64_t rest = 0;
  for (int i = LIMBS - 1; i >= 0; i--) {
    rest = rest << 32 | number->limbs[i];
    number->limbs[i] = (uint32_t)(rest / 5);
    rest %= 5;
  }
}

/* 64 bits, of which the highest has that place; what is below the number's lowest is 0. */
static uint64_t bits_from(const long_t *number, int highest) {
  uint64_t bits = 0;
  for (int place = highest; place > highest - 64; place--) {
    const uint32_t limb = place >= 0 ? number->limbs[place / 32] : 0;
    bits = bits << 1 | (limb >> (place & 31) & 1);
  }
  return bits;
}

static void keep(int exponent, const long_t *number) {
  int limb = LIMBS - 1;
  while (number->limbs[limb] == 0) limb--;
  const int highest = 32 * limb + 31 - __builtin_clz(number->limbs[limb]);
  shmi_power_t *power = &shmi_powers[exponent - SHMI_POWER_FIRST];
  power->high = bits_from(number, highest);
  power->low = bits_from(number, highest - 64);
}

void shmi_powers_fill(void) {
  long_t number = {{1}};
  for (int exponent = 0; exponent <= SHMI_POWER_LAST; exponent++) {
    keep(exponent, &number);
    times_five(&number);
  }
  memset(&number, 0, sizeof number);
  number.limbs[HIGHEST / 32] = 1;
  for (int exponent = -1; exponent >= SHMI_POWER_FIRST; exponent--) {
    by_five(&number);
    keep(exponent, &number);
  }
}
