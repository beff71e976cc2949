"""Models that come and go while the server runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading

import numpy as np
import pytest
from serve import servers

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

SOURCE = """
import numpy as np
from shmgpu.serve import Tensor, model

@model(inputs=[Tensor("x", "FP32", (-1, 2))], outputs=[Tensor("y", "FP32", (-1, 2))],
       max_batch_size=8)
def times(helper, x):
    return x * np.float32({factor})
"""


def write(folder, name, version, factor):
    place = folder / name / str(version)
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.py").write_text(SOURCE.format(factor=factor))


@pytest.fixture
def repository(tmp_path):
    write(tmp_path, "double", 1, 2)
    write(tmp_path, "triple", 1, 3)
    write(tmp_path, "triple", 2, 3.5)
    return tmp_path


@pytest.fixture
def triton(repository):
    with (
        servers.serving(repository, allow_repository=True) as server,
        contextlib.closing(client.InferenceServerClient(server.address)) as made,
    ):
        made.server = server
        yield made


def ask(triton, name, version=""):
    x = client.InferInput("x", (1, 2), "FP32")
    x.set_data_from_numpy(np.ones((1, 2), "float32"))
    return float(triton.infer(name, [x], version).as_numpy("y")[0, 0])


def test_a_folder_is_a_repository_with_versions(triton):
    assert ask(triton, "double") == 2
    assert ask(triton, "triple") == 3.5, "the highest version"
    assert ask(triton, "triple", "1") == 3
    assert triton.get_model_metadata("triple")["versions"] == ["1", "2"]
    index = {
        (one["name"], one["version"]): one["state"] for one in triton.get_model_repository_index()
    }
    assert index == {("double", "1"): "READY", ("triple", "1"): "READY", ("triple", "2"): "READY"}


def test_unload_and_load_are_seen_through_every_worker(triton):
    triton.unload_model("double")
    for _ in range(6):
        with contextlib.closing(client.InferenceServerClient(triton.server.address)) as other:
            assert not other.is_model_ready("double")
            with pytest.raises(client.InferenceServerException, match="unknown model"):
                ask(other, "double")
    index = {one["name"]: one for one in triton.get_model_repository_index()}
    assert (index["double"]["state"], index["double"]["reason"]) == ("UNAVAILABLE", "unloaded")
    triton.load_model("double")
    for _ in range(6):
        with contextlib.closing(client.InferenceServerClient(triton.server.address)) as other:
            assert ask(other, "double") == 2


def test_a_load_takes_versions_and_models_that_are_new_on_disk(triton, repository):
    write(repository, "triple", 3, 4)
    write(repository, "ten", 1, 10)
    triton.load_model("triple")
    triton.load_model("ten")
    assert ask(triton, "triple") == 4
    assert ask(triton, "ten") == 10


def test_a_model_that_cannot_be_loaded_leaves_the_one_that_serves(triton, repository):
    (repository / "double" / "1" / "model.py").write_text("raise OSError('half written')")
    with pytest.raises(client.InferenceServerException, match="half written") as caught:
        triton.load_model("double")
    assert caught.value.status() == "400"
    assert ask(triton, "double") == 2
    with pytest.raises(client.InferenceServerException, match="no such model"):
        triton.load_model("nobody")


def test_a_reload_under_load_loses_no_request(triton, repository):
    answers, wrong, over = set(), [], threading.Event()

    def flood():
        one = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}
        body = json.dumps({"inputs": [one]}).encode()
        while not over.is_set():
            status, _, answer = triton.server.ask("POST", "/v2/models/double/infer", body)
            if status == 200:
                answers.add(json.loads(answer)["outputs"][0]["data"][0])
            else:
                wrong.append(answer)

    flooding = [threading.Thread(target=flood) for _ in range(4)]
    for one in flooding:
        one.start()
    try:
        for factor in (20, 30, 40):
            write(repository, "double", 1, factor)
            triton.load_model("double")
            assert ask(triton, "double") == factor
            servers.until(lambda factor=factor: factor in answers, f"an answer of {factor}")
    finally:
        over.set()
        for one in flooding:
            one.join()
    assert not wrong
    assert answers >= {20, 30, 40} and answers <= {2, 20, 30, 40}


def test_a_helper_started_anew_knows_what_was_loaded_meanwhile(triton, repository):
    write(repository, "double", 1, 7)
    triton.load_model("double")
    helpers = triton.server.children()[:2]
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    servers.until(
        lambda: len(set(triton.server.children()) - set(helpers)) == 4, "helpers started anew"
    )
    for _ in range(10):
        assert ask(triton, "double") == 7


def test_control_is_refused_unless_allowed(repository):
    with servers.serving(repository) as server:
        for what in ("load", "unload"):
            status, _, answer = server.ask("POST", f"/v2/repository/models/double/{what}", b"{}")
            assert status == 503
            assert "--allow-repository" in json.loads(answer)["error"]
        assert server.ask("POST", "/v2/repository/index", b"")[0] == 200
