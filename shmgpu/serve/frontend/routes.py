"""The routes of the HTTP front end: one table from method and path to what answers.

Owns the table, and the answers that need nothing but the state. Never runs an inference itself:
:mod:`shmgpu.serve.scheduling.inference` does.
"""

from __future__ import annotations

import argparse
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from shmgpu.serve.frontend import documents
from shmgpu.serve.frontend import generate as generating
from shmgpu.serve.frontend.aside import LONG_BYTES, AsideThreads
from shmgpu.serve.frontend.compression import decoded, encoded
from shmgpu.serve.frontend.fast_path import Candidate, FastPath, binary_headers
from shmgpu.serve.frontend.json_fast_path import JsonFastPath
from shmgpu.serve.frontend.request import Refusal, Request, error_body
from shmgpu.serve.protocol import http_codec, json_reader
from shmgpu.serve.protocol.types import InferRequest, InferResponse, ProtocolError, RequestLimits
from shmgpu.serve.scheduling import templates
from shmgpu.serve.scheduling.catalog import Catalog, ServedModel
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.lifecycle import Lifecycle
from shmgpu.serve.scheduling.pending import Pending
from shmgpu.serve.scheduling.statuses import answer_to
from shmgpu.serve.state import log_settings as settings
from shmgpu.serve.state.counters import Counters
from shmgpu.serve.state.regions import NO_CUDA, Regions, unknown_region

NO_PARAMETERS = "a model is loaded as it lies in the repository: no parameters"
_now = time.monotonic_ns

PLAIN = b"text/plain; charset=utf-8"
NO_TOKEN = "the server wants a token: Authorization: Bearer ..."
OPEN_TO_ALL = (b"/v2/health/live", b"/v2/health/ready")  # without a token
LOOKS = (b"GET", b"HEAD")
MOST_TARGET_BYTES = 256  # of one that is worth remembering
_INFER = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([^/?]+))?/infer(?:\?.*)?")


class Front:
    """What the routes of one worker work with.

    Attributes:
        calls: its inferences.
        catalog: the models.
        counters: of the whole server.
        metrics: what Prometheus reads; None until the server has them.
        lifecycle: loads, reloads and unloads models.
        token: what a client must show; empty where none is wanted.
        limits: what :func:`.http_codec.parse_infer` is to allow; see there.
        options: what the command line said.
        fast_path: requests like an earlier one in all but their tensors' bytes.
        json_fast_path: the same where these are numbers in JSON.
        regions: clients' shared memory.
        is_leaving: whether this worker is on its way to its end.
        routes: the table, and what a worker adds to it.
        aside: where large requests are read, and large answers written.
    """

    def __init__(
        self,
        calls: Calls,
        catalog: Catalog,
        counters: Counters,
        limits: RequestLimits,
        lifecycle: Lifecycle,
        options: argparse.Namespace,
        scratch: memoryview,
        regions: Regions,
        token: bytes = b"",
    ) -> None:
        self.calls = calls
        self.catalog = catalog
        self.counters = counters
        self.limits = limits
        self.metrics: Any = None
        self.lifecycle = lifecycle
        self.options = options
        self.regions = regions
        self.token = token
        self.is_leaving = False

        def answering(request: Request) -> _Answering:
            return _Answering(self, request)

        self.json_fast_path = JsonFastPath(calls, catalog, scratch, answering)
        self.fast_path = FastPath(calls, catalog, scratch, answering, self.json_fast_path.take)
        self.aside = AsideThreads(options.workers)
        self.routes = ROUTES
        self._paths: dict[bytes, tuple[str, str]] = {}

    def admit(self, request: Request) -> Refusal | None:
        """Refuse a head that does not bear the token; see :class:`.connection.Connection`."""
        # Without the token no body: it would take memory.
        if request.target in OPEN_TO_ALL and request.method in LOOKS and not brings_body(request):
            return None
        if bears(request.headers.get(b"authorization", b""), self.token):
            return None
        return 401, NO_TOKEN, b"WWW-Authenticate: Bearer\r\n"

    def answer(self, request: Request) -> None:
        """Answer a request; see :class:`shmgpu.serve.frontend.request.Answering`."""
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
                if len(target) <= MOST_TARGET_BYTES:
                    if len(self._paths) >= 1024:
                        self._paths.clear()
                    self._paths[target] = known
            if request.method != b"POST":
                not_allowed(request, [b"POST"])
                return
            self._infer(request, *known)
        except Exception as error:
            fail(request, error)

    @property
    def is_ready(self) -> bool:
        """Whether requests are wanted."""
        return not (self.is_leaving or self.catalog.table.is_draining)

    def later(self, request: Request, answering: Coroutine[Any, Any, None]) -> None:
        """Have a coroutine answer a request; if it raises, answer with that error."""

        async def run() -> None:
            try:
                await answering
            except Exception as error:
                fail(request, error)

        self.aside.start(run())

    def _route(self, request: Request) -> None:
        path, _, _ = request.target.partition(b"?")
        allowed: list[bytes] = []
        for method, pattern, handler in self.routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            allowed += [method, b"HEAD"] if method == b"GET" else [method]
            if method == request.method or (request.method == b"HEAD" and method == b"GET"):
                self.catalog.refresh()
                names = {
                    key: unquote(value.decode("latin-1"))
                    for key, value in match.groupdict(b"").items()
                }
                handler(self, request, **names)
                return
        if allowed:
            not_allowed(request, allowed)
            return
        raise ProtocolError(404, "Not Found")

    def _infer(self, request: Request, name: str, version: str) -> None:
        started_ns = _now()
        served: ServedModel | None = None
        traceparent = request.headers.get(b"traceparent", b"")
        try:
            served = self.catalog.find(name, version)
            seen = self.catalog.version
            body, header_length = request.body, request.header_length
            key = None
            # Elements of BYTES are looked at one by one.
            is_slow = served.takes_bytes and len(body) > LONG_BYTES
            if b"content-encoding" in request.headers or is_slow or is_long(body, header_length):
                self.later(request, self._infer_aside(request, served, started_ns))
                return
            key = templates.key_of(body, header_length)
            if key is not None:
                before = served.templates.get(key)
                args = before.arguments(body, seen) if before is not None else None
                if before is not None and args is not None:
                    answering = _Answering(self, request)
                    pending = self.calls.start_known(served, before, args, started_ns, answering)
                    request.on_disconnect = pending.cancel
                    pending.traceparent = traceparent
                    answering.candidate = self.fast_path.candidate(request, pending)
                    return
            view = memoryview(body)
            parsed = http_codec.parse_infer(view, header_length, self.limits, served.metadata)
            pending = self._start(request, served, parsed, started_ns, is_in_buffer=True)
            if key is not None:
                templates.remember(served, key, parsed, pending.args, view, seen)
        except Exception as error:
            self.calls.refused(served, started_ns, traceparent, (name, version, ""), error)
            raise

    async def _infer_aside(self, request: Request, served: ServedModel, started_ns: int) -> None:
        """An inference whose request takes long to read."""
        try:
            self.calls.accounting.admit(served.only_queue)
            parsed = await self.aside.run(self._read, request, request.body, served)
            if not request.is_answered:  # the client is still there
                self._start(request, served, parsed, started_ns)
        except Exception as error:
            named = served.name, served.version, ""
            traceparent = request.headers.get(b"traceparent", b"")
            self.calls.refused(served, started_ns, traceparent, named, error)
            raise

    def _read(self, request: Request, body: Any, served: ServedModel) -> InferRequest:
        encoding = request.headers.get(b"content-encoding")
        if encoding is not None:
            body = decoded(body, encoding, self.options.max_body)
        parsed = http_codec.parse_infer(
            memoryview(body), request.header_length, self.limits, served.metadata
        )
        if served.prepare is None and served.steps is None:
            for one in parsed.inputs:
                one.join()
        return parsed

    def _start(
        self,
        request: Request,
        served: ServedModel,
        parsed: InferRequest,
        started_ns: int,
        is_in_buffer: bool = False,
    ) -> Pending:
        def outcome(response: InferResponse | None, error: BaseException | None) -> None:
            if response is None:
                assert error is not None
                fail(request, error)
            elif takes_long(parsed, response):
                self.later(request, self._write_aside(request, served, parsed, response))
            else:
                answer = _written(served, parsed, response)
                reply(self, request, answer)
                if learns is not None:
                    learns(answer[0][0], response)

        learns: Callable[[bytes, InferResponse], None] | None = None
        pending = self.calls.start(served, parsed, started_ns, outcome)
        if is_in_buffer and request.header_length is None:
            learns = self.json_fast_path.candidate(request, served, pending, parsed)
        request.on_disconnect = pending.cancel
        pending.traceparent = request.headers.get(b"traceparent", b"")
        return pending

    async def _write_aside(
        self,
        request: Request,
        served: ServedModel,
        parsed: InferRequest,
        response: InferResponse,
    ) -> None:
        """An answer that takes long to write."""
        try:
            answer = await self.aside.run(_written, served, parsed, response)
        except Exception:  # such as text that JSON cannot carry
            self.calls.accounting.retract(served)
            raise
        reply(self, request, answer)


class _Answering:
    """Takes the outcome of a known request, whose body is ready to be sent."""

    __slots__ = ("candidate", "front", "request")

    def __init__(self, front: Front, request: Request) -> None:
        self.front = front
        self.request = request
        self.candidate: Candidate | None = None

    def __call__(self, answer: Any, error: BaseException | None) -> None:
        if error is not None:
            fail(self.request, error)
        else:
            reply(self.front, self.request, answer)
            if self.candidate is not None:
                self.candidate.answered(*answer)


def is_long(body: Any, header_length: int | None) -> bool:
    """Whether the JSON of a request takes too long to read in the loop."""
    size = len(body)
    return size > LONG_BYTES and (header_length is None or header_length > LONG_BYTES)


def _written(
    served: ServedModel, asked: InferRequest, response: InferResponse
) -> tuple[Sequence[Any], int | None]:
    return http_codec.build_infer(
        served.name, served.version, asked, response.outputs, response.parameters
    )


def takes_long(asked: InferRequest, response: InferResponse) -> bool:
    """Whether outputs that are to be JSON, or classes, take too long to write in the loop."""
    if asked.binary_output and not asked.outputs:
        return False
    binary = {one.name for one in asked.outputs if one.binary and not one.classification}
    return any(one.is_long(LONG_BYTES) and one.name not in binary for one in response.outputs)


def reply(front: Front, request: Request, answer: tuple[Sequence[Any], int | None]) -> None:
    """Answer with an inference's body; see :func:`.http_codec.build_infer`."""
    buffers, header_length = answer
    accepted = request.headers.get(b"accept-encoding")
    if accepted is None:
        _reply(request, buffers, header_length, b"")
    elif sum(map(len, buffers)) <= LONG_BYTES:
        _reply(request, *encoded(buffers, accepted, header_length))
    else:

        async def compress() -> None:
            _reply(request, *await front.aside.run(encoded, buffers, accepted, header_length))

        front.later(request, compress())


def _reply(
    request: Request, buffers: Sequence[Any], header_length: int | None, headers: bytes
) -> None:
    if header_length is None:
        request.reply(200, buffers, headers=headers)
    else:
        content_type, named = binary_headers(header_length)
        request.reply(200, buffers, content_type, headers + named)


def brings_body(request: Request) -> bool:
    """Whether a head announces a body."""
    headers = request.headers
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or length.strip(b"0") != b""


def bears(authorization: bytes, token: bytes) -> bool:
    """Whether an Authorization header has the token."""
    kind, _, given = authorization.partition(b" ")
    return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)


def fail(request: Request, error: BaseException) -> None:
    """Answer with an error."""
    status, sentence = answer_to(error, len(request.body))
    # Triton has no other code for a name that is taken, and its clients' tests look for this one.
    request.reply(400 if status == 409 else status, [error_body(sentence)])


def not_allowed(request: Request, methods: Sequence[bytes]) -> None:
    """Say which methods a path has."""
    sentence = f"{request.method.decode('latin-1')} is not for this path"
    request.reply(405, [error_body(sentence)], headers=b"Allow: %s\r\n" % b", ".join(methods))


# ---- the answers that need nothing but the state ---------------------------------------------


def live(front: Front, request: Request) -> None:
    """Whether the process answers at all."""
    request.reply(200)


def ready(front: Front, request: Request) -> None:
    """Whether the server wants requests."""
    request.reply(200 if front.is_ready else 400)


def model_ready(front: Front, request: Request, name: str, version: str = "") -> None:
    """Whether a model is loaded."""
    front.catalog.find(name, version, status=400)
    if not front.is_ready:
        raise ProtocolError(400, f"model '{name}' is not ready: the server is ending")
    request.reply(200)


def server_metadata(front: Front, request: Request) -> None:
    """Name, version, extensions."""
    request.reply(200, [orjson.dumps(documents.server())])


def model_metadata(front: Front, request: Request, name: str, version: str = "") -> None:
    """Inputs and outputs."""
    served = front.catalog.find(name, version)
    versions = sorted(front.catalog.models[name], key=int)
    request.reply(200, [orjson.dumps(documents.metadata(served, versions))])


def model_config(front: Front, request: Request, name: str, version: str = "") -> None:
    """How it is served."""
    request.reply(200, [orjson.dumps(documents.config(front.catalog.find(name, version)))])


def statistics(front: Front, request: Request, name: str = "", version: str = "") -> None:
    """What was counted."""
    request.reply(
        200,
        [orjson.dumps(documents.statistics(front.catalog, front.counters, name, version))],
    )


def generate(front: Front, request: Request, name: str, version: str = "") -> None:
    """One JSON object for another."""
    _generate(front, request, name, version, is_stream=False)


def generate_stream(front: Front, request: Request, name: str, version: str = "") -> None:
    """The same as server-sent events, one for each part."""
    _generate(front, request, name, version, is_stream=True)


def _generate(front: Front, request: Request, name: str, version: str, is_stream: bool) -> None:
    started_ns = _now()
    served: ServedModel | None = None
    try:
        served = front.catalog.find(name, version)
        if is_long(request.body, None):
            front.later(request, _generate_aside(front, request, served, started_ns, is_stream))
            return
        asked = generating.read(_object(front, request), served, front.limits)
        generating.Generation(front.calls, served, asked, request, is_stream).begin()
    except Exception as error:
        traceparent = request.headers.get(b"traceparent", b"")
        front.calls.refused(served, started_ns, traceparent, (name, version, ""), error)
        raise


async def _generate_aside(
    front: Front, request: Request, served: ServedModel, started_ns: int, is_stream: bool
) -> None:
    """The same for a request that takes long to read."""

    def read(body: Any) -> InferRequest:
        found = json_reader.read_object(bytes(body), front.limits)
        return generating.read(found, served, front.limits)

    try:
        front.calls.accounting.admit(served.only_queue)
        asked = await front.aside.run(read, request.body)
        if not request.is_answered:  # the client is still there
            generating.Generation(front.calls, served, asked, request, is_stream).begin()
    except Exception as error:
        traceparent = request.headers.get(b"traceparent", b"")
        front.calls.refused(served, started_ns, traceparent, (served.name, "", ""), error)
        raise


def metrics(front: Front, request: Request) -> None:
    """What Prometheus scrapes."""
    # Not before somebody asks: most workers of most servers never do this.
    from shmgpu.serve.telemetry import metrics as collecting

    if front.metrics is None:
        front.metrics = collecting.Metrics(front.catalog, front.counters)
    request.reply(200, [front.metrics.text()], collecting.CONTENT_TYPE)


def index(front: Front, request: Request) -> None:
    """Every model that the server knows."""
    asked = _object(front, request)
    request.reply(200, [orjson.dumps(front.lifecycle.index(bool(asked.get("ready"))))])


def load(front: Front, request: Request, name: str) -> None:
    """Load or reload a model."""
    check_control(front)
    if _object(front, request).get("parameters"):
        raise ProtocolError(400, NO_PARAMETERS)
    front.later(request, _done(request, front.lifecycle.load(name)))


def unload(front: Front, request: Request, name: str) -> None:
    """Take a model away."""
    check_control(front)
    front.later(request, _done(request, front.lifecycle.unload(name)))


async def _done(request: Request, work: Awaitable[None]) -> None:
    """Say that it is done, when it is."""
    await work
    request.reply(200)


def check_control(front: Front) -> None:
    """Refuses, with 503, to change what is loaded unless that is allowed."""
    if not front.options.allow_repository:
        raise ProtocolError(
            503,
            "explicit model load / unload is not allowed: start the server with --allow-repository",
        )


def _object(front: Front, request: Request) -> dict[str, Any]:
    """A request's body as JSON; an empty one is an empty object."""
    if not len(request.body):
        return {}
    if len(request.body) > LONG_BYTES:
        raise ProtocolError(
            413, f"the body of such a request may have {LONG_BYTES} bytes: send less at once"
        )
    return json_reader.read_object(bytes(request.body), front.limits)


# ---- clients' shared memory ------------------------------------------------------------------


def shared_memory(front: Front, request: Request, name: str = "") -> None:
    """Which regions are registered."""
    request.reply(200, [orjson.dumps(front.regions.status(name))])


def register(front: Front, request: Request, name: str) -> None:
    """Let requests name a region."""
    said = _object(front, request)
    front.regions.register(name, said.get("key"), said.get("offset", 0), said.get("byte_size"))
    request.reply(200)


def unregister(front: Front, request: Request, name: str = "") -> None:
    """Forget a region, or all."""
    front.regions.unregister(name)
    request.reply(200)


def cuda_shared_memory(front: Front, request: Request, name: str = "") -> None:
    """There is none."""
    if name:
        raise ProtocolError(404, unknown_region(name))
    request.reply(200, [b"[]"])


def register_cuda(front: Front, request: Request, name: str) -> None:
    """Another process's device memory is not available here."""
    raise ProtocolError(501, NO_CUDA)


def unregister_cuda(front: Front, request: Request, name: str = "") -> None:
    """Clients do this first, to begin clean: there is nothing to forget."""
    request.reply(200)


_SYSTEM = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
_REGION = "/region/(?P<name>[^/]+)"


# ---- what is logged and traced ---------------------------------------------------------------


def log_settings(front: Front, request: Request) -> None:
    """What is logged."""
    request.reply(200, [orjson.dumps(settings.log(front.catalog.table))])


def change_log_settings(front: Front, request: Request) -> None:
    """Log more, or less."""
    table, allowed = front.catalog.table, front.options.allow_settings
    request.reply(200, [orjson.dumps(settings.change_log(table, allowed, _object(front, request)))])


def trace_settings(front: Front, request: Request, name: str = "") -> None:
    """What is traced."""
    if name:
        front.catalog.find(name, status=400)
    request.reply(200, [orjson.dumps(settings.trace(front.catalog.table, name))])


def change_trace_settings(front: Front, request: Request, name: str = "") -> None:
    """Trace more, or less."""
    if name:
        front.catalog.find(name, status=400)
    table, allowed = front.catalog.table, front.options.allow_settings
    found = settings.change_trace(table, allowed, _object(front, request), name)
    request.reply(200, [orjson.dumps(found)])


_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"

_NAMED = r"/v2/models/(?P<name>[^/]+)"

ROUTES: list[tuple[bytes, re.Pattern[bytes], Callable[..., None]]] = [
    (method.encode(), re.compile(pattern.encode()), handler)
    for method, pattern, handler in (
        ("GET", "/v2/health/live", live),
        ("GET", "/v2/health/ready", ready),
        ("GET", "/v2/?", server_metadata),
        ("GET", "/metrics", metrics),
        ("GET", "/v2/models/stats", statistics),
        ("GET", f"{_MODEL}/ready", model_ready),
        ("GET", f"{_MODEL}/config", model_config),
        ("GET", f"{_MODEL}/stats", statistics),
        ("GET", _MODEL, model_metadata),
        ("POST", f"{_MODEL}/generate", generate),
        ("POST", f"{_MODEL}/generate_stream", generate_stream),
        ("GET", f"{_SYSTEM}(?:{_REGION})?/status", shared_memory),
        ("POST", f"{_SYSTEM}{_REGION}/register", register),
        ("POST", f"{_SYSTEM}(?:{_REGION})?/unregister", unregister),
        ("GET", f"{_CUDA}(?:{_REGION})?/status", cuda_shared_memory),
        ("POST", f"{_CUDA}{_REGION}/register", register_cuda),
        ("POST", f"{_CUDA}(?:{_REGION})?/unregister", unregister_cuda),
        ("GET", "/v2/logging", log_settings),
        ("POST", "/v2/logging", change_log_settings),
        ("GET", f"(?:/v2|{_NAMED})/trace/setting", trace_settings),
        ("POST", f"(?:/v2|{_NAMED})/trace/setting", change_trace_settings),
        ("POST", "/v2/repository/index", index),
        ("POST", r"/v2/repository/models/(?P<name>[^/]+)/load", load),
        ("POST", r"/v2/repository/models/(?P<name>[^/]+)/unload", unload),
    )
]
