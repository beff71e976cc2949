"""Operations that make fewer elements out of many.

Owns their rows and the functions that record them. Never reduces in an order of its own: kernels
have theirs.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.ops import rules
from shmgpu.ops.casting import alias, cast
from shmgpu.ops.creation import full, ones_like
from shmgpu.ops.elementwise import add, div, eq, exp, isfinite, log, mul, sqrt, sub, where
from shmgpu.ops.graph import Node, Op, Params, Spec, apply
from shmgpu.ops.kernels import numpy_reduction, torch_reduction
from shmgpu.ops.promotion import bool_, floats, int64, is_float, uint8
from shmgpu.ops.shaping import cat, narrow, permute, reshape, stack, take_slices
from shmgpu.ops.stretching import Dim, stretched, stretched_back, sum


def _extreme(g: Node, n: Node) -> Node:
    """Shared among all elements that are the extreme one, as in PyTorch."""
    x = n.inputs[0]
    hit = cast(eq(x, stretched_back(n, n)), x.spec.dtype)
    return mul(div(hit, stretched(sum(hit, n.params[0]), n.params[0], x)), stretched_back(g, n))


AMAX = Op(
    "amax",
    rules.reduction(),
    numpy=numpy_reduction("amax"),
    torch=torch_reduction("amax"),
    gradients=(_extreme,),
    saves="io",
    takes_out=True,
)
AMIN = Op(
    "amin",
    rules.reduction(),
    numpy=numpy_reduction("amin"),
    torch=torch_reduction("amin"),
    gradients=(_extreme,),
    saves="io",
    takes_out=True,
)


def _truth(name: str) -> Op:
    """Whether all or any are true: bool, but of uint8 uint8, which torch took for bools once."""

    def bind(np: Any, specs: Any, params: Params, out: Spec) -> Any:
        reduce, dtype = numpy_reduction(name)(np, specs, params, out), out.dtype.numpy
        return lambda x: np.asarray(reduce(x)).astype(dtype)

    bind.__dict__["library_name"] = name
    rule = rules.reduction(lambda dtype: dtype if dtype is uint8 else bool_)
    return Op(name, rule, numpy=bind, torch=torch_reduction(name))


ALL = _truth("all")
ANY = _truth("any")


def _numpy_prod(np: Any, specs: Any, params: Params, out: Spec) -> Any:
    axes, keepdim = params
    dtype = out.dtype.numpy
    return lambda x: np.prod(x, axis=axes, keepdims=keepdim, dtype=dtype)


def _torch_prod(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    """One axis after the other, from the last on: torch has it over one only."""
    axes, keepdim = params

    def prod(x: Any) -> Any:
        for axis in reversed(axes):
            x = torch.prod(x, axis, keepdim)
        return x if axes else x.clone()

    return prod


def _others(g: Node, n: Node) -> Node:
    """The product of all the others, without dividing: right to any order where some are 0."""
    x, axes = n.inputs[0], n.params[0]
    shape = x.spec.shape
    order = (*[axis for axis in range(len(shape)) if axis not in axes], *axes)
    moved = permute(x, order)
    others = _exclusive(reshape(moved, (*rules.reduced(shape, axes, False), count(x, axes))))
    back = sorted(range(len(order)), key=order.__getitem__)
    return mul(stretched_back(g, n), permute(reshape(others, moved.spec.shape), tuple(back)))


def _exclusive(x: Node) -> Node:
    """For each element of the last axis the product of all others on it.

    Up a tree of products and down again, as sums go in Blelloch, Prefix Sums and Their
    Applications, 1990: fewer than three multiplications an element.
    """
    *rest, length = x.spec.shape
    if length < 2:
        return ones_like(x)
    if length % 2:
        x = cat([x, full((*rest, 1), 1, x.spec.dtype)], -1)
    every = [slice(None)] * len(rest)
    even, odd = (take_slices(x, [*every, slice(first, None, 2)]) for first in (0, 1))
    above = _exclusive(mul(even, odd))
    return narrow(
        reshape(stack([mul(above, odd), mul(above, even)], -1), x.spec.shape), -1, 0, length
    )


PROD = Op(
    "prod",
    rules.reduction(lambda dtype: dtype if is_float(dtype) else int64),
    numpy=_numpy_prod,
    torch=_torch_prod,
    gradients=(_others,),
    saves="i",
)


def all(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """Whether all elements are true (not 0), over an axis, several, or all of them.

    bool; uint8 for uint8.
    """
    return apply(ALL, (x,), (rules.axes_of(dim, len(x.spec.shape), "all"), keepdim))


def any(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """Whether an element is true (not 0), over an axis, several, or all of them.

    bool; uint8 for uint8.
    """
    return apply(ANY, (x,), (rules.axes_of(dim, len(x.spec.shape), "any"), keepdim))


def prod(x: Node, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The product over an axis, several, or all of them; int64 for bools and integers.

    In the type ``dtype``, where one is given.
    """
    kind = None if dtype is None else dtypes.of_any(dtype)
    if kind is not None and is_float(kind):
        x = cast(x, kind)
    elif not is_float(x.spec.dtype):
        x = cast(x, int64)
    made = apply(PROD, (x,), (rules.axes_of(dim, len(x.spec.shape), "prod"), keepdim))
    return made if kind is None else cast(made, kind)


def count(x: Node, axes: tuple[int, ...]) -> int:
    """How many elements a reduction over these axes makes one of."""
    return math.prod(x.spec.shape[axis] for axis in axes)


def _refuse_whole(x: Node, name: str, what: str) -> None:
    if not is_float(x.spec.dtype):
        raise TypeError(
            f"{name}: the tensor is {x.spec.dtype.name}, and {what} needs floats: x.to('float32')"
        )


def mean(x: Node, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The mean over an axis, several, or all of them; NaN of no elements.

    In the float type ``dtype``, where one is given.

    Raises:
        TypeError: the tensor is not of floats.
    """
    if dtype is not None:
        x = cast(x, dtypes.of_any(dtype))
    _refuse_whole(x, "mean", "a mean")
    axes = rules.axes_of(dim, len(x.spec.shape), "mean")
    total = count(x, axes)
    return mul(sum(x, axes, keepdim), 1.0 / total if total else math.nan)


def var(
    x: Node,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> Node:
    """The variance over an axis, several, or all of them, of floats.

    The sum of squares is divided by the number of elements minus ``correction``.

    Args:
        x: a tensor of floats.
        dim: the axis, or several; a bool is ``unbiased``, over all of them.
        unbiased: PyTorch's older name for a correction of 1, else 0.
        keepdim: keep those axes, with length 1.
        correction: what is taken off the number of elements.

    Raises:
        TypeError: the tensor is not of floats.
    """
    _refuse_whole(x, "var", "a variance")
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    axes = rules.axes_of(dim, len(x.spec.shape), "var")
    centred = sub(x, mean(x, axes, True))
    left = count(x, axes) - correction
    return mul(sum(mul(centred, centred), axes, keepdim), 1.0 / left if left > 0 else math.inf)


def std(
    x: Node,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> Node:
    """The square root of :func:`var`; where that is 0, so is the gradient."""
    _refuse_whole(x, "std", "a deviation")
    square = var(x, dim, unbiased, keepdim, correction=correction)
    is_flat = eq(square, 0)
    return where(is_flat, 0.0, sqrt(where(is_flat, 1.0, square)))


def _refuse_empty(x: Node, axes: tuple[int, ...], name: str) -> None:
    if count(x, axes) == 0:
        raise ValueError(f"{name}: of no elements there is none (the shape is {x.spec.shape})")


def amax(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """The largest element over an axis, several, or all; equal ones share the gradient.

    Raises:
        ValueError: there are no elements.
    """
    axes = rules.axes_of(dim, len(x.spec.shape), "amax")
    _refuse_empty(x, axes, "amax")
    return apply(AMAX, (x,), (axes, keepdim))


def amin(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """The smallest element over an axis, several, or all; equal ones share the gradient.

    Raises:
        ValueError: there are no elements.
    """
    axes = rules.axes_of(dim, len(x.spec.shape), "amin")
    _refuse_empty(x, axes, "amin")
    return apply(AMIN, (x,), (axes, keepdim))


def logsumexp(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """``log(sum(exp(x)))`` over an axis, several, or all of them, without overflow.

    Of no elements it is minus infinity.
    """
    (x,) = floats(x)
    axes = rules.axes_of(dim, len(x.spec.shape), "logsumexp")
    if not count(x, axes):
        return log(sum(exp(x), axes, keepdim))
    most = alias(amax(x, axes, True))  # what is subtracted is added again, so it needs no gradient
    most = where(isfinite(most), most, 0.0)
    out = log(sum(exp(sub(x, most)), axes, True))
    total = add(out, most)
    return total if keepdim else reshape(total, rules.reduced(x.spec.shape, axes, False))
