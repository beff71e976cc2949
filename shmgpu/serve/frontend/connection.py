"""One connection of a worker: HTTP parsed by httptools, bodies received straight into the arena.

Owns the bytes of a connection until they are a :class:`Request`, and the order of its answers. The
parser reads from one small buffer that all connections of a worker share, because each read is
parsed at once. When a parsed head announces a longer body (Content-Length), the kernel receives the
rest where helpers will read it; the parser does not see it.

Never knows a route or a model: it is given the function that answers a request.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import re
import termios
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httptools

from shmgpu.errors import ArenaFull
from shmgpu.serve.frontend.acceptor import Connections
from shmgpu.serve.frontend.body_memory import BodyMemory
from shmgpu.serve.frontend.request import (
    LEFT,
    Answering,
    Refusal,
    Request,
    error_body,
    head_of,
    head_with,
)

SCRATCH_BYTES = 16384
SLOWEST = 65536  # bytes a second
LINGER_S = 2.0  # from a refusal until the connection ends
LEFT_IDLE_S = 0.5  # without a request, until a worker that is leaving closes a connection
JOINED_BYTES = 8192  # an answer of fewer is written as one piece
NO_MEMORY = "the server has no memory left for this request: try again"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_URL = re.compile(rb"https?://[^/?#]+(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may ask of the edge; see the flags of ``shmgpu serve``.

    Attributes:
        body_bytes, header_bytes: of one request.
        connections: of one worker.
        idle_s: that a connection may be open without a request.
        receive_s: that a request may take to come in, and one more for each SLOWEST bytes of it
            that have come.
        send_s: that an answer may lie unread.
    """

    body_bytes: int
    header_bytes: int
    connections: int = 1 << 30
    idle_s: float = 75.0
    receive_s: float = 30.0
    send_s: float = 30.0


class Connection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        answer: who answers its requests.
        memory: where bodies go.
        limits: what the client may ask.
        scratch: where heads are received; read before the next connection is.
        seen: all connections of the worker; while it is leaving, each ends with its next answer.
        take: answers a request like an earlier one at once, from its bytes; see
            :mod:`shmgpu.serve.frontend.fast_path`.
        admit: looks at a head before there is room for its body; what it returns refuses it:
            status, sentence, headers.
        log: told of each answer: the connection's peer, the request, status, bytes of the body.
    """

    __slots__ = (
        "admit",
        "answer",
        "came",
        "head_bytes",
        "is_closing",
        "is_direct",
        "lately",
        "limits",
        "log",
        "memory",
        "parser",
        "peer",
        "request",
        "scratch",
        "seen",
        "since",
        "take",
        "transport",
        "unsent",
        "waiting",
        "when_taken",
    )

    def __init__(
        self,
        answer: Answering,
        memory: BodyMemory,
        limits: ConnectionLimits,
        scratch: memoryview,
        seen: Connections,
        take: Callable[[Connection, int], bool],
        admit: Callable[[Request], Refusal | None] | None = None,
        log: Callable[[str, Request, int, int], None] | None = None,
    ) -> None:
        self.answer = answer
        self.memory = memory
        self.limits = limits
        self.scratch = scratch
        self.seen = seen
        self.take = take
        self.admit = admit
        self.log = log
        self.peer = "-"
        self.lately: Any = None  # what `take` knows of the last request
        self.came = 0  # bytes in the scratch buffer, if a request begins there
        self.transport: Any = None
        self.parser: Any = httptools.HttpRequestParser(self)
        self.request: Request | None = None  # the one that is being received
        self.is_direct = False  # whether the rest of its body is received past the parser
        self.waiting: deque[Request] = deque()  # received, the first of them being answered
        self.is_closing = False
        self.when_taken: Callable[[], None] | None = None  # while the client takes no more
        self.head_bytes = 0  # of the head that is being received
        self.since = 0.0  # when it began to wait for what it waits for now
        self.unsent = 0  # bytes of answers that lay unread then

    # ---- asyncio's calls -----------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """As of asyncio."""
        self.transport = transport
        self.since = monotonic()
        most = self.limits.connections
        # Refused connections that still get their answer do not count, up to the same number again.
        is_flood = len(self.seen) >= 2 * most
        is_too_many = len(self.seen) >= most and sum(not o.is_closing for o in self.seen) >= most
        self.seen.add(self)
        if self.log is not None:
            peer = transport.get_extra_info("peername")
            self.peer = peer[0] if isinstance(peer, tuple) else "-"
        if is_flood:
            self.is_closing = True
            transport.abort()
        elif is_too_many:
            self._refuse(503, "the server has as many connections as it may: try again")

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: what it waited for is given up."""
        self.seen.discard(self)
        self.is_closing = True
        for request in self.waiting:
            if self.log is not None and (request.status or not request.is_answered):
                self.log(self.peer, request, request.status or LEFT, request.sent)
            request.is_answered = True
            if request.on_disconnect is not None:
                request.on_disconnect()
        self.waiting.clear()
        if self.request is not None and self.request.coming is not None:
            self.request.coming.close()
        self.request = None
        self.parser = None

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self.when_taken = _nothing

    def resume_writing(self) -> None:
        """It has taken what there was."""
        when_taken, self.when_taken = self.when_taken, None
        if when_taken is not None:
            when_taken()

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next bytes go: into the arena while a body is being received."""
        if self.is_direct:
            assert self.request is not None and self.request.coming is not None
            coming = self.request.coming
            return coming.view[coming.filled :]
        return self.scratch

    def buffer_updated(self, count: int) -> None:
        """So many bytes were received."""
        if self.is_direct:
            self._fill(count)
            return
        if self.is_closing:
            return
        is_first = self.request is None and not self.waiting
        self.came = 0
        if is_first:
            if not self.seen.is_leaving and self.take(self, count):
                return
            self.came = count
        self.head_bytes += count
        try:
            self.parser.feed_data(self.scratch[:count])
        except httptools.HttpParserUpgrade:
            # No other protocol is spoken here: the request is answered as HTTP/1.1, and the
            # connection ends.
            if self.waiting:
                self.waiting[-1].keep_alive = False
            elif not self.is_closing:
                self.is_closing = True
                self.transport.close()
        except httptools.HttpParserError as error:
            if not self.is_closing:
                self._refuse(400, f"the request is not HTTP ({error})")
        request = self.request
        if is_first and request is not None:  # empty lines are no beginning
            self.since = monotonic()
        if request is not None and request.length > 0 and not self.is_closing:
            self.is_direct = True  # what came with the head was copied
            self.parser = None
        if self.head_bytes > self.limits.header_bytes and not self.is_closing:
            self._refuse(431, f"a request's head may have {self.limits.header_bytes} bytes")
        if len(self.waiting) > 1:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client will send no more: most have left, and nothing tells the others from them."""
        return False

    # ---- the parser's calls --------------------------------------------------------------

    def on_message_begin(self) -> None:
        """As of httptools."""
        self.request = Request(self)

    def on_url(self, data: bytes) -> None:
        """As of httptools; may come in parts."""
        assert self.request is not None
        self.request.target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        """As of httptools; called for what follows a chunked body, too, which changes nothing."""
        assert self.request is not None
        if not self.request.method:
            headers, key = self.request.headers, name.lower()
            if key == b"host" and key in headers:
                value = headers[key] + b"," + value  # which no host has: the head is refused
            headers[key] = value

    def on_headers_complete(self) -> None:
        """The head is whole: make room for the body."""
        request = self.request
        assert request is not None
        if self.is_closing:  # it came in one read with what was refused
            return
        size = len(request.target) + sum(len(k) + len(v) for k, v in request.headers.items())
        if size > self.limits.header_bytes:
            self._refuse(431, f"a request's head may have {self.limits.header_bytes} bytes")
            return
        self.head_bytes = 0
        request.method = self.parser.get_method()
        version = self.parser.get_http_version()
        wrong = _wrong_head(version, request.headers)
        if wrong:
            self._refuse(400, wrong)
            return
        request.is_old = version != "1.1"
        request.keep_alive = self.parser.should_keep_alive()
        if not request.target.startswith(b"/"):
            request.target = _path_of(request.target)
        if self.admit is not None:
            refusal = self.admit(request)
            if refusal is not None:
                self._refuse(*refusal)
                return
        headers = request.headers
        text = headers.get(b"content-length")
        if text is not None and b"transfer-encoding" not in headers:
            request.length = int(text)
            if request.length > self.limits.body_bytes:
                self._refuse(413, f"the body may have {self.limits.body_bytes} bytes")
                return
        if request.length > 0 or b"transfer-encoding" in headers:
            try:
                request.coming = self.memory.begin(request.length, request.header_length)
            except ArenaFull:
                self._refuse(503, NO_MEMORY)
                return
        if headers.get(b"expect", b"").lower() == b"100-continue":
            if not self.waiting and not request.is_old:
                self.transport.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        """What came in one piece with the head, or a part of a chunked body."""
        request = self.request
        if request is None or self.is_closing:
            return
        self.head_bytes = 0  # counts on: chunks' heads, and what follows the last
        coming = request.coming
        assert coming is not None
        if coming.filled + len(data) > self.limits.body_bytes:
            self._refuse(413, f"the body may have {self.limits.body_bytes} bytes")
            return
        try:
            coming.put(data)
        except ArenaFull:
            self._refuse(503, NO_MEMORY)

    def on_message_complete(self) -> None:
        """A request is whole."""
        self.head_bytes = 0
        request = self.request
        self.request = None
        if request is None or self.is_closing:
            return
        if request.coming is not None:
            request.body = request.coming.close()
            request.coming = None
        if self.log is not None:
            request.whole_at = monotonic()
        self.waiting.append(request)
        if len(self.waiting) == 1:
            self.answer(request)

    # ---- bodies --------------------------------------------------------------------------

    def _fill(self, count: int) -> None:
        request = self.request
        assert request is not None and request.coming is not None
        try:
            if not request.coming.came(count):
                return
        except ArenaFull:
            self._refuse(503, NO_MEMORY)
            return
        self.is_direct = False
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    # ---- slow clients --------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End the connection if its client takes too long for what it is to do next."""
        limits, waited = self.limits, now - self.since
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if unsent != self.unsent:
                self.unsent = unsent
                self.since = now
            elif waited > limits.send_s:
                self.transport.abort()
            return
        self.unsent = 0
        if self.waiting:  # it is for the server to do something
            return
        if self.is_closing:
            if waited > LINGER_S:
                self.transport.abort()
        elif self.request is None:
            if waited > limits.idle_s:
                self.transport.close()
        else:
            # Count the bytes that have come, not the length that was announced: those hold memory.
            coming = self.request.coming
            came = coming.filled if coming is not None else 0
            if waited > limits.receive_s + came / SLOWEST:
                self._refuse(408, "the request took too long to come in")

    # ---- answers -------------------------------------------------------------------------

    def _refuse(self, status: int, sentence: str, headers: bytes = b"") -> None:
        """The request that is being received is wrong beyond repair: say so, then close."""
        self.is_closing = True
        request = self.request or Request(self)
        self.request = None
        request.keep_alive = False
        if request.coming is not None:
            request.coming.close()
            request.coming = None
        self.is_direct = False
        request.refusal = status, sentence, headers
        self.waiting.append(request)
        if len(self.waiting) == 1:
            self._next()

    def reply(
        self,
        request: Request,
        status: int,
        body: Sequence[Any],
        content_type: bytes,
        headers: bytes,
    ) -> None:
        """Write the answer to the first of the requests that wait; see :meth:`Request.reply`."""
        if request.is_answered:
            return
        request.is_answered = True
        request.on_disconnect = None
        self._may_be_last(request)
        if request.is_old and request.keep_alive:  # which it has asked for, and must be told
            headers += b"Connection: keep-alive\r\n"
        transport = self.transport
        length = sum(map(len, body))
        head = head_of(status, length, content_type, headers, request.keep_alive)
        if request.method == b"HEAD":
            transport.write(head)
        elif length <= JOINED_BYTES:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines([head, *body])
        if self.log is not None:
            self.log(self.peer, request, status, length)
        self._answered(request)

    def begin(self, request: Request, status: int, content_type: bytes, headers: bytes) -> None:
        """The head of an answer that comes in parts."""
        request.is_answered = True
        self._may_be_last(request)
        if request.is_old:  # whose answers in parts end with the connection
            request.keep_alive = False
        request.status = status
        framing = b"" if request.is_old else b"Transfer-Encoding: chunked\r\n"
        self.transport.write(head_with(status, content_type, framing + headers, request.keep_alive))

    def send(self, request: Request, data: bytes, when_taken: Callable[[], None]) -> None:
        """A part of the answer, as a chunk."""
        if request not in self.waiting:  # the client has left
            return
        request.sent += len(data)
        # Whoever knows no chunks reads until the connection ends.
        self.transport.write(data if request.is_old else b"%x\r\n%s\r\n" % (len(data), data))
        if self.when_taken is None:
            when_taken()
        else:
            self.when_taken = when_taken

    def end(self, request: Request) -> None:
        """The last of its parts was sent."""
        if request in self.waiting:
            if not request.is_old:
                self.transport.write(b"0\r\n\r\n")
            request.on_disconnect = None
            if self.log is not None:
                self.log(self.peer, request, request.status, request.sent)
            self._answered(request)

    def _may_be_last(self, request: Request) -> None:
        """While the worker is leaving, what is answered last ends its connection, and says so."""
        if self.seen.is_leaving and len(self.waiting) == 1 and self.request is None:
            request.keep_alive = False

    def leave(self, now: float) -> bool:
        """Whether nothing is to be waited for; a connection that was idle for a moment is closed.

        A client that asks again as soon as it is answered still is answered, and told that this was
        the last time; one that comes later finds its connection closed before it sends.
        """
        if self.waiting or self.request is not None:
            return False
        if self.is_closing:
            return True
        if now - self.since < LEFT_IDLE_S or _has_unread(self.transport):
            return False
        self.is_closing = True
        self.transport.close()
        return True

    def _answered(self, request: Request) -> None:
        """The first of the requests that wait was answered: see to the next."""
        transport = self.transport
        request.body = b""
        self.waiting.popleft()
        self.since = monotonic()
        if not request.keep_alive:
            self.waiting.clear()
            self.is_closing = True
            is_early = request.refusal is not None or self.seen.is_leaving
            if is_early and transport.can_write_eof():
                # If the connection were closed while bytes come in, a client that sends everything
                # before it reads would lose the answer. So what comes is thrown away for a while.
                transport.write_eof()
            else:
                transport.close()
        elif self.waiting:
            asyncio.get_running_loop().call_soon(self._next)
        elif transport is not None:
            transport.resume_reading()

    def reply_whole(self, request: Request, data: bytes) -> None:
        """Write an answer that has all its bytes, to a request after which the client stays."""
        request.is_answered = True
        request.on_disconnect = None
        self.transport.write(data)
        self.waiting.popleft()
        self.since = monotonic()
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not self.waiting:
            return
        self.came = 0  # it is not in the scratch buffer any more
        request = self.waiting[0]
        if request.refusal is None:
            self.answer(request)
        else:
            status, sentence, headers = request.refusal
            request.reply(status, [error_body(sentence)], headers=headers)


def _path_of(target: bytes) -> bytes:
    """The path that a whole URL names, as proxies are sent it; anything else as it is."""
    found = _URL.fullmatch(target)
    if found is None:
        return target
    path: bytes = found[1]
    return path if path.startswith(b"/") else b"/" + path


def _wrong_head(version: str, headers: dict[bytes, bytes]) -> str:
    """What the parser lets pass and another server before this one might read otherwise."""
    if version not in ("1.0", "1.1"):
        return f"the request is of version {version}, and this server speaks version 1.1 of HTTP"
    host = headers.get(b"host")
    if host is not None and b"," in host:
        return "the request has two Host headers, or one of several names: send one"
    if host is None and version == "1.1":
        return "the request has no Host header: send one"
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        return "Transfer-Encoding must be chunked alone: send the body as it is"
    return ""


def _has_unread(transport: Any) -> bool:
    """Whether bytes have come that were not read yet."""
    unread = array.array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread)
    except OSError:
        return False
    return unread[0] > 0


def _nothing() -> None:
    """Nobody waits for the client to take more."""


def end_slow(connections: Connections) -> None:
    """Close connections whose clients take too long; call it about once a second."""
    now = monotonic()
    for one in list(connections):
        one.look(now)
