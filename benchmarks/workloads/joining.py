"""What stands beside ``attach``'s joining: other ways to get a first answer from another process.

Each is done again and again, as often as the seconds allow, and returns the medians in
microseconds: ``answer``, from before the first step to the first answer, and ``leave``, of undoing
it. The answer is the array plus one, of ``payload_bytes`` bytes of float32, as in ``attach``.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.processes import BareWorker

LEAST = 5
END_LIMIT_S = 20.0

# Begin and give the first answer; and end what was begun.
Strategy = tuple[Callable[[], tuple[Any, Any]], Callable[[Any], None]]


def _medians(way: Strategy, expected: Any, seconds: float) -> dict[str, float]:
    begin, leave = way
    answer_us, leave_us = [], []
    now = time.perf_counter_ns
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(answer_us) < LEAST:
        began = now()
        handle, answer = begin()
        answered = now()
        leave(handle)
        leave_us.append((now() - answered) / 1000)
        answer_us.append((answered - began) / 1000)
        if not np.array_equal(answer, expected):
            raise ProbeFailed("a peer gave a wrong answer")
    return {"answer": statistics.median(answer_us), "leave": statistics.median(leave_us)}


def connection(seconds: float, payload_bytes: int) -> dict[str, float]:
    """Connect by ``multiprocessing.connection.Client`` over a Unix socket; no authentication.

    The server is forked and has imported all it needs; it serves one client at a time.
    """
    array = np.zeros(payload_bytes // 4, "float32")

    def serve(listener: Listener) -> None:
        while True:
            with listener.accept() as pipe:
                while True:
                    try:
                        request = pipe.recv()
                    except EOFError:
                        break
                    if request is None:
                        return
                    pipe.send(request + 1)

    with tempfile.TemporaryDirectory(prefix="shmgpu-bench-") as folder:
        path = str(Path(folder) / "listener.sock")
        with Listener(path, "AF_UNIX") as listener:
            server = multiprocessing.get_context("fork").Process(target=serve, args=(listener,))
            server.start()

            def begin() -> tuple[Any, Any]:
                pipe = Client(path, "AF_UNIX")
                pipe.send(array)
                return pipe, pipe.recv()

            try:
                return _medians((begin, lambda pipe: pipe.close()), array + 1, seconds)
            finally:
                with Client(path, "AF_UNIX") as last:
                    last.send(None)
                server.join(END_LIMIT_S)


def fork(seconds: float, payload_bytes: int) -> dict[str, float]:
    """Fork a worker with two pipes, of a process that has imported shmgpu; leaving ends it."""
    import shmgpu  # noqa: F401  so that the process is of the same size

    array = np.zeros(payload_bytes // 4, "float32")

    def serve(request: bytes) -> bytes:
        answer: bytes = (np.frombuffer(request, "float32") + 1).tobytes()
        return answer

    def begin() -> tuple[Any, Any]:
        worker = BareWorker(serve)
        return worker, np.frombuffer(worker.ask(array.tobytes()), "float32")

    return _medians((begin, BareWorker.end), array + 1, seconds)
