"""A helper hangs: a deadline frees its caller, hang_after ends the helper (F06)."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
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


CTRL_Z = """
import os
import sys
import time
import shmgpu

@shmgpu.function(arrays="numpy", hang_after=1.0)
def slow(helper, path):
    open(path, "w").close()
    while not os.path.exists(path + ".on"):
        time.sleep(0.001)
    return 1

def main(rank, path):
    return slow(path)

if __name__ == "__main__":
    print(shmgpu.launch(main, children=1, helpers=1, devices="cpu", args=(sys.argv[1],)))
"""


def test_f06_a_call_does_not_hang_while_the_whole_job_is_stopped(tmp_path):
    """Ctrl-Z at a terminal stops all processes of a job, and the clock runs on."""
    program = tmp_path / "program.py"
    program.write_text(CTRL_Z)
    begun = tmp_path / "begun"
    job = subprocess.Popen(
        [sys.executable, str(program), str(begun)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(begun.exists, "the call begins", 60)
    os.killpg(job.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    until(lambda: time.monotonic() > stopped + 2.0, "more time than a call may take has passed")
    (tmp_path / "begun.on").touch()
    os.killpg(job.pid, signal.SIGCONT)
    said, complained = job.communicate(timeout=60)
    assert said == "[1]\n" and "helper_hung" not in complained, complained
