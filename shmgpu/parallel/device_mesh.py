"""Meshes of helpers as users name them: made over the helpers that tensors live on, and sliced.

Owns :func:`init_device_mesh`, and what a slice of a mesh means: the same helpers, with only some of
the axes. Along the other axes nothing changes. Never records an operation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.child import runtime
from shmgpu.distributed.layout import Layout, layout_of
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import Placement, Replicate
from shmgpu.errors import ConfigError
from shmgpu.parallel.placer import begin
from shmgpu.tensors import current, devices, placement

HELPER = "helper"


class DeviceMesh:
    """Helpers in one, two or three axes; or some of these axes: see :meth:`__getitem__`.

    Attributes:
        device_type: ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, device_type: str, whole: Mesh, axes: Sequence[int] | None = None) -> None:
        self.device_type = device_type
        self._whole = whole
        every = tuple(range(whole.ndim))
        self._axes = every if axes is None else tuple(axes)
        self._is_whole = self._axes == every
        self._layouts: dict[tuple[Any, int], Layout] = {}  # of placements and a number of axes

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of its axes; None where they have none."""
        names = self._whole.names
        return tuple([names[axis] for axis in self._axes]) if names else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return tuple([self._whole.shape[axis] for axis in self._axes])

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self._axes)

    @property
    def mesh(self) -> np.ndarray[Any, Any]:
        """The numbers of the helpers, in the shape of the whole mesh."""
        return np.array(self._whole.helpers).reshape(self._whole.shape)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """How many members there are along all of its axes, or along one."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[self._place(mesh_dim)]

    def __getitem__(self, mesh_dim_names: str | Sequence[str]) -> DeviceMesh:
        """The same helpers, with these of the axes alone.

        What is placed on such a slice stays as it is along the other axes.

        Raises:
            KeyError: the mesh has no axis of that name.
        """
        asked = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        axes = [self._axes[self._place(name)] for name in asked]
        return DeviceMesh(self.device_type, self._whole, axes)

    def _place(self, name: str | int) -> int:
        axis = self._whole.axis(name) if isinstance(name, str) else self._axes[name]
        if axis not in self._axes:
            raise KeyError(f"this part of the mesh has no axis {name!r}: {self}")
        return self._axes.index(axis)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._whole is other._whole and self._axes == other._axes

    def __hash__(self) -> int:
        return hash((id(self._whole), self._axes))

    def __repr__(self) -> str:
        names = self.mesh_dim_names
        named = f", mesh_dim_names={names}" if names else ""
        return f"DeviceMesh({self.device_type!r}, {self.shape}{named})"

    # ---- for the package -------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether it has all axes, in order."""
        return self._is_whole

    @property
    def whole(self) -> Mesh:
        """The mesh that it is, or is a part of."""
        return self._whole

    @property
    def axes(self) -> tuple[int, ...]:
        """Its axes, as the whole mesh counts them."""
        return self._axes

    def layout(
        self,
        placements: Sequence[Placement] | Placement | None,
        ndim: int,
        before: Layout | None = None,
    ) -> Layout:
        """How a tensor lies that is placed like that.

        Args:
            placements: one for each axis; replicated unless given.
            ndim: how many axes the tensor has.
            before: how it lies along axes that are not spoken of; replicated unless given.

        Raises:
            ValueError: placements are not as many as axes, or name an axis that the tensor lacks.
        """
        if placements is None:
            placements = (Replicate(),) * self.ndim
        elif isinstance(placements, Placement):
            placements = (placements,)
        if len(placements) != self.ndim:
            raise ValueError(
                f"{self} has {self.ndim} axes, and {len(placements)} placements are given: name "
                "one for each"
            )
        for one in placements:
            if not isinstance(one, Placement):
                raise TypeError(
                    f"{one!r} is no placement: use Shard(dim), Replicate() or Partial()"
                )
        key = (tuple(placements), ndim)
        if before is None and (known := self._layouts.get(key)) is not None:
            return known
        if before is not None and before.mesh is not self._whole:
            raise ValueError(f"the tensor lies on another mesh than {self}: {before.mesh}")
        along: list[Placement] = [Replicate()] * self._whole.ndim
        if before is not None:
            along = list(before.placements)
        for axis, one in zip(self._axes, placements, strict=True):
            along[axis] = one
        found = layout_of(self._whole, along, ndim)
        if before is None:
            self._layouts[key] = found  # a dozen, and bounded by what placements there are
        elif before.placements == found.placements:
            return before
        return found

    def placements_of(self, layout: Layout) -> tuple[Placement, ...]:
        """What a layout says of its axes."""
        return tuple([layout.placements[axis] for axis in self._axes])


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """A mesh of the first helpers that this program's tensors live on.

    A program that is in no broker joins yours, or starts one with as many helpers.

    Args:
        device_type: what the helpers compute on, ``"cpu"`` or ``"cuda"``; ``"helper"``: whatever
            they have.
        mesh_shape: one to three lengths.
        mesh_dim_names: a name for each.

    Raises:
        ConfigError: there are fewer helpers, or they have other devices.
        ValueError: the lengths or names are not those of a mesh.
        TypeError: they are no numbers.
    """
    try:
        lengths = tuple([operator.index(n) for n in mesh_shape])
    except TypeError:
        raise TypeError(
            f"init_device_mesh: mesh_shape is a tuple of lengths, as in (2,), not {mesh_shape!r}"
        ) from None
    count = math.prod(lengths)
    if runtime.current is None or "recorder" not in runtime.current.extra:
        if runtime.current is None or not runtime.current.inline:
            placement.gpu_workers(count)
    recorder = current.recorder()
    if runtime.require().inline:
        raise ConfigError("a mesh is of helpers, which are processes: start without inline=True")
    if len(recorder.helpers) < count:
        raise ConfigError(
            f"a mesh of {lengths} needs {count} helpers, and this program's tensors live on "
            f"{len(recorder.helpers)}: start with helpers={count}"
        )
    numbers = sorted(recorder.helpers)[:count]
    have = {number: devices.of_helper(number).type for number in numbers}
    if device_type not in (HELPER, *have.values()) or len({device_type, *have.values()}) > 2:
        raise ConfigError(
            f"init_device_mesh({device_type!r}): the helpers have "
            f"{', '.join(sorted(set(have.values())))}: name that, or {HELPER!r}"
        )
    mesh = Mesh(numbers, lengths, tuple(mesh_dim_names or ()))
    begin(recorder)
    return DeviceMesh(have[numbers[0]], mesh)


def checked_mesh(given: Any, whose: str) -> DeviceMesh:
    """What a function was given for a mesh; TypeError, which names it, where that is none."""
    if not isinstance(given, DeviceMesh):
        raise TypeError(
            f"{whose}: a mesh is wanted, as init_device_mesh() makes one, and this is a "
            f"{type(given).__name__}"
        )
    return given


def mesh_of_helpers(places: Sequence[int]) -> DeviceMesh:
    """A mesh of one axis, of these helpers in this order.

    Args:
        places: of each among the helpers that this program's tensors live on, from 0.

    Raises:
        ConfigError: there are fewer helpers.
        ValueError: one stands twice.
    """
    first = init_device_mesh(HELPER, (max(places) + 1,))
    helpers = [int(first.mesh[place]) for place in places]
    return DeviceMesh(first.device_type, Mesh(helpers, (len(helpers),)))
