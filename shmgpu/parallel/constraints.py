"""Functions that were written for one device, on a mesh: callers say how tensors lie.

Owns what is said from outside: how inputs and outputs lie (:func:`parallelize`), how a value inside
of the function lies (:func:`constrain`), or that the function gets pieces instead of tensors
(:func:`local_map`). Never chooses how the values between lie: that is done when they are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.distributed.placements import Placement
from shmgpu.ops import redistribution
from shmgpu.parallel.device_mesh import DeviceMesh, checked_mesh
from shmgpu.parallel.tensors import Placements, from_pieces, redistributed
from shmgpu.tensors.message import said
from shmgpu.tensors.tensor import Tensor


def constrain(x: Tensor, device_mesh: DeviceMesh, placements: Placements) -> Tensor:
    """The same elements, lying so on the mesh from here on. Gradients flow through it.

    Along axes that a part of a mesh does not name it lies as it comes.

    Args:
        x: a tensor, on the mesh or on none yet.
        device_mesh: the mesh, or a part of it.
        placements: how it shall lie along each of its axes; replicated unless given.

    Raises:
        ValueError: placements are not as many as axes, or name an axis that the tensor lacks.
        TypeError: that is no mesh.
    """
    layout = checked_mesh(device_mesh, "constrain").layout(placements, x.ndim)
    if device_mesh.is_whole:
        return redistributed(x, layout)
    return Tensor(redistribution.redistribute(x._node, layout, axes=device_mesh.axes))


def parallelize(
    fn: Callable[..., Any],
    device_mesh: DeviceMesh,
    placements: Sequence[Placements],
    out_placements: Any = None,
) -> Callable[..., Any]:
    """A function of tensors as one whose inputs lie on a mesh, and its outputs, too, if said.

    It is recorded anew in each call, so it takes inputs of any shape; programs of one structure are
    lowered once.

    Args:
        fn: written as for one device.
        device_mesh: the mesh.
        placements: for each positional argument how it shall lie; None for one that is left alone.
        out_placements: the same of what it returns, for each of a tuple; chosen unless given.

    Raises:
        ValueError: when it is called: a tensor cannot lie like that.
    """
    checked_mesh(device_mesh, "parallelize")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(placements) != len(args):
            raise ValueError(
                f"parallelize: {len(args)} arguments are given, and placements of "
                f"{len(placements)}: name one for each, None for those that are left alone"
            )
        given = [
            constrain(one, device_mesh, how) if how is not None else one
            for one, how in zip(args, placements, strict=True)
        ]
        out = fn(*given, **kwargs)
        if out_placements is None:
            return out
        return _each(
            out, out_placements, lambda one, how: constrain(one, device_mesh, how), "parallelize"
        )

    return call


def local_map(
    func: Callable[..., Any],
    out_placements: Any,
    in_placements: Sequence[Placements] | None = None,
    in_grad_placements: Sequence[Placements] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """A function of pieces as one of tensors: each member calls it, so to say, with its own.

    Args:
        func: it sees tensors in the shape of a piece, and may do anything with them.
        out_placements: how the pieces that it returns make tensors; for each of a tuple.
        in_placements: for each argument how it is cut into pieces; None for one that is passed on.
        in_grad_placements: how the gradients of pieces make gradients; as the pieces unless given.
        device_mesh: the mesh; that of the first tensor unless given.
        redistribute_inputs: move tensors that are known to lie otherwise, instead of refusing them.

    Raises:
        ValueError: when it is called: a tensor lies otherwise, or members' pieces are of several
            shapes.
    """
    if device_mesh is not None:
        checked_mesh(device_mesh, "local_map")

    @functools.wraps(func)
    def call(*args: Any) -> Any:
        mesh = device_mesh
        if mesh is None:
            mesh = next(one for one in args if isinstance(one, Tensor)).device_mesh
        ways = list(in_placements) if in_placements is not None else [None] * len(args)
        grads = list(in_grad_placements) if in_grad_placements is not None else [None] * len(args)
        if len(ways) != len(args) or len(grads) != len(args):
            raise ValueError(
                f"local_map: {len(args)} arguments are given, and placements of {len(ways)}: name "
                "one for each, None for those that are passed on"
            )
        given = [
            one if how is None else _pieces(one, mesh, how, grad, redistribute_inputs)
            for one, how, grad in zip(args, ways, grads, strict=True)
        ]
        return _each(
            func(*given), out_placements, lambda one, how: from_pieces(one, mesh, how), "local_map"
        )

    return call


def _pieces(
    one: Tensor, mesh: DeviceMesh, how: Placements, grad: Placements, may_move: bool
) -> Tensor:
    layout = mesh.layout(how, one.ndim)
    lies = said(one._node)
    if lies is not None and lies is not layout and not may_move:
        raise ValueError(
            f"local_map: the tensor lies {lies}, and in_placements say {layout}: redistribute() "
            "it, or pass redistribute_inputs=True"
        )
    pieces: Tensor = redistributed(one, layout).to_local(grad_placements=grad)
    return pieces


def _each(out: Any, ways: Any, do: Callable[[Tensor, Any], Tensor], what: str) -> Any:
    """Each tensor that a function returned, as is said of it."""
    if isinstance(out, Tensor):
        return do(out, ways)
    is_one = isinstance(ways, Placement) or all(isinstance(one, Placement) for one in ways)
    if is_one or len(ways) != len(out):
        raise ValueError(
            f"{what}: {len(out)} values are returned, and out_placements are of "
            f"{1 if is_one else len(ways)}: name a list for each"
        )
    return type(out)(
        [one if how is None else do(one, how) for one, how in zip(out, ways, strict=True)]
    )
