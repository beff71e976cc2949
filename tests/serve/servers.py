"""Servers of ``shmgpu serve`` for tests, each in a process of its own, and what is seen of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import shmgpu
from shmgpu.watch import server_counters

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE / "models"
DEADLINE_S = 30.0
# What may speak HTTP/2: libnghttp2 where there is one, and grpcio.
GRPC_FRONTS = ("auto", "grpcio")


def environment(**more: str) -> dict[str, str]:
    """Ours, with the very package that is tested on the path."""
    package = str(pathlib.Path(shmgpu.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def at_once(run: Callable[[int], None], seeds: Iterable[int]) -> None:
    """Run it with each of these, in a thread each."""
    threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until(
    condition: Callable[[], Any], what: str | Callable[[], object], seconds: float = DEADLINE_S
) -> Any:
    """Wait for a condition; its value. Where ``what`` is called, it tells what is missing."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what() if callable(what) else what}"
        time.sleep(0.01)
    return value


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    host: str
    port: int
    grpc_address: str = ""
    said: str = ""  # on stderr, once it has ended

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers by lower-case name, body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/v2/health/ready")[0] == 200
        except OSError:
            return False

    def listens_for_grpc(self) -> bool:
        host, _, port = self.grpc_address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), DEADLINE_S).close()
        except OSError:
            return False
        return True

    def statistics(self, model: str) -> dict[str, Any]:
        """What the protocol says of a model's one version."""
        (found,) = self._statistics(f"{model}/")
        return found

    @contextlib.contextmanager
    def region(self, name: str, nbytes: int) -> Iterator[mmap.mmap]:
        """Shared memory of a client's, which the server knows by that name."""
        path = pathlib.Path(f"/dev/shm/tests-{name}-{os.getpid()}")
        path.write_bytes(bytes(nbytes))
        where = f"/v2/systemsharedmemory/region/{name}"
        told = json.dumps({"key": f"/{path.name}", "offset": 0, "byte_size": nbytes}).encode()
        try:
            assert self.ask("POST", f"{where}/register", told)[0] == 200
            with path.open("r+b") as file, mmap.mmap(file.fileno(), nbytes) as memory:
                yield memory
        finally:
            path.unlink()
            assert self.ask("POST", f"{where}/unregister")[0] == 200

    def of_workers(self, field: str) -> list[int]:
        """A number of each worker, as `shmgpu top` sees them."""
        _, workers = server_counters.read(server_counters.find(self.process.pid))
        return [row[field] for row in workers]

    def pending(self) -> int:
        """Requests that are with helpers or in the queue, of all models."""
        return sum(one["pending"] for one in self._statistics(""))

    def _statistics(self, whose: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("GET", f"/v2/models/{whose}stats")[2])[
            "model_stats"
        ]
        return found

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """What Prometheus would scrape, by name and labels.

        Triton's names are without the ending that this parser gives every counter.
        """
        from prometheus_client.parser import text_string_to_metric_families

        status, headers, body = self.ask("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=")
        return {
            (
                sample.name.removesuffix("_total") if sample.name[:3] == "nv_" else sample.name,
                frozenset(sample.labels.items()),
            ): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }

    def graphs(self, model: str) -> tuple[float, dict[str, float]]:
        """How often CUDA graphs of a model were replayed, and how often not, by reason."""
        found = {
            (name, dict(labels).get("reason", "")): value
            for (name, labels), value in self.samples().items()
            if ("model", model) in labels and name.startswith("shmgpu_graph")
        }
        eager = {why: value for (_, why), value in found.items() if why and value}
        return found["shmgpu_graph_replays_total", ""], eager

    def children(self) -> list[int]:
        """Processes of the parent: helpers first, then workers, in order of their start."""
        pid = self.process.pid
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(one) for one in text.split()]


def connections() -> Iterator[tuple[str, str, str, str]]:
    """Ends of TCP connections as Linux has them: local and remote address, state, inode."""
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        yield local, remote, state, inode


def tensor(name: str, array: Any, datatype: str) -> Any:
    """An input of the stock HTTP client."""
    from tritonclient import http

    made = http.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing during the block; what came meanwhile it finds at once."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def end_amid(server: Server, loops: Sequence[Any]) -> None:
    """SIGTERM while threads ask in turn: nothing that they sent is lost."""
    until(lambda: all(one.answered > 20 for one in loops), "they ask")
    server.process.send_signal(signal.SIGTERM)
    for one in loops:
        one.join(DEADLINE_S)
    assert server.process.wait(DEADLINE_S) == 0
    assert [one.lost for one in loops] == [[]] * len(loops)


@contextlib.contextmanager
def serving(*models: Any, in_group: bool = False, **flags: Any) -> Iterator[Server]:
    """A server that is ready, maybe in a process group of its own; it ends with the block.

    ``max_queue=4`` stands for ``--max-queue 4``; True for a flag without a value,
    None for one that is left out.
    """
    words: list[str] = []
    for name, value in {"port": 0, "workers": 2, "helpers": 2, "arena": "16MiB", **flags}.items():
        if value is None:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    process = subprocess.Popen(
        [sys.executable, "-m", "shmgpu", "serve", *map(str, models), *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=in_group,
    )
    server: Server | None = None
    said = ""
    try:
        line = process.stdout.readline()
        address = line.removeprefix("listening on ").strip()
        grpc_line = process.stdout.readline() if "grpc_port" in flags else ""
        ready = process.stdout.readline()
        if not ready.startswith("ready: "):
            process.wait(DEADLINE_S)
            raise AssertionError(line + grpc_line + ready + process.stderr.read())
        host, _, port = address.rpartition("//")[2].rpartition(":")
        server = Server(process, host.strip("[]"), int(port) if port.isdigit() else 0)
        server.grpc_address = grpc_line.removeprefix("listening on grpc://").strip()
        if server.port and "tls_cert" not in flags:
            until(lambda: process.poll() is not None or server.is_ready(), "a worker is ready")
        if server.grpc_address:
            until(server.listens_for_grpc, "a worker listens for gRPC")
        yield server
    except BaseException:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEADLINE_S)
        process.kill()
        print(process.communicate(timeout=DEADLINE_S)[1], file=sys.stderr)
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        if server is not None:
            server.said = said
    assert process.returncode == 0, said


class Held:
    """A request in a thread of its own, to models/simple.py; ``answer`` once it has one.

    A helper runs it until it is let go, which the end of the block does.
    """

    def __init__(self, server: Server, gate: pathlib.Path) -> None:
        self.answer: Any = None
        self.gate = gate
        self.thread = threading.Thread(target=self._run, args=(server,))
        self.thread.start()

    def _run(self, server: Server) -> None:
        path = {"name": "path", "datatype": "BYTES", "shape": [1], "data": [str(self.gate)]}
        asked = json.dumps({"inputs": [path]}).encode()
        try:
            status, _, answer = server.ask("POST", "/v2/models/held/infer", asked)
            self.answer = status, json.loads(answer)
        except OSError as error:
            self.answer = (0, repr(error))

    def let_go(self) -> None:
        self.gate.touch()
        self.thread.join(DEADLINE_S)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go()
