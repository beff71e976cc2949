"""How one tensor lies on a mesh: a placement for each axis of the mesh, and where it is cut.

Owns which piece of a tensor each member has. If several axes of the mesh cut one axis of the
tensor, they do it in their order. Lengths of pieces differ by at most one, and longer pieces come
first, unless *cuts* say otherwise: a slice of a tensor that is cut has pieces of any length,
because its elements stay where they are. Never moves anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import Placement, Replicate, Shard
from shmgpu.ops.graph import Spec, spec_of

Shape = tuple[int, ...]
Bounds = tuple[int, ...]
Ranges = tuple[tuple[int, int], ...]  # from where to where, along each axis of a tensor

MAX_SHAPES = 1 << 12  # of which a layout remembers the pieces


def even_bounds(length: int, counts: Sequence[int]) -> Bounds:
    """Where an axis is cut into so many pieces, each of these into so many, and so on."""
    bounds = [0, length]
    for count in counts:
        cut = [0]
        for start, stop in pairwise(bounds):
            base, longer = divmod(stop - start, count)
            for place in range(count):
                cut.append(cut[-1] + base + (place < longer))
        bounds = cut
    return tuple(bounds)


class Layout:
    """Interned: equal layouts are one object.

    Attributes:
        mesh: on which the tensor lies.
        placements: one for each axis of the mesh.
        cuts: ((axis of the tensor, bounds), ...) of those that are not cut evenly.
        codes: the placements as numbers.
    """

    __slots__ = ("_axes", "_pieces", "_specs", "codes", "cuts", "mesh", "placements")

    mesh: Mesh
    placements: tuple[Placement, ...]
    cuts: tuple[tuple[int, Bounds], ...]
    codes: tuple[int, ...]
    _axes: dict[int, tuple[int, ...]]
    _pieces: dict[Shape, tuple[Ranges, ...]]
    _specs: dict[Spec, Spec | tuple[Spec, ...]]
    _known: ClassVar[dict[Any, Layout]] = {}

    def __new__(
        cls,
        mesh: Mesh,
        placements: Iterable[Placement],
        cuts: Iterable[tuple[int, Bounds]] = (),
    ) -> Layout:
        """The layout of these placements.

        Args:
            mesh: on which the tensor lies.
            placements: one for each axis of the mesh; axes of a tensor are counted from 0.
            cuts: where axes of the tensor are cut that are not cut evenly: for each piece where it
                begins, and the axis's length.

        Raises:
            ValueError: placements are not as many as axes, or cuts are not where the tensor is cut.
        """
        placed = tuple(placements)
        if len(placed) != mesh.ndim:
            raise ValueError(
                f"{mesh} has {mesh.ndim} axes, and {len(placed)} placements are given: {placed}"
            )
        axes: dict[int, tuple[int, ...]] = {}
        for axis, one in enumerate(placed):
            if isinstance(one, Shard):
                if one.dim < 0:
                    raise ValueError(f"{one} counts from the last axis: use layout_of")
                axes[one.dim] = (*axes.get(one.dim, ()), axis)
        odd = []
        for dim, bounds in sorted(cuts):
            counts = [mesh.shape[axis] for axis in axes.get(dim, ())]
            if (
                not counts
                or len(bounds) != mesh.count(axes[dim]) + 1
                or list(bounds) != sorted(bounds)
            ):
                raise ValueError(f"axis {dim} is not cut at {bounds} by {placed} on {mesh}")
            if bounds != even_bounds(bounds[-1], counts):
                odd.append((dim, tuple(bounds)))
        key = (mesh, placed, tuple(odd))
        known = cls._known.get(key)
        if known is None:
            known = cls._known[key] = object.__new__(cls)
            known.mesh, known.placements, known.cuts = key
            known.codes = tuple([one.code for one in placed])
            known._axes = axes
            known._pieces = {}
            known._specs = {}
        return known

    def __reduce__(self) -> Any:
        return Layout, (self.mesh, self.placements, self.cuts)

    def __repr__(self) -> str:
        cuts = f", {self.cuts}" if self.cuts else ""
        return f"Layout({self.mesh}, {self.placements}{cuts})"

    def __str__(self) -> str:
        letters = {0: "R", -100: "L"}
        words = []
        for one in self.placements:
            if one.code > 0:
                words.append(f"S({one.code - 1})")
            else:
                words.append(letters.get(one.code) or f"P({getattr(one, 'reduce_op', '')})")
        cuts = "".join(f" cut {dim} at {bounds}" for dim, bounds in self.cuts)
        return ("(" + ", ".join(words) + ")" if len(words) != 1 else words[0]) + cuts

    @property
    def is_replicated(self) -> bool:
        """Whether each member has all of it."""
        return not any(self.codes)

    @property
    def is_partial(self) -> bool:
        """Whether anything is yet to be reduced."""
        return any(one.is_partial() for one in self.placements)

    @property
    def sharded(self) -> tuple[int, ...]:
        """Axes of the tensor that are cut."""
        return tuple(self._axes)

    def axes_of(self, dim: int) -> tuple[int, ...]:
        """The axes of the mesh that cut this axis of the tensor, in order."""
        return self._axes.get(dim, ())

    def bounds(self, dim: int, length: int) -> Bounds:
        """Where this axis of the tensor is cut, its ends with them."""
        for one, bounds in self.cuts:
            if one == dim:
                if bounds[-1] != length:
                    raise ValueError(f"{self} is not of a tensor whose axis {dim} is {length} long")
                return bounds
        return even_bounds(length, [self.mesh.shape[axis] for axis in self.axes_of(dim)])

    def pieces(self, shape: Shape) -> tuple[Ranges, ...]:
        """What each member has of a tensor of that shape: ranges along its axes.

        Raises:
            ValueError: the tensor has not the axes that are cut.
        """
        found = self._pieces.get(shape)
        if found is None:
            if any(dim >= len(shape) for dim in self._axes):
                raise ValueError(f"{self} cuts an axis that a tensor of {shape} has not")
            columns = []
            for dim, length in enumerate(shape):
                axes = self._axes.get(dim)
                if axes is None:
                    columns.append([(0, length)] * self.mesh.size)
                    continue
                bounds = self.bounds(dim, length)
                column = []
                for place in self.mesh.coordinates:
                    at = 0
                    for axis in axes:
                        at = at * self.mesh.shape[axis] + place[axis]
                    column.append((bounds[at], bounds[at + 1]))
                columns.append(column)
            if len(self._pieces) >= MAX_SHAPES:
                self._pieces.clear()
            ranges = tuple(zip(*columns, strict=True)) if columns else ((),) * self.mesh.size
            found = self._pieces[shape] = ranges
        return found

    def piece(self, rank: int, shape: Shape) -> tuple[slice, ...]:
        """What a member has of a tensor of that shape, as slices."""
        return tuple([slice(start, stop) for start, stop in self.pieces(shape)[rank]])

    def local_spec(self, rank: int, spec: Spec) -> Spec:
        """Type and shape of a member's piece."""
        local = self.local_specs(spec)
        return local[rank] if isinstance(local, tuple) else local

    def local_specs(self, spec: Spec) -> Spec | tuple[Spec, ...]:
        """Of each member's piece; one for all where they are of one shape."""
        if not self._axes:
            return spec
        found = self._specs.get(spec)
        if found is None:
            shapes = [
                tuple([stop - start for start, stop in piece]) for piece in self.pieces(spec.shape)
            ]
            if len(set(shapes)) == 1:
                found = spec_of(spec.dtype, shapes[0])
            else:
                found = tuple([spec_of(spec.dtype, shape) for shape in shapes])
            if len(self._specs) >= MAX_SHAPES:
                self._specs.clear()
            self._specs[spec] = found
        return found


def replicated(mesh: Mesh) -> Layout:
    """Whole, with each member."""
    return Layout(mesh, [Replicate()] * mesh.ndim)


def layout_of(mesh: Mesh, placements: Sequence[Placement], ndim: int) -> Layout:
    """The layout of a tensor of ``ndim`` axes; those of shards may count from the last.

    Raises:
        ValueError: a shard is of an axis that there is not.
    """
    placed = []
    for one in placements:
        if isinstance(one, Shard):
            if not -ndim <= one.dim < ndim:
                raise ValueError(f"{one} is not of a tensor of {ndim} axes")
            one = Shard(one.dim % ndim)
        placed.append(one)
    return Layout(mesh, placed)
