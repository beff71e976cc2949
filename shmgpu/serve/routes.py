"""The routes of the HTTP front end: one table from method and path to what answers.

Owns the table and the answers that need nothing but the state. What an inference is belongs to
:mod:`shmgpu.serve.infer`.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import orjson

from shmgpu.serve import describe, protocol
from shmgpu.serve.catalog import Catalog
from shmgpu.serve.edge import Request, error_body
from shmgpu.serve.infer import Calls
from shmgpu.serve.problems import answer_to
from shmgpu.serve.requests import Limits, OutputTensor, ProtocolError

_now = time.monotonic_ns

PLAIN = b"text/plain; charset=utf-8"
OCTETS = b"application/octet-stream"
_INFER = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([^/?]+))?/infer(?:\?.*)?")


class Front:
    """What the routes of one worker work with.

    Attributes:
        calls: its inferences.
        catalog: the models.
        limits: what :func:`protocol.parse_infer` is to allow; see there.
        is_draining: whether the server is on its way to its end.
    """

    def __init__(self, calls: Calls, catalog: Catalog, counters: Any, limits: Limits) -> None:
        self.calls = calls
        self.catalog = catalog
        self.counters = counters
        self.limits = limits
        self.is_draining = False
        self._paths: dict[bytes, tuple[str, str]] = {}

    def answer(self, request: Request) -> None:
        """Answer a request; see :class:`shmgpu.serve.edge.Answering`."""
        try:
            target = request.target
            known = self._paths.get(target)
            if known is None:
                found = _INFER.fullmatch(target)
                if found is None:
                    self._route(request)
                    return
                name, version = found.groups(b"")
                known = unquote(name.decode("latin-1")), unquote(version.decode("latin-1"))
                if len(self._paths) < 1024:
                    self._paths[target] = known
            if request.method != b"POST":
                raise ProtocolError(405, "use POST here")
            self._infer(request, *known)
        except Exception as error:
            fail(request, error)

    def _route(self, request: Request) -> None:
        path, _, _ = request.target.partition(b"?")
        is_known = False
        for method, pattern, handler in ROUTES:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            is_known = True
            if method == request.method or (request.method == b"HEAD" and method == b"GET"):
                self.catalog.refresh()
                names = {
                    key: unquote(value.decode("latin-1"))
                    for key, value in match.groupdict(b"").items()
                }
                handler(self, request, **names)
                return
        if is_known:
            raise ProtocolError(405, f"{request.method.decode('latin-1')} is not for this path")
        raise ProtocolError(404, "Not Found")

    def _infer(self, request: Request, name: str, version: str) -> None:
        started_ns = _now()
        served = self.catalog.find(name, version)
        try:
            encoding = request.headers.get(b"content-encoding")
            body = request.body
            if encoding is not None:
                body = decoded(body, encoding)
            parsed = protocol.parse_infer(
                memoryview(body), request.header_length, self.limits, served.metadata
            )

            def outcome(outputs: list[OutputTensor] | None, error: BaseException | None) -> None:
                if outputs is None:
                    assert error is not None
                    fail(request, error)
                    return
                buffers, header_length = protocol.build_infer(
                    served.name, served.version, parsed, outputs
                )
                if header_length is None:
                    request.reply(200, buffers)
                else:
                    request.reply(
                        200,
                        buffers,
                        OCTETS,
                        b"Inference-Header-Content-Length: %d\r\n" % header_length,
                    )

            request.on_disconnect = self.calls.start(served, parsed, started_ns, outcome).cancel
        except Exception:
            self.calls.refused(served, started_ns)
            raise


def fail(request: Request, error: BaseException) -> None:
    """Answer with an error."""
    status, sentence = answer_to(error)
    request.reply(status, [error_body(sentence)])


def decoded(body: Any, encoding: bytes) -> bytes:
    """A body that was compressed."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return bytes(body)
    if name not in (b"gzip", b"deflate"):
        raise ProtocolError(415, "the body's Content-Encoding must be gzip or deflate")
    try:
        return zlib.decompress(body, 47 if name == b"gzip" else 15)
    except zlib.error as error:
        raise ProtocolError(400, f"the body cannot be decompressed ({error})") from None


# ---- the answers that need nothing but the state ---------------------------------------------


def live(front: Front, request: Request) -> None:
    """Whether the process answers at all."""
    request.reply(200)


def ready(front: Front, request: Request) -> None:
    """Whether the server wants requests."""
    request.reply(400 if front.is_draining else 200)


def model_ready(front: Front, request: Request, name: str, version: str = "") -> None:
    """Whether a model is loaded."""
    try:
        front.catalog.find(name, version)
    except ProtocolError:
        request.reply(400)
        return
    request.reply(400 if front.is_draining else 200)


def server_metadata(front: Front, request: Request) -> None:
    """Name, version, extensions."""
    request.reply(200, [orjson.dumps(describe.server())])


def model_metadata(front: Front, request: Request, name: str, version: str = "") -> None:
    """Inputs and outputs."""
    served = front.catalog.find(name, version)
    versions = sorted(front.catalog.models[name], key=int)
    request.reply(200, [orjson.dumps(describe.metadata(served, versions))])


def model_config(front: Front, request: Request, name: str, version: str = "") -> None:
    """How it is served."""
    request.reply(200, [orjson.dumps(describe.config(front.catalog.find(name, version)))])


def statistics(front: Front, request: Request, name: str = "", version: str = "") -> None:
    """What was counted."""
    request.reply(
        200,
        [orjson.dumps(describe.statistics(front.catalog, front.counters, name, version))],
    )


_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"

ROUTES: list[tuple[bytes, re.Pattern[bytes], Callable[..., None]]] = [
    (method.encode(), re.compile(pattern.encode()), handler)
    for method, pattern, handler in (
        ("GET", "/v2/health/live", live),
        ("GET", "/v2/health/ready", ready),
        ("GET", "/v2/?", server_metadata),
        ("GET", "/v2/models/stats", statistics),
        ("GET", f"{_MODEL}/ready", model_ready),
        ("GET", f"{_MODEL}/config", model_config),
        ("GET", f"{_MODEL}/stats", statistics),
        ("GET", _MODEL, model_metadata),
    )
]
