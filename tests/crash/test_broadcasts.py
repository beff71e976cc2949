"""Broadcasts, and processes that die, fail or come later: helpers (F44) and senders (F45)."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from crash.programs import until
from crash.weights import TWO, everywhere, raise_in, see, set_weights, versions_and_weights

import shmgpu


@shmgpu.function(arrays="numpy")
def set_scale(helper, scale):
    helper.scale = scale
    helper.order = [*getattr(helper, "order", []), "scale"]


@shmgpu.function(arrays="numpy")
def set_offset(helper, offset):
    helper.offset = offset
    helper.order = [*getattr(helper, "order", []), "offset"]


@shmgpu.function(arrays="numpy")
def settings(helper):
    return helper.scale, helper.offset, helper.order, helper.version


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def raise_unless_first(helper, weights, gate):
    """Raises in whichever helper is not the first that runs it."""
    helper.weights = weights
    try:
        os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if helper.generation == 1:
            raise ValueError("the first was another") from None


@shmgpu.function(arrays="numpy")
def die_at_first(helper, weights, folder, lives):
    """Ends as many helpers as it is to, one after the other."""
    helper.weights = weights
    for number in range(lives):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def wait_for(helper, folder, gate, weights=None):
    """Says that it runs, and waits for a file."""
    if weights is not None:
        helper.weights = weights
    with open(f"{folder}/{helper.id}.runs", "w"):
        pass
    while not os.path.exists(gate):
        time.sleep(0.002)
    return helper.version


# ---- helpers that come later -------------------------------------------------------------------


def test_f44_a_helper_that_replaces_one_has_the_last_broadcasts_before_it_serves():
    with shmgpu.init(**TWO):
        set_scale.broadcast(1.0)
        set_offset.broadcast(2.0)
        assert set_scale.broadcast(3.0) == 3
        for number in range(2):
            with pytest.raises(shmgpu.HelperDied):
                die.options(helpers=[number])()
            found = settings.options(helpers=[number])()
            assert found == (3.0, 2.0, ["offset", "scale"], 3)
        assert shmgpu.stats()["broker"]["helper_respawns"] == 2


def test_f44_a_broadcast_while_a_helper_starts_reaches_it_too(tmp_path):
    slow = tmp_path / "slow"

    def load(helper):
        while helper.generation > 1 and not slow.exists():
            time.sleep(0.002)

    with shmgpu.init(session=load, **TWO):
        set_weights.broadcast(np.zeros(1))
        with pytest.raises(shmgpu.HelperDied):
            die.options(helpers=[0])()
        for number in range(2, 5):  # it does not wait for one that makes its session
            assert set_weights.broadcast(np.full(1, number)) == number
        call = see.options(helpers=[0]).submit()
        slow.touch()
        assert call.result(20)[1:3] == (4, np.full(1, 4))


def test_f44_deaths_at_random_leave_no_helper_with_other_weights():
    with shmgpu.init(helpers=3, devices="cpu", arena="4MiB"):
        for number in range(1, 10):
            dying = die.options(helpers=[number % 3]).submit()
            assert set_weights.broadcast(np.full(64, float(number))) == number
            with pytest.raises(shmgpu.HelperDied):
                dying.result(20)
            assert versions_and_weights(3) == [(number, number)] * 3


# ---- helpers that fail -------------------------------------------------------------------------


def test_f44_the_first_helper_raises_and_nothing_has_changed(tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.init(**TWO):
        set_weights.broadcast(np.ones(1))
        busy = wait_for.options(helpers=[1]).submit(str(tmp_path), str(gate))
        until((tmp_path / "1.runs").exists, "helper 1 is busy, and helper 0 will be the first")
        with pytest.raises(shmgpu.BroadcastError, match="nothing has changed") as caught:
            raise_in.broadcast(0, np.zeros(1))
        assert (caught.value.helper, caught.value.has_effect) == (0, False)
        assert "ValueError in helper 0: helper 0 does not want it" in str(caught.value)
        gate.touch()
        assert busy.result(20) == 1
        assert versions_and_weights() == [(1, 1), (1, 1)]
        assert [found[3] for found in everywhere()] == [2, 1]


def test_f44_another_helper_raises_the_broadcast_stands_and_that_one_is_replaced(tmp_path):
    with shmgpu.init(**TWO):
        with pytest.raises(shmgpu.BroadcastError, match="the broadcast stands") as caught:
            raise_unless_first.broadcast(np.full(1, 5.0), str(tmp_path / "gate"))
        assert caught.value.has_effect and "the first was another" in caught.value.message
        assert "raise_unless_first" in caught.value.traceback_text
        assert versions_and_weights() == [(1, 5), (1, 5)]
        found = everywhere()
        assert found[caught.value.helper][3] == 2 and found[1 - caught.value.helper][3] == 1
        row = shmgpu.stats()["helpers"][caught.value.helper]
        assert row["deaths"] == 1


def test_f44_the_first_helper_dies_and_another_is_the_first(tmp_path):
    with shmgpu.init(**TWO):
        assert die_at_first.broadcast(np.full(1, 3.0), str(tmp_path), 1) == 1
        assert versions_and_weights() == [(1, 3), (1, 3)]


def test_f44_two_die_one_after_the_other_and_nothing_has_changed(tmp_path):
    with shmgpu.init(**TWO):
        set_weights.broadcast(np.ones(1))
        with pytest.raises(shmgpu.HelperDied, match="die_at_first"):
            die_at_first.broadcast(np.full(1, 3.0), str(tmp_path), 2)
        assert versions_and_weights() == [(1, 1), (1, 1)]


def test_f44_a_helper_dies_while_it_runs_one_that_stands_and_its_successor_has_it(tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.init(**TWO):
        busy = wait_for.options(helpers=[1]).submit(str(tmp_path), str(gate))
        until((tmp_path / "1.runs").exists, "helper 1 is busy, and helper 0 will be the first")
        done = threading.Event()
        found = []

        def send():
            found.append(set_weights.broadcast(np.full(1, 7.0)))
            done.set()

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: see.version == 1, "it has taken effect")
        assert not done.is_set()
        os.kill(shmgpu.stats()["helpers"][1]["pid"], signal.SIGKILL)
        with pytest.raises(shmgpu.HelperDied):
            busy.result(20)
        sender.join(20)
        assert found == [1]
        assert versions_and_weights() == [(1, 7), (1, 7)]


@shmgpu.function(arrays="numpy", hang_after=0.5)
def hang_after_the_first(helper, weights, gate):
    """Hangs in whichever helper is not the first that runs it, in its first life."""
    try:
        os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while helper.generation == 1:
            time.sleep(0.01)
    helper.weights = weights


def test_f44_a_helper_that_hangs_over_one_is_ended_and_its_successor_has_it(tmp_path, events):
    with shmgpu.init(**TWO):
        assert hang_after_the_first.broadcast(np.full(1, 4.0), str(tmp_path / "gate")) == 1
        assert versions_and_weights() == [(1, 4), (1, 4)]
        assert sorted(found[3] for found in everywhere()) == [1, 2]
        (hung,) = events("helper_hung")
        (died,) = events("helper_died")
        assert died["function"] == "hang_after_the_first" and hung["role"] == died["role"]


def test_f44_the_log_says_why_a_helper_was_replaced(events):
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        with pytest.raises(shmgpu.BroadcastError):
            raise_always.broadcast(1)
        assert see()[3] == 2
        (died,) = events("helper_died")
        assert died["cause"].startswith("a broadcast failed there")


def test_f44_failed_broadcasts_end_no_launch():
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        for number in range(8):
            with pytest.raises(shmgpu.BroadcastError):
                raise_always.broadcast(number)
        assert see()[1] == 0


@shmgpu.function(arrays="numpy")
def raise_always(helper, number):
    raise ValueError(number)


def is_begun_anew(folder):
    """Whether this child took the place of one that was killed: that one has left a file."""
    mark = folder / "begun"
    was_there = mark.exists()
    mark.touch()
    return was_there


def kill_first_child():
    row = shmgpu.stats()["children"][0]
    assert row["pid"] > 0 and row["generation"] == 1
    os.kill(row["pid"], signal.SIGKILL)
    until(lambda: shmgpu.stats()["children"][0]["pid"] != row["pid"], "it is dead")


# ---- senders -----------------------------------------------------------------------------------


def test_f45_a_deadline_releases_its_sender_and_nothing_else(tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.init(**TWO):
        busy = wait_for.options(helpers=[1]).submit(str(tmp_path), str(gate))
        until((tmp_path / "1.runs").exists, "helper 1 is busy")
        with pytest.raises(shmgpu.CallTimeout):
            set_weights.options(timeout=0.1).broadcast(np.full(1, 2.0))
        gate.touch()
        assert busy.result(20) == 0
        assert versions_and_weights() == [(1, 2), (1, 2)]


def test_f45_the_sender_is_killed_when_it_has_sent_and_all_helpers_have_it(tmp_path):
    gate = tmp_path / "gate"

    def sender():
        wait_for.broadcast(str(tmp_path), str(gate), np.full(1, 9.0))

    def looker(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "it runs in its first helper")
        kill_first_child()
        gate.touch()
        until(lambda: see.version >= 1, "it has taken effect")
        return versions_and_weights()

    def first(rank):
        if not is_begun_anew(tmp_path):
            sender()

    _, found = shmgpu.launch(
        [first, looker],
        helpers=2,
        devices="cpu",
        arena="4MiB",
        restart="on-failure",
    )
    assert found == [(1, 9), (1, 9)]


def test_f45_what_waits_for_its_turn_when_its_sender_dies_is_dropped(tmp_path):
    gate = tmp_path / "gate"

    def sender():
        if not is_begun_anew(tmp_path):
            threading.Thread(target=set_weights.broadcast, args=(np.zeros(1),), daemon=True).start()
            until((tmp_path / "over").exists, "it is killed")

    def looker(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "another broadcast runs")
        (tmp_path / "send").touch()
        until(lambda: shmgpu.stats()["children"][0]["submitted"] == 1, "one waits")
        kill_first_child()
        until(lambda: shmgpu.stats()["children"][0]["dropped"] == 1, "it is dropped")
        gate.touch()
        until(lambda: see.version == 1, "the other has taken effect")
        return set_weights.broadcast(np.ones(1)), versions_and_weights()

    def other(rank):
        return wait_for.broadcast(str(tmp_path), str(gate), np.full(1, 9.0))

    def first(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "another broadcast runs")
        sender()

    _, found, version = shmgpu.launch(
        [first, looker, other], helpers=2, devices="cpu", arena="4MiB", restart="on-failure"
    )
    assert version == 1 and found == (2, [(2, 1), (2, 1)])
