"""What is remembered of a request by its header: each later one is answered as the first was."""

from __future__ import annotations

import json
import socket
import struct
import types

import numpy as np
import pytest
from serve import servers

from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.types import InferRequest, InputTensor
from shmgpu.serve.scheduling import templates

MODEL = """
import numpy as np
from shmgpu.serve import Tensor, model


@model(inputs=[Tensor("small", "INT8", (-1,)), Tensor("x", "FP32", (-1,))],
       outputs=[Tensor("y", "FP32", (-1,))])
def mixed(helper, small, x):
    return x * np.float32(small.sum())


@model(inputs=[Tensor("x", "BOOL", (-1,))], outputs=[Tensor("y", "BOOL", (-1,))])
def negated(helper, x):
    return ~x


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))])
def nothing(helper, x):
    return x[:0]
"""
TIMES = 6  # by the third a request is known
X = ("x", "FP32", [2], struct.pack("<2f", 1, 2))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("known") / "models.py"
    path.write_text(MODEL)
    with servers.serving(path, servers.MODELS / "simple.py", workers=1, helpers=1) as running:
        yield running


def ask(server, model, inputs, headers=(), **more):
    """The status, the headers and the body of an answer to inputs that are sent as bytes."""
    tensors = [
        {"name": n, "datatype": t, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for n, t, shape, data in inputs
    ]
    header = json.dumps({"inputs": tensors, **more}).encode()
    body = header + b"".join(data for *_, data in inputs)
    size = {"Inference_Header_Content_Length": str(len(header)), **dict(headers)}
    return server.ask("POST", f"/v2/models/{model}/infer", body, **size)


BINARY = {"parameters": {"binary_data": True}}
CLASSES = {"parameters": {"binary_data": True, "classification": 1}}


@pytest.mark.parametrize(
    ("model", "inputs", "more"),
    [
        ("scale", [X], {}),
        ("scale", [X], {"parameters": {"binary_data_output": True}}),
        ("scale", [X], {"outputs": [{"name": "y", **BINARY}]}),
        ("scale", [X], {"outputs": [{"name": "y", **CLASSES}]}),
        ("nothing", [X], {"outputs": [{"name": "y", **BINARY}]}),
        ("mixed", [("small", "INT8", [3], b"\1\2\3"), X], {"outputs": [{"name": "y", **BINARY}]}),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"Accept_Encoding": "gzip"}])
def test_the_last_of_many_is_answered_as_the_first(server, model, inputs, more, headers):
    answers = [ask(server, model, inputs, headers, **more) for _ in range(TIMES)]
    assert answers[0][0] == 200, answers[0]
    assert answers[0][1].get("content-encoding") == headers.get("Accept_Encoding")
    assert answers == answers[:1] * TIMES


def test_elements_that_must_be_looked_at_are_looked_at_each_time(server):
    for _ in range(TIMES):
        assert ask(server, "negated", [("x", "BOOL", [2], b"\1\0")])[0] == 200
    status, _, body = ask(server, "negated", [("x", "BOOL", [2], b"\2\0")])
    assert status == 400, body


def test_a_request_of_data_alone_is_remembered_by_its_bytes():
    body = memoryview(bytes(24))
    assert templates.key_of(body, 0) == 24
    assert templates.key_of(body, 8) == bytes(8)
    assert templates.key_of(body, None) == bytes(24)
    assert templates.key_of(bytes(templates.MOST_BYTES + 1), None) is None
    assert templates.key_of(body, -1) is None


def test_who_asks_for_the_connections_end_finds_it_after_each_answer(server):
    header = json.dumps(
        {
            "inputs": [
                {"name": n, "datatype": t, "shape": s, "parameters": {"binary_data_size": len(d)}}
                for n, t, s, d in [X]
            ],
            "outputs": [{"name": "y", **BINARY}],
        }
    ).encode()
    data = X[-1]
    request = (
        b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
        b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%b%b"
    ) % (len(header) + len(data), len(header), header, data)
    for _ in range(TIMES):
        with (
            socket.create_connection((server.host, server.port), timeout=10) as connection,
            connection.makefile("rb") as reader,
        ):
            connection.sendall(request)
            assert reader.read().endswith(struct.pack("<2f", 2, 4))


def test_rows_of_requests_that_are_known_are_counted(server):
    inputs = [(name, "FP32", [3, 4], bytes(48)) for name in "ab"]
    before = server.statistics("add_sub")["inference_count"]
    for _ in range(TIMES):
        assert ask(server, "add_sub", inputs, parameters={"binary_data_output": True})[0] == 200
    assert server.statistics("add_sub")["inference_count"] - before == 3 * TIMES


def test_so_many_headers_are_remembered_and_no_more():
    served = types.SimpleNamespace(
        prepare=None,
        steps=None,
        templates={},
        inputs=[DATATYPES["FP32"]],
        outputs=[DATATYPES["FP32"]],
        input_index={"x": 0},
        output_index={"y": 0},
        max_batch_size=0,
    )
    for number in range(3 * templates.MOST_HEADERS):
        header = b"%d" % number
        body = memoryview(header + X[-1])
        one = InputTensor("x", "FP32", (2,), body[len(header) :])
        request = InferRequest(inputs=[one], binary_output=True)
        templates.remember(served, header, request, (1, np.zeros(2, "f4")), body, 0)
        assert header in served.templates
        assert len(served.templates) <= templates.MOST_HEADERS
