"""Maxima, sorting, running sums and products, search: what follows from an order of elements.

Owns their rows and the functions that record them. Never gives a shape that depends on elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shmgpu.ops import rules
from shmgpu.ops.casting import cast, to
from shmgpu.ops.elementwise import Operand, div, eq, logical_and, maximum, minimum, mul, where
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.indexing import gather
from shmgpu.ops.promotion import int64, is_float, together
from shmgpu.ops.reductions import amax, amin
from shmgpu.ops.shaping import flatten, flip, narrow, reshape, squeeze
from shmgpu.ops.stretching import Dim

Specs = tuple[Spec, ...]


class Found(NamedTuple):
    """Elements, and where they were."""

    values: Node
    indices: Node


# ---- the greatest and the least ------------------------------------------------------------------


def _place(name: str) -> Op:
    def rule(specs: Specs, params: Params) -> Spec:
        (x,) = specs
        axis, keepdim = params
        if x.shape and x.shape[axis] == 0:
            raise ValueError(f"{name}: axis {axis} of {x.shape} is empty: there is none")
        return spec_of(int64, rules.reduced(x.shape, (axis,) if x.shape else (), keepdim))

    def numpy(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
        axis, keepdim = params
        find = getattr(np, name)
        if not specs[0].shape:
            return lambda x: np.zeros((), np.int64)
        return lambda x: find(x, axis=axis, keepdims=keepdim)

    def torch(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        axis, keepdim = params
        find = getattr(module, name)
        is_bool = specs[0].dtype.name == "bool"  # torch finds none among bools
        return lambda x: find(x.byte() if is_bool else x, axis, keepdim)

    return Op(name, rule, numpy=numpy, torch=torch)


ARGMAX = _place("argmax")
ARGMIN = _place("argmin")


def _find(op: Op, x: Node, dim: int | None, keepdim: bool) -> Node:
    if dim is None:
        found = apply(op, (flatten(x) if x.spec.shape else x,), (0, False))
        return reshape(found, (1,) * len(x.spec.shape)) if keepdim else found
    return apply(op, (x,), (rules.axis_of(dim, len(x.spec.shape), op.name), keepdim))


def argmax(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The index of the largest element, int64; in the flattened tensor without ``dim``."""
    return _find(ARGMAX, x, dim, keepdim)


def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The index of the smallest element, int64; in the flattened tensor without ``dim``."""
    return _find(ARGMIN, x, dim, keepdim)


def _most(
    op: Op, reduce: Any, between: Any, x: Node, dim: Dim | Node, other: Any, keepdim: bool
) -> Node | Found:
    if isinstance(dim, Node):
        return between(x, dim)  # type: ignore[no-any-return]
    if other is not None:
        return between(x, other)  # type: ignore[no-any-return]
    if not isinstance(dim, int):
        return reduce(x, dim, keepdim)  # type: ignore[no-any-return]
    axis = rules.axis_of(dim, len(x.spec.shape), op.name)
    indices = _find(op, x, dim, True)
    values = gather(x, axis, indices)
    if keepdim or not x.spec.shape:
        return Found(values, indices)
    return Found(squeeze(values, axis), squeeze(indices, axis))


def max(
    x: Node, dim: Dim | Node = None, keepdim: bool = False, *, other: Node | None = None
) -> Node | Found:
    """The largest element of all or several axes; over one, (values, indices) as in PyTorch."""
    return _most(ARGMAX, amax, maximum, x, dim, other, keepdim)


def min(
    x: Node, dim: Dim | Node = None, keepdim: bool = False, *, other: Node | None = None
) -> Node | Found:
    """The smallest element of all or several axes; over one, (values, indices) as in PyTorch."""
    return _most(ARGMIN, amin, minimum, x, dim, other, keepdim)


# ---- in order ------------------------------------------------------------------------------------


def _numpy_argsort(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis, descending = params
    if not out.shape:
        return lambda x: np.zeros((), np.int64)
    if not descending:
        return lambda x: np.argsort(x, axis, kind="stable")
    length = out.shape[axis]
    # Sorted from behind and turned round, equal elements keep their order.
    return lambda x: length - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def _torch_argsort(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis, descending = params
    return lambda x: torch.argsort(x, dim=axis, descending=descending, stable=True)


ARGSORT = Op(
    "argsort",
    lambda specs, params: spec_of(int64, specs[0].shape),
    numpy=_numpy_argsort,
    torch=_torch_argsort,
)


def argsort(x: Node, dim: int = -1, descending: bool = False) -> Node:
    """The indices that sort the elements, int64; the sort is stable."""
    axis = rules.axis_of(dim, len(x.spec.shape), "argsort")
    return apply(ARGSORT, (x,), (axis, bool(descending)))


def sort(x: Node, dim: int = -1, descending: bool = False) -> Found:
    """The elements in order, and their indices before."""
    indices = argsort(x, dim, descending)
    return Found(gather(x, dim, indices), indices)


def topk(x: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Found:
    """The k largest (or smallest) elements and their indices, always in order."""
    axis = rules.axis_of(dim, len(x.spec.shape), "topk")
    have = x.spec.shape[axis] if x.spec.shape else 1
    if not 0 <= k <= have:
        raise ValueError(f"topk: k={k} lies not within the {have} of axis {axis}")
    indices = argsort(x, axis, largest)
    if x.spec.shape:
        indices = narrow(indices, axis, 0, k)
    return Found(gather(x, axis, indices), indices)


# ---- sums on the way -----------------------------------------------------------------------------


def _numpy_cumsum(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis, dtype = params[0], out.dtype.numpy
    return lambda x: np.cumsum(x, axis, dtype) if x.shape else x.astype(dtype)


CUMSUM = Op(
    "cumsum",
    lambda specs, params: specs[0],
    numpy=_numpy_cumsum,
    torch=lambda torch, specs, params, out: lambda x: torch.cumsum(x, params[0]),
    gradients=(lambda g, n: _from_behind(g, n.params[0]),),
)


def _from_behind(x: Node, axis: int) -> Node:
    """The sum of each element and all after it."""
    return flip(cumsum(flip(x, (axis,)), axis), (axis,))


def cumsum(x: Node, dim: int, dtype: Any = None) -> Node:
    """The running sum; int64 for bools and integers."""
    x = _summed(x, dtype)
    return apply(CUMSUM, (x,), (rules.axis_of(dim, len(x.spec.shape), "cumsum"),))


def _summed(x: Node, dtype: Any) -> Node:
    if dtype is not None:
        return to(x, dtype)
    return x if is_float(x.spec.dtype) else cast(x, int64)


def _numpy_cumprod(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis, dtype = params[0], out.dtype.numpy
    return lambda x: np.cumprod(x, axis, dtype) if x.shape else x.astype(dtype)


def _cumprod_gradient(g: Node, n: Node) -> Node:
    """In time that grows with the length, also where elements are 0.

    Before the first 0 each product has the element as a factor, to be divided out; behind it all
    are 0 whatever the element is; and of that 0 itself products count as if it were 1.
    """
    x, axis = n.inputs[0], n.params[0]
    is_zero = eq(x, 0)
    is_first = logical_and(is_zero, eq(cumsum(cast(is_zero, int64), axis), 1))
    without = cumprod(where(is_first, 1.0, x), axis)
    others = div(_from_behind(mul(g, n), axis), where(is_zero, 1.0, x))
    return where(is_first, _from_behind(mul(g, without), axis), where(is_zero, 0.0, others))


CUMPROD = Op(
    "cumprod",
    lambda specs, params: specs[0],
    numpy=_numpy_cumprod,
    torch=lambda torch, specs, params, out: lambda x: torch.cumprod(x, params[0]),
    gradients=(_cumprod_gradient,),
    saves="io",
)


def cumprod(x: Node, dim: int, dtype: Any = None) -> Node:
    """The running product; int64 for bools and integers."""
    x = _summed(x, dtype)
    return apply(CUMPROD, (x,), (rules.axis_of(dim, len(x.spec.shape), "cumprod"),))


# ---- places in an order --------------------------------------------------------------------------


def _found_rule(specs: Specs, params: Params) -> Spec:
    within, wanted = specs
    if not within.shape or (len(within.shape) > 1 and within.shape[:-1] != wanted.shape[:-1]):
        raise ValueError(
            f"searchsorted: the order's shape {within.shape} must have one axis, or all but the "
            f"last of the {wanted.shape} that are looked for"
        )
    return spec_of(int64, wanted.shape)


def _numpy_searchsorted(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    side = "right" if params[0] else "left"
    order, looked_for = specs

    def of_one(within: Any, wanted: Any) -> Any:
        if is_float(looked_for.dtype) and (np.isnan(wanted).any() or np.isnan(within).any()):
            return halved(within, wanted)
        return np.searchsorted(within, wanted, side)

    def halved(within: Any, wanted: Any) -> Any:
        """As torch looks, to whom NaN is behind everything, wherever it stands in the order."""
        low, high = np.zeros(wanted.shape, np.int64), np.full(wanted.shape, len(within))
        while (open_ := low < high).any():
            middle = np.where(open_, (low + high) // 2, 0)
            seen = within[middle]
            behind = ~(seen > wanted) if params[0] else ~(seen >= wanted)
            low = np.where(open_ & behind, middle + 1, low)
            high = np.where(open_ & ~behind, middle, high)
        return low

    def find(within: Any, wanted: Any) -> Any:
        if len(order.shape) == 1:
            return np.asarray(of_one(within, wanted), np.int64)
        rows = within.reshape(-1, within.shape[-1])
        looked = wanted.reshape(len(rows), -1)
        found = [of_one(a, b) for a, b in zip(rows, looked, strict=True)]
        return np.array(found, np.int64).reshape(wanted.shape)

    return find


def _torch_searchsorted(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    is_right = params[0]
    return lambda within, wanted: torch.searchsorted(
        within.contiguous(), wanted.contiguous(), right=is_right
    )


SEARCHSORTED = Op("searchsorted", _found_rule, numpy=_numpy_searchsorted, torch=_torch_searchsorted)


def searchsorted(
    sorted_sequence: Node,
    input: Operand,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    """Where elements would be inserted to keep the order, before or after equal ones; int64.

    Args:
        sorted_sequence: in ascending order along its last axis: (k,), or (..., k).
        input: what is looked for: of any shape, or (..., n), each row in its own order.
        right: after equal ones.
        side: "right" for the same, or "left".
        sorter: the result of :func:`argsort`, if the sequence is not in order.

    Raises:
        ValueError: the shapes do not fit, or ``side`` is unknown or contradicts ``right``.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ValueError(f'searchsorted: side={side!r} must be "left" or "right", as right={right}')
    if sorter is not None:
        sorted_sequence = gather(sorted_sequence, -1, sorter)
    both = together(sorted_sequence, input)
    return apply(SEARCHSORTED, both, (bool(right) or side == "right",))


def bucketize(input: Operand, boundaries: Node, *, right: bool = False) -> Node:
    """The index of the bucket of each element, int64: 0 below the first boundary.

    As :func:`searchsorted` with the two exchanged.

    Raises:
        ValueError: the boundaries do not have one axis.
    """
    if len(boundaries.spec.shape) != 1:
        raise ValueError(f"bucketize: boundaries have one axis, not {boundaries.spec.shape}")
    return searchsorted(boundaries, input, right=right)
