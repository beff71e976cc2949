"""Writes the seeds of the fuzz targets: ``python tests/fuzz/make_corpus.py`` in the root.

A seed is a small input that reaches far: well-formed blocks and frames, operations that
interlock, and inputs that once showed a mistake. Files are named after what they are.
"""

from __future__ import annotations

import json
import pathlib
import random
import struct
import sys

import numpy as np

from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec, is_array
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import Signature, TreeLayout
from shmgpu.codec.pytree import encode_values, flatten

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
ORIGIN, ARENA = 1 << 20, 1 << 16  # as in fuzz_blocks.py

CALL, GROW, CANCEL, REPLY = 1, 2, 3, 4
FRAME = struct.Struct("<QQQHBBIBBHIQQQ")


def frame(
    kind=CALL, function=0, params=0, sequence=1, placement=0, key=0, rows=1, flags=0
) -> bytes:
    return FRAME.pack(
        function, params, sequence, 0, 0, kind, 0, 0, flags, 0, rows, key, 0, placement
    )


def block(args, kwargs=None, hint=None, declared=False, room=(0, 4096), place=(0, 8192)) -> bytes:
    """A parameter block as a child would write it, its arrays at an offset of arena `place[0]`."""
    flat = flatten((args, kwargs or {}), is_array)
    specs = [ArraySpec(by_name(str(a.dtype)), a.shape) for a in flat.arrays]
    signature = Signature(TreeLayout(bytes(flat.structure), specs), hint, declared)
    values = encode_values(flat.values)
    data = bytearray(layout.block_bytes(signature, values))
    layout.write_constant(data, signature, values)
    addresses = [ORIGIN + place[0] * ARENA + place[1] + 64 * i for i in range(len(specs))]
    first = ORIGIN + room[0] * ARENA + 16384
    struct.pack_into(f"<QQ{len(addresses)}Q", data, 8, first, room[1], *addresses)
    return bytes(data)


def zero_rows(shape) -> bytes:
    """A block whose one array has a shape without elements, of axes that NumPy may refuse."""
    layout_of_one = TreeLayout(
        b"t\x02\0\0\0t\x01\0\0\0Ad\0\0\0\0", [ArraySpec(by_name("float64"), shape)]
    )
    signature = Signature(layout_of_one, None, False)
    data = bytearray(layout.block_bytes(signature, b""))
    layout.write_constant(data, signature, b"")
    struct.pack_into("<QQQ", data, 8, ORIGIN, 4096, ORIGIN)
    return bytes(data)


def blocks() -> dict[str, bytes]:
    x, y = np.ones((3, 4), "f4"), np.arange(5)
    one = TreeLayout(b"A", [ArraySpec(by_name("float32"), (3, 4))])
    return {
        "one-array": block((x,)),
        "expected": block((x,), hint=one),
        "declared": block((x,), hint=one, declared=True),
        "tree": block((x, [y, {"k": (x, 1, "text", None)}]), {"key": b"bytes"}),
        "values": block((1, 2.5, "s", b"b", None, True, 10**30, range(3), slice(1, None), 1j, ...)),
        "no-arguments": block(()),
        "elsewhere": block((x,), place=(1, 8192)),
        "room-elsewhere": block((x,), room=(1, 4096)),
        "no-room": block((x,), room=(0, 0)),
        "over-the-end": block((x,), place=(0, ARENA - 8)),
        "a-shape-numpy-refuses": zero_rows((0, 1 << 46, 1 << 46)),
        "too-many-axes": zero_rows((0,) + (1,) * 64),
    }


def values() -> dict[str, bytes]:
    tree = flatten(((np.ones(2), [1, {"a": 2, 3: "x"}]), {}), is_array)
    plain = [1, 2.5, "text", b"bytes", None, True, 10**30, range(3), slice(1, None), 1j, ...]
    plain += [np.float32(1.5), np.datetime64("2026-01-02", "ns"), np.str_("abc"), bytearray(b"x")]
    found = TreeLayout(b"t\x02\0\0\0AV", [ArraySpec(by_name("float32"), (5,))])
    described = layout.describe_result(found, encode_values(["text"]))
    return {
        "plain": bytes((len(plain) << 2,)) + encode_values(plain),
        "a-pickle": b"\x04" + encode_values([{1}], allow_pickle=True),
        "structure": b"\x01" + bytes(tree.structure),
        "deep": b"\x01" + b"t\x01\0\0\0" * 65 + b"A",
        "promises-much": b"\x01l\xff\xff\xff\x7f" + b"V" * 9,
        "a-unit-of-no-time": b"\x04n\x0edatetime64[0s]" + b"\x01" * 8,
        "long-text": b"\x04s\xff\xff\xff\xff",
        "result": b"\x02" + described.ljust(layout.result_bytes(described, found), b"\0"),
    }


def frames() -> dict[str, bytes]:
    base, size = 0x7F0000010000, 0x10000
    bounds = struct.pack("<QQBBQ", base, size, 2, 1, 40)
    good = [frame(params=base), frame(params=base + size - 40), frame(GROW), frame(CANCEL)]
    edges = [frame(params=base + size - 32), frame(params=base - 8), frame(params=base + 4)]
    gangs = [frame(params=base, flags=2, placement=mask) for mask in (0, 1, 7, 1 << 63)]
    return {
        "good": bounds + b"".join(good),
        "edges": bounds + b"".join(edges) + frame(params=2**64 - 8),
        "gangs": bounds + b"".join(gangs),
    }


def tlsf() -> dict[str, bytes]:
    def steps(*rows):
        return b"".join(struct.pack("<BBI", *row) for row in rows)

    rng = random.Random(1)
    mixed = [(rng.randrange(8), rng.randrange(256), rng.randrange(1 << 20)) for _ in range(150)]
    return {
        "fill-and-free": steps(*[(0, 0, 4096)] * 70, *[(3, i, 0) for i in range(70)]),
        "holes": steps(
            *[(0, 0, 100 + i) for i in range(40)],
            *[(3, i, 0) for i in range(0, 20, 2)],
            *[(0, 0, 64)] * 9,
        ),
        "aligned": steps(*[(2, i, 64) for i in range(24)], *[(7, 1, 5)], *[(4, 0, 0)] * 9),
        "resized": steps(*[(1, 0, 640)] * 9, *[(5, i, 64 * i) for i in range(30)], (6, 0, 4096)),
        "refused": steps((0, 7, 0), (0, 7, 2**32 - 1), (6, 0, 4097), (0, 31, 0x80000000)),
        "mixed": steps(*mixed),
    }


def registry() -> dict[str, bytes]:
    def words(*numbers):
        return struct.pack(f"<{len(numbers)}Q", *[n % 2**64 for n in numbers])

    near = [
        row * 65536 + (128 + offset) * 2 + 1 for row in range(0, 40, 3) for offset in (0, 8, -8)
    ]
    return {
        "functions": words(
            *[4096 * i for i in range(0, 60, 2)], *[0x10000000 + 4 * i for i in range(9)]
        ),
        "rows": words(*near),
        "strangers": words(0, 2**64 - 2, 4096 * 3, 4098, 0x10000002),
    }


def dispatch() -> dict[str, bytes]:
    """Bytes of operations, see fuzz_dispatch.c; | 128 in the second makes a turn."""

    def sends(child, row=1, kind=CALL, key=7, torn=0, keep=0x1F, **more):
        return (
            bytes((11, child | 128)) + frame(kind, key=key, **more) + bytes((keep | row << 6, torn))
        )

    def answers(helper, number, shape=1):
        return bytes((8, helper | 128)) + frame(REPLY, key=number) + bytes((shape,))

    turn, dies, comes = b"\x04\0", b"\x02", b"\x03"
    page = struct.pack("<BQ", 1, 1 << 16 | 1) + struct.pack("<QQIIII", 2, 0, 0, 0, 9, 0)
    gang = bytes((11, 128)) + frame(flags=2, placement=3) + bytes((0x0F | 1 << 6, 0))
    return {
        "answered": b"".join(sends(c) for c in range(3)) + answers(0, 1) + answers(1, 1) + turn,
        "batch": b"".join(sends(c, 1) for c in range(3)) * 2 + answers(0, 1) + answers(0, 2),
        "helper-dies": sends(0) + sends(0) + sends(1) + dies + b"\0" + page + comes + b"\0" + turn,
        "child-dies": sends(0) + b"\0\x40" + turn + b"\0\xc0" + sends(1) + answers(0, 1),
        "gang": gang + answers(0, 1) + dies + b"\1" + page,
        "torn": sends(0, torn=255) + turn + sends(1),
        "ready-and-dead": dies
        + b"\1"
        + b"\0" * 9
        + sends(0)
        + dies
        + b"\0"
        + b"\0" * 9
        + comes
        + b"\1"
        + dies
        + b"\1"
        + b"\0" * 9,
        "grow": sends(0) + answers(0, 1, 0x0D) + turn + sends(0, kind=GROW, keep=0x10),
        "children-leave-first": sends(0) + sends(1) + sends(2) + sends(0) + b"\0",
    }


def requests() -> dict[str, bytes]:
    """See fuzz_requests.py for the first byte."""
    from shmgpu.serve.protocol.grpc_codec import MESSAGES

    def tensor(name="x", datatype="FP32", shape=(2, 2), **more):
        return {"name": name, "datatype": datatype, "shape": list(shape), **more}

    def http(inputs, binary=None, flags=2, **more):
        body = json.dumps({"inputs": inputs, **more}).encode()
        if binary is None:
            return bytes((flags,)) + body
        return bytes((flags | 4,)) + struct.pack("<H", len(body)) + body + binary

    def grpc(flags=3, raw=(), **fields):
        made = MESSAGES["ModelInferRequest"](model_name="all", **fields)
        made.raw_input_contents.extend(raw)
        return bytes((flags,)) + made.SerializeToString(deterministic=True)

    region = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    all_kinds = {
        "priority": 1, "timeout": 5, "sequence_id": "s", "sequence_start": True, "other": 1.5,
    }  # fmt: skip
    binary = {"parameters": {"binary_data_size": 16}}
    wanted = [
        {"name": "y", "parameters": {"binary_data": True}},
        {"name": "text", "parameters": {"binary_data": False}},
    ]
    contents = {"fp32_contents": [1, 2, 3, 4]}
    return {
        "http-json": http([tensor(data=[[1, 2], [3, 4]])], id="one", parameters=all_kinds),
        "http-binary": http([tensor(**binary)], bytes(16), outputs=wanted),
        "http-text": http(
            [tensor(**binary), tensor("text", "BYTES", (1, 1), parameters={"binary_data_size": 7})],
            bytes(16) + b"\x03\0\0\0abc",
        ),
        "http-half": http([tensor("half", "BF16", (1, 2), data=[1.5, 2])], flags=0),
        "http-region": http(
            [tensor(parameters=region)], outputs=[{"name": "y", "parameters": region}]
        ),
        "http-classes": http(
            [tensor(data=[1, 2, 3, 4])],
            outputs=[{"name": "y", "parameters": {"classification": 1}}],
        ),
        "http-short": http([tensor(parameters={"binary_data_size": 15})], bytes(15)),
        "http-raw": b"\x06\0\0" + bytes(8),
        "http-nan": http([tensor(data=[float("nan"), float("inf"), 0, 1])]),
        "http-promises-much": http([tensor("a", "INT8", (1 << 62, 4), data=[])], flags=0),
        "http-no-elements": http([tensor("a", "FP64", (0, 1 << 62, 1 << 62), data=[])], flags=0),
        "http-deep": b"\x02" + b"[" * 300,
        "grpc-raw": grpc(raw=[bytes(16)], inputs=[tensor()], outputs=[{"name": "y"}]),
        "grpc-short": grpc(raw=[bytes(12)], inputs=[tensor()]),
        "grpc-contents": grpc(inputs=[tensor(contents=contents)], id="one"),
        "grpc-text": grpc(
            1, inputs=[tensor("t", "BYTES", (2,), contents={"bytes_contents": [b"a", b"bc"]})]
        ),
        "grpc-classes": grpc(
            raw=[bytes(16)],
            inputs=[tensor()],
            outputs=[{"name": "y", "parameters": {"classification": {"int64_param": 1}}}],
        ),
        "grpc-too-many": grpc(raw=[bytes(16)] * 3, inputs=[tensor()]),
        "grpc-torn": grpc(raw=[bytes(16)], inputs=[tensor()])[:-3],
        "grpc-long-varint": b"\x03\x3a" + b"\xff" * 12,
    }


def hellos() -> dict[str, bytes]:
    """Steps, see fuzz_hello.c: 0 comes, 1 speaks, 2 leaves, 3 a slot, 4 time, 5 both."""
    join, ask, scale, retire, pause, resume = range(6)

    def says(who, kind=join, pool=0, helpers=0, wait=0, letter=b"p"):
        return struct.pack("<BBbbbq", 5, who, kind, pool, helpers, wait) + letter

    def speaks(who, how, *more):
        return bytes((1 + 6 * how, who, *more))

    slot, minutes = b"\x03\0", b"\x04\0" + b"\xff" * 5
    return {
        "joins": b"\1" + says(0) + says(1),
        "waits": b"\0" + says(0, wait=-1) + says(1, wait=10**9) + slot + slot,
        "waits-too-long": b"\0" + says(0, wait=1) + b"\0\1" + minutes + slot,
        "waits-for-ever": b"\0" + says(0, wait=2**63 - 1) + says(1, wait=-(2**63)) + slot,
        "leaves": b"\0" + says(0, wait=-1) + b"\2\0" + slot,
        "asks": b"\0" + says(0, ask) + says(1, ask, 1) + says(2, ask, 2) + says(3, ask, -1),
        "scales": b"\0" + b"".join(says(n, scale, 1, n - 1) for n in range(6)),
        "retires": b"\0" + says(0, retire) + says(1, retire, 9),
        "pauses": b"\0" + says(0, pause) + says(1, pause) + says(2, resume, 1) + says(3, pause, 9),
        "another-kind": b"\1" + says(0, 6) + says(1, -1),
        "no-end-of-name": b"\1" + says(0, letter=b"\xff"),
        "speaks-twice": b"\0" + says(0, wait=-1) + speaks(0, 0, *bytes(12)) + slot,
        "another-word": b"\1\0\0" + speaks(0, 1, *b"shmu", 6, *bytes(12)),
        "another-length": b"\1\0\0"
        + speaks(0, 2, *bytes(12), 95)
        + b"\0\1"
        + speaks(1, 2, *bytes(12), 0)
        + b"\0\2"
        + speaks(2, 2, *bytes(12), 200),
        "crowd": b"\2" + b"".join(says(n, wait=-1) for n in range(6)) + slot * 2,
    }


def http() -> dict[str, bytes]:
    """See fuzz_http.py."""

    def post(body, *headers, target="/v2/models/m/infer", version="1.1"):
        told = [f"POST {target} HTTP/{version}", "Host: x", *headers, "", ""]
        return "\r\n".join(told).encode() + body

    def sized(body, *headers, **more):
        return post(body, f"Content-Length: {len(body)}", *headers, **more)

    get = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = "Transfer-Encoding: chunked"
    chunks = b"4\r\nwxyz\r\n1;a=b\r\n!\r\n0\r\nTrailer: 1\r\n\r\n"
    return {
        "get": get,
        "pipelined": get + sized(b"{}") + get,
        "body": sized(b"x" * 700, "Inference-Header-Content-Length: 12") + get,
        "chunks": post(chunks, chunked) + get,
        "chunks-torn": post(chunks[:-9], chunked),
        "chunk-too-large": post(b"ffffffffffffffff1\r\nx", chunked),
        "gzip-and-chunked": post(chunks, "Transfer-Encoding: gzip, chunked") + get,
        "length-and-chunks": sized(chunks, chunked) + get,
        "two-lengths": sized(b"ab", "Content-Length: 3") + get,
        "length-of-none": post(b"ab", "Content-Length: +2") + get,
        "body-too-large": sized(b"x" * 2100) + get,
        "continue": sized(b"{}", "Expect: 100-continue"),
        "two-hosts": sized(b"", "Host: y") + get,
        "no-host": b"GET / HTTP/1.1\r\n\r\n" + get,
        "absolute": sized(b"{}", target="http://x/v2"),
        "old": sized(b"{}", version="1.0") + get,
        "old-kept": sized(b"{}", "Connection: keep-alive", version="1.0") + get,
        "refused-and-wrong": b"GET / HTTP/1.1\r\n\r\nGET /HTTP/1.1\r\n" + get,
        "refused-and-continue": sized(b"", "Host: y") + sized(b"{}", "Expect: 100-continue"),
        "version-2": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n" + get,
        "version-0.9": b"GET /\r\n" + get,
        "upgrade": sized(b"", "Connection: Upgrade", "Upgrade: websocket") + get,
        "upgrade-with-body": sized(b"{}", "Connection: Upgrade", "Upgrade: h2c") + get,
        "last": sized(b"{}", "Connection: close") + get,
        "folded": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n" + get,
        "bare-line-feeds": get.replace(b"\r\n", b"\n"),
        "empty-lines": b"\r\n\r\n" + get,
        "connect": b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + get,
    }


def http2() -> dict[str, bytes]:
    """See fuzz_http2.py."""
    sys.path.append(str(CORPUS.parents[1]))  # where this file is run as a program
    from serve import frames as h2

    short = {":authority": "x", ":path": "/m", "content-type": None, "te": None}
    fields = h2.fields(**short)

    def head(stream, is_end=False, **more):
        return h2.head(stream, is_end, **{**short, **more})

    def call(stream, payload, **more):
        return head(stream, **more) + h2.data(stream, h2.message(payload))

    two = h2.message(b"one") + h2.message(bytes(300), True)
    ended = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, fields)
    return {
        "call": call(1, b"x" * 20, authorization="Bearer x", grpc_timeout="1S"),
        "calls": b"".join(call(stream, b"x") for stream in (1, 3, 5)),
        "two-messages": head(1) + h2.data(1, two, False),
        "two-messages-torn": head(1) + h2.data(1, two[:-1]),
        "no-message": ended,
        "no-prefix": head(1) + h2.data(1, b"\0\0\0"),
        "wrong-prefix": head(1) + h2.data(1, b"\2" + h2.message(b"x")[1:]),
        "message-too-large": head(1) + h2.data(1, b"\0\0\0\x08\x01"),
        "long-head": head(1, note="n" * 950),
        "swelling-head": h2.frame(
            h2.HEADERS, h2.END_HEADERS, 1, fields + b"\x40\1a" + h2.text("b" * 500)
        )
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 3, fields + b"\xbe" * 20),
        "head-in-parts": h2.frame(h2.HEADERS, 0, 1, fields[:9])
        + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, fields[9:])
        + h2.data(1, h2.message(b"x")),
        "head-without-end": h2.frame(h2.HEADERS, 0, 1, fields) + call(3, b"x"),
        "trailers": head(1) + h2.data(1, h2.message(b"x"), False) + h2.frame(h2.HEADERS, 5, 1),
        "reset": call(1, b"x") + h2.reset(1) + call(3, b"y"),
        "wrong-window": head(1) + h2.window(1, 0) + call(3, b"x"),
        "wrong-name": head(1, UPPER="x") + call(3, b"x"),
        "wrong-stream": call(2, b"x") + call(1, b"x"),
        "settings": h2.settings(s4=1, s1=0) + h2.frame(h2.PING, 0, 0, bytes(8)) + call(1, b"x"),
        "settings-of-no-length": h2.frame(h2.SETTINGS, 0, 0, b"x"),
        "too-many": b"".join(head(stream) for stream in range(1, 25, 2)),
        "goodbye": call(1, b"x") + h2.frame(h2.GOAWAY, 0, 0, bytes(8)) + call(3, b"x"),
        "http-1": b"GET / HTTP/1.1\r\n\r\n",
    }


def manifests() -> dict[str, bytes]:
    """See fuzz_manifest.py."""
    good = {
        "rows": {"m:f": 7, "a.b:g": 64}, "pools": {"default": 0}, "prints": {"7": "030b:ab"},
        "pickles": [64], "sessions": {"m:load": "030b:cd"}, "key": "", "instance": "i",
        "program": "p", "devices": "cpu", "idle_timeout": "60",
    }  # fmt: skip

    def changed(**more):
        return json.dumps(good | more).encode()

    return {
        "good": changed(),
        "empty": b"",
        "no-object": b"[1]",
        "no-rows": changed(rows=[]),
        "a-row-without-end": changed(rows={"m:f": float("inf")}),
        "a-row-of-text": changed(rows={"m:f": "7"}),
        "a-print-of-no-row": changed(prints={"x": "y"}),
        "half-a-pair": changed(program="\ud800"),
        "deep": b'{"rows":' + b"[" * 1200,
        "long-number": b'{"rows":{"m:f":' + b"9" * 4400 + b"}}",
        "torn": changed()[:-20],
    }


TARGETS = {
    "blocks": blocks, "values": values, "frame": frames, "tlsf": tlsf, "registry": registry,
    "dispatch": dispatch, "requests": requests, "http": http, "manifest": manifests,
    "hello": hellos, "http2": http2,
}  # fmt: skip


def main() -> None:
    for name, seeds in TARGETS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in seeds().items():
            (folder / seed).write_bytes(data)
            print(f"{name}/{seed}: {len(data)} bytes")


if __name__ == "__main__":
    main()
