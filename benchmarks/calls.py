"""calls: a Python call with one small float32 array whose answer is ``x + 1``, beside the peers.

All variants are driven by the same loop (``stage.py``), each run in a fresh interpreter.
"""

from __future__ import annotations

from benchmarks import isolate
from benchmarks.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.peers import PEERS
from benchmarks.stage import Stage

PAYLOAD_BYTES = 64
LIMIT_S = 90.0


def shmgpu_calls(
    clients: int, workers: int, payload_bytes: int, seconds: float
) -> dict[str, float]:
    """Do the peers' work through shmgpu: ``clients`` children, ``workers`` helpers."""
    # Only here, so that the suite can be listed and the peers measured where it is not built.
    import numpy as np

    import shmgpu

    @shmgpu.function(arrays="numpy")
    def add_one(helper, x):  # type: ignore[no-untyped-def]
        return x + 1

    stage = Stage(clients, seconds)

    def run(rank: int) -> None:
        x = shmgpu.arena.empty((payload_bytes // 4,), "float32")
        x[:] = 0
        answer = add_one(x)
        if answer.dtype != np.float32 or not np.array_equal(answer, x + 1):
            raise ProbeFailed("shmgpu gave a wrong answer")
        del answer
        stage.drive(rank, lambda: add_one(x))

    stage.start_clock()
    shmgpu.launch(run, children=clients, helpers=workers, devices=["cpu"], arena="4MiB")
    return stage.result()


def _probe(name: str, clients: int, workers: int) -> Probe:
    size = {"clients": clients, "workers": workers, "payload_bytes": PAYLOAD_BYTES}
    timed = clients == 1

    def run(seconds: float) -> dict[str, float]:
        target, more = ("benchmarks.peers:run", {"name": name})
        if name == "shmgpu":
            target, more = "benchmarks.calls:shmgpu_calls", {}
        result = isolate.call(target, seconds + LIMIT_S, seconds=seconds, **size, **more)
        if timed:
            return {"median": result["median_us"], "p99": result["p99_us"]}
        return {"rate": result["rate"]}

    units = {"median": "us", "p99": "us"} if timed else {"rate": "1/s"}
    module = "shmgpu" if name == "shmgpu" else PEERS[name][1]
    return Probe(name, run, units, needs=(module,))


def _probes(clients: int, workers: int) -> tuple[Probe, ...]:
    return tuple(_probe(name, clients, workers) for name in ("shmgpu", *PEERS))


WORKLOAD = Workload(
    "calls",
    "Python calls with one 64-byte float32 array, answer x + 1, beside what else there is",
    (
        Group(
            "rate",
            _probes(32, 2),
            (
                Figure("rate", ("shmgpu", "rate"), ("ZeroMQ", "rate"), ">= 3.5"),
                Figure("rate_simplequeue", ("shmgpu", "rate"), ("SimpleQueue", "rate")),
                Figure("rate_fasterfifo", ("shmgpu", "rate"), ("faster-fifo", "rate")),
            ),
        ),
        Group(
            "latency",
            _probes(1, 1),
            (
                Figure("latency", ("shmgpu", "median"), ("SimpleQueue", "median"), "<= 0.4"),
                Figure("latency_p99", ("shmgpu", "p99"), ("SimpleQueue", "p99")),
                Figure("latency_zeromq", ("shmgpu", "median"), ("ZeroMQ", "median")),
                Figure("latency_fasterfifo", ("shmgpu", "median"), ("faster-fifo", "median")),
            ),
        ),
    ),
)
