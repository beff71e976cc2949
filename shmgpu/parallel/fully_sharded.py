"""Models whose parameters lie in pieces, and are whole only while a layer uses them.

Owns which parameters are gathered together: those of one call of :func:`fully_shard`. Gradients and
an optimiser's state lie as the parameters do, so each member has only its part of them. Never
gathers anything itself: it records which unit a value belongs to, and lowering does the rest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from shmgpu.distributed.layout import Layout
from shmgpu.distributed.placements import Placement, Replicate, Shard
from shmgpu.nn.module import Module
from shmgpu.parallel.device_mesh import DeviceMesh, checked_mesh
from shmgpu.parallel.mixed_precision import MixedPrecisionPolicy
from shmgpu.parallel.tensors import put
from shmgpu.tensors.message import said
from shmgpu.tensors.tensor import Tensor

_UNITS = itertools.count(1)
_MARK = "_fully_sharded"


def fully_shard(
    module: Module,
    *,
    mesh: DeviceMesh,
    reshard_after_forward: bool = True,
    shard_placement_fn: Callable[[Tensor], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    ignored_params: Iterable[Tensor] | None = None,
) -> Module:
    """Cut a module's parameters over a mesh, in place; they are gathered while it is at work.

    Call it for the layers first, and for the model at last: each call takes the parameters that no
    earlier one took, and gathers these at once. Parameters stay the tensors that they are, so an
    optimiser may have them already. The batch is to be cut over the mesh as well.

    Args:
        module: a layer or a model.
        mesh: of one axis, or such a part of one; parameters that lie on another axis of it stay so.
        reshard_after_forward: gather once more for the backward pass, instead of keeping what was
            gathered.
        shard_placement_fn: along which axis a parameter is cut: a :class:`Shard`, or None for its
            first axis that is not cut yet.
        mp_policy: in which types the module computes, and gradients are added.
        ignored_params: parameters that are left as they lie. On no mesh yet, they are the same on
            all helpers of this one, and so are their gradients, which are added.

    Returns:
        The module.

    Raises:
        ValueError: the mesh has several axes, the module was cut before, or it cannot be cut along
            the axis that ``shard_placement_fn`` names.
        TypeError: ``shard_placement_fn`` gives something else, or that is no mesh.
    """
    if checked_mesh(mesh, "fully_shard").ndim != 1:
        raise ValueError(
            f'fully_shard: {mesh} has {mesh.ndim} axes: choose one of them, as in mesh["data"]'
        )
    if _MARK in module.__dict__:
        raise ValueError("fully_shard: the module was cut before: call it once for each")
    ignored = set(ignored_params or ())
    homes: list[tuple[Module, str]] = []
    wanted: dict[Tensor, Placement] = {}
    left: list[Tensor] = []
    for owner in _own(module):
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            if parameter in ignored:
                left.append(parameter)
                continue
            homes.append((owner, name))
            if parameter not in wanted:
                asked = shard_placement_fn(parameter) if shard_placement_fn is not None else None
                wanted[parameter] = _placement(parameter, mesh, asked)
    for parameter in left:  # only now: where one cannot be cut, none is
        if said(parameter._node) is None:
            put(parameter, mesh, [Replicate()])
    lies = {parameter: _cut(parameter, mesh, how) for parameter, how in wanted.items()}
    policy = mp_policy or MixedPrecisionPolicy()
    unit = next(_UNITS) if reshard_after_forward else None
    forward = module.forward

    @functools.wraps(forward)
    def gathered(*args: Any, **kwargs: Any) -> Any:
        own = [owner._parameters[name] for owner, name in homes]
        made = policy.gathered(lies, unit)
        args, kwargs = policy.inputs(args, kwargs)
        try:
            for (owner, name), one in zip(homes, own, strict=True):
                owner._parameters[name] = made[one]
            return policy.outputs(forward(*args, **kwargs))
        finally:
            for (owner, name), one in zip(homes, own, strict=True):
                owner._parameters[name] = one

    object.__setattr__(module, _MARK, True)
    object.__setattr__(module, "forward", gathered)
    return module


def _own(module: Module) -> list[Module]:
    """It, and the modules within, but not those that were cut by a call of their own."""
    found = [module]
    for child in module.children():
        if _MARK not in child.__dict__:
            found += _own(child)
    return found


def _on_mesh(parameter: Tensor, mesh: DeviceMesh) -> Layout | None:
    """How it lies on the whole mesh by now, if it does."""
    before = said(parameter._node)
    return before if before is not None and before.mesh is mesh.whole else None


def _placement(parameter: Tensor, mesh: DeviceMesh, asked: Shard | None) -> Placement:
    """Where it is to be cut: as was asked for, or along its first axis that is not cut yet."""
    before = _on_mesh(parameter, mesh)
    taken = before.sharded if before is not None else ()
    dims = [dim for dim in range(parameter.ndim) if dim not in taken]
    if asked is None:
        return Shard(dims[0]) if dims else Replicate()
    told = f"fully_shard: shard_placement_fn gave {asked!r} for a parameter of shape "
    told += f"{tuple(parameter.shape)}"
    if not isinstance(asked, Shard):
        raise TypeError(f"{told}: return Shard(axis), or None for its first axis")
    dim = asked.dim + parameter.ndim if asked.dim < 0 else asked.dim
    if dim not in dims:
        why = "is cut already" if dim in taken else "does not exist"
        choice = f"choose one of {dims}" if dims else "return None"
        raise ValueError(f"{told}, whose axis {asked.dim} {why}: {choice}")
    return Shard(dim)


def _cut(parameter: Tensor, mesh: DeviceMesh, placement: Placement) -> tuple[Layout, Layout]:
    """Cut it; how it lies while it is whole, and how it lies now."""
    whole = mesh.layout([Replicate()], parameter.ndim, _on_mesh(parameter, mesh))
    put(parameter, mesh, [placement])
    return whole, said(parameter._node)
