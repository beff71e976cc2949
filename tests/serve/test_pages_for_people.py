"""What people see of a server: its pages, what it prints at its start, and reloads as they edit."""

from __future__ import annotations

import argparse
import contextlib
import json
import os

import pytest
from serve import servers

from shmgpu.errors import ConfigError
from shmgpu.serve import options, overview
from shmgpu.serve.server import first_state
from shmgpu.serve.state import repository, source_watch
from shmgpu.serve.state.control_table import ControlTable

MODEL = """
from shmgpu.serve import Tensor, model

@model(name="{name}", inputs=[Tensor("x", "FP32", (-1, 1))],
       outputs=[Tensor("y", "FP32", (-1, 1))], max_batch_size=4)
def scaled(helper, x):
    return x * {factor}

@model(inputs=[Tensor("x", "FP32", (2,))], outputs=[Tensor("y", "FP32", (2,))])
def single(helper, x):
    return x
"""


def write(path, name="scaled", factor=2):
    made = path.with_suffix(".new")
    made.write_text(MODEL.format(name=name, factor=factor))
    os.replace(made, path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.py"
    write(path)
    return path


def test_a_browser_finds_models_and_paths(tmp_path):
    path = tmp_path / "models.py"
    write(path, "<b>&'x")
    with servers.serving(path, workers=1, helpers=1) as server:
        status, headers, body = server.ask("GET", "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["content-security-policy"]
        text = body.decode()
        assert "<b>&'x" not in text
        assert "&lt;b&gt;&amp;&#x27;x" in text
        assert "/v2/models/%3Cb%3E%26%27x/versions/1" in text
        assert server.ask("GET", "/v2/models/%3Cb%3E%26%27x/versions/1")[0] == 200
        for page in ("/docs", "/docs/"):
            status, _, body = server.ask("GET", page)
            assert (status, b"/v2/models/{name}/infer" in body) == (200, True)
        status, headers, body = server.ask("GET", "/openapi.json")
        assert (status, headers["content-type"]) == (200, "application/json")
        assert "/v2/models/{name}/infer" in json.loads(body)["paths"]
        assert server.ask("POST", "/")[0] == 405
        assert server.ask("GET", "/docs/x")[0] == 404


def test_with_a_token_these_pages_want_it_too(file, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    with servers.serving(file, workers=1, helpers=1, token_file=token) as server:
        for page in ("/", "/docs", "/openapi.json"):
            assert server.ask("GET", page)[0] == 401
            assert server.ask("GET", page, Authorization="Bearer secret")[0] == 200


def test_a_server_says_what_it_serves_when_it_is_ready(file):
    with servers.serving(file, workers=1, helpers=1, max_batch_size=9, log_level="info") as server:
        said = [server.process.stdout.readline() for _ in range(5)]
        assert said[0].split() == ["model", "version", "rows", "helpers", "on", "file"]
        assert said[1].split() == ["scaled", "1", "9", "cpu", str(file)]
        assert said[2].split() == ["single", "1", "-", "cpu", str(file)]
        assert f"http://{server.address}/docs" in said[3]
        assert "16MiB" in said[4]
        assert "1000 requests may wait or run" in said[4]
        x = {"name": "x", "datatype": "FP32", "shape": [9, 1], "data": [1] * 9}
        body = json.dumps({"inputs": [x]}).encode()
        assert server.ask("POST", "/v2/models/scaled/infer", body)[0] == 200
        config = json.loads(server.ask("GET", "/v2/models/scaled/config")[2])
        assert config["max_batch_size"] == 9
    assert "helper 0 has loaded scaled, single in" in server.said


def test_a_file_that_is_edited_is_reloaded(file):
    with servers.serving(file, workers=2, helpers=1, reload=True) as server:

        def answer():
            x = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
            body = json.dumps({"inputs": [x]}).encode()
            return json.loads(server.ask("POST", "/v2/models/scaled/infer", body)[2])

        assert answer()["outputs"][0]["data"] == [2.0]
        write(file, factor=3)
        servers.until(lambda: answer()["outputs"][0]["data"] == [3.0], "the new file answers")
        made = file.with_suffix(".new")
        made.write_text("this is no Python\n")
        os.replace(made, file)
        write(file, factor=4)
        servers.until(lambda: answer()["outputs"][0]["data"] == [4.0], "it was mended")


@pytest.mark.parametrize("edits", [0, 1])
def test_what_is_edited_before_the_first_worker_looks_is_reloaded(file, edits):
    """Helpers may have loaded the old file, and another worker may serve it already."""
    [source] = repository.find(str(file))
    with contextlib.closing(ControlTable(first_state([source], {}))) as table:
        files = source_watch.seen(table.read()[1])
        for _ in range(edits):
            write(file, factor=33)
        watch = source_watch.SourceWatch(table, files)
        watch.look()
        watch.look()
        assert table.reloads_asked == edits


def test_a_file_is_not_reloaded_unless_that_is_asked_for(file):
    with servers.serving(file, workers=1, helpers=1) as server:
        write(file, name="other")
        for _ in range(5):
            assert server.ask("GET", "/v2/models/scaled/ready")[0] == 200
    assert "reloaded" not in server.said


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max_bodi", "did you mean max-body?"),
        ("modles", "did you mean models?"),
        ("worker", "did you mean workers?"),
        ("xyz", "see --help"),
    ],
)
def test_a_key_that_is_no_flag_is_told_what_may_be_meant(tmp_path, key, hint):
    config = tmp_path / "server.toml"
    config.write_text(f"{key} = 1\n")
    with pytest.raises(ConfigError) as refused:
        options.resolve(argparse.Namespace(config=str(config), models=["x.py"]))
    assert str(refused.value).endswith(hint)


@pytest.mark.parametrize(("level", "kept"), [("info", "INFO"), ("Warning", "WARNING")])
def test_a_level_is_one_of_five(level, kept):
    (flag,) = [one for one in options.FLAGS if one.name == "log-level"]
    assert flag.parse(level) == kept
    with pytest.raises(ConfigError, match="use debug, info"):
        flag.parse("loud")


def test_one_is_no_plural():
    assert [overview.counted(count, "helper") for count in (0, 1, 2)] == [
        "0 helpers",
        "1 helper",
        "2 helpers",
    ]
