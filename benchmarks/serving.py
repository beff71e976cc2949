"""serving: the HTTP server beside the servers a user would pick instead, and beside its limits.

One model for all: it doubles float32 items. One load for all (``httpload.py``), made on the same
cores. Every round starts each server anew, checks whole answers over several connections, and then
goes along the loads: requests of 1 KiB over 1 to 128 connections, of 600 KiB, of 16 MiB, and of
600 KiB that lie in shared memory which the client registered.

The limits beside which ``shmgpu serve`` stands are a bare echo of the same HTTP stack and, for a
lone client, the sum of that echo's time and of a call from a child.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from benchmarks import httpload, isolate
from benchmarks.figures import Curve, Figure, Group, Point, Probe, Unavailable, Workload
from benchmarks.peers.servers import ECHO, PEERS, SHMGPU, Server, find

LIMIT_S = 180.0
MIB = 1 << 20
LARGE_BYTES = 100_000
REGION_BYTES = MIB  # of each region that the client registers


@dataclass(frozen=True)
class Load:
    """Requests of ``nbytes`` over so many connections, in the body or in ``shared`` memory."""

    nbytes: int
    connections: int
    shared: bool = False

    @property
    def kind(self) -> str:
        """Which of ``peers.servers.KINDS`` this is."""
        if self.nbytes > LARGE_BYTES:
            return "large"
        return "lone" if self.connections == 1 else "few" if self.connections <= 12 else "many"


CONNECTIONS = (1, 8, 32, 128)
SMALL = tuple(f"1KiB_{n}" for n in CONNECTIONS)
LOADS = {
    **{name: Load(1 << 10, n) for name, n in zip(SMALL, CONNECTIONS, strict=True)},
    "600KiB": Load(600 << 10, 8),
    "600KiB_shared": Load(600 << 10, 8, shared=True),
    "16MiB": Load(16 * MIB, 2),
}
OURS, BARE = SHMGPU.best["lone"], ECHO.best["lone"]  # each has one configuration
UNITS = {"rate": "1/s", "median": "us", "p99": "us"}
WORKER_MIB = "worker_private"


def serve(
    name: str, configuration: str, loads: Sequence[str], seconds: float
) -> dict[str, float | str]:
    """Start a server, go along the loads, and return each one's rate, median and p99.

    Of ``shmgpu serve`` also the private MiB of the worker that holds most.
    """
    # Only here: the suite can be listed where NumPy is missing.
    import numpy as np

    from benchmarks import servers

    server = find(name)
    chosen = server.configurations[configuration]
    port = servers.free_port()
    command = [sys.executable, *server.command, "--port", str(port), *chosen.arguments]
    result: dict[str, float | str] = {}
    with servers.running(command, port, chosen.wire, server.factor) as pid:
        for load_name in loads:
            load = LOADS[load_name]
            x = np.ones(load.nbytes // 4, "float32")
            shared = servers.regions(port, x, REGION_BYTES) if load.shared else None
            with shared or nullcontext(chosen.wire) as wire:
                servers.check(port, wire, x, server.factor)
                done = httpload.drive(port, wire.write(x), load.connections, seconds)
            measured = (done.rate, done.median_us, done.p99_us)
            for quantity, number in zip(UNITS, measured, strict=True):
                result[f"{load_name} {quantity}"] = number
        if server is SHMGPU:
            result[WORKER_MIB] = servers.most_private_mib(pid)
    return result


def call_and_echo(seconds: float) -> dict[str, float]:
    """Return the sum of a lone child's call with 1 KiB and of a lone client's echo of 1 KiB."""
    load = SMALL[0]
    call = isolate.call(
        "benchmarks.calls:shmgpu_calls",
        seconds + LIMIT_S,
        clients=1,
        workers=1,
        payload_bytes=LOADS[load].nbytes,
        seconds=seconds,
    )
    echo = isolate.call(
        "benchmarks.serving:serve",
        seconds + LIMIT_S,
        name=ECHO.name,
        configuration=BARE,
        loads=[load],
        seconds=seconds,
    )
    return {"median": call["median_us"] + echo[f"{load} median"]}


def _probe(server: Server, configuration: str, loads: Sequence[str]) -> Probe:
    """Return the probe of one configuration of a server along the loads."""

    def run(seconds: float) -> dict[str, float | str]:
        if server.program and shutil.which(server.program) is None:
            raise Unavailable(f"there is no {server.program} on the path")
        result: dict[str, float | str] = isolate.call(
            "benchmarks.serving:serve",
            len(loads) * seconds + LIMIT_S,
            name=server.name,
            configuration=configuration,
            loads=list(loads),
            seconds=seconds,
        )
        return result

    units = {f"{load} {quantity}": unit for load in loads for quantity, unit in UNITS.items()}
    if server is SHMGPU:
        units[WORKER_MIB] = "MiB"
    name = server.name if server in (SHMGPU, ECHO) else server.label(configuration)
    return Probe(name, run, units, server.needs)


CALL = "call + echo"
CALL_AND_ECHO = Probe(CALL, call_and_echo, {"median": "us"}, SHMGPU.needs)
QUICK = ("1KiB_1", "1KiB_32", "600KiB", "16MiB")
ALL_PEERS = (*SMALL, "600KiB")
TRIED = ("1KiB_32", "600KiB")  # enough to see that a configuration is not the best
RATES = {**dict.fromkeys(SMALL, ">= 1.3"), "600KiB": ">= 3"}
P99S = dict.fromkeys(SMALL, "<= 1")
CURVES = {
    quantity: Curve(f"1 KiB requests, {words}", "connections", log="xy")
    for quantity, words in (("rate", "answers"), ("p99", "99th percentile of the latencies"))
}


def _beside(load: str, server: Server, configuration: str) -> tuple[Figure, ...]:
    """Return shmgpu's rate and p99 at a load beside a peer's; asked of the peer's best."""
    theirs = server.label(configuration)
    is_best = server.best[LOADS[load].kind] == configuration
    figures = []
    for quantity, asked in (("rate", RATES), ("p99", P99S)):
        point = None
        if load in SMALL:
            point = Point(CURVES[quantity], LOADS[load].connections, SHMGPU.name)
        figures.append(
            Figure(
                f"{quantity}_{load}_{server.key}_{server.slug(configuration)}",
                (SHMGPU.name, f"{load} {quantity}"),
                (theirs, f"{load} {quantity}"),
                asked.get(load) if is_best else None,
                point=point,
            )
        )
    return tuple(figures)


def _limits() -> Group:
    """Return the group of a first look: shmgpu beside its limits and one peer's best."""
    peer = find("mosec")
    shmgpu = _probe(SHMGPU, OURS, (*QUICK, "600KiB_shared"))
    echo = _probe(ECHO, BARE, QUICK)
    rival = _probe(peer, peer.best["few"], QUICK[:-1])
    figures = [
        Figure("lone", (SHMGPU.name, "1KiB_1 median"), (CALL, "median"), "<= 1.5"),
        Figure("lone_echo", (SHMGPU.name, "1KiB_1 median"), (ECHO.name, "1KiB_1 median")),
        Figure("rate_16MiB", (SHMGPU.name, "16MiB rate"), (ECHO.name, "16MiB rate"), ">= 0.7"),
        Figure("rate_600KiB", (SHMGPU.name, "600KiB rate"), (ECHO.name, "600KiB rate")),
        Figure(
            "rate_shared",
            (SHMGPU.name, "600KiB_shared rate"),
            (SHMGPU.name, "600KiB rate"),
            ">= 2",
            "shmgpu, in the body",
        ),
        Figure("worker_private", (SHMGPU.name, WORKER_MIB), asked="<= 40"),
    ]
    for load in QUICK[:-1]:
        figures += [
            Figure(
                f"{quantity}_{load}_{peer.key}",
                (SHMGPU.name, f"{load} {quantity}"),
                (rival.name, f"{load} {quantity}"),
            )
            for quantity in ("rate", "p99")
        ]
    probes = (shmgpu, echo, rival, CALL_AND_ECHO)
    return Group("limits", probes, tuple(figures), rounds=3, quick_rounds=1)


def _peers(name: str, are_best: bool, loads: Sequence[str], rounds: int) -> Group:
    """Return the group of the peers' configurations that do best at some load, or of the others."""
    probes, figures = [_probe(SHMGPU, OURS, loads)], []
    for peer in PEERS:
        for configuration in peer.configurations:
            if (configuration in peer.best.values()) is not are_best:
                continue
            probes.append(_probe(peer, configuration, loads))
            for load in loads:
                figures += _beside(load, peer, configuration)
    return Group(name, tuple(probes), tuple(figures), rounds=rounds, quick=False)


WORKLOAD = Workload(
    "serving",
    "HTTP requests of 1 KiB to 16 MiB, beside other servers and a bare echo of the same HTTP stack",
    (
        _limits(),
        _peers("peers", True, ALL_PEERS, rounds=2),
        _peers("tried", False, TRIED, rounds=1),
    ),
    preface=httpload.preface,
)
