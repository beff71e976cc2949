"""What each move between layouts consists of: a collective, or a slice.

Owns the params of collectives: which members meet, and how long each member's piece is. Never
decides which moves there are: :mod:`.moves` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.distributed.builder import Builder, neutral
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.moves import Move, MoveKind
from shmgpu.distributed.rules.base import Made
from shmgpu.ops import collective, shaping
from shmgpu.ops.graph import Params, Spec


def _lengths(layout: Layout, shape: tuple[int, ...], group: tuple[int, ...], dim: int) -> Any:
    """How long the pieces of these members are along a dimension."""
    pieces = layout.pieces(shape)
    return tuple([pieces[rank][dim][1] - pieces[rank][dim][0] for rank in group])


def add_move(b: Builder, move: Move, value: int, spec: Spec) -> int:
    """What a move is made of."""
    if move.is_meeting and b.mesh.count(move.axes) == 1:
        return value
    return _MOVES[move.kind](b, move, value, spec)


def _reduce(b: Builder, move: Move, value: int, spec: Spec) -> int:
    return b.all_reduce(value, move.op, move.axes)


def _scatter(b: Builder, move: Move, value: int, spec: Spec) -> int:
    groups = b.mesh.groups(move.axes)

    def rest(rank: int) -> Params:
        lengths = _lengths(move.want, spec.shape, groups[rank], move.dim)
        own = lengths[groups[rank].index(rank)]
        return move.op, ((move.dim, lengths),), (own,)

    return b.meet(collective.REDUCE_SCATTER, value, move.axes, rest)


def _gather(b: Builder, move: Move, value: int, spec: Spec) -> int:
    groups = b.mesh.groups(move.axes)

    def rest(rank: int) -> Params:
        return move.dim, _lengths(move.have, spec.shape, groups[rank], move.dim)

    return b.meet(collective.ALL_GATHER, value, move.axes, rest)


def _slice(b: Builder, move: Move, value: int, spec: Spec) -> int:
    have, want = move.have.pieces(spec.shape), move.want.pieces(spec.shape)

    def part(rank: int) -> Made:
        both = zip(have[rank], want[rank], strict=True)
        cuts = [(start - low, stop - low) for (low, _), (start, stop) in both]
        starts, stops = zip(*cuts, strict=True)
        return shaping.SLICE, (value,), (starts, stops, (1,) * len(starts))

    return b.each(part)


def _exchange(b: Builder, move: Move, value: int, spec: Spec) -> int:
    groups = b.mesh.groups(move.axes)
    (axis,) = move.axes
    target = move.want.codes[axis] - 1

    def rest(rank: int) -> Params:
        group = groups[rank]
        want = _lengths(move.want, spec.shape, group, target)
        have = _lengths(move.have, spec.shape, group, move.dim)
        return move.dim, have, target, want, want[group.index(rank)]

    return b.meet(collective.ALL_TO_ALL, value, move.axes, rest)


def _realign(b: Builder, move: Move, value: int, spec: Spec) -> int:
    groups = b.mesh.groups(move.axes)
    length = spec.shape[move.dim]
    have, want = move.have.bounds(move.dim, length), move.want.bounds(move.dim, length)

    def rest(rank: int) -> Params:
        place = groups[rank].index(rank)
        return move.dim, have, want, place, want[place + 1] - want[place]

    return b.meet(collective.REALIGN, value, move.axes, rest)


def _first(b: Builder, move: Move, value: int, spec: Spec) -> int:
    """A sum, or a product, has a whole value once; of others it may have it often."""
    if move.op not in ("sum", "prod"):
        return value
    return once(b, value, move.axes, move.op)


def once(b: Builder, value: int, axes: tuple[int, ...], op: str = "sum") -> int:
    """The value with the first member along these axes; with others what changes nothing."""

    def made(rank: int) -> Made:
        spec = b.spec_at(value, rank)
        if b.mesh.is_first(rank, axes):
            return shaping.RESHAPE, (value,), (spec.shape,)
        return b.filled(spec, neutral(op, spec))[:3]

    return b.each(made)


_MOVES: dict[MoveKind, Callable[[Builder, Move, int, Spec], int]] = {
    MoveKind.REDUCE: _reduce,
    MoveKind.SCATTER: _scatter,
    MoveKind.GATHER: _gather,
    MoveKind.SLICE: _slice,
    MoveKind.EXCHANGE: _exchange,
    MoveKind.REALIGN: _realign,
    MoveKind.FIRST: _first,
}
