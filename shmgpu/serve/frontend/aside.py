"""What takes long in a worker and waits for nothing: done in threads, beside the event loop.

Owns these threads, one in each of two workers or two in one: a large request is read there and a
large answer written, so that no more than two of them take memory at once. What is done there must
let go of the interpreter every few milliseconds. Never touches a connection or the arena's
allocator, which belong to the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")

LONG_BYTES = 1 << 18  # of JSON, or of an answer: what has fewer is done in the loop
MOST_THREADS = 2  # of all workers together, but one in each


class AsideThreads:
    """The threads of one worker; they start with the first work.

    Args:
        workers: how many there are.
    """

    def __init__(self, workers: int = MOST_THREADS) -> None:
        self._threads = ThreadPoolExecutor(max(1, MOST_THREADS // workers), "aside")
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[..., Value], *args: Any) -> Value:
        """What ``work(*args)`` returns or raises, done in one of them."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def start(self, course: Coroutine[Any, Any, None]) -> None:
        """Let a course of such works, which raises nothing, go on by itself."""
        task = asyncio.get_running_loop().create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End them; what waits for them is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
