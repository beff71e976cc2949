"""Parameters of a request reach the model's function, by every way that a request can take."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from serve import servers
from serve.servers import tensor

from shmgpu.serve.models.request_context import NO_REQUEST, renumbered, split, whose
from shmgpu.serve.protocol import http_codec
from shmgpu.serve.protocol.types import DEFAULT_LIMITS, ProtocolError
from shmgpu.serve.scheduling.cache import digest

X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}
TIMES = 8  # by then a request is known, and takes the shortest way


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "parameters.py",
        helpers=1,
        workers=1,
        grpc_port=0,
        response_cache="1MiB",
    ) as running:
        yield running


def post(server, path, asked):
    status, _, body = server.ask("POST", f"/v2/models/{path}", json.dumps(asked).encode())
    return status, json.loads(body)


def seen(server, asked, model="plain"):
    status, answer = post(server, f"{model}/infer", {"inputs": [X], **asked})
    assert status == 200, answer
    return json.loads(answer["outputs"][0]["data"][0])


def test_a_function_sees_what_is_not_the_protocols_own(server):
    given = {"temperature": 0.5, "top_k": 40, "stop": "\u00e9nd", "greedy": False}
    own = {"priority": 1, "timeout": 9_000_000, "triton_enable_empty_final_response": True}
    assert seen(server, {"parameters": {**given, **own, "binary_data_output": False}}) == given
    assert seen(server, {}) == {}
    assert seen(server, {"parameters": own}) == {}


def test_neither_load_nor_the_warm_up_sees_any(server):
    assert seen(server, {"parameters": {"by": 2}}, "at_load") == [{}]


def test_the_stock_clients_parameters_arrive(server, triton):
    inputs = [tensor("x", np.ones(1, np.float32), "FP32")]
    found = triton.infer("plain", inputs, parameters={"top_p": 0.9, "seed": 7})
    assert json.loads(found.as_numpy("seen")[0]) == {"top_p": 0.9, "seed": 7}


def test_they_arrive_over_grpc(server):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    x = client.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.ones(1, np.float32))
    with client.InferenceServerClient(server.grpc_address) as made:
        found = made.infer("plain", [x], parameters={"seed": 7, "greedy": True})
    assert json.loads(found.as_numpy("seen")[0]) == {"seed": 7, "greedy": True}


def test_known_requests_keep_theirs_and_the_cache_knows_them_apart(server, triton):
    """Binary requests of the same JSON take the fast path, and equal inputs the cache."""
    inputs = [tensor("x", np.full(2, 3, np.float32), "FP32")]
    for model in ("scaled", "batched"):
        if model == "batched":
            inputs = [tensor("x", np.full((1, 1), 3, np.float32), "FP32")]
        for _ in range(TIMES):
            for by in (1, 2, 5):
                found = triton.infer(model, inputs, parameters={"by": by}).as_numpy("y")
                assert found.reshape(-1)[0] == 3 * by
            assert triton.infer(model, inputs).as_numpy("y").reshape(-1)[0] == 3


def test_only_requests_with_equal_parameters_run_as_one_batch(server):
    """Of six that come at once, three with each of two values: no batch has both."""
    answers = []

    def ask(by):
        row = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
        asked = {"inputs": [row], "parameters": {"by": by}}
        answers.append((by, post(server, "batched/infer", asked)[1]["outputs"][0]["data"]))

    threads = [threading.Thread(target=ask, args=(by,)) for by in (2, 3) * 3]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [value for by, (value, _) in answers if value != by] == []
    assert max(rows for _, (_, rows) in answers) > 1


def test_a_sequence_and_a_stream_see_those_of_each_request(server):
    first = {"sequence_id": 5, "sequence_start": True}
    assert seen(server, {"parameters": {**first, "a": 1}}, "in_sequence") == {"a": 1}
    last = {"sequence_id": 5, "sequence_end": True}
    assert seen(server, {"parameters": {**last, "b": 2}}, "in_sequence") == {"b": 2}
    asked = {"count": 2, "seed": 3, "parameters": {"top_k": 4}}
    _, _, body = server.ask("POST", "/v2/models/parts/generate_stream", json.dumps(asked).encode())
    found = [json.loads(one[6:])["seen"] for one in body.decode().split("\n\n") if one]
    assert [json.loads(one) for one in found] == [{"seed": 3, "top_k": 4}] * 2


def test_streams_that_run_in_turn_do_not_see_each_others(server):
    """Between two parts of a stream the helper makes parts of another."""
    results = {}

    def ask(seed):
        asked = json.dumps({"count": 50, "seed": seed}).encode()
        _, _, body = server.ask("POST", "/v2/models/parts/generate_stream", asked)
        results[seed] = {json.loads(one[6:])["seen"] for one in body.decode().split("\n\n") if one}

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == {seed: {json.dumps({"seed": seed})} for seed in range(4)}


def test_what_is_long_belongs_into_an_input(server):
    asked = {"inputs": [X], "parameters": {"prompt": "x" * (1 << 16)}}
    status, answer = post(server, "plain/infer", asked)
    assert status == 400
    assert "send what is long as an input" in answer["error"]


@pytest.mark.parametrize(
    ("rows", "text", "shape"),
    [
        ([1, 2, 3, 4], "a", [1, 4, 1, 1]),
        ([1, 2, 3, 4], ["a"], [1, 4, 1, 1]),
        (list(range(8)), ["a", "b"], [2, 4, 2, 1]),
        ([[1, 2, 3, 4]], [["a"]], [1, 4, 1, 1]),
    ],
)
def test_a_flat_list_takes_the_models_shape_in_generate(server, rows, text, shape):
    status, answer = post(server, "shapes/generate", {"rows": rows, "text": text})
    assert status == 200, answer
    assert answer["shapes"][:4] == shape


def test_a_flat_list_that_fits_no_shape_is_refused_as_it_came(server):
    status, answer = post(server, "shapes/generate", {"rows": [1, 2, 3], "text": "a"})
    assert status == 400
    assert "unexpected shape [3]" in answer["error"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [], "inputs": []}',
        b'{"id": "a:b", "parameters": {"a": 1, "\\u0061": 2}, "inputs": []}',
        b'{"inputs": [{"name": "x", "data": [{"a": 1, "a": 1}]}]}',
        b'{"a\\\\": 1, "b\\"c:": {"d": 1, "d": [2]}}',
    ],
)
def test_a_key_twice_is_refused(server, body):
    with pytest.raises(ProtocolError, match="same key twice") as refused:
        http_codec.parse_infer(body, None)
    assert refused.value.status == 400
    for kind in ("infer", "generate"):
        assert server.ask("POST", f"/v2/models/plain/{kind}", body)[0] == 400


@pytest.mark.parametrize(
    "name", ["a:b", 'quote"d: "', "back\\", "back\\\\:", 'both\\":', ":::", "\u00e9:"]
)
def test_colons_in_text_are_no_keys(name):
    given = {"id": name, "parameters": {name: name}, "inputs": [{**X, "data": [1.5]}]}
    assert http_codec.parse_infer(json.dumps(given).encode(), None).id == name
    given["inputs"][0].update(datatype="BYTES", data=[name])
    assert http_codec.parse_infer(json.dumps(given).encode(), None).parameters == {name: name}


def test_what_a_call_carries_is_read_back():
    assert (whose(7, ""), split(7)) == (7, (7, NO_REQUEST))
    number, context = split(whose(7, '{"a":1}'))
    assert (number, dict(context.parameters)) == (7, {"a": 1})
    with pytest.raises(TypeError):
        context.parameters["a"] = 2
    assert renumbered(7, 9) == 9
    assert renumbered((7, "{}"), 9) == (9, "{}")
    x = np.ones(2)
    assert len({digest((7, x)), digest(((7, '{"a":1}'), x)), digest(((7, '{"a":2}'), x))}) == 3
    assert digest((7, x)) == digest((8, x))
    assert DEFAULT_LIMITS.parameter_bytes == 1 << 16
