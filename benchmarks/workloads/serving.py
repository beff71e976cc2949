"""serving: the HTTP server beside the servers a user would pick instead, and beside its limits.

One model for all: it doubles float32 items. One load for all (``measure/httpload.py``), made on the
same cores. Every round starts each server anew, checks whole answers over several connections, and
then goes along the loads: requests of 1 KiB over 1 to 128 connections, of 600 KiB, of 16 MiB, and
of 600 KiB that lie in shared memory which the client registered.

Every server, ``shmgpu serve`` too, has its configurations, and is judged by the one that is best at
that kind of load. What the others reach is in the group ``tried``.

The limits beside which ``shmgpu serve`` stands are a bare echo of the same HTTP stack and, for a
lone client, the sum of that echo's time and of a call from a child.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass

from benchmarks.measure import httpload, isolate
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, Unavailable, Workload
from benchmarks.peers.servers import ECHO, PEERS, SHMGPU, Server, find

LIMIT_S = 180.0
MIB = 1 << 20
LARGE_BYTES = 100_000
REGION_BYTES = MIB  # of each region that the client registers


@dataclass(frozen=True)
class ServingLoad:
    """Requests of ``nbytes`` over so many connections, in the body or in ``shared`` memory.

    A second of it is measured in so many ``spans``.
    """

    nbytes: int
    connections: int
    shared: bool = False
    spans: int = 3

    @property
    def kind(self) -> str:
        """Which of ``peers.servers.KINDS`` this is."""
        if self.nbytes > LARGE_BYTES:
            return "large"
        return "lone" if self.connections == 1 else "few" if self.connections <= 12 else "many"


CONNECTIONS = (1, 8, 32, 128)
SMALL = tuple(f"1KiB_{n}" for n in CONNECTIONS)
LOADS = {
    **{name: ServingLoad(1 << 10, n) for name, n in zip(SMALL, CONNECTIONS, strict=True)},
    "600KiB": ServingLoad(600 << 10, 8),
    "600KiB_shared": ServingLoad(600 << 10, 8, shared=True),
    "16MiB": ServingLoad(16 * MIB, 2, spans=1),  # a busy machine may answer none in a short span
}
UNITS = {"rate": "1/s", "median": "us", "p99": "us"}
WORKER_MIB = "worker_private"
WARM_S = 0.25  # before a load is measured: caches fill, shapes of requests become known
SHARE = 0.75  # of a round's seconds that is measured
LEAST_S = 0.25  # that a span takes


def serve(
    name: str, configuration: str, loads: Sequence[str], seconds: float
) -> dict[str, float | str]:
    """Start a server, go along the loads, and return each one's rate, median and p99.

    Of ``shmgpu serve`` also the private MiB of the worker that holds most.
    """
    # Only here: the suite can be listed where NumPy is missing.
    import numpy as np

    from benchmarks.workloads import servers

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
                done = measure(port, wire.write(x), load, seconds)
            measured = (done.rate, done.median_us, done.p99_us)
            for quantity, number in zip(UNITS, measured, strict=True):
                result[f"{load_name} {quantity}"] = number
        if server is SHMGPU:
            result[WORKER_MIB] = servers.most_private_mib(pid)
    return result


def measure(
    port: int, request: httpload.HttpRequest, load: ServingLoad, seconds: float
) -> httpload.LoadResult:
    """Load a server, once it is warm, in spans, and return the medians over them.

    A stall of some milliseconds alone makes a second's 99th percentile over one connection; of the
    spans it spoils one. Each has connections of its own, which fall to a server's processes anew.
    """
    httpload.drive(port, request, load.connections, WARM_S)
    count = max(1, int(load.spans * seconds))
    span_s = max(LEAST_S, SHARE * seconds / count)
    spans = [httpload.drive(port, request, load.connections, span_s) for _ in range(count)]
    return httpload.LoadResult(*map(statistics.median, zip(*map(astuple, spans), strict=True)))


def call_and_echo(seconds: float) -> dict[str, float]:
    """Return the sum of a lone child's call with 1 KiB and of a lone client's echo of 1 KiB."""
    load = SMALL[0]
    call = isolate.call(
        "benchmarks.workloads.calls:shmgpu_calls",
        seconds + LIMIT_S,
        clients=1,
        workers=1,
        payload_bytes=LOADS[load].nbytes,
        seconds=seconds,
    )
    echo = isolate.call(
        "benchmarks.workloads.serving:serve",
        seconds + LIMIT_S,
        name=ECHO.name,
        configuration=ECHO.best[LOADS[load].kind],
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
            "benchmarks.workloads.serving:serve",
            len(loads) * (WARM_S + seconds) + LIMIT_S,
            name=server.name,
            configuration=configuration,
            loads=list(loads),
            seconds=seconds,
        )
        return result

    units = {f"{load} {quantity}": unit for load in loads for quantity, unit in UNITS.items()}
    if server is SHMGPU:
        units[WORKER_MIB] = "MiB"
    return Probe(server.label(configuration), run, units, server.needs)


def _at_best(server: Server, load: str) -> str:
    """Return the server's configuration that does best at loads of that kind."""
    return server.best[LOADS[load].kind]


def _probes(server: Server, loads: Sequence[str]) -> list[Probe]:
    """Return a probe for each of a server's configurations that is best at some of the loads."""
    shares = {
        configuration: [load for load in loads if _at_best(server, load) == configuration]
        for configuration in server.configurations
    }
    return [_probe(server, *share) for share in shares.items() if share[1]]


def _quantity(server: Server, load: str, quantity: str) -> tuple[str, str]:
    """Return where a server's quantity at a load is found, at its best."""
    return server.label(_at_best(server, load)), f"{load} {quantity}"


CALL = "call + echo"
CALL_AND_ECHO = Probe(CALL, call_and_echo, {"median": "us"}, SHMGPU.needs)
QUICK = ("1KiB_1", "1KiB_32", "600KiB", "16MiB")
SHARED = "600KiB_shared"
ALL_PEERS = (*SMALL, "600KiB")
ALL_OURS = (*ALL_PEERS, "16MiB")
TRIED = ("1KiB_32", "600KiB")  # enough to see that a configuration is best at nothing
RATES = {**dict.fromkeys(SMALL, ">= 1.3"), "600KiB": ">= 3"}
P99S = dict.fromkeys(SMALL, "<= 1")
CURVES = {
    quantity: Curve(f"1 KiB requests, {words}", "connections", log="xy")
    for quantity, words in (("rate", "answers"), ("p99", "99th percentile of the latencies"))
}


def _beside(load: str, server: Server, configuration: str) -> tuple[Figure, ...]:
    """Return shmgpu's rate and p99 at a load beside another's; asked of the other's best."""
    is_best = _at_best(server, load) == configuration
    figures = []
    for quantity, asked in (("rate", RATES), ("p99", P99S)):
        point = None
        # A line has a mark at every number of connections.
        if load in SMALL and configuration in server.best.values():
            point = Point(CURVES[quantity], LOADS[load].connections, SHMGPU.name)
        figures.append(
            Figure(
                f"{quantity}_{load}_{server.key}_{server.slug(configuration)}",
                _quantity(SHMGPU, load, quantity),
                (server.label(configuration), f"{load} {quantity}"),
                asked.get(load) if is_best else None,
                point=point,
            )
        )
    return tuple(figures)


def _against(
    name: str, load: str, quantity: str, other: Server, asked: str | None = None
) -> Figure:
    """Return a figure of shmgpu at its best beside another server at its best."""
    ours, theirs = _quantity(SHMGPU, load, quantity), _quantity(other, load, quantity)
    baseline = ECHO.name if other is ECHO else None
    return Figure(name, ours, theirs, asked, baseline)


def _limits() -> Group:
    """Return the group of a first look: shmgpu beside its limits and one peer, each at its best."""
    peer = find("mosec")
    small = QUICK[:-1]
    shared = _quantity(SHMGPU, SHARED, "rate")
    figures = [
        Figure("lone", _quantity(SHMGPU, QUICK[0], "median"), (CALL, "median"), "<= 1.5"),
        _against("lone_echo", QUICK[0], "median", ECHO),
        _against("rate_16MiB", "16MiB", "rate", ECHO, ">= 0.7"),
        _against("rate_600KiB", "600KiB", "rate", ECHO),
        Figure(
            "rate_shared",
            shared,
            _quantity(SHMGPU, "600KiB", "rate"),
            ">= 2",
            "shmgpu, in the body",
        ),
        # After the largest bodies.
        Figure("worker_private", (shared[0], WORKER_MIB), asked="<= 40"),
    ]
    figures += [
        _against(f"{quantity}_{load}_{peer.key}", load, quantity, peer)
        for load in small
        for quantity in ("rate", "p99")
    ]
    probes = [*_probes(SHMGPU, (*QUICK, SHARED)), *_probes(ECHO, QUICK), *_probes(peer, small)]
    return Group("limits", (*probes, CALL_AND_ECHO), tuple(figures), rounds=3, quick_rounds=1)


def _peers() -> Group:
    """Return the group of every peer at its best beside shmgpu at its best."""
    probes = [probe for server in (SHMGPU, *PEERS) for probe in _probes(server, ALL_PEERS)]
    figures = [
        figure
        for peer in PEERS
        for load in ALL_PEERS
        for figure in _beside(load, peer, _at_best(peer, load))
    ]
    return Group("peers", tuple(probes), tuple(figures), rounds=3, quick=False)


def _tried() -> Group:
    """Return the group of the configurations where they are not the best, shmgpu's too."""
    probes = [_probe(SHMGPU, configuration, ALL_OURS) for configuration in SHMGPU.configurations]
    figures: list[Figure] = []
    for server in (SHMGPU, *PEERS):
        for configuration in server.configurations:
            wanted = ALL_PEERS if configuration in server.best.values() else TRIED
            wanted = ALL_OURS if server is SHMGPU else wanted
            loads = [load for load in wanted if _at_best(server, load) != configuration]
            if loads and server is not SHMGPU:
                probes.append(_probe(server, configuration, loads))
            figures += (each for load in loads for each in _beside(load, server, configuration))
    return Group("tried", tuple(probes), tuple(figures), rounds=1, quick=False)


WORKLOAD = Workload(
    "serving",
    "HTTP requests of 1 KiB to 16 MiB, beside other servers and a bare echo of the same HTTP stack",
    # Of a curve's points that two groups have, the later group's are drawn.
    (_limits(), _tried(), _peers()),
    preface=httpload.preface,
    quick_seconds=60.0,
)
