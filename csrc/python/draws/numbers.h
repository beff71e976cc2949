/* numbers -- random numbers of float32 that follow from a seed, and from nothing else.
 *
 * Words come from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011): the seed is its key, and
 * block b of four words has the counter b. 64 blocks are a group, and word j of its block i is the
 * group's number 64 j + i: so vectors of words need no rearranging. Uniform numbers are a word's
 * upper 24 bits. Normal ones are made of two words each two (Box and Muller, 1958), with the
 * polynomials of Cephes (Moshier) for logarithm, sine and cosine; none is larger than 6.6.
 *
 * Only additions, products and square roots, each rounded once: every machine gives the same bits,
 * and so does shmgpu/ops/drawing.py, which says all of this once more, with NumPy. The loops are
 * made for AVX-512, AVX2, and without, on x86; whoever loads this says which are used.
 *
 * Owns: the numbers. Must never: keep a state, or call Python.
 */
#ifndef SHMI_NUMBERS_H
#define SHMI_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

enum { SHMI_UNIFORM, SHMI_NORMAL, SHMI_DISTRIBUTIONS };

/* The first n numbers of that seed. */
void shmi_draw(int distribution, uint64_t seed, float *out, size_t n);
/* How wide the loops are made that this machine can run: 0, 1 (AVX2), 2 (AVX-512). */
int shmi_draw_widest(void);
/* Use those from now on, instead of the plain ones. */
void shmi_draw_use(int width);

#endif
