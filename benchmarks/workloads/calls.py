"""calls: a Python call with one small float32 array whose answer is ``x + 1``, beside the peers.

All variants are driven by the same loop (``measure/stage.py``), each run in a fresh interpreter.
The figures with a target stand beside each peer's best configuration; the groups
``..._configurations`` have one of every configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.measure.stage import Stage
from benchmarks.peers import PEERS, Peer, find
from benchmarks.workloads import call_kinds

PAYLOAD_BYTES = 64
LIMIT_S = 90.0
CONFIGURATION_ROUNDS = 2
ZERO_COPY = "proxy"  # its arrays go with copy=False


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


def _probe(
    name: str, kind: str, needs: tuple[str, ...], target: str, more: Mapping[str, Any]
) -> Probe:
    """Return a probe of ``kind``: ``rate`` with 32 clients and 2 workers, ``latency`` with one."""
    timed = kind == "latency"
    clients, workers = (1, 1) if timed else (32, 2)
    size = {"clients": clients, "workers": workers, "payload_bytes": PAYLOAD_BYTES}

    def run(seconds: float) -> dict[str, float]:
        result = isolate.call(target, seconds + LIMIT_S, seconds=seconds, **size, **more)
        if timed:
            return {"median": result["median_us"], "p99": result["p99_us"]}
        return {"rate": result["rate"]}

    return Probe(name, run, {"median": "us", "p99": "us"} if timed else {"rate": "1/s"}, needs)


def _shmgpu(kind: str) -> Probe:
    return _probe("shmgpu", kind, ("shmgpu",), "benchmarks.workloads.calls:shmgpu_calls", {})


def _peer(peer: Peer, configuration: str, kind: str, name: str) -> Probe:
    more = {"name": peer.name, "configuration": configuration}
    return _probe(name, kind, peer.needs, "benchmarks.peers:run", more)


def _best(kind: str) -> tuple[Probe, ...]:
    peers = [find(name) for name in ("SimpleQueue", "ZeroMQ", "faster-fifo")]
    return _shmgpu(kind), *(_peer(peer, peer.best[kind], kind, peer.name) for peer in peers)


def _zeromq_without_copies() -> Probe:
    """What the target is held against; at 64 bytes ZeroMQ is quicker where it copies."""
    peer = find("ZeroMQ")
    return _peer(peer, ZERO_COPY, "rate", peer.label(ZERO_COPY))


def _configurations(kind: str, quantity: str) -> Group:
    """Return the group that has every configuration of every peer."""
    probes, figures = [_shmgpu(kind)], []
    for peer in PEERS:
        for configuration in peer.configurations:
            probe = _peer(peer, configuration, kind, peer.label(configuration))
            name = f"{kind}_{peer.key}_{peer.slug(configuration)}"
            probes.append(probe)
            figures.append(Figure(name, ("shmgpu", quantity), (probe.name, quantity)))
    return Group(
        f"{kind}_configurations",
        tuple(probes),
        tuple(figures),
        rounds=CONFIGURATION_ROUNDS,
        quick=False,
    )


WORKLOAD = Workload(
    "calls",
    "Python calls with one 64-byte float32 array, answer x + 1, beside what else there is",
    (
        Group(
            "rate",
            (*_best("rate"), _zeromq_without_copies()),
            (
                Figure(
                    "rate",
                    ("shmgpu", "rate"),
                    (find("ZeroMQ").label(ZERO_COPY), "rate"),
                    ">= 4.5",
                ),
                Figure("rate_zeromq", ("shmgpu", "rate"), ("ZeroMQ", "rate")),
                Figure("rate_simplequeue", ("shmgpu", "rate"), ("SimpleQueue", "rate")),
                Figure("rate_fasterfifo", ("shmgpu", "rate"), ("faster-fifo", "rate"), ">= 2.5"),
            ),
        ),
        Group(
            "latency",
            _best("latency"),
            (
                Figure("latency", ("shmgpu", "median"), ("SimpleQueue", "median"), "<= 0.25"),
                Figure("latency_p99", ("shmgpu", "p99"), ("SimpleQueue", "p99")),
                Figure("latency_zeromq", ("shmgpu", "median"), ("ZeroMQ", "median")),
                Figure("latency_fasterfifo", ("shmgpu", "median"), ("faster-fifo", "median")),
            ),
        ),
        *call_kinds.groups(_best("latency")[1]),
        _configurations("rate", "rate"),
        _configurations("latency", "median"),
    ),
)
