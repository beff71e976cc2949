"""Layouts that a user's program asks for: redistribute, to_local and from_local, as operations.

Owns these rows and their gradients. A program of one helper takes each of them as the value itself;
:mod:`shmgpu.distributed` replaces them in programs of a mesh. Never knows what a layout is: layouts
are params here.
"""

from __future__ import annotations

from typing import Any

from shmgpu.codec.dtypes import DType
from shmgpu.ops.casting import cast, cast_parts
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of

Specs = tuple[Spec, ...]
Shape = tuple[int, ...]


def _passed(g: Node, n: Node) -> Node:
    if len(n.params) < 4:
        return g
    lower, layout, dtype = n.params[3]
    return cast(redistribute(cast_parts(g, lower), layout), dtype)


# Params: the layout; then, where they are said, the unit, axes of the mesh, and the way back.
REDISTRIBUTE = Op(
    "redistribute",
    lambda specs, params: specs[0],
    numpy=lambda *_: lambda x: x,
    torch=lambda *_: lambda x: x,
    gradients=(_passed,),
    is_view=True,
)


def redistribute(
    x: Node,
    layout: Any,
    unit: int | None = None,
    axes: tuple[int, ...] | None = None,
    back: tuple[DType, Any, DType] | None = None,
) -> Node:
    """The same value, lying as ``layout`` says; gradients pass as they lie.

    ``axes``: of the mesh, where the layout speaks of these alone: along others it lies as it comes.

    ``unit``: of what is had only while it is used: those of one unit are moved together, and moved
    again where they are used after others were (a layer's weights, gathered for each pass).

    ``back``: of gradients: the type in which members' parts are added, how the sum lies, and its
    type in the end.
    """
    if back is not None:
        return apply(REDISTRIBUTE, (x,), (layout, unit, axes, back))
    if axes is not None:
        return apply(REDISTRIBUTE, (x,), (layout, None, axes))
    return apply(REDISTRIBUTE, (x,), (layout,) if unit is None else (layout, unit))


def unit_of(params: Params) -> int | None:
    """Of what a redistribution is a part, from its params; None where it is of none."""
    return params[1] if len(params) > 1 else None


def axes_of(params: Params) -> tuple[int, ...] | None:
    """The axes of the mesh that a redistribution speaks of; None for all of them."""
    return params[2] if len(params) > 2 else None


def _local_spec(specs: Specs, params: Params) -> Spec:
    local = params[0].local_specs(specs[0])
    if isinstance(local, tuple):
        raise ValueError(
            f"to_local: members have pieces of several shapes of {specs[0].shape} as {params[0]}: "
            "cut it evenly, or make it whole first"
        )
    found: Spec = local
    return found


def _whole_spec(specs: Specs, params: Params) -> Spec:
    layout, shape, _ = params
    whole = spec_of(specs[0].dtype, shape)
    if layout.local_specs(whole) is not specs[0]:
        raise ValueError(f"from_local: pieces of {specs[0].shape} do not make {shape} as {layout}")
    return whole


# TO_LOCAL takes a tensor apart into each member's piece, FROM_LOCAL makes a tensor of the pieces.
# Params of both: the layout, then for FROM_LOCAL the whole shape, then the layout of the gradient.
TO_LOCAL = Op(
    "to_local",
    _local_spec,
    numpy=lambda *_: lambda x: x,
    torch=lambda *_: lambda x: x,
    gradients=(
        lambda g, n: apply(FROM_LOCAL, (g,), (n.params[1], n.inputs[0].spec.shape, n.params[0])),
    ),
    is_view=True,
)
FROM_LOCAL: Op = Op(
    "from_local",
    _whole_spec,
    numpy=lambda *_: lambda x: x,
    torch=lambda *_: lambda x: x,
    gradients=(lambda g, n: apply(TO_LOCAL, (g,), (n.params[2], n.params[0])),),
    is_view=True,
)


def to_local(x: Node, layout: Any, gradient: Any = None) -> Node:
    """Each member's own piece of what lies like that: not a tensor of the mesh any more.

    ``gradient``: how the pieces' gradients make that of ``x``; as ``x`` lies by default.

    Raises:
        ValueError: pieces are of several shapes.
    """
    return apply(TO_LOCAL, (x,), (layout, layout if gradient is None else gradient))


def from_local(x: Node, layout: Any, shape: Shape, gradient: Any = None) -> Node:
    """The tensor of that shape of which each member has a piece, lying as ``layout`` says.

    ``gradient``: how its gradient lies where members take theirs of it; as it does by default.

    Raises:
        ValueError: the pieces do not make that shape.
    """
    return apply(FROM_LOCAL, (x,), (layout, shape, layout if gradient is None else gradient))


RECORDED = (REDISTRIBUTE, TO_LOCAL, FROM_LOCAL)
