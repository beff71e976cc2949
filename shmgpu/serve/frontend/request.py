"""One request of HTTP/1.1, whole, and the form of its answer: the head, an error's body.

Owns what the rooms that answer see of a connection. Never reads or writes a socket: an answer is
handed to the connection on which the request came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import orjson

from shmgpu.serve.frontend.body_memory import Body

Refusal = tuple[int, str, bytes]  # status, sentence, headers

LEFT = 499  # what is logged of a request whose client did not wait for the answer
REASONS = {status.value: status.phrase for status in HTTPStatus} | {LEFT: "Client Closed Request"}


class Answering(Protocol):
    """Who answers requests."""

    def __call__(self, request: Request, /) -> None:
        """Call :meth:`Request.reply` exactly once, now or later; never raises."""


class Request:
    """One request, whole.

    Attributes:
        method, target: of the request line.
        headers: by lower-case name; of equal ones the last.
        body: its bytes, a view of the arena where they were received into it.
        header_length: the value of ``Inference-Header-Content-Length``; None without one.
        on_disconnect: called when the client leaves before it was answered.
        whole_at: the monotonic clock when its last byte had come, where a log wants that.
        status: of an answer in parts that has begun; otherwise 0.
        sent: bytes of its parts.
    """

    __slots__ = (
        "body",
        "coming",
        "connection",
        "headers",
        "is_answered",
        "is_old",
        "keep_alive",
        "length",
        "method",
        "on_disconnect",
        "refusal",
        "sent",
        "status",
        "target",
        "whole_at",
    )

    def __init__(self, connection: Any) -> None:
        self.connection = connection  # on which it came; it stands above this file
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body: Any = b""
        self.coming: Body | None = None  # the body, until it is whole
        self.length = -1
        self.keep_alive = True
        self.is_old = False  # HTTP/1.0: the client knows no chunks, and gets one answer
        self.is_answered = False
        self.refusal: Refusal | None = None  # the request is incomplete: the answer that says so
        self.on_disconnect: Callable[[], None] | None = None
        self.whole_at = 0.0
        self.status = self.sent = 0

    @property
    def header_length(self) -> int | None:
        """As the client sent it; -1 for what is no number."""
        text = self.headers.get(b"inference-header-content-length")
        if text is None:
            return None
        return int(text) if text.isdigit() else -1

    def reply(
        self,
        status: int,
        body: Sequence[Any] = (),
        content_type: bytes = b"application/json",
        headers: bytes = b"",
    ) -> None:
        """Answer with buffers that are written in order and must not change from now on."""
        self.connection.reply(self, status, body, content_type, headers)

    def begin(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Answer in parts: :meth:`send` each, then :meth:`end`."""
        self.connection.begin(self, status, content_type, headers)

    def send(self, data: bytes, when_taken: Callable[[], None]) -> None:
        """One part, of at least a byte; ``when_taken`` is called when the next may follow."""
        self.connection.send(self, data, when_taken)

    def end(self) -> None:
        """All parts were sent."""
        self.connection.end(self)


def head_of(
    status: int, length: int, content_type: bytes, headers: bytes = b"", keep_alive: bool = True
) -> bytes:
    """Return the head of an answer whose body has ``length`` bytes."""
    return head_with(status, content_type, b"Content-Length: %d\r\n" % length + headers, keep_alive)


def head_with(status: int, content_type: bytes, headers: bytes, keep_alive: bool) -> bytes:
    """Return the head of an answer; ``headers`` say where its body ends."""
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%s\r\n" % (
        status,
        REASONS.get(status, "Unknown").encode(),
        content_type,
        headers,
        b"" if keep_alive else b"Connection: close\r\n",
    )


def error_body(sentence: str) -> bytes:
    """As every error is told."""
    return orjson.dumps({"error": sentence})
