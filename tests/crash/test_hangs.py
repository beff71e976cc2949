"""A helper hangs: a deadline frees its caller, hang_after ends the helper (F06)."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import numpy as np
import pytest
from crash.programs import until

import shmgpu


@shmgpu.function(arrays="numpy")
def takes_its_time(helper, x, gate):
    until(lambda: gate[0], "somebody lets it go")
    return os.getpid()


@shmgpu.function(arrays="numpy", hang_after=0.2)
def hangs(helper, deaf):
    if deaf:
        faulthandler.disable()
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
    time.sleep(60)


@shmgpu.function(arrays="numpy")
def pid(helper):
    return os.getpid()


ONE_HELPER = {"helpers": 1, "devices": "cpu", "arena": "1MiB"}


def used():
    return shmgpu.arena.stats()["used_bytes"]


def test_f06_a_deadline_frees_its_caller_and_nothing_else_happens():
    with shmgpu.init(**ONE_HELPER):
        first = pid()
        gate = shmgpu.arena.zeros(1)
        nothing = used()
        x = shmgpu.arena.zeros(10_000)
        with pytest.raises(shmgpu.CallTimeout):
            takes_its_time.options(timeout=0.5)(x, gate)  # so late that it has begun
        del x
        assert used() >= nothing + 40_000  # the helper may still be reading it
        gate[0] = 1
        assert pid() == first  # it ended its call, was not ended, and serves on
        until(lambda: pid() and used() <= nothing + 4096, "an abandoned call's memory comes back")
        assert shmgpu.stats()["broker"]["helper_deaths"] == 0


@pytest.mark.parametrize(("deaf", "by"), [(False, "SIGABRT"), (True, "SIGKILL")])
def test_f06_a_call_beyond_its_hang_after_ends_its_helper(events, deaf, by):
    with shmgpu.init(**ONE_HELPER):
        first = pid()
        with pytest.raises(shmgpu.HelperDied):
            hangs.submit(deaf).result(10)
        assert pid() != first
    [death] = events("helper_died")
    assert death["cause"].endswith(f"killed by {by}")
    stacks = events("stack")  # SIGABRT comes first because it leaves one
    assert ["Aborted" in one["stack"] and "in hangs" in one["stack"] for one in stacks] == (
        [] if deaf else [True]
    )


def test_f06_a_function_without_hang_after_may_take_as_long_as_it_likes():
    with shmgpu.init(helpers=2, devices="cpu", arena="1MiB"):
        gate = shmgpu.arena.zeros(1)
        slow = takes_its_time.submit(np.zeros(1), gate[:])
        with pytest.raises(shmgpu.HelperDied):
            hangs(False)  # the broker looks for hangs now, and finds the other
        gate[0] = 1
        assert slow.result(10) > 0
        assert shmgpu.stats()["broker"]["helper_deaths"] == 1
