"""attach: calls of processes that joined a broker, beside those of children that it forked.

Both do the work of ``calls`` (``x + 1`` of 64 bytes), in one run. The pipes, frames and arenas are
the same, so the ratios should be 1 but for noise; what is asked leaves a tenth.

What the joining itself costs is measured in a process that joins, calls once and leaves, again and
again. Beside it stand two ways to get a first answer from another process without a broker
(``workloads/joining.py``): a connection to a server of ``multiprocessing.connection``, and a fork
with two pipes. A attached program gets an arena of its own, which is filled with zeros after it.
"""

from __future__ import annotations

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe, Workload
from benchmarks.workloads.calls import LIMIT_S, PAYLOAD_BYTES

TARGETS = {
    "forked": "benchmarks.workloads.calls:shmgpu_calls",
    "attached": "benchmarks.workloads.attached_programs:attached_calls",
}


def _probe(name: str, clients: int, workers: int) -> Probe:
    timed = clients == 1

    def run(seconds: float) -> dict[str, float]:
        result = isolate.call(
            TARGETS[name],
            seconds + LIMIT_S,
            seconds=seconds,
            clients=clients,
            workers=workers,
            payload_bytes=PAYLOAD_BYTES,
        )
        if timed:
            return {"median": result["median_us"], "p99": result["p99_us"]}
        return {"rate": result["rate"]}

    units = {"median": "us", "p99": "us"} if timed else {"rate": "1/s"}
    return Probe(name, run, units, needs=("shmgpu",))


JOINING = {
    "attached": "benchmarks.workloads.attached_programs:joins",
    "multiprocessing.connection": "benchmarks.workloads.joining:connection",
    "fork and pipes": "benchmarks.workloads.joining:fork",
}


def _joining(name: str) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        result = isolate.call(
            JOINING[name], seconds + LIMIT_S, seconds=seconds, payload_bytes=PAYLOAD_BYTES
        )
        return dict(result)

    needs = () if name == "multiprocessing.connection" else ("shmgpu",)
    return Probe(name, run, {"answer": "us", "leave": "us"}, needs)


def _beside(quantity: str, baseline: str, suffix: str = "") -> Figure:
    return Figure(f"join_{quantity}{suffix}", ("attached", quantity), (baseline, quantity))


WORKLOAD = Workload(
    "attach",
    "Python calls as in `calls`, of processes that joined a broker, beside forked children's",
    (
        Group(
            "rate",
            (_probe("attached", 32, 2), _probe("forked", 32, 2)),
            (Figure("rate", ("attached", "rate"), ("forked", "rate"), ">= 0.91"),),
        ),
        Group(
            "latency",
            (_probe("attached", 1, 1), _probe("forked", 1, 1)),
            (
                Figure("latency", ("attached", "median"), ("forked", "median"), "<= 1.1"),
                Figure("latency_p99", ("attached", "p99"), ("forked", "p99")),
            ),
        ),
        Group(
            "join",
            tuple(map(_joining, JOINING)),
            (
                _beside("answer", "multiprocessing.connection"),
                _beside("answer", "fork and pipes", "_fork"),
                _beside("leave", "multiprocessing.connection"),
                _beside("leave", "fork and pipes", "_fork"),
            ),
            rounds=3,
        ),
    ),
)
