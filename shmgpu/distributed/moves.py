"""From one layout to another: which moves, in which order.

Owns the order. Reductions come first; they leave each member its part where parts are wanted. Next
come moves that only slice, because later ones then move less. Then the axes that change are made
whole, innermost first, and cut again, outermost first. If an axis of the mesh changes from cutting
one axis of the tensor to cutting another, one exchange does both. Never says what a move consists
of: :mod:`.meeting` does.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from shmgpu.distributed.layout import Bounds, Layout
from shmgpu.distributed.placements import (
    LOCAL,
    PARTIALS,
    REPLICATE,
    Partial,
    Placement,
    Replicate,
    Shard,
)

Shape = tuple[int, ...]


class MoveKind(enum.Enum):
    """What a move does."""

    REDUCE = enum.auto()  # partial -> whole
    SCATTER = enum.auto()  # partial -> cut
    GATHER = enum.auto()  # cut -> whole
    SLICE = enum.auto()  # whole -> cut: each keeps its own part
    EXCHANGE = enum.auto()  # cut along one dimension -> along another
    REALIGN = enum.auto()  # cut elsewhere along the same dimension
    FIRST = enum.auto()  # whole -> partial: the first member has it, the others nothing


@dataclass(frozen=True)
class Move:
    """One step on the way.

    Attributes:
        kind: what it does.
        axes: of the mesh, along which members meet.
        have, want: the layouts before and after it.
        dim: of the tensor, that is concerned.
        op: of a reduction.
    """

    kind: MoveKind
    axes: tuple[int, ...]
    have: Layout
    want: Layout
    dim: int = 0
    op: str = ""

    @property
    def is_meeting(self) -> bool:
        """Whether members exchange anything."""
        return self.kind not in (MoveKind.SLICE, MoveKind.FIRST)

    def nbytes(self, nbytes: int) -> float:
        """About what a member takes from others, of a tensor of so many bytes."""
        mesh = self.have.mesh
        count = mesh.count(self.axes)
        shards = math.prod(
            mesh.shape[axis]
            for axis, code in enumerate(self.have.codes)
            if code > 0 and axis not in self.axes
        )
        part = nbytes / shards * (count - 1) / count
        if self.kind is MoveKind.REDUCE:
            return 2 * part
        if self.kind in (MoveKind.EXCHANGE, MoveKind.REALIGN):
            return part / count
        return part if self.is_meeting else 0.0


def _cut_by(layout: Layout, dim: int, axes: tuple[int, ...], length: int) -> Bounds:
    """Where the first of its axes, these, cut a dimension."""
    bounds = layout.bounds(dim, length)
    rest = layout.mesh.count(layout.axes_of(dim)[len(axes) :])
    return bounds[::rest]


def _with(
    layout: Layout, changes: dict[int, Placement], cuts: Iterable[tuple[int, Bounds]]
) -> Layout:
    """The layout with other placements, and cuts of the dimensions that are concerned."""
    placed = [changes.get(axis, one) for axis, one in enumerate(layout.placements)]
    return Layout(layout.mesh, placed, cuts)


@lru_cache(maxsize=1 << 14)
def path(have: Layout, want: Layout, shape: Shape) -> tuple[Move, ...]:
    """The moves from one layout of a tensor of that shape to another.

    Raises:
        ValueError: what each member has for itself is no part of a tensor.
    """
    if (LOCAL in have.codes or LOCAL in want.codes) and have.codes != want.codes:
        raise ValueError(f"a tensor that lies {have} cannot lie {want}: it is each helper's own")
    return tuple(_Path(have, want, shape).moves)


class _Path:
    """Moves, and the layout after them."""

    def __init__(self, have: Layout, want: Layout, shape: Shape) -> None:
        self.now = have
        self.want = want
        self.shape = shape
        self.moves: list[Move] = []
        if have is want:
            return
        self._reduce()
        self._slice()
        self._exchange()
        self._gather()
        self._realign()
        self._slice()
        self._realign()
        self._first()

    def _go(
        self, kind: MoveKind, axes: tuple[int, ...], to: Layout, dim: int = 0, op: str = ""
    ) -> None:
        self.moves.append(Move(kind, axes, self.now, to, dim, op))
        self.now = to

    def _cuts(self, *changed: int) -> list[tuple[int, Bounds]]:
        """The cuts of now, but of these dimensions."""
        return [cut for cut in self.now.cuts if cut[0] not in changed]

    def _is_next(self, axis: int, dim: int) -> bool:
        """Whether an axis of the mesh can cut a dimension next, as it shall be in the end."""
        before, after = self.now.axes_of(dim), self.want.axes_of(dim)
        if after[: len(before) + 1] != (*before, axis):
            return False
        length = self.shape[dim]
        return self.now.bounds(dim, length) == _cut_by(self.want, dim, before, length)

    def _cut_further(self, axis: int, dim: int) -> Layout:
        axes = (*self.now.axes_of(dim), axis)
        bounds = _cut_by(self.want, dim, axes, self.shape[dim])
        return _with(self.now, {axis: Shard(dim)}, [*self._cuts(dim), (dim, bounds)])

    # ---- one after the other ---------------------------------------------------------------------

    def _reduce(self) -> None:
        left: dict[str, list[int]] = {}
        for axis, (have, want) in enumerate(zip(self.now.codes, self.want.codes, strict=True)):
            if have not in PARTIALS or have == want:
                continue
            op = PARTIALS[have]
            if want > 0 and self._is_next(axis, want - 1):
                self._go(MoveKind.SCATTER, (axis,), self._cut_further(axis, want - 1), want - 1, op)
            else:
                left.setdefault(op, []).append(axis)
        for op, axes in left.items():
            to = _with(self.now, dict.fromkeys(axes, Replicate()), self.now.cuts)
            self._go(MoveKind.REDUCE, tuple(axes), to, op=op)

    def _slice(self) -> None:
        before = self.now
        for axis, want in enumerate(self.want.codes):
            if want > 0 and self.now.codes[axis] == REPLICATE and self._is_next(axis, want - 1):
                self.now = self._cut_further(axis, want - 1)
        after, self.now = self.now, before
        if after is not before:
            self._go(MoveKind.SLICE, (), after)

    def _changing(self) -> set[int]:
        """Axes of the mesh along which a cut is to be undone."""
        have, want = self.now, self.want
        found = {
            axis
            for axis, (a, b) in enumerate(zip(have.codes, want.codes, strict=True))
            if a > 0 and a != b
        }
        while True:
            more = {
                inner
                for axis in found
                for inner in have.axes_of(have.codes[axis] - 1)
                if inner > axis
            }
            for axis, code in enumerate(want.codes):
                if code > 0 and (axis in found or have.codes[axis] != code):
                    more |= {inner for inner in have.axes_of(code - 1) if inner > axis}
            if more <= found:
                return found
            found |= more

    def _exchange(self) -> None:
        changing = self._changing()
        if len(changing) != 1:
            return
        (axis,) = changing
        source, target = self.now.codes[axis] - 1, self.want.codes[axis] - 1
        if target < 0 or self.now.axes_of(source)[-1] != axis or not self._is_next(axis, target):
            return
        outer = self.now.axes_of(source)[:-1]
        bounds = _cut_by(self.now, source, outer, self.shape[source])
        further = _cut_by(self.want, target, (*self.now.axes_of(target), axis), self.shape[target])
        cuts = [*self._cuts(source, target), (target, further)]
        if outer:
            cuts.append((source, bounds))
        self._go(MoveKind.EXCHANGE, (axis,), _with(self.now, {axis: Shard(target)}, cuts), source)

    def _gather(self) -> None:
        by_dim: dict[int, list[int]] = {}
        for axis in sorted(self._changing()):
            by_dim.setdefault(self.now.codes[axis] - 1, []).append(axis)
        for dim, axes in by_dim.items():
            outer = tuple([one for one in self.now.axes_of(dim) if one not in axes])
            cuts = self._cuts(dim)
            if outer:
                cuts.append((dim, _cut_by(self.now, dim, outer, self.shape[dim])))
            to = _with(self.now, dict.fromkeys(axes, Replicate()), cuts)
            self._go(MoveKind.GATHER, tuple(axes), to, dim)

    def _realign(self) -> None:
        for dim in self.now.sharded:
            axes = self.now.axes_of(dim)
            if self.want.axes_of(dim)[: len(axes)] != axes:
                continue
            length = self.shape[dim]
            bounds = _cut_by(self.want, dim, axes, length)
            if bounds != self.now.bounds(dim, length):
                to = _with(self.now, {}, [*self._cuts(dim), (dim, bounds)])
                self._go(MoveKind.REALIGN, axes, to, dim)

    def _first(self) -> None:
        """Which of the members has what is whole; of a maximum, or a mean, all may."""
        for axis, want in enumerate(self.want.placements):
            if isinstance(want, Partial) and self.now.placements[axis] is not want:
                to = _with(self.now, {axis: want}, self.now.cuts)
                self._go(MoveKind.FIRST, (axis,), to, op=want.reduce_op)
        assert self.now is self.want, (self.now, self.want)
