"""Maxima, sorting and running sums: which elements are greatest, and in what order they stand."""

from __future__ import annotations

from typing import Any, NamedTuple

from shmgpu.ops import rules
from shmgpu.ops.casting import cast
from shmgpu.ops.elementwise import maximum, minimum
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.indexing import gather
from shmgpu.ops.promotion import int64, is_float
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
    """Where the greatest is, int64; counted through all elements without ``dim``."""
    return _find(ARGMAX, x, dim, keepdim)


def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """Where the least is, int64; counted through all elements without ``dim``."""
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
    """The greatest of all or over several axes; over one, (values, indices) as in PyTorch."""
    return _most(ARGMAX, amax, maximum, x, dim, other, keepdim)


def min(
    x: Node, dim: Dim | Node = None, keepdim: bool = False, *, other: Node | None = None
) -> Node | Found:
    """The least of all or over several axes; over one, (values, indices) as in PyTorch."""
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
    """Where the elements stand that are in order; equal ones keep theirs."""
    axis = rules.axis_of(dim, len(x.spec.shape), "argsort")
    return apply(ARGSORT, (x,), (axis, bool(descending)))


def sort(x: Node, dim: int = -1, descending: bool = False) -> Found:
    """The elements in order, and where they were."""
    indices = argsort(x, dim, descending)
    return Found(gather(x, dim, indices), indices)


def topk(x: Node, k: int, dim: int = -1, largest: bool = True) -> Found:
    """The k greatest (or least) elements in order, and where they were."""
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
    gradients=(lambda g, n: flip(cumsum(flip(g, n.params), n.params[0]), n.params),),
)


def cumsum(x: Node, dim: int) -> Node:
    """The sum of each element and all before it; of bools and whole numbers int64."""
    if not is_float(x.spec.dtype):
        x = cast(x, int64)
    return apply(CUMSUM, (x,), (rules.axis_of(dim, len(x.spec.shape), "cumsum"),))
