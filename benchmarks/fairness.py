"""What lone callers get beside one greedy child: a part of the workload ``batching``.

31 children call and wait, one call at a time; one keeps more calls out than its window holds, all
the time. Every child then has work at every moment, but for the time between an answer and the next
call, so each is entitled to nearly the same number of turns.

*Service* is counted, not timed: the calls of a child that were answered within the span, as the
dispatcher counts them (``stats()``, ``children[n]["answered"]``). The policy is a round-robin over
the children that have something queued, one message a turn (``csrc/schedule.h``). Jain's index of
the 32 numbers is 1 when all are equal, and 1/32 when one child has everything. With batches it
stays below 1 by design: while a lone caller's only call is one of the 16 that helpers hold, it has
nothing queued, and turns go to those who have.

The baseline, in the same run, is a queue that serves in order of arrival: the SimpleQueue of
``peers.py`` with as many calls of its greedy client in the queue as the window is wide. There
service is counted by the workers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import isolate
from benchmarks.figures import Figure, Group, Probe, ProbeFailed
from benchmarks.stage import shared_array

CALLERS = 31
GREEDY = CALLERS  # the greedy child's number, the last of those that are counted
WATCHER = CALLERS + 1
WORKERS = 2
WINDOW = 64
SERVICE_S = 0.001
BATCH_ROWS = 8
WARM_S = 0.2
START_LIMIT_S = 60.0
LIMIT_S = 90.0
END_LIMIT_S = 20.0
SAMPLES = 1 << 14


def jain(service: Sequence[float] | NDArray[Any]) -> float:
    """Return Jain's fairness index, ``(sum x)^2 / (n sum x^2)``: 1 is equal, 1/n all to one.

    Jain, Chiu, Hawe: A Quantitative Measure of Fairness and Discrimination, DEC TR-301, 1984.
    ValueError when nobody was served.
    """
    x = np.asarray(service, "float64")
    squares = float((x * x).sum())
    if squares == 0.0:
        raise ValueError("nobody was served")
    return float(x.sum()) ** 2 / (len(x) * squares)


class Contest:
    """What the clients of a run share: the start, the end, and lone callers' latencies."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ready = shared_array((CALLERS + 1,), "int64")
        self.flags = shared_array((2,), "int64")  # measuring, stopped
        self.served = shared_array((CALLERS + 1,), "float64")
        self.latencies_s = shared_array((CALLERS, SAMPLES), "float64")

    def call_alone(self, client: int, call: Callable[[], object]) -> None:
        """Call and wait until the contest is over."""
        call()
        self.ready[client] = 1
        mine, taken, flags = self.latencies_s[client], 0, self.flags
        while not flags[1]:
            began = time.monotonic()
            call()
            if flags[0] and taken < SAMPLES:
                mine[taken] = time.monotonic() - began
                taken += 1

    def take_all(self, answers: Any) -> None:
        """Take answers that keep coming until the contest is over."""
        for count, _ in enumerate(answers):
            if count == WINDOW:
                self.ready[GREEDY] = 1
            if self.flags[1]:
                return

    def watch(self, count: Callable[[], Any]) -> None:
        """Have everybody start, let them run, and keep what ``count`` grew by for each client."""
        limit = time.monotonic() + START_LIMIT_S
        while not self.ready.all():
            if time.monotonic() > limit:
                self.flags[1] = 1
                raise ProbeFailed("not every client reached the start")
            time.sleep(0.001)
        time.sleep(WARM_S)
        before = np.array(count(), "float64")
        self.flags[0] = 1
        time.sleep(self.seconds)
        self.served[:] = np.array(count(), "float64") - before
        self.flags[:] = (0, 1)

    def result(self) -> dict[str, float]:
        """Return the index, the greedy client's share, and lone callers' latencies."""
        taken = self.latencies_s[self.latencies_s > 0]
        if not self.served.any() or not len(taken):
            raise ProbeFailed("nobody was served")
        p50, p99 = np.quantile(taken, (0.5, 0.99))
        return {
            "jain": jain(self.served),
            "greedy_share": float(self.served[GREEDY] / self.served.sum()),
            "lone_p50": 1000 * float(p50),
            "lone_p99": 1000 * float(p99),
        }


def shmgpu_contest(seconds: float, batch_rows: int, service_s: float) -> dict[str, float]:
    """Hold the contest through shmgpu; ``batch_rows`` 0 means one by one."""
    import shmgpu
    from benchmarks.models import calibrated_sleep

    @shmgpu.function(
        arrays="numpy", batch=shmgpu.Batch(max_size=batch_rows) if batch_rows else None
    )
    def serve(helper, rows):  # type: ignore[no-untyped-def]
        helper.session(service_s)
        return rows

    contest = Contest(seconds)

    def count() -> list[int]:
        return [child["answered"] for child in shmgpu.stats()["children"][: CALLERS + 1]]

    def run(rank: int) -> None:
        if rank == WATCHER:
            contest.watch(count)
            return
        rows = shmgpu.arena.zeros((1, 16), "float32")
        if rank == GREEDY:
            answers = serve.map(itertools.repeat(rows), in_flight=2 * WINDOW, progress=False)
            contest.take_all(answers)
        else:
            contest.call_alone(rank, lambda: serve(rows))

    shmgpu.launch(
        run,
        children=CALLERS + 2,
        helpers=WORKERS,
        devices=["cpu"],
        arena="4MiB",
        window=WINDOW,
        session=lambda helper: calibrated_sleep(),
    )
    return contest.result()


def fifo_contest(seconds: float, service_s: float) -> dict[str, float]:
    """Hold the contest on one queue that serves in order of arrival."""
    import multiprocessing

    from benchmarks.models import calibrated_sleep

    fork = multiprocessing.get_context("fork")
    requests = fork.SimpleQueue()
    pipes = [fork.Pipe(duplex=False) for _ in range(CALLERS + 1)]
    contest = Contest(seconds)
    served = shared_array((WORKERS, CALLERS + 1), "int64")

    def work(worker: int) -> None:
        sleep, mine = calibrated_sleep(), served[worker]
        while (item := requests.get()) is not None:
            client, rows = item
            sleep(service_s)
            mine[client] += 1
            pipes[client][1].send(rows)

    def run(client: int) -> None:
        rows = np.zeros((1, 16), "float32")
        receive = pipes[client][0].recv

        def answers() -> Any:
            for _ in range(WINDOW):
                requests.put((client, rows))
            while True:
                yield receive()
                requests.put((client, rows))

        def call() -> None:
            requests.put((client, rows))
            receive()

        if client == GREEDY:
            contest.take_all(answers())
        else:
            contest.call_alone(client, call)

    def start(target: Callable[[int], None], number: int) -> BaseProcess:
        process = fork.Process(target=target, args=(number,), daemon=True)
        process.start()
        return process

    crew = [start(work, number) for number in range(WORKERS)]
    clients = [start(run, client) for client in range(CALLERS + 1)]
    contest.watch(lambda: served.sum(axis=0))
    for process in clients:
        process.join(END_LIMIT_S)
        if process.exitcode != 0:
            raise ProbeFailed(f"a client ended with {process.exitcode}")
    for process in crew:
        process.terminate()
        process.join(END_LIMIT_S)
    return contest.result()


UNITS = {"jain": "index", "greedy_share": "share", "lone_p50": "ms", "lone_p99": "ms"}
FIFO = "SimpleQueue"


def _probe(name: str, target: str, needs: tuple[str, ...] = (), **size: Any) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        found = isolate.call(
            f"benchmarks.fairness:{target}",
            seconds + LIMIT_S,
            seconds=seconds,
            service_s=SERVICE_S,
            **size,
        )
        return dict(found)

    return Probe(name, run, UNITS, needs=needs)


GROUPS = (
    Group(
        "fairness",
        (
            _probe("shmgpu", "shmgpu_contest", ("shmgpu",), batch_rows=0),
            _probe("batched", "shmgpu_contest", ("shmgpu",), batch_rows=BATCH_ROWS),
            _probe(FIFO, "fifo_contest"),
        ),
        (
            Figure("fairness", ("shmgpu", "jain"), asked=">= 0.95"),
            Figure("fairness_batched", ("batched", "jain"), asked=">= 0.95"),
            Figure("fairness_fifo", (FIFO, "jain")),
            Figure("greedy_share", ("shmgpu", "greedy_share"), (FIFO, "greedy_share")),
            Figure("lone_beside_greedy", ("shmgpu", "lone_p50"), (FIFO, "lone_p50")),
            Figure("lone_beside_greedy_p99", ("shmgpu", "lone_p99"), (FIFO, "lone_p99")),
        ),
        # Some sixty turns for each: one more or less at the span's ends must not decide.
        seconds=1.0,
        rounds=2,
    ),
)
