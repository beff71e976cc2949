"""Tensors on a mesh: users make them, ask how they lie, and change how they lie.

Owns these functions, and the methods that all tensors get when this file is loaded. A wish is
recorded; where nobody has a wish, the layout is known once the tensor is computed. Never sends
anything but what waits, and only if a layout must be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.distributed.layout import Layout, replicated
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import LOCAL, Partial, Placement, Replicate, Shard
from shmgpu.ops import redistribution
from shmgpu.ops.graph import Node
from shmgpu.parallel.crossing import hints_of, homes_of
from shmgpu.parallel.device_mesh import DeviceMesh, checked_mesh
from shmgpu.parallel.placer import meshes_of
from shmgpu.tensors import current
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.message import LostValue, Spread, said
from shmgpu.tensors.operands import leaf_of
from shmgpu.tensors.tensor import Tensor
from shmgpu.tensors.walks import needed

Placements = Sequence[Placement] | Placement | None


def distribute_tensor(
    tensor: Any, device_mesh: DeviceMesh, placements: Placements = None
) -> Tensor:
    """A tensor of these elements that lies on a mesh.

    No gradients flow back to the one it is made of. If that collects gradients, so does this.

    Args:
        tensor: a tensor, or what :func:`shmgpu.tensor` takes.
        device_mesh: the mesh.
        placements: how it lies along each axis of the mesh; replicated unless given. Pieces may
            differ in length by one.

    Raises:
        ValueError: placements are not as many as axes, are partial, or name an axis that the
            tensor lacks.
    """
    checked_mesh(device_mesh, "distribute_tensor")
    node = tensor._node if isinstance(tensor, Tensor) else leaf_of(tensor, None)
    before = None if device_mesh.is_whole else _before(Tensor(node), device_mesh)
    layout = device_mesh.layout(placements, len(node.spec.shape), before)
    if min(layout.codes) < 0 and any(
        isinstance(one, Partial) for one in device_mesh.placements_of(layout)
    ):
        raise ValueError(
            "distribute_tensor: a whole tensor is cut or copied, not partial: use Shard(dim) or "
            "Replicate()"
        )
    if not node.needs_grad:
        return Tensor(redistribution.redistribute(node, layout))
    with no_grad():
        made = Tensor(redistribution.redistribute(node, layout))
    return made.requires_grad_()


def layout_of(of: Tensor) -> Layout | None:
    """How a tensor lies; None where it is on no mesh. What waits may have to be sent."""
    node = of._node
    layout: Layout | None = said(node)
    if layout is not None or (node.value is not None and type(node.value) is not LostValue):
        return layout
    if node.value is None:
        if not meshes_of(needed([node])):
            return None
        current.recorder().send()
    value: Any = node.value
    if type(value) is LostValue:
        raise value.error
    layout = said(node)
    return layout


def mesh_of(of: Tensor) -> Mesh | None:
    """The mesh that a tensor is on, or will be; None for none. Nothing is sent."""
    node = of._node
    if type(node.value) is Spread:
        mesh: Mesh = node.value.layout.mesh
        return mesh
    order = needed([node]) if node.value is None else []
    found = meshes_of(order)
    return homes_of(order, hints_of(order))[node] if len(found) > 1 else found[0] if found else None


def _before(one: Tensor, device_mesh: DeviceMesh) -> Layout | None:
    """How it lies now, where that matters: along the axes that a part of a mesh does not name."""
    is_other = device_mesh.is_whole or mesh_of(one) is not device_mesh.whole
    return None if is_other else layout_of(one)


def _lies(of: Tensor, what: str) -> Layout:
    layout = layout_of(of)
    if layout is None:
        raise AttributeError(
            f"{what}: the tensor is on no mesh: distribute_tensor() puts it on one"
        )
    return layout


def redistributed(one: Tensor, layout: Layout, unit: int | None = None) -> Tensor:
    """The same elements, lying so."""
    return Tensor(redistribution.redistribute(one._node, layout, unit))


def from_local(
    local: Tensor,
    device_mesh: DeviceMesh,
    placements: Placements = None,
    *,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """The tensor of which each member has a piece.

    Args:
        local: what :meth:`Tensor.to_local` gave, or what was made of that.
        device_mesh: the mesh.
        placements: how the pieces make a tensor: with ``Shard(dim)`` end to end, with
            ``Replicate()`` they are all the same, with ``Partial()`` they are added up.
        shape: of the whole tensor, where pieces are not all of one length.

    Raises:
        ValueError: the pieces do not make such a tensor.
    """
    checked_mesh(device_mesh, "from_local")
    if not _is_local(local._node):
        raise ValueError(
            "from_local: the tensor is not in pieces of each member's own: take what to_local() "
            "gives, or what is made of that; distribute_tensor() cuts a whole one"
        )
    return from_pieces(local, device_mesh, placements, shape)


def from_pieces(
    local: Tensor,
    device_mesh: DeviceMesh,
    placements: Placements,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """As :func:`from_local`, of what is known to be in pieces."""
    layout = device_mesh.layout(placements, local.ndim)
    whole = list(local.shape)
    if shape is None:
        for axis, one in enumerate(layout.placements):
            if isinstance(one, Shard):
                whole[one.dim] *= layout.mesh.shape[axis]
    else:
        whole = list(shape)
    node = local._node
    if node.needs_grad and any(one.is_partial() for one in layout.placements):
        if not all(one.is_partial("sum") for one in layout.placements if one.is_partial()):
            raise ValueError(f"from_local: gradients flow through sums of parts, not {layout}")
    return Tensor(redistribution.from_local(node, layout, tuple(whole), _of_gradient(layout)))


def _of_gradient(layout: Layout) -> Layout:
    """How the gradient lies of what lies so: each part of a sum has all of the sum's gradient."""
    placed = [Replicate() if one.is_partial() else one for one in layout.placements]
    return Layout(layout.mesh, placed, layout.cuts)


def _is_local(node: Node) -> bool:
    """Whether each member has its own: it is a piece, or made of one."""
    met, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        layout = said(one)
        if layout is not None:
            if LOCAL in layout.codes:
                return True
        elif one.value is None and one.op is not redistribution.FROM_LOCAL:
            if one.op is redistribution.TO_LOCAL:
                return True
            waiting += [each for each in one.inputs if each not in met]
            met.update(one.inputs)
    return False


def put(one: Tensor, device_mesh: DeviceMesh, placements: Placements) -> None:
    """Have a tensor lie so on a mesh, in place: a parameter stays the tensor that it is."""
    collects = one._node.leaf is not None
    layout = device_mesh.layout(placements, one.ndim, _before(one, device_mesh))
    if one._shared is not None:  # views keep the elements as they were
        one._shared.leave(one)
    with no_grad():
        one._become(redistribution.redistribute(one._node, layout))
    if collects:
        one._collect()


# ---- methods -----------------------------------------------------------------------------------


class _Methods(Tensor):
    """What every tensor has from here on."""

    __slots__ = ()

    @property
    def placements(self: Tensor) -> tuple[Placement, ...]:
        """How it lies along each axis of its mesh: AttributeError where it is on none."""
        return _lies(self, "placements").placements

    @property
    def device_mesh(self: Tensor) -> DeviceMesh:
        """The mesh that it is on: AttributeError where it is on none."""
        mesh = mesh_of(self)
        if mesh is None:
            raise AttributeError(
                "device_mesh: the tensor is on no mesh: distribute_tensor() puts it on one"
            )
        return DeviceMesh(self.device.type, mesh)

    def redistribute(
        self: Tensor, device_mesh: DeviceMesh | None = None, placements: Placements = None
    ) -> Tensor:
        """The same elements, lying otherwise on the mesh. Gradients flow through it.

        Args:
            device_mesh: the mesh; the tensor's unless given.
            placements: how they shall lie along each of its axes; replicated unless given.

        Raises:
            ValueError: placements are not as many as axes, or name an axis that the tensor lacks.
            AttributeError: the tensor is on no mesh, and none is given.
        """
        if device_mesh is None:
            device_mesh = self.device_mesh
        layout = checked_mesh(device_mesh, "redistribute").layout(
            placements, self.ndim, _before(self, device_mesh)
        )
        return redistributed(self, layout)

    def full_tensor(self: Tensor) -> Tensor:
        """All elements, with each member of the mesh; the tensor itself where it is on none.

        Gradients flow through it.
        """
        mesh = mesh_of(self)
        return self if mesh is None else redistributed(self, replicated(mesh))

    def to_local(self: Tensor, *, grad_placements: Placements = None) -> Tensor:
        """Each member's own piece, as a tensor of that shape: what follows is its own, too.

        Such a tensor cannot be looked at: make a whole one of the pieces, with :func:`from_local`.

        Args:
            grad_placements: how the pieces' gradients make that of the tensor; as it lies unless
                given, and whole where it is partial.

        Raises:
            ValueError: members have pieces of several shapes.
            AttributeError: the tensor is on no mesh.
        """
        layout = _lies(self, "to_local")
        gradient = _of_gradient(layout)
        if grad_placements is not None:
            gradient = self.device_mesh.layout(grad_placements, self.ndim)
        return Tensor(redistribution.to_local(self._node, layout, gradient))


class _IsOnMesh(type):
    """``isinstance(x, DTensor)`` asks where the tensor lies, not how it was made."""

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, Tensor) and mesh_of(one) is not None


class DTensor(Tensor, metaclass=_IsOnMesh):
    """A tensor that is on a mesh: what ``isinstance`` asks. All are of one class, ``Tensor``."""

    __slots__ = ()

    from_local = staticmethod(from_local)


def _add_methods() -> None:
    for name in ("device_mesh", "full_tensor", "placements", "redistribute", "to_local"):
        setattr(Tensor, name, _Methods.__dict__[name])


_add_methods()
