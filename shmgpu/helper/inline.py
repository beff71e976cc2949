"""``inline=True``: functions run in the calling process, through the same codec.

Owns a transport that serves a message here instead of sending it. This is for debuggers, coverage
and unit tests: breakpoints work, and the original exception is the ``__cause__`` of what is raised.
Never runs anything in parallel: a submitted call is done when ``submit`` returns.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

from shmgpu import core
from shmgpu.helper.broadcasts import Broadcasts
from shmgpu.helper.executor import Executor


class InlineTransport:
    """Serves each call at once, by an executor in this process."""

    immediate = True
    number = 0

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.last_error: BaseException | None = None
        self._broadcasts = Broadcasts(executor, lambda descriptor: core.OK)
        self._versions: dict[int, int] = {}  # by pool
        self._lock = threading.RLock()  # one helper serves one call at a time
        self._sequence = 0
        self._ends: deque[Any] = deque()
        self._asking: deque[Any] = deque()
        self._growing: dict[int, tuple[int, int]] = {}  # sequence -> (status, value)
        self._submitted: dict[int, int] = {}  # sequence -> ticket

    def _serve(self, config: Any, params: int) -> tuple[int, int, int]:
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
            executor = self.executor
            executor.last_error = None
            offset = params - executor.origin
            size = int.from_bytes(executor.memory[offset : offset + 4], "little")
            outer, executor.helper.later = executor.helper.later, []  # a function may call another
            try:
                function, block = int(config.function), executor.read(params, size)
                if config.broadcast:
                    status, value = self._broadcast(int(config.pool), function, block, sequence)
                else:
                    status, value = executor.serve(function, block, 0, 0, sequence)
                executor.device.finish()
                self.last_error = executor.last_error
                executor.do_later()
            finally:
                executor.helper.later = outer
            if isinstance(self.last_error, (KeyboardInterrupt, SystemExit)):
                raise self.last_error
            return sequence, status, value

    def _broadcast(self, pool: int, function: int, block: bytes, sequence: int) -> tuple[int, int]:
        """Run it here, which is everywhere."""
        version = self.version(pool) + 1
        status, value = self._broadcasts.run_first(function, block, 0, 0, sequence, version)
        if status != core.OK:
            return status, value
        self._versions[pool] = version
        return core.OK, version

    def version(self, pool: int) -> int:
        """How many broadcasts that pool has had."""
        return self._versions.get(pool, 0)

    def call(self, config: Any, params: int, deadline_ns: int, reply: Any) -> int:
        """Serve one call."""
        sequence, status, value = self._serve(config, params)
        return self._fill(reply, sequence, status, value)

    def wait(self, sequence: int, deadline_ns: int, reply: Any) -> int:
        """After :meth:`grow`: what became of it."""
        status, value = self._growing.pop(sequence)
        return self._fill(reply, sequence, status, value)

    @staticmethod
    def _fill(reply: Any, sequence: int, status: int, value: int) -> int:
        reply.sequence = sequence
        reply.status = status
        reply.value = value
        reply.token = 0
        return status

    def abandon(self, sequence: int) -> int:
        """No call is ever in flight when its caller continues."""
        with self._lock:
            self.executor.grow(0, 0, 0, 0, sequence)
        return core.ENOT_RUNNING

    def grow(self, sequence: int, token: int, params: int) -> int:
        """A larger buffer for a parked result."""
        with self._lock:
            executor = self.executor
            size = 0
            if params:
                offset = params - executor.origin
                size = int.from_bytes(executor.memory[offset : offset + 4], "little")
            outcome = executor.grow(params, size, 0, 0, sequence)
            if sequence in self._submitted:
                self._answer(sequence, *outcome)
            else:
                self._growing[sequence] = outcome
        return core.OK

    def cancel(self, sequence: int) -> int:
        """Too late, always."""
        return core.OK

    give_up = cancel

    def submit(self, config: Any, params: int, deadline_ns: int, ticket: int, sequence: Any) -> int:
        """Serve one call and keep its reply for :meth:`take_ends`."""
        number, status, value = self._serve(config, params)
        self._submitted[number] = ticket
        sequence[0] = number
        self._answer(number, status, value)
        return core.OK

    def _answer(self, sequence: int, status: int, value: int) -> None:
        reply = core.new_reply()
        self._fill(reply, sequence, status, value)
        reply.ticket = self._submitted[sequence]
        if status == core.ENEEDS_SPACE:
            self._asking.append(reply)
        else:
            del self._submitted[sequence]
            self._ends.append(reply)

    def await_replies(self, timeout_ns: int) -> int:
        """How many there are; nothing is ever waited for."""
        return len(self._ends) + (len(self._asking) << 32)

    def take_ends(self, count: int, inbox: deque[Any]) -> None:
        """Replies of submitted calls."""
        _move(self._ends, inbox)

    def await_end(self, sequence: int, deadline_ns: int) -> int:
        """It has ended, always."""
        return core.EAGAIN

    def take_end_of(self, sequence: int, inbox: deque[Any]) -> None:
        """There is none."""

    def take_growing(self, inbox: deque[Any]) -> None:
        """Their requests for larger output buffers."""
        _move(self._asking, inbox)

    def outstanding(self) -> int:
        """What is served is over."""
        return 0

    def descriptors(self) -> tuple[int, ...]:
        """None: nothing is ever waited for."""
        return ()


def _move(replies: deque[Any], inbox: deque[Any]) -> None:
    with contextlib.suppress(IndexError):  # at their end
        inbox.extend(iter(replies.popleft, None))
