"""Calls of gRPC on a worker's own connections: the course of each, from its head to its trailers.

Owns which calls may bring a message, and when; deadlines; messages as they come, the answer or the
answers, how a call ends when something goes wrong, and its line in the access log. A small message
like an earlier one takes the fast path, without a task of its own. To the functions that answer, a
:class:`Http2Call` is what grpc.aio calls a context. Never reads a socket, never knows a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from time import monotonic
from typing import Any
from urllib.parse import quote

from shmgpu import _http2
from shmgpu._http2 import BROKEN, COMPRESSED, LONG_HEAD, NO_ROOM, TOO_LARGE
from shmgpu.serve.frontend.access_log import AccessLog
from shmgpu.serve.frontend.answer_memory import WaitingAnswer
from shmgpu.serve.frontend.compression import coding_of
from shmgpu.serve.frontend.grpc_calls import Methods, methods
from shmgpu.serve.frontend.grpc_inference import CODES, inflate, told_of
from shmgpu.serve.frontend.message_memory import (
    AT_ONCE,
    FULL,
    MessageMemory,
    inflated,
)
from shmgpu.serve.frontend.request import Request
from shmgpu.serve.frontend.routes import NO_TOKEN, Front, bears
from shmgpu.serve.protocol.types import ProtocolError

DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 4, 12, 13, 16
LEFT = 499  # what is logged of a call whose client did not wait for the answer
MOST_SENTENCE = 4000  # bytes: clients take heads of 8 KiB
MOST_CALLS = 10  # times those that may wait or run: whose heads have come, in a worker
LONGEST_S = 86400.0  # of a deadline that is kept
STATUSES = {code: status for status, code in CODES.items()}
UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
WRONG = BROKEN | TOO_LARGE | LONG_HEAD | NO_ROOM | COMPRESSED  # what the fast path does not take
PLAIN = "".join(chr(code) for code in range(32, 127) if chr(code) != "%")  # of a sentence
OPEN, OFTEN, SELDOM, STREAM = range(4)


class Failed(Exception):
    """A call ends with this code and sentence; what answers it goes no further."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class Route:
    """What a call's head says.

    Attributes:
        kind: of its method.
        handler: what answers it.
        refusal: code and sentence, where the head is refused.
        no_call: the status of HTTP's for what is no call of gRPC's.
        seconds: until its deadline; None: it has none.
        coding: of its messages, where they are compressed.
        traceparent: the client's span.
        text: of the access log.
    """

    __slots__ = (
        "coding", "handler", "kind", "no_call", "refusal", "seconds", "text", "traceparent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind = SELDOM
        self.handler: Any = None
        self.refusal: tuple[int, str] | None = None
        self.no_call = b""
        self.seconds: float | None = None
        self.coding = b""
        self.traceparent = ""
        self.text = ""


class Http2Calls:
    """What the calls of one worker share.

    Args:
        front: what they are answered with.
        log: of requests; None: there is none.
    """

    def __init__(self, front: Front, log: AccessLog | None) -> None:
        options = self.options = front.options
        _http2.limit(options.arena)
        # As much as those have whose messages come at once; those that are slow are others.
        _http2.limit_coming(options.arena + AT_ONCE * options.max_body)
        self.log = log
        self.memory = MessageMemory(options.arena, options.receive_timeout)
        self.loop = asyncio.get_running_loop()
        self.inflate = functools.partial(inflate, front)
        self.most = MOST_CALLS * options.max_queue
        self.under_way = 0  # calls that are not on the fast path
        self.parked = 0  # bytes of messages that came with their heads, and wait for room
        known = methods(front, self.memory)
        self._fast_path = known.fast_path
        self._handlers = _by_path(known)
        self._token = front.token

    def route(self, head: tuple[bytes | None, ...]) -> Route:
        """What a head says; see :mod:`shmgpu._http2` for its fields."""
        method, path, content_type, authorization, timeout, coding, traceparent = head
        made = Route()
        text = (path or b"").decode("latin-1")
        made.text = f"POST {text} HTTP/2.0"
        made.coding = coding or b""
        made.traceparent = (traceparent or b"").decode("latin-1")
        if method != b"POST":
            made.no_call = b"405"
        elif not (content_type or b"").startswith(b"application/grpc"):
            made.no_call = b"415"
        found = self._handlers.get(path or b"")
        is_open = found is not None and found[0] == OPEN
        if self._token and not is_open and not bears(authorization or b"", self._token):
            made.refusal = UNAUTHENTICATED, NO_TOKEN
        elif found is None:
            made.refusal = UNIMPLEMENTED, "Method not found!"
        else:
            made.kind, made.handler = found
        if timeout is not None:
            made.seconds = _seconds(timeout)
            if made.seconds is None:
                made.refusal = INTERNAL, "grpc-timeout is eight digits at most, and a unit"
        return made

    def begin(
        self, connection: Any, route: Route, stream: int, flags: int, message: bytes | None
    ) -> None:
        """A head has come, and maybe all else."""
        call = Http2Call(self, connection, route, stream)
        connection.open[stream] = call
        if message is not None and route.kind == OFTEN and not flags & WRONG:
            if route.refusal is None and not route.no_call and self.memory.has_room():
                if self._fast_path.start(message, call):
                    call.keep_time()
                    return
        call.begin(flags, message)


def _by_path(known: Methods) -> dict[bytes, tuple[int, Any]]:
    kinds = {OPEN: known.open_calls, OFTEN: known.often, SELDOM: known.seldom}
    found = {
        path.encode(): (kind, handler)
        for kind, handlers in kinds.items()
        for path, handler in handlers.items()
    }
    return found | {path.encode(): (STREAM, many) for path, many in known.streams.items()}


def _seconds(timeout: bytes) -> float | None:
    """Of a deadline as gRPC writes it; None: it is none."""
    digits, unit = timeout[:-1], timeout[-1:]
    if not digits.isdigit() or len(digits) > 8 or unit not in UNITS:
        return None
    return min(int(digits) * UNITS[unit], LONGEST_S)


class Http2Call:
    """One call, until its stream has ended.

    Attributes:
        stream: its number.
        waiting: its request on the fast path, until it is answered.
        unread_since: when an answer was given that the client has not taken; 0: there is none.
        unread_bytes: of that answer.
    """

    __slots__ = (
        "_calls", "_coming", "_connection", "_first", "_first_flags", "_has_ended", "_is_logged",
        "_is_over", "_parked", "_route", "_since", "_size", "_taken", "_task", "_timer",
        "_when_done", "stream", "unread_bytes", "unread_since", "waiting",
    )  # fmt: skip

    def __init__(self, calls: Http2Calls, connection: Any, route: Route, stream: int) -> None:
        self._calls = calls
        self._connection = connection
        self._route = route
        self.stream = stream
        self.waiting: list[Request] = []
        self.unread_since = 0.0
        self.unread_bytes = 0
        self._first: bytes | None = None  # a message that came with the head
        self._first_flags = 0
        self._parked = 0  # its bytes, while there is no room for it
        self._coming: asyncio.Future[tuple[int, bytes | None]] | None = None
        self._taken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: Any = None
        self._when_done: list[Callable[[Any], None]] = []
        self._since = monotonic() if calls.log is not None else 0.0
        self._size = 0  # bytes of its answers
        self._is_logged = calls.log is None
        self._is_over = False  # it has its answer
        self._has_ended = False  # its stream has

    # ---- what happens to it ----------------------------------------------------------------

    def begin(self, flags: int, message: bytes | None) -> None:
        """Take the course of a call that has nothing prepared."""
        route, calls = self._route, self._calls
        if route.no_call:
            self._connection.refuse(self.stream, route.no_call)
            self._log(int(route.no_call))
        elif flags & LONG_HEAD:
            self._end(*told_of(ProtocolError(413, _long_head(calls))))
        elif route.refusal is not None:
            self._end(*route.refusal)
        elif calls.under_way >= calls.most or (message and calls.parked > calls.options.arena):
            self._end(*told_of(FULL))
        else:
            self._first, self._first_flags = message, flags & WRONG
            if message is not None and route.kind != OPEN:
                self._parked = len(message)
                calls.parked += self._parked
            self.keep_time()
            calls.under_way += 1
            self._task = calls.loop.create_task(self._run())

    def keep_time(self) -> None:
        """End it at its deadline."""
        seconds = self._route.seconds
        if seconds is not None:
            self._timer = self._calls.loop.call_later(seconds, self._expire)

    def came(self, flags: int, message: bytes | None) -> None:
        """A message that was wanted, or word that there will be none."""
        coming, self._coming = self._coming, None
        if coming is not None and not coming.done():
            coming.set_result((flags, message))

    def taken(self) -> None:
        """The client has the last message that was sent."""
        self.unread_since = 0.0
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)

    def ended(self) -> None:
        """Its stream has: what is under way for it is given up."""
        self._has_ended = True
        if self._is_over and self._task is None and not self._when_done:  # as most end
            return
        self._log(LEFT)
        self._give_up()
        if self._task is not None:
            self._calls.under_way -= 1
        for done in self._when_done:
            done(self)
        self._when_done.clear()

    def settle(self) -> None:
        """Its answer did not go out at once: count it, or end the stream if too many wait."""
        self.unread_since = monotonic()
        if self._when_done:  # it is counted
            return
        try:
            # It may go out all the same: without room it is counted among those that wait.
            unread = self._calls.memory.answers.hold(self._size, self.peer(), may_wait=True)
        except ProtocolError:
            self._connection.reset(self)
        else:
            self._when_done.append(unread.close)

    def _expire(self) -> None:
        self._timer = None
        if not self._is_over:
            self._end(DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._give_up()

    def _give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unpark()
        for turn in self.waiting:
            turn.is_answered = True
            if turn.on_disconnect is not None:
                turn.on_disconnect()
        self.waiting.clear()
        if self._coming is not None:
            self._coming.cancel()
        if self._task is not None:
            self._task.cancel()

    # ---- the fast path's calls -------------------------------------------------------------

    def reply_whole(self, turn: Request, data: bytes) -> None:
        """As of a connection over HTTP."""
        self._settled(turn)
        self._answer(data)

    def fail(self, turn: Request, error: BaseException) -> None:
        """It ended with an error."""
        self._settled(turn)
        self._end(*told_of(error))

    def _settled(self, turn: Request) -> None:
        turn.is_answered = True
        turn.on_disconnect = None
        self.waiting.clear()

    # ---- what those who answer are given ---------------------------------------------------

    def peer(self) -> str:
        """Whose answers are counted together."""
        peer: str = self._connection.peer
        return peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Of the head's fields, those that somebody looks at."""
        return (("traceparent", self._route.traceparent),) if self._route.traceparent else ()

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        """To be called when the client has the answer, or has left."""
        if self._has_ended:
            done(self)
        else:
            self._when_done.append(done)

    async def abort(self, code: int, sentence: str) -> None:
        """End the call so; raises what ends whoever answers it."""
        raise Failed(code, sentence)

    # ---- its course ------------------------------------------------------------------------

    async def _run(self) -> None:
        kind, handler = self._route.kind, self._route.handler
        try:
            if kind == OPEN:
                self._answer(await handler(b"", self))
            elif kind == STREAM:
                await self._stream(handler)
            else:
                answer_to = self._answer_in_turn if kind == OFTEN else self._answer_to_one
                answer = await answer_to(handler)
                self._answer(answer if isinstance(answer, bytes) else await answer.whole())
            return
        except Failed as failed:
            ending = failed.code, failed.sentence
        except asyncio.CancelledError:  # the client has left, or its time is over
            return
        except Exception as error:
            ending = told_of(error)
        self._end(*ending)

    async def _answer_in_turn(self, handler: Any) -> bytes | WaitingAnswer:
        """One whose answer may be large."""
        pace, peer = self._calls.memory.pace, self.peer()
        expected = await pace.begin(peer)
        try:
            return await self._answer_to_one(handler)
        finally:
            pace.ended(peer, expected)

    async def _answer_to_one(self, handler: Any) -> bytes | WaitingAnswer:
        calls = self._calls
        is_here = self._first is not None and calls.memory.has_room()
        coming = calls.memory.begin() if is_here else await calls.memory.wait()
        try:
            self._unpark()
            data = await self.next_message(calls.memory.seconds)
            if data is None:
                raise ProtocolError(400, "the request has no message: send one")
            coming.arrived(len(data))
            if coding_of(data):
                data = await inflated(calls.inflate, data, coming)
            if self._is_over or self._has_ended:  # and what was waited for came all the same
                raise asyncio.CancelledError
            answering = handler(data, self)
            del data  # the frame of who answers has it, as long as it is needed
            answer: bytes | WaitingAnswer = await answering
            return answer
        finally:
            coming.close()

    async def _stream(self, handler: Any) -> None:
        async with contextlib.aclosing(handler(_Messages(self), self)) as answers:
            async for answer in answers:
                await self._send(answer)
        self._end(0, "")

    async def _send(self, answer: bytes) -> None:
        self._size += len(answer)
        self._taken = taken = self._calls.loop.create_future()
        self.unread_since, self.unread_bytes = monotonic(), len(answer)
        if not self._connection.send(self, answer):
            raise asyncio.CancelledError
        await taken

    async def next_message(self, seconds: float | None = None) -> bytes | None:
        """The next message of the client's; None: there are no more.

        Raises:
            ProtocolError: it is none, or too long, or compressed in a way that nobody knows, or did
                not come in so many seconds.
        """
        if self._is_over or self._has_ended:  # whoever asks was not told in time
            raise asyncio.CancelledError
        flags, message = self._first_flags, self._first
        self._first, self._first_flags = None, 0
        if message is None and not flags:
            told = self._connection.want(self.stream)
            if told is False:
                raise asyncio.CancelledError
            if told is None:
                flags, message = await self._next(seconds)
            else:
                _, flags, _, message = told
        self._unpark()
        if flags & TOO_LARGE:
            raise ProtocolError(413, f"a message may have {self._calls.options.max_body} bytes")
        if flags & NO_ROOM:
            raise FULL
        if flags & BROKEN:
            raise ProtocolError(400, "the request's bytes are no messages as gRPC has them")
        if message is not None and flags & COMPRESSED and not coding_of(message):
            named = self._route.coding.decode("latin-1")[:100] or "nothing that it names"
            raise ProtocolError(
                501, f"the message is compressed by {named}: compress by gzip or deflate, or not"
            )
        return message

    async def _next(self, seconds: float | None) -> tuple[int, bytes | None]:
        loop = self._calls.loop
        coming: asyncio.Future[tuple[int, bytes | None]] = loop.create_future()
        self._coming = coming
        if seconds is None:
            return await coming

        def late() -> None:
            if not coming.done():
                coming.set_exception(ProtocolError(408, "the request took too long to come in"))

        timer = loop.call_later(seconds, late)
        try:
            return await coming
        finally:
            timer.cancel()

    def _unpark(self) -> None:
        self._calls.parked -= self._parked
        self._parked = 0

    # ---- its end ---------------------------------------------------------------------------

    def _answer(self, data: bytes) -> None:
        """The only answer."""
        self._over()
        self._size = self.unread_bytes = len(data)
        self._log(200)  # the stream ends with the answer, where the client takes it at once
        self._connection.answer(self, data)

    def _end(self, code: int, sentence: str) -> None:
        """There are no more answers, or there is an error."""
        if self._is_over:
            return
        self._over()
        text = quote(sentence, safe=PLAIN, errors="replace")[:MOST_SENTENCE]
        self._log(STATUSES.get(code, 500) if code else 200)
        self._connection.end(self, b"%d %s" % (code, text.encode()) if code else None)

    def _over(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log(self, status: int) -> None:
        if not self._is_logged:
            self._is_logged = True
            log = self._calls.log
            assert log is not None
            seconds = monotonic() - self._since
            log.line(self._connection.address, self._route.text, status, self._size, seconds)


class _Messages:
    """A call's messages as they come, as whoever answers a stream takes them."""

    def __init__(self, call: Http2Call) -> None:
        self._call = call

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> bytes:
        message = await self._call.next_message()
        if message is None:
            raise StopAsyncIteration
        return message


def _long_head(calls: Http2Calls) -> str:
    return f"a call's head may have {calls.options.max_header} bytes"
