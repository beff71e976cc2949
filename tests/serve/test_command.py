"""The command: its flags, its configuration file, its sockets, its signals."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
from serve import servers

from shmgpu import serve
from shmgpu.errors import ConfigError
from shmgpu.serve import options, server
from shmgpu.serve.protocol.types import DEFAULT_LIMITS

MODEL = servers.MODELS / "simple.py"


def refused(*words):
    """What the command says when it will not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "shmgpu", "serve", *map(str, words)],
        env=servers.environment(),
        capture_output=True,
        text=True,
        timeout=servers.DEADLINE_S,
    )
    assert ended.returncode != 0
    return ended.stderr


@pytest.mark.table
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "nothing to serve"),
        (("nowhere.py",), "no model at nowhere.py"),
        ((str(pathlib.Path(__file__).parents[1] / "c"),), "holds no model"),
        ((MODEL, "--workers", "0"), "'0' is not a valid N"),
        ((MODEL, "--max-body", "much"), "'much' is not a valid SIZE"),
        ((MODEL, "--port", "65536"), "'65536' is not a valid N"),
        ((MODEL, "--grpc-port", "99999"), "'99999' is not a valid N"),
        ((f"{MODEL}@fast",), "for the pool 'fast'"),
        ((MODEL, "--config", "nowhere.toml"), "nowhere.toml cannot be read"),
        ((MODEL, "--arena", "5"), "use 1MiB or more: a number without a unit is bytes"),
        ((MODEL, "--max-header", "10"), "use 1KiB or more"),
        ((MODEL, "--max-body", "0"), "use 1KiB or more"),
        ((MODEL, "--timeout", "0"), "use more than 0"),
        ((MODEL, "--helpers", "a=1,a=2"), "each pool needs a name of its own"),
        ((MODEL, "--host", "300.1.1.1"), "cannot listen at 300.1.1.1"),
        ((MODEL, "--host", "300.1.1.1", "--uds", "x.sock", "--grpc-port", "0"), "choose another"),
        ((MODEL, "--uds", "x" * 200), "too long"),
        ((MODEL, "--access-log", "/nowhere/log"), "access log /nowhere/log cannot be written"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(words, sentence):
    said = refused(*words)
    assert sentence in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("workers = 2.7", "2.7 is not a valid N"),
        ("workers = true", "True is not a valid N"),
        ("timeout = true", "True is not a valid S"),
        ("host = 5", "5 is not a valid ADDRESS"),
        ('devices = ["cpu"]', "is not a valid NAMES"),
        ("arena = 5", "use 1MiB or more"),
        ("helpers = 1.5", "1.5 is not a valid N"),
        ('allow_repository = "yes"', "is not a valid switch"),
        ("max_body = 4096\nmax-body = 8192", "says max_body twice"),
        ('models = "model.py"', "must be a list of paths"),
    ],
)
def test_a_configuration_of_another_type_is_refused(tmp_path, line, sentence):
    config = tmp_path / "server.toml"
    config.write_text(line)
    with pytest.raises(ConfigError) as caught:
        options.resolve(argparse.Namespace(config=str(config), models=["model.py"]))
    assert sentence in str(caught.value)


def test_secrets_that_cannot_be_used_are_refused(tmp_path):
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text(" \n")
    for made, given, sentence in (
        (server._token, [str(missing)], f"file {missing} cannot be read (No such file"),
        (server._token, [str(empty)], "is empty: write a long random text into it"),
        (server._tls, ["a.pem", None], "belong together: give both"),
        (server._tls, [None, "a.pem"], "belong together: give both"),
        (server._tls, [str(missing), str(missing)], "the certificate cannot be used (["),
        (server._tls, [str(empty), str(empty)], "the certificate cannot be used (["),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            made(*given)
    empty.write_text(" secret\n")
    assert server._token(str(empty)) == b"secret"
    assert server._token(None) == b"" and server._tls(None, None) is None


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "is_told"),
    [
        (2000, 9000, None, False),
        (100, 9000, True, False),
        (100, -1, True, False),
        (-1, -1, None, False),
        (100, 1500, 1500, True),
        (1999, 2000, 2000, False),
    ],
)
def test_as_many_files_may_be_open_as_there_may_be_connections(
    monkeypatch, caplog, soft, hard, wanted, is_told
):
    """Twice as many: that many again may be told that they are too many."""
    made = []
    monkeypatch.setattr(server, "descriptors_needed", lambda roles, open_now: 10 * roles)
    monkeypatch.setattr(server.resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(server.resource, "setrlimit", lambda kind, limit: made.append(limit))
    with caplog.at_level("WARNING", "shmgpu"):
        server._allow_connections(950, 10)
    assert made == ([] if wanted is None else [(2000 if wanted is True else wanted, hard)])
    assert ("950 connections, and the limit on open files is 1500" in caplog.text) == is_told


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("uvloop", (), "serve"),
        ("httptools", (), "serve"),
        ("prometheus_client", (), "serve"),
        ("grpc", ("--grpc-port", "0", "--grpc-front", "grpcio"), "serve"),
        ("google.protobuf", ("--grpc-port", "0"), "serve"),
        ("opentelemetry", ("--otel",), "otel"),
        ("opentelemetry.exporter.otlp.proto.http", ("--otel",), "otel"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(
    tmp_path, monkeypatch, package, words, extra
):
    if "http" in package and not importlib.metadata.entry_points(
        group="opentelemetry_traces_exporter", name="otlp_proto_http"
    ):
        pytest.skip("the exporter is not installed at all")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if f'{{name}}.'.startswith('{package}.'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), before]))
    said = refused(MODEL, "--workers", "1", "--port", "0", *words)
    assert f"is missing ({package}): pip install '.[{extra}]'" in said
    assert "Traceback" not in said


def test_the_command_line_beats_the_file_and_the_file_the_variables(tmp_path, monkeypatch):
    config = tmp_path / "server.toml"
    config.write_text('arena = "8MiB"\nworkers = 3\n')
    monkeypatch.setenv("SHMGPU_ARENA", "4MiB")
    monkeypatch.setenv("SHMGPU_HELPERS", "5")
    found = options.resolve(argparse.Namespace(config=str(config), models=["m.py"], workers=4))
    assert (found.workers, found.arena, found.helpers) == (4, 8 << 20, 5)
    monkeypatch.setenv("SHMGPU_HELPERS", "many")
    with pytest.raises(ConfigError, match="SHMGPU_HELPERS: 'many' is not a valid N"):
        options.resolve(argparse.Namespace(config=None, models=["m.py"]))


@pytest.mark.parametrize(
    ("helpers", "cores", "workers"),
    [(1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 2), (2, 4, 1), (2, 5, 2), (1, 64, 2), (8, 4, 1)],
)
def test_workers_take_the_cores_that_helpers_and_the_dispatcher_leave(
    monkeypatch, helpers, cores, workers
):
    monkeypatch.setattr(options.devices, "cores", lambda: cores)
    given = argparse.Namespace(config=None, models=["m.py"], helpers=helpers)
    assert options.resolve(given).workers == workers
    given.helpers = {"fast": helpers - 1, "large": 1}  # pools
    assert options.resolve(given).workers == workers
    given.workers = 7
    assert options.resolve(given).workers == 7


def test_variables_about_sessions_are_not_about_a_servers_models(monkeypatch):
    monkeypatch.setenv("SHMGPU_LAZY", "1")
    monkeypatch.setenv("SHMGPU_IDLE", "0.01")
    with servers.serving(MODEL, helpers=1, workers=1) as server:
        assert server.ask("GET", "/v2/models/scale/ready")[0] == 200


def test_a_configuration_file_has_the_flags_names_as_keys(tmp_path):
    (tmp_path / "model.py").write_text(MODEL.read_text())
    config = tmp_path / "server.toml"
    config.write_text('models = ["model.py"]\nworkers = 1\nmax-body = "1KiB"\nhelpers = 2\n')
    with servers.serving(config=config, helpers=1, workers=None) as server:
        assert server.is_ready()
        assert len(server.children()) == 2, "one helper, as the command line says"
        status, _, _ = server.ask("POST", "/v2/models/scale/infer", b" " * 2000)
        assert status == 413
    config.write_text("wrkers = 1\n")
    assert "wrkers in" in refused(MODEL, "--config", config)
    config.write_text("workers = 0\n")
    assert "workers in" in refused(MODEL, "--config", config)


def test_the_page_has_the_table_of_flags():
    page = pathlib.Path(serve.__file__).with_name("README.md")
    if not page.exists():
        pytest.skip("the package's pages are not beside it")
    assert options.page() in page.read_text(), "paste what shmgpu.serve.options.page() gives"


def test_the_parser_by_itself_has_the_limits_of_a_server():
    defaults = {flag.name: flag.default for flag in options.FLAGS}
    assert DEFAULT_LIMITS.tensors == defaults["max-tensors"]
    assert DEFAULT_LIMITS.json_depth == defaults["max-json-depth"]


def test_the_page_on_security_has_the_flags_defaults():
    page = pathlib.Path(serve.__file__).with_name("SECURITY.md")
    if not page.exists():
        pytest.skip("the package's pages are not beside it")
    rows = re.findall(r"^\|.*?`--([a-z-]+)`.*?\| ([^|]*) \| [^|]*\|$", page.read_text(), re.M)
    by_name = {flag.name: flag for flag in options.FLAGS if type(flag.default) in (int, float)}
    defaults = {name: text for name, text in rows if name in by_name and text[:1].isdigit()}
    assert len(defaults) >= 10
    for name, text in defaults.items():
        flag = by_name[name]
        assert flag.parse(text.removesuffix(" s").replace(" ", "")) == flag.default, name


def test_a_body_that_no_arena_could_hold_is_too_large():
    with servers.serving(MODEL, helpers=1, workers=1, arena="4MiB") as server:
        with socket.create_connection((server.host, server.port), servers.DEADLINE_S) as client:
            client.sendall(
                b"POST /v2/models/scale/infer HTTP/1.1\r\n"
                b"Host: x\r\nContent-Length: 5000000\r\n\r\n"
            )
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_model_that_cannot_be_loaded_anew_is_in_the_log_with_its_place(tmp_path):
    path = tmp_path / "later.py"
    path.write_text(MODEL.read_text())
    with servers.serving(path, helpers=1, workers=1, allow_repository=True) as server:
        path.write_text("absent + 1\n")
        status, _, answer = server.ask("POST", "/v2/repository/models/scale/load")
        assert status == 400
        assert json.loads(answer)["error"] == (
            f"failed to load 'scale': {path} raised NameError: name 'absent' is not defined"
        )
        while 'later.py", line 1' not in server.process.stderr.readline():
            pass


def test_a_unix_socket_is_served_and_taken_away(tmp_path):
    path = tmp_path / "server.sock"
    with servers.serving(MODEL, uds=path, helpers=1, workers=1):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert not path.exists()


def test_sighup_loads_all_models_anew(tmp_path):
    path = tmp_path / "constant.py"
    source = (
        "import numpy as np\n"
        "from shmgpu.serve import Tensor, model\n"
        "@model(inputs=[Tensor('x', 'FP32', (1,))], outputs=[Tensor('y', 'FP32', (1,))])\n"
        "def constant(helper, x):\n"
        "    return np.full(1, {value}, 'float32')\n"
    )
    path.write_text(source.format(value=1))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}

    def value():
        status, _, answer = server.ask(
            "POST", "/v2/models/constant/infer", json.dumps(body).encode()
        )
        assert status == 200
        return json.loads(answer)["outputs"][0]["data"][0]

    with servers.serving(path) as server:
        assert value() == 1
        path.write_text(source.format(value=2))
        server.process.send_signal(signal.SIGHUP)
        servers.until(lambda: value() == 2, "the model was loaded anew")
