"""What a child's tensors did, written down as it happens: the observer of the recorder.

Owns which rows there are, and what each is made of. Never keeps a node, because the recorder counts
references.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
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

    def died(self, helper: int) -> None:
        """Forget what it held."""
        self.handles = {key: row for key, row in self.handles.items() if key[0] != helper}
        self.instructions.add(Instruction(self._next - 1, "DIED", helper, 0))

    # ---- rows ------------------------------------------------------------------------------------

    def _moved(self, seen: _Seen) -> None:
        [leaf] = seen.leaves
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
