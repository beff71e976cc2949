"""Parameters of answers reach clients by every way that an answer can take."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from serve import client_shm, servers
from serve.models.answering import TOLD, wrong_parameters
from serve.servers import tensor

from shmgpu.errors import ConfigError
from shmgpu.serve.models.response_parameters import checked, pack, unpack

TIMES = 8  # by then a request is known, and takes the shortest way
shared_memory = client_shm.load()
X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "answering.py",
        servers.MODELS / "chain" / "models.py",
        helpers=1,
        workers=1,
        grpc_port=0,
        response_cache="1MiB",
        allow_client_shm=True,
    ) as running:
        yield running


@pytest.fixture
def rpc(server):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with client.InferenceServerClient(server.grpc_address) as made:
        yield made


def x_of(rpc, values, shape):
    from tritonclient import grpc

    made = grpc.InferInput("x", list(shape), "FP32")
    return made.set_data_from_numpy(np.array(values, np.float32).reshape(shape))


def post(server, path, asked):
    status, _, body = server.ask("POST", f"/v2/models/{path}", json.dumps(asked).encode())
    return status, json.loads(body)


def told_by(found):
    """The parameters of an answer over gRPC."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in found.get_response().parameters.items()
    }


def test_json_binary_and_grpc_have_them(server, triton, rpc):
    status, answer = post(server, "plain/infer", {"id": "mine", "inputs": [X]})
    assert (status, answer["parameters"], answer["id"]) == (200, TOLD, "mine")
    inputs = [tensor("x", np.ones(2, np.float32), "FP32")]
    for _ in range(TIMES):
        found = triton.infer("plain", inputs)
        assert found.get_response()["parameters"] == TOLD
        assert found.as_numpy("y").tolist() == [1, 1]
    assert told_by(rpc.infer("plain", [x_of(rpc, [1], (1,))])) == TOLD


def test_generate_has_them_beside_the_outputs(server):
    status, answer = post(server, "measured/generate", {"text": "four"})
    assert (status, answer["said"], answer["length"]) == (200, "four", 4)
    asked = json.dumps({"count": 4}).encode()
    _, _, body = server.ask("POST", "/v2/models/parts/generate_stream", asked)
    found = [json.loads(one[6:]) for one in body.decode().split("\n\n") if one]
    assert [one.get("odd") for one in found] == [None, 1, None, 3]
    assert [one["part"] for one in found] == [0, 1, 2, 3]


def test_a_stream_of_grpc_has_those_of_each_part(rpc):
    from tritonclient import grpc

    count = grpc.InferInput("count", [1], "INT64").set_data_from_numpy(np.array([4]))
    found, all_came = [], threading.Event()

    def told(result, error):
        found.append(error or told_by(result))
        if error or result.get_response().parameters["triton_final_response"].bool_param:
            all_came.set()

    rpc.start_stream(told)
    rpc.async_stream_infer("parts", [count], enable_empty_final_response=True)
    assert all_came.wait(servers.DEADLINE_S)
    rpc.async_stream_infer("plain", [x_of(rpc, [1], (1,))])
    servers.until(lambda: len(found) == 6, "the answer that is no stream's")
    rpc.stop_stream()
    assert [one.pop("triton_final_response") for one in found] == [False] * 4 + [True] * 2
    assert found == [{}, {"odd": 1}, {}, {"odd": 3}, {}, TOLD]


def test_what_is_told_sometimes_is_told_by_the_shortest_way_and_the_cache_too(server, triton):
    for _ in range(TIMES):
        for value in (1, -2, 3, -4):
            found = triton.infer("sometimes", [tensor("x", np.full(2, value, "f4"), "FP32")])
            expected = {"least": value} if value < 0 else None
            assert found.get_response().get("parameters") == expected
            assert found.as_numpy("y").tolist() == [value] * 2
    hits = server.statistics("sometimes")["inference_stats"]["cache_hit"]["count"]
    assert hits == (TIMES - 1) * 4


def test_each_request_of_a_batch_has_those_of_its_rows(server):
    answers = {}

    def ask(first, count):
        data = [float(first + row) for row in range(count)]
        row = {"name": "x", "datatype": "FP32", "shape": [count, 1], "data": data}
        answers[first] = data, post(server, "batched/infer", {"inputs": [row]})[1]

    shapes = [(10, 1), (20, 2), (30, 1), (40, 3)]
    threads = [threading.Thread(target=ask, args=one) for one in shapes]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for data, answer in answers.values():
        own = answer["parameters"]["own"]
        assert (json.loads(own) if isinstance(own, str) else [own]) == data
        assert answer["outputs"][0]["data"] == data
    assert max(answer["parameters"]["rows"] for _, answer in answers.values()) > 1


def test_tensors_of_torch_may_be_given(server, triton):
    pytest.importorskip("torch", reason="torch is not installed")
    found = triton.infer("tensors", [tensor("x", np.array([[2], [5]], "f4"), "FP32")])
    assert found.get_response()["parameters"] == {"own": "[2.0, 5.0]", "most": 5.0}
    assert found.as_numpy("z").tolist() == [[3], [6]]


def test_a_sequence_tells_of_each_request(server):
    for count, more in ((1, {"sequence_start": True}), (2, {"sequence_end": True})):
        asked = {"inputs": [X], "parameters": {"sequence_id": 5, **more}}
        assert post(server, "in_sequence/infer", asked)[1]["parameters"] == {"count": count}


def test_outputs_in_a_clients_region_have_them_beside(server, triton):
    from tritonclient import http

    region = shared_memory.create_shared_memory_region("told", "/told", 64)
    try:
        triton.register_system_shared_memory("told", "/told", 64)
        wanted = http.InferRequestedOutput("y")
        wanted.set_shared_memory("told", 8)
        inputs = [tensor("x", np.full(2, 4, np.float32), "FP32")]
        for _ in range(3):
            found = triton.infer("plain", inputs, outputs=[wanted])
            assert found.get_response()["parameters"] == TOLD
            seen = shared_memory.get_contents_as_numpy(region, np.float32, [2])
            assert seen.tolist() == [4, 4]
        triton.unregister_system_shared_memory("told")
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_ensembles_find_those_of_models_and_give_their_own(server):
    asked = {"inputs": [{**X, "shape": [2], "data": [-3, 1]}]}
    status, answer = post(server, "telling/infer", asked)
    assert (status, answer["parameters"]) == (200, {"seen": -3.0, "by": "ensemble"})


@pytest.mark.parametrize("kind", range(len(wrong_parameters())))
def test_what_cannot_be_carried_is_the_models_error(server, kind):
    data = {"name": "kind", "datatype": "INT32", "shape": [1], "data": [kind]}
    status, answer = post(server, "wrong_told/infer", {"inputs": [data]})
    assert status == 500
    assert answer["error"].startswith("model 'wrong_told' gave ")
    assert len(answer["error"]) < 300


def test_what_a_failed_request_had_told_is_not_the_next_ones(server):
    for kind, status in ((-1, 500), (-2, 200)):
        data = {"name": "kind", "datatype": "INT32", "shape": [1], "data": [kind]}
        found, answer = post(server, "wrong_told/infer", {"inputs": [data]})
        assert (found, answer.get("parameters")) == (status, None)


def test_a_list_has_a_value_for_each_row(server):
    row = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}
    status, answer = post(server, "wrong_rows/infer", {"inputs": [row]})
    assert (status, "got 2 rows and gave 3 values" in answer["error"]) == (500, True)


def test_what_is_packed_is_read_back():
    y = np.arange(3)
    assert unpack(y) == (y, {})
    assert unpack(pack(y, {"a": 1, "b": "\u00e9"}, "it", None)) == (y, {"a": 1, "b": "\u00e9"})
    packed = pack(y, {"a": [1, 22, 333], "b": np.float32(0.5)}, "it", 3)
    mine = {"outputs": y[1:2], "parameters": packed["parameters"][1:2]}
    assert unpack(mine)[1] == {"a": 22, "b": 0.5}
    mine = {"outputs": y[1:], "parameters": packed["parameters"][1:]}
    assert unpack(mine)[1] == {"a": "[22, 333]", "b": 0.5}
    assert pack(y, {"b": 1}, "it", 3)["parameters"].shape[0] == 3
    assert (checked({}, "it", 2), checked({"a": (1, 2)}, "it", 2)) == ({}, {"a": "[1, 2]"})
    with pytest.raises(ConfigError, match="it gave"):
        checked({"a": b"bytes"}, "it", None)
