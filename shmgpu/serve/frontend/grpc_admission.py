"""Which calls over gRPC may bring a message, and when: looked at before grpcio receives one.

Owns the token's check, which needs a call's head alone, and the handlers that wait until
:mod:`shmgpu.serve.frontend.message_memory` has room. Never reads a message.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from shmgpu.serve.frontend.answer_memory import WaitingAnswer
from shmgpu.serve.frontend.compression import coding_of
from shmgpu.serve.frontend.message_memory import ComingMessage, Inflate, MessageMemory, inflated
from shmgpu.serve.protocol.types import ProtocolError

Handler = Callable[[bytes, Any], Awaitable[bytes | WaitingAnswer]]


class Admission(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of the service, as grpc asks for them when a call's head has come.

    Args:
        open_calls: methods that need neither a token nor a message, and what answers them.
        often: methods of one message that clients call all the time, and what answers them.
        seldom: the same for all others.
        streams: methods of many messages, and their handlers.
        bears: whether an authorization header has the token; None: there is none to have.
        refused: what is said to a call that does not bear it.
        memory: of messages.
        fail: ends a call with an error.
        inflate: decompresses a message.
    """

    def __init__(
        self,
        open_calls: dict[str, Handler],
        often: dict[str, Handler],
        seldom: dict[str, Handler],
        streams: dict[str, Any],
        bears: Callable[[bytes], bool] | None,
        refused: str,
        memory: MessageMemory,
        fail: Callable[[Any, Exception], Awaitable[None]],
        inflate: Inflate,
    ) -> None:
        self._inflate = inflate
        self._bears = bears
        self._refused = refused
        self._memory = memory
        self._fail = fail
        self._often = often
        # A handler of a stream is called before a message is received, one of a message after it.
        self._handlers = dict(streams)
        for method, handler in seldom.items():
            self._handlers[method] = self._patient(handler)
        self._open = {
            method: grpc.stream_unary_rpc_method_handler(functools.partial(_unread, handler))
            for method, handler in open_calls.items()
        }
        self._patiently = {method: self._patient(handler) for method, handler in often.items()}
        self._refusing = grpc.stream_stream_rpc_method_handler(self._refuse)

    def service(self, details: Any) -> Any:
        """As of grpc."""
        method = details.method
        found = self._open.get(method)
        if found is not None:
            return found
        if self._bears is not None:
            given = dict(details.invocation_metadata).get("authorization", "")
            if not self._bears(given.encode()):
                return self._refusing
        handler = self._often.get(method)
        if handler is None:
            return self._handlers.get(method)
        if not self._memory.is_free():
            return self._patiently[method]
        return _OneCall(self, handler, self._memory.begin())

    async def inflated(self, data: bytes, coming: ComingMessage, context: Any) -> bytes:
        """A message as it was before it was compressed; a call whose message is wrong ends."""
        try:
            return await inflated(self._inflate, data, coming)
        except ProtocolError as error:
            await self._fail(context, error)
            raise

    def _patient(self, handler: Handler) -> Any:
        async def answered(received: Any, context: Any) -> bytes:
            try:
                coming = await self._memory.wait()
            except ProtocolError as error:
                await self._fail(context, error)
                raise
            try:
                try:
                    data = await asyncio.wait_for(anext(received, None), self._memory.seconds)
                except asyncio.TimeoutError:
                    data = None
                if data is None:
                    late = ProtocolError(408, "the request took too long to come in")
                    await self._fail(context, late)
                    raise late  # not reached: that has raised
                coming.arrived(len(data))
                if coding_of(data):
                    data = await self.inflated(data, coming, context)
                answering = handler(data, context)
                del data  # as below
                answer = await answering
            finally:
                coming.close()
            return answer if isinstance(answer, bytes) else await answer.whole()

        return grpc.stream_unary_rpc_method_handler(answered)

    async def _refuse(self, received: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, self._refused)
        yield b""


class _OneCall(grpc.RpcMethodHandler):  # type: ignore[misc]
    """As grpc has its handlers, for one call: it may go before its message comes."""

    request_streaming = response_streaming = False
    request_deserializer = response_serializer = None
    unary_stream = stream_unary = stream_stream = None

    def __init__(self, calls: Admission, handler: Handler, coming: ComingMessage) -> None:
        self._calls = calls
        self._handler = handler
        self._coming = coming

    async def unary_unary(self, data: bytes, context: Any) -> bytes:
        """The message has come."""
        coming = self._coming
        coming.arrived(len(data))
        try:
            if coding_of(data):
                data = await self._calls.inflated(data, coming, context)
            answering = self._handler(data, context)
            # What ends a call with an error is in a cycle of grpc's with this frame: it keeps no
            # bytes.
            del data
            answer = await answering
        finally:
            coming.close()
        return answer if isinstance(answer, bytes) else await answer.whole()


async def _unread(handler: Handler, received: Any, context: Any) -> bytes | WaitingAnswer:
    return await handler(b"", context)
