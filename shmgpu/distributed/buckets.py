"""Collectives are joined into few, and begin as early as they can.

A backward pass computes its gradients one by one, and each would need a collective of its own.
Gradients of one type that need the same kind of collective are put into a bucket. A full bucket is
reduced (or gathered, or scattered) by one collective. If one value is needed to compute another,
the two go into different buckets. A collective may also be split in two: it begins where its
input is there, and is waited for where its outcome is first used.

Owns the order of a draft's operations. Never changes what they compute.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shmgpu.distributed.draft import Draft, Entry, common
from shmgpu.ops import collective, shaping
from shmgpu.ops.graph import Op, Params, Spec, spec_of

BUCKET_BYTES = 25 << 20


def needed(draft: Draft, roots: Sequence[int]) -> list[int]:
    """The operations that these values need, in order."""
    used: set[int] = set()
    stack = [*roots]
    while stack:
        slot = stack.pop()
        entry = draft.entries.get(slot)
        if entry is None or slot in used:
            continue
        used.add(slot)
        stack.extend(inputs_of(entry))
    return sorted(used)


def inputs_of(entry: Entry) -> Iterable[int]:
    """What any member's operation reads."""
    if type(entry.inputs) is list:
        return {one for inputs in entry.inputs for one in inputs}
    return entry.inputs  # type: ignore[return-value]


# ---- together --------------------------------------------------------------------------------


def name_algorithm(draft: Draft, order: list[int], algorithm: str) -> None:
    """Have all_reduces be done in that way: it stands behind the reduction."""

    def named(params: Params) -> Params:
        return (*params[:2], f"{params[2]}/{algorithm}", *params[3:])

    for slot in order:
        entry = draft.entries[slot]
        if entry.op is collective.ALL_REDUCE or entry.op is collective.ALL_REDUCE_MANY:
            by_rank = type(entry.params) is list
            entry.params = [*map(named, entry.params)] if by_rank else named(entry.params)  # type: ignore[arg-type]


def _kind(draft: Draft, slot: int, entry: Entry) -> Any:
    """What must be equal of those that share a bucket; None of others."""
    if type(entry.op) is list or entry.op not in collective.MANY:
        return None
    params = entry.params[0] if type(entry.params) is list else entry.params
    reduction = {collective.ALL_REDUCE: 2, collective.REDUCE_SCATTER: 2}.get(entry.op)
    return (
        entry.op,
        entry.axes,
        draft.spec_at(slot, 0).dtype,
        None if reduction is None else params[reduction],
    )


def _weight(draft: Draft, entry: Entry) -> int:
    (value,) = inputs_of(entry)
    return max(draft.spec_at(value, rank).nbytes for rank in range(draft.mesh.size))


def bucketed(draft: Draft, order: list[int], bucket_bytes: int) -> tuple[list[int], dict[int, int]]:
    """The operations in their new order, and which values stand for others now."""
    moved: dict[int, int] = {}
    instead: dict[int, list[int]] = {}  # what replaces each member of a bucket
    for group in _groups(draft, order, bucket_bytes):
        made, parts = _together(draft, group)
        instead.update({slot: [] for slot in group})
        instead[group[-1]] = made
        moved.update(zip(group, parts, strict=True))
    if not moved:
        return order, moved
    listed = [one for slot in order for one in instead.get(slot, (slot,))]
    for slot in listed:
        _rename(draft.entries[slot], moved)
    return _in_order(draft, listed), moved


def _groups(draft: Draft, order: list[int], bucket_bytes: int) -> list[list[int]]:
    """Collectives that can be done as one, and are worth it."""
    found: list[list[int]] = []
    open_: dict[Any, tuple[int, int]] = {}  # kind -> (its group, bytes)
    behind: dict[int, int] = {}  # value -> mask of the groups that it follows from
    waits: list[int] = []  # group -> mask of the groups that come before it
    for slot in order:
        entry = draft.entries[slot]
        mask = 0
        for one in inputs_of(entry):
            mask |= behind.get(one, 0)
        kind = _kind(draft, slot, entry)
        if kind is not None:
            nbytes = _weight(draft, entry)
            number, filled = open_.get(kind, (-1, 0))
            # A group waits for all that its members wait for, so none of these may wait for the
            # group.
            if number < 0 or filled + nbytes > bucket_bytes or _reach(mask, waits) >> number & 1:
                number, filled = len(found), 0
                found.append([])
                waits.append(0)
            found[number].append(slot)
            waits[number] |= mask
            open_[kind] = number, filled + nbytes
            mask |= 1 << number
        elif not entry.is_view:
            # A value is gathered for the operation that comes next, so that memory holds one layer
            # at a time. So no value is gathered earlier to share a collective with another.
            for other in [one for one in open_ if one[0] is collective.ALL_GATHER]:
                del open_[other]
        behind[slot] = mask
    return [group for group in found if len(group) > 1]


def _reach(mask: int, waits: list[int]) -> int:
    """These groups, and those that come before them."""
    seen, new = 0, mask
    while new:
        seen |= new
        more = 0
        while new:
            bit = new & -new
            more |= waits[bit.bit_length() - 1]
            new ^= bit
        new = more & ~seen
    return seen


def _together(draft: Draft, group: list[int]) -> tuple[list[int], list[int]]:
    """One collective for all of them with views on its parts, in order; and those views."""
    entries = [draft.entries[slot] for slot in group]
    first = entries[0]
    assert type(first.op) is Op
    ranks = range(draft.mesh.size)
    many = collective.MANY[first.op]
    inputs = tuple([next(iter(inputs_of(entry))) for entry in entries])
    params: list[Params] = []
    specs: list[Spec] = []
    for rank in ranks:
        params.append(_PARAMS[first.op]([entry.at(rank)[2] for entry in entries]))
        given = tuple([draft.spec_at(one, rank) for one in inputs])
        specs.append(many.rule(given, params[-1]))
    made = draft.add(Entry(many, inputs, common(params), common(specs), first.step, first.axes))
    draft.sakes[made] = tuple([entry.step for entry in entries])
    listed, parts = [made], []
    starts = [0] * len(ranks)
    for slot, entry in zip(group, entries, strict=True):
        shapes = [draft.spec_at(slot, rank) for rank in ranks]
        cuts: list[Params] = []
        flat: list[Spec] = []
        for rank, spec in enumerate(shapes):
            count = math.prod(spec.shape)
            cuts.append(((starts[rank],), (starts[rank] + count,), (1,)))
            flat.append(spec_of(spec.dtype, (count,)))
            starts[rank] += count
        part = draft.add(Entry(shaping.SLICE, (made,), common(cuts), common(flat), entry.step))
        shape = common([(spec.shape,) for spec in shapes])
        parts.append(draft.add(Entry(shaping.RESHAPE, (part,), shape, common(shapes), entry.step)))
        listed += [part, parts[-1]]
    return listed, parts


# From the params that each collective would have had: the params of one for all.
_PARAMS: dict[Op, Callable[[list[Params]], Params]] = {
    collective.ALL_REDUCE: lambda own: own[0],
    collective.ALL_GATHER: lambda own: (*own[0][:2], tuple([one[2:] for one in own])),
    collective.REDUCE_SCATTER: lambda own: (
        *own[0][:3],
        tuple([one[3][0] for one in own]),
        tuple([one[4][0] for one in own]),
    ),
}


def _rename(entry: Entry, moved: dict[int, int]) -> None:
    if type(entry.inputs) is list:
        entry.inputs = [tuple([moved.get(one, one) for one in ins]) for ins in entry.inputs]
    else:
        entry.inputs = tuple([moved.get(one, one) for one in inputs_of(entry)])


def _in_order(draft: Draft, listed: list[int]) -> list[int]:
    """As listed, but that inputs come first."""
    place = {slot: at for at, slot in enumerate(listed)}
    missing: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    ready: list[int] = []
    for at, slot in enumerate(listed):
        waits = {one for one in inputs_of(draft.entries[slot]) if one in place}
        missing[slot] = len(waits)
        for one in waits:
            readers.setdefault(one, []).append(slot)
        if not waits:
            ready.append(at)
    found: list[int] = []
    heapq.heapify(ready)
    while ready:
        slot = listed[heapq.heappop(ready)]
        found.append(slot)
        for reader in readers.get(slot, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, place[reader])
    return found


# ---- begun early, waited for late ------------------------------------------------------------

_GATHERS = (collective.ALL_GATHER, collective.ALL_GATHER_MANY)


def overlapped(draft: Draft, order: list[int]) -> tuple[list[int], dict[int, int]]:
    """The operations, each collective in two halves, and which values stand for others now.

    A collective begins where its inputs are there, and ends before its outcome is first used. Only
    one that gathers begins when the one before it has ended: memory is to hold one layer ahead.
    """
    halves = _Halves(draft, order)
    for slot in order:
        if not draft.entries[slot].is_collective:
            halves.add(slot)
    halves.end_all()
    for slot in halves.listed:
        _rename(draft.entries[slot], halves.moved)
    return halves.listed, halves.moved


class _Halves:
    """Lists operations, and among them the halves of collectives."""

    def __init__(self, draft: Draft, order: list[int]) -> None:
        self.draft = draft
        self.listed: list[int] = []
        self.moved: dict[int, int] = {}
        self.begun: dict[int, int] = {}  # a collective that has not ended -> its end
        self.gathers: list[int] = []  # that wait for their turn
        self.is_gathering = False
        collectives = [slot for slot in order if draft.entries[slot].is_collective]
        made = set(order)
        self.missing: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.left = dict.fromkeys(collectives)
        for slot in collectives:
            waits = {one for one in inputs_of(draft.entries[slot]) if one in made}
            self.missing[slot] = len(waits)
            for one in waits:
                self.readers.setdefault(one, []).append(slot)
        for slot in collectives:
            if not self.missing[slot]:
                self._ready(slot)

    def add(self, slot: int) -> None:
        """An operation of each member's own."""
        for one in inputs_of(self.draft.entries[slot]):
            self._end(one)
        self.listed.append(slot)
        self._made(slot)

    def end_all(self) -> None:
        """What nothing waits for ends last."""
        while self.left or self.begun:
            self._end(next(iter(self.begun or self.left)))

    def _made(self, slot: int) -> None:
        for reader in self.readers.get(slot, ()):
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._ready(reader)

    def _ready(self, slot: int) -> None:
        if self.draft.entries[slot].op in _GATHERS:
            self.gathers.append(slot)
            self._next_gather()
        else:
            self._begin(slot)

    def _next_gather(self) -> None:
        if self.gathers and not self.is_gathering:
            self.is_gathering = True
            self._begin(self.gathers.pop(0))

    def _begin(self, slot: int) -> None:
        draft, entry = self.draft, self.draft.entries[slot]
        assert type(entry.op) is Op
        name = entry.op.name

        def named(params: Params) -> Params:
            return (name, *params)

        params = [*map(named, entry.params)] if type(entry.params) is list else named(entry.params)  # type: ignore[arg-type]
        inputs = tuple(inputs_of(entry))
        start = draft.add(Entry(collective.START, inputs, params, _NOTHING, entry.step, entry.axes))
        if slot in draft.sakes:
            draft.sakes[start] = draft.sakes[slot]
        wait = Entry(collective.WAIT, (start, *inputs), params, entry.spec, entry.step, entry.axes)
        self.listed.append(start)
        self.begun[slot] = self.moved[slot] = draft.add(wait)
        del self.left[slot]

    def _end(self, slot: int) -> None:
        """The collective has ended, whatever it is; nothing of other operations."""
        while slot in self.left:  # it has not even begun
            for one in inputs_of(self.draft.entries[slot]):
                self._end(one)
            if slot in self.gathers:
                self.gathers.remove(slot)
                self._begin(slot)
        wait = self.begun.pop(slot, None)
        if wait is None:
            return
        self.listed.append(wait)
        if self.draft.entries[slot].op in _GATHERS:
            self.is_gathering = False
        self._made(slot)
        self._next_gather()


_NOTHING = collective.START.rule((), ())
