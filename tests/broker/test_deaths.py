"""Helpers that die or hang, seen from Python: who hears of it, and that service goes on."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time

import numpy as np
import pytest

import shmgpu


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=16))
def dies_in_a_batch(helper, x):
    if (x < 0).any():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
    return x


@pytest.fixture
def broker():
    with shmgpu.init(helpers=2, devices="cpu"):
        yield


def test_memory_of_a_dead_helpers_call_returns(broker):
    x = shmgpu.arena.zeros(100_000)
    with pytest.raises(shmgpu.HelperDied):
        die()
    for _ in range(10):
        add_one(x)
    before = shmgpu.arena.stats()["used_bytes"]
    for _ in range(3):
        with pytest.raises(shmgpu.HelperDied):
            die()
        add_one(x)
    assert shmgpu.arena.stats()["used_bytes"] <= before + 4096


def test_a_death_in_a_batch_is_heard_by_its_calls_only(broker):
    good = np.ones((1, 2))
    futures = [dies_in_a_batch.submit(good) for _ in range(20)]
    bad = dies_in_a_batch.submit(-good)
    futures += [dies_in_a_batch.submit(good) for _ in range(20)]
    with pytest.raises(shmgpu.HelperDied):
        bad.result(20)
    outcomes = [future.exception(20) for future in futures]
    assert all(error is None or isinstance(error, shmgpu.HelperDied) for error in outcomes)
    assert sum(error is None for error in outcomes) >= 20
    assert dies_in_a_batch(good).tolist() == good.tolist()


def refuse_forks(monkeypatch, numbers):
    """Let the forks of these numbers, from 0, fail as under a limit on processes."""
    fork, count = os.fork, itertools.count()

    def limited():
        if next(count) in numbers:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", limited)


def test_a_process_that_cannot_be_forked_ends_a_launch_in_a_sentence(monkeypatch):
    refuse_forks(monkeypatch, {3})
    with pytest.raises(shmgpu.LaunchError, match="forking: Resource temporarily unavailable"):
        shmgpu.launch(lambda rank: rank, children=4, helpers=1, devices="cpu", arena="1MiB")


def test_a_replacement_that_cannot_be_forked_at_once_is_forked_later(monkeypatch):
    def main(rank):
        with pytest.raises(shmgpu.HelperDied):
            die()
        return float(add_one(np.zeros(1))[0])

    refuse_forks(monkeypatch, {2})  # after the helper and the child
    assert shmgpu.launch(main, children=1, helpers=1, devices="cpu", arena="1MiB") == [1.0]


def test_a_trace_of_an_init_is_written_at_its_end(tmp_path):
    path = tmp_path / "trace.json"
    with shmgpu.init(helpers=1, devices="cpu", trace_path=path):
        add_one(np.zeros(1))
        live = tmp_path / "live.json"
        assert shmgpu.write_trace(live) >= 1
    assert "add_one" in path.read_text() and "add_one" in live.read_text()


@pytest.mark.slow
def test_many_children_and_populated_arenas():
    def main(rank):
        return int(add_one(shmgpu.arena.zeros(1))[0]) + rank

    results = shmgpu.launch(
        main, children=100, helpers=3, devices="cpu", arena="256KiB", prefault=True
    )
    assert results == [1 + rank for rank in range(100)]
