"""``gpu_workers(n)``, ``set_backend(device=)``: on which helpers a program's tensors live."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import shmgpu as gt
from shmgpu import core, errors
from shmgpu.attach import automatic, control
from shmgpu.tensors import current, placement
from shmgpu.tensors.message import HelperIncarnation

PROGRAM = """
import shmgpu as gt
gt.gpu_workers({count})
for n in range(4):  # each is computed before the next is made
    assert (gt.ones(2) + n).data[0] == n + 1
print(len([row for row in gt.stats()["helpers"] if row["finished"]]))
"""


@pytest.fixture
def place(tmp_path):
    """A socket at which no broker listens yet; one that does at the end is ended."""
    path = tmp_path / "broker.sock"
    yield path
    for one in automatic.running(path):
        control.down(path=one)


def run(place, count, **environment):
    given = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    given.update(SHMGPU_SOCKET=str(place), SHMGPU_ARENA="8MiB", **environment)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(count=count)],
        env=given, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_the_first_program_starts_a_broker_with_so_many_and_a_later_one_uses_fewer(place):
    first = run(place, 2)
    assert first.stdout.strip() == "2", first.stderr
    later = run(place, 1)  # both helpers have finished something by now: it is not refused
    assert later.returncode == 0, later.stderr


def test_a_broker_that_may_not_have_so_many_says_so(place):
    assert run(place, 1).returncode == 0
    refused = run(place, 17)
    assert refused.returncode != 0
    assert "gpu_workers(17): the broker has 1 helper, and" in refused.stderr
    assert "from 1 to 16" in refused.stderr


def test_it_comes_before_the_first_tensor():
    with gt.init(inline=True):
        gt.gpu_workers(1)
        gt.ones(2)
        with pytest.raises(RuntimeError, match="before the first"):
            gt.gpu_workers(1)


def load(helper):
    if helper.generation > 1:
        time.sleep(0.3)  # while it is missed


def test_a_helper_that_takes_the_place_of_a_dead_one_is_waited_for():
    with gt.init(helpers=2, devices="cpu", arena="8MiB", session=load):
        row = gt.stats()["helpers"][1]
        os.kill(row["pid"], signal.SIGKILL)
        while (now := gt.stats()["helpers"][1])["state"] == core.HELPER_READY:
            if now["generation"] > row["generation"]:  # there already
                break
            time.sleep(0.002)
        gt.gpu_workers(2)
        assert [row["state"] for row in gt.stats()["helpers"]] == [core.HELPER_READY] * 2


def test_a_broker_of_this_program_alone_says_when_to_ask():
    with gt.init(helpers=1, arena="8MiB"):
        gt.gpu_workers(1)
        with pytest.raises(errors.ConfigError, match="start it with helpers=2"):
            gt.gpu_workers(2)
        assert len(gt.stats()["helpers"]) == 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many"])
def test_what_is_no_number_of_helpers_is_refused(wrong):
    with gt.init(inline=True), pytest.raises(errors.ConfigError, match="gpu_workers"):
        gt.gpu_workers(wrong)


# ---- the device ----------------------------------------------------------------------------------

ON_DEVICE = """
import shmgpu as gt
gt.set_backend("torch", device={device!r})
print((gt.ones(2) + 1).data.tolist())
"""


@pytest.fixture(autouse=True)
def _same_backend(monkeypatch):
    monkeypatch.setattr(current, "_backend", "torch")


@pytest.fixture
def two_devices(monkeypatch):
    """As if helper 1 had another device than helper 0."""
    monkeypatch.setattr(placement, "_device_of", lambda number: ["cpu", "cuda:0"][number])


def run_on(device, place):
    given = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    given.update(SHMGPU_SOCKET=str(place), SHMGPU_ARENA="8MiB")
    return subprocess.run(
        [sys.executable, "-c", ON_DEVICE.format(device=device)],
        env=given, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_program_in_no_broker_starts_one_whose_helpers_have_the_device(place):
    first = run_on("cpu", place)
    assert first.stdout.strip() == "[2.0, 2.0]", first.stderr
    refused = run_on("cuda:99", place)
    assert refused.returncode != 0
    assert "devices names cuda:99, and this machine shows" in refused.stderr


def test_a_device_that_does_not_exist_is_refused_by_the_broker_that_would_need_it(place):
    refused = run_on("cuda:99", place)
    assert refused.returncode != 0
    assert "devices names cuda:99, and this machine shows" in refused.stderr
    assert not place.exists()
    until = time.monotonic() + 30
    while names_in_an_environment(place):  # what could not become a broker is ending
        assert time.monotonic() < until
        time.sleep(0.02)


def names_in_an_environment(place):
    def names(process):
        try:
            return str(place).encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    return any(map(names, pathlib.Path("/proc").glob("[0-9]*")))


def test_what_is_no_device_is_refused_and_changes_nothing():
    with gt.init(inline=True, devices="cpu"):
        for name, device, error, words in (
            ("torch", "tpu", errors.ConfigError, "'tpu' is no device"),
            ("torch", "cuda:1", errors.ConfigError, "the broker's helpers have cpu"),
            ("numpy", "cuda:0", ValueError, "NumPy computes on the CPU only"),
            ("jax", "cpu", ValueError, "torch and numpy"),
        ):
            with pytest.raises(error, match=words):
                gt.set_backend(name, device=device)
        assert (gt.ones(2) + 1).data.tolist() == [2, 2]
        gt.set_backend("numpy", device="cpu")
        assert (gt.ones(2) + 1).data.tolist() == [2, 2]


def test_tensors_live_on_the_helpers_that_have_the_device(two_devices):
    with gt.init(helpers=2, devices="cpu", arena="8MiB"):
        gt.set_backend("torch", device="cuda:0")
        kept = [gt.ones(2) + n for n in range(4)]
        for n, one in enumerate(kept):
            assert one.sum().item() == 2 * n + 2
        assert current.recorder().helpers == (1,)
        gt.set_backend("torch", device="cuda:0")  # as it is
        with pytest.raises(RuntimeError, match="before the first"):
            gt.set_backend("torch", device="cpu")


def test_as_many_workers_as_asked_are_taken_of_those_with_the_device(two_devices):
    with gt.init(helpers=2, devices="cpu", arena="8MiB"):
        gt.set_backend("torch", device="cuda:0")
        gt.gpu_workers(1)
        assert (gt.ones(2) + 1).sum().item() == 4
        assert current.recorder().helpers == (1,)


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("goes_on", [0, 1])
def test_a_helper_is_idle_that_has_no_call_and_finishes_none(monkeypatch, in_flight, goes_on):
    row = {"in_flight": in_flight, "goes_on": goes_on}
    monkeypatch.setattr(core, "helper_stats", lambda number: row)
    assert HelperIncarnation(0).is_idle() is (in_flight == goes_on == 0)
