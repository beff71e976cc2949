"""Arena memory for the bodies of requests: no more than has come, or is about to come.

Owns how much of a worker's arena a body gets, and when. A body whose length is announced gets all
of its memory at once, as long as no more than a quarter of the arena waits for bytes that have not
come, or nobody else does. Beyond that, and where no length is announced, a body gets a little, and
twice as much as it has whenever that is full: so whoever sends nothing holds next to nothing. Never
reads a body, never waits.
"""

from __future__ import annotations

from shmgpu.child.memory import Arena
from shmgpu.codec.arrays import ALIGNMENT

LEAST_FIRST, MOST_FIRST = 4 << 10, 64 << 10  # bytes that every body gets at once


class BodyMemory:
    """What one worker's bodies are given.

    Args:
        arena: of the worker.
        connections: that it may have at once.
        most: bytes of a body.

    Attributes:
        ahead: bytes that were given at once to bodies that are not whole.
    """

    def __init__(self, arena: Arena, connections: int, most: int) -> None:
        self.arena = arena
        self.most = most
        self.ahead = 0
        self.most_ahead = arena.capacity // 4
        # Half of the arena is enough for the beginnings of all connections' bodies.
        share = arena.capacity // 2 // connections
        self.first = min(max(share, LEAST_FIRST), MOST_FIRST)

    def begin(self, length: int, header_length: int | None) -> Body:
        """Memory for a body of so many bytes; -1: nobody knows how many.

        Raises:
            ArenaFull: there is none left.
        """
        # What follows the JSON header is to be aligned.
        before = -header_length % ALIGNMENT if header_length and header_length > 0 else 0
        body = Body(self, length, before)
        size = self.first
        if 0 <= length <= size:
            size = length
        elif length > 0 and (not self.ahead or self.ahead + length <= self.most_ahead):
            size = body.ahead = length
            self.ahead += length
        body.reserve(size)
        return body


class Body:
    """One body that is coming in.

    Attributes:
        filled: bytes that have come.
        ahead: bytes that it was given before they came.
        view: the memory that it has; all bodies are contiguous.
    """

    __slots__ = ("_before", "_buffer", "_length", "_memory", "ahead", "filled", "view")

    def __init__(self, memory: BodyMemory, length: int, before: int) -> None:
        self._memory = memory
        self._length = length
        self._before = before
        self.ahead = 0
        self.filled = 0
        self.view = memoryview(b"")

    def reserve(self, size: int) -> None:
        """Have memory for so many bytes, and in it what has come."""
        buffer, _ = self._memory.arena.allocate(size + self._before)
        self._buffer = buffer
        view = memoryview(buffer)[self._before :]
        view[: self.filled] = self.view[: self.filled]
        self.view = view

    def came(self, count: int) -> bool:
        """So many bytes more were received into the memory; whether the body is whole now.

        Raises:
            ArenaFull: it is not, and there is no memory for the rest.
        """
        self.filled += count
        if self.filled == self._length:
            return True
        if self.filled == len(self.view) < self._memory.most:
            self._grow(0)
        return False

    def put(self, data: bytes) -> None:
        """Copy what came by another way.

        Raises:
            ArenaFull: there is no memory for it.
        """
        if self.filled + len(data) > len(self.view):
            self._grow(len(data))
        self.view[self.filled : self.filled + len(data)] = data
        self.came(len(data))

    def _grow(self, more: int) -> None:
        size = max(2 * self.filled, self.filled + more)
        self.reserve(min(size, self._length if self._length >= 0 else self._memory.most))

    def close(self) -> memoryview:
        """The bytes that have come; no more will."""
        self._memory.ahead -= self.ahead
        self.ahead = 0
        if len(self.view) > self.filled > 0:
            self._memory.arena.shrink(self._buffer, self._before + self.filled)
        return self.view[: self.filled]
