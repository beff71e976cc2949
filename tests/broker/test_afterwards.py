"""Work that functions leave for the time after their answers."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import numpy as np
import pytest

import shmgpu


def load(helper):
    return []  # what was done, in order


@shmgpu.function(arrays="numpy")
def later(helper, word):
    helper.afterwards(lambda: helper.session.append(word))
    return len(helper.session)


@shmgpu.function(arrays="numpy")
def later_plus_one(helper, x):  # one plain array in, one out: the loop runs it itself
    helper.afterwards(lambda: helper.session.append("plus"))
    return x + 1


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8))
def later_in_a_batch(helper, x):
    helper.afterwards(lambda: helper.session.append(len(x)))
    return x + 1


@shmgpu.function(arrays="numpy")
def later_but_raises(helper):
    helper.afterwards(lambda: helper.session.append("never"))
    raise ValueError("first")


@shmgpu.function(arrays="numpy")
def later_fails(helper):
    def work():
        raise ValueError("nobody waits for this")

    helper.afterwards(work, failed=lambda error: helper.session.append(str(error)))
    helper.afterwards(lambda: helper.session.append("and then"))
    return 1


@shmgpu.function(arrays="numpy")
def later_waits_for(helper, path):
    helper.afterwards(lambda: _wait_for(path))
    return 1


@shmgpu.function(arrays="numpy")
def later_dies(helper, path):
    def work():
        _wait_for(path)
        os.kill(os.getpid(), signal.SIGKILL)

    helper.afterwards(work)
    return 1


@shmgpu.function(arrays="numpy", hang_after=0.2)
def later_hangs(helper):
    helper.afterwards(lambda: time.sleep(60))
    return 1


@shmgpu.function(arrays="numpy")
def later_exits(helper):
    def work():
        raise SystemExit(3)

    helper.afterwards(work)
    return 1


@shmgpu.function(arrays="numpy")
def done_so_far(helper):
    return list(helper.session)


def _wait_for(path, seconds=20):
    until = time.monotonic() + seconds
    while not pathlib.Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.001)


def _until(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.fixture(params=["inline", "helper"])
def either(request):
    with shmgpu.init(session=load, devices=["cpu"], inline=request.param == "inline"):
        yield request.param


@pytest.fixture
def broker():
    with shmgpu.init(session=load, devices=["cpu"]):
        yield


def test_work_is_done_after_its_call_and_before_the_next(either):
    assert [later(word) for word in "abc"] == [0, 1, 2]
    for number in range(5):
        assert later_plus_one(np.full(3, number)).tolist() == [number + 1] * 3
    assert done_so_far() == ["a", "b", "c"] + ["plus"] * 5


def test_batches_leave_work_too(either):
    futures = [later_in_a_batch.submit(np.zeros((1, 2))) for _ in range(16)]
    assert all((future.result() == 1).all() for future in futures)
    assert sum(done_so_far()) == 16


def test_a_call_that_raises_leaves_nothing(either):
    with pytest.raises(shmgpu.RemoteError, match="first"):
        later_but_raises()
    assert done_so_far() == []


def test_what_fails_afterwards_is_told_and_the_rest_is_done(either, caplog):
    assert later_fails() == 1
    assert done_so_far() == ["nobody waits for this", "and then"]
    if either == "inline":
        (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
        assert "nobody waits for this" in str(record.exc_info[1])


def test_the_caller_does_not_wait_and_the_helper_is_seen_at_work(broker, tmp_path):
    gate = tmp_path / "gate"
    assert later_waits_for(str(gate)) == 1
    (row,) = shmgpu.stats()["helpers"]
    assert row["goes_on"] == 1 and row["went_on"] == 0
    future = done_so_far.submit()
    time.sleep(0.05)
    assert not future.done()
    gate.touch()
    assert future.result(timeout=20) == []
    (row,) = shmgpu.stats()["helpers"]
    assert row["goes_on"] == 0 and row["went_on"] == 1 and row["busy_ns"] >= 50_000_000


def test_a_death_afterwards_costs_no_call(broker, tmp_path):
    gate = tmp_path / "gate"
    assert later_dies(str(gate)) == 1
    future = later.submit("by the next helper")
    gate.touch()
    assert future.result(timeout=20) == 0
    assert shmgpu.stats()["helpers"][0]["deaths"] == 1


def test_hanging_afterwards_is_hanging(broker):
    assert later_hangs() == 1
    _until(lambda: shmgpu.stats()["helpers"][0]["deaths"] == 1)
    assert shmgpu.stats()["broker"]["helper_hangs"] == 1
    assert later("goes on") == 0


def test_sys_exit_afterwards_ends_the_helper(broker):
    assert later_exits() == 1
    assert later("by the next helper") == 0
    assert shmgpu.stats()["helpers"][0]["deaths"] == 1
