"""Inferences over gRPC: a call's message handed over, its answer or answers given back.

Owns the course of such a call, alone or in a stream, and how errors end one.
:mod:`shmgpu.serve.scheduling.inference` runs an inference, and
:mod:`shmgpu.serve.protocol.grpc_codec` reads a request. Never knows another call of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from shmgpu.serve.frontend.answer_memory import UnreadAnswer, WaitingAnswer
from shmgpu.serve.frontend.aside import LONG_BYTES
from shmgpu.serve.frontend.compression import coding_of, decoded
from shmgpu.serve.frontend.grpc_fast_path import GrpcFastPath, KnownMessage
from shmgpu.serve.frontend.message_memory import ComingMessage, MessageMemory, inflated
from shmgpu.serve.frontend.routes import Front
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.grpc_codec import MESSAGES
from shmgpu.serve.protocol.types import InferRequest, InferResponse, ProtocolError
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.pending import Pending
from shmgpu.serve.scheduling.statuses import answer_to
from shmgpu.serve.scheduling.streams import Stream

_now = time.monotonic_ns

# gRPC's number for an HTTP status; INTERNAL for the rest.
INTERNAL = 13
CODES = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    409: 6,  # ALREADY_EXISTS
    413: 8,  # RESOURCE_EXHAUSTED
    499: 1,  # CANCELLED
    501: 12,  # UNIMPLEMENTED
    503: 14,  # UNAVAILABLE
}
FINAL = "triton_final_response"
WANTS_FINAL = "triton_enable_empty_final_response"
STREAM_AHEAD = 64  # requests of one stream that may be out at once
_InferResponse = MESSAGES["ModelInferResponse"]
_StreamResponse = MESSAGES["ModelStreamInferResponse"]

Hold = Callable[[int], UnreadAnswer]  # an answer of so many bytes, until it is taken


class _Asked:
    """One inference of a client's: the call that is out, and what is to become of its answer.

    Args:
        front: of the worker.
        hold: what an answer's memory is counted by.
        data: the message.
        parameters: of the answer, in a stream.
        traceparent: the client's span.
        fast_path: learns of the message; None: a stream's is not learned.
        read: what it says, if it was read aside.
    """

    def __init__(
        self,
        front: Front,
        hold: Hold,
        data: bytes,
        parameters: dict[str, Any] | None = None,
        traceparent: bytes = b"",
        fast_path: GrpcFastPath | None = None,
        read: InferRequest | None = None,
    ) -> None:
        started_ns = _now()
        self.unread: UnreadAnswer | None = None  # once it is answered
        self.answered: asyncio.Future[bytes | WaitingAnswer]
        self.answered = asyncio.get_running_loop().create_future()
        self.pending: Pending | None = None
        self.id = ""
        self._hold = hold
        served: ServedModel | None = None
        named = "", "", ""
        try:
            known = None if fast_path is None else fast_path.find(data)
            if fast_path is not None and known is not None:
                served, self.id = known.served, known.template.request.id
                named = served.name, served.version, self.id
                pending = self._start_known(front, fast_path, known, data, started_ns)
                if pending is not None:
                    self.pending = pending
                    pending.traceparent = traceparent
                    return
            message, raw = grpc_codec.split_request(data, front.limits)
            self.id = message.id
            named = message.model_name, message.model_version, message.id
            served = front.catalog.find(message.model_name, message.model_version)
            request = read or grpc_codec.read_infer(message, raw, front.limits, served.metadata)

            def outcome(response: InferResponse | None, error: BaseException | None) -> None:
                if self.answered.cancelled():
                    return
                if response is None:
                    self._failed(error)
                    return
                write = functools.partial(_written, served, request, response, parameters)
                if any(one.classification for one in request.outputs) and any(
                    one.is_long(LONG_BYTES) for one in response.outputs
                ):
                    front.aside.start(self._answer_aside(front, served, write))
                else:
                    self._answer(write())

            self.pending = front.calls.start(served, request, started_ns, outcome)
            self.pending.traceparent = traceparent
            if fast_path is not None:
                fast_path.remember(served, request, self.pending, data)
        except Exception as error:
            front.calls.refused(served, started_ns, traceparent, named, error)
            raise

    def _start_known(
        self,
        front: Front,
        fast_path: GrpcFastPath,
        known: KnownMessage,
        data: bytes,
        started_ns: int,
    ) -> Pending | None:
        """Hand over a message like an earlier one, which is not read; None: it must be."""
        args = known.template.arguments(memoryview(data), front.catalog.version)
        if args is None:
            return None
        learns: Callable[[list[Any]], None] | None = None

        def outcome(answer: Any, error: BaseException | None) -> None:
            if self.answered.cancelled():
                return
            if error is not None:
                self._failed(error)
                return
            self._answer(answer[0])
            if learns is not None:
                learns(answer[0])

        pending = front.calls.start_known(known.served, known.template, args, started_ns, outcome)
        learns = fast_path.candidate(known, pending)
        return pending

    async def _answer_aside(
        self, front: Front, served: ServedModel, write: Callable[[], Sequence[Any]]
    ) -> None:
        """An answer that takes long to write."""
        try:
            buffers = await front.aside.run(write)
            if not self.answered.done():
                self._answer(buffers)
        except Exception as error:  # such as more classes than are told
            front.calls.accounting.retract(served)
            if not self.answered.done():
                self._failed(error)

    def _answer(self, buffers: Sequence[Any]) -> None:
        self.unread = self._hold(sum(map(len, buffers)))
        self.answered.set_result(self.unread.given(buffers))
        self.pending = None  # it refers to us, and we have the message

    def _failed(self, error: BaseException | None) -> None:
        assert error is not None
        self.pending = None
        if isinstance(error, ProtocolError):
            forget(error)  # it may wait for long, and its frames have the answer
        self.answered.set_exception(error)
        self.answered.exception()  # it is no news where the client has left before it is asked for

    async def answer(self) -> bytes | WaitingAnswer:
        """The answer's bytes; the call is given up when nobody waits for them any more."""
        try:
            return await self.answered
        except asyncio.CancelledError:
            self.give_up()
            raise

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """As a stream wants it: the only one."""
        answer = await self.answer()
        assert isinstance(answer, bytes) and self.unread is not None  # none of a stream's waits
        async for one in _sent(answer, self.unread):
            yield one

    def give_up(self) -> None:
        """The client is gone."""
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None
        self.answered.cancel()
        if self.unread is not None:
            self.unread.close()


class _Parts:
    """One inference of a stream's whose answer comes in parts, made as fast as they are taken."""

    def __init__(
        self,
        front: Front,
        hold: Hold,
        served: ServedModel,
        message: Any,
        raw: Any,
        traceparent: bytes,
    ) -> None:
        self._hold = hold
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
            try:
                answer = self._response(told, is_final=False)
                unread = self._hold(len(answer))
            except ProtocolError as error:
                self._stream.cancel(error)
                raise
            async for one in _sent(answer, unread):
                yield one
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


async def _sent(answer: bytes, unread: UnreadAnswer) -> AsyncGenerator[bytes, None]:
    """An answer of a stream, which is asked for more when the client has taken it."""
    try:
        yield answer
    finally:
        unread.close()


async def infer(
    front: Front, memory: MessageMemory, fast_path: GrpcFastPath, data: bytes, context: Any
) -> bytes | WaitingAnswer:
    """One request, one answer."""
    answer: bytes | WaitingAnswer
    try:
        hold = functools.partial(memory.answers.hold, peer=context.peer(), may_wait=True)
        quick = fast_path.take(data)
        if quick is not None:
            whole = await quick.answer()
            unread = hold(len(whole))
            answer = unread.given([whole])
        else:
            traceparent = traceparent_of(front, context)
            read = await _read_aside(front, data, traceparent)
            asked = _Asked(front, hold, data, None, traceparent, fast_path, read)
            answer = await asked.answer()
            assert asked.unread is not None
            unread = asked.unread
        context.add_done_callback(unread.close)
        return answer
    except Exception as error:
        failed = told_of(error)
    del data  # whatever abort raises refers to this frame
    await context.abort(*failed)
    raise AssertionError  # abort has raised


def _written(
    served: ServedModel,
    request: InferRequest,
    response: InferResponse,
    parameters: dict[str, Any] | None,
) -> Sequence[Any]:
    """An answer's bytes; in a stream, where it has ``parameters`` of its own."""
    buffers = grpc_codec.build_infer(
        served.name,
        served.version,
        request,
        response.outputs,
        {**response.parameters, **(parameters or {})},
    )
    return grpc_codec.in_stream(buffers) if parameters else buffers


async def _read_aside(front: Front, data: bytes, traceparent: bytes) -> InferRequest | None:
    """What a message says whose reading takes long, as elements of BYTES do; None: it does not."""
    if len(data) <= LONG_BYTES:
        return None
    started_ns = _now()
    message, raw = grpc_codec.split_request(data, front.limits)
    served = front.catalog.find(message.model_name, message.model_version)
    if not served.takes_bytes:
        return None
    try:
        front.calls.accounting.admit(served.only_queue)
        return await front.aside.run(_read, front, served, message, raw)
    except Exception as error:
        named = served.name, served.version, message.id
        front.calls.refused(served, started_ns, traceparent, named, error)
        raise


def _read(front: Front, served: ServedModel, message: Any, raw: Any) -> InferRequest:
    request = grpc_codec.read_infer(message, raw, front.limits, served.metadata)
    if served.prepare is None and served.steps is None:
        for one in request.inputs:
            one.join()
    return request


def told_of(error: BaseException) -> tuple[int, str]:
    """The code and the sentence of an error, which keeps nothing alive from then on.

    Its traceback refers to frames that have the request, and these to what has the error: unless
    they are parted, the request's bytes stay until the collector finds them.
    """
    status, sentence = answer_to(error)
    forget(error)
    return CODES.get(status, INTERNAL), sentence


def forget(error: BaseException) -> None:
    """Have an error keep no frame alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None
        seen = seen.__context__


def traceparent_of(front: Front, context: Any) -> bytes:
    """The client's span, where spans are made."""
    if front.calls.spans is None:
        return b""
    named: str = dict(context.invocation_metadata()).get("traceparent", "")
    return named.encode()


async def infer_in_stream(
    front: Front, memory: MessageMemory, received: AsyncIterator[bytes], context: Any
) -> AsyncGenerator[bytes, None]:
    """Requests as they come; answers in the requests' order, errors among them."""
    # None waits for room: those behind it in its stream may hold it, and are sent after it.
    hold = functools.partial(memory.answers.hold, peer=context.peer())
    traceparent = traceparent_of(front, context)
    ahead = asyncio.Semaphore(STREAM_AHEAD)
    out: asyncio.Queue[tuple[_Asked | _Parts | bytes, ComingMessage] | None] = asyncio.Queue()

    async def asked_by(data: bytes, coming: ComingMessage) -> _Asked | _Parts | bytes:
        if coding_of(data):
            try:
                data = await inflated(functools.partial(inflate, front), data, coming)
            except ProtocolError as error:
                return _failed(error, "")
            except asyncio.CancelledError:
                coming.close()
                raise
        return _asked(front, hold, data, traceparent)

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
                out.put_nowait((await asked_by(data, coming), coming))
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


async def inflate(front: Front, data: bytes, coding: bytes) -> bytes:
    """A message that was compressed; one after the other, beside the loop."""
    return await front.aside.run(decoded, data, coding, front.options.max_body)


def _asked(front: Front, hold: Hold, data: bytes, traceparent: bytes) -> _Asked | _Parts | bytes:
    try:
        started_ns = _now()
        found = _streaming(front, data)
        if found is None:
            return _Asked(front, hold, data, {FINAL: True}, traceparent)
        served, message, raw = found
        try:
            return _Parts(front, hold, served, message, raw, traceparent)
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
    _, sentence = told_of(error)
    data: bytes = _StreamResponse(
        error_message=sentence, infer_response=_InferResponse(id=request_id)
    ).SerializeToString()
    return data
