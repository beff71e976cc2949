"""Operations that make fewer elements out of many."""

from __future__ import annotations

import math

from shmgpu.graph import Node, Op, apply
from shmgpu.ops import rules
from shmgpu.ops.casting import cast
from shmgpu.ops.elementwise import add, div, eq, exp, log, mul, sub
from shmgpu.ops.kernels import numpy_reduction, torch_reduction
from shmgpu.ops.promotion import floats, is_float
from shmgpu.ops.shaping import reshape
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


def count(x: Node, axes: tuple[int, ...]) -> int:
    """How many elements a reduction over these axes makes one of."""
    return math.prod(x.spec.shape[axis] for axis in axes)


def mean(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    if not is_float(x.spec.dtype):
        raise TypeError(
            f"mean: the tensor is {x.spec.dtype.name}, and a mean needs floats: x.to('float32')"
        )
    axes = rules.axes_of(dim, len(x.spec.shape), "mean")
    total = count(x, axes)
    return mul(sum(x, axes, keepdim), 1.0 / total if total else math.nan)


def var(x: Node, dim: Dim = None, keepdim: bool = False, correction: int = 1) -> Node:
    axes = rules.axes_of(dim, len(x.spec.shape), "var")
    centred = sub(x, mean(x, axes, True))
    left = count(x, axes) - correction
    return mul(sum(mul(centred, centred), axes, keepdim), 1.0 / left if left > 0 else math.nan)


def _refuse_empty(x: Node, axes: tuple[int, ...], name: str) -> None:
    if count(x, axes) == 0:
        raise ValueError(f"{name}: of no elements there is none (the shape is {x.spec.shape})")


def amax(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    axes = rules.axes_of(dim, len(x.spec.shape), "amax")
    _refuse_empty(x, axes, "amax")
    return apply(AMAX, (x,), (axes, keepdim))


def amin(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    axes = rules.axes_of(dim, len(x.spec.shape), "amin")
    _refuse_empty(x, axes, "amin")
    return apply(AMIN, (x,), (axes, keepdim))


def logsumexp(x: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    (x,) = floats(x)
    axes = rules.axes_of(dim, len(x.spec.shape), "logsumexp")
    most = amax(x, axes, True)
    out = log(sum(exp(sub(x, most)), axes, True))
    total = add(out, most)
    return total if keepdim else reshape(total, rules.reduced(x.spec.shape, axes, False))
