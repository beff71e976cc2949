"""``shmgpu top`` beside a server: it shows what clients had of each model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from serve import servers

from shmgpu.serve.state.counters import INDEX, Counters
from shmgpu.watch import server_counters, tables


@pytest.fixture(scope="module")
def server():
    with servers.serving(servers.MODELS / "simple.py", workers=2) as running:
        yield running


def top(server, *words):
    return subprocess.run(
        [sys.executable, "-m", "shmgpu", "top", str(server.process.pid), "--once", *words],
        env=servers.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=servers.DEADLINE_S,
    ).stdout


def ask(server, model, data):
    one = {"name": "x", "datatype": "FP32", "shape": [len(data)], "data": data}
    body = json.dumps({"inputs": [one]}).encode()
    return server.ask("POST", f"/v2/models/{model}/infer", body)[0]


def test_counters_that_were_closed_are_found_by_nobody():
    made = Counters(1, 1)
    try:
        path = server_counters.find(os.getpid())
        assert path is not None
        made.file.name(0, "m")
        made.rows[0, 0, INDEX["success_count"]] = 7
        assert "m" in server_counters.read(path)[0]
    finally:
        made.close()
    assert server_counters.find(os.getpid()) is None and server_counters.read(path) == ({}, [])
    assert made.total(0)["success_count"] == 7, "they stay readable here"


def test_requests_and_failures_are_seen_by_model(server):
    def by_model():
        return {one["model"]: one for one in json.loads(top(server, "--json"))["models"]}

    before = by_model()
    for _ in range(5):
        assert ask(server, "scale", [1.0]) == 200
    for _ in range(2):
        assert ask(server, "fails", [1.0]) == 500
    models = by_model()
    assert models["scale 1"]["requests"] == before["scale 1"]["requests"] + 5
    assert models["scale 1"]["failed"] == models["scale 1"]["pending"] == 0
    assert models["fails 1"]["failed"] == before["fails 1"]["failed"] + 2
    assert models["scale 1"]["request_us"] is None, "none in the interval"
    text = top(server)
    assert "requests/s" in text and "scale 1" in text


def test_open_connections_are_seen_by_worker(server):
    def counts():
        return [one["connections"] for one in json.loads(top(server, "--json"))["children"]]

    with socket.create_connection((server.host, server.port), servers.DEADLINE_S):
        servers.until(lambda: sum(counts()) == 1, "one is open")
        assert "connections" in top(server)
    servers.until(lambda: counts() == [0, 0], "it has ended")


def test_the_means_are_of_the_interval(server):
    path = server_counters.find(server.process.pid)
    before, _ = server_counters.read(path)
    for _ in range(4):
        assert ask(server, "scale", [1.0, 2.0]) == 200
    now, _ = server_counters.read(path)
    (row,) = (one for one in server_counters.show(now, before, 2.0) if one["model"] == "scale 1")
    assert (row["requests_per_s"], row["requests_per_run"]) == (2.0, 1.0)
    assert 0 < row["compute_us"] < row["request_us"]


def test_a_file_that_is_none_of_ours_is_nothing(tmp_path):
    assert server_counters.find(os.getpid()) is None
    for bad in (b"", b"x" * 10_000, b"shmfig01" + (1 << 60).to_bytes(8, "little") + b"{}" * 3000):
        (tmp_path / "bad").write_bytes(bad)
        assert server_counters.read(str(tmp_path / "bad")) == ({}, [])
    head = b'{"writers": 1, "models": 1, "fields": ["other"]}'
    other = b"shmfig01" + len(head).to_bytes(8, "little") + head
    (tmp_path / "bad").write_bytes(
        other.ljust(4096, b"\0") + b"name".ljust(256, b"\0") + b"12345678"
    )
    assert server_counters.read(str(tmp_path / "bad")) == ({}, [])
    assert server_counters.read(str(tmp_path / "gone")) == ({}, [])


def test_a_model_calls_for_attention_as_soon_as_requests_fail():
    assert tables.MODELS.is_bad({"failed_per_s": 0.1})
    assert not tables.MODELS.is_bad({"failed_per_s": 0.0})
