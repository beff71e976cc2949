"""The attached side of ``attach``: a broker that serves this file, and processes that join it.

Not imported by the suite itself, which can be listed where shmgpu is not built.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import shmgpu
from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.stage import Stage

JOIN_LIMIT_S = 30.0
JOIN_SLOTS = 8  # a place that was left is cleaned while the next attached program takes another
LEAST_JOINS = 5

BROKER = """
import sys, shmgpu.broker.daemon
shmgpu.broker.daemon.up(["benchmarks.workloads.attached_programs"],
                 path=sys.argv[1], slots=int(sys.argv[2]),
                 helpers=int(sys.argv[3]), devices=["cpu"], arena="4MiB")
"""


@shmgpu.function(arrays="numpy")
def add_one(helper, x):  # type: ignore[no-untyped-def]
    return x + 1


@contextmanager
def broker(path: Path, slots: int, helpers: int) -> Iterator[None]:
    """Run a broker while the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", BROKER, path, str(slots), str(helpers)])
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for(path: Path) -> None:
    """Wait until the broker's socket is there."""
    limit = time.monotonic() + JOIN_LIMIT_S
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.01)


def client(path: Path, stage: Stage, rank: int, payload_bytes: int) -> None:
    """Join, check one answer, then call as often as the stage says."""
    wait_for(path)
    with shmgpu.connect(path, wait=JOIN_LIMIT_S):
        x = shmgpu.arena.empty((payload_bytes // 4,), "float32")
        x[:] = 0
        answer = add_one(x)
        if answer.dtype != np.float32 or not np.array_equal(answer, x + 1):
            raise ProbeFailed("shmgpu gave a wrong answer")
        del answer
        stage.drive(rank, lambda: add_one(x))


def attached_calls(
    clients: int, workers: int, payload_bytes: int, seconds: float
) -> dict[str, float]:
    """Do the peers' work in ``clients`` processes that joined a broker of ``workers`` helpers."""
    stage = Stage(clients, seconds)
    stage.start_clock()
    with tempfile.TemporaryDirectory(prefix="shmgpu-bench-") as folder:
        path = Path(folder) / "broker.sock"
        with broker(path, clients, workers):
            pids = []
            for rank in range(clients):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        client(path, stage, rank, payload_bytes)
                        code = 0
                    finally:
                        os._exit(code)
                pids.append(pid)
            ended = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(ended):
        raise ProbeFailed(f"{sum(map(bool, ended))} of {clients} clients failed")
    return stage.result()


def joins(seconds: float, payload_bytes: int) -> dict[str, float]:
    """Join, call once and leave, again and again, as the only attached program.

    Returns the medians in microseconds: ``answer``, from before ``connect()`` to the first answer,
    and ``leave``, of ``disconnect()``.
    """
    answer_us, leave_us = [], []
    now = time.perf_counter_ns
    with tempfile.TemporaryDirectory(prefix="shmgpu-bench-") as folder:
        path = Path(folder) / "broker.sock"
        with broker(path, JOIN_SLOTS, 1):
            wait_for(path)
            end = time.monotonic() + seconds
            while time.monotonic() < end or len(answer_us) < LEAST_JOINS:
                began = now()
                shmgpu.connect(path, wait=JOIN_LIMIT_S)
                x = shmgpu.arena.zeros((payload_bytes // 4,), "float32")
                answer = add_one(x)
                answered = now()
                right = np.array_equal(answer, x + 1)
                del x, answer
                left = now()
                shmgpu.disconnect()
                leave_us.append((now() - left) / 1000)
                answer_us.append((answered - began) / 1000)
                if not right:
                    raise ProbeFailed("shmgpu gave a wrong answer")
    return {"answer": statistics.median(answer_us), "leave": statistics.median(leave_us)}
