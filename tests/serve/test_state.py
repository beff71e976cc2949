"""What a server keeps beside its models: where they lie, its state, its log, where it listens."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import time

import pytest

from shmgpu.errors import ConfigError, LaunchError
from shmgpu.serve import options, server
from shmgpu.serve.frontend import access_log
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling import catalog
from shmgpu.serve.state import control_table, repository
from shmgpu.serve.state.control_table import ControlTable


def laid(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


def found(path):
    return [
        (one.name, one.version, one.kind, os.path.relpath(one.path, str(path).partition("@")[0]))
        for one in repository.find(str(path))
    ]


def test_a_folder_is_a_repository_of_files_and_of_versions(tmp_path):
    laid(
        tmp_path, "b.pt", "a.py", "_c.py", ".d.py", "notes.txt", "net/2/model.onnx",
        "net/10/model.pt2", "net/0/model.pt", "net/x/model.pt", "net/3/other.pt", "net/file.pt",
    )  # fmt: skip
    assert [(name, version, path) for name, version, _, path in found(tmp_path)] == [
        ("", "1", "a.py"),
        ("b", "1", "b.pt"),
        ("net", "10", "net/10/model.pt2"),
        ("net", "2", "net/2/model.onnx"),
    ]


@pytest.mark.parametrize(
    ("names", "path", "words"),
    [
        ((), "absent", "there is no model at .*absent: name a file, or a folder of models"),
        (("empty/notes.txt",), "empty", "the folder .*empty holds no model: it must have NAME/1"),
        (
            ("model.h5",),
            "model.h5",
            "model.h5 is not a model that can be served: its name must",
        ),
        (
            ("r/net/1/model.pt", "r/net/1/model.py"),
            "r",
            "net/1 holds model.pt and model.py: leave one of them",
        ),
    ],
)
def test_where_no_model_lies_a_sentence_says_what_should(tmp_path, names, path, words):
    laid(tmp_path, *names)
    with pytest.raises(ConfigError, match=words):
        repository.find(str(tmp_path / path))


def test_a_pool_stands_behind_the_last_sign_unless_the_path_has_that_in_it(tmp_path):
    laid(tmp_path, "a.pt", "b@c.pt")
    assert [one.pool for one in repository.find(f"{tmp_path / 'a.pt'}@gpu")] == ["gpu"]
    assert [one.pool for one in repository.find(str(tmp_path / "b@c.pt"))] == [""]
    (one,) = repository.find(f"{tmp_path / 'b@c.pt'}@gpu")
    assert (one.pool, one.name) == ("gpu", "b@c")
    placed = repository.in_pools(repository.find_all([str(tmp_path / "a.pt")]), ["cpu", "gpu"])
    assert [one.pool for one in placed] == ["cpu"]
    with pytest.raises(ConfigError, match="is for the pool 'gpu', and the helpers form cpu: name"):
        repository.in_pools(repository.find(f"{tmp_path / 'a.pt'}@gpu"), ["cpu"])


# ---- the control table ------------------------------------------------------------------------


def test_a_state_is_as_large_as_half_of_the_table_and_one_that_is_larger_changes_nothing(
    monkeypatch,
):
    monkeypatch.setattr(control_table, "HALF_BYTES", 64)
    with contextlib.closing(ControlTable({"a": ""})) as table:
        room = 64 - len('{"a":""}')
        with table.change() as state:
            state["a"] = "x" * room
        assert table.read() == (1, {"a": "x" * room})
        with pytest.raises(ConfigError, match="state has 65 bytes and may have 64: serve fewer"):
            with table.change() as state:
                state["a"] = "x" * (room + 1)
        assert table.version == 1 and table.read() == (1, {"a": "x" * room})


def test_a_change_that_fails_is_none(monkeypatch):
    with contextlib.closing(ControlTable({"a": 1})) as table:
        with pytest.raises(ValueError, match="no"), table.change() as state:
            state["a"] = 2
            raise ValueError("no")
        with table.change() as state:  # and the lock was let go of
            assert state == {"a": 1}


def test_one_loads_models_at_a_time():
    with contextlib.closing(ControlTable({})) as table:
        assert table.try_hold() and not table.try_hold()
        table.let_go()
        assert table.try_hold()
        read, write = os.pipe()
        if os.fork() == 0:  # another process
            try:
                held = ControlTable.try_hold(table) or _anew(table).try_hold()
                os.write(write, b"1" if held else b"0")
            finally:
                os._exit(0)
        assert os.read(read, 1) == b"0"
        os.wait()
        os.close(read)
        os.close(write)
        table.let_go()


def _anew(table):
    """As of a process that holds nothing."""
    table._is_held = False
    return table


def test_reloads_that_were_asked_for_are_counted_and_the_end_is_seen():
    with contextlib.closing(ControlTable({})) as table:
        assert (table.reloads_asked, table.is_draining) == (0, False)
        table.ask_reload()
        table.ask_reload()
        table.begin_draining()
        assert (table.reloads_asked, table.is_draining) == (2, True)


# ---- what a worker cannot import ---------------------------------------------------------------


def test_a_count_that_others_read_while_it_is_written_never_goes_back():
    table, asked = ControlTable({}), 100_000
    reader = os.fork()
    if reader == 0:
        last = went_back = 0
        while last < asked:
            count = table.reloads_asked
            went_back += count < last
            last = max(last, count)
        os._exit(went_back > 0)
    for _ in range(asked):
        table.ask_reload()
    assert os.waitpid(reader, 0)[1] == 0
    table.close()


def test_a_model_whose_function_a_worker_cannot_find_is_refused_and_the_log_says_why(
    tmp_path, caplog
):
    told = {"name": "m", "prepare": "absent_module:work"}
    refuse = catalog._found(told, "prepare", {"path": str(tmp_path / "m.py")})
    assert "model m cannot be served" in caplog.text and "absent_module" in caplog.text
    with pytest.raises(ProtocolError, match="cannot find prepare= of 'm': its log says") as caught:
        refuse(1, 2)
    assert caught.value.status == 500


# ---- flags ------------------------------------------------------------------------------------


def resolved(*, config=None, models=()):
    return options.resolve(argparse.Namespace(config=config, models=list(models), run=None))


def test_a_configuration_file_says_what_is_served_beside_it(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('models = ["a.py", "b"]\nmax-queue = 7\nallow_settings = true\n')
    told = resolved(config=str(path))
    assert told.models == [str(tmp_path / "a.py"), str(tmp_path / "b")]
    assert told.max_queue == 7 and told.allow_settings is True
    assert resolved(config=str(path), models=["c.py"]).models == ["c.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is nothing to serve: name model files, or a folder of models"),
        ("models = []", "there is nothing to serve"),
        ("models =", "the configuration .* cannot be read"),
        ('models = "a.py"', "models in .* must be a list of paths"),
        ("models = [5]", "models in .* must be a list of paths"),
        ('models = ["a.py"]\nmax-queu = 7', "max-queu in .* did you mean max-queue?"),
        ('models = ["a.py"]\nzzz = 7', "zzz in .* is not a flag of shmgpu serve: see --help"),
        ('models = ["a.py"]\nmax-queue = "many"', "max-queue"),
        ('models = ["a.py"]\nallow-settings = 1', "allow-settings"),
    ],
)
def test_a_configuration_that_says_something_else_is_refused(tmp_path, text, words):
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        resolved(config=str(path))


def test_a_configuration_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"the configuration .*absent\.toml cannot be read"):
        resolved(config=str(tmp_path / "absent.toml"))


# ---- where it listens and what it logs ----------------------------------------------------------


def test_a_host_that_there_is_not_is_named():
    with pytest.raises(LaunchError, match=r"cannot listen at no such host \(.*\): choose another"):
        server._found("no such host", 0)
    family, address = server._found("127.0.0.1", 80)
    assert family.name == "AF_INET" and address == ("127.0.0.1", 80)


def test_an_access_log_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    server._check_access_log(None)
    server._check_access_log("-")
    server._check_access_log(str(tmp_path / "log"))
    assert (tmp_path / "log").read_text() == ""
    for path in (tmp_path, tmp_path / "absent" / "log"):
        with pytest.raises(ConfigError, match=re.escape(f"the access log {path} cannot be")):
            server._check_access_log(str(path))


LINE = r'p - - \[\d+/\w+/\d+:\d+:\d+:\d+ \+0000\] "{}" 200 5 0.250000\n'


def test_lines_are_kept_until_there_are_many_or_they_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(access_log, "MOST_LINES", 3)
    path = tmp_path / "log"
    log = access_log.AccessLog(str(path))
    log.write()
    assert not path.exists()
    for number in range(4):
        log.line("p", f"GET /{number}", 200, 5, 0.25)
        assert path.exists() == (number >= 2)
    assert path.read_text().count("\n") == 3
    log.write()
    assert re.fullmatch("".join(LINE.format(f"GET /{n}") for n in range(4)), path.read_text())


def test_what_could_end_a_line_of_the_log_is_escaped(tmp_path):
    path = tmp_path / "log"
    log = access_log.AccessLog(str(path))
    log.line("p", 'a"\\\n\x7f~ é', 200, 5, 0.25)
    log.write()
    assert r'"a\x22\x5c\x0a\x7f~ \xe9"' in path.read_text()


def test_a_log_may_be_standard_output(capfd):
    log = access_log.AccessLog("-")
    log.line("p", "GET /", 200, 5, 0.25)
    log.write()
    assert re.fullmatch(LINE.format("GET /"), capfd.readouterr().out)


def test_lines_that_cannot_be_written_are_counted_in_the_servers_log(tmp_path, caplog):
    log = access_log.AccessLog(str(tmp_path))
    log.line("p", "GET /", 200, 5, 0.25)
    log.line("p", "GET /", 200, 5, 0.25)
    with caplog.at_level(logging.WARNING, "shmgpu"):
        log.write()
    assert "2 lines of the access log are lost" in caplog.text
    log.write()  # and are not tried again
    assert len(caplog.records) == 1


def test_the_date_of_a_line_is_its_own(tmp_path, monkeypatch):
    path, now = tmp_path / "log", 0.0
    monkeypatch.setattr(time, "time", lambda: now)
    log = access_log.AccessLog(str(path))
    for now in (0.0, 0.5, 86400.0):  # noqa: B007
        log.line("p", "GET /", 200, 5, 0.25)
    log.write()
    found = re.findall(r"\[(.*?)\]", path.read_text())
    assert found == ["01/Jan/1970:00:00:00 +0000"] * 2 + ["02/Jan/1970:00:00:00 +0000"]
