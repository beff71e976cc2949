"""The gRPC front end: the service's calls, answered from the same state as HTTP's.

Owns the table of calls and the server in one worker. grpc is imported, and starts its threads, only
here: in a worker, after the fork. Every worker listens at the port, and the kernel distributes the
connections. :mod:`shmgpu.serve.scheduling.inference` runs an inference, and
:mod:`shmgpu.serve.protocol.grpc_codec` reads a request. Never runs a model's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from shmgpu.common.logs import logger
from shmgpu.serve.frontend import documents
from shmgpu.serve.frontend.access_log import AccessLog
from shmgpu.serve.frontend.aside import LONG_BYTES
from shmgpu.serve.frontend.grpc_access_log import LoggedCalls
from shmgpu.serve.frontend.grpc_admission import Admission, ComingMessage, MessageMemory
from shmgpu.serve.frontend.routes import NO_PARAMETERS, NO_TOKEN, Front, bears, check_control
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.grpc_codec import MESSAGES, SERVICE
from shmgpu.serve.protocol.types import InferRequest, InferResponse, ProtocolError
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.inference import Pending
from shmgpu.serve.scheduling.statuses import answer_to
from shmgpu.serve.scheduling.streams import Stream
from shmgpu.serve.state import log_settings as settings
from shmgpu.serve.state.regions import NO_CUDA, unknown_region

_now = time.monotonic_ns

# What gRPC calls an HTTP status; INTERNAL for the rest.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
OPEN_TO_ALL = ("ServerLive", "ServerReady")  # without a token
FINAL = "triton_final_response"
WANTS_FINAL = "triton_enable_empty_final_response"
STREAM_AHEAD = 64  # requests of one stream that may be out at once
_InferResponse = MESSAGES["ModelInferResponse"]
_StreamResponse = MESSAGES["ModelStreamInferResponse"]


# ---- inference -------------------------------------------------------------------------------


class _Asked:
    """One inference of a client's: the call that is out, and what is to become of its answer."""

    def __init__(
        self,
        front: Front,
        data: bytes,
        parameters: dict[str, Any] | None = None,
        traceparent: bytes = b"",
    ) -> None:
        started_ns = _now()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.pending: Pending | None = None
        self.id = ""
        served: ServedModel | None = None
        named = "", "", ""
        try:
            message, raw = grpc_codec.split_request(data, front.limits)
            self.id = message.id
            named = message.model_name, message.model_version, message.id
            served = front.catalog.find(message.model_name, message.model_version)
            request = grpc_codec.read_infer(message, raw, front.limits, served.metadata)

            def outcome(response: InferResponse | None, error: BaseException | None) -> None:
                if self.answered.cancelled():
                    return
                if response is None:
                    assert error is not None
                    self.answered.set_exception(error)
                    return
                try:
                    buffers = grpc_codec.build_infer(
                        served.name,
                        served.version,
                        request,
                        response.outputs,
                        {**response.parameters, **(parameters or {})},
                    )
                    if parameters:
                        buffers = grpc_codec.in_stream(buffers)
                    self.answered.set_result(b"".join(buffers))
                except Exception as wrong:
                    self.answered.set_exception(wrong)

            self.pending = front.calls.start(served, request, started_ns, outcome)
            self.pending.traceparent = traceparent
        except Exception as error:
            front.calls.refused(served, started_ns, traceparent, named, error)
            raise

    async def answer(self) -> bytes:
        """The answer's bytes; the call is given up when nobody waits for them any more."""
        try:
            answer: bytes = await self.answered
            return answer
        except asyncio.CancelledError:
            self.give_up()
            raise

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """As a stream wants it: the only one."""
        yield await self.answer()

    def give_up(self) -> None:
        """The client is gone."""
        if self.pending is not None:
            self.pending.cancel()
        self.answered.cancel()


class _Parts:
    """One inference of a stream's whose answer comes in parts, made as fast as they are taken."""

    def __init__(
        self, front: Front, served: ServedModel, message: Any, raw: Any, traceparent: bytes
    ) -> None:
        self.id = message.id
        self.served = served
        self.request = grpc_codec.read_infer(message, raw, front.limits, served.metadata)
        self._told: asyncio.Queue[InferResponse | BaseException | None] = asyncio.Queue()
        self._stream = Stream(
            front.calls,
            served,
            self.request,
            _now(),
            self._told.put_nowait,
            self._told.put_nowait,
            traceparent,
        )
        self._stream.begin()

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """Each part as a response; then an empty one, for clients who want to be told."""
        while isinstance(told := await self._told.get(), InferResponse):
            yield self._response(told, is_final=False)
            self._stream.more()
        if told is not None:
            raise told
        if self.request.parameters.get(WANTS_FINAL):
            asked = replace(self.request, outputs=[])
            yield self._response(InferResponse([]), is_final=True, request=asked)

    def _response(
        self, response: InferResponse, is_final: bool, request: InferRequest | None = None
    ) -> bytes:
        buffers = grpc_codec.build_infer(
            self.served.name,
            self.served.version,
            request or self.request,
            response.outputs,
            {**response.parameters, FINAL: is_final},
        )
        return b"".join(grpc_codec.in_stream(buffers))

    def give_up(self) -> None:
        """The client is gone."""
        self._stream.cancel()


async def infer(front: Front, data: bytes, context: Any) -> bytes:
    """One request, one answer."""
    try:
        return await _Asked(front, data, traceparent=_traceparent(front, context)).answer()
    except Exception as error:
        failed = _told_of(error)
    del data  # whatever abort raises refers to this frame
    await context.abort(*failed)
    raise AssertionError  # abort has raised


def _told_of(error: BaseException) -> tuple[Any, str]:
    """The code and the sentence of an error, which keeps nothing alive from then on.

    Its traceback refers to frames that have the request, and these to what has the error: unless
    they are parted, the request's bytes stay until the collector finds them.
    """
    status, sentence = answer_to(error)
    forget(error)
    return CODES.get(status, grpc.StatusCode.INTERNAL), sentence


def forget(error: BaseException) -> None:
    """Have an error keep no frame alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None
        seen = seen.__context__


def _traceparent(front: Front, context: Any) -> bytes:
    """The client's span, where spans are made."""
    if front.calls.spans is None:
        return b""
    named: str = dict(context.invocation_metadata()).get("traceparent", "")
    return named.encode()


async def infer_in_stream(
    front: Front, memory: MessageMemory, received: AsyncIterator[bytes], traceparent: bytes
) -> AsyncGenerator[bytes, None]:
    """Requests as they come; answers in the requests' order, errors among them."""
    ahead = asyncio.Semaphore(STREAM_AHEAD)
    out: asyncio.Queue[tuple[_Asked | _Parts | bytes, ComingMessage] | None] = asyncio.Queue()

    async def ask() -> None:
        try:
            while True:
                await ahead.acquire()
                coming = await memory.wait()
                data = await anext(received, None)
                if data is None:
                    coming.close()
                    return
                coming.arrived(len(data))
                out.put_nowait((_asked(front, data, traceparent), coming))
                del data
        finally:
            out.put_nowait(None)

    asking = asyncio.ensure_future(ask())
    asked: _Asked | _Parts | bytes | None = None
    try:
        while (item := await out.get()) is not None:
            asked, coming = item
            if isinstance(asked, bytes):
                yield asked
            else:
                try:
                    async with contextlib.aclosing(asked.answers()) as answers:
                        async for answer in answers:
                            yield answer
                except Exception as error:
                    yield _failed(error, asked.id)
            coming.close()
            ahead.release()
        await asking
    finally:
        asking.cancel()
        if isinstance(asked, (_Asked, _Parts)):
            asked.give_up()
            coming.close()
        while not out.empty():
            item = out.get_nowait()
            if item is not None:
                asked, coming = item
                coming.close()
                if isinstance(asked, (_Asked, _Parts)):
                    asked.give_up()


def _asked(front: Front, data: bytes, traceparent: bytes) -> _Asked | _Parts | bytes:
    try:
        started_ns = _now()
        found = _streaming(front, data)
        if found is None:
            return _Asked(front, data, {FINAL: True}, traceparent)
        served, message, raw = found
        try:
            return _Parts(front, served, message, raw, traceparent)
        except Exception as error:
            named = served.name, served.version, message.id
            front.calls.refused(served, started_ns, traceparent, named, error)
            raise
    except Exception as error:
        return _failed(error, _id_of(front, data))


def _streaming(front: Front, data: bytes) -> tuple[ServedModel, Any, Any] | None:
    """The streaming model that a request is for, and its parts; None: it is none, or nothing."""
    try:
        message, raw = grpc_codec.split_request(data, front.limits)
        served = front.catalog.find(message.model_name, message.model_version)
    except ProtocolError:
        return None
    return (served, message, raw) if served.streams else None


def _id_of(front: Front, data: bytes) -> str:
    try:
        name: str = grpc_codec.split_request(data, front.limits)[0].id
    except ProtocolError:
        return ""
    return name


def _failed(error: Exception, request_id: str) -> bytes:
    """An error as a stream reports it: the stream continues."""
    _, sentence = _told_of(error)
    data: bytes = _StreamResponse(
        error_message=sentence, infer_response=_InferResponse(id=request_id)
    ).SerializeToString()
    return data


# ---- the answers that need nothing but the state ---------------------------------------------


def live(front: Front, request: Any) -> dict[str, Any]:
    """Whether the process answers at all."""
    return {"live": True}


def ready(front: Front, request: Any) -> dict[str, Any]:
    """Whether the server wants requests."""
    return {"ready": front.is_ready}


def model_ready(front: Front, request: Any) -> dict[str, Any]:
    """Whether a model is loaded."""
    try:
        front.catalog.find(request.name, request.version)
    except ProtocolError:
        return {"ready": False}
    return {"ready": front.is_ready}


def server_metadata(front: Front, request: Any) -> dict[str, Any]:
    """Name, version, extensions."""
    return documents.server()


def model_metadata(front: Front, request: Any) -> dict[str, Any]:
    """Inputs and outputs."""
    served = front.catalog.find(request.name, request.version)
    return documents.metadata(served, sorted(front.catalog.models[served.name], key=int))


def model_config(front: Front, request: Any) -> dict[str, Any]:
    """How it is served."""
    return {"config": documents.config(front.catalog.find(request.name, request.version))}


def statistics(front: Front, request: Any) -> dict[str, Any]:
    """What was counted."""
    return documents.statistics(front.catalog, front.counters, request.name, request.version)


def index(front: Front, request: Any) -> dict[str, Any]:
    """Every model that the server knows."""
    return {"models": front.lifecycle.index(request.ready)}


async def load(front: Front, request: Any) -> dict[str, Any]:
    """Load or reload a model."""
    check_control(front)
    if request.parameters:
        raise ProtocolError(400, NO_PARAMETERS)
    await front.lifecycle.load(request.model_name)
    return {}


async def unload(front: Front, request: Any) -> dict[str, Any]:
    """Take a model away."""
    check_control(front)
    await front.lifecycle.unload(request.model_name)
    return {}


def shared_memory(front: Front, request: Any) -> dict[str, Any]:
    """Which regions are registered."""
    return {"regions": {one["name"]: one for one in front.regions.status(request.name)}}


def register(front: Front, request: Any) -> dict[str, Any]:
    """Let requests name a region."""
    front.regions.register(request.name, request.key, request.offset, request.byte_size)
    return {}


def unregister(front: Front, request: Any) -> dict[str, Any]:
    """Forget a region, or all."""
    front.regions.unregister(request.name)
    return {}


def cuda_shared_memory(front: Front, request: Any) -> dict[str, Any]:
    """There is none."""
    if request.name:
        raise ProtocolError(404, unknown_region(request.name))
    return {}


def register_cuda(front: Front, request: Any) -> dict[str, Any]:
    """Another process's device memory is not available here."""
    raise ProtocolError(501, NO_CUDA)


def unregister_cuda(front: Front, request: Any) -> dict[str, Any]:
    """Clients do this first, to begin clean: there is nothing to forget."""
    return {}


def trace_settings(front: Front, request: Any) -> dict[str, Any]:
    """What is traced, and what is changed of it, if anything."""
    table, name = front.catalog.table, request.model_name
    if name:
        front.catalog.find(name, status=400)
    asked: dict[str, Any] = {}
    for key, given in request.settings.items():
        values = list(given.value)
        asked[key] = (values if key == "trace_level" else values[0]) if values else None
    if asked:
        settings.change_trace(table, front.options.allow_settings, asked, name)
    found = settings.trace(table, name).items()
    return {
        "settings": {
            key: {"value": value if isinstance(value, list) else [value]} for key, value in found
        }
    }


_LOG_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}


def log_settings(front: Front, request: Any) -> dict[str, Any]:
    """What is logged, and what is changed of it, if anything."""
    table = front.catalog.table
    asked = {
        key: getattr(given, given.WhichOneof("parameter_choice") or "bool_param")
        for key, given in request.settings.items()
    }
    if asked:
        settings.change_log(table, front.options.allow_settings, asked)
    found = settings.log(table).items()
    return {"settings": {key: {_LOG_FIELDS[type(value)]: value} for key, value in found}}


# Each gives its answer in the words of its message's JSON, as HTTP's do.
ANSWERS: dict[str, Callable[[Front, Any], Any]] = {
    "ServerLive": live,
    "ServerReady": ready,
    "ModelReady": model_ready,
    "ServerMetadata": server_metadata,
    "ModelMetadata": model_metadata,
    "ModelConfig": model_config,
    "ModelStatistics": statistics,
    "RepositoryIndex": index,
    "RepositoryModelLoad": load,
    "RepositoryModelUnload": unload,
    "SystemSharedMemoryStatus": shared_memory,
    "SystemSharedMemoryRegister": register,
    "SystemSharedMemoryUnregister": unregister,
    "CudaSharedMemoryStatus": cuda_shared_memory,
    "CudaSharedMemoryRegister": register_cuda,
    "CudaSharedMemoryUnregister": unregister_cuda,
    "TraceSetting": trace_settings,
    "LogSettings": log_settings,
}


# ---- the server ------------------------------------------------------------------------------


async def refuse(context: Any, error: Exception) -> None:
    """Ends a call with an error's code and sentence; raises what ends it."""
    await context.abort(*_told_of(error))


def _answering(front: Front, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    method = SERVICE.methods_by_name[name]
    answer, asked = ANSWERS[name], MESSAGES[method.input_type.name]
    response = MESSAGES[method.output_type.name]

    async def answered(data: bytes, context: Any) -> bytes:
        try:
            if len(data) > LONG_BYTES:
                raise ProtocolError(
                    413, f"the message may have {LONG_BYTES} bytes: send less at once"
                )
            front.catalog.refresh()
            said = answer(front, _parsed(asked, data))
            if inspect.isawaitable(said):
                said = await said
            made = json_format.ParseDict(said, response(), ignore_unknown_fields=True)
            shown: bytes = made.SerializeToString()
            return shown
        except Exception as error:
            failed = _told_of(error)
        del data
        await context.abort(*failed)
        raise AssertionError  # abort has raised

    return answered


def _parsed(asked: Any, data: bytes) -> Any:
    try:
        return asked.FromString(data)
    except DecodeError:
        raise ProtocolError(
            400, f"the request is not a {asked.DESCRIPTOR.name}: send one as the protocol has it"
        ) from None


def handlers(front: Front, memory: MessageMemory) -> Admission:
    """All calls of the service, for `grpc.aio.Server.add_generic_rpc_handlers`."""

    async def many(received: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        traceparent = _traceparent(front, context)
        stream = infer_in_stream(front, memory, received, traceparent)
        async with contextlib.aclosing(stream) as answers:
            async for answer in answers:
                yield answer

    prefix = f"/{SERVICE.full_name}/"
    answers = {prefix + name: _answering(front, name) for name in ANSWERS}
    open_calls = {prefix + name: answers.pop(prefix + name) for name in OPEN_TO_ALL}
    return Admission(
        open_calls,
        {f"{prefix}ModelInfer": functools.partial(infer, front)},
        answers,
        {f"{prefix}ModelStreamInfer": grpc.stream_stream_rpc_method_handler(many)},
        functools.partial(bears, token=front.token) if front.token else None,
        NO_TOKEN,
        memory,
        refuse,
    )


class GrpcServer:
    """One worker's.

    Args:
        front: what the calls are answered with.
        address: to listen at, ``host:port``; every worker the same.
        body_bytes: of one message, at most.
        log: of requests; None: there is none.
    """

    def __init__(
        self, front: Front, address: str, body_bytes: int, log: AccessLog | None = None
    ) -> None:
        options = front.options
        self.server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", options.max_header),
                ("grpc.absolute_max_metadata_size", options.max_header),
                ("grpc.max_concurrent_streams", options.max_queue),
                ("grpc.max_connection_idle_ms", int(options.idle_timeout * 1000)),
            ],
        )
        self.options = options
        memory = MessageMemory(options.arena, options.receive_timeout)
        calls: grpc.GenericRpcHandler = handlers(front, memory)
        if log is not None:
            calls = LoggedCalls(calls, log, {code.value[0]: one for one, code in CODES.items()})
        self.server.add_generic_rpc_handlers((calls,))
        self.address = address

    async def start(self) -> None:
        """Listen."""
        if self.options.tls_cert:
            pair = Path(self.options.tls_key).read_bytes(), Path(self.options.tls_cert).read_bytes()
            self.server.add_secure_port(self.address, grpc.ssl_server_credentials([pair]))
        else:
            self.server.add_insecure_port(self.address)
        await self.server.start()
        logger.debug("gRPC at %s", self.address)

    async def stop(self, seconds: float) -> None:
        """Take no new calls, and give those that are out so long."""
        await self.server.stop(seconds)
