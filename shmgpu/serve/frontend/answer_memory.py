"""What answers over gRPC hold in a worker until their clients have taken them.

Owns that memory's count, in all and by connection, and the order in which answers get room. One for
which there is none waits in the arena, as its helper left it, and its request's message is let go:
so nothing that waits keeps what others need. Only so many bytes wait there. Never sends an answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.serve.protocol.types import ProtocolError

UNREAD = "too many answers wait to be read: read those, then try again"


class AnswerMemory:
    """Of one worker.

    Args:
        most: bytes of answers that their clients have not taken. A connection may have half of
            them, or one answer; and half as many may wait in the arena.

    Attributes:
        unread: bytes of answers that have room.
        waiting: bytes of those that wait for it.
        when_made: called with the connection and the size of an answer that may wait.
        when_freed: called when there may be room again, here or in the arena.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.unread = 0
        self.waiting = 0
        self._unread_by: dict[str, int] = {}  # by connection
        self._waiting_by: dict[str, int] = {}  # likewise
        self._queues: dict[str, deque[UnreadAnswer]] = {}  # of those that wait; none is empty
        self._numbers = itertools.count()
        self._is_due = False  # whoever is next gets its turn soon
        self.when_made: Callable[[str, int], None] | None = None
        self.when_freed: Callable[[], None] | None = None

    def hold(self, size: int, peer: str, may_wait: bool = False) -> UnreadAnswer:
        """An answer of so many bytes is there for a client, on that connection.

        With ``may_wait`` it has a ``turn`` to be waited for where there is no room.

        Raises:
            ProtocolError: status 503; too many are unread, or wait already.
        """
        if may_wait and self.when_made is not None:
            self.when_made(peer, size)
        answer = UnreadAnswer(self, size, peer)
        if self._has_room(answer) and not (may_wait and self._is_behind(peer)):
            self._take(answer)
        elif may_wait and self.waiting + size <= self.most // 2:
            answer.number = next(self._numbers)
            answer.turn = asyncio.get_running_loop().create_future()
            self._queues.setdefault(peer, deque()).append(answer)
            self.waiting += size
            change(self._waiting_by, peer, size)
            self._let_in_soon()  # it may be that others wait for their own clients only
        else:
            raise ProtocolError(503, UNREAD)
        return answer

    def closed(self, answer: UnreadAnswer) -> None:
        """Its client has it, or nobody will take it."""
        if answer.is_held:
            self.unread -= answer.size
            change(self._unread_by, answer.peer, -answer.size)
        else:
            self._unqueue(answer)
        if self._queues:
            self._let_in_soon()
        if self.when_freed is not None:
            self.when_freed()

    def of(self, peer: str) -> int:
        """Bytes of a connection's answers, whether they have room or wait."""
        return self._unread_by.get(peer, 0) + self._waiting_by.get(peer, 0)

    def _has_share(self, answer: UnreadAnswer) -> bool:
        """Whether its connection may have it."""
        own = self._unread_by.get(answer.peer, 0)
        return not own or own + answer.size <= self.most // 2

    def _has_room(self, answer: UnreadAnswer) -> bool:
        is_all_right = not self.unread or self.unread + answer.size <= self.most
        return is_all_right and self._has_share(answer)

    def _is_behind(self, peer: str) -> bool:
        """Whether others are to have room before a new answer on a connection."""
        return peer in self._queues or (bool(self._queues) and self._next() is not None)

    def _next(self) -> UnreadAnswer | None:
        """Of those that wait for no answer of their own connection, the first that came."""
        heads = (queue[0] for queue in self._queues.values() if self._has_share(queue[0]))
        return min(heads, key=lambda one: one.number, default=None)

    def _take(self, answer: UnreadAnswer) -> None:
        answer.is_held = True
        self.unread += answer.size
        change(self._unread_by, answer.peer, answer.size)

    def _unqueue(self, answer: UnreadAnswer) -> None:
        queue = self._queues[answer.peer]
        queue.remove(answer)  # most often the first
        if not queue:
            del self._queues[answer.peer]
        self.waiting -= answer.size
        change(self._waiting_by, answer.peer, -answer.size)

    def _let_in_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._let_in)

    def _let_in(self) -> None:
        """One at a time: each is copied, and the loop has others to serve in between."""
        self._is_due = False
        answer = self._next()
        if answer is None or not self._has_room(answer):
            return
        self._unqueue(answer)
        self._take(answer)
        assert answer.turn is not None
        if not answer.turn.done():
            answer.turn.set_result(None)
        if self._queues:
            self._let_in_soon()
        if self.when_freed is not None:
            self.when_freed()


def change(counts: dict[str, int], name: str, by: int) -> None:
    """Count more or less; what is nothing is not kept."""
    now = counts.get(name, 0) + by
    if now:
        counts[name] = now
    else:
        counts.pop(name, None)


class UnreadAnswer:
    """An answer from when it is made until its client has taken it, or has left.

    grpcio offers no way to end a call whose client reads nothing: such an answer is counted until
    that client leaves.

    Attributes:
        peer: the connection.
        size: its bytes.
        is_held: it has room.
        number: of those that wait, in order.
        turn: done once it has room; None: it had at once.
    """

    __slots__ = ("_is_over", "_memory", "is_held", "number", "peer", "size", "turn")

    def __init__(self, memory: AnswerMemory, size: int, peer: str) -> None:
        self._memory = memory
        self._is_over = False
        self.is_held = False
        self.number = 0
        self.peer = peer
        self.size = size
        self.turn: asyncio.Future[None] | None = None

    def given(self, buffers: Sequence[Any]) -> bytes | WaitingAnswer:
        """The answer as a whole, if there is room for it."""
        return b"".join(buffers) if self.turn is None else WaitingAnswer(self, buffers)

    def close(self, context: Any = None) -> None:
        """It was taken, or nobody will take it; as gRPC calls it when a call is over."""
        if not self._is_over:
            self._is_over = True
            self._memory.closed(self)


class WaitingAnswer:
    """An answer in parts, which may lie in the arena, until there is room for it as a whole."""

    def __init__(self, unread: UnreadAnswer, buffers: Sequence[Any]) -> None:
        self._unread = unread
        self._buffers = buffers

    async def whole(self) -> bytes:
        """Its bytes, once there is room; it is given up where nobody waits for them."""
        try:
            assert self._unread.turn is not None
            await self._unread.turn
            return b"".join(self._buffers)
        except asyncio.CancelledError:
            self._unread.close()
            raise
        finally:
            self._buffers = ()
