"""What a helper holds for a child goes when the child goes, however it goes."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import pytest
from attach import brokers

import shmgpu
from shmgpu.tensors.functions import engine_figures

MB = 1 << 20
PART = 25 * MB  # bytes of each tensor; below, an allocator may keep what is freed


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)


def rss_of_helper(pid=0):
    pid = pid or shmgpu.stats()["helpers"][0]["pid"]
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def hold_100_mb():
    held = [shmgpu.ones(PART // 4) * 2.0 for _ in range(4)]
    for one in held:
        assert one.sum().item() == PART // 2
    return held


LEAVING = {
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "ends": lambda: None,
}


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_tensors_of_a_child_that_left_are_freed_while_its_helper_is_idle(tmp_path, way, backend):
    held, again = tmp_path / "held", tmp_path / "again"

    def victim(rank):
        if held.exists():
            again.touch()
            return
        shmgpu.set_backend(backend)
        tensors = hold_100_mb()
        held.touch()
        wait_for((tmp_path / "seen").exists)
        LEAVING[way]()
        del tensors

    def witness(rank):
        wait_for(held.exists)
        full = rss_of_helper()
        (row,) = [one for one in engine_figures()[0]["children"] if one["slot"] == 0]
        (tmp_path / "seen").touch()
        # Nothing is sent from here on: the helper hears of it by itself.
        wait_for(lambda: rss_of_helper() < full - 90 * MB)
        (figures,) = engine_figures()
        return row, [one["slot"] for one in figures["children"]]

    _, (row, left) = shmgpu.launch(
        [victim, witness], devices="cpu", arena="64MiB", restart="on-failure"
    )
    assert row["bytes"] >= 100 * MB
    assert row["tensors"] == 4
    assert left == []


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_tensors_of_a_program_that_disconnected_are_freed(tmp_path, backend):
    place = tmp_path / "socket"
    with brokers.up(place, slots=1, helpers=1, arena="64MiB"):
        shmgpu.connect(place, wait=5)
        shmgpu.set_backend(backend)
        tensors = hold_100_mb()
        helper = shmgpu.stats()["helpers"][0]["pid"]
        full = rss_of_helper(helper)
        shmgpu.disconnect()
        wait_for(lambda: rss_of_helper(helper) < full - 90 * MB)
        del tensors


def test_a_child_over_its_quota_is_told_so_and_goes_on(monkeypatch):
    monkeypatch.setenv("SHMGPU_RESIDENT", "1MiB")

    def child(rank):
        small = shmgpu.ones(1000) * 3.0
        small.sum().item()
        large = shmgpu.ones(1 << 20) * 2.0
        with pytest.raises(shmgpu.RemoteError, match="over its quota of 1048576 bytes"):
            large.sum().item()
        del large
        return small.sum().item()

    assert shmgpu.launch([child], devices="cpu") == [3000.0]
