"""One message to all members of a mesh: what is sent, to whom, and what it makes.

Owns the form. Each member has a head of its own, because each lets go of other tensors, and an
output buffer of its own. Never sends.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from typing import Any

from shmgpu.child.gang_calls import GangCall, GangCallPlan, MemberBlock
from shmgpu.child.port import Port
from shmgpu.functions import Function
from shmgpu.ops.graph import Node
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.program_message import COMMITS, HEAD, SAYS
from shmgpu.ops.program_message import handles as packed_handles
from shmgpu.parallel.programs import MeshProgram
from shmgpu.tensors.failures import nothing_was_done
from shmgpu.tensors.message import Held, HelperIncarnation, Spread


class MeshMessage:
    """A program on its way to the members of a mesh.

    Attributes:
        program: what they run.
        lives: the members, by rank.
        first: handle of the first value that is kept.
        numbers: the plain numbers, as they are sent.
        arrays: of the arena.
        loaded: the nodes that have them.
        residents: what it is given that members hold, as nodes and their handles.
        donated: those of them that nobody needs afterwards.
        nodes: what its steps compute.
        kept, read: which of them stay, and which are looked at.
        cleared: of one that nobody waits for: what its nodes were made of.
        freed: of each member the handles (and bytes) that it may let go of.
        order: rises from message to message.
        says: what is read is looked at before it has ended.
        is_out: it is on its way, and nobody has waited for its end.
    """

    __slots__ = (
        "alive",
        "arrays",
        "cleared",
        "donated",
        "first",
        "freed",
        "is_out",
        "kept",
        "lives",
        "loaded",
        "nodes",
        "numbers",
        "order",
        "program",
        "read",
        "residents",
        "says",
        "seen",
    )

    alive: Set[Node]
    order: int
    seen: Any  # an observer's

    def __init__(
        self,
        program: MeshProgram,
        draft: ProgramDraft,
        lives: list[HelperIncarnation],
        first: int,
    ) -> None:
        self.program = program
        self.lives = lives
        self.first = first
        self.numbers = program.numbers.pack(*draft.numbers, *program.constants)
        self.arrays: list[Held] = [one.value for one in draft.arrays if type(one.value) is Held]
        self.loaded = [node for node in draft.arrays if type(node.value) is Held]
        self.residents = [(node.value.handle, node) for node in draft.residents]
        self.donated = draft.donated
        self.nodes = draft.order
        self.kept = draft.kept
        self.read = draft.read
        self.cleared: list[tuple[Node, tuple[Node, ...]]] = []
        self.freed: list[list[tuple[int, int]]] = []
        self.says = self.is_out = False

    def take_freed(self) -> None:
        """Have it tell members what they may let go of."""
        self.freed = []
        for life in self.lives:
            unneeded = life.unneeded
            self.freed.append([unneeded.popleft() for _ in range(len(unneeded))])

    def give_freed_back(self) -> None:
        """It was not sent."""
        for life, freed in zip(self.lives, self.freed, strict=True):
            life.unneeded.extendleft(reversed(freed))
        self.freed = []

    def call(
        self, port: Port, execute: Function[..., Any], plans: dict[Any, GangCallPlan], flags: int
    ) -> GangCall:
        """The message as it is sent."""
        program, number = self.program, self.program.number
        mesh = program.lowered.mesh
        key = (mesh.helpers, port.transport.number)
        plan = plans.get(key)
        if plan is None:
            plans.clear()
            plan = plans[key] = GangCallPlan(
                execute.row, 0, mesh.helpers, execute.name, port.transport.number
            )
        call = plan.idle.pop() if plan.idle else GangCall(plan, port.arena)
        assert isinstance(call, GangCall)
        flags |= COMMITS
        addresses = [one.address for one in self.arrays]
        handles = [handle for handle, _ in self.residents]
        blocks: list[Any] = [None] * mesh.size
        for rank, life in enumerate(self.lives):
            freed = [handle for handle, _ in self.freed[rank]]
            output_bytes = program.output_bytes[rank]
            says = self.says and output_bytes > 0  # there is no word before another buffer
            options = flags | SAYS if says else flags
            head = HEAD.pack(number, options, self.first, len(handles), len(freed))
            if handles or freed:
                head += packed_handles(len(handles) + len(freed)).pack(*handles, *freed)
            code = b"" if number in life.told else program.codes[rank]
            # A gang's members stand in the order of their numbers, whatever the mesh's is.
            blocks[mesh.places[rank]] = MemberBlock(
                head + self.numbers, code, addresses, output_bytes, says
            )
        call.fill(blocks, port.arena)
        return call

    def delivered(self, recorder: object) -> None:
        """It is out, or answered: what it keeps has handles, what it was given for good is gone."""
        program, lives = self.program, self.lives
        donated = [node.value for node in self.donated]
        for rank, life in enumerate(lives):
            life.told.add(program.number)
            life.nbytes += program.kept_bytes[rank]
            life.nbytes -= sum([nbytes for _, nbytes in self.freed[rank]])
            life.nbytes -= sum([value.nbytes[rank] for value in donated])
        for value in donated:
            value.is_ours = False
        for handle, (node, (layout, sizes)) in enumerate(
            zip(self.kept, program.kept, strict=True), self.first
        ):
            node.value = Spread(recorder, layout, lives, handle, sizes)

    def count_into(self, counts: dict[Node, int]) -> None:
        """Add how often this refers to each node that is counted."""
        lists = (self.nodes, self.kept, self.read, self.loaded, self.donated, self.alive)
        for node in chain(*lists):
            if node in counts:
                counts[node] += 1
        for _, node in self.residents:
            if node in counts:
                counts[node] += 1
        for node, inputs in self.cleared:
            # A node that still has its inputs refers to them itself.
            for one in (node,) if node.inputs is inputs else (node, *inputs):
                if one in counts:
                    counts[one] += 1

    def take_back(self) -> None:
        """Nothing of it was done, though it was out: its nodes are what they were."""
        for rank, life in enumerate(self.lives):
            life.nbytes += sum([nbytes for _, nbytes in self.freed[rank]])
        self.give_freed_back()
        for node in nothing_was_done(self, Spread):
            for rank, life in enumerate(self.lives):
                life.nbytes += node.value.nbytes[rank]
