"""The processes in which a peer does its task.

A *run* is a task with so many clients and workers, and what drives and times them. A peer's file
has one function ``measure(run, ...)`` that builds its queues, sockets or slots, starts workers and
clients, calls ``run.drive`` in each client, and ends what it started. It may have a context
manager ``session()`` for what all runs of one interpreter share.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.task import Task

fork = multiprocessing.get_context("fork")
END_LIMIT_S = 20.0


class Clock(Protocol):
    """What drives and times clients: a ``Stage`` or a ``Stopwatch``."""

    def drive(self, client: int, call: Callable[[], object]) -> None:
        """In a client: call until the time is over."""


@dataclass(frozen=True)
class Run:
    """A task done by ``clients`` through ``workers``, driven by ``clock``."""

    task: Task
    clients: int
    workers: int
    clock: Clock

    def drive(self, client: int, x: Any, call: Callable[[], Any]) -> None:
        """Check one whole answer, then call until the end: a peer that errs must not look fast.

        ``x`` is the client's own array. ``call`` sends what it holds at that moment and returns the
        answer as a NumPy array that is good until the next call.
        """
        self.task.check(x, call())
        self.clock.drive(client, self.task.step(x, call))


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Fork a process that runs ``target`` and ends with this one."""
    process = fork.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def see_out(clients: Sequence[BaseProcess], workers: Sequence[BaseProcess] = ()) -> None:
    """Wait for the clients; ProbeFailed as soon as one fails or a worker ends before them."""
    waiting = {process.sentinel: process for process in clients}
    serving = {process.sentinel: process for process in workers}
    while waiting:
        for sentinel in multiprocessing.connection.wait([*waiting, *serving]):
            process = waiting.pop(sentinel, None) or serving[sentinel]  # type: ignore[call-overload]
            process.join()
            if process.exitcode != 0 or sentinel in serving:
                end([*clients, *workers])
                raise ProbeFailed(f"a peer's process ended with {process.exitcode}")


def end(processes: Sequence[BaseProcess]) -> None:
    """End processes that wait for work which will not come."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(END_LIMIT_S)


def use_cores_of_one_worker(workers: int) -> None:
    """In a worker that uses torch: give it its share of the cores, as a helper of shmgpu has."""
    import torch

    torch.set_num_threads(max(1, (len(os.sched_getaffinity(0)) - 1) // workers))
