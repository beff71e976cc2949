"""Casts, and what else changes only a value's type or its history.

Owns their rows and the functions that record them. Never changes a shape.
"""

from __future__ import annotations

from typing import Any

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of

NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


def _rule(specs: tuple[Spec, ...], params: Params) -> Spec:
    return spec_of(params[0], specs[0].shape)


def _numpy(np: Any, specs: Any, params: Params, out: Spec) -> Any:
    dtype = out.dtype.numpy
    return lambda x: x.astype(dtype)


def _torch(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    dtype = out.dtype.torch
    return lambda x: x.to(dtype, copy=True)


def _gradient(g: Node, node: Node) -> Node:
    return cast(g, node.inputs[0].spec.dtype)


CAST = Op("to", _rule, numpy=_numpy, torch=_torch, gradients=(_gradient,))


def cast(x: Node, dtype: DType) -> Node:
    """The same elements in another type, as PyTorch's ``Tensor.to``."""
    if x.spec.dtype is dtype:
        return x
    made = apply(CAST, (x,), (dtype,))
    if made.needs_grad and not dtype.name.startswith(("float", "bfloat")):
        made.needs_grad = False  # no gradient flows through whole numbers
    return made


# As it is done to each part of a sum, before the parts are added: the sum is then of rounded ones.
CAST_PARTS = Op("cast_parts", _rule, numpy=_numpy, torch=_torch, gradients=(_gradient,))


def cast_parts(x: Node, dtype: DType) -> Node:
    """As :func:`cast`; where members share a sum, each casts its part before they are added."""
    return x if x.spec.dtype is dtype else apply(CAST_PARTS, (x,), (dtype,))


def refuse_strange(dtype: DType) -> None:
    """TypeError for an element type that tensors do not have."""
    if dtype.name not in NAMES:
        raise TypeError(f"tensors can be {', '.join(NAMES)}, not {dtype.name}: convert")


def to(x: Node, dtype: Any) -> Node:
    """The same elements in another type, named as in any of the libraries."""
    found = dtypes.of_any(dtype)
    refuse_strange(found)
    return cast(x, found)


ALIAS = Op(
    "alias",
    lambda specs, params: specs[0],
    numpy=lambda *_: lambda x: x,
    torch=lambda *_: lambda x: x,
    is_view=True,
)


def alias(x: Node) -> Node:
    """The same value without its history: no gradient flows back through it."""
    if x.op is None:
        return Node(None, (), (), x.spec, x.value)
    return apply(ALIAS, (x,))
