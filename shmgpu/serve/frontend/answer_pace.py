"""Which calls over gRPC may begin beside those whose answers are large and were not taken yet.

Owns how large the answers of each connection are of late, and the calls that wait until there is
room for one more like these: nothing has been done for them, so they hold nothing that others need.
Never counts an answer: :mod:`shmgpu.serve.frontend.answer_memory` does.
"""

from __future__ import annotations

import asyncio
from collections import deque

from shmgpu.serve.frontend.answer_memory import AnswerMemory, change

LARGE = 65536  # bytes of an answer: calls whose answers are smaller do not wait


class AnswerPace:
    """Of one worker.

    Args:
        answers: those that are made.
    """

    def __init__(self, answers: AnswerMemory) -> None:
        self._answers = answers
        self._expected: dict[str, int] = {}  # bytes of an answer, by connection; 0: a small one
        self._begun = 0  # bytes of answers that are to come
        self._begun_by: dict[str, int] = {}  # by connection
        self._turns: dict[str, deque[asyncio.Future[int]]] = {}  # likewise; none is empty
        answers.when_made = self._learn
        answers.when_freed = self._look

    async def begin(self, peer: str) -> int:
        """Wait until one more call of a connection may begin; as many bytes are expected of it."""
        self._expected.setdefault(peer, 0)
        if peer not in self._turns and self._has_share(peer) and self._has_room(peer):
            return self._begin(peer)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        queue = self._turns.setdefault(peer, deque())
        queue.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.ended(peer, turn.result())
            elif turn in queue:
                queue.remove(turn)
                if not queue:
                    del self._turns[peer]
            raise

    def ended(self, peer: str, expected: int) -> None:
        """A call has its answer, or will have none."""
        self._begun -= expected
        change(self._begun_by, peer, -expected)
        self._look()

    def _learn(self, peer: str, size: int) -> None:
        """Of answers that are refused, too: those of the calls behind them are as large."""
        before = self._expected.get(peer)
        if before is not None:
            now = max(size, before - before // 8)
            self._expected[peer] = now if now >= LARGE else 0

    def forget(self, peer: str) -> None:
        """The connection is gone."""
        self._expected.pop(peer, None)

    def _begin(self, peer: str) -> int:
        expected = self._expected.get(peer, 0)
        self._begun += expected
        change(self._begun_by, peer, expected)
        return expected

    def _has_share(self, peer: str) -> bool:
        expected = self._expected.get(peer, 0)
        if not expected:
            return True
        own = self._begun_by.get(peer, 0) + self._answers.of(peer)
        return not own or own + expected <= self._answers.most // 2

    def _has_room(self, peer: str) -> bool:
        """Whether there is some for all, and in the arena, where answers come first."""
        expected, answers = self._expected.get(peer, 0), self._answers
        in_arena = self._begun + answers.waiting
        if not expected or not (in_arena + answers.unread):
            return True
        is_arena_free = in_arena + expected <= answers.most - answers.most // 4
        return is_arena_free and in_arena + answers.unread + expected <= answers.most

    def _look(self) -> None:
        """Have those begin that may: connections in turn, and calls of each as they came."""
        has_begun = bool(self._turns)
        while has_begun:
            has_begun = False
            for peer, queue in list(self._turns.items()):
                if not self._has_share(peer):
                    continue
                if not self._has_room(peer):
                    return
                turn = queue.popleft()
                if not queue:
                    del self._turns[peer]
                has_begun = True
                if not turn.done():
                    turn.set_result(self._begin(peer))
