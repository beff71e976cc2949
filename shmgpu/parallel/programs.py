"""Programs of members, ready to be sent: lowered once for each structure, then used again.

Owns what is kept of each: its bytes, where its results lie in the output buffers, and how they are
put together. Never sends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from shmgpu.arena import NOWHERE
from shmgpu.child.memory import Arena
from shmgpu.codec import arrays
from shmgpu.codec.arrays import aligned
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.lowered import Lowered
from shmgpu.distributed.lowering import lower
from shmgpu.distributed.mesh import Mesh
from shmgpu.ops.graph import Node, Spec
from shmgpu.ops.program import Program, ProgramDraft, bytes_over, needed_for
from shmgpu.ops.program_message import plain_numbers
from shmgpu.tensors.message import Held, Spread

MAX_PROGRAMS = 1024
# What is looked at before a program's end is copied, and the end is heard of later: both cost more
# than they save unless little is looked at, and much is left to do. A second of a core goes over
# some 5 GB, so this is 1 or 2 ms.
MAX_SAID_BYTES = 1 << 16
MIN_BYTES_AFTER = 8 << 20

Wanted = tuple[tuple[int, Layout], ...]
# A piece of a result: who wrote it, where in that member's buffer, its spec, and which part it is.
Piece = tuple[int, int, Spec, tuple[slice, ...]]


class MeshProgram:
    """What comes of a program on a mesh.

    Attributes:
        number: by which helpers know each member's part.
        program: of whole tensors.
        lowered: the parts.
        codes: their bytes, by rank.
        numbers: how the plain numbers are packed that go with them.
        constants: the last of these, which are always the same.
        output_bytes: of each member's output buffer.
        kept: of each value that stays, how it lies, and the bytes of each member's piece.
        kept_bytes: of each member, of all these pieces.
        read: of each value that is looked at, its spec and its pieces.
        sums: places in ``read`` of values whose pieces are parts of a sum.
        is_said_early: whether so much is left to do once these are there that they are looked at
            before its end.
    """

    __slots__ = (
        "codes",
        "constants",
        "is_said_early",
        "kept",
        "kept_bytes",
        "lowered",
        "number",
        "numbers",
        "output_bytes",
        "program",
        "read",
        "sums",
    )

    def __init__(
        self, number: int, program: Program, lowered: Lowered, is_said_early: bool = False
    ) -> None:
        self.number = number
        self.program = program
        self.lowered = lowered
        made: dict[int, bytes] = {}
        for one in lowered.programs:
            if id(one) not in made:
                made[id(one)] = one.encode()
        self.codes = tuple([made[id(one)] for one in lowered.programs])
        self.numbers: struct.Struct = plain_numbers(lowered.programs[0])
        self.constants = lowered.constants
        specs = program.specs
        self.kept = tuple(
            [
                (layout, bytes_of(layout, specs[slot]))
                for slot, layout in zip(program.kept, lowered.kept, strict=True)
            ]
        )
        self.kept_bytes = tuple(
            [sum(sizes[rank] for _, sizes in self.kept) for rank in range(lowered.mesh.size)]
        )
        pieces: list[list[Piece]] = [[] for _ in program.read]
        sizes = []
        for rank, places in enumerate(lowered.readers):
            end = 0
            for place in places:
                layout, spec = lowered.read[place], specs[program.read[place]]
                own = layout.local_spec(rank, spec)
                pieces[place].append((rank, end, own, layout.piece(rank, spec.shape)))
                end = aligned(end + own.nbytes)
            sizes.append(end)
        self.output_bytes = tuple(sizes)
        self.read = tuple(
            [(specs[slot], tuple(its)) for slot, its in zip(program.read, pieces, strict=True)]
        )

        self.sums = frozenset([n for n, layout in enumerate(lowered.read) if layout.is_partial])
        self.is_said_early = is_said_early and 0 < sum(sizes) <= MAX_SAID_BYTES

    def put_together(
        self,
        place: int,
        buffers: Sequence[Any],
        addresses: Sequence[int],
        arena: Arena,
        copies: bool = False,
    ) -> Held:
        """A value that was looked at, of what members wrote.

        ``copies``: it does not stay where they wrote it, in a buffer with room for more.
        """
        spec, pieces = self.read[place]
        if len(pieces) == 1 and pieces[0][2] is spec and not copies:
            rank, offset, _, _ = pieces[0]
            buffer = buffers[rank]
            if arena.is_crowded(spec.nbytes):
                own = bytearray(buffer[offset : offset + spec.nbytes])
                return Held(arrays.numpy_view(memoryview(own), 0, spec), NOWHERE)
            return Held(arrays.numpy_view(buffer, offset, spec), addresses[rank] + offset)
        room: Any
        whole: Any
        room, address = bytearray(spec.nbytes), NOWHERE
        if spec.nbytes and not arena.is_crowded(spec.nbytes):
            room, address = arena.allocate(spec.nbytes)
        whole = arrays.numpy_view(memoryview(room), 0, spec)
        for place_of_piece, (rank, offset, piece, part) in enumerate(pieces):
            its = arrays.numpy_view(buffers[rank], offset, piece)
            if place_of_piece and place in self.sums:
                whole += its  # in the order of ranks, as an all_reduce adds them
            else:
                whole[part] = its
        return Held(whole, address)


def bytes_of(layout: Layout, spec: Spec) -> tuple[int, ...]:
    """Of each member's piece."""
    return tuple([layout.local_spec(rank, spec).nbytes for rank in range(layout.mesh.size)])


def bytes_after(program: Program) -> int:
    """Bytes that operations go over which are not needed for what is read."""
    steps = dict(enumerate(program.steps, len(program.arrays) + len(program.numbers)))
    needed = needed_for(program.read, steps)
    return bytes_over([step for slot, step in steps.items() if slot not in needed], program.specs)


class MeshPrograms:
    """Those that were made, by the structure that they came of and how its tensors lay."""

    def __init__(self) -> None:
        self._known: dict[Any, MeshProgram] = {}

    def of(
        self,
        mesh: Mesh,
        draft: ProgramDraft,
        wanted: Wanted,
        number: Any,
        algorithm: str = "auto",
    ) -> MeshProgram:
        """The one of a draft that is settled.

        Args:
            mesh: on which it is done.
            draft: the program of whole tensors, and what it is given.
            wanted: how what is kept shall lie, where that is said: (place in ``kept``, layout).
            number: gives the next program's number.
            algorithm: of all_reduces.

        Raises:
            ValueError: the tensors lie so that it cannot be done.
        """
        leaves = layouts_of(draft.arrays)
        key = (draft.key, mesh, leaves, wanted, algorithm)
        found = self._known.get(key)
        if found is None:
            program = draft.program(Spread)
            asked = {program.kept[place]: layout for place, layout in wanted}
            is_long = bytes_after(program) >= MIN_BYTES_AFTER * mesh.size
            lowered = lower(program, mesh, leaves, asked, algorithm=algorithm, reads_parts=is_long)
            if len(self._known) >= MAX_PROGRAMS:
                self._known.clear()
            found = self._known[key] = MeshProgram(number(), program, lowered, is_long)
        return found


def layouts_of(leaves: Sequence[Node]) -> tuple[Layout | None, ...]:
    """How each lies; None for what is in the arena."""
    return tuple([one.value.layout if type(one.value) is Spread else None for one in leaves])
