"""Inputs that workers prepare: a tokeniser, and helpers that get what it gives."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import numpy as np
import pytest
from serve import client_shm, servers

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
rpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
shared_memory = client_shm.load()


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "text", grpc_port=0, allow_client_shm=True, response_cache="1MiB"
    ) as running:
        yield running


def text(*sentences, of=client):
    made = of.InferInput("text", [len(sentences)], "BYTES")
    made.set_data_from_numpy(np.array([one.encode() for one in sentences], object))
    return [made]


def test_workers_prepare_and_helpers_run(server, triton):
    answer = triton.infer("words", text("one two", "three"))
    assert answer.as_numpy("lengths").tolist() == [[3, 3, 0, 0], [5, 0, 0, 0]]
    ((prepared_by, run_by), _) = answer.as_numpy("by").tolist()
    helpers, workers = server.children()[:2], server.children()[2:]
    assert prepared_by in workers and run_by in helpers


def test_clients_are_shown_what_requests_take(triton):
    shown = triton.get_model_metadata("words")
    assert shown["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_it_is_the_same_over_grpc(server):
    with contextlib.closing(rpc.InferenceServerClient(server.grpc_address)) as grpc:
        answer = grpc.infer("words", text("vier fünf", of=rpc))
    assert answer.as_numpy("lengths").tolist() == [[4, 4, 0, 0]]


def test_a_value_error_is_the_clients(triton):
    with pytest.raises(client.InferenceServerException, match="more than four words") as told:
        triton.infer("words", text("a b c d e"))
    assert told.value.status() == "400"


def test_what_is_not_as_declared_is_an_error_of_the_server(triton):
    with pytest.raises(client.InferenceServerException, match="prepare must return 2") as told:
        triton.infer("words", text("x" * 13))
    assert told.value.status() == "500"
    assert triton.infer("words", text("x")).as_numpy("lengths")[0, 0] == 1


def test_inputs_in_a_clients_region_are_refused(triton):
    region = shared_memory.create_shared_memory_region("text", "/prepared_text", 64)
    try:
        triton.register_system_shared_memory("text", "/prepared_text", 64)
        placed = client.InferInput("text", [1], "BYTES")
        placed.set_shared_memory("text", 8)
        with pytest.raises(client.InferenceServerException, match="not in shared memory") as told:
            triton.infer("words", [placed])
        assert told.value.status() == "400"
        triton.unregister_system_shared_memory("text")
    finally:
        shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("turn", ["first", "from the cache"])
def test_what_was_cut_off_is_told_in_the_answer(server, triton, turn):
    for sentences, told in ((["a b"], 0), (["a b c d e f"], 2), (["a", "a b c d e"], "[0, 1]")):
        found = triton.infer("short", text(*sentences))
        answer = found.get_response()
        assert answer["parameters"] == {"truncated": told, "most": 4, "rows": len(sentences)}
        assert found.as_numpy("count").tolist() == [min(len(one.split()), 4) for one in sentences]


def test_generate_and_grpc_tell_it_too(server):
    asked = json.dumps({"text": "a b c d e f g"}).encode()
    answer = json.loads(server.ask("POST", "/v2/models/short/generate", asked)[2])
    assert (answer["count"], answer["truncated"]) == (4, 3)
    with contextlib.closing(rpc.InferenceServerClient(server.grpc_address)) as grpc:
        answer = grpc.infer("short", text("a b c d e", of=rpc)).get_response()
    assert answer.parameters["truncated"].int64_param == 1


def test_what_is_told_of_other_rows_is_an_error_of_the_server(triton):
    wanted = "prepare got 1 rows and gave 2 values of the parameter 'truncated'"
    with pytest.raises(client.InferenceServerException, match=wanted) as told:
        triton.infer("short", text("wrong"))
    assert told.value.status() == "500"


MODEL = """
import numpy as np
from shmgpu.serve import Tensor, model

@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))],
       prepare="first:{name}", prepared=[Tensor("x", "FP32", (1,))])
def same(helper, x):
    return x
"""


def test_a_reload_takes_the_module_as_it_is_then(tmp_path):
    (tmp_path / "m.py").write_text(MODEL.format(name="change"))
    (tmp_path / "first.py").write_text("def change(x):\n    return x + 1\n")
    with servers.serving(tmp_path / "m.py") as server:
        with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
            x = client.InferInput("x", [1], "FP32")
            x.set_data_from_numpy(np.ones(1, "float32"))
            for _ in range(4):  # of which the later ones are like those before
                assert triton.infer("same", [x]).as_numpy("y")[0] == 2
            (tmp_path / "first.py").write_text("def change(x):\n    return x + 100\n")
            os.kill(server.process.pid, signal.SIGHUP)
            servers.until(
                lambda: triton.infer("same", [x]).as_numpy("y")[0] == 101, "it was loaded anew"
            )


def test_a_wrong_name_is_told_before_anything_is_served(tmp_path):
    (tmp_path / "m.py").write_text(MODEL.format(name="missing"))
    (tmp_path / "first.py").write_text("")
    with pytest.raises(AssertionError, match='prepare="first:missing"'):
        with servers.serving(tmp_path / "m.py"):
            pass
