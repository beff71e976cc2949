"""What gRPC's own tools ask any server: whether it serves, and which services and messages it has.

Owns the answers to ``grpc.health.v1`` (probes of an orchestrator) and to reflection (tools that
know no description, such as grpcurl), in its two spellings. Never answers for a model.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from shmgpu.serve.frontend.aside import LONG_BYTES
from shmgpu.serve.frontend.compression import coding_of
from shmgpu.serve.frontend.grpc_inference import inflate
from shmgpu.serve.frontend.message_memory import MessageMemory, inflated
from shmgpu.serve.frontend.routes import Front
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.types import ProtocolError, show_name

SERVING, NOT_SERVING = 1, 2
NOT_FOUND = 5
SERVICES = ("grpc.health.v1.Health", grpc_codec.SERVICE.full_name)  # that are told of
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)


class Descriptions:
    """The services' descriptions, and the classes of these services' own messages."""

    def __init__(self) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        for path in (grpc_codec.DESCRIPTION, Path(grpc_codec.__file__).with_name("services.binpb")):
            described = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
            for file in described.file:
                self.pool.Add(file)

    def message(self, name: str) -> Any:
        """The class of a message, by its full name."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))

    def file(self, what: str, name: str) -> bytes:
        """The description of a file, by its name or by something that is in it; KeyError."""
        if what == "file_by_filename":
            found = self.pool.FindFileByName(name)
        else:
            found = self.pool.FindFileContainingSymbol(name)
        data: bytes = found.serialized_pb
        return data


@functools.cache
def _descriptions() -> Descriptions:
    return Descriptions()


def health(front: Front) -> Callable[[bytes, Any], Awaitable[bytes]]:
    """What answers a probe: of the whole server, whatever service it names."""
    response = _descriptions().message("grpc.health.v1.HealthCheckResponse")

    async def answered(data: bytes, context: Any) -> bytes:
        made = response(status=SERVING if front.is_ready else NOT_SERVING)
        told: bytes = made.SerializeToString()
        return told

    return answered


def reflection(
    front: Front, memory: MessageMemory
) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
    """What answers a stream of questions about the services, in their order."""

    async def answered(received: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        while True:
            coming = await memory.wait()
            with contextlib.closing(coming):
                data = await anext(received, None)
                if data is None:
                    return
                coming.arrived(len(data))
                if coding_of(data):
                    data = await inflated(functools.partial(inflate, front), data, coming)
                if len(data) > LONG_BYTES:
                    raise ProtocolError(
                        413, f"the message may have {LONG_BYTES} bytes: send less at once"
                    )
                told = _told(data)
            yield told

    return answered


def _told(data: bytes) -> bytes:
    known = _descriptions()
    request_class = known.message("grpc.reflection.v1.ServerReflectionRequest")
    try:
        request = request_class.FromString(data)
    except DecodeError:
        raise ProtocolError(400, "the request is not a ServerReflectionRequest") from None
    response = known.message("grpc.reflection.v1.ServerReflectionResponse")(
        valid_host=request.host, original_request=request
    )
    what = request.WhichOneof("message_request")
    if what == "list_services":
        for name in SERVICES:
            response.list_services_response.service.add(name=name)
    elif what in ("file_by_filename", "file_containing_symbol"):
        name = getattr(request, what)
        try:
            response.file_descriptor_response.file_descriptor_proto.append(known.file(what, name))
        except KeyError:
            response.error_response.error_code = NOT_FOUND
            response.error_response.error_message = f"there is no {show_name(name)} here"
    else:
        response.error_response.error_code = NOT_FOUND
        response.error_response.error_message = "messages of this server have no extensions"
    told: bytes = response.SerializeToString()
    return told
