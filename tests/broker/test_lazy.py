"""Sessions that are made at the first call, and given back when no call has come for long."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from crash.programs import until
from crash.weights import everywhere, see, set_weights

import shmgpu
from shmgpu import core

LOADING_S = 0.25


def load(helper):
    time.sleep(LOADING_S)
    return os.getpid()


def load_never(helper):
    raise FileNotFoundError("weights.pt is not there")


@shmgpu.function
def session_of(helper):
    return helper.session


@shmgpu.function(hang_after=0.1)
def short(helper):
    return helper.session, os.getpid()


@shmgpu.function(arrays="numpy")
def double(helper, x):
    return x * 2


def states():
    return [core.HELPER_STATES[row["state"]] for row in shmgpu.stats()["helpers"]]


def start(**settings):
    return shmgpu.init(**{"devices": "cpu", "arena": "4MiB", "session": load, **settings})


# ---- at the first call -------------------------------------------------------------------------


def test_each_session_is_made_when_a_call_comes_and_not_before():
    with start(helpers=2, lazy=True):
        assert states() == ["unloaded", "unloaded"]
        made = session_of()
        assert made == session_of() == shmgpu.stats()["helpers"][0]["pid"]
        assert states() == ["ready", "unloaded"]
        assert session_of.options(helpers=[1])() == shmgpu.stats()["helpers"][1]["pid"]
        assert states() == ["ready", "ready"]


def test_making_it_is_no_part_of_the_calls_own_time():
    with start(helpers=1, lazy=True):
        future = short.submit()
        until(lambda: states() == ["loading"], "the helper makes its session")
        session, pid = future.result()
        assert session == pid  # it was not ended for hanging
        assert shmgpu.stats()["helpers"][0]["busy_ns"] < LOADING_S * 1e9


def test_calls_that_wait_learn_why_there_is_no_session():
    with start(helpers=1, lazy=True, session=load_never):
        for _ in range(2):  # it is tried again
            with pytest.raises(shmgpu.RemoteError) as caught:
                session_of()
            assert "at its first call: FileNotFoundError: weights.pt is not there" in str(
                caught.value
            )
            assert "in load_never" in caught.value.traceback_text
        until(lambda: states() == ["unloaded"], "another helper has taken its place")


def test_pools_differ():
    with start(helpers={"large": 1, "small": 1}, lazy={"large": True}):
        assert states() == ["unloaded", "ready"]
    with pytest.raises(shmgpu.ConfigError, match="lazy names the pool 'big'"):
        start(helpers={"large": 1, "small": 1}, lazy={"big": True})
    with pytest.raises(shmgpu.ConfigError, match="idle"):
        start(idle=-1)


def test_the_environment_says_it(monkeypatch):
    monkeypatch.setenv("SHMGPU_LAZY", "1")
    monkeypatch.setenv("SHMGPU_IDLE", "0.05")
    with start():
        assert states() == ["unloaded"]
        before = session_of()
        until(lambda: states() == ["unloaded"], "it was idle")
        assert session_of() != before


def test_a_helper_that_dies_before_its_first_call_is_replaced_by_one_like_it():
    with start(lazy=True):
        first = shmgpu.stats()["helpers"][0]["pid"]
        os.kill(first, signal.SIGKILL)
        until(lambda: shmgpu.stats()["helpers"][0]["pid"] not in (0, first), "it is replaced")
        until(lambda: states() == ["unloaded"], "and waits for a call")
        assert session_of() not in (0, first)


def test_a_broadcast_waits_for_the_session_but_no_call_runs_before_it():
    with start(helpers=2, lazy=True):
        for number in range(1, 4):  # runs in one of them at once
            assert set_weights.broadcast(np.full(3, float(number))) == number
        assert sorted(states()) == ["ready", "unloaded"]
        assert [(version, weights[0]) for _, version, weights, _ in everywhere(see)] == [(3, 3)] * 2
        assert states() == ["ready", "ready"]


def test_several_helpers_as_one_device_are_loaded_together():
    import shmgpu as gt
    from shmgpu.distributed import Shard, distribute_tensor, init_device_mesh

    with start(helpers=2, lazy=True):
        mesh = init_device_mesh("helper", (2,))
        x = distribute_tensor(gt.ones(4, 2), mesh, [Shard(0)])
        assert float((x * 3).sum().full_tensor()) == 24
        assert states() == ["ready", "ready"]


# ---- and when none has come for long -----------------------------------------------------------


def test_an_idle_helper_gives_its_session_back_and_that_is_no_death():
    with start(helpers=1, idle=0.5):  # less would be over before it is looked at, now and then
        assert states() == ["ready"]  # not lazy
        first = session_of()
        until(lambda: states() == ["unloaded"], "it was idle")
        assert session_of() != first
        row = shmgpu.stats()
        assert row["helpers"][0]["deaths"] == row["broker"]["helper_deaths"] == 0
        assert row["broker"]["helper_respawns"] >= 1


def test_the_last_broadcast_is_there_when_it_is_loaded_again():
    with start(helpers=1, idle=0.05):
        set_weights.broadcast(np.full(3, 7.0))
        until(lambda: states() == ["unloaded"], "it was idle")
        _number, version, weights, generation = see()
        assert (version, weights[0]) == (1, 7) and generation > 1


def test_it_stays_while_it_holds_tensors():
    import shmgpu as gt

    with start(helpers=1, idle=0.02, session=None):
        kept = gt.ones(3) + 1
        assert (kept * 2).data.tolist() == [4, 4, 4]  # which leaves what is kept there
        pid = shmgpu.stats()["helpers"][0]["pid"]
        time.sleep(0.2)  # ten times as long as it would wait
        assert shmgpu.stats()["helpers"][0]["pid"] == pid
        assert kept.data.tolist() == [2, 2, 2]
        del kept
        gt.ones(1).data  # takes the message that it is gone along
        until(lambda: states() == ["unloaded"], "nothing is held")


def test_no_call_is_lost_at_the_moment_it_ends():
    """Calls that come as helpers get idle, or offer to end, or start anew."""
    idle = 0.002
    with start(helpers=2, idle=idle, session=None):
        wrong = []

        def call(number):
            for index in range(60):
                if double(np.full(8, index)).sum() != 16 * index:
                    wrong.append((number, index))
                time.sleep(idle * (1 + (index * 7 + number) % 5) / 3)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        row = shmgpu.stats()["broker"]
        assert row["helper_deaths"] == row["failed"] == 0


def test_a_result_that_waits_for_room_keeps_it():
    with start(helpers=1, idle=0.02, session=None):
        grown = double.submit(np.ones(200_000))  # larger than any result before
        time.sleep(0.1)
        assert grown.result().sum() == 400_000


def test_an_unloaded_broker_ends_at_once():
    with start(helpers=2, lazy=True):
        began = time.monotonic()
    assert time.monotonic() - began < LOADING_S * 4  # nobody is waited for
