"""The calls of the gRPC service, answered from the same state as HTTP's.

Owns the table of calls: for each what answers it, whichever front end brought it.
:mod:`shmgpu.serve.frontend.grpc_inference` answers inferences. Never runs a model's code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from shmgpu.serve.frontend import documents, grpc_services
from shmgpu.serve.frontend.answer_memory import WaitingAnswer
from shmgpu.serve.frontend.aside import LONG_BYTES
from shmgpu.serve.frontend.grpc_fast_path import GrpcFastPath
from shmgpu.serve.frontend.grpc_inference import infer, infer_in_stream, told_of
from shmgpu.serve.frontend.message_memory import MessageMemory
from shmgpu.serve.frontend.routes import NO_PARAMETERS, Front, check_control
from shmgpu.serve.protocol.grpc_codec import MESSAGES, SERVICE
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.state import log_settings as settings
from shmgpu.serve.state.regions import NO_CUDA, unknown_region

OPEN_TO_ALL = ("ServerLive", "ServerReady")  # without a token

# A message, and the call; the answer is given back at once, or when there is room for it.
Handler = Callable[[bytes, Any], Awaitable[bytes | WaitingAnswer]]


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


# ---- the table -------------------------------------------------------------------------------


def _answering(front: Front, name: str) -> Handler:
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
            failed = told_of(error)
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


@dataclass(frozen=True)
class Methods:
    """What answers each method, by its path.

    Attributes:
        open_calls: those that need neither a token nor a message.
        often: of one message, which clients call all the time.
        seldom: the same for all others.
        streams: of many messages, given as they come; what answers gives many.
        fast_path: what is known of messages to those called often.
    """

    open_calls: dict[str, Handler]
    often: dict[str, Handler]
    seldom: dict[str, Handler]
    streams: dict[str, Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]]
    fast_path: GrpcFastPath


def methods(front: Front, memory: MessageMemory) -> Methods:
    """All calls of the service."""

    async def many(received: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        stream = infer_in_stream(front, memory, received, context)
        async with contextlib.aclosing(stream) as answers:
            async for answer in answers:
                yield answer

    fast_path = GrpcFastPath(front.calls, front.catalog)
    prefix = f"/{SERVICE.full_name}/"
    answers: dict[str, Handler] = {prefix + name: _answering(front, name) for name in ANSWERS}
    open_calls = {prefix + name: answers.pop(prefix + name) for name in OPEN_TO_ALL}
    open_calls[grpc_services.HEALTH] = grpc_services.health(front)
    asked = grpc_services.reflection(front, memory)
    return Methods(
        open_calls,
        {f"{prefix}ModelInfer": functools.partial(infer, front, memory, fast_path)},
        answers,
        {f"{prefix}ModelStreamInfer": many, **dict.fromkeys(grpc_services.REFLECTION, asked)},
        fast_path,
    )
