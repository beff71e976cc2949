"""``multiprocessing.SimpleQueue`` and ``Pipe``: the leanest ways of the standard library.

Requests are pickled into a ``SimpleQueue``, answers come back through a ``Pipe`` for each client.
Without queues, each client has a two-way ``Pipe`` to one worker, and arrays go as their bare bytes.
"""

from __future__ import annotations

import selectors
from typing import Any

import numpy as np

from benchmarks.peers.work import Run, end, fork, see_out, start


def measure(run: Run, queues: str) -> None:
    """Measure with a ``shared`` queue, one queue for each worker (``own``), or ``none``."""
    if queues == "none":
        _bare_pipes(run)
        return
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

    crew = [start(work, worker) for worker in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], crew)
    for worker in range(run.workers):
        requests[worker % len(requests)].put(None)
    see_out(crew)


def _bare_pipes(run: Run) -> None:
    pipes = [fork.Pipe() for _ in range(run.clients)]
    task = run.task

    def work(worker: int) -> None:
        ready = selectors.DefaultSelector()
        for _, far in pipes[worker :: run.workers]:
            ready.register(far, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                pipe: Any = key.fileobj
                x = np.frombuffer(pipe.recv_bytes(), "float32")
                pipe.send_bytes(task.answer(np, x))

    def ask(client: int) -> None:
        x = task.request()
        send, receive = pipes[client][0].send_bytes, pipes[client][0].recv_bytes

        def call() -> Any:
            send(x)
            return np.frombuffer(receive(), "float32")

        run.drive(client, x, call)

    crew = [start(work, worker) for worker in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], crew)
    end(crew)
