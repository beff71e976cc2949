"""The file in which GT's workers stand for helpers of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import shmgpu
from shmgpu.attach import endpoint
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
