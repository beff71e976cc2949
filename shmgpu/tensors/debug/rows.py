"""Rows: what is written down of a child's tensors.

Owns their form. An *operation* is what the program recorded (the input tape); an *instruction* is
what a helper was told because of it (the output queue). Both lists are bounded, and dropped rows
are counted. Rows hold numbers and names, never a node, because the recorder counts references.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

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
        kind: ``FREE`` a handle is released; ``MOVE`` a tensor leaves helper ``source`` for
            ``helper``, through the arena; ``LOAD`` an array of the arena is read where it lies;
            ``USE`` a tensor that the helper holds is; ``RUN`` an operation; ``MEET`` members of a
            mesh exchange pieces, and ``nbytes`` come from others; ``KEEP`` what it made stays and
            gets a handle; ``READ`` what it made goes to the arena; ``REUSE`` the memory of a tensor
            that nobody needs is taken for another; ``DIED`` the helper did, and all that it held
            is gone.
        helper: where.
        tensor: number of the tensor; 0 where only the handle is known.
        handle: of the tensor in that helper; 0: it has none.
        source: where a MOVE begins; -1 elsewhere.
        nbytes: of the tensor.
        inputs: numbers of the tensors that a RUN takes.
        call: what a RUN does, or what a MEET is.
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
