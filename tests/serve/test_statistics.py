"""Statistics by part of a stream, and of memory: the same over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import types

import pytest
from serve import servers

from shmgpu.serve.models import memory_usage

LOADED = 48 << 20
SLACK = 24 << 20  # what else loading a file takes


@pytest.fixture(scope="module")
def server():
    models = (servers.MODELS / name for name in ("streaming.py", "heavy.py"))
    with servers.serving(*models, helpers=2, workers=1, grpc_port=0) as running:
        yield running


def over_grpc(server, model):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with client.InferenceServerClient(server.grpc_address) as made:
        found = made.get_inference_statistics(model, as_json=True)
    (one,) = found["model_stats"]
    return one


def stream(server, model, asked):
    body = json.dumps(asked).encode()
    assert server.ask("POST", f"/v2/models/{model}/generate_stream", body)[0] == 200


def counts(server, model):
    """By place: what was counted there, and no more."""
    return {
        place: {name: one["count"] for name, one in sums.items() if one["count"]}
        for place, sums in server.statistics(model)["response_stats"].items()
    }


GOOD = {"compute_infer": 1, "compute_output": 1, "success": 1}
END = {"compute_infer": 1, "empty_response": 1}


def test_parts_are_counted_by_their_place(server):
    stream(server, "words", {"text": "one two"})
    assert counts(server, "words") == {"0": GOOD, "1": GOOD, "2": END}
    stream(server, "words", {"text": "three"})
    twice = dict.fromkeys(GOOD, 2)
    mixed = {"compute_infer": 2, "compute_output": 1, "success": 1, "empty_response": 1}
    assert counts(server, "words") == {"0": twice, "1": mixed, "2": END}
    first = server.statistics("words")["response_stats"]["0"]
    spent = [first[name]["ns"] for name in ("compute_infer", "compute_output", "success")]
    assert min(spent) > 0
    assert spent[0] + spent[1] == spent[2]


def test_a_part_that_fails_is_counted_as_that(server):
    stream(server, "breaks", {"x": 1})
    assert counts(server, "breaks") == {"0": GOOD, "1": GOOD, "2": {"compute_infer": 1, "fail": 1}}


def test_a_stream_that_is_left_is_counted_as_cancelled(server):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=servers.DEADLINE_S)
    with contextlib.closing(connection):
        body = json.dumps({"count": 1 << 40}).encode()
        connection.request("POST", "/v2/models/wide/generate_stream", body)
        connection.getresponse().read(1000)
    found = servers.until(
        lambda: [
            (int(place), one) for place, one in counts(server, "wide").items() if "cancel" in one
        ],
        "the stream was ended",
    )
    ((place, one),) = found
    assert (place > 0, one) == (True, {"cancel": 1})


def test_models_that_answer_at_once_have_none(server):
    body = json.dumps({"x": 1}).encode()
    assert server.ask("POST", "/v2/models/double/generate", body)[0] == 200
    assert server.statistics("double")["response_stats"] == {}


def test_what_loading_took_is_told_of_all_helpers(server):
    for name in ("heavy", "heavy_too"):
        (used,) = server.statistics(name)["memory_usage"]
        assert (used["type"], used["id"]) == ("CPU", 0)
        assert 2 * LOADED <= used["byte_size"] < 2 * (LOADED + SLACK)
    light = server.statistics("double")["memory_usage"]
    assert sum(one["byte_size"] for one in light) < 2 * SLACK


def test_grpc_tells_the_same(server):
    stream(server, "count", {"count": 3})
    for name in ("count", "heavy"):
        ours, theirs = server.statistics(name), over_grpc(server, name)
        assert [
            {key: str(value) for key, value in one.items() if value} for one in ours["memory_usage"]
        ] == theirs.get("memory_usage", [])
        assert {
            place: {
                kind: {key: str(value) for key, value in one.items() if value}
                for kind, one in sums.items()
            }
            for place, sums in ours["response_stats"].items()
        } == theirs.get("response_stats", {})
    assert len(server.statistics("count")["response_stats"]) == 4


def test_a_reload_and_a_new_helper_tell_their_own(tmp_path):
    path = tmp_path / "m.py"
    text = (servers.MODELS / "heavy.py").read_text()
    path.write_text(text)
    with servers.serving(path, helpers=1, workers=1) as server:

        def used():
            return sum(one["byte_size"] for one in server.statistics("heavy")["memory_usage"])

        assert LOADED <= used() < LOADED + SLACK
        helper = server.children()[0]
        os.kill(helper, signal.SIGKILL)
        servers.until(lambda: helper not in server.children(), "the helper is gone")
        asked = json.dumps({"x": 1}).encode()
        servers.until(
            lambda: server.ask("POST", "/v2/models/heavy/generate", asked)[0] == 200,
            "another helper has loaded it",
        )
        assert LOADED <= used() < LOADED + SLACK
        path.write_text(text.replace("6 << 20", "24 << 20"))
        os.kill(server.process.pid, signal.SIGHUP)
        servers.until(
            lambda: 4 * LOADED <= used() < 4 * LOADED + SLACK, "what was loaded anew takes more"
        )


def test_memory_of_a_gpu_is_what_torch_has_allocated(monkeypatch):
    asked = []

    def memory_allocated(device):
        asked.append(device)
        return 1234

    cuda = types.SimpleNamespace(memory_allocated=memory_allocated)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    own, on_gpu = memory_usage.in_use("cuda:3")
    assert (own > 0, on_gpu, asked) == (True, 1234, ["cuda:3"])
    assert memory_usage.in_use("cpu")[1] == 0
    assert [memory_usage.gpu_of(one) for one in ("cpu", "cuda", "cuda:3")] == [None, 0, 3]
