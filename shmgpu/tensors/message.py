"""A message to a helper: a program and its arguments; and the values that tensors can have.

A value is in the arena, or a helper holds it, or members of a mesh hold its pieces, or it is lost.
Owns what a child knows of each helper, and the interfaces of the recorder's observer and of the
placer of meshes: the recorder calls both without knowing who they are. Never sends.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Set
from typing import Any, Protocol

from shmgpu import core
from shmgpu.ops.graph import Node
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.redistribution import REDISTRIBUTE


class Held:
    """A value that is not changed any more: in this child's arena, at ``address``.

    Or elsewhere, if that address is not the arena's: whoever sends it places it there.
    """

    __slots__ = ("address", "array")

    def __init__(self, array: Any, address: int) -> None:
        self.array = array
        self.address = address


class HelperIncarnation:
    """One helper, as this child knows it, until it dies: its replacement holds nothing.

    Attributes:
        number: the helper's.
        told: numbers of the programs that it knows.
        unneeded: handles that it may let go of.
        nbytes: of what it holds for this child.
        answered: order of the newest message that it has answered.
        reading: arrays of that, where it goes on with it after the answer: it may read them until
            it answers the next.
        is_over: it died, or was let go.
        was_let_go: its pool was scaled.
        died_over: order of the first message that told so: what is later, its replacement has done.
    """

    __slots__ = (
        "answered",
        "died_over",
        "is_over",
        "nbytes",
        "number",
        "reading",
        "told",
        "unneeded",
        "was_let_go",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: set[int] = set()
        self.unneeded: deque[tuple[int, int]] = deque()
        self.nbytes = 0
        self.answered = 0
        self.reading: list[Any] = []
        self.is_over = False
        self.was_let_go = False
        self.died_over = 0

    def is_idle(self) -> bool:
        """Whether it has nothing to do, for whichever child."""
        row = core.helper_stats(self.number)
        return not row["in_flight"] and not row["goes_on"]

    def heard(self, message: MessageLike) -> None:
        """It has answered that message, and so has done all of the earlier ones."""
        if message.order > self.answered:
            self.answered = message.order
            self.reading = message.arrays if core.helper_goes_on(self.number) else []

    def wait(self) -> None:
        """Until it does nothing more for messages that it has answered."""
        began = row = core.helper_stats(self.number)
        # Wait until it has ended one step, and not for others' steps as well.
        while row["goes_on"] and row["pid"] and row["went_on"] == began["went_on"]:
            time.sleep(1e-4)
            row = core.helper_stats(self.number)


class RemoteValue:
    """A value that a helper holds; let go of when nobody here knows it any more."""

    __slots__ = ("handle", "is_ours", "life", "nbytes", "recorder")

    def __init__(self, recorder: object, life: HelperIncarnation, handle: int, nbytes: int) -> None:
        self.recorder = recorder
        self.life = life
        self.handle = handle
        self.nbytes = nbytes
        self.is_ours = True  # until it is donated

    def __del__(self) -> None:
        if self.is_ours:
            # A finalizer may run anywhere, in any thread: it only notes.
            self.life.unneeded.append((self.handle, self.nbytes))


class Spread:
    """A value that lies on a mesh: each member holds its piece, all under one handle.

    Attributes:
        layout: which piece each member has (:class:`shmgpu.distributed.layout.Layout`).
        lives: the members, by rank.
        nbytes: of each member's piece.
        whole: all of it in the arena, once somebody has looked.
    """

    __slots__ = ("handle", "is_ours", "layout", "lives", "nbytes", "recorder", "whole")

    def __init__(
        self,
        recorder: object,
        layout: Any,
        lives: list[HelperIncarnation],
        handle: int,
        nbytes: tuple[int, ...],
    ) -> None:
        self.recorder = recorder
        self.layout = layout
        self.lives = lives
        self.handle = handle
        self.nbytes = nbytes
        self.whole: Held | None = None
        self.is_ours = True  # until it is donated

    def __del__(self) -> None:
        if self.is_ours:
            for life, nbytes in zip(self.lives, self.nbytes, strict=True):
                life.unneeded.append((self.handle, nbytes))


def said(node: Node) -> Any:
    """How that lies, or shall: as what it replaces in place; None where nobody has said."""
    while True:
        value = node.value
        if type(value) is Spread:
            return value.layout
        if value is None and node.op is REDISTRIBUTE and len(node.params) == 1:
            return node.params[0]
        if value is not None or node.undo is None:
            return None
        node = node.undo[1]


class LostValue:
    """A value that will never be there: its helper died, or what made it failed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Known:
    """A program that was made: its number, its bytes, how its plain numbers are packed."""

    __slots__ = ("code", "number", "numbers")

    def __init__(self, number: int, code: bytes, numbers: struct.Struct) -> None:
        self.number = number
        self.code = code
        self.numbers = numbers


class Message:
    """A program on its way: what is sent, to whom, and what it makes.

    Attributes:
        nodes: what its steps compute.
        alive: those of them that keep their history after it.
        residents: what it is given that a helper holds, as nodes and their handles.
        cleared: of a message that nobody waits for: what its nodes were made of. They may be let
            go of while it is under way, and be needed again if it fails.
    """

    __slots__ = (
        "alive",
        "arrays",
        "cleared",
        "donated",
        "freed",
        "handles",
        "head",
        "kept",
        "known",
        "life",
        "nodes",
        "order",
        "read",
        "residents",
        "seen",
        "tries",
    )

    seen: Any  # an observer's
    alive: Set[Node]
    life: HelperIncarnation
    known: Known
    order: int
    tries: int
    head: bytes
    handles: list[int]
    arrays: list[Held]
    freed: list[tuple[int, int]]
    kept: list[Node]
    read: list[Node]
    donated: list[Node]
    nodes: list[Node]
    residents: list[tuple[int, Node]]
    cleared: list[tuple[Node, tuple[Node, ...]]]


class MessageLike(Protocol):
    """What a message to one helper, and one to all members of a mesh, have in common.

    Attributes are those of :class:`Message`.
    """

    arrays: list[Held]
    cleared: list[tuple[Node, tuple[Node, ...]]]
    donated: list[Node]
    kept: list[Node]
    order: int
    read: list[Node]
    residents: list[tuple[int, Node]]


class Placer(Protocol):
    """Runs programs whose tensors lie on a mesh; see :mod:`shmgpu.parallel`.

    There is none before the first mesh is made. It is called while the recorder is held.
    """

    def compute(self, read: list[Node], wait: bool) -> list[Node]:
        """Have done what lies on a mesh of all that waits; what is left to be read elsewhere."""

    def settle(self, at_most: int) -> bool:
        """Hear of messages that nobody waited for, until so many are left.

        Returns:
            Whether any failed: what is not lost of them waits again.
        """


class Observer(Protocol):
    """What debugging is told; see :mod:`shmgpu.debug`.

    It is called while the recorder is held, and must keep no node: who knows one is counted.
    """

    def drafted(self, message: Message, draft: ProgramDraft, is_move: bool) -> None:
        """A message is about to be sent. A move's only reads; its target is the next message's."""

    def delivered(self, message: Message, is_answered: bool) -> None:
        """Its helper has it, and what it keeps has handles; later: has answered it."""

    def failed(self, message: Message, error: BaseException) -> None:
        """What it would have made will not be."""

    def spread(self, message: Any, is_answered: bool) -> None:
        """Members of a mesh have it, and what it keeps has handles; later: have answered it."""

    def undone(self, message: Any, error: BaseException) -> None:
        """Members had it, and nothing of it was done: all is as it was before."""

    def died(self, helper: int) -> None:
        """A helper is no more, nor what it held; its replacement has its number."""
