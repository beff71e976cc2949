"""Formulas over elements and reductions that have names in torch: norms, means of two, other logs.

Each is recorded as the operations that its docstring names. Never has a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from shmgpu.ops import elementwise as e
from shmgpu.ops import graph, reductions, rules
from shmgpu.ops.arranging import diagonal
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import full
from shmgpu.ops.graph import Node
from shmgpu.ops.indexing import index_select
from shmgpu.ops.ordering import Found, sort
from shmgpu.ops.promotion import as_node, floats, int64, is_float
from shmgpu.ops.shaping import movedim, narrow, reshape, squeeze
from shmgpu.ops.stretching import Dim, sum

Operand = Node | complex


class Extremes(NamedTuple):
    """The smallest and the largest element."""

    min: Node
    max: Node


def absolute(x: Node) -> Node:
    """As :func:`shmgpu.abs`."""
    return e.abs(x)


def clip(x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    """As :func:`shmgpu.clamp`."""
    return e.clamp(x, min, max)


def trunc(x: Node) -> Node:
    """Rounded towards 0."""
    if not is_float(x.spec.dtype):
        return x
    return e.where(e.lt(x, 0), e.ceil(x), e.floor(x))


def logical_xor(a: Node, b: Operand) -> Node:
    """Whether exactly one of two elements is true (not 0), bool."""
    return e.ne(e.ne(a, 0), e.ne(b, 0) if isinstance(b, Node) else bool(b))


def lerp(start: Node, end: Node, weight: Operand) -> Node:
    """Between two: ``start + weight * (end - start)``, from the nearer one, as PyTorch does it."""
    span = e.sub(end, start)
    if not isinstance(weight, Node):
        if abs(weight) < 0.5:
            return e.add(start, e.mul(weight, span))
        return e.sub(end, e.mul(span, 1 - weight))
    return e.where(
        e.lt(e.abs(weight), 0.5),
        e.add(start, e.mul(weight, span)),
        e.sub(end, e.mul(span, e.sub(1, weight))),
    )


def addcmul(x: Node, tensor1: Node, tensor2: Node, *, value: float = 1) -> Node:
    """``x + value * tensor1 * tensor2``."""
    return e.add(x, e.mul(tensor1, tensor2), alpha=value)


def addcdiv(x: Node, tensor1: Node, tensor2: Node, *, value: float = 1) -> Node:
    """``x + value * tensor1 / tensor2``."""
    return e.add(x, e.div(tensor1, tensor2), alpha=value)


def nan_to_num(
    x: Node, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Node:
    """With NaN and infinities replaced, by default by 0 and the type's largest and smallest."""
    if not is_float(x.spec.dtype):
        return x
    most = _MOST[x.spec.dtype.name]
    found = e.where(e.isnan(x), nan, x)
    found = e.where(e.eq(x, math.inf), most if posinf is None else posinf, found)
    return e.where(e.eq(x, -math.inf), -most if neginf is None else neginf, found)


_MOST = {  # the greatest finite number of each type
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


def isclose(
    a: Node, b: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Node:
    """Where ``abs(a - b) <= atol + rtol * abs(b)``, or they are equal infinities; bool."""
    x, y = floats(a, b)  # the difference of unsigned numbers would wrap around
    near = e.le(e.abs(e.sub(x, y)), e.add(e.mul(e.abs(y), rtol), atol))
    found = e.logical_or(e.eq(a, b), e.logical_and(near, e.isfinite(b)))
    if equal_nan:
        found = e.logical_or(found, e.logical_and(e.isnan(a), e.isnan(b)))
    return found


# ---- over axes -----------------------------------------------------------------------------------


def count_nonzero(x: Node, dim: Dim = None) -> Node:
    """The number of elements that are not 0, int64."""
    return sum(cast(e.ne(x, 0), int64), dim)


def norm(x: Node, p: float | str = 2, dim: Dim = None, keepdim: bool = False) -> Node:
    """``sum(abs(x) ** p) ** (1 / p)`` over an axis, several, or all of them.

    ``p`` of 2, or "fro", is Euclid's; ``inf`` and ``-inf`` are the largest and least of the
    absolute values; 0 counts those that are not 0.

    Raises:
        TypeError: the tensor is not of floats.
    """
    if not is_float(x.spec.dtype):
        raise TypeError(f"norm: the tensor is {x.spec.dtype.name}, and a norm needs floats")
    p = 2 if p == "fro" else p
    if isinstance(p, str):
        raise ValueError(f"norm: p={p!r} must be a number or 'fro'")
    if p == math.inf:
        return reductions.amax(e.abs(x), dim, keepdim)
    if p == -math.inf:
        return reductions.amin(e.abs(x), dim, keepdim)
    if p == 0:
        return sum(cast(e.ne(x, 0), x.spec.dtype), dim, keepdim)
    if p == 1:
        return sum(e.abs(x), dim, keepdim)
    total = sum(_powers(x, p), dim, keepdim)
    is_flat = e.eq(total, 0)  # where the gradient is 0, as in torch
    whole = e.where(is_flat, 1.0, total)
    return e.where(is_flat, 0.0, e.sqrt(whole) if p == 2 else e.pow(whole, 1 / p))


def _powers(x: Node, p: float) -> Node:
    """``abs(x) ** p``; where its slope at 0 is infinite, the gradient there is 0, as in torch."""
    if p == 2:
        return e.mul(x, x)
    if p > 1:
        return e.pow(e.abs(x), p)
    is_zero = e.eq(x, 0)
    powers = e.pow(e.abs(e.where(is_zero, 1.0, x)), p)
    return e.where(is_zero, 0.0 if p > 0 else math.inf, powers)


def var_mean(
    x: Node,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> tuple[Node, ...]:
    """The variance and the mean; arguments as for :func:`shmgpu.var`."""
    spread = reductions.var(x, dim, unbiased, keepdim, correction=correction)
    return spread, reductions.mean(x, None if isinstance(dim, bool) else dim, keepdim)


def std_mean(
    x: Node,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> tuple[Node, ...]:
    """The standard deviation and the mean; arguments as for :func:`shmgpu.var`."""
    spread = reductions.std(x, dim, unbiased, keepdim, correction=correction)
    return spread, reductions.mean(x, None if isinstance(dim, bool) else dim, keepdim)


def aminmax(x: Node, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest element."""
    return Extremes(reductions.amin(x, dim, keepdim), reductions.amax(x, dim, keepdim))


def median(x: Node, dim: int | None = None, keepdim: bool = False) -> Node | Found:
    """The middle element, the lower of two; over one axis (values, indices).

    NaN if an element is. Over all, elements that equal it share the gradient.
    """
    if dim is None:
        if 0 in x.spec.shape:
            return full((), math.nan, x.spec.dtype)
        flat = reshape(x, (-1,))
        values = _middle(flat, 0).values
        if x.needs_grad and graph.grad_mode.enabled:
            values = reductions.amax(e.where(e.eq(flat, values), flat, -math.inf), 0, True)
        return reshape(_or_nan(flat, values, 0), ())
    axis = rules.axis_of(dim, len(x.spec.shape), "median")
    found = _middle(x, axis)
    found = Found(_or_nan(x, found.values, axis), found.indices)
    if keepdim or not x.spec.shape:
        return found
    return Found(squeeze(found.values, axis), squeeze(found.indices, axis))


def quantile(
    x: Node,
    q: Node | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Node:
    """The elements below which such shares of all lie; NaN if an element is.

    Args:
        x: a tensor of floats.
        q: a share from 0 to 1, or a vector of k of them, of x's type.
        dim: the axis; all elements by default.
        keepdim: keep that axis, with length 1.
        interpolation: between two neighbours: "linear", "lower", "higher", "nearest", "midpoint".

    Returns:
        The shape without the axis; of several shares behind a first axis of length k.

    Raises:
        TypeError: the tensor is not of floats, or ``q`` of another type.
        ValueError: there are no elements, no such share, or no such interpolation.
    """
    shape = x.spec.shape
    if not is_float(x.spec.dtype):
        raise TypeError(f"quantile: the tensor is {x.spec.dtype.name}, and a quantile needs floats")
    axis = 0 if dim is None else rules.axis_of(dim, len(shape), "quantile")
    rest = () if dim is None or not shape else (*shape[:axis], *shape[axis + 1 :])
    kept = (*shape[:axis], 1, *shape[axis + 1 :]) if rest else (1,) * len(shape)
    if interpolation not in _BETWEEN:
        raise ValueError(f"quantile: interpolation={interpolation!r}: use {', '.join(_BETWEEN)}")
    if not isinstance(q, Node):
        if not 0 <= float(q) <= 1:
            raise ValueError(f"quantile: q={q} must be a share, 0 to 1")
        q = as_node(q, x.spec.dtype)
    if q.spec.dtype is not x.spec.dtype or len(q.spec.shape) > 1:
        raise TypeError(
            f"quantile: q is {q.spec.dtype.name} {q.spec.shape}, and must be a number or a vector "
            f"of {x.spec.dtype.name}"
        )
    rows = reshape(x, (-1,)) if dim is None or not shape else movedim(x, axis, -1)
    length = rows.spec.shape[-1]
    if not length:
        raise ValueError(f"quantile: of no elements there is none (the shape is {shape})")
    ordered, _ = sort(rows, -1)
    place = e.mul(reshape(q, (-1,)), float(length - 1))
    low, high, share = _BETWEEN[interpolation](place)
    found = index_select(ordered, -1, cast(low, int64))
    if high is not low:
        above = index_select(ordered, -1, cast(high, int64))
        found = lerp(found, above, share)
    found = e.where(reductions.any(e.isnan(rows), -1, True), math.nan, found)
    return reshape(movedim(found, -1, 0), (*q.spec.shape, *(kept if keepdim else rest)))


# Of a place among the ordered: the neighbours, and how far it is from one to the other.
_BETWEEN: dict[str, Callable[[Node], tuple[Node, Node, Operand]]] = {
    "linear": lambda at: (e.floor(at), e.ceil(at), e.sub(at, e.floor(at))),
    "lower": lambda at: (low := e.floor(at), low, 0),
    "higher": lambda at: (high := e.ceil(at), high, 0),
    "midpoint": lambda at: (e.floor(at), e.ceil(at), 0.5),
    "nearest": lambda at: (near := e.round(at), near, 0),
}


def trace(x: Node) -> Node:
    """The sum of a matrix's diagonal; int64 for bools and integers.

    Raises:
        ValueError: the tensor does not have two axes.
    """
    if len(x.spec.shape) != 2:
        raise ValueError(f"trace: takes a matrix, not {x.spec.shape}")
    return sum(diagonal(x))


def _middle(x: Node, axis: int) -> Found:
    if not x.spec.shape:
        return sort(x)
    if x.spec.shape[axis] == 0:
        raise ValueError(f"median: of no elements there is none (the shape is {x.spec.shape})")
    values, indices = sort(x, axis)
    at = (x.spec.shape[axis] - 1) // 2
    return Found(narrow(values, axis, at, 1), narrow(indices, axis, at, 1))


def _or_nan(x: Node, values: Node, axis: int) -> Node:
    if not is_float(x.spec.dtype) or not x.spec.shape:
        return values
    strange = reductions.any(e.isnan(x), axis, True)
    return e.where(strange, math.nan, values)
