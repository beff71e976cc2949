"""The page of ``shmgpu top --web``, and what Prometheus scrapes there.

Owns the HTTP server, its addresses and the figures that a page draws: one thread takes a sample
each interval, and whoever asks gets the last ones, so that many who look cost a broker no more than
one. Knows nothing of where the numbers come from (:mod:`shmgpu.watch.follower`), or of how the page
draws them (page.html). Never changes anything: only GET and HEAD are answered.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import ipaddress
import json
import pathlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shmgpu.common.logs import logger
from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError, LaunchError, ShmError
from shmgpu.watch import monitor, tables
from shmgpu.watch.follower import Follower

KEPT = 600  # samples, for pages that are opened later
MOST_CONNECTIONS = 32
IDLE_S = 10.0  # a connection that says nothing so long is closed
WAITING = "waiting for a broker"
HTML, JSON, SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript"
# The page asks nobody but this server, and nobody may put it into a page of their own.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'"
)


def run(found: monitor.RunningBroker, pid: int | None, interval: float, address: str) -> None:
    """Serve until interrupted; after the broker's end the next one, unless ``pid`` was named.

    Raises:
        ConfigError: the address is none.
        LaunchError: it cannot be listened at, or a library is missing.
    """
    with PageServer(found, pid is None, interval, address) as server:
        print(f"shmgpu top: {server.url}, and metrics at {server.url}metrics", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve()


class Figures:
    """What pages draw: a point for each of the last samples, and the tables of the last one."""

    def __init__(self) -> None:
        self.points: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.sample: dict[str, Any] | None = None
        self.brokers = 0
        self._lock = threading.Lock()

    def add(self, sample: dict[str, Any], brokers: int) -> None:
        """Take a sample; the first of another broker begins the figures anew."""
        with self._lock:
            if brokers != self.brokers:
                self.points.clear()
                self.brokers = brokers
            self.sample = sample
            self.points.append(point_of(sample))

    def view(self, since: float) -> dict[str, Any]:
        """Points after a time, seconds since 1970; headline and tables as a terminal has them."""
        with self._lock:
            sample, brokers = self.sample, self.brokers
            points = [one for one in self.points if one["time"] > since]
        if sample is None:
            return {
                "broker": 0,
                "points": [],
                "headline": [WAITING, ""],
                "tables": [],
            }
        return {
            "broker": brokers,
            "points": points,
            "headline": tables.headline(sample),
            "running": sample["running"],
            "tables": [
                _as_texts(table, tables.rows_of(sample, table)) for table in tables.tables(sample)
            ],
        }


def point_of(sample: dict[str, Any]) -> dict[str, Any]:
    """The figures of one sample that are drawn over time."""
    arena_bytes = max(1, sample["broker"]["arena_bytes"])
    used = [row["arena_used_bytes"] / arena_bytes for row in sample["children"]]
    return {
        "time": sample["time"],
        "calls": sample["rates"]["answered"],
        "failed": sample["rates"]["failed"],
        "queued": sample["broker"]["queued"],
        "in_flight": sample["broker"]["in_flight"],
        "busy": {f"helper {row['helper']}": row["busy"] for row in sample["helpers"]},
        "arenas": {"fullest": max(used, default=0.0), "mean": sum(used) / max(1, len(used))},
        "latency": {
            row["name"]: [
                (row[f"queued_{which}_us"] + row[f"service_{which}_us"]) / 1e3
                if row[f"queued_{which}_us"] is not None
                else None
                for which in ("p50", "p99")
            ]
            for row in sample["functions"]
        },
    }


def _as_texts(table: tables.TextTable, rows: list[tables.Row]) -> dict[str, Any]:
    shown = table.arrange(rows)[: tables.PLAIN_CHILDREN]
    return {
        "name": table.name,
        "headings": [[column.heading, column.left] for column in table.columns],
        "rows": [[column.text(row) for column in table.columns] for row in shown],
        "bad": [table.is_bad(row) for row in shown],
        "more": len(rows) - len(shown),
    }


class PageServer(ThreadingHTTPServer):
    """Answers, and a thread that takes samples; a context manager.

    Args:
        found: the broker to begin with.
        follow: after its end, go over to the next broker that runs.
        interval: seconds between samples.
        address: ``HOST:PORT``, ``:PORT`` (of this machine alone) or ``PORT``; port 0: any.

    Attributes:
        url: of the page.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, found: monitor.RunningBroker, follow: bool, interval: float, address: str
    ) -> None:
        host, port = parse_address(address)
        self.metrics = _exposition()
        self.drawing = _plotly()
        self.host = host
        self.figures = Figures()
        self._follower, self._interval = Follower(found, follow), interval
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="shmgpu top", daemon=True)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise LaunchError(f"{address} cannot be listened at: {error.strerror}") from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"

    def serve(self) -> None:
        """Answer until :meth:`shutdown`."""
        self._sampler.start()
        self.serve_forever(poll_interval=0.2)

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._is_over.is_set():
            try:
                sample = self._follower.step()
            except ShmError as error:
                logger.warning("shmgpu top: %s", error)
                sample = None
            if sample is not None:
                self.figures.add(sample, self._follower.brokers)
            due = max(due + self._interval, time.monotonic())
            self._is_over.wait(max(0.0, due - time.monotonic()))
        self._follower.close()

    def server_close(self) -> None:
        """End the thread, too."""
        self._is_over.set()
        if self._sampler.ident is not None:
            self._sampler.join()
        super().server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection, and no more than a few of them."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Its place is free again when it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves, or says nonsense, is its own business."""
        logger.debug("shmgpu top: a connection ended early", exc_info=True)

    def is_ours(self, host: str) -> bool:
        """Whether a request's Host names this machine: a name of somebody's own would not.

        So no page that a browser shows can read what is here by a name that it lets mean us.
        """
        try:
            name = _split(host)[0] if ":" in host else host
        except ConfigError:
            return False
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name.lower() in ("localhost", self.host.lower(), socket.gethostname().lower())


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer
    server_version = "shmgpu-top"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Answer one of :data:`PATHS`."""
        path, _, query = self.path.partition("?")
        if not self.server.is_ours(self.headers.get("Host", "localhost")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"Ask by this machine's address.\n")
        elif (answer := PATHS.get(path)) is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"Here are /, /view.json, /metrics.\n")
        else:
            self._answer(*answer(self.server, query))

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=86400" if kind == SCRIPT else "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """What is asked is nobody's news."""
        logger.debug(format, *args)


Answer = tuple[HTTPStatus, str, bytes]


def _page(server: PageServer, query: str) -> Answer:
    page = importlib.resources.files("shmgpu.watch") / "page.html"
    return HTTPStatus.OK, HTML, page.read_bytes()


def _view(server: PageServer, query: str) -> Answer:
    try:
        since = float(query.removeprefix("since=") or 0)
    except ValueError:
        return HTTPStatus.BAD_REQUEST, "text/plain", b"since= takes seconds since 1970.\n"
    return HTTPStatus.OK, JSON, json.dumps(server.figures.view(since)).encode()


def _metrics(server: PageServer, query: str) -> Answer:
    sample = server.figures.sample
    if server.metrics is None:
        return _missing("prometheus_client")
    if sample is None:
        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"No sample has been taken yet.\n"
    return HTTPStatus.OK, server.metrics.CONTENT_TYPE, server.metrics.SampleMetrics(sample).text()


def _drawing(server: PageServer, query: str) -> Answer:
    if server.drawing is None:
        return _missing("plotly")
    return HTTPStatus.OK, SCRIPT, server.drawing.read_bytes()


def _missing(package: str) -> Answer:
    sentence = f"This needs {package}: {with_extra('top')}.\n"
    return HTTPStatus.NOT_IMPLEMENTED, "text/plain", sentence.encode()


PATHS: dict[str, Callable[[PageServer, str], Answer]] = {
    "/": _page,
    "/view.json": _view,
    "/metrics": _metrics,
    "/plotly.js": _drawing,
}


def _exposition() -> Any:
    """How samples become metrics; None without the library."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    from shmgpu.watch import exposition

    return exposition


def _plotly() -> pathlib.Path | None:
    """The script that draws, which the package plotly brings; None without it."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    script = pathlib.Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return script if script.is_file() else None


def parse_address(text: str) -> tuple[str, int]:
    """Host and port; without a host it is this machine alone.

    Raises:
        ConfigError: it is none.
    """
    host, port = _split(text) if ":" in text else ("", text)
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address: use HOST:PORT, or PORT (0 to 65535)")
    return host or "127.0.0.1", int(port)


def _split(text: str) -> tuple[str, str]:
    """Host and port; IPv6 addresses stand in brackets."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1], ""
    if ":" in host:
        raise ConfigError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:8000")
    return host, port
