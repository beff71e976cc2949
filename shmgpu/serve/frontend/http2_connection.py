"""One connection of gRPC clients: HTTP/2 by libnghttp2, its calls answered on the worker's loop.

Owns a connection's session (:mod:`shmgpu._http2`, which has the protocol), its calls until their
streams end, and when bytes are written: what a read brought is handled as a whole, and one write
takes what became of it. Never knows a method: :mod:`shmgpu.serve.frontend.http2_calls` decides what
is done with a call.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from shmgpu import _http2
from shmgpu.serve.frontend.acceptor import Connections
from shmgpu.serve.frontend.connection import SLOWEST, ConnectionLimits
from shmgpu.serve.frontend.http2_calls import Http2Call, Http2Calls, Route

SCRATCH: memoryview = _http2.scratch  # where bytes come: read at once, so all have the same
MOST_AT_ONCE = 1 << 18  # bytes of answers that are handed to the transport
NOTICE_S = 0.25  # from the word that no more calls are wanted until those are ignored


class Http2Connection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        calls: what is done with its calls.
        limits: what the client may ask.
        seen: all connections of the worker.
    """

    __slots__ = (
        "_flushing", "_head", "_is_last", "_is_paused", "_left_at", "_route", "_session", "_unsent",
        "_unsettled", "address", "calls", "is_closing", "limits", "open", "peer", "seen", "since",
        "transport",
    )  # fmt: skip

    def __init__(self, calls: Http2Calls, limits: ConnectionLimits, seen: Connections) -> None:
        self.calls = calls
        self.limits = limits
        self.seen = seen
        self.transport: Any = None
        self.address, self.peer = "-", f"{id(self)}"  # of the client; by what it is known
        self.open: dict[int, Http2Call] = {}  # by stream
        self.is_closing = False
        self.since = 0.0  # when it began to wait for what it waits for now
        self._session = _http2.Session(
            calls.options.max_queue, limits.header_bytes, limits.body_bytes
        )
        self._flushing = False  # soon
        self._is_paused = False  # the client takes less than it is sent
        self._left_at = 0.0  # when the client was told that no more calls are wanted
        self._is_last = False  # those that it begins now are ignored
        self._unsent = 0
        self._unsettled: list[Http2Call] = []  # whose answers go out with the next bytes, or wait
        # The last head, and what it says: clients repeat themselves, and C keeps equal ones.
        self._head: Any = None
        self._route: Route | None = None

    # ---- asyncio's calls -----------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """As of asyncio."""
        self.transport = transport
        self.since = monotonic()
        is_too_many = len(self.seen) >= self.limits.connections
        self.seen.add(self)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.address = address[0]
        if is_too_many:
            self.is_closing = True
            transport.abort()
            return
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: what it waited for is given up."""
        self.seen.discard(self)
        self.is_closing = self._is_paused = True
        calls, self.open = self.open, {}
        for call in calls.values():
            call.ended()
        self.calls.memory.pace.forget(self.peer)

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It has taken what there was."""
        self._is_paused = False
        self.flush()

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next bytes go."""
        return SCRATCH

    def buffer_updated(self, count: int) -> None:
        """So many bytes were received."""
        if self.is_closing:
            return
        told = self._session.feed(count)
        if told is None:  # this is no HTTP/2
            self.is_closing = True
            self.flush()
            self.transport.close()
            return
        for stream, flags, head, message in told:
            if head is not None:
                if head is not self._head:
                    self._head, self._route = head, self.calls.route(head)
                assert self._route is not None
                self.calls.begin(self, self._route, stream, flags, message)
            else:
                call = self.open.get(stream)
                if call is not None:
                    call.came(flags, message)
        self.flush()

    def eof_received(self) -> bool:
        """The client will send no more: most have left."""
        return False

    # ---- what calls say ------------------------------------------------------------------

    def answer(self, call: Http2Call, message: bytes) -> None:
        """The only message of an answer; ``call.settle`` is called if it has to wait."""
        if self._session.answer(call.stream, message):
            self._unsettled.append(call)
            if len(self.open) < 2:
                self.flush()
            else:
                self.flush_soon()

    def send(self, call: Http2Call, message: bytes) -> bool:
        """One message of an answer; ``call.taken`` is called when the client has it."""
        is_sent: bool = self._session.send(call.stream, message)
        self.flush_soon()
        return is_sent

    def end(self, call: Http2Call, trailers: bytes | None) -> None:
        """No more messages; ``trailers`` are ``b"STATUS SENTENCE"`` of what went wrong."""
        self._session.end(call.stream, trailers)
        self.flush_soon()

    def refuse(self, stream: int, status: bytes) -> None:
        """Answer what is no call, with a status of HTTP's."""
        self._session.refuse(stream, status)

    def reset(self, call: Http2Call) -> None:
        """The call's stream ends as it is."""
        self._session.reset(call.stream)
        self.flush_soon()

    def want(self, stream: int) -> tuple[int, int, Any, bytes | None] | bool | None:
        """The next message of a stream, as :meth:`shmgpu._http2.Session.want` tells it."""
        wanted: tuple[int, int, Any, bytes | None] | bool | None = self._session.want(stream)
        self.flush_soon()  # the client may send more
        return wanted

    # ---- writing -------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what there is once the loop has done what it is at."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is, as far as the client takes it."""
        self._flushing = False
        session, transport = self._session, self.transport
        while not self._is_paused:
            data = session.pull(MOST_AT_ONCE)
            if data is None:
                break
            transport.write(data)
            if len(data) < MOST_AT_ONCE:  # that was all
                break
        progress = session.progress()
        if progress is not None:
            for stream in progress:
                if stream < 0:
                    call = self.open.pop(-stream, None)
                    if call is not None:
                        call.ended()
                else:
                    call = self.open.get(stream)
                    if call is not None:
                        call.taken()
            if not self.open:
                self.since = monotonic()
        if self._unsettled:
            unsettled, self._unsettled = self._unsettled, []
            for call in unsettled:
                if call.stream in self.open:
                    call.settle()
        if not self.is_closing and session.is_over():
            self.is_closing = True
            transport.close()

    # ---- slow clients, and the end -------------------------------------------------------

    def look(self, now: float) -> None:
        """End the connection if its client takes too long for what it is to do next."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if unsent != self._unsent:
                self._unsent = unsent
                self.since = now
            elif now - self.since > self.limits.send_s:
                self.transport.abort()
            return
        if self._unsent:
            self._unsent = 0
            self.since = now
        for call in list(self.open.values()):
            since = call.unread_since
            if since and now - since > self.limits.send_s + call.unread_bytes / SLOWEST:
                self.reset(call)
        if not self.open and now - self.since > self.limits.idle_s and not self.is_closing:
            self._close()

    def leave(self, now: float) -> bool:
        """Whether nothing is to be waited for; the client is told to go to another connection.

        What it had begun before it knew is answered.
        """
        if self.is_closing:
            return not self.open
        if not self._left_at:
            self._left_at = now
            self._session.leave(False)
            self.flush()
        if now - self._left_at < NOTICE_S:
            return False
        self._ignore_more()
        if self.open:
            return False
        self._close()
        return True

    def _ignore_more(self) -> None:
        """What the client begins from now on is not answered, and it is told so."""
        if not self._is_last:
            self._is_last = True
            self._session.leave(True)
            self.flush()

    def _close(self) -> None:
        self._ignore_more()
        self.is_closing = True
        self.transport.close()
