"""Ensembles: functions in workers that call other models of the same server."""

from __future__ import annotations

import contextlib
import http.client
import json

import numpy as np
import pytest
from serve import servers
from serve.servers import tensor

from shmgpu.errors import ConfigError
from shmgpu.serve import Tensor, ensemble

MODELS = servers.MODELS / "chain" / "models.py"
X = np.array([1, 2, 3], np.float32)


@pytest.fixture(scope="module")
def server():
    with servers.serving(MODELS, workers=1, helpers=2, grpc_port=0) as running:
        yield running


def wrong(server, kind, **more):
    asked = {"name": "kind", "datatype": "INT32", "shape": [1], "data": [kind]}
    body = json.dumps({"inputs": [asked], **more}).encode()
    status, _, answer = server.ask("POST", "/v2/models/wrong/infer", body)
    return status, json.loads(answer).get("error", "")


def test_what_one_model_gives_is_given_to_the_next(server, triton):
    def counts():
        both = [server.statistics(name)["inference_count"] for name in ("double", "twice")]
        return np.array(both)

    before = counts()
    for _ in range(6):
        found = triton.infer("twice", [tensor("x", X, "FP32")])
        assert found.as_numpy("y").tolist() == [4, 8, 12]
    assert (counts() - before).tolist() == [12, 6]
    assert server.pending() == 0


def test_it_lies_where_it_was_left(server, triton):
    """Also what is large."""
    for x in (X, np.ones(200_000, np.float32)):
        found = triton.infer("in_place", [tensor("x", x, "FP32")])
        assert found.as_numpy("same").tolist() == [True, True]


def test_models_may_be_called_at_once(server, triton):
    found = triton.infer("together", [tensor("x", X, "FP32")])
    assert found.as_numpy("y").tolist() == [8, 16, 24]


def test_texts_optional_inputs_and_parameters_arrive(server, triton):
    text = np.array([b"quiet"], dtype=object)
    found = triton.infer("texts", [tensor("text", text, "BYTES")], parameters={"name": "ann"})
    assert found.as_numpy("said").tolist() == [b"QUIET none ann"]
    asked = json.dumps({"text": "quiet", "seed": 7}).encode()
    answer = json.loads(server.ask("POST", "/v2/models/texts/generate", asked)[2])
    assert answer["said"] == "QUIET 7 "


def test_an_ensemble_is_a_model_over_grpc_too(server):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    x = client.InferInput("x", [3], "FP32").set_data_from_numpy(X)
    with client.InferenceServerClient(server.grpc_address) as made:
        assert made.infer("twice", [x]).as_numpy("y").tolist() == [4, 8, 12]
        assert made.get_model_config("twice").config.platform == "ensemble"


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        (0, 400, "refuses the inputs: this is not wanted"),
        (1, 500, "KeyError('a secret')"),
        (2, 500, "the model of an ensemble"),
        (3, 500, "unknown model: 'nobody'"),
        (4, 500, "gives float64: convert it"),
        (5, 500, "has no input 'z'"),
        (6, 500, "which is declared as FP32"),
        (7, 500, "is one too many"),
        (8, 503, "Request timeout expired"),
    ],
)
def test_what_goes_wrong_is_told(server, kind, status, said):
    before = server.statistics("wrong")["inference_stats"]["fail"]["count"]
    found, sentence = wrong(server, kind)
    assert (found, said in sentence) == (status, True), sentence
    after = server.statistics("wrong")["inference_stats"]["fail"]["count"]
    assert after >= before + 1  # of those that call themselves, each
    assert server.pending() == 0


def test_a_client_that_leaves_ends_it(server):
    body = json.dumps(
        {
            "inputs": [{"name": "kind", "datatype": "INT32", "shape": [1], "data": [8]}],
            "parameters": {"timeout": 60_000_000},
        }
    ).encode()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/wrong/infer", body)
        servers.until(lambda: server.statistics("wrong")["pending"] == 1, "it runs")
    servers.until(lambda: server.statistics("wrong")["pending"] == 0, "it has ended")


@pytest.mark.parametrize("steps", ["", "module", "module:", ":run", "module:not a name"])
def test_steps_name_a_function(steps):
    x = [Tensor("x", "FP32", (1,))]
    with pytest.raises(ConfigError, match="steps="):
        ensemble("e", steps=steps, inputs=x, outputs=x)


def test_steps_that_are_not_there_are_told_at_the_start(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(
        "from shmgpu.serve import Tensor, ensemble\n"
        "X = [Tensor('x', 'FP32', (1,))]\n"
        "e = ensemble('e', steps='nowhere_to_be:found', inputs=X, outputs=X)\n"
    )
    with pytest.raises(AssertionError, match='steps="nowhere_to_be:found"'):
        with servers.serving(path, workers=1, helpers=1):
            pass
