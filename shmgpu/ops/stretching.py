"""Broadcasting: an axis repeated, and its opposite, the sum over one.

Owns the two rows. Each is the other's gradient, so they stand together. Never copies to
broadcast: that is a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops import rules
from shmgpu.ops.casting import cast
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.kernels import given, torch_reduction
from shmgpu.ops.promotion import CATEGORY, FLOAT, int64, is_float
from shmgpu.ops.shaping import reshape

Shape = tuple[int, ...]
Specs = tuple[Spec, ...]
Dim = int | Sequence[int] | None


def _to_shape(specs: Specs, params: Params) -> Spec:
    return spec_of(specs[0].dtype, params[0])


def _numpy_expand(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape = out.shape
    return lambda x: np.broadcast_to(x, shape)


EXPAND = Op(
    "expand",
    _to_shape,
    numpy=_numpy_expand,
    torch=given(lambda params: lambda x: x.expand(params[0])),
    gradients=(lambda g, n: sum_to(g, n.inputs[0].spec.shape),),
    is_view=True,
)


def expand(x: Node, shape: Shape) -> Node:
    """-1 keeps an axis as it is."""
    have = x.spec.shape
    extra = len(shape) - len(have)
    if extra >= 0:
        shape = (
            *shape[:extra],
            *[h if n == -1 else n for n, h in zip(shape[extra:], have, strict=True)],
        )
    if shape == have:
        return x
    fits = extra >= 0 and all(h in (1, n) for n, h in zip(shape[extra:], have, strict=True))
    if not fits or any(n < 0 for n in shape):
        raise ValueError(
            f"expand: {have} cannot be broadcast to {shape}: only axes of length 1 can"
        )
    return apply(EXPAND, (x,), (shape,))


def sum_to(x: Node, shape: Shape) -> Node:
    """The sum over what was broadcast from ``shape`` to x's shape."""
    have = x.spec.shape
    if have == shape:
        return x
    extra = len(have) - len(shape)
    axes = (
        *range(extra),
        *[axis for axis, n in enumerate(shape, extra) if n == 1 and have[axis] != 1],
    )
    return reshape(sum(x, axes) if axes else x, shape)


def _summed(dtype: DType) -> DType:
    return dtype if CATEGORY[dtype] == FLOAT else int64


def _numpy_sum(np: Any, specs: Any, params: Params, out: Spec) -> Any:
    axes, keepdim = params
    dtype = out.dtype.numpy
    return lambda x, out=None: np.sum(x, axis=axes, keepdims=keepdim, dtype=dtype, out=out)


def stretched_back(g: Node, node: Node) -> Node:
    """A reduction's gradient (or output) broadcast to its input's shape."""
    return stretched(g, node.params[0], node.inputs[0])


def stretched(x: Node, axes: tuple[int, ...], like: Node) -> Node:
    """What a reduction over these axes gave, broadcast to the shape it came from."""
    return expand(reshape(x, rules.reduced(like.spec.shape, axes, True)), like.spec.shape)


SUM = Op(
    "sum",
    rules.reduction(_summed),
    numpy=_numpy_sum,
    torch=torch_reduction("sum"),
    gradients=(stretched_back,),
    takes_out=True,
)


def sum(x: Node, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The sum over an axis, several, or all of them; int64 for bools and integers.

    In the type ``dtype``, where one is given.
    """
    kind = None if dtype is None else dtypes.of_any(dtype)
    if kind is not None and is_float(kind):
        x = cast(x, kind)
    summed = apply(SUM, (x,), (rules.axes_of(dim, len(x.spec.shape), "sum"), keepdim))
    return summed if kind is None else cast(summed, kind)
