"""One broker for the tests of a file, and a process that is in none when a test begins."""

from __future__ import annotations

import pytest
from attach import brokers

import shmgpu


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The socket of a running broker: three places, a helper in each of two pools."""
    path = tmp_path_factory.mktemp("broker") / "broker.sock"
    with brokers.up(path, helpers={"first": 1, "second": 1}):
        yield path


@pytest.fixture(autouse=True)
def leaves(monkeypatch):
    """No test leaves this process in a broker, or hears of one of the user's."""
    monkeypatch.delenv("SHMGPU_SOCKET", raising=False)
    yield
    shmgpu.disconnect()
