"""What lone callers get beside one greedy child: a part of the workload ``batching``.

31 children call and wait, one call at a time; one keeps more calls out than its window holds, all
the time. Every child then has work at every moment, but for the time between an answer and the next
call, so each is entitled to nearly the same number of turns.

*Service* is counted, not timed: the calls of a child that were answered within the span, as the
dispatcher counts them (``stats()``, ``children[n]["answered"]``). The policy is a round-robin over
the children that have something queued, one message a turn (``csrc/broker/schedule.h``). Jain's
index of the 32 numbers is 1 when all are equal, and 1/32 when one child has everything. With
batches it stays below 1 by design: while a lone caller's only call is one of the 8 that helpers
hold, it has nothing queued, and turns go to those who have. (So with batches that could hold
everybody's calls the greedy child would get all the room that is left, at nobody's expense.)

The baseline, in the same run, is a queue that serves in order of arrival: the SimpleQueue of
``peers.py`` with as many calls of its greedy client in the queue as the window is wide. There
service is counted by the workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import isolate
from benchmarks.measure.crowd import Crowd
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed
from benchmarks.measure.stage import shared_array

CALLERS = 31
GREEDY = CALLERS  # the greedy child's number, the last of those that are counted
WATCHER = CALLERS + 1
WORKERS = 2
WINDOW = 64
SERVICE_S = 0.001  # of a call
BATCH_ROWS = 4
BATCH_SERVICE_S = 0.002  # of a batch: callers are back before their helper is done with the next
LIMIT_S = 90.0
END_LIMIT_S = 20.0


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


class Contest(Crowd):
    """A crowd in which one client is greedy, and what each was served."""

    def __init__(self, seconds: float) -> None:
        super().__init__(CALLERS + 1, seconds)
        self.served = shared_array((CALLERS + 1,), "float64")

    def take_all(self, answers: Any) -> None:
        """In the greedy client: take answers that keep coming until the contest is over."""
        for count, _ in enumerate(answers):
            if count == WINDOW:
                self.stand_ready(GREEDY)
            if self.stopped:
                return

    def count(self, reading: Callable[[], Any]) -> None:
        """In the watcher: keep what ``reading`` grew by in the span, for each client."""
        before, after = self.watch(reading)
        self.served[:] = np.subtract(after, before)

    def result(self) -> dict[str, float]:
        """Return the index, the greedy client's share, and lone callers' latencies."""
        timed = super().result()
        return {
            "jain": jain(self.served),
            "greedy_share": float(self.served[GREEDY] / self.served.sum()),
            "lone_p50": timed["p50_ms"],
            "lone_p99": timed["p99_ms"],
        }


def shmgpu_contest(seconds: float, batch_rows: int, service_s: float) -> dict[str, float]:
    """Hold the contest through shmgpu; ``batch_rows`` 0 means one by one."""
    import shmgpu
    from benchmarks.measure.models import calibrated_sleep

    @shmgpu.function(
        arrays="numpy", batch=shmgpu.Batch(max_size=batch_rows) if batch_rows else None
    )
    def serve(helper, rows):  # type: ignore[no-untyped-def]
        helper.session(service_s)
        return rows

    contest = Contest(seconds)

    def answered() -> list[int]:
        return [child["answered"] for child in shmgpu.stats()["children"][: CALLERS + 1]]

    def run(rank: int) -> None:
        if rank == WATCHER:
            contest.count(answered)
            return
        rows = shmgpu.arena.zeros((1, 16), "float32")
        if rank == GREEDY:
            answers = serve.map(itertools.repeat(rows), in_flight=2 * WINDOW, progress=False)
            contest.take_all(answers)
        else:
            contest.drive(rank, lambda: serve(rows))

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

    from benchmarks.measure.models import calibrated_sleep

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
            contest.drive(client, call)

    def start(target: Callable[[int], None], number: int) -> BaseProcess:
        process = fork.Process(target=target, args=(number,), daemon=True)
        process.start()
        return process

    processes = [start(work, number) for number in range(WORKERS)]
    clients = [start(run, client) for client in range(CALLERS + 1)]
    contest.count(lambda: served.sum(axis=0))
    for process in clients:
        process.join(END_LIMIT_S)
        if process.exitcode != 0:
            raise ProbeFailed(f"a client ended with {process.exitcode}")
    for process in processes:
        process.terminate()
        process.join(END_LIMIT_S)
    return contest.result()


UNITS = {"jain": "index", "greedy_share": "share", "lone_p50": "ms", "lone_p99": "ms"}
FIFO = "SimpleQueue"


def _probe(name: str, target: str, needs: tuple[str, ...] = (), **size: Any) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        found = isolate.call(
            f"benchmarks.workloads.fairness:{target}",
            seconds + LIMIT_S,
            seconds=seconds,
            **size,
        )
        return dict(found)

    return Probe(name, run, UNITS, needs=needs)


GROUPS = (
    Group(
        "fairness",
        (
            _probe("shmgpu", "shmgpu_contest", ("shmgpu",), batch_rows=0, service_s=SERVICE_S),
            _probe(
                "batched",
                "shmgpu_contest",
                ("shmgpu",),
                batch_rows=BATCH_ROWS,
                service_s=BATCH_SERVICE_S,
            ),
            _probe(FIFO, "fifo_contest", service_s=SERVICE_S),
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
        quick_rounds=1,
    ),
)
