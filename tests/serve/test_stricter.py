"""What is refused here though Triton takes it: each row of the page's table, tried."""

from __future__ import annotations

import json
import os
import pathlib
import re
import socket

import pages
import pytest
from serve import servers

from shmgpu import serve

PAGE = pathlib.Path(serve.__file__).with_name("README.md")
X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
INFER = "/v2/models/scale/infer"


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "simple.py",
        servers.MODELS / "declared.py",
        workers=1,
        helpers=1,
        grpc_port=0,
        allow_repository=True,
        allow_client_shm=True,
    ) as running:
        yield running


def posted(server, body, path=INFER):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.ask("POST", path, data)[0]


def small(data):
    """A request with an input of a small type, which any model would refuse by its type alone."""
    return {"inputs": [{**X, "datatype": "UINT8", "data": data}]}


def head(server, lines):
    with socket.create_connection((server.host, server.port), servers.DEADLINE_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n" + lines + b"\r\n\r\n")
        return int(connection.recv(4096).split()[1])


def region(server):
    name = f"stricter{os.getpid()}"
    file = pathlib.Path("/dev/shm") / name
    found = []
    for make in (file.touch, lambda: os.mkfifo(file)):
        make()
        try:
            asked = {"key": f"/{name}", "offset": 0, "byte_size": 4096}
            found.append(posted(server, asked, "/v2/systemsharedmemory/region/r/register"))
        finally:
            file.unlink()
    return found


# By how the row begins: the statuses of some requests of that kind.
OVER_HTTP = {
    "a key twice": lambda server: [posted(server, b'{"inputs": [], "inputs": []}')],
    "an input or an output": lambda server: [
        posted(server, {"inputs": [X, X]}),
        posted(server, {"inputs": [X], "outputs": [{"name": "y"}] * 2}),
    ],
    "a number that": lambda server: [posted(server, small([300])), posted(server, small([-1]))],
    "values nested": lambda server: [
        posted(server, {"inputs": [{**X, "shape": [2], "data": [[1], [2]]}]}),
    ],
    "`parameters` that": lambda server: [
        posted(server, {"inputs": [X], "parameters": "x"}),
        posted(server, {"inputs": [{**X, "parameters": "x"}]}),
    ],
    "`sequence_start`": lambda server: [
        posted(server, {"inputs": [X], "parameters": {f"sequence_{which}": True}})
        for which in ("start", "end")
    ],
    "an id or a name": lambda server: [
        posted(server, {"id": "i" * 1025, "inputs": [X]}),
        posted(server, {"inputs": [{**X, "name": "x" * 1025}]}),
    ],
    "heads with": lambda server: [
        head(server, b"Content-Length: 0"),
        head(server, b"Host: a\r\nHost: b"),
        head(server, b"Host: a\r\nContent-Length: +5"),
    ],
    "more tensors": lambda server: [
        posted(server, {"inputs": [X], "outputs": [{"name": str(n)} for n in range(257)]}),
        posted(server, b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}"),
    ],
    "changes of settings": lambda server: [posted(server, {"log_verbose_level": 1}, "/v2/logging")],
    "a load with": lambda server: [
        posted(server, {"parameters": {"config": "{}"}}, "/v2/repository/models/scale/load")
    ],
    "a region that": region,
}
EXPECTED = {"changes of settings": 403}

GRPC = {
    "an input or an output": ("ModelInfer", {"inputs": 2}),
    "a number that": ("ModelInfer", {"datatype": "UINT8", "contents": [300]}),
    "`sequence_start`": ("ModelInfer", {"parameters": {"sequence_start": True}}),
    "an id or a name": ("ModelInfer", {"id": "i" * 1025}),
    "over gRPC, more": ("ModelMetadata", {"name": "m" * (1 << 18)}),
}


def rows():
    section = pages.text_of(PAGE).partition("### Stricter than Triton")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!refused|---)(.+?) \| .+ \|$", section, re.MULTILINE)


def test_each_row_of_the_page_is_tried():
    begun = {*OVER_HTTP, *GRPC}
    found = [[key for key in begun if row.startswith(key)] for row in rows()]
    assert [len(keys) for keys in found] == [1] * len(begun)


@pytest.mark.parametrize("row", OVER_HTTP)
def test_it_is_refused_over_http(server, row):
    found = OVER_HTTP[row](server)
    assert found == [EXPECTED.get(row, 400)] * len(found)
    assert posted(server, {"inputs": [X]}) == 200


def test_why_a_number_is_refused_is_told(server):
    """Not because of the model, which takes another type."""
    _, _, body = server.ask("POST", INFER, json.dumps(small([300])).encode())
    assert "outside UINT8" in json.loads(body)["error"]


@pytest.mark.parametrize("row", GRPC)
def test_it_is_refused_over_grpc(server, row):
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    from shmgpu.serve.protocol.grpc_codec import MESSAGES

    method, wrong = GRPC[row]
    if method == "ModelMetadata":
        message = MESSAGES["ModelMetadataRequest"](**wrong)
    else:
        message = MESSAGES["ModelInferRequest"](model_name="scale", id=wrong.get("id", ""))
        for name, value in wrong.get("parameters", {}).items():
            message.parameters[name].bool_param = value
        for _ in range(wrong.get("inputs", 1)):
            x = message.inputs.add(name="x", datatype=wrong.get("datatype", "FP32"), shape=[1])
            if "contents" in wrong:
                x.contents.uint_contents.extend(wrong["contents"])
            else:
                x.contents.fp32_contents.append(1)
    with grpc.insecure_channel(server.grpc_address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(
                message.SerializeToString(), timeout=servers.DEADLINE_S
            )
    code = "RESOURCE_EXHAUSTED" if method == "ModelMetadata" else "INVALID_ARGUMENT"
    assert refused.value.code().name == code
