"""paths: every way in which a request may come to ``shmgpu serve``, beside Triton, with defaults.

A request's tensors may be bytes behind a JSON header, or the whole body, or numbers in JSON; they
may lie in shared memory that the client registered; and all but JSON also go over gRPC. Each has
another way through the server. ``serving`` gives each server what suits it best; here both are
started as their pages say, with the same model: what a user meets who tunes nothing.

``ways``: rates along all of them. ``first_second``: of shmgpu alone, how quick it is right after
its start. ``health``: how long others wait while the costliest requests that the limits admit are
served.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import grpcload, httpload, isolate
from benchmarks.measure.figures import Figure, Group, Probe, Unavailable, Workload
from benchmarks.peers import servers as peers
from benchmarks.peers.servers import SHMGPU, Server, find

LIMIT_S = 180.0
WARM_S = 0.25
REGION_BYTES = 1 << 20
DEFAULTS = ("--allow-client-shm",)  # which is no matter of speed, and off by default
TRITON = find("Triton")
KIB, IMAGE = 256, 3 * 224 * 224  # float32 items: 1 KiB, and 602,112 bytes


@dataclass(frozen=True)
class Way:
    """One way in, at a size and a number of connections.

    ``form`` names the wire in :func:`_wire`. ``asked`` is of shmgpu's rate over Triton's, or over
    its own at the way called ``beside``. ``times``: how many of a round's seconds it takes.
    """

    form: str
    items: int
    connections: int
    asked: str | None = None
    beside: str | None = None
    times: int = 1

    @property
    def is_grpc(self) -> bool:
        """Whether it goes over gRPC."""
        return self.form.startswith("grpc")


WAYS = {
    "header_1KiB_1": Way("header", KIB, 1, ">= 1.5"),
    "header_1KiB_8": Way("header", KIB, 8, ">= 3"),
    "header_1KiB_32": Way("header", KIB, 32, ">= 4"),
    "raw_1KiB_1": Way("raw", KIB, 1, ">= 0.95", "header_1KiB_1"),
    "raw_1KiB_8": Way("raw", KIB, 8, ">= 0.95", "header_1KiB_8"),
    "raw_1KiB_32": Way("raw", KIB, 32, ">= 0.95", "header_1KiB_32"),
    "header_600KB": Way("header", IMAGE, 8, ">= 3.5"),
    "raw_600KB": Way("raw", IMAGE, 8, ">= 0.95", "header_600KB"),
    "json_256": Way("json", KIB, 8, ">= 2.5"),
    "json_150528": Way("json", IMAGE, 2, ">= 3", times=2),  # Triton answers six a second
    "shared_1KiB": Way("shared", KIB, 8, ">= 1.5"),
    "shared_600KB": Way("shared", IMAGE, 8, ">= 4"),
    "grpc_1KiB_1": Way("grpc", KIB, 1, ">= 1.2"),
    "grpc_1KiB_8": Way("grpc", KIB, 8, ">= 1.5"),
    "grpc_shared_1KiB": Way("grpc_shared", KIB, 8, ">= 1.2"),
    "grpc_shared_600KB": Way("grpc_shared", IMAGE, 8, ">= 3"),
}


def _wire(form: str, port: int, x: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the wire of a form, as a block: regions are registered for as long."""
    from benchmarks.peers.servers import wires
    from benchmarks.workloads import servers

    regions = {"shared": wires.shared, "grpc_shared": wires.grpc_shared}
    if form in regions:
        return servers.regions(port, x, REGION_BYTES, regions[form])
    plain: dict[str, Callable[[], Any]] = {
        "header": wires.binary,
        "raw": wires.headless,
        "json": wires.numbers,
        "grpc": wires.grpc_raw,
    }
    return contextlib.nullcontext(plain[form]())


@contextlib.contextmanager
def _running(server: Server, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a server with its defaults; yields its ports for HTTP and gRPC."""
    from benchmarks.peers.servers.wires import binary
    from benchmarks.workloads import servers

    port, grpc_port = servers.free_port(), servers.free_port()
    command = [sys.executable, *server.command, *arguments]
    command += ["--port", str(port), "--grpc-port", str(grpc_port)]
    with servers.running(command, port, binary(), server.factor):
        yield port, grpc_port


def rates(name: str, seconds: float) -> dict[str, float | str]:
    """Start a server with its defaults, and return its rate along each way."""
    server = find(name)
    result: dict[str, float | str] = {}
    with _running(server, *(DEFAULTS if server is SHMGPU else ())) as ports:
        for way_name, way in WAYS.items():
            try:
                result[way_name] = _rate(way, *ports, server.factor, seconds)
            except Unavailable as reason:
                result[way_name] = str(reason)
    return result


def _rate(way: Way, port: int, grpc_port: int, factor: float, seconds: float) -> float:
    import numpy as np

    from benchmarks.workloads import servers

    x = np.random.default_rng(7).random(way.items, "float32")
    with _wire(way.form, port, x) as wire:
        request = wire.write(x)
        if not way.is_grpc:
            servers.check(port, wire, x, factor)
            httpload.drive(port, request, way.connections, way.times * WARM_S)
            return httpload.drive(port, request, way.connections, way.times * seconds).rate
        servers.check(grpc_port, wire, x, factor, grpcload.ask)
        answer = grpcload.ask(grpc_port, request)
        return grpcload.drive(grpc_port, request, answer, way.connections, WARM_S, seconds)


FIRST_REQUESTS = 100
FIRST_CONNECTIONS = 8
LATER_S = 2.0  # of load, until the rate is what it stays


def first_second(seconds: float) -> dict[str, float | str]:
    """Return a server's rate right after its first hundred requests, and later."""
    import numpy as np

    from benchmarks.peers.servers.wires import binary

    request = binary().write(np.ones(KIB, "float32"))
    with _running(SHMGPU, *DEFAULTS) as (port, _):
        for _ in range(FIRST_REQUESTS):
            httpload.ask(port, request)
        first = httpload.drive(port, request, FIRST_CONNECTIONS, seconds).rate
        httpload.drive(port, request, FIRST_CONNECTIONS, LATER_S)
        later = httpload.drive(port, request, FIRST_CONNECTIONS, seconds).rate
    return {"first": first, "later": later}


HEALTH = "/v2/health/live"
COUNT = 3_000_000  # numbers: near the 64 MiB that a body may have, as JSON
TEXTS = 500_000  # in JSON, which may have 524288
CLASSES = 1_000_000  # of which an output may be told as 1048576


def _costliest() -> dict[str, httpload.HttpRequest]:
    """Return requests near their limits, by what is costly about them."""
    import json

    import numpy as np

    from benchmarks.peers.servers import wires

    x = np.random.default_rng(7).random(COUNT, "float32")
    tensor = {"name": wires.INPUT, "shape": [1, COUNT], "datatype": "FP32"}
    text = {"name": "text", "shape": [TEXTS], "datatype": "BYTES", "data": ["a"] * TEXTS}
    header = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
            "outputs": [{"name": wires.OUTPUT, "parameters": {"classification": CLASSES}}],
        }
    ).encode()
    numbers = {"inputs": [{**tensor, "data": x.round(6).tolist()}]}
    return {
        "numbers": httpload.HttpRequest(wires.INFER, json.dumps(numbers).encode()),
        "texts": httpload.HttpRequest(
            "/v2/models/repeat/infer", json.dumps({"inputs": [text]}).encode()
        ),
        "classes": httpload.HttpRequest(
            wires.INFER, header + x.tobytes(), {wires.HEADER_LENGTH: str(len(header))}
        ),
    }


def health(seconds: float) -> dict[str, float | str]:
    """Return the longest that health took, in ms, while each of the costliest was served.

    By one worker, so that none else answers. Each is asked as often as ``seconds`` allow, and once.
    """
    repeat = str(Path(peers.__file__).with_name("repeat.py"))
    requests = _costliest()
    result: dict[str, float | str] = {}
    with _running(SHMGPU, repeat, "--workers", "1", *DEFAULTS) as (port, _):
        for what, request in requests.items():
            until = time.monotonic() + seconds / len(requests)
            longest = [_health_while(port, request)]
            while time.monotonic() < until:
                longest.append(_health_while(port, request))
            result[what] = max(longest) * 1e3
    return result


def _health_while(port: int, request: httpload.HttpRequest) -> float:
    """Return the seconds of the longest answer to health from before a request to after it."""
    failed: list[Exception] = []
    over = threading.Event()

    def ask() -> None:
        try:
            httpload.ask(port, request)
        except Exception as error:
            failed.append(error)
        finally:
            over.set()

    longest = 0.0
    connection = http.client.HTTPConnection(httpload.HOST, port, timeout=httpload.ANSWER_LIMIT_S)
    with contextlib.closing(connection):
        thread = threading.Thread(target=ask)
        thread.start()
        while not over.is_set():
            begun = time.monotonic()
            connection.request("GET", HEALTH)
            connection.getresponse().read()
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.001)
        thread.join()
    if failed:
        raise failed[0]
    return longest


def _probe(server: Server) -> Probe:
    def run(seconds: float) -> dict[str, float | str]:
        if server.program and shutil.which(server.program) is None:
            raise Unavailable(f"there is no {server.program} on the path")
        result: dict[str, float | str] = isolate.call(
            "benchmarks.workloads.paths:rates",
            sum(way.times for way in WAYS.values()) * (WARM_S + seconds) + LIMIT_S,
            name=server.name,
            seconds=seconds,
        )
        return result

    units = dict.fromkeys(WAYS, "1/s")
    times = (1 + WARM_S) * sum(way.times for way in WAYS.values())
    return Probe(server.name, run, units, (*server.needs, "grpc"), times=times)


def _ways() -> Group:
    """Return the group of rates along all ways."""
    figures = [
        Figure(
            f"rate_{name}",
            (SHMGPU.name, name),
            (SHMGPU.name, way.beside) if way.beside else (TRITON.name, name),
            way.asked,
            f"{SHMGPU.name}, {way.beside}" if way.beside else None,
        )
        for name, way in WAYS.items()
    ]
    figures += [
        Figure(f"rate_{name}_triton", (SHMGPU.name, name), (TRITON.name, name))
        for name, way in WAYS.items()
        if way.beside
    ]
    return Group("ways", (_probe(SHMGPU), _probe(TRITON)), tuple(figures), rounds=3, quick=False)


def _first_second() -> Group:
    """Return the group of the rate after a start."""

    def run(seconds: float) -> dict[str, float | str]:
        result: dict[str, float | str] = isolate.call(
            "benchmarks.workloads.paths:first_second", LATER_S + LIMIT_S, seconds=seconds
        )
        return result

    probe = Probe(
        "shmgpu, started anew", run, {"first": "1/s", "later": "1/s"}, SHMGPU.needs, times=4
    )
    figure = Figure(
        "first_second", (probe.name, "first"), (probe.name, "later"), ">= 0.8", "shmgpu, later"
    )
    return Group("first_second", (probe,), (figure,), rounds=3, quick_rounds=1)


def _health() -> Group:
    """Return the group of health beside the costliest requests."""

    def run(seconds: float) -> dict[str, float | str]:
        result: dict[str, float | str] = isolate.call(
            "benchmarks.workloads.paths:health", seconds + LIMIT_S, seconds=seconds
        )
        return result

    kinds = ("numbers", "texts", "classes")
    probe = Probe("shmgpu, one worker", run, dict.fromkeys(kinds, "ms"), SHMGPU.needs)
    figures = (
        Figure(f"health_beside_{kind}", (probe.name, kind), asked="<= 100") for kind in kinds
    )
    return Group("health", (probe,), tuple(figures), rounds=3, quick=False)


WORKLOAD = Workload(
    "paths",
    "each way into shmgpu serve, with defaults, beside Triton; its first second; health under load",
    (_ways(), _first_second(), _health()),
    preface=httpload.preface,
)
