"""Formulas of a line or two that have names in torch: limits on one side, angles, NaN passed over.

Each is recorded as the operations that its docstring names. Never has a row of its own.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.ops import elementwise as e
from shmgpu.ops import formulas, products, reductions, rules
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import eye, zeros_like
from shmgpu.ops.graph import Node
from shmgpu.ops.linear import dot, matmul
from shmgpu.ops.ordering import Found, sort
from shmgpu.ops.promotion import as_node, floats, is_float
from shmgpu.ops.rearranging import roll
from shmgpu.ops.shaping import narrow, reshape, squeeze, unsqueeze
from shmgpu.ops.solving import inverse
from shmgpu.ops.stretching import Dim, expand, sum

Operand = Node | complex

# ---- on one element, or two ----------------------------------------------------------------------


def clamp_min(x: Node, min: Operand) -> Node:
    """As :func:`shmgpu.clamp`, from below only."""
    return e.clamp(x, min)


def clamp_max(x: Node, max: Operand) -> Node:
    """As :func:`shmgpu.clamp`, from above only."""
    return e.clamp(x, None, max)


def exp2(x: Node) -> Node:
    """2 to that power; float32 for integers."""
    (x,) = floats(x)
    return e.pow(as_node(2.0, x.spec.dtype), x)


def fix(x: Node) -> Node:
    """As :func:`shmgpu.trunc`."""
    return formulas.trunc(x)


def sgn(x: Node) -> Node:
    """As :func:`shmgpu.sign`."""
    return e.sign(x)


def frac(x: Node) -> Node:
    """What stands behind the point: ``x - trunc(x)``; TypeError for integers."""
    if not is_float(x.spec.dtype):
        raise TypeError(f"frac: the tensor is {x.spec.dtype.name}, and must be of floats")
    return e.sub(x, formulas.trunc(x))


def deg2rad(x: Node) -> Node:
    """Degrees as radians; float32 for integers."""
    return e.mul(floats(x)[0], math.pi / 180)


def rad2deg(x: Node) -> Node:
    """Radians as degrees; float32 for integers."""
    return e.mul(floats(x)[0], 180 / math.pi)


def logit(x: Node, eps: float | None = None) -> Node:
    """``log(x / (1 - x))``, of numbers that are clamped to ``eps`` and ``1 - eps`` first."""
    (x,) = floats(x)
    if eps is not None:
        x = e.clamp(x, eps, 1 - eps)
    return e.log(e.div(x, e.sub(1, x)))


def sinc(x: Node) -> Node:
    """``sin(pi x) / (pi x)``, 1 at 0; float32 for integers."""
    (x,) = floats(x)
    angle = e.mul(x, math.pi)
    # Near 0 its series, to 1e-16: the quotient's gradient is a difference of large numbers there.
    is_near = e.lt(e.abs(angle), 1e-2)
    square = e.mul(angle, angle)
    series = e.add(e.mul(e.sub(e.mul(square, 1 / 120), 1 / 6), square), 1.0)
    angle = e.where(is_near, 1.0, angle)
    return e.where(is_near, series, e.div(e.sin(angle), angle))


def xlogy(input: Node, other: Operand) -> Node:
    """``input * log(other)``, 0 where ``input`` is, unless ``other`` is NaN."""
    a, b = floats(input, other)
    outside = e.logical_or(e.le(b, 0), e.eq(b, math.inf))
    return e.mul(a, e.log(e.where(e.logical_and(e.eq(a, 0), outside), 1.0, b)))


def fmax(input: Node, other: Node) -> Node:
    """The larger of two elements; of a number and NaN the number."""
    return e.where(e.logical_or(e.ge(input, other), e.isnan(other)), input, other)


def fmin(input: Node, other: Node) -> Node:
    """The smaller of two elements; of a number and NaN the number."""
    return e.where(e.logical_or(e.le(input, other), e.isnan(other)), input, other)


def float_power(x: Operand, exponent: Operand) -> Node:
    """``x ** exponent`` in float64."""
    kind = dtypes.by_name("float64")
    return e.pow(as_node(x, kind), as_node(exponent, kind))


def isposinf(x: Node) -> Node:
    """Where an element is infinity, bool."""
    return e.eq(x, math.inf) if is_float(x.spec.dtype) else e.ne(x, x)


def isneginf(x: Node) -> Node:
    """Where an element is minus infinity, bool."""
    return e.eq(x, -math.inf) if is_float(x.spec.dtype) else e.ne(x, x)


# ---- over axes -----------------------------------------------------------------------------------


def nansum(x: Node, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """As :func:`shmgpu.sum`, NaN counted as 0."""
    if is_float(x.spec.dtype):
        x = e.where(e.isnan(x), zeros_like(x), x)
    return sum(x, dim, keepdim, dtype=dtype)


def nanmean(x: Node, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The mean of the elements that are not NaN; NaN where there are none."""
    if dtype is not None:
        x = cast(x, dtypes.of_any(dtype))
    if not is_float(x.spec.dtype):
        raise TypeError(
            f"nanmean: the tensor is {x.spec.dtype.name}, and a mean needs floats: x.to('float32')"
        )
    there = sum(cast(e.logical_not(e.isnan(x)), x.spec.dtype), dim, keepdim)
    return e.div(nansum(x, dim, keepdim), there)


def dist(input: Node, other: Node, p: float = 2) -> Node:
    """The p-norm of the difference."""
    return formulas.norm(e.sub(input, other), p)


def kthvalue(x: Node, k: int, dim: int = -1, keepdim: bool = False) -> Found:
    """The k-th smallest element over an axis, the first being 1: (values, indices).

    Raises:
        ValueError: there are fewer.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "kthvalue")
    have = x.spec.shape[axis] if x.spec.shape else 1
    if not 1 <= rules.whole(k, "kthvalue", "k") <= have:
        raise ValueError(f"kthvalue: k={k} lies not within 1 to {have}, the length of axis {axis}")
    found = sort(x, axis)
    if not x.spec.shape:
        return found
    at = [narrow(one, axis, k - 1, 1) for one in found]
    return Found(*(at if keepdim else [squeeze(one, axis) for one in at]))


# ---- products ------------------------------------------------------------------------------------


def inner(input: Node, other: Node) -> Node:
    """The sum of products over the last axis of both: (..., k) and (..., k)."""
    if not input.spec.shape or not other.spec.shape:
        return e.mul(input, other)
    return products.tensordot(input, other, ([-1], [-1]))


def vdot(input: Node, other: Node) -> Node:
    """As :func:`shmgpu.dot`: there are no complex numbers."""
    return dot(input, other)


def kron(input: Node, other: Node) -> Node:
    """Kronecker's product: each element of the first, times the whole second one."""
    a, b = input.spec.shape, other.spec.shape
    ndim = max(len(a), len(b))
    a, b = (1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b
    apart = reshape(input, tuple([n for length in a for n in (length, 1)]))
    product = e.mul(apart, reshape(other, tuple([n for length in b for n in (1, length)])))
    return reshape(product, tuple([n * m for n, m in zip(a, b, strict=True)]))


def cross(input: Node, other: Node, dim: int | None = None) -> Node:
    """The cross product of vectors of three elements, along the first axis of that length.

    Raises:
        ValueError: no axis has three, or the one that is named has not.
    """
    shape = rules.broadcast([input.spec.shape, other.spec.shape], "cross")
    if dim is None:
        if 3 not in shape:
            raise ValueError(f"cross: no axis of {shape} has 3 elements")
        dim = shape.index(3)
    axis = rules.axis_of(dim, len(shape), "cross")
    if not shape or shape[axis] != 3:
        raise ValueError(f"cross: axis {axis} of {shape} must have 3 elements")
    a, b = expand(input, shape), expand(other, shape)
    there = e.mul(roll(a, -1, axis), roll(b, -2, axis))
    return e.sub(there, e.mul(roll(a, -2, axis), roll(b, -1, axis)))


def matrix_power(x: Node, n: int) -> Node:
    """A square matrix, or a batch of them, multiplied by itself; ``n`` of 0 gives ones.

    A negative ``n`` multiplies inverses.

    Raises:
        ValueError: the matrices are not square.
        TypeError: ``n`` is negative, and they are not of float32 or float64.
    """
    shape = x.spec.shape
    n = rules.whole(n, "matrix_power", "n")
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"matrix_power: takes square matrices, and the shape is {shape}")
    if n < 0:
        x, n = inverse(x), -n
    if n == 0:
        return expand(eye(shape[-1], shape[-1], x.spec.dtype), shape)
    found: Node | None = None
    while n:
        if n & 1:
            found = x if found is None else matmul(found, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    assert found is not None
    return found


def isin(elements: Node, test_elements: Node, *, invert: bool = False) -> Node:
    """Whether each element is among others, bool; with ``invert``, whether it is not."""
    flat = reshape(test_elements, (-1,))
    found = reductions.any(e.eq(unsqueeze(elements, -1), flat), -1)
    return e.logical_not(found) if invert else found
