/* reduction -- several arrays of numbers into one, element by element: out = ((a op b) op c) ...
 *
 * Always in the order of the sources, whatever their lengths and alignment, so the same numbers give
 * the same bits. 16-bit floats are computed in float32 and rounded once, at the end. Integers wrap. A
 * NaN wins over every number in max and min. The loops are written for vectors of 32 bytes and made
 * twice on x86, with AVX2 and F16C and without; which is used is decided once.
 *
 * Owns: the kernels. Must never: allocate, or read a source again after out has been written there.
 */
#ifndef SHMI_REDUCTION_H
#define SHMI_REDUCTION_H

#include "base/status.h"

enum { SHMI_REDUCED_AT_ONCE = SHM_MAX_HELPERS };

/* Bytes of one element; 0: there is no such type. */
size_t shmi_dtype_bytes(int dtype);
/* Bytes of what a partial result is kept in: those of float32 for 16-bit floats. */
size_t shmi_dtype_partial_bytes(int dtype);
/* Can that operation be done on that type? */
int shmi_reduction_is_known(int dtype, int op);

/* For tests: from here on, compute as a machine without AVX2 does. */
void shmi_reduction_be_plain(void);

/* out may be one of the sources, and overlaps none otherwise. */
void shmi_reduce(int dtype, int op, void *out, const void *const sources[], int count, size_t n);
/* The same source by source: partial = the first source; then partial = before op source; at last
 * out = partial, which was made of `count` sources. */
void shmi_reduce_first(int dtype, void *partial, const void *source, size_t n);
void shmi_reduce_next(int dtype, int op, void *partial, const void *before, const void *source,
                      size_t n);
void shmi_reduce_last(int dtype, int op, void *out, const void *partial, int count, size_t n);

#endif
