"""Ray: workers are actors; arrays above 100 KB lie in Ray's object store, in shared memory.

The store's objects cannot be changed, so each call's array is copied in once, and read where it
lies. With ``put`` by ``ray.put`` and a reference, as Ray's notes advise for what is large, else as
a plain argument, which Ray puts by itself when it is large.

The clients are threads of one driver: a driver of Ray's for each client would be a process that
takes seconds to start, and they would not be faster.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.measure.task import Task
from benchmarks.peers.work import Run

STORE_BYTES = 2 << 30  # some objects of the largest size: an answer is freed a moment after its use


class _Actor:
    def __init__(self, task: Task) -> None:
        self._task = task

    def answer(self, x: Any) -> Any:
        return self._task.answer(np, x)


@contextmanager
def session() -> Iterator[None]:
    """Start Ray once for all runs; its files lie in this run's own folder."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would report to its makers

    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        _temp_dir=tempfile.gettempdir(),
    )
    try:
        yield
    finally:
        ray.shutdown()


def measure(run: Run, put: bool) -> None:
    """Measure with arrays ``put`` into the store by the client, or passed as plain arguments."""
    import ray

    kind = ray.remote(num_cpus=0)(_Actor)
    actors = [kind.remote(run.task) for _ in range(run.workers)]

    def ask(client: int) -> None:
        x = run.task.request()
        answer = actors[client % run.workers].answer

        def call() -> Any:
            return ray.get(answer.remote(ray.put(x) if put else x))

        run.drive(client, x, call)

    try:
        with ThreadPoolExecutor(run.clients) as threads:
            for ended in [threads.submit(ask, client) for client in range(run.clients)]:
                ended.result()
    finally:
        for actor in actors:
            ray.kill(actor)
