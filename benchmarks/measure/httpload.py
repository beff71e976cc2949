"""Load on an HTTP server: one request posted again and again over so many connections.

The load is wrk's (``measure/wrk.lua``), and where there is no wrk, a Python program's (``main``
below), which takes more of the machine for itself: ``preface`` says which. Both are closed loops: a
connection sends its next request when it has its answer. Both correct their latencies for what such
a loop omits: one that took more than twice the mean interval counts as the requests, too, that
would have been sent meanwhile.

``ask`` sends one request and returns the answer, for whoever wants to check it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.native import ROOT, tail

SCRIPT = Path(__file__).with_name("wrk.lua")
HOST = "127.0.0.1"
LONGEST_S = 3600
END_LIMIT_S = 2.0
TRIES = 3
ANSWER_LIMIT_S = 20
READY = "ready"  # a generator's first line, on stderr, before it begins
NOTHING = {
    **dict.fromkeys(("answered", "refused", "broken"), 0),
    **dict.fromkeys(("seconds", "median_us", "p99_us"), 0.0),
}


@dataclass(frozen=True)
class HttpRequest:
    """What is posted: to ``path``, with ``headers`` besides the length, ``body``."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What came: the body, and the headers with names in lower case."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class LoadResult:
    """Answered requests a second; the median and the 99th percentile of the latencies, in us."""

    rate: float
    median_us: float
    p99_us: float


def ask(port: int, request: HttpRequest) -> Answer:
    """Post one request over a connection of its own; ProbeFailed unless the status is 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_LIMIT_S)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        said = body[:200].decode(errors="replace")
        raise ProbeFailed(f"the server answered {response.status}: {said}")
    return Answer(body, {name.lower(): value for name, value in response.getheaders()})


def preface() -> str:
    """Return a sentence that says what makes the load."""
    if shutil.which("wrk"):
        version = subprocess.run(["wrk", "--version"], capture_output=True, text=True, check=False)
        words = " ".join((version.stdout or version.stderr).split()[:2])
        return f"Load by {words}, one thread, closed loop; latencies corrected for what it omits."
    return (
        "There is no wrk here (Debian's package of that name): the load is a Python program's, "
        "which takes more of the machine for itself."
    )


def drive(port: int, request: HttpRequest, connections: int, seconds: float) -> LoadResult:
    """Load the server for ``seconds``; ProbeFailed where an answer is no good or none comes."""
    with tempfile.NamedTemporaryFile(prefix="shmgpu-bench-body-") as body:
        body.write(request.body)
        body.flush()
        headers = [f"{name}: {value}" for name, value in request.headers.items()]
        url = f"http://{HOST}:{port}{request.path}"
        if shutil.which("wrk"):
            # wrk counts whole seconds; told to end, it ends at once and reports as usual.
            command = ["wrk", "-t1", f"-c{connections}", f"-d{LONGEST_S}s", "--timeout", "20s"]
            command += ["-s", str(SCRIPT), url, "--", body.name, *headers]
        else:
            command = [sys.executable, "-m", "benchmarks.measure.httpload", str(connections), url]
            command += [body.name, *headers]
        for _ in range(TRIES):
            result = _run(command, seconds)
            if result["answered"]:
                break
    if result["refused"] or result["broken"]:
        raise ProbeFailed(f"{result['refused']} requests refused, {result['broken']} not answered")
    if not result["answered"]:
        raise ProbeFailed("no request was answered")
    return LoadResult(result["answered"] / result["seconds"], result["median_us"], result["p99_us"])


def _run(command: list[str], seconds: float) -> dict[str, Any]:
    """Let a generator run for ``seconds``, interrupt it, and return what it prints last.

    Nothing was answered where it had not begun when it was interrupted.
    """
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()  # READY, or why it ends
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            try:
                output, errors = process.communicate(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                # On a busy machine the signal came before wrk began to wait for it: it makes no
                # load any more, and waits for another one.
                process.kill()
                process.communicate()
                return dict(NOTHING)
        except BaseException:
            process.kill()
            raise
    try:
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        said = tail(first + errors or output)
        raise ProbeFailed(f"{command[0]} ended with {process.returncode}: {said}") from None
    return result


# ---- the generator for where there is no wrk -------------------------------------------------


class _Client(asyncio.Protocol):
    """One connection: sends, reads an answer by its Content-Length, sends again."""

    def __init__(self, message: bytes, tally: _Tally) -> None:
        self._message = message
        self._tally = tally
        self._began = 0.0
        self._left = -1  # bytes of the body still to come; below 0: the header is not whole
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            lines = head.lower().split(b"\r\n")
            lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
            self._tally.refused += not lines[0].startswith(b"http/1.1 2")
            self._head, self._left = b"", lengths[0] - len(rest)
        else:
            self._left -= len(data)
        if self._left == 0:
            self._left = -1
            self._tally.took_us.append((time.perf_counter() - self._began) * 1e6)
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._tally.broken += 1


@dataclass
class _Tally:
    took_us: list[float] = field(default_factory=list)
    refused: int = 0
    broken: int = 0


def corrected(took_us: list[float], interval_us: float) -> list[float]:
    """Return the latencies and those of the requests that a slow answer kept from being sent."""
    omitted = []
    for took in took_us:
        if took > 2 * interval_us:
            late = took - interval_us
            while late > interval_us:
                omitted.append(late)
                late -= interval_us
    return took_us + omitted


async def _load(connections: int, host: str, port: int, message: bytes) -> dict[str, Any]:
    loop, stop, tally = asyncio.get_running_loop(), asyncio.Event(), _Tally()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    print(READY, file=sys.stderr, flush=True)
    began = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: _Client(message, tally), host, port)
    await stop.wait()
    seconds = time.perf_counter() - began
    result = {**NOTHING, "answered": len(tally.took_us), "seconds": seconds}
    if tally.took_us:
        interval_us = seconds * 1e6 * connections / len(tally.took_us)
        took_us = sorted(corrected(tally.took_us, interval_us))
        result["median_us"] = took_us[len(took_us) // 2]
        result["p99_us"] = took_us[len(took_us) * 99 // 100]
    return {**result, "refused": tally.refused, "broken": tally.broken}


def main(arguments: list[str]) -> int:
    """Make load until interrupted, then print the figures: CONNECTIONS URL BODY-FILE HEADER..."""
    connections, url, body_file, *headers = arguments
    place, _, path = url.removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    body = Path(body_file).read_bytes()
    lines = [f"POST /{path} HTTP/1.1", f"Host: {place}", f"Content-Length: {len(body)}", *headers]
    message = "\r\n".join([*lines, "", ""]).encode() + body
    print(json.dumps(asyncio.run(_load(int(connections), host, int(port), message))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
