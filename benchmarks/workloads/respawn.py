"""respawn: from a helper's death to the next answer, as the one caller sees it.

A child kills the only helper with SIGKILL and calls at once: the broker notices the death, forks a
replacement, the replacement does its start-up and answers. No call was out at the death, so none
fails. Each death is a launch's first, which is replaced without a pause.

The limit is the same without a broker: the caller kills a bare worker, which holds nothing but two
pipes, waits for it, forks the next and asks it. Both are made by one interpreter, after its
imports; once with shmgpu alone and once with torch imported, whose memory is what a fork copies the
page tables of. The session is trivial, so a real one's loading comes on top.
"""

from __future__ import annotations

import os
import signal
import statistics
import time

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.measure.processes import BareWorker, import_torch, modules

DEATHS = 5
WARM_CALLS = 100
LIMIT_S = 90.0


def shmgpu_respawn(with_torch: bool, deaths: int = DEATHS) -> float:
    """Return the median milliseconds from the helper's death to the next answer."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    import_torch(with_torch)

    @shmgpu.function(arrays="numpy")
    def pid_of(helper, x):  # type: ignore[no-untyped-def]
        return x + os.getpid()

    def run(rank: int) -> float:
        x = shmgpu.arena.zeros((1,), "float64")
        for _ in range(WARM_CALLS):
            victim = int(pid_of(x)[0])
        began = time.perf_counter_ns()
        os.kill(victim, signal.SIGKILL)
        replacement = int(pid_of(x)[0])
        took_ms = (time.perf_counter_ns() - began) / 1e6
        if replacement == victim:
            raise ProbeFailed("the helper answered after its death")
        return took_ms

    took = [
        shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena="1MiB")[0]
        for _ in range(deaths)
    ]
    return statistics.median(took)


def bare_respawn(with_torch: bool, deaths: int = DEATHS) -> float:
    """Do the same with a bare worker: kill, wait, fork, ask."""
    import shmgpu  # noqa: F401  so that the process is of the same size

    import_torch(with_torch)

    def pid(_request: bytes) -> bytes:
        return str(os.getpid()).encode()

    took = []
    for _ in range(deaths):
        worker = BareWorker(pid)
        for _ in range(WARM_CALLS):
            victim = worker.ask(b"?")
        began = time.perf_counter_ns()
        worker.kill()
        worker = BareWorker(pid)
        replacement = worker.ask(b"?")
        took.append((time.perf_counter_ns() - began) / 1e6)
        worker.end()
        if replacement == victim:
            raise ProbeFailed("the worker answered after its death")
    return statistics.median(took)


def _group(with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""

    def probe(name: str, target: str) -> Probe:
        def run(_seconds: float) -> dict[str, float]:
            return {"time": isolate.call(target, LIMIT_S, with_torch=with_torch)}

        return Probe(name, run, {"time": "ms"}, modules(with_torch))

    return Group(
        f"death{suffix}",
        (
            probe("shmgpu", "benchmarks.workloads.respawn:shmgpu_respawn"),
            probe("bare fork", "benchmarks.workloads.respawn:bare_respawn"),
        ),
        (Figure(f"answer{suffix}", ("shmgpu", "time"), ("bare fork", "time")),),
        rounds=2 if with_torch else 3,
        quick=not with_torch,
    )


WORKLOAD = Workload(
    "respawn",
    "from a helper's death by SIGKILL to the next answer, beside a bare fork and two pipes",
    (_group(False), _group(True)),
)
