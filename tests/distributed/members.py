"""Members of a mesh as threads of this process: programs recorded, lowered, run and put together.

Owns the stand-in for what gangs do: members meet at a barrier and look at what the others have.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter

import numpy as np
import torch

from shmgpu.distributed.layout import Layout, layout_of, replicated
from shmgpu.distributed.lowering import lower
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import Partial, Replicate, Shard
from shmgpu.engine.backends import NumpyBackend, TorchBackend
from shmgpu.engine.compile import Pool, compiled
from shmgpu.engine.plan import Options
from shmgpu.ops import gang
from shmgpu.ops.program import ProgramDraft, decode
from shmgpu.tensors.walks import needed

SECONDS = 20  # after which a member that waits says who it is
_compiling = threading.Lock()  # CPython 3.11's parser counts depths for all threads together

LETTERS = {
    "R": Replicate(),
    "P": Partial("sum"),
    "A": Partial("avg"),
    "M": Partial("max"),
    "N": Partial("min"),
    "X": Partial("prod"),
}


def mesh_of(*shape, names=()):
    """A mesh of helpers 0, 1, ..."""
    return Mesh(range(int(np.prod(shape))), shape, names)


def lies(mesh, words, ndim=9):
    """A layout of one word for each axis of the mesh: a letter, or the number of a shard's axis."""
    placed = [LETTERS[one] if one in LETTERS else Shard(int(one)) for one in words.split()]
    return layout_of(mesh, placed, ndim)


# ---- programs --------------------------------------------------------------------------------


class Given:
    """What the arena holds."""

    def __init__(self, array):
        self.array = array


class Resident(Given):
    """What a helper holds."""


@dataclasses.dataclass
class Recorded:
    """A program, and what it is given.

    Attributes:
        slots: of nodes.
    """

    program: object
    arrays: list
    numbers: list
    slots: dict

    def slot(self, tensor):
        return self.slots[tensor._node]


def hold(tensor, kind=Resident):
    """Have the tensor's value lie there."""
    tensor._node.value = kind(np.asarray(tensor._node.value.array))
    return tensor


def recorded(read=(), kept=(), donated=()):
    """The program that computes these tensors."""
    read, kept = [one._node for one in read], [one._node for one in kept if one._node.op]
    order = needed([*kept, *read])
    draft = ProgramDraft(order, read, Resident)
    draft.settled(kept, [one._node for one in donated])
    program = draft.program(Resident)
    slots = {node: slot for slot, node in enumerate(draft.arrays)}
    first = len(program.arrays) + len(program.numbers)
    slots.update((node, first + at) for at, node in enumerate(order))
    return Recorded(program, [node.value.array for node in draft.arrays], draft.numbers, slots)


BACKENDS = {"numpy": NumpyBackend, "torch": lambda: TorchBackend("cpu")}


def run(program, arrays, numbers, options=None, backend="numpy"):
    """(what is read, what is kept) of a program, on its own."""
    backend = BACKENDS[backend]()
    if backend.name == "torch":
        arrays = [torch.from_numpy(np.array(one)) for one in arrays]
    with _compiling:
        done = compiled(program, backend, Pool(backend), options or Options())
    with backend.running():
        read, kept = done.run(arrays, numbers)
        if done.rest is not None:
            kept = done.rest(kept)
    return [np.asarray(one) for one in read], [np.asarray(one) for one in kept]


# ---- meetings --------------------------------------------------------------------------------

_REDUCE = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


class Meeting:
    """Where members meet: what each brings is seen by all."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Condition()
        self.brought = {}
        self.failed = None
        self.moved = [0] * size  # bytes that each took from others
        self.calls = Counter()

    def fail(self, error):
        with self.lock:
            self.failed = self.failed or error
            self.lock.notify_all()

    def together(self, key, members, rank, value):
        """What all of these members brought, in order."""
        with self.lock:
            there = self.brought.setdefault((key, members), {})
            assert rank not in there, f"member {rank} meets twice in {key}"
            there[rank] = value
            self.lock.notify_all()
            met = self.lock.wait_for(
                lambda: len(there) == len(members) or self.failed, timeout=SECONDS
            )
            if self.failed:
                raise RuntimeError("another member failed")
            assert met, f"member {rank} waits in {key} of {members}: only {set(there)} came"
            return [there[one] for one in members]


class Member:
    """A gang as one member sees it: see :class:`shmgpu.ops.gang.Gang`."""

    def __init__(self, meeting, rank):
        self.meeting = meeting
        self.rank = rank
        self.last = -1

    def _meet(self, kind, number, members, what, arrays):
        assert self.rank in members
        assert number > self.last, "collectives are done in the order of their numbers"
        self.last = number
        own = np.concatenate([np.asarray(one) for one in arrays])
        if self.rank == members[0]:
            self.meeting.calls[kind] += 1
        found = self.meeting.together(number, members, self.rank, (kind, what, own))
        assert {one[:2] for one in found} == {(kind, what)}, "members meet for different things"
        return [one[2] for one in found]

    def _take(self, pieces, members, out):
        self.meeting.moved[self.rank] += sum(
            piece.nbytes
            for member, piece in zip(members, pieces, strict=True)
            if member != self.rank
        )

    def _reduced(self, op, pieces):
        wide = pieces[0].dtype
        if wide.itemsize == 2 and wide.kind not in "iu":
            pieces = [one.astype(np.float32) for one in pieces]
        total = pieces[0]
        for one in pieces[1:]:
            total = _REDUCE[op](total, one)
        if op == "avg":
            total = total / np.asarray(len(pieces), total.dtype)
        return total.astype(wide)

    def _done(self, wait, out, result):
        """Put it there, now or when asked."""

        def finish():
            made = result()
            out[...] = made if isinstance(out, np.ndarray) else torch.from_numpy(made)

        return finish() if wait else finish

    def all_reduce(self, number, members, op, arrays, out, *, wait=True):
        all_ = self._meet("all_reduce", number, members, op, arrays)
        share = 2 * all_[0].nbytes * (len(members) - 1) // len(members)
        self.meeting.moved[self.rank] += share

        return self._done(wait, out, lambda: self._reduced(op, all_))

    def all_gather(self, number, members, counts, arrays, out, *, wait=True):
        all_ = self._meet("all_gather", number, members, counts, arrays)
        assert [len(one) for one in all_] == list(counts)
        self._take(all_, members, out)

        return self._done(wait, out, lambda: np.concatenate(all_))

    def reduce_scatter(self, number, members, op, counts, arrays, out, *, wait=True):
        all_ = self._meet("reduce_scatter", number, members, (op, counts), arrays)
        at = members.index(self.rank)
        start = sum(counts[:at])
        mine = [one[start : start + counts[at]] for one in all_]
        self._take(mine, members, out)

        return self._done(wait, out, lambda: self._reduced(op, mine))

    def all_to_all(self, number, members, sent, received, arrays, out, *, wait=True):
        all_ = self._meet("all_to_all", number, members, "", arrays)
        cuts = self.meeting.together((number, "cuts"), members, self.rank, sent)
        at = members.index(self.rank)
        mine = [
            one[sum(cut[:at]) : sum(cut[: at + 1])] for one, cut in zip(all_, cuts, strict=True)
        ]
        assert [len(one) for one in mine] == list(received)
        self._take(mine, members, out)

        return self._done(wait, out, lambda: np.concatenate(mine))


# ---- lowered, and put together ---------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    """What members made.

    Attributes:
        read, kept: whole, put together of pieces.
        calls: how often who met for what.
        moved: bytes that each member took from others.
    """

    read: list
    kept: list
    calls: Counter
    moved: list


def run_lowered(lowered, case, options=None, backend="numpy", through_bytes=True):
    """Run the members' programs at the same time."""
    mesh, program = lowered.mesh, case.program
    meeting = Meeting(mesh.size)
    outcomes = [None] * mesh.size

    def work(rank):
        try:
            local = lowered.programs[rank]
            if through_bytes:
                again = decode(local.encode())
                assert [step.spec for step in again.steps] == [step.spec for step in local.steps]
            arrays = [
                np.array(array[layout.piece(rank, spec.shape)]) if resident else np.array(array)
                for array, layout, spec, resident in zip(
                    case.given(lowered, rank),
                    lowered.leaves,
                    program.arrays,
                    program.resident,
                    strict=True,
                )
            ]
            numbers = [*case.numbers, *lowered.constants]
            with gang.member_of(Member(meeting, rank)):
                outcomes[rank] = run(local, arrays, numbers, options, backend)
        except BaseException as error:
            meeting.fail(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(mesh.size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if meeting.failed:
        raise meeting.failed
    specs = program.specs
    read = []
    for place, (slot, layout) in enumerate(zip(program.read, lowered.read, strict=True)):
        assert not layout.is_partial
        whole = np.full(specs[slot].shape, 77, specs[slot].dtype.numpy)
        for rank in range(mesh.size):
            if place in lowered.readers[rank]:
                part = outcomes[rank][0][lowered.readers[rank].index(place)]
                whole[layout.piece(rank, whole.shape)] = part
        read.append(whole)
    kept = [
        put_together(layout, specs[slot], [outcome[1][place] for outcome in outcomes])
        for place, (slot, layout) in enumerate(zip(program.kept, lowered.kept, strict=True))
    ]
    return Outcome(read, kept, meeting.calls, meeting.moved)


def put_together(layout, spec, pieces):
    """The whole of which these are the pieces, replicas, or parts of a reduction."""
    mesh = layout.mesh
    partial = [axis for axis, one in enumerate(layout.placements) if one.is_partial()]
    whole = np.full(spec.shape, 77, spec.dtype.numpy)
    is_there = np.zeros(spec.shape, bool)
    for group in dict.fromkeys(mesh.groups(tuple(partial))):
        parts = [pieces[rank] for rank in group]
        total = parts[0]
        for axis in partial[:1]:
            op = layout.placements[axis].reduce_op
            for one in parts[1:]:
                total = _REDUCE[op](total, one)
            if op == "avg":
                total = total / len(parts)
        place = layout.piece(group[0], spec.shape)
        before = np.where(is_there[place], whole[place], total)
        assert np.array_equal(before, total, equal_nan=total.dtype.kind == "f"), "replicas differ"
        is_there[place] = True
        whole[place] = total
    assert is_there.all()
    return whole


# Of a value that is yet to be reduced what the member in that place of so many has.
_PARTS = {
    "sum": lambda array, at, count: np.full_like(array, -0.0) if at else array,
    "avg": lambda array, at, count: array + (2 * at - count + 1),
    "max": lambda array, at, count: array - at,
    "min": lambda array, at, count: array + at,
    "prod": lambda array, at, count: np.ones_like(array) if at else array,
}


def _given(self, lowered, rank):
    """The whole arrays; of what is partial, the member's part."""
    mesh = lowered.mesh
    found = []
    for array, layout in zip(self.arrays, lowered.leaves, strict=True):
        for axis, one in enumerate(layout.placements):
            if one.is_partial():
                at = mesh.coordinates[rank][axis]
                array = _PARTS[one.reduce_op](array, at, mesh.shape[axis])
        found.append(array)
    return found


Recorded.given = _given


def check(
    case,
    mesh,
    leaves,
    wanted=None,
    *,
    exact=False,
    tolerance=1e-9,
    options=None,
    backend="numpy",
    **how,
):
    """The members make what one makes; what they met for, as was said.

    Returns:
        (the lowered program, the outcome).
    """
    lowered = lower(case.program, mesh, leaves, wanted, **how)
    outcome = run_lowered(lowered, case, options, backend)
    read, kept = run(case.program, case.arrays, case.numbers, backend=backend)
    for got, want in zip([*outcome.read, *outcome.kept], [*read, *kept], strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if exact or want.dtype.kind not in "fV":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert outcome.moved == list(lowered.nbytes)
    return lowered, outcome


__all__ = [
    "Layout",
    "check",
    "hold",
    "lies",
    "lower",
    "mesh_of",
    "recorded",
    "replicated",
    "run",
    "run_lowered",
]
