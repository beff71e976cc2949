"""The attached side of ``attach``: a broker that serves this file, and processes that join it.

Not imported by the suite itself, which can be listed where shmgpu is not built.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import shmgpu
from benchmarks.figures import ProbeFailed
from benchmarks.stage import Stage

JOIN_LIMIT_S = 30.0

BROKER = """
import sys, shmgpu.daemon
shmgpu.daemon.up(["benchmarks.guests"], path=sys.argv[1], slots=int(sys.argv[2]),
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


def client(path: Path, stage: Stage, rank: int, payload_bytes: int) -> None:
    """Join, check one answer, then call as often as the stage says."""
    limit = time.monotonic() + JOIN_LIMIT_S
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.01)
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
