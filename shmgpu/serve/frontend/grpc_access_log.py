"""The access log's lines of calls over gRPC, in the form of those over HTTP.

Owns what such a line says: a call's peer, method, status, bytes and duration. Never answers a call
but one of a method that there is not, which gRPC would answer without anybody seeing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc

from shmgpu.serve.frontend.access_log import AccessLog


class LoggedCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of a service, each a line when it ends.

    Args:
        calls: what answers them.
        log: the worker's.
        statuses: over HTTP, by gRPC's code; 500 for the rest.
    """

    def __init__(
        self, calls: grpc.GenericRpcHandler, log: AccessLog, statuses: dict[int, int]
    ) -> None:
        self._calls = calls
        self._log = log
        self._statuses = statuses
        self._unknown = grpc.stream_stream_rpc_method_handler(_refuse_unknown)

    def service(self, details: Any) -> Any:
        """As of grpc."""
        handler = self._calls.service(details) or self._unknown
        return _LoggedHandler(handler, details.method, self._log, self._statuses)


class _LoggedHandler(grpc.RpcMethodHandler):  # type: ignore[misc]
    """A handler as grpc has them, around another one."""

    unary_stream = None

    def __init__(self, handler: Any, method: str, log: AccessLog, statuses: dict[int, int]) -> None:
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        self.request_deserializer = handler.request_deserializer
        self.response_serializer = handler.response_serializer
        self._text = f"POST {method} HTTP/2.0"
        self._log = log
        self._statuses = statuses
        self.unary_unary = self._one(handler.unary_unary)
        self.stream_unary = self._one(handler.stream_unary)
        self.stream_stream = self._many(handler.stream_stream)

    def _one(self, answering: Callable[[Any, Any], Awaitable[bytes]] | None) -> Any:
        """Around what gives one answer."""
        if answering is None:
            return None

        async def answered(data: Any, context: Any) -> bytes:
            begun = time.monotonic()
            awaited = answering(data, context)
            del data  # see _OneCall: an error keeps this frame
            try:
                answer = await awaited
            except BaseException as error:
                self._ended(context, begun, 0, error)
                raise
            self._ended(context, begun, len(answer), None)
            return answer

        return answered

    def _many(self, answering: Callable[[Any, Any], Any] | None) -> Any:
        """Around what gives many answers."""
        if answering is None:
            return None

        async def answered(received: Any, context: Any) -> AsyncIterator[bytes]:
            begun, size = time.monotonic(), 0
            try:
                async with contextlib.aclosing(answering(received, context)) as answers:
                    async for answer in answers:
                        size += len(answer)
                        yield answer
            except BaseException as error:
                self._ended(context, begun, size, error)
                raise
            self._ended(context, begun, size, None)

        return answered

    def _ended(self, context: Any, begun: float, size: int, error: BaseException | None) -> None:
        status = 200
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            status = 499
        elif error is not None:
            code = context.code()  # a number, or what has it, by grpc's version
            status = self._statuses.get(code if isinstance(code, int) else code.value[0], 500)
        seconds = time.monotonic() - begun
        self._log.line(_address_of(context.peer()), self._text, status, size, seconds)


def _address_of(peer: str) -> str:
    """Of a client as gRPC names it: ipv4:ADDRESS:PORT, ipv6:%5BADDRESS%5D:PORT or unix:PATH."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return "-"
    return unquote(rest.rpartition(":")[0]).strip("[]")


async def _refuse_unknown(received: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    yield b""
