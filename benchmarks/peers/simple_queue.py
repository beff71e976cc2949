"""``multiprocessing.SimpleQueue``: the leanest queue of the standard library.

Requests are pickled into it, answers come back through a ``Pipe`` for each client.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.work import Run, fork, see_out, start


def measure(run: Run, queues: str) -> None:
    """Measure with a ``shared`` queue, or one queue for each worker (``own``)."""
    requests = [fork.SimpleQueue() for _ in range(run.workers if queues == "own" else 1)]
    answers = [fork.Pipe(duplex=False) for _ in range(run.clients)]
    task = run.task

    def work(worker: int) -> None:
        get = requests[worker % len(requests)].get
        while (item := get()) is not None:
            client, x = item
            answers[client][1].send(task.answer(np, x))

    def ask(client: int) -> None:
        x = task.request()
        put, receive = requests[client % len(requests)].put, answers[client][0].recv

        def call() -> Any:
            put((client, x))
            return receive()

        run.drive(client, x, call)

    processes = [start(work, worker) for worker in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    for worker in range(run.workers):
        requests[worker % len(requests)].put(None)
    see_out(processes)
