"""Starting a server, waiting until it answers rightly, ending it; what its processes hold.

A server is a program that gets a free port. It is started in the process group of whoever runs it,
so that ``isolate`` ends both together.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.httpload import HOST, Answer, HttpRequest, ask
from benchmarks.measure.native import ROOT, tail
from benchmarks.measure.processes import LOOK_AGAIN_S, await_that, descendants, private_mib, runs
from benchmarks.peers.servers.wires import Floats, WireFormat, shared

Asking = Callable[[int, HttpRequest], Answer]  # posts a request to a port

START_LIMIT_S = 60.0
END_LIMIT_S = 2.0  # mosec often waits half a minute for requests whose clients have gone
MOMENT_S = 0.3
CLEANING_LIMIT_S = 10.0
CLEANER = b"multiprocessing.resource_tracker"
CHECKS = 16  # over connections of their own, so that no worker's first request is measured


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], port: int, wire: WireFormat, factor: float) -> Iterator[int]:
    """Run a server; the block begins when its answers are right. Yields the first process's id.

    ``factor`` is what the server multiplies by. ProbeFailed when it ends or never answers.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            _wait_until_it_answers(process, port, wire, said)
            for number in range(CHECKS):
                check(port, wire, np.arange(256, dtype="float32") + number, factor)
            yield process.pid
        finally:
            _end(process)


def _wait_until_it_answers(process: Any, port: int, wire: WireFormat, said: Any) -> None:
    limit = time.monotonic() + START_LIMIT_S
    problem: Exception | None = None
    while time.monotonic() < limit:
        if process.poll() is not None:
            said.seek(0)
            words = tail(said.read().decode(errors="replace"))
            raise ProbeFailed(f"the server ended with {process.returncode}: {words}")
        try:
            ask(port, wire.write(np.ones(256, "float32")))
            return
        except (OSError, HTTPException, ProbeFailed) as error:
            problem = error
        time.sleep(LOOK_AGAIN_S)
    raise ProbeFailed(f"the server did not answer within {START_LIMIT_S:g} s: {problem}")


def check(port: int, wire: WireFormat, x: Floats, factor: float, ask: Asking = ask) -> None:
    """Compare a whole answer, item by item: a server that errs must not look fast."""
    if not np.array_equal(wire.read(ask(port, wire.write(x))), factor * x):
        raise ProbeFailed("the server gave a wrong answer")


@contextmanager
def regions(
    port: int, x: Floats, nbytes: int, wire_of: Callable[..., WireFormat] = shared
) -> Iterator[WireFormat]:
    """Register two regions of ``nbytes`` with the server, ``x`` in one; yields the wire of both.

    The server hears of them over HTTP; ``wire_of`` two regions' names, and the view of the second,
    is how requests name them.
    """
    names = [f"bench-{os.getpid()}-{what}" for what in ("in", "out")]
    paths = [Path("/dev/shm") / name for name in names]
    views = []
    for name, path in zip(names, paths, strict=True):
        path.write_bytes(bytes(nbytes))
        views.append(np.memmap(path, "float32", "r+"))
        known = {"key": f"/{name}", "offset": 0, "byte_size": nbytes}
        route = f"/v2/systemsharedmemory/region/{name}/register"
        ask(port, HttpRequest(route, json.dumps(known).encode()))
    views[0][: len(x)] = x
    try:
        yield wire_of(*names, views[1][: len(x)])
    finally:
        await_that(lambda: _unregistered(port), END_LIMIT_S)
        for path in paths:
            path.unlink()


def _unregistered(port: int) -> bool:
    """Whether the server has let go of all regions: Triton does when no request uses them."""
    try:
        ask(port, HttpRequest("/v2/systemsharedmemory/unregister", b""))
    except ProbeFailed:
        return False
    return True


def most_private_mib(pid: int) -> float:
    """Return the private MiB of the worker that has most, of the shmgpu server with that parent."""
    from shmgpu.watch import monitor

    (found,) = (broker for broker in monitor.find() if broker.pid in (pid, *descendants(pid)))
    with monitor.Monitor(found.pid, found.descriptor) as watch:
        workers = [row["pid"] for row in watch.sample()["children"] if row["state"] == "running"]
    return max(map(private_mib, workers))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell the server to end, then those of its processes that it forgot; kill who does not listen.

    ``multiprocessing``'s resource trackers are spared: once the others are gone they remove the
    semaphores that these leave in ``/dev/shm``, and end. Without one a killed server's stay there.
    """
    left = descendants(process.pid)
    cleaners = [pid for pid in left if _is_cleaner(pid)]
    others = [pid for pid in left if pid not in cleaners]

    def gone() -> bool:
        return process.poll() is not None and not any(map(runs, left))

    process.send_signal(signal.SIGTERM)
    await_that(lambda: process.poll() is not None, END_LIMIT_S)
    await_that(gone, MOMENT_S)
    _tell(others, signal.SIGTERM)
    await_that(gone, MOMENT_S)
    _tell([process.pid, *others], signal.SIGKILL)
    process.wait()
    await_that(gone, CLEANING_LIMIT_S)
    _tell(cleaners, signal.SIGKILL)


def _tell(pids: Sequence[int], number: int) -> None:
    for pid in filter(runs, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_cleaner(pid: int) -> bool:
    try:
        return CLEANER in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
