"""The recorded requests: their names, methods, paths, headers and bodies, in the order of sending.

Owns what is sent. Never says what the answer should be: ``answers.jsonl`` does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from serve.recorded.models import KINDS

REGION = "recorded_requests"  # a name in /dev/shm, of 64 bytes
LENGTH = "Inference-Header-Content-Length"


class Asked(NamedTuple):
    """One request."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def tensor(name: str, datatype: str, shape: Any, data: Any = None, **more: Any) -> dict[str, Any]:
    made = {"name": name, "datatype": datatype, "shape": shape, **more}
    return made if data is None else {**made, "data": data}


def _add(rows: int = 1, **more: Any) -> dict[str, Any]:
    """A request to ``add`` that holds."""
    data = [1.0] * (4 * rows)
    pair = [tensor(name, "FP32", [rows, 4], data) for name in "ab"]
    return {"inputs": pair, **more}


def documents() -> Iterator[Asked]:
    """Paths that are read, and others."""
    server = ["", "/", "/health/live", "/health/ready", "/models", "/models/stats", "/nowhere"]
    server += ["/logging", "/trace/setting", "/systemsharedmemory/status"]
    server += ["/cudasharedmemory/status", "/health", "/repository/index"]
    for path in server:
        yield Asked(f"GET {path or 'the server'}", "GET", f"/v2{path}")
    for path in ("", "/health/ready", "/models/add", "/models/add/config", "/repository/index"):
        yield Asked(f"POST {path or 'the server'}", "POST", f"/v2{path}", b"")
    for method in ("PUT", "DELETE", "PATCH"):
        yield Asked(f"{method} ready", method, "/v2/health/ready")
        yield Asked(f"{method} infer", method, "/v2/models/add/infer")
    for path in ("/", "/v1/models/add", "/v2x", "/v3/models/add", "//v2", "/V2/health/live"):
        yield Asked(f"path {path}", "GET", path)
    for model in ("add", "types", "text", "labels", "nobody"):
        for version in ("", "/versions/1", "/versions/2", "/versions/x", "/versions/-1"):
            for what in ("", "/ready", "/config", "/stats"):
                if version in ("", "/versions/1", "/versions/2") or (model, what) == ("add", ""):
                    path = f"/models/{model}{version}{what}"
                    yield Asked(f"GET {path}", "GET", f"/v2{path}")
    yield Asked("ready with a query", "GET", "/v2/health/ready?a=b")
    yield Asked("infer without a body", "POST", "/v2/models/add/infer")
    yield Asked("infer by GET", "GET", "/v2/models/add/infer")
    yield Asked("index with a body", "POST", "/v2/repository/index", _json({"ready": True}))
    yield Asked("index of no JSON", "POST", "/v2/repository/index", b"{")
    yield Asked("load", "POST", "/v2/repository/models/add/load", b"{}")
    yield Asked("unload", "POST", "/v2/repository/models/add/unload", b"{}")


def values() -> Iterator[Asked]:
    """Elements of each datatype, as JSON, to ``types``."""

    def one(name: str, kind: str, shape: Any, data: Any) -> Asked:
        body = _json({"inputs": [tensor(f"in_{kind}", kind, shape, data)]})
        return Asked(f"{kind}: {name}", "POST", "/v2/models/types/infer", body)

    for kind in KINDS:
        good: Any = {"BOOL": True, "BYTES": "text"}.get(kind, 1)
        yield one("one", kind, [1], [good])
        yield one("nested", kind, [2], [[good], [good]])
        yield one("no elements", kind, [0], [])
        yield one("too few", kind, [3], [good])
        yield one("too many", kind, [1], [good, good])
        yield one("null", kind, [1], [None])
        yield one("an object", kind, [1], [{"a": 1}])
        yield one("a bare value", kind, [1], good)
        yield one("text", kind, [1], ["x"])
        yield one("a number", kind, [1], [2])
        yield one("a fraction", kind, [1], [1.5])
        yield one("negative", kind, [1], [-1])
        yield one("a truth", kind, [1], [False])
        yield one("too large", kind, [1], [1 << 70])


def structure() -> Iterator[Asked]:
    """What a request is made of, to ``add``."""
    path = "/v2/models/add/infer"
    a, b = _add()["inputs"]

    def one(name: str, value: Any) -> Asked:
        return Asked(name, "POST", path, value if isinstance(value, bytes) else _json(value))

    yield one("good", _add())
    yield one("eight rows", _add(8))
    yield one("nine rows", _add(9))
    yield one("no rows", _add(0))
    for name, text in {
        "empty": b"", "space": b" ", "null": b"null", "a list": b"[]", "a number": b"1",
        "text": b'"x"', "torn": b'{"inputs": [', "a comma too many": b'{"inputs": [],}',
        "single quotes": b"{'inputs': []}", "not UTF-8": b'{"id": "\xff"}', "two values": b"{} {}",
        "an empty object": b"{}", "no inputs": b'{"inputs": []}', "inputs null": b'{"inputs":null}',
        "inputs an object": b'{"inputs": {}}', "inputs of numbers": b'{"inputs": [1]}',
        "inputs of text": b'{"inputs": "a"}',
    }.items():  # fmt: skip
        yield one(f"body: {name}", text)
    yield one("one input of two", {"inputs": [a]})
    yield one("an input twice", {"inputs": [a, a]})
    yield one("an input twice and all", {"inputs": [a, b, a]})
    yield one("an unknown input", {"inputs": [a, {**b, "name": "c"}]})
    yield one("three inputs", {"inputs": [a, b, {**b, "name": "c"}]})
    yield one("other order", {"inputs": [b, a]})
    yield one("rows differ", {"inputs": [a, _add(2)["inputs"][1]]})
    for key in ("name", "datatype", "shape", "data"):
        yield one(f"no {key}", {"inputs": [{k: v for k, v in a.items() if k != key}, b]})
        for what, wrong in (("null", None), ("a number", 7), ("text", "x"), ("an object", {})):
            yield one(f"{key}: {what}", {"inputs": [{**a, key: wrong}, b]})
    for wrong in (
        [4],
        [1, 1, 4],
        [1, 5],
        [1, 3],
        [-1, 4],
        [1, -4],
        [1.0, 4],
        ["1", 4],
        [],
        [True, 4],
    ):
        yield one(f"shape {wrong}", {"inputs": [{**a, "shape": wrong}, b]})
    yield one("shape of two dimensions too large", {"inputs": [{**a, "shape": [1 << 40, 4]}, b]})
    for wrong in ("INT32", "fp32", "FP8", "", "FP64", "BYTES"):
        yield one(f"datatype {wrong}", {"inputs": [{**a, "datatype": wrong}, b]})
    yield one("input parameters", {"inputs": [{**a, "parameters": {"x": 1}}, b]})
    yield one("input parameters of text", {"inputs": [{**a, "parameters": "x"}, b]})
    for name, value in {
        "id": "seven", "id a number": 7, "id null": None, "id empty": "", "id an object": {},
    }.items():  # fmt: skip
        yield one(name, _add(id=value))
    yield one("unknown keys", _add(more=1, other={"x": []}))
    for name, value in {
        "one": [{"name": "sum"}], "both": [{"name": "same"}, {"name": "sum"}], "none": [],
        "unknown": [{"name": "x"}], "twice": [{"name": "sum"}, {"name": "sum"}], "null": None,
        "an object": {}, "text": "sum", "of text": ["sum"], "without a name": [{}],
        "with no parameters": [{"name": "sum", "parameters": {}}],
        "not binary": [{"name": "sum", "parameters": {"binary_data": False}}],
        "binary": [{"name": "sum", "parameters": {"binary_data": True}}],
        "binary a number": [{"name": "sum", "parameters": {"binary_data": 1}}],
        "one binary": [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "same"}],
        "classes of none": [{"name": "sum", "parameters": {"classification": 0}}],
        "classes without labels": [{"name": "sum", "parameters": {"classification": 2}}],
        "classes of text": [{"name": "sum", "parameters": {"classification": "x"}}],
    }.items():  # fmt: skip
        yield one(f"outputs: {name}", _add(outputs=value))
    for name, given in {
        "priority": {"priority": 1}, "priority of text": {"priority": "x"},
        "priority negative": {"priority": -1}, "timeout": {"timeout": 20_000_000},
        "timeout of text": {"timeout": "x"}, "custom": {"mine": 1, "other": "x", "b": True},
        "a fraction": {"mine": 1.5}, "a list": {"mine": [1]}, "an object": {"mine": {}},
        "null": {"mine": None}, "binary output": {"binary_data_output": True},
        "binary output of text": {"binary_data_output": "x"}, "sequence id": {"sequence_id": 7},
        "sequence text": {"sequence_id": "s"}, "sequence negative": {"sequence_id": -1},
        "sequence start alone": {"sequence_start": True}, "triton's": {"triton_x": 1},
        "sequence": {"sequence_id": 9, "sequence_start": True, "sequence_end": True},
        "a large number": {"mine": 1 << 62}, "none": {},
    }.items():  # fmt: skip
        yield one(f"parameters: {name}", _add(parameters=given))
    for name, value in (("null", None), ("a list", []), ("text", "x"), ("a number", 1)):
        yield one(f"parameters are {name}", _add(parameters=value))
    yield one("a key twice", b'{"inputs": [], ' + _json(_add())[1:])
    yield one("nan", _json(_add()).replace(b"1.0", b"NaN"))
    for model, version in (("nobody", ""), ("add", "/versions/1"), ("add", "/versions/2")):
        where = f"/v2/models/{model}{version}/infer"
        yield Asked(f"infer {model}{version}", "POST", where, _json(_add()))
    scores = tensor("x", "FP32", [2, 3], [1, 3, 2, 9, 8, 7])
    for count in (1, 2, 3, 4, -1, 1000):
        wanted = [{"name": "scores", "parameters": {"classification": count}}]
        body = _json({"inputs": [scores], "outputs": wanted})
        yield Asked(f"classes: {count}", "POST", "/v2/models/labels/infer", body)


def binary() -> Iterator[Asked]:
    """Bodies with tensors' bytes behind the JSON, and without JSON."""
    path = "/v2/models/add/infer"
    row = np.ones(4, "f4").tobytes()

    def one(
        name: str, size: Any, data: bytes, length: Any = None, to: str = path, **more: Any
    ) -> Asked:
        sized = {} if size is None else {"parameters": {"binary_data_size": size}}
        inputs = [tensor(key, "FP32", [1, 4], None, **sized) for key in "ab"]
        head = _json({"inputs": inputs, **more})
        told = str(len(head)) if length is None else str(length)
        return Asked(f"binary: {name}", "POST", to, head + data, {LENGTH: told} if told else {})

    yield one("good", 16, row * 2)
    yield one("good, binary out", 16, row * 2, parameters={"binary_data_output": True})
    yield one("too short", 16, row)
    yield one("too long", 16, row * 3)
    yield one("sizes too small", 12, row[:12] * 2)
    yield one("sizes too large", 20, row * 2 + row[:8])
    yield one("sizes of none", 0, b"")
    yield one("sizes negative", -16, row * 2)
    yield one("sizes of text", "16", row * 2)
    yield one("sizes and no bytes", 16, b"")
    yield one("no sizes", None, row * 2)
    for length in ("", 0, 5, 10**6, -1, "x", "1.5", "+9"):
        yield one(f"length {length or 'omitted' if length != 0 else 0}", 16, row * 2, length)
    mixed = [
        tensor("a", "FP32", [1, 4], [1, 2, 3, 4]),
        tensor("b", "FP32", [1, 4], None, parameters={"binary_data_size": 16}),
    ]
    head = _json({"inputs": mixed})
    yield Asked("binary: one of two", "POST", path, head + row, {LENGTH: str(len(head))})
    both = [{**one_, "data": [1] * 4, "parameters": {"binary_data_size": 16}} for one_ in mixed]
    head = _json({"inputs": both})
    yield Asked("binary: data too", "POST", path, head + row * 2, {LENGTH: str(len(head))})
    for kind, code in KINDS.items():
        data = struct.pack("<I", 1) + b"x" if kind == "BYTES" else np.ones(3, code).tobytes()
        shape = [1 if kind == "BYTES" else 3]
        for name, sent in (
            ("whole", data),
            ("a byte less", data[:-1]),
            ("a byte more", data + b"x"),
        ):
            part = tensor(
                f"in_{kind}", kind, shape, None, parameters={"binary_data_size": len(sent)}
            )
            head = _json({"inputs": [part]})
            told = {LENGTH: str(len(head))}
            yield Asked(
                f"binary {kind}: {name}", "POST", "/v2/models/types/infer", head + sent, told
            )
    for name, data in {
        "good": struct.pack("<I", 2) + b"ab", "two": (struct.pack("<I", 1) + b"a") * 2,
        "torn": struct.pack("<I", 9) + b"ab", "none": b"", "a length alone": struct.pack("<I", 0),
    }.items():  # fmt: skip
        part = tensor("text", "BYTES", [1], None, parameters={"binary_data_size": len(data)})
        head = _json({"inputs": [part]})
        told = {LENGTH: str(len(head))}
        yield Asked(f"binary text: {name}", "POST", "/v2/models/text/infer", head + data, told)
    for name, model, data in (
        ("two inputs", "add", row), ("one input", "labels", row[:12]),
        ("two rows", "labels", row[:12] * 2), ("a part of a row", "labels", row[:8]),
        ("text", "text", b"abc"), ("nothing", "labels", b""),
    ):  # fmt: skip
        yield Asked(f"raw: {name}", "POST", f"/v2/models/{model}/infer", data, {LENGTH: "0"})


def memory() -> Iterator[Asked]:
    """Clients' shared memory: one region of 64 bytes, in this order."""
    base = "/v2/systemsharedmemory"

    def register(name: str, region: str, value: Any) -> Asked:
        body = value if isinstance(value, bytes) else _json(value)
        return Asked(f"memory: {name}", "POST", f"{base}/region/{region}/register", body)

    good = {"key": f"/{REGION}", "offset": 0, "byte_size": 64}
    yield Asked("memory: status of none", "GET", f"{base}/region/r/status")
    yield Asked("memory: unregister of none", "POST", f"{base}/region/r/unregister")
    yield register("no key", "r", {"offset": 0, "byte_size": 64})
    yield register("no size", "r", {"key": f"/{REGION}", "offset": 0})
    yield register("key a number", "r", {**good, "key": 1})
    yield register("size of text", "r", {**good, "byte_size": "x"})
    yield register("no such file", "r", {**good, "key": "/no_such_file_here"})
    yield register("too large", "r", {**good, "byte_size": 1 << 20})
    yield register("beyond the end", "r", {**good, "offset": 60})
    yield register("empty", "r", b"")
    yield register("no JSON", "r", b"{")
    yield register("good", "r", good)
    yield register("twice", "r", good)
    yield Asked("memory: status", "GET", f"{base}/region/r/status")
    yield Asked("memory: status of all", "GET", f"{base}/status")
    path = "/v2/models/labels/infer"

    def placed(**at: Any) -> dict[str, Any]:
        told = {"shared_memory_region": "r", "shared_memory_byte_size": 12, **at}
        return {"parameters": {k: v for k, v in told.items() if v is not None}}

    for name, at in {
        "input": {}, "an offset": {"shared_memory_offset": 12},
        "offset beyond": {"shared_memory_offset": 64},
        "offset negative": {"shared_memory_offset": -1},
        "end beyond": {"shared_memory_offset": 56},
        "size too small": {"shared_memory_byte_size": 8},
        "size too large": {"shared_memory_byte_size": 16},
        "size omitted": {"shared_memory_byte_size": None},
        "unknown region": {"shared_memory_region": "s"},
        "region a number": {"shared_memory_region": 1},
    }.items():  # fmt: skip
        body = _json({"inputs": [tensor("x", "FP32", [1, 3], None, **placed(**at))]})
        yield Asked(f"memory input: {name}", "POST", path, body)
        wanted = [{"name": "scores", **placed(**at)}]
        body = _json({"inputs": [tensor("x", "FP32", [1, 3], [1, 2, 3])], "outputs": wanted})
        yield Asked(f"memory output: {name}", "POST", path, body)
    yield Asked("memory: unregister", "POST", f"{base}/region/r/unregister")
    yield Asked("memory: status after", "GET", f"{base}/region/r/status")
    yield register("again", "r", good)
    yield Asked("memory: unregister all", "POST", f"{base}/unregister")
    yield Asked("memory: unregister CUDA", "POST", "/v2/cudasharedmemory/unregister")
    yield Asked("memory: status of CUDA", "GET", "/v2/cudasharedmemory/region/c/status")


def generate() -> Iterator[Asked]:
    """The generate extension."""
    for what in ("generate", "generate_stream"):

        def one(name: str, model: str, value: Any, what: str = what) -> Asked:
            body = value if isinstance(value, bytes) else _json(value)
            return Asked(f"{what}: {name}", "POST", f"/v2/models/{model}/{what}", body)

        yield one("good", "text", {"text": "a"})
        yield one("a list", "text", {"text": ["a"]})
        yield one("two", "text", {"text": ["a", "b"]})
        yield one("with parameters", "text", {"text": "a", "temperature": 1.5})
        yield one("parameters apart", "text", {"text": "a", "parameters": {"x": 1}})
        yield one("no input", "text", {})
        yield one("another key", "text", {"x": "a"})
        yield one("a number", "text", {"text": 1})
        yield one("no JSON", "text", b"{")
        yield one("a list alone", "text", b"[]")
        yield one("a batched model", "labels", {"x": [1, 2, 3]})
        yield one("too few", "labels", {"x": [1, 2]})
        yield one("unknown model", "nobody", {"x": 1})


def all_requests() -> list[Asked]:
    """In the order in which they are sent."""
    parts = (documents, values, structure, binary, memory, generate)
    return [asked for part in parts for asked in part()]
