"""Bodies that come or go compressed: gzip and deflate, as HTTP has them.

Owns which codings there are and what is refused of them. zlib lets go of the interpreter while it
works, so this may be done in threads; one by one, as what comes out takes memory that nobody has
counted. Never decompresses more than it is told to.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from shmgpu.serve.protocol.types import ProtocolError

_one_by_one = threading.Lock()

WINDOWS = {b"gzip": 31, b"deflate": 15}  # zlib's wbits


def decoded(body: Any, encoding: bytes, most_bytes: int) -> bytes:
    """A body that was compressed."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return bytes(body)
    if name not in WINDOWS:
        raise ProtocolError(415, "the body's Content-Encoding must be gzip or deflate")
    reading = zlib.decompressobj(WINDOWS[name])
    try:
        with _one_by_one:
            found = reading.decompress(body, most_bytes)
    except zlib.error as error:
        raise ProtocolError(400, f"the body cannot be decompressed ({error})") from None
    if reading.unconsumed_tail:
        raise ProtocolError(413, f"the body may have {most_bytes} bytes, decompressed too")
    if not reading.eof:
        raise ProtocolError(400, "the body's compressed data end too early")
    if reading.unused_data:
        raise ProtocolError(
            400, "the body continues after its compressed data: send it as one piece"
        )
    return found


def coding_of(message: bytes) -> bytes:
    """How a message over gRPC was compressed, by its first two bytes; empty: it was not.

    No message of the protocol begins with either: they would be fields 3 and 15, and the former of
    a kind that protobuf has not.
    """
    if message[:2] == b"\x1f\x8b":
        return b"gzip"
    if message[:1] == b"\x78" and int.from_bytes(message[:2], "big") % 31 == 0:
        return b"deflate"
    return b""


_NO_WEIGHT = re.compile(rb"q\s*=\s*0(\.0*)?")


def encoded(
    buffers: Sequence[Any], accepted: bytes, header_length: int | None
) -> tuple[Sequence[Any], int | None, bytes]:
    """An answer as its client would like it: buffers, bytes of JSON, the header that says so."""
    wanted = {
        name.strip().lower()
        for name, _, weight in (one.partition(b";") for one in accepted.split(b","))
        if not _NO_WEIGHT.fullmatch(weight.strip().lower())
    }
    for name, window in WINDOWS.items():
        if name in wanted:
            writing = zlib.compressobj(1, wbits=window)
            data = b"".join([*map(writing.compress, buffers), writing.flush()])
            return [data], header_length, b"Content-Encoding: %s\r\n" % name
    return buffers, header_length, b""
