"""faster-fifo: a ring in shared memory under a process-shared lock.

A worker takes up to ``batch`` requests at a time, which is what the library is for. With
``pickled=False`` arrays go as bare bytes through the queue's own ``dumps`` and ``loads``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.work import Run, end, see_out, start

FOR_EVER_S = 3600.0
NUMBER_BYTES = 8
# A pickled array, its client's number, and the queue's own header.
OVERHEAD_BYTES = 1024


def _to_bytes(item: tuple[int, Any]) -> bytes:
    client, array = item
    return client.to_bytes(NUMBER_BYTES, "little") + array.tobytes()


def _from_bytes(message: Any) -> tuple[int, Any]:
    client = int.from_bytes(message[:NUMBER_BYTES], "little")
    return client, np.frombuffer(message, "float32", offset=NUMBER_BYTES)


def measure(run: Run, batch: int, pickled: bool) -> None:
    """Measure with workers that take up to ``batch`` requests at a time."""
    from faster_fifo import Queue  # type: ignore[import-not-found, unused-ignore]

    coding: dict[str, Any] = {} if pickled else {"dumps": _to_bytes, "loads": _from_bytes}
    room = run.task.largest_bytes + OVERHEAD_BYTES
    requests = Queue(max_size_bytes=max(1 << 20, (run.clients + 1) * room), **coding)
    answers = [Queue(max_size_bytes=max(1 << 16, 2 * room), **coding) for _ in range(run.clients)]
    task = run.task

    def work() -> None:
        while True:
            for client, x in requests.get_many(max_messages_to_get=batch, timeout=FOR_EVER_S):
                answers[client].put((client, task.answer(np, x)))

    def ask(client: int) -> None:
        x = task.request()
        put, get = requests.put, answers[client].get

        def call() -> Any:
            put((client, x))
            return get(timeout=FOR_EVER_S)[1]

        run.drive(client, x, call)

    processes = [start(work) for _ in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    end(processes)
