"""The same work through ``multiprocessing``: what a user would write without shmgpu.

Client processes put pickled arrays on one request queue. Workers, each with the same network, take
all waiting requests up to a batch, compute them together, and send each client its scores through a
pipe of its own. Owns this baseline. Never handicaps it: see :class:`RequestQueue`.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shmgpu.common.devices import cores, threads_of_helper
from shmgpu.demo import network
from shmgpu.demo.digits import Split
from shmgpu.demo.network import Weights
from shmgpu.demo.stage import ClientStage, Measured, StageFailed

_fork = multiprocessing.get_context("fork")
_END_LIMIT_S = 60.0


class RequestQueue:
    """A ``multiprocessing.SimpleQueue`` with a ``get`` that takes all there is.

    A pipe and two locks, as SimpleQueue is, because the standard queues give one item at a time:
    ``SimpleQueue`` has no get that does not wait, and ``Queue`` adds a thread to each client. The
    reader's poll object is kept, which is several times faster than ``Connection.poll``.
    """

    def __init__(self) -> None:
        self._reader, self._writer = _fork.Pipe(duplex=False)
        self._read_lock = _fork.Lock()
        self._write_lock = _fork.Lock()
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def put(self, item: object) -> None:
        """Add an item."""
        with self._write_lock:
            self._writer.send(item)

    def get_many(self, most: int) -> list[Any]:
        """Wait for an item; take it and those that are there already."""
        with self._read_lock:
            items = [self._reader.recv()]
            while len(items) < most and self._poll.poll(0):
                items.append(self._reader.recv())
        return items

    def close(self) -> None:
        """Give back the pipe's descriptors."""
        self._reader.close()
        self._writer.close()


def classify(
    held_out: Split,
    weights: Weights,
    *,
    clients: int,
    workers: int,
    batch: int,
    device: str,
    seconds: float,
    show: bool | None = None,
) -> tuple[Measured, float]:
    """Let client processes classify the held-out images: (what they saw, mean batch size).

    Raises:
        StageFailed: a process failed or hung.
    """
    requests = RequestQueue()
    answers = [_fork.Pipe(duplex=False) for _ in range(clients)]
    runs = np.frombuffer(_fork.RawArray("q", 2 * workers), "int64").reshape(workers, 2)
    # Each worker's share of the cores, as shmgpu gives its helpers.
    threads = threads_of_helper(cores(), workers)

    def work(number: int) -> None:
        torch.set_num_threads(threads)
        model = network.with_weights(weights, device)
        stage.enter_server(number)
        mine = memoryview(runs[number])
        while True:
            items = requests.get_many(batch)
            if items[0] is None:
                for item in items[1:]:  # those of the other workers
                    requests.put(item)
                return
            images = torch.from_numpy(np.concatenate([images for _, images in items]))
            with torch.inference_mode():
                scores = model(images.to(device)).cpu().numpy()
            for row, (client, _) in enumerate(items):
                answers[client][1].send(scores[row : row + 1])
            mine[0] += 1
            mine[1] += len(items)

    def run(rank: int) -> None:
        images = held_out.images[rank::clients]
        receive = answers[rank][0].recv

        def ask(index: int) -> int:
            requests.put((rank, images[index : index + 1]))
            scores: NDArray[np.float32] = receive()
            return int(scores.argmax())

        stage.drive(rank, ask, held_out.labels[rank::clients])

    stage = ClientStage(clients, workers, seconds, "through multiprocessing", show)
    processes: list[BaseProcess] = []
    try:
        with stage:
            pool = [_start(processes, work, number) for number in range(workers)]
            crowd = [_start(processes, run, rank) for rank in range(clients)]
            deadline = time.monotonic() + seconds + _END_LIMIT_S
            _join(crowd, deadline)
            for _ in pool:
                requests.put(None)
            _join(pool, deadline)
        batches, items = (int(n) for n in runs.sum(0))
        return stage.outcome(), items / batches
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
            process.close()
        requests.close()
        for pair in answers:
            for end in pair:
                end.close()


def _start(processes: list[BaseProcess], target: Any, number: int) -> BaseProcess:
    process = _fork.Process(target=target, args=(number,), daemon=True)
    process.start()
    processes.append(process)
    return process


def _join(processes: list[BaseProcess], deadline: float) -> None:
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != 0:
            raise StageFailed(
                "a process of the multiprocessing baseline "
                + ("hangs" if process.exitcode is None else f"ended with {process.exitcode}")
            )
