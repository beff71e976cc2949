"""What takes long in a worker and waits for nothing: done in a thread, beside the event loop.

Owns that thread, one in each worker: a large request is read there and a large answer written, one
after the other, so that no more than one of them takes memory at once. What is done there must let
go of the interpreter every few milliseconds. Never touches a connection or the arena's allocator,
which belong to the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")

LONG_BYTES = 1 << 18  # of JSON, or of an answer: what has fewer is done in the loop


class AsideThread:
    """The thread; it starts with the first work."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "aside")
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[..., Value], *args: Any) -> Value:
        """What ``work(*args)`` returns or raises, done in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def start(self, course: Coroutine[Any, Any, None]) -> None:
        """Let a course of such works, which raises nothing, go on by itself."""
        task = asyncio.get_running_loop().create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End the thread; what waits for it is dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)
