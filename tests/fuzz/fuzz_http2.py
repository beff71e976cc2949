"""Fuzz target: any bytes of a client's HTTP/2 are the same calls, however they are cut into reads.

What a session makes of the bytes in one read, in reads of one byte and in reads of other lengths
must be the same calls that are open at the end, with the same messages. (Whether a connection ends
may differ: frames of a stream are an error until they may have been sent before its reset came.)
Whatever comes, nothing is kept of it when the session is gone. The client's first bytes are not
among the input: every connection begins with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import Any

from shmgpu import _http2

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
MOST_HEAD, MOST_MESSAGE = 1024, 2048
READ = 4096


def fed(data: bytes, lengths: Iterable[int]) -> dict[int, Any] | None:
    """Head, messages, flags of each call that is open in the end; None: the connection is not."""
    session = _http2.Session(10, MOST_HEAD, MOST_MESSAGE)
    calls: dict[int, Any] = {}
    at = 0
    for length in lengths:
        if at >= len(data):
            break
        piece = data[at : at + min(length, READ)]
        _http2.scratch[: len(piece)] = piece
        told = session.feed(len(piece))
        if told is None:
            return None
        at += len(piece)
        for stream, flags, head, message in told:
            if head is not None:
                calls[stream] = head, [], set()
            note(session, calls[stream], (stream, flags, head, message))
        session.pull(1 << 20)
        session.progress()
    if session.is_over():
        return None
    return {stream: call for stream, call in calls.items() if session.want(stream) is not False}


def note(session: Any, call: Any, told: Any) -> None:
    """Keep a message that is told, and want the next, as long as they are there."""
    while told:
        stream, flags, _, message = told
        if message is not None:
            call[1].append((message, flags & _http2.COMPRESSED))
        wrong = flags & (_http2.BROKEN | _http2.TOO_LARGE | _http2.LONG_HEAD)
        if wrong:
            call[2].add(wrong)
            return
        if flags & _http2.OPENED or message is not None:
            told = session.want(stream)
        else:
            if flags & _http2.ENDED:
                call[2].add(_http2.ENDED)
            return


def one_input(data: bytes) -> None:
    data = HELLO + data
    found = [fed(data, cycle(lengths)) for lengths in ((READ,), (1,), (2, 7, 1, 31), (97, 3))]
    going_on = [calls for calls in found if calls is not None]
    assert all(calls == going_on[0] for calls in going_on)
    assert _http2.unwanted() == _http2.coming() == 0


def set_up() -> None:
    """Nothing is needed."""
