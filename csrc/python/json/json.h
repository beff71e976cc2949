/* json -- arrays of numbers as JSON has them, read and written.
 *
 * A decimal number is read as the double or the float next to it: by an exact product or quotient
 * of two doubles where both are exact (Clinger, PLDI 1990), otherwise by one of 64 bits with 128 of
 * a power of ten, which says whether it is sure (Lemire, "Number parsing at a gigabyte per second",
 * 2021); the C library decides the few others. Numbers are written with the fewest digits that read as the same number, and of
 * these the closest (Giulietti, "The Schubfach way to render doubles", 2020), plain or with an
 * exponent as orjson has them.
 *
 * Owns: the text of numbers. Must never: refuse in words, call Python, read behind what it is given.
 */
#ifndef SHMI_JSON_H
#define SHMI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  SHMI_JSON_INT8,
  SHMI_JSON_INT16,
  SHMI_JSON_INT32,
  SHMI_JSON_INT64,
  SHMI_JSON_UINT8,
  SHMI_JSON_UINT16,
  SHMI_JSON_UINT32,
  SHMI_JSON_UINT64,
  SHMI_JSON_FLOAT32,
  SHMI_JSON_FLOAT64,
  SHMI_JSON_KINDS
};

/* Bytes that n numbers may take when they are written; the last may be written with a longer copy
 * than it needs. */
#define SHMI_JSON_ROOM(n) ((n) * 25 + 64)

__extension__ typedef unsigned __int128 shmi_wide_t;

/* The upper 128 bits of a power of ten: it is at least `high` 2^64 + `low`, and less than one more,
 * times a power of two. */
typedef struct {
  uint64_t high, low;
} shmi_power_t;

enum { SHMI_POWER_FIRST = -342, SHMI_POWER_LAST = 324 };

extern shmi_power_t shmi_powers[SHMI_POWER_LAST - SHMI_POWER_FIRST + 1];

/* Once, before anything else: the powers of ten. False: there is no memory for a locale. */
bool shmi_json_prepare(void);
void shmi_powers_fill(void);

size_t shmi_json_size(int kind); /* bytes of such a number */

/* Whether the text, up to `end`, is an array of numbers nested as the shape is, of one axis or more
 * and no length 0; `out` then has them. False is also said of what another reader takes: of what is
 * not finite, of numbers that are none of this kind. `out` may hold some numbers then. */
bool shmi_json_read(int kind, const char *text, const char *end, void *out, const size_t *shape,
                    int axes);

/* Write n numbers, floats, as an array, into ROOM(n) bytes, of which it returns how many it took.
 * What is not finite is NaN, Infinity and -Infinity, which are no JSON. */
size_t shmi_json_write(int kind, const void *numbers, size_t n, char *out);

#endif
