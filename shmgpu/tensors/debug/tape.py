"""What a child's tensors did, written down as it happens: the observer of the recorder.

Owns which rows there are, and what each is made of. Never keeps a node, because the recorder counts
references.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from shmgpu.ops.graph import Node, Scalar
from shmgpu.ops.program import ProgramDraft
from shmgpu.tensors.debug.ledger import Ledger
from shmgpu.tensors.debug.rows import Bounded, Handle, Instruction, Operation, Sent
from shmgpu.tensors.message import Message, RemoteValue


class _Seen:
    """What is known of a message between its draft and its delivery."""

    __slots__ = ("is_written", "leaves", "operations", "reused", "sent")

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.is_written = False
        self.operations: list[Operation] = []
        self.leaves: list[Instruction] = []
        self.reused: list[Instruction] = []


@dataclass
class _Spread:
    """A message to the members of a mesh, as far as it was seen.

    Attributes:
        sent: of each member.
        kept: rows of what they keep.
        gone: what they let go of.
    """

    sent: list[Sent]
    kept: list[Instruction] = field(default_factory=list)
    gone: list[Handle] = field(default_factory=list)


class Tape:
    """The observer: see :class:`shmgpu.tensors.message.Observer`."""

    def __init__(self, limit: int) -> None:
        self.started_ns = time.monotonic_ns()
        self.before = Ledger()  # as it was when the oldest row that is left was written
        self.operations: Bounded[Operation] = Bounded(limit)
        self.instructions: Bounded[Instruction] = Bounded(limit, self.before.apply)
        self.messages: Bounded[Sent] = Bounded(limit)
        self.handles: dict[tuple[int, int], Handle] = {}  # by helper and handle
        self.counts: dict[int, Counter[str]] = {}
        self._next = 1
        self._moves: list[Instruction] = []

    # ---- as the recorder calls it ----------------------------------------------------------------

    def drafted(self, message: Message, draft: ProgramDraft, is_move: bool) -> None:
        """Note what it is made of."""
        number, helper = self._next, message.life.number
        self._next += 1
        names: Counter[str] = Counter(_name(node) for node in draft.order)
        seen = _Seen(Sent(number, helper, time.monotonic_ns(), names, is_move))
        seen.operations = [operation_of(node, number) for node in draft.order]
        for node in draft.arrays:
            value = node.value
            kind, handle = ("USE", value.handle) if type(value) is RemoteValue else ("LOAD", 0)
            seen.leaves.append(
                Instruction(number, kind, helper, node.number, handle, nbytes=node.spec.nbytes)
            )
            seen.sent.nbytes += node.spec.nbytes
        for node in message.donated:
            seen.reused.append(Instruction(number, "REUSE", helper, node.number, node.value.handle))
        message.seen = seen

    def delivered(self, message: Message, is_answered: bool) -> None:
        """Write its rows; the second time only when it was answered."""
        seen: _Seen | None = getattr(message, "seen", None)
        if seen is None:  # drafted before anybody looked
            return
        if is_answered:
            seen.sent.answered_ns = time.monotonic_ns()
        if seen.is_written:
            return
        seen.is_written = True
        self.messages.add(seen.sent)
        if seen.sent.is_move:
            self._moved(seen)
        else:
            self._ran(message, seen)

    def failed(self, message: Message, error: BaseException) -> None:
        """Note why; what it was to make has no rows."""
        seen: _Seen | None = getattr(message, "seen", None)
        if seen is not None:
            seen.sent.error = f"{type(error).__name__}: {error}"
            seen.sent.answered_ns = time.monotonic_ns()
            if not seen.is_written:
                seen.is_written = True
                self.messages.add(seen.sent)

    def spread(self, message: Any, is_answered: bool) -> None:
        """Write the rows of all members of a mesh; the second time only that it was answered."""
        seen: _Spread | None = getattr(message, "seen", None)
        if seen is None:
            seen = message.seen = self._spread(message)
        if is_answered:
            for sent in seen.sent:
                sent.answered_ns = time.monotonic_ns()

    def undone(self, message: Any, error: BaseException) -> None:
        """Write that nothing of a message to a mesh was done, whose rows are written."""
        seen: _Spread | None = getattr(message, "seen", None)
        if seen is None:
            return
        add = self.instructions.add
        for sent in seen.sent:
            sent.error = f"{type(error).__name__}: {error}"
            sent.answered_ns = time.monotonic_ns()
            for row in seen.kept:
                if row.helper == sent.helper:
                    self.handles.pop((row.helper, row.handle), None)
                    add(replace(row, kind="FREE"))
        for held in seen.gone:
            self.handles[held.helper, held.handle] = held
            add(
                Instruction(
                    seen.sent[0].number,
                    "KEEP",
                    held.helper,
                    held.tensor,
                    held.handle,
                    nbytes=held.nbytes,
                )
            )

    def died(self, helper: int) -> None:
        """Forget what it held."""
        self.handles = {key: row for key, row in self.handles.items() if key[0] != helper}
        self.instructions.add(Instruction(self._next - 1, "DIED", helper, 0))

    # ---- rows ------------------------------------------------------------------------------------

    def _moved(self, seen: _Seen) -> None:
        [leaf] = seen.leaves
        held = self.handles.get((leaf.helper, leaf.handle))
        if held is not None:  # a copy for the replacement of one that died is called otherwise
            leaf = replace(leaf, tensor=held.tensor)
        self._moves.append(replace(leaf, kind="MOVE", source=leaf.helper))

    def _ran(self, message: Message, seen: _Seen) -> None:
        number, helper = seen.sent.number, seen.sent.helper
        add = self.instructions.add
        for move in self._moves:  # their target is known with the next message
            add(replace(move, helper=helper))
        self._moves = []
        for handle, nbytes in message.freed:
            kept = self.handles.pop((helper, handle), None)
            tensor = 0 if kept is None else kept.tensor
            add(Instruction(number, "FREE", helper, tensor, handle, nbytes=nbytes))
        for leaf in seen.leaves:
            add(leaf)
        for one in seen.operations:
            self.operations.add(one)
            add(Instruction(number, "RUN", helper, one.tensor, inputs=one.inputs, call=one.call))
        self.counts.setdefault(helper, Counter()).update(seen.sent.operations)
        for row in seen.reused:
            self.handles.pop((helper, row.handle), None)
            add(row)
        for node in message.kept:
            spec, handle = node.spec, node.value.handle
            self.handles[helper, handle] = Handle(
                node.number, helper, handle, spec.dtype.name, spec.shape, spec.nbytes
            )
            add(Instruction(number, "KEEP", helper, node.number, handle, nbytes=spec.nbytes))
        for node in message.read:
            add(Instruction(number, "READ", helper, node.number, nbytes=node.spec.nbytes))

    def _spread(self, message: Any) -> _Spread:
        """A member's rows are those of a message of its own, with the meetings among them."""
        number = self._next
        self._next += 1
        names: Counter[str] = Counter(_name(node) for node in message.nodes)
        operations = [operation_of(node, number) for node in message.nodes]
        for one in operations:
            self.operations.add(one)
        helpers = [life.number for life in message.lives]
        now = time.monotonic_ns()
        seen = _Spread([Sent(number, helper, now, names) for helper in helpers])
        for rank, sent in enumerate(seen.sent):
            self.messages.add(sent)
            self.counts.setdefault(sent.helper, Counter()).update(names)
            self._of_member(message, seen, rank, operations)
        return seen

    def _of_member(
        self, message: Any, seen: _Spread, rank: int, operations: list[Operation]
    ) -> None:
        number, helper = seen.sent[rank].number, seen.sent[rank].helper
        add = self.instructions.add
        for move in self._moves:
            add(replace(move, helper=helper))
        self._moves = []
        for handle, nbytes in message.freed[rank]:
            gone = self.handles.pop((helper, handle), None)
            tensor = 0
            if gone is not None:
                seen.gone.append(gone)
                tensor = gone.tensor
            add(Instruction(number, "FREE", helper, tensor, handle, nbytes=nbytes))
        for node in message.loaded:
            add(Instruction(number, "LOAD", helper, node.number, nbytes=node.spec.nbytes))
        for handle, node in message.residents:
            nbytes = node.value.nbytes[rank]
            if (helper, handle) not in self.handles:  # a replacement was given it
                self._keep(number, helper, node, handle, nbytes)
            add(Instruction(number, "USE", helper, node.number, handle, nbytes=nbytes))
        meetings: dict[int, list[Instruction]] = {}
        for one in message.program.lowered.collectives:
            row = Instruction(
                number, "MEET", helper, 0, nbytes=one.nbytes[rank], call=f"{one.kind} {one.number}"
            )
            meetings.setdefault(min(one.steps, default=len(operations)), []).append(row)
        for place, done in enumerate(operations):
            for row in meetings.pop(place, ()):
                add(row)
            add(Instruction(number, "RUN", helper, done.tensor, inputs=done.inputs, call=done.call))
        for rows in meetings.values():
            for row in rows:
                add(row)
        for node in message.donated:
            gone = self.handles.pop((helper, node.value.handle), None)
            if gone is not None:
                seen.gone.append(gone)
            add(Instruction(number, "REUSE", helper, node.number, node.value.handle))
        for node in message.kept:
            row = self._keep(number, helper, node, node.value.handle, node.value.nbytes[rank])
            seen.kept.append(row)
        lowered = message.program.lowered
        for place in lowered.readers[rank]:
            node = message.read[place]
            nbytes = lowered.read[place].local_spec(rank, node.spec).nbytes
            add(Instruction(number, "READ", helper, node.number, nbytes=nbytes))

    def _keep(self, number: int, helper: int, node: Node, handle: int, nbytes: int) -> Instruction:
        spec = node.spec
        self.handles[helper, handle] = Handle(
            node.number, helper, handle, spec.dtype.name, spec.shape, nbytes
        )
        row = Instruction(number, "KEEP", helper, node.number, handle, nbytes=nbytes)
        self.instructions.add(row)
        return row


def _name(node: Node) -> str:
    return "leaf" if node.op is None else node.op.name


def operation_of(node: Node, message: int = 0) -> Operation:
    """The row of a node."""
    written = [
        f"{one.value.number}" if type(one.value) is Scalar else f"#{one.number}"
        for one in node.inputs
    ]
    written += [_parameter(one) for one in node.params]
    return Operation(
        message=message,
        tensor=node.number,
        op=_name(node),
        inputs=tuple([one.number for one in node.inputs if type(one.value) is not Scalar]),
        call=f"{_name(node)}({', '.join(written)})",
        dtype=node.spec.dtype.name,
        shape=node.spec.shape,
        requires_grad=node.needs_grad,
    )


def _parameter(value: Any) -> str:
    return str(getattr(value, "name", value))
