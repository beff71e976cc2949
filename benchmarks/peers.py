"""What a user would pick instead of shmgpu, each written as its own documentation suggests.

Every peer is a function (clients, workers, payload_bytes, seconds) -> outcome that does the same
work: a client process sends a float32 array of ``payload_bytes``, one of the worker processes
returns it plus one, the client gets a float32 array back. They are driven and counted by the same
``Stage`` as shmgpu. An outcome has ``rate`` (calls a second); with one client also ``median_us``
and ``p99_us``.

Where a peer leaves a choice, it is made in the peer's favour; the comments say how.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from benchmarks.figures import ProbeFailed
from benchmarks.stage import Stage

Outcome = dict[str, float]
_fork = multiprocessing.get_context("fork")
END_LIMIT_S = 20.0


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = _fork.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _join(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join(END_LIMIT_S)
        if process.exitcode != 0:
            raise ProbeFailed(f"a peer's process ended with {process.exitcode}")


def _drive(stage: Stage, client: int, array: Any, call: Callable[[], Any]) -> None:
    """Check one answer, then call until the end: a peer that errs must not look fast."""
    answer = call()
    if answer.dtype != array.dtype or not np.array_equal(answer, array + 1):
        raise ProbeFailed("a peer gave a wrong answer")
    stage.drive(client, call)


def _request(payload_bytes: int) -> Any:
    return np.zeros(payload_bytes // 4, "float32")


def simple_queue(clients: int, workers: int, payload_bytes: int, seconds: float) -> Outcome:
    """One ``multiprocessing.SimpleQueue`` of requests, one ``Pipe`` of answers per client.

    The leanest way the standard library has: ``multiprocessing.Queue`` adds a feeder thread.
    """
    requests = _fork.SimpleQueue()
    pipes = [_fork.Pipe(duplex=False) for _ in range(clients)]

    def work() -> None:
        while (item := requests.get()) is not None:
            client, array = item
            pipes[client][1].send(array + 1)

    def run(client: int) -> None:
        array = _request(payload_bytes)
        receive = pipes[client][0].recv

        def call() -> Any:
            requests.put((client, array))
            return receive()

        _drive(stage, client, array, call)

    stage = Stage(clients, seconds)
    stage.start_clock()
    crew = [_start(work) for _ in range(workers)]
    _join([_start(run, client) for client in range(clients)])
    for _ in crew:
        requests.put(None)
    _join(crew)
    return stage.result()


def faster_fifo(clients: int, workers: int, payload_bytes: int, seconds: float) -> Outcome:
    """One ``faster_fifo.Queue`` of requests, one of answers per client.

    Workers take as many requests at a time as there are, which is what the library is for.
    """
    from faster_fifo import Queue  # type: ignore[import-not-found, unused-ignore]

    room = 64 * (payload_bytes + 1024)
    requests = Queue(max_size_bytes=max(1 << 20, room))
    answers = [Queue(max_size_bytes=max(1 << 16, room // 16)) for _ in range(clients)]

    def work() -> None:
        while True:
            for client, array in requests.get_many(max_messages_to_get=64, timeout=3600.0):
                answers[client].put(array + 1)

    def run(client: int) -> None:
        array = _request(payload_bytes)
        mine = answers[client]

        def call() -> Any:
            requests.put((client, array))
            return mine.get(timeout=3600.0)

        _drive(stage, client, array, call)

    stage = Stage(clients, seconds)
    stage.start_clock()
    crew = [_start(work) for _ in range(workers)]
    _join([_start(run, client) for client in range(clients)])
    for process in crew:
        process.terminate()
        process.join(END_LIMIT_S)
    return stage.result()


def zeromq(clients: int, workers: int, payload_bytes: int, seconds: float) -> Outcome:
    """ZeroMQ's ROUTER/DEALER proxy in a process of its own, over Unix sockets, copy=False.

    Clients are REQ and workers REP sockets, as in ZeroMQ's guide. The array goes as its bare bytes
    and both sides know its type, so nothing is marshalled. pyzmq itself copies what is smaller
    than its ``copy_threshold``, because that is faster.
    """
    import zmq

    def proxy(front: str, back: str) -> None:
        context = zmq.Context()
        frontend, backend = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        frontend.bind(front)
        backend.bind(back)
        zmq.proxy(frontend, backend)

    def work(back: str) -> None:
        socket = zmq.Context().socket(zmq.REP)
        socket.connect(back)
        while True:
            frame = socket.recv(copy=False)
            answer: Any = np.frombuffer(frame.buffer, "float32") + 1
            socket.send(answer, copy=False)

    def run(client: int, front: str) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.REQ)
        socket.connect(front)
        array = _request(payload_bytes)

        def call() -> Any:
            socket.send(array, copy=False)
            return np.frombuffer(socket.recv(copy=False).buffer, "float32")

        _drive(stage, client, array, call)
        socket.close(linger=0)
        context.term()

    stage = Stage(clients, seconds)
    stage.start_clock()
    with tempfile.TemporaryDirectory(prefix="shmgpu-bench-") as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        crew = [_start(proxy, front, back), *(_start(work, back) for _ in range(workers))]
        try:
            _join([_start(run, client, front) for client in range(clients)])
        finally:
            for process in crew:
                process.terminate()
                process.join(END_LIMIT_S)
    return stage.result()


PEERS: dict[str, tuple[Callable[[int, int, int, float], Outcome], str]] = {
    "SimpleQueue": (simple_queue, "multiprocessing"),
    "ZeroMQ": (zeromq, "zmq"),
    "faster-fifo": (faster_fifo, "faster_fifo"),
}


def run(name: str, clients: int, workers: int, payload_bytes: int, seconds: float) -> Outcome:
    """Run a peer by name."""
    return PEERS[name][0](clients, workers, payload_bytes, seconds)
