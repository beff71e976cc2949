"""Memory runs out, or a device fails for good (F05): CUDA's errors, injected on the CPU."""

from __future__ import annotations

import os
import pathlib
import signal

import numpy as np
import pytest
import torch

import shmgpu
import shmgpu.broker.events
from shmgpu.common import devices

AcceleratorError = getattr(torch, "AcceleratorError", RuntimeError)

OUT_OF_MEMORY = [
    (torch.cuda.OutOfMemoryError, "CUDA out of memory. Tried to allocate 20.00 GiB"),
    (AcceleratorError, "CUDA error: out of memory"),
]
STICKY = [
    (AcceleratorError, "CUDA error: an illegal memory access was encountered"),
    (RuntimeError, "CUDA error: device-side assert triggered"),
]
OF_THE_CALL = [  # reported by the device, which works on
    (AcceleratorError, "CUDA error: invalid configuration argument"),
    (RuntimeError, "shapes cannot be multiplied"),
]
LOOPS = pytest.mark.parametrize("overlaps", [False, True], ids=["serve", "serve_overlapped"])


class FailingDevice(devices.CpuDevice):
    """A CPU that fails as a GPU does: after a sticky error every question is answered with it."""

    def __init__(self, emptied: pathlib.Path, overlaps: bool) -> None:
        self.emptied = emptied
        self.is_cuda = overlaps
        self.is_sticky = False

    def empty_cache(self):
        with open(self.emptied, "a") as file:
            print(os.getpid(), file=file)

    def is_beyond_use(self):
        return self.is_sticky


failing: FailingDevice | None = None  # in a helper: its own copy


@shmgpu.function
def fail(helper, x, kind, message, is_sticky):
    failing.is_sticky = is_sticky
    raise {one.__name__: one for one, _ in OUT_OF_MEMORY + STICKY}[kind](message)


@shmgpu.function(batch=shmgpu.Batch(max_size=4, max_delay=20))  # it runs when it is full
def fail_in_a_batch(helper, x):
    failing.is_sticky = True
    raise RuntimeError("CUDA error: device-side assert triggered")


@shmgpu.function
def pid(helper):
    return os.getpid()


@pytest.fixture
def broker(monkeypatch, tmp_path):
    """Starts a broker whose helper has a failing device; returns the list of emptied caches."""

    def start(overlaps):
        global failing
        emptied = tmp_path / "emptied"
        emptied.touch()
        failing = FailingDevice(emptied, overlaps)
        monkeypatch.setattr(devices, "make", lambda *_: failing)
        shmgpu.init(helpers=1, devices="cpu", arena="1MiB")
        return emptied

    yield start
    shmgpu.shutdown()


@LOOPS
@pytest.mark.parametrize(("kind", "message"), OUT_OF_MEMORY)
def test_f05_out_of_device_memory_is_the_callers_error_and_the_helper_lives(
    broker, kind, message, overlaps
):
    emptied = broker(overlaps)
    first = pid()
    with pytest.raises(shmgpu.RemoteError) as caught:
        fail(np.zeros(1), kind.__name__, message, False)
    assert caught.value.message == message
    assert pid() == first
    assert emptied.read_text().split() == [str(first)]  # what it had cached went back, once
    assert shmgpu.stats()["broker"]["helper_deaths"] == 0


@LOOPS
@pytest.mark.parametrize(("kind", "message"), STICKY)
def test_f05_after_a_sticky_error_the_caller_is_answered_and_the_helper_replaced(
    broker, kind, message, overlaps, events
):
    broker(overlaps)
    first = pid()
    with pytest.raises(shmgpu.RemoteError) as caught:
        fail(np.zeros(1), kind.__name__, message, True)
    assert caught.value.message == message
    assert pid() != first
    assert shmgpu.stats()["broker"]["helper_deaths"] == 1
    [death] = events("helper_died")
    assert death["cause"] == "exit status 1"


@LOOPS
def test_f05_every_call_of_a_batch_is_answered_before_the_helper_ends(broker, overlaps, events):
    broker(overlaps)
    first = pid()
    futures = [fail_in_a_batch.submit(np.zeros((1, 2))) for _ in range(4)]
    for future in futures:
        with pytest.raises(shmgpu.RemoteError, match="device-side assert"):
            future.result(10)
    assert pid() != first
    [death] = events("helper_died")
    assert death["cause"] == "exit status 1"


@pytest.mark.parametrize(("kind", "message"), OF_THE_CALL)
def test_f05_an_error_that_the_device_survives_ends_nobody(broker, kind, message):
    emptied = broker(False)
    first = pid()
    with pytest.raises(shmgpu.RemoteError):
        fail(np.zeros(1), kind.__name__, message, False)
    assert pid() == first and emptied.read_text() == ""


@shmgpu.function(arrays="numpy")
def oom_score(helper):
    return own_oom_score()


def own_oom_score():
    return int(pathlib.Path("/proc/self/oom_score_adj").read_text())


def test_f05_the_kernel_takes_a_role_before_the_parent():
    def main(rank):
        return own_oom_score(), oom_score()

    mine = own_oom_score()
    for scores in shmgpu.launch(main, children=2, helpers=1, devices="cpu", arena="1MiB"):
        assert scores == (min(mine + 300, 1000),) * 2


@shmgpu.function(arrays="numpy")
def killed_by_the_kernel(helper, counter, says_so):
    if says_so:
        pathlib.Path(counter).write_text("pgfault 7\noom_kill 4\n")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("says_so", [False, True])
def test_f05_a_kill_that_the_kernel_counts_is_told_as_want_of_memory(
    monkeypatch, tmp_path, events, says_so
):
    counter = tmp_path / "vmstat"
    counter.write_text("pgfault 7\noom_kill 3\n")
    monkeypatch.setattr(shmgpu.broker.events, "VMSTAT", str(counter))
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        with pytest.raises(shmgpu.HelperDied):
            killed_by_the_kernel(str(counter), says_so)
        assert pid() > 0
    [death] = events("helper_died")
    assert death["cause"] == "killed by SIGKILL" + ", likely out of memory" * says_so
