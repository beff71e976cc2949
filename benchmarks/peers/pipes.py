"""``multiprocessing.Pipe``: each client has a two-way pipe to one worker, and no lock is shared.

A worker waits for all of its pipes at once. Arrays go pickled, or as their bare bytes.
"""

from __future__ import annotations

import selectors
from typing import Any

import numpy as np

from benchmarks.peers.work import Run, end, fork, see_out, start


def measure(run: Run, pickled: bool) -> None:
    """Measure with arrays that are ``pickled``, or go as bare bytes."""
    pipes = [fork.Pipe() for _ in range(run.clients)]
    task = run.task

    def talk(pipe: Any) -> tuple[Any, Any]:
        if pickled:
            return pipe.send, pipe.recv
        return pipe.send_bytes, lambda: np.frombuffer(pipe.recv_bytes(), "float32")

    def work(worker: int) -> None:
        ready = selectors.DefaultSelector()
        for _, far in pipes[worker :: run.workers]:
            ready.register(far, selectors.EVENT_READ, talk(far))
        while True:
            for key, _ in ready.select():
                send, receive = key.data
                send(task.answer(np, receive()))

    def ask(client: int) -> None:
        x = task.request()
        send, receive = talk(pipes[client][0])

        def call() -> Any:
            send(x)
            return receive()

        run.drive(client, x, call)

    processes = [start(work, worker) for worker in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    end(processes)
