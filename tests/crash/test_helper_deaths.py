"""A helper dies: whose call is lost, whose is not, and how it is replaced (F01, F04, F36)."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import time

import pytest
from crash.programs import until

import shmgpu
from shmgpu.broker.launch_config import LaunchConfig


@shmgpu.function(arrays="numpy", mutates=True)
def count_run(helper, x):
    x[0] += 1
    if x[1] == DEADLY:
        until(lambda: x[3], "more have been handed over")
        x[2] = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1


@shmgpu.function(arrays="numpy")
def pid(helper):
    return os.getpid()


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy", idempotent=True, mutates=True)
def dies_at_first(helper, x, times):
    x[0] += 1
    if x[0] <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@shmgpu.function(arrays="numpy")
def end(helper, how):
    ENDS[how][0]()


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


ENDS = {  # how a function ends its helper, what the log says, and what the stack shows
    "segfault": (segfault, "killed by SIGSEGV", ("Segmentation fault", "in segfault", "in end")),
    "abort": (abort, "killed by SIGABRT", ("Aborted", "in abort", "in end")),
    "exit 0": (lambda: os._exit(0), "exit status 0", ()),
}
DEADLY = 7.0
ONE_HELPER = {"helpers": 1, "devices": "cpu", "arena": "1MiB"}


# ---- F01 -------------------------------------------------------------------------------------


@pytest.fixture
def many_ahead(monkeypatch):
    """A helper is handed many calls ahead, however long they take."""
    settle = LaunchConfig.__init__

    def settle_otherwise(self, **settings):
        settle(self, **settings)
        self.min_credit = [16] * len(self.min_credit)

    monkeypatch.setattr(LaunchConfig, "__init__", settle_otherwise)


def test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once(many_ahead):
    with shmgpu.init(**ONE_HELPER):
        kinds = [DEADLY if n == 10 else 0.0 for n in range(40)]
        arrays = [shmgpu.arena.array([0.0, kind, 0.0, 0.0]) for kind in kinds]
        gate = arrays[10][3:]
        calls = [count_run.submit(x) for x in arrays]
        deadly = calls.pop(10)
        until(lambda: arrays[10][0] == 1, "it executes")
        until(lambda: shmgpu.stats()["helpers"][0]["in_flight"] > 1, "more are handed over")
        gate[0] = 1
        with pytest.raises(shmgpu.HelperDied):
            deadly.result(10)
        assert time.monotonic() - arrays[10][2] < 1  # its caller hears of it within a second
        for call in calls:
            assert call.result(10).tolist() == [2, 1, 1, 1]
        assert [x[0] for x in arrays] == [1] * 40
        broker = shmgpu.stats()["broker"]
        assert broker["helper_deaths"] == 1 and broker["requeued"] > 0


def test_f01_an_idempotent_call_is_made_once_more_and_never_a_third_time():
    with shmgpu.init(**ONE_HELPER):
        x = shmgpu.arena.zeros(1)
        assert dies_at_first(x, 1) == "alive" and x[0] == 2
        x[0] = 0
        with pytest.raises(shmgpu.HelperDied):
            dies_at_first(x, 100)
        assert x[0] == 2


def test_f01_a_replacement_comes_after_pauses_that_double(tmp_path):
    mark = tmp_path / "starts"

    def session(helper):
        with open(mark, "a") as file:
            print(time.monotonic(), file=file)

    deaths = []
    with shmgpu.init(session=session, **ONE_HELPER):
        for _ in range(4):
            pid()  # the helper is there
            deaths.append(time.monotonic())
            with pytest.raises(shmgpu.HelperDied):
                die()
        pid()
    starts = [float(line) for line in mark.read_text().split()][1:]
    pauses = [start - death for start, death in zip(starts, deaths, strict=True)]
    least = [0, 0.05, 0.1, 0.2]
    assert all(pause >= wanted for pause, wanted in zip(pauses, least, strict=True)), pauses


def test_f01_five_quick_deaths_end_the_launch_with_the_reason():
    def main(rank):
        for number in itertools.count(1):
            try:
                pid()  # one that goes well between them changes nothing
                die()
            except shmgpu.HelperDied:
                if number > 6:
                    return
            except shmgpu.NoHelpers:
                time.sleep(30)  # until it is told to end

    with pytest.raises(shmgpu.LaunchError, match=r"helper 0 died 5 times, each within 10 s"):
        shmgpu.launch(main, children=2, **ONE_HELPER)


def test_f01_replacements_that_cannot_make_their_session_end_the_launch_with_that(tmp_path):
    mark = tmp_path / "made"

    def session(helper):
        if mark.exists():
            raise FileNotFoundError("the weights are gone")
        mark.touch()

    def main(rank):
        with pytest.raises(shmgpu.HelperDied):
            die()
        pid()  # waits for a replacement

    with pytest.raises(shmgpu.SessionError, match="the weights are gone") as caught:
        shmgpu.launch(main, children=1, session=session, **ONE_HELPER)
    assert caught.value.helper == 0 and "in session" in caught.value.traceback_text


def test_f01_so_do_sessions_that_cannot_be_made_at_a_call():
    def session(helper):
        raise FileNotFoundError("the weights are gone")

    def main(rank):
        with contextlib.suppress(shmgpu.NoHelpers):
            for _ in range(9):
                with pytest.raises(shmgpu.RemoteError, match="the weights are gone"):
                    pid()
        time.sleep(30)  # until it is told to end

    with pytest.raises(shmgpu.SessionError, match="the weights are gone") as caught:
        shmgpu.launch(main, children=1, session=session, lazy=True, **ONE_HELPER)
    assert caught.value.helper == 0 and "in session" in caught.value.traceback_text


@pytest.mark.parametrize("lazy", [False, True])
def test_f01_a_session_that_could_not_be_made_is_no_cause_of_later_deaths(tmp_path, events, lazy):
    is_away = tmp_path / "away"

    def session(helper):
        if is_away.exists():
            is_away.unlink()
            raise FileNotFoundError("the weights are gone")

    with shmgpu.init(session=session, lazy=lazy, **ONE_HELPER):
        first = pid()
        is_away.touch()
        os.kill(first, signal.SIGKILL)
        with pytest.raises(shmgpu.RemoteError) if lazy else contextlib.nullcontext():
            pid()
        with pytest.raises(shmgpu.HelperDied):
            die()
        pid()
    [failed] = events("helper_failed")
    assert failed["cause"] == "could not make its session: FileNotFoundError: the weights are gone"
    assert [death["cause"] for death in events("helper_died")] == ["killed by SIGKILL"] * 2


# ---- F04 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDS)
def test_f04_any_end_inside_a_call_is_a_death(how, events):
    with shmgpu.init(**ONE_HELPER):
        first = pid()
        with pytest.raises(shmgpu.HelperDied):
            end(how)
        assert pid() != first
        assert shmgpu.stats()["broker"]["helper_deaths"] == 1
    _, cause, stack = ENDS[how]
    [death] = events("helper_died")
    assert death["cause"] == cause
    left = "".join(one["stack"] for one in events("stack"))
    assert all(words in left for words in stack)  # down to the function that did it


# ---- F36 -------------------------------------------------------------------------------------

LOSES_A_REPLY = """
import numpy as np, shmgpu
from shmgpu import _core

@shmgpu.function(arrays="numpy", mutates=True)
def count_run(helper, x):
    x[0] += 1
    if x[1] == 1:
        assert _core.lib.shm_fault_arm(b"helper0@before_reply=KILL") == 0
    return x + 1

with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
    for _ in range(3):
        count_run(np.zeros(2))
    x = shmgpu.arena.array([0.0, 1.0])
    print(count_run(x).tolist(), x.tolist())
    print(count_run(np.zeros(2)).tolist(), shmgpu.stats()["broker"]["helper_deaths"])
"""


def test_f36_a_reply_that_died_with_its_helper_is_answered_exactly_once(with_faults):
    """The control page says that the call is finished, and how; its result lies in the arena."""
    done = with_faults("-c", LOSES_A_REPLY)
    assert done.stdout.splitlines() == ["[2.0, 2.0] [1.0, 1.0]", "[2.0, 1.0] 1"], done.stderr
    assert "killed by SIGKILL" in done.stderr
