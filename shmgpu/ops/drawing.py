"""Random float32 numbers on a host: they follow from a seed, and are the same on every machine.

Owns what a seed gives: Philox4x32-10 and what is made of its words, as csrc/python/draws/numbers.h
says it. Here with NumPy, bit for bit the same; ``shmgpu._draws`` takes its place where it was
built, 25,088 normal numbers in 23 us instead of PyTorch's 60. Never keeps a state, and never draws
on a device: there the device's own generator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

native: Any = None
if not TYPE_CHECKING:
    try:
        import shmgpu._draws as native
    except ImportError:  # a tree that was not built
        pass

UNIFORM, NORMAL = range(2)

LANES = 64  # blocks of a group, whose words of one place lie side by side
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_TURN = np.float32(1.4629180792671596e-9)  # pi / 2^31
# The polynomials of Cephes, from the highest power down.
_LOGARITHM = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def fill(distribution: int, seed: int, address: int, count: int) -> None:
    """Write the first numbers of a seed.

    Args:
        distribution: ``UNIFORM``, from 0 up to but never 1, or ``NORMAL``.
        seed: of 64 bits; neighbours have nothing in common.
        address: of memory for so many float32.
        count: how many.
    """
    if native is not None:
        native.fill(distribution, seed, address, count)
    elif count:
        import ctypes

        made = numbers(distribution, seed, count)
        ctypes.memmove(address, made.ctypes.data, made.nbytes)


def numbers(distribution: int, seed: int, count: int) -> Any:
    """The same as an array, made with NumPy."""
    groups = -(-count // (4 * LANES))
    words = _words(seed, groups)
    made = _normal(words) if distribution == NORMAL else _uniform(words)
    return made.ravel()[:count]


def _words(seed: int, groups: int) -> Any:
    """Shape (groups, 4, LANES), uint32."""
    block = np.arange(groups * LANES, dtype=np.uint64).reshape(groups, LANES)
    a, b = block & _LOW, block >> _32
    c = d = np.zeros_like(block)
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        one, two = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = two >> _32 ^ b ^ np.uint64(keys[0]), two & _LOW
        c, d = one >> _32 ^ d ^ np.uint64(keys[1]), one & _LOW
        keys = [key + step & 0xFFFFFFFF for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def _uniform(words: Any) -> Any:
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _normal(words: Any) -> Any:
    radius = _radius(words[:, 0::2])
    made = np.empty(words.shape, np.float32)
    made[:, 0::2], made[:, 1::2] = _turned(radius, words[:, 1::2])
    return made


def _polynomial(factors: tuple[float, ...], x: Any) -> Any:
    value = np.full_like(x, factors[0])
    for factor in factors[1:]:
        value = value * x + np.float32(factor)
    return value


def _radius(word: Any) -> Any:
    """The square root of -2 log u, u from 2^-31 to 1."""
    u = (word >> np.uint32(1) | np.uint32(1)).astype(np.float32) * np.float32(2.0**-31)
    bits = u.view(np.uint32)
    part = (bits & np.uint32(0x7FFFFF) | np.uint32(0x3F000000)).view(np.float32)
    is_small = part < np.float32(0.707106781186547524)
    exponent = ((bits >> np.uint32(23)).astype(np.int32) - 126 - is_small).astype(np.float32)
    x = part + np.where(is_small, part, np.float32(0)) - np.float32(1)
    z = x * x
    y = _polynomial(_LOGARITHM, x) * x * z
    y = y + exponent * np.float32(-2.12194440e-4)
    y = y - np.float32(0.5) * z
    logarithm = x + y + exponent * np.float32(0.693359375)
    return np.sqrt(logarithm * np.float32(-2))


def _turned(radius: Any, word: Any) -> tuple[Any, Any]:
    """Two numbers: the word's direction is that part of a turn."""
    quarter = word + np.uint32(0x20000000) >> np.uint32(30)
    x = (word - (quarter << np.uint32(30))).view(np.int32).astype(np.float32) * _TURN
    z = x * x
    s = _polynomial(_SINE, z) * z * x + x
    c = _polynomial(_COSINE, z) * z * z - np.float32(0.5) * z + np.float32(1)
    is_odd = (quarter & np.uint32(1)).astype(bool)
    along, across = np.where(is_odd, s, c) * radius, np.where(is_odd, c, s) * radius
    cosine = np.where(quarter + np.uint32(1) & np.uint32(2), -along, along)
    return cosine, np.where(quarter & np.uint32(2), -across, across)
