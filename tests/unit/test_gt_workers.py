"""The file in which GT's workers stand for helpers of a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import shmgpu
from shmgpu.attach import endpoint
from shmgpu.compat.gt import server as gt_server
from shmgpu.compat.gt import workers


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Where a server with two helpers of its own listens, and what it was scaled to."""
    scaled = []
    monkeypatch.setattr(workers.control, "scale", lambda count, path: scaled.append(count))
    path = tmp_path / "socket"
    workers.begin(path, 2)
    return path, scaled


def known(path):
    return json.loads(endpoint.beside(path, ".workers").read_text())["workers"]


def test_who_joins_counts_until_it_leaves(server):
    path, scaled = server
    assert workers.join(path, "a name that is longer than what follows") == 3
    assert known(path) == {str(os.getpid()): "a name that is longer than what follows"}
    assert workers.join(path, "b") == 3
    assert known(path) == {str(os.getpid()): "b"}
    workers.leave(path)
    assert known(path) == {}
    assert scaled == [3, 3, 2]


def test_a_worker_that_is_gone_counts_no_more(server):
    path, scaled = server
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    file = endpoint.beside(path, ".workers")
    file.write_text(json.dumps({"own": 2, "workers": {str(gone.pid): "gone", "1": "here"}}))
    assert workers.join(path, "mine") == 4
    assert known(path) == {"1": "here", str(os.getpid()): "mine"}
    assert scaled == [4]


def test_a_server_that_has_ended_is_named(server):
    path, _ = server
    workers.end(path)
    workers.end(path)
    with pytest.raises(shmgpu.NotRunning, match=r"python -m shmgpu\.compat\.gt\.server"):
        workers.join(path, "late")


# ---- the server's command ----------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch, tmp_path):
    """What the command does with a broker that is played: with what, and how that ends."""

    def run(*arguments, ends=None):
        told = {}

        def up(modules, on_ready, **settings):
            told.update(settings)
            on_ready()
            if ends is not None:
                raise ends

        monkeypatch.setattr(gt_server.daemon, "up", up)
        monkeypatch.setattr(gt_server.endpoint, "path_of_port", lambda port: tmp_path / str(port))
        status = gt_server.main(list(arguments))
        assert not endpoint.beside(tmp_path / "12345", ".workers").exists()
        return status, told

    return run


@pytest.mark.parametrize(
    ("arguments", "helpers", "most", "devices"),
    [
        ([], 1, workers.MOST, None),
        (["--workers", "3"], 3, workers.MOST, None),
        (["--workers", str(workers.MOST + 1)], workers.MOST + 1, workers.MOST + 1, None),
        (["--workers", "3", "--no-workers"], 1, workers.MOST, None),
        (["--gpu", "0, 2"], 1, workers.MOST, ["cuda:0", "cuda:2"]),
    ],
)
def test_a_server_starts_with_what_it_was_asked_for(served, arguments, helpers, most, devices):
    status, told = served(*arguments)
    assert status == 0 and told.get("devices") == devices
    assert (told["helpers"], told["max_helpers"]) == (helpers, most)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (None, 0),
        (KeyboardInterrupt(), 0),
        (SystemExit(128 + signal.SIGTERM), 0),
        (SystemExit(128 + signal.SIGHUP), 1),
        (shmgpu.NotRunning("no"), 2),
    ],
)
def test_a_server_that_was_told_to_end_has_ended_well(served, capsys, ends, status):
    assert served(ends=ends)[0] == status
    said = capsys.readouterr()
    assert said.out.startswith("serving at localhost:12345 (")
    assert said.err == ("shmgpu: no\n" if status == 2 else "")


def test_a_server_of_another_machine_is_refused(served, capsys):
    assert served("-H", "elsewhere")[0] == 2 and "elsewhere" in capsys.readouterr().err
