"""ZeroMQ over Unix sockets. The array goes as its bare bytes: nothing is marshalled.

By a ``proxy``: ROUTER and DEALER in a process of its own, clients REQ, workers REP, as in ZeroMQ's
guide; any free worker takes the next request. ``direct``: each worker has a ROUTER socket, each
client a DEALER connected to all of them, which takes them in turn: one hop less each way, and a
request may wait at one worker while another is free.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from benchmarks.peers.work import Run, end, see_out, start


def measure(run: Run, route: str, copy: bool, io_threads: int = 1) -> None:
    """Measure with a ``proxy`` or ``direct``.

    With ``copy=False`` pyzmq still copies what is below its ``copy_threshold``, because that is
    faster.
    """
    import zmq

    task = run.task

    def proxy(front: str, back: str) -> None:
        context = zmq.Context(io_threads)
        frontend, backend = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        frontend.bind(front)
        backend.bind(back)
        zmq.proxy(frontend, backend)

    def received(frame: Any) -> Any:
        return np.frombuffer(frame if copy else frame.buffer, "float32")

    def work_behind_proxy(back: str) -> None:
        socket = zmq.Context(io_threads).socket(zmq.REP)
        socket.connect(back)
        while True:
            socket.send(task.answer(np, received(socket.recv(copy=copy))), copy=copy)

    def work_alone(end_point: str) -> None:
        socket = zmq.Context(io_threads).socket(zmq.ROUTER)
        socket.bind(end_point)
        while True:
            client = socket.recv()
            x = received(socket.recv(copy=copy))
            socket.send(client, zmq.SNDMORE)
            socket.send(task.answer(np, x), copy=copy)

    def ask(client: int, kind: int, end_points: list[str]) -> None:
        context = zmq.Context(io_threads)
        socket = context.socket(kind)
        for end_point in end_points:
            socket.connect(end_point)
        x = task.request()

        def call() -> Any:
            socket.send(x, copy=copy)
            return received(socket.recv(copy=copy))

        run.drive(client, x, call)
        socket.close(linger=0)
        context.term()

    with tempfile.TemporaryDirectory(prefix="zeromq-") as folder:
        if route == "proxy":
            front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
            processes = [start(proxy, front, back)]
            processes += [start(work_behind_proxy, back) for _ in range(run.workers)]
            kind, end_points = zmq.REQ, [front]
        else:
            end_points = [f"ipc://{folder}/{worker}" for worker in range(run.workers)]
            processes = [start(work_alone, end_point) for end_point in end_points]
            kind = zmq.DEALER
        see_out([start(ask, c, kind, end_points) for c in range(run.clients)], processes)
        end(processes)
