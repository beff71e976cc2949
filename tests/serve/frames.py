"""HTTP/2 as a client writes and reads it, frame by frame; fields are never compressed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INFER = "/inference.GRPCInferenceService/ModelInfer"
CALL = {
    ":method": "POST",
    ":scheme": "http",
    ":path": INFER,
    ":authority": "here",
    "content-type": "application/grpc",
    "te": "trailers",
}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """Of what a client allows: ``s4=100`` is number 4."""
    pairs = [
        int(key[1:]).to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()
    ]
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def hello(**values: int) -> bytes:
    """What a connection begins with."""
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings(**values)


def text(value: str) -> bytes:
    """As HPACK has it, and not in Huffman's code."""
    data, rest = value.encode(), len(value.encode()) - 127
    if rest < 0:
        return bytes([len(data)]) + data
    length = bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes(length) + bytes([rest]) + data


def fields(**more: str | None) -> bytes:
    """Those of a call's head, some of them others; None: it is left out."""
    given = {**CALL, **{name.replace("_", "-"): value for name, value in more.items()}}
    return b"".join(
        b"\x00" + text(name) + text(value) for name, value in given.items() if value is not None
    )


def head(stream: int, is_end: bool = False, **more: str | None) -> bytes:
    """A call's head."""
    return frame(HEADERS, END_HEADERS | is_end, stream, fields(**more))


def data(stream: int, payload: bytes, is_end: bool = True) -> bytes:
    """Bytes of a call's messages, in frames of 16 KiB."""
    pieces = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    made = [frame(DATA, 0, stream, one) for one in pieces[:-1]]
    return b"".join([*made, frame(DATA, int(is_end), stream, pieces[-1])])


def message(payload: bytes, is_compressed: bool = False) -> bytes:
    """One as gRPC has it."""
    return bytes([is_compressed]) + len(payload).to_bytes(4, "big") + payload


def call(stream: int, payload: bytes, **more: str | None) -> bytes:
    """A whole call of one message."""
    return head(stream, **more) + data(stream, message(payload))


def window(stream: int, nbytes: int) -> bytes:
    """So many bytes more may be sent."""
    return frame(WINDOW_UPDATE, 0, stream, nbytes.to_bytes(4, "big"))


def reset(stream: int) -> bytes:
    """The client leaves."""
    return frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big"))


def frames(received: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame that came."""
    at = 0
    while at < len(received):
        length = int.from_bytes(received[at : at + 3], "big")
        kind, flags = received[at + 3], received[at + 4]
        stream = int.from_bytes(received[at + 5 : at + 9], "big")
        assert at + 9 + length <= len(received), "a frame is not whole"
        yield kind, flags, stream, received[at + 9 : at + 9 + length]
        at += 9 + length


def read_frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """The same from a socket, until the server closes it."""
    buffer = b""
    while True:
        while len(buffer) < 9 or len(buffer) < 9 + int.from_bytes(buffer[:3], "big"):
            try:
                came = connection.recv(65536)
            except ConnectionResetError:
                return
            if not came:
                return
            buffer += came
        length = 9 + int.from_bytes(buffer[:3], "big")
        yield next(frames(buffer[:length]))
        buffer = buffer[length:]
