"""The gRPC front end by grpcio, for where there is no libnghttp2 or somebody asks for it.

Owns the server in one worker. grpc is imported, and starts its threads, only here: in a worker,
after the fork. Every worker listens at the port, and the kernel distributes the connections.
:mod:`shmgpu.serve.frontend.grpc_calls` answers. Never runs a model's code.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import grpc

from shmgpu.common.logs import logger
from shmgpu.serve.frontend.access_log import AccessLog
from shmgpu.serve.frontend.grpc_access_log import LoggedCalls
from shmgpu.serve.frontend.grpc_admission import Admission
from shmgpu.serve.frontend.grpc_calls import methods
from shmgpu.serve.frontend.grpc_inference import CODES, inflate, told_of
from shmgpu.serve.frontend.message_memory import MessageMemory
from shmgpu.serve.frontend.routes import NO_TOKEN, Front, bears


async def refuse(context: Any, error: Exception) -> None:
    """Ends a call with an error's code and sentence; raises what ends it."""
    await context.abort(*told_of(error))


def handlers(front: Front, memory: MessageMemory) -> Admission:
    """All calls of the service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
    known = methods(front, memory)
    return Admission(
        known.open_calls,
        known.often,
        known.seldom,
        {path: grpc.stream_stream_rpc_method_handler(many) for path, many in known.streams.items()},
        functools.partial(bears, token=front.token) if front.token else None,
        NO_TOKEN,
        memory,
        refuse,
        functools.partial(inflate, front),
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
                # Its limit holds for what comes, and not for what that is decompressed.
                ("grpc.per_message_decompression", 0),
                ("grpc.max_connection_idle_ms", int(options.idle_timeout * 1000)),
            ],
        )
        self.options = options
        memory = MessageMemory(options.arena, options.receive_timeout)
        calls: grpc.GenericRpcHandler = handlers(front, memory)
        if log is not None:
            calls = LoggedCalls(calls, log, {code: one for one, code in CODES.items()})
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
