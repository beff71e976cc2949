"""Which calls over gRPC may bring a message, and when: looked at before one is received.

Owns the token's check, which needs a call's head alone, and the memory that messages take, which is
grpcio's and so not in the arena: how many bytes of requests a worker holds that are not answered,
of how many calls it receives a message at once, and how many bytes of answers wait until their
clients take them. Whoever is beyond waits, or is refused, before its message takes any memory.
Messages that were compressed come so, and are decompressed one by one. Never reads a message.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from shmgpu.serve.frontend.compression import coding_of
from shmgpu.serve.protocol.types import ProtocolError

AT_ONCE = 16  # calls whose messages come at once
PATIENCE_S = 0.25  # until one that does not come is not counted as coming
FULL = ProtocolError(503, "the server has no memory left for this request: try again")
UNREAD = "too many answers wait to be read: read those, then try again"


class MessageMemory:
    """What requests of one worker hold.

    Args:
        most: bytes of requests that are not answered, one more may come; and of answers that wait
            to be read. A connection may have half of the latter, or one answer.
        seconds: that a call may wait until its message may come, and that this may take.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.held = 0
        self.unread = 0
        self._unread_by: dict[str, int] = {}  # by connection
        self._coming: dict[int, float] = {}  # since when, by id
        self._waiting: deque[asyncio.Future[ComingMessage]] = deque()
        self._timer: Any = None

    def is_free(self) -> bool:
        """Whether a message may come."""
        return self.held < self.most and len(self._coming) < AT_ONCE and not self._waiting

    def begin(self) -> ComingMessage:
        """A message may come now."""
        made = ComingMessage(self)
        self._coming[id(made)] = time.monotonic()
        return made

    async def wait(self) -> ComingMessage:
        """The same, when it may.

        Raises:
            ProtocolError: status 503; it took too long.
        """
        if self.is_free():
            return self.begin()
        turn: asyncio.Future[ComingMessage] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._tick()
        try:
            return await asyncio.wait_for(turn, self.seconds)
        except asyncio.TimeoutError:
            raise FULL from None

    def arrived(self, coming: ComingMessage, size: int) -> None:
        """It has so many bytes."""
        self._coming.pop(id(coming), None)
        self.held += size
        if self._waiting:
            self._wake()

    def ended(self, coming: ComingMessage) -> None:
        """It is answered, or will not come."""
        self._coming.pop(id(coming), None)
        self.held -= coming.size
        if self._waiting:
            self._wake()

    def forget(self, coming: ComingMessage) -> None:
        """It did not come, as is seen in whatever thread its call was dropped."""
        self._coming.pop(id(coming), None)

    def hold(self, size: int, peer: str) -> UnreadAnswer:
        """An answer of so many bytes waits to be read by a client, on that connection.

        Raises:
            ProtocolError: status 503; too many do.
        """
        own = self._unread_by.get(peer, 0)
        is_greedy = own and own + size > self.most // 2
        if is_greedy or (self.unread and self.unread + size > self.most):
            raise ProtocolError(503, UNREAD)
        self.unread += size
        self._unread_by[peer] = own + size
        return UnreadAnswer(self, size, peer)

    def taken(self, answer: UnreadAnswer) -> None:
        """Its client has it, or has left."""
        self.unread -= answer.size
        left = self._unread_by[answer.peer] - answer.size
        if left:
            self._unread_by[answer.peer] = left
        else:
            del self._unread_by[answer.peer]

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and self.held < self.most and len(self._coming) < AT_ONCE:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(self.begin())

    def _tick(self) -> None:
        """While some wait: those that are slow do not keep them out."""
        old = time.monotonic() - PATIENCE_S
        for key, since in list(self._coming.items()):
            if since < old:
                self._coming.pop(key, None)
        self._wake()
        self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._tick)


class UnreadAnswer:
    """An answer from when it is made until its client has taken it, or has left.

    grpcio offers no way to end a call whose client reads nothing: such an answer is counted until
    that client leaves.
    """

    __slots__ = ("_is_over", "_memory", "peer", "size")

    def __init__(self, memory: MessageMemory, size: int, peer: str) -> None:
        self._memory = memory
        self._is_over = False
        self.size = size
        self.peer = peer

    def close(self, context: Any = None) -> None:
        """It was taken, or nobody will take it; as gRPC calls it when a call is over."""
        if not self._is_over:
            self._is_over = True
            self._memory.taken(self)


class ComingMessage:
    """A message that comes, or has come."""

    __slots__ = ("_memory", "is_over", "size")

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self.size = 0
        self.is_over = False

    def arrived(self, size: int) -> None:
        """It has come, and has so many bytes."""
        self._memory.arrived(self, size)
        self.size = size

    def grew(self, size: int) -> None:
        """It was decompressed, and has so many bytes now.

        Raises:
            ProtocolError: status 503; these are too many beside the others'.
        """
        memory = self._memory
        if memory.held > self.size and memory.held - self.size + size > memory.most:
            raise FULL
        memory.held += size - self.size
        self.size = size

    def close(self) -> None:
        """It is answered, or will not come."""
        if not self.is_over:
            self.is_over = True
            self._memory.ended(self)

    def __del__(self) -> None:
        if not self.is_over:
            self._memory.forget(self)


Handler = Callable[[bytes, Any], Awaitable[bytes]]
Inflate = Callable[[bytes, bytes], Awaitable[bytes]]  # a message, and how it was compressed


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
                return await answering
            finally:
                coming.close()

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
            return await answering
        finally:
            coming.close()


async def inflated(inflate: Inflate, data: bytes, coming: ComingMessage) -> bytes:
    """A message as it was before it was compressed.

    Raises:
        ProtocolError: it cannot be decompressed, or takes too much memory then.
    """
    found = await inflate(data, coding_of(data))
    coming.grew(len(found))
    return found


async def _unread(handler: Handler, received: Any, context: Any) -> bytes:
    return await handler(b"", context)
