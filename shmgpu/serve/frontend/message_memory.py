"""What messages over gRPC hold in a worker: nothing before they may come, and bounded afterwards.

Owns that memory's count, which is not in the arena: how many bytes of requests a worker holds that
are not answered, and of how many calls it receives a message at once. Whoever is beyond waits, or
is refused, before its message takes any memory. Messages that were compressed come so, and are
decompressed one by one. Never reads a message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from shmgpu.serve.frontend.answer_memory import AnswerMemory
from shmgpu.serve.frontend.answer_pace import AnswerPace
from shmgpu.serve.frontend.compression import coding_of
from shmgpu.serve.protocol.types import ProtocolError

Inflate = Callable[[bytes, bytes], Awaitable[bytes]]  # a message, and how it was compressed

AT_ONCE = 16  # calls whose messages come at once
PATIENCE_S = 0.25  # until one that does not come is not counted as coming
FULL = ProtocolError(503, "the server has no memory left for this request: try again")


class MessageMemory:
    """What requests of one worker hold.

    Args:
        most: bytes of requests that are not answered, one more may come; and of answers.
        seconds: that a call may wait until its message may come, and that this may take.

    Attributes:
        answers: what those hold.
        pace: when calls may begin beside large ones.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.held = 0
        self.answers = AnswerMemory(most)
        self.pace = AnswerPace(self.answers)
        self._coming: dict[int, float] = {}  # since when, by id
        self._waiting: deque[asyncio.Future[ComingMessage | None]] = deque()
        self._timer: Any = None

    def is_free(self) -> bool:
        """Whether a message may come."""
        return self.held < self.most and len(self._coming) < AT_ONCE and not self._waiting

    def has_room(self) -> bool:
        """Whether one that is here already may stay."""
        return self.held < self.most

    def begin(self) -> ComingMessage:
        """A message may come now."""
        made = ComingMessage(self)
        self._coming[id(made)] = time.monotonic()
        return made

    async def wait(self) -> ComingMessage:
        """The same, when it may.

        Raises:
            ProtocolError: status 503; it took too long.
        """
        if self.is_free():
            return self.begin()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[ComingMessage | None] = loop.create_future()

        def late() -> None:
            if not turn.done():
                turn.set_result(None)

        self._waiting.append(turn)
        if self._timer is None:
            self._tick()
        timer = loop.call_later(self.seconds, late)
        try:  # not by wait_for(), which may swallow that its task was cancelled
            made = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and (given := turn.result()) is not None:
                given.close()
            raise
        finally:
            timer.cancel()
        if made is None:
            raise FULL
        return made

    def arrived(self, coming: ComingMessage, size: int) -> None:
        """It has so many bytes."""
        self._coming.pop(id(coming), None)
        self.held += size
        if self._waiting:
            self._wake()

    def ended(self, coming: ComingMessage) -> None:
        """It is answered, or will not come."""
        self._coming.pop(id(coming), None)
        self.held -= coming.size
        if self._waiting:
            self._wake()

    def forget(self, coming: ComingMessage) -> None:
        """It did not come, as is seen in whatever thread its call was dropped."""
        self._coming.pop(id(coming), None)

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and self.held < self.most and len(self._coming) < AT_ONCE:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(self.begin())

    def _tick(self) -> None:
        """While some wait: those that are slow do not keep them out."""
        old = time.monotonic() - PATIENCE_S
        for key, since in list(self._coming.items()):
            if since < old:
                self._coming.pop(key, None)
        self._wake()
        self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._tick)


class ComingMessage:
    """A message that comes, or has come."""

    __slots__ = ("_memory", "is_over", "size")

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self.size = 0
        self.is_over = False

    def arrived(self, size: int) -> None:
        """It has come, and has so many bytes."""
        self._memory.arrived(self, size)
        self.size = size

    def grew(self, size: int) -> None:
        """It was decompressed, and has so many bytes now.

        Raises:
            ProtocolError: status 503; these are too many beside the others'.
        """
        memory = self._memory
        if memory.held > self.size and memory.held - self.size + size > memory.most:
            raise FULL
        memory.held += size - self.size
        self.size = size

    def close(self) -> None:
        """It is answered, or will not come."""
        if not self.is_over:
            self.is_over = True
            self._memory.ended(self)

    def __del__(self) -> None:
        if not self.is_over:
            self._memory.forget(self)


async def inflated(inflate: Inflate, data: bytes, coming: ComingMessage) -> bytes:
    """A message as it was before it was compressed.

    Raises:
        ProtocolError: it cannot be decompressed, or takes too much memory then.
    """
    found = await inflate(data, coding_of(data))
    coming.grew(len(found))
    return found
