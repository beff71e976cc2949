"""What lowering returns: a program for each member, and the collectives in which members meet.

Owns how a draft is written down: values and collectives get their numbers here. Never adds or
orders operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmgpu.distributed.choice import Choice
from shmgpu.distributed.draft import Draft, Entry
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import REPLICATE
from shmgpu.ops import collective
from shmgpu.ops.collective import bytes_moved
from shmgpu.ops.graph import Op, Params, Spec
from shmgpu.ops.program import Program, Step


@dataclass(frozen=True)
class Collective:
    """Members meet.

    Attributes:
        number: in the order in which all meet.
        kind: the row's name.
        axes: of the mesh, along which they meet.
        nbytes: that each member takes from others, by rank.
        shapes: of what is moved, as a member has it before.
        steps: places in the whole program for whose sake it is.
    """

    number: int
    kind: str
    axes: tuple[int, ...]
    nbytes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


Placed = tuple[tuple[Layout, ...], Layout]


@dataclass(frozen=True)
class Lowered:
    """What comes of a program.

    Attributes:
        mesh: on which it is done.
        programs: of each member, by rank.
        leaves: how each array that is given lies: one in the arena is given whole to all.
        kept: how each value lies that stays resident, in the program's order.
        read: likewise of what the child wants to see: partial only where it is small and a sum, and
            its parts are read.
        readers: for each member the places in ``read`` that it writes: pieces are written by each,
            what is whole by the first of those that have it.
        constants: plain numbers that go with the program's own, behind them, each time.
        collectives: in order.
        placed: of each operation of the whole program how its inputs lay and its output lies.
        choices: along each axis of the mesh, for explanations.
        sakes: of each operation of a member the place in the whole program for whose sake it is.
        algorithm: how members do an all_reduce.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    leaves: tuple[Layout, ...]
    kept: tuple[Layout, ...]
    read: tuple[Layout, ...]
    readers: tuple[tuple[int, ...], ...]
    constants: tuple[complex, ...]
    collectives: tuple[Collective, ...]
    placed: tuple[Placed, ...]
    choices: tuple[Choice, ...]
    sakes: tuple[int, ...]
    algorithm: str = "auto"

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes that each member takes from others, by rank."""
        return tuple(
            [sum(one.nbytes[rank] for one in self.collectives) for rank in range(self.mesh.size)]
        )


class Writer:
    """Writes down a draft whose order is decided."""

    def __init__(
        self,
        draft: Draft,
        order: list[int],
        roots: list[int],
        leaves: tuple[Layout, ...],
        kept: list[Layout],
        read: list[Layout],
        placed: tuple[Placed, ...],
        choices: tuple[Choice, ...],
    ) -> None:
        self.draft = draft
        self.order = order
        self.leaves = leaves
        self.kept = kept
        self.read = read
        self.placed = placed
        self.choices = choices
        program = draft.program
        self.first = len(program.arrays) + len(program.numbers)
        constants = list(draft.constants)
        final = {slot: slot for slot in range(self.first)}
        for slot in (*constants, *order):
            final[slot] = len(final)
        self.final = final
        self.roots = [final[one] for one in roots]
        self.numbers: dict[int, int] = {}  # of collectives, by their value

    def lowered(self, algorithm: str = "auto") -> Lowered:
        """All that comes of it."""
        draft, program, mesh = self.draft, self.draft.program, self.draft.mesh
        columns: list[list[Step]] = [[] for _ in range(mesh.size)]
        collectives: list[Collective] = []
        for slot in self.order:
            entry = draft.entries[slot]
            if entry.is_collective:
                entry = self._numbered(slot, entry, collectives)
            if entry.is_same:
                step = self._step(*entry.at(0))
                for column in columns:
                    column.append(step)
            else:
                for rank, column in enumerate(columns):
                    column.append(self._step(*entry.at(rank)))
        numbers = (
            *program.numbers,
            *[draft.specs[slot] for slot in draft.constants],
        )
        kept = tuple(self.roots[: len(self.kept)])
        read = self.roots[len(self.kept) :]
        readers = tuple([self._reads(rank) for rank in range(mesh.size)])
        programs = []
        shared: dict[Any, Program] = {}
        for rank, steps in enumerate(columns):
            arrays = tuple(
                [
                    layout.local_spec(rank, spec) if resident else spec
                    for layout, spec, resident in zip(
                        self.leaves, program.arrays, program.resident, strict=True
                    )
                ]
            )
            key = (arrays, tuple(map(id, steps)), readers[rank])
            if key not in shared:
                shared[key] = Program(
                    arrays=arrays,
                    resident=program.resident,
                    donated=program.donated,
                    numbers=numbers,  # type: ignore[arg-type]
                    steps=tuple(steps),
                    kept=kept,
                    read=tuple([read[place] for place in readers[rank]]),
                )
            programs.append(shared[key])
        return Lowered(
            mesh=mesh,
            programs=tuple(programs),
            leaves=self.leaves,
            kept=tuple(self.kept),
            read=tuple(self.read),
            readers=readers,
            constants=tuple(draft.constants.values()),
            collectives=tuple(collectives),
            placed=self.placed,
            choices=self.choices,
            sakes=tuple([draft.entries[slot].step for slot in self.order]),
            algorithm=algorithm,
        )

    def _step(self, op: Op, inputs: tuple[int, ...], params: Params, spec: Spec) -> Step:
        return Step(op, tuple([self.final[one] for one in inputs]), params, spec)

    def _numbered(self, slot: int, entry: Entry, collectives: list[Collective]) -> Entry:
        """The entry with its number, and what it is, noted."""
        draft = self.draft
        at = 1 if entry.op in (collective.START, collective.WAIT) else 0
        if entry.op is collective.WAIT:
            number = self.numbers[entry.inputs[0]]  # type: ignore[index]
        else:
            number = self.numbers[slot] = len(collectives)

        def put(params: Params) -> Params:
            return (*params[:at], number, *params[at + 1 :])

        params = [*map(put, entry.params)] if type(entry.params) is list else put(entry.params)  # type: ignore[arg-type]
        found = Entry(entry.op, entry.inputs, params, entry.spec, entry.step, entry.axes)
        if entry.op is collective.WAIT:
            return found
        moved, shapes = [], []
        for rank in range(draft.mesh.size):
            op, inputs, own, spec = found.at(rank)
            specs = tuple([draft.spec_at(one, rank) for one in inputs])
            moved.append(bytes_moved(op, specs, own, spec, rank))
            shapes.append(specs[0].shape if len(specs) == 1 else (sum(map(_count, specs)),))
        op, _, own, _ = found.at(0)
        name: str = own[0] if op is collective.START else op.name
        steps = draft.sakes.get(slot, (entry.step,))
        collectives.append(Collective(number, name, entry.axes, tuple(moved), tuple(shapes), steps))
        return found

    def _reads(self, rank: int) -> tuple[int, ...]:
        """What a member writes for the child to see."""
        program, mesh = self.draft.program, self.draft.mesh
        specs = program.specs
        found = []
        for place, layout in enumerate(self.read):
            whole = [axis for axis, code in enumerate(layout.codes) if code == REPLICATE]
            spec = specs[program.read[place]]
            is_empty = 0 in layout.local_spec(rank, spec).shape and 0 not in spec.shape
            if mesh.is_first(rank, whole) and not is_empty:
                found.append(place)
        return tuple(found)


def _count(spec: Spec) -> int:
    return spec.nbytes // spec.dtype.itemsize
