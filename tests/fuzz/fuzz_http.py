"""Fuzz target: any bytes on a connection are the same requests, however they are cut into reads.

What a connection makes of the bytes in one read, in reads of one byte and in reads of other lengths
must be the same requests, with the same answers and the same end: where that differed, a proxy and
this server could disagree where a request begins. Each request is answered once, and none of the
memory for bodies stays behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle
from typing import Any

from shmgpu.child.memory import LocalArena
from shmgpu.serve.frontend.body_memory import BodyMemory
from shmgpu.serve.frontend.connection import SCRATCH_BYTES, Connection, ConnectionLimits, Request

BODY_BYTES = 2048
LIMITS = ConnectionLimits(body_bytes=BODY_BYTES, header_bytes=65536)
MEMORY = BodyMemory(LocalArena(1 << 20), 8, BODY_BYTES)
SCRATCH = memoryview(bytearray(SCRATCH_BYTES))
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")


class Seen(set[Any]):
    """The connections that there are."""

    is_leaving = False


class Transport:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        """Answers are immediate, so nothing waits."""

    resume_reading = pause_reading

    def write_eof(self) -> None:
        """The client reads on."""

    def can_write_eof(self) -> bool:
        return True


def fed(data: bytes, lengths: Iterable[int]) -> tuple[list[Any], list[int], bool]:
    """Requests, statuses, and whether the connection ends, of bytes that come in such reads."""
    requests: list[Any] = []

    def answer(request: Request) -> None:
        if request.refusal is not None:
            status, sentence, headers = request.refusal
            request.reply(status, [sentence.encode()], headers=headers)
            return
        told = request.method, request.target, sorted(request.headers.items()), bytes(request.body)
        requests.append((*told, request.header_length, request.is_old))
        request.reply(200, [b"ok"])

    transport, connection = Transport(), Connection(answer, MEMORY, LIMITS, SCRATCH, Seen(), _none)
    connection.connection_made(transport)
    at = 0
    for length in lengths:
        if at >= len(data) or transport.is_closed:
            break
        room = connection.get_buffer(-1)
        piece = data[at : at + min(length, len(room))]
        room[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        at += len(piece)
    ends = transport.is_closed or connection.is_closing
    connection.connection_lost(None)
    assert MEMORY.ahead == 0
    statuses = [int(found[1]) for one in transport.written if (found := STATUS.match(one))]
    assert len(statuses) == len(transport.written), "each answer is one piece"
    assert statuses.count(200) == len(requests)
    assert len([one for one in statuses if one not in (100, 200)]) <= 1, "a refusal is the last"
    return requests, statuses, ends


def _none(connection: Connection, count: int) -> bool:
    return False


def one_input(data: bytes) -> None:
    whole = fed(data, cycle((SCRATCH_BYTES,)))
    for lengths in ((1,), (2, 7, 1, 31), (97, 3)):
        assert fed(data, cycle(lengths)) == whole


def set_up() -> None:
    """Nothing is needed."""
