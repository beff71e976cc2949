"""What a child's tensors did, written down as it happens: the observer of the recorder.

Owns the rows. An *operation* is what the program recorded (the input tape); an *instruction* is
what became of it on some helper (the output queue). Both are bounded, and what is dropped is
counted.
Keeps numbers and names, never a node: the recorder counts who knows one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from shmgpu.ops.graph import Node, Scalar
from shmgpu.ops.program import Draft
from shmgpu.tensors.debug.ledger import Ledger
from shmgpu.tensors.recorder import Message, Resident

Row = TypeVar("Row")


@dataclass(frozen=True)
class Operation:
    """What was recorded.

    Attributes:
        message: number of the message that it went with; 0: it waits to be needed.
        tensor: number of what it makes.
        op: name of the operation.
        inputs: numbers of the tensors that it takes.
        call: how a program would write it, ``"mul(#3, 2.0)"``.
        requires_grad: gradients flow through it.
    """

    message: int
    tensor: int
    op: str
    inputs: tuple[int, ...]
    call: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class Instruction:
    """What a helper did, or was given.

    Attributes:
        message: number of the message that it belongs to.
        kind: ``FREE`` a handle is let go of; ``MOVE`` a tensor leaves helper ``source`` for
            ``helper``, through the arena; ``LOAD`` an array of the arena is read where it lies;
            ``USE`` a tensor that the helper holds is; ``RUN`` an operation; ``KEEP`` what it made
            stays and gets a handle; ``READ`` what it made goes to the arena; ``REUSE`` the memory
            of a tensor that nobody needs is taken for another; ``DIED`` the helper did, and all
            that it held is gone.
        helper: where.
        tensor: number of the tensor; 0 where only the handle is known.
        handle: of the tensor in that helper; 0: it has none.
        source: where a MOVE begins; -1 elsewhere.
        nbytes: of the tensor.
        inputs: numbers of the tensors that a RUN takes.
        call: what a RUN does.
    """

    message: int
    kind: str
    helper: int
    tensor: int
    handle: int = 0
    source: int = -1
    nbytes: int = 0
    inputs: tuple[int, ...] = ()
    call: str = ""


@dataclass(frozen=True)
class Handle:
    """A tensor that a helper holds."""

    tensor: int
    helper: int
    handle: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass
class Sent:
    """One message: when it was sent, was known to be with its helper, and was answered (ns)."""

    number: int
    helper: int
    sent_ns: int
    operations: Counter[str]
    is_move: bool = False
    nbytes: int = 0
    answered_ns: int = 0
    error: str = ""


class Bounded(Generic[Row]):
    """The newest rows, and how many older ones were dropped."""

    def __init__(self, limit: int, on_drop: Callable[[Row], object] | None = None) -> None:
        self._rows: deque[Row] = deque()
        self._limit = limit
        self._on_drop = on_drop
        self.dropped = 0

    def add(self, row: Row) -> None:
        """Add the newest row; the oldest may have to go."""
        self._rows.append(row)
        if len(self._rows) > self._limit:
            oldest = self._rows.popleft()
            self.dropped += 1
            if self._on_drop is not None:
                self._on_drop(oldest)

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._rows))

    def __len__(self) -> int:
        return len(self._rows)


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
    """The observer: see :class:`shmgpu.tensors.recorder.Observer`."""

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

    def drafted(self, message: Message, draft: Draft, is_move: bool) -> None:
        """Note what it is made of."""
        number, helper = self._next, message.life.number
        self._next += 1
        names: Counter[str] = Counter(_name(node) for node in draft.order)
        seen = _Seen(Sent(number, helper, time.monotonic_ns(), names, is_move))
        seen.operations = [operation_of(node, number) for node in draft.order]
        for node in draft.arrays:
            value = node.value
            kind, handle = ("USE", value.handle) if type(value) is Resident else ("LOAD", 0)
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
        for move in self._moves:  # where they went is known with what they went for
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
