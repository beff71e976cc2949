"""Functions that are defined after ``init()`` are carried to its helpers at their first call."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading

import numpy as np
import pytest
from crash.programs import until

import shmgpu
from shmgpu.attach.late import MOST_ALIKE
from shmgpu.child.port import Port
from shmgpu.helper import late

FACTOR = 3


def load(helper):
    return 10


@pytest.fixture(scope="module", params=["forked", "by exec"], autouse=True)
def broker(request):
    """One of this process alone, which is forked, or started by exec where a thread runs."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    if request.param == "by exec":
        thread.start()
    try:
        with shmgpu.init(helpers={"one": 1, "two": 1}, session=load, devices="cpu"):
            yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def test_they_are_called_in_every_way_there_is():
    @shmgpu.function(arrays="numpy")
    def scale(helper, x, more=0):
        return FACTOR * x + helper.session + more

    x = shmgpu.arena.zeros(2)
    for _ in range(4):  # a plan, then one that repeats
        assert scale(x).tolist() == [10, 10]
    assert scale(x, more=1).tolist() == [11, 11]
    assert scale.submit(x, 2).result().tolist() == [12, 12]
    assert [one[0] for one in scale.map([x, x])] == [10, 10]
    assert scale.options(timeout=30)(x)[0] == 10

    async def ask():
        return await scale.aio(x)

    assert asyncio.run(ask())[0] == 10


def test_what_was_declared_of_them_holds_but_for_what_the_sealed_table_says(caplog):
    @shmgpu.function(pool="two", mutates=True)
    def torch_there(helper, x):
        x += 1
        return helper.pool, type(x).__name__

    @shmgpu.function(arrays="numpy", out=lambda x: shmgpu.Declared(x.shape, "float32"), batch=8)
    def doubled(helper, x):
        np.multiply(x, 2, out=helper.out)

    x = shmgpu.arena.zeros(2)
    assert torch_there(x) == ("two", "Tensor") and x[0] == 1
    with caplog.at_level(logging.WARNING, "shmgpu"):
        assert doubled(x).tolist() == [2, 2] and doubled(x).tolist() == [2, 2]
    (told,) = [one.getMessage() for one in caplog.records]
    assert "doubled" in told and "without batch" in told


def test_what_they_raise_has_their_own_traceback():
    @shmgpu.function
    def fails(helper):
        raise ValueError("no")

    with pytest.raises(shmgpu.RemoteError) as caught:
        fails()
    assert "in fails" in str(caught.value) and "run_torch" not in str(caught.value)


def test_one_that_cannot_be_carried_is_told_why():
    lock = threading.Lock()

    @shmgpu.function
    def locked(helper):
        return lock

    @shmgpu.function(pickle=True)
    def pickled(helper):
        pass

    with pytest.raises(shmgpu.BadFunction, match="lock cannot be carried there"):
        locked()
    with pytest.raises(shmgpu.BadFunction, match=r"pickle=True .* above init"):
        pickled()
    with pytest.raises(shmgpu.BadFunction, match=r"cannot be broadcast: define it above init\(\)"):
        locked.broadcast()


def named_alike(value):
    @shmgpu.function(arrays="numpy")
    def same(helper):
        return value

    return same


def test_one_of_a_pool_that_there_is_none_of_is_named():
    @shmgpu.function(pool="three")
    def elsewhere(helper):
        pass

    with pytest.raises(shmgpu.BadFunction, match=r"elsewhere asks for the pool 'three'"):
        elsewhere()


def test_a_first_call_that_is_interrupted_leaves_nothing_to_the_next(monkeypatch):
    send = Port.broadcast

    def sent_and_interrupted(*given):
        send(*given)
        raise KeyboardInterrupt

    first, second = named_alike(1), named_alike(2)
    with monkeypatch.context() as patched:
        patched.setattr(Port, "broadcast", sent_and_interrupted)
        with pytest.raises(KeyboardInterrupt):
            first()
    assert (second(), first()) == (2, 1)


@pytest.mark.leaks_ok("a helper is replaced in the broker that all these tests share")
def test_a_first_call_within_another_reaches_helpers_that_come_later_too(monkeypatch):
    """As a signal handler's may be, or another thread's: neither waits for the other."""
    send, inner, outer = Port.broadcast, named_alike("inner"), named_alike("outer")
    said = []

    def interrupted(*given):
        if not said:
            said.append("begun")
            said.append(inner())
        return send(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Port, "broadcast", interrupted)
        assert outer() == "outer" and said == ["begun", "inner"]
    helper = shmgpu.stats()["helpers"][0]
    os.kill(helper["pid"], signal.SIGKILL)
    until(lambda: shmgpu.stats()["helpers"][0]["pid"] not in (0, helper["pid"]), "another is there")
    assert (outer(), inner()) == ("outer", "inner")


def test_one_that_others_of_its_name_push_out_while_it_is_sent_is_sent_all_the_same(monkeypatch):
    send, outer, said = Port.broadcast, named_alike("outer"), []
    many = [named_alike(number) for number in range(MOST_ALIKE)]

    def others_first(*given):
        if not said:
            said.append("begun")
            said.extend(one() for one in many)
        return send(*given)

    monkeypatch.setattr(Port, "broadcast", others_first)
    assert outer() == "outer"
    assert said == ["begun", *range(MOST_ALIKE)]


def test_one_that_the_program_has_no_more_is_sent_no_more():
    for number in range(2 * late.KEPT):
        assert named_alike(np.full(50_000, number))()[0] == number
        gc.collect()
    assert shmgpu.stats()["broker"]["kept_bytes"] < (MOST_ALIKE + 1) * 50_000 * 8


def test_many_of_one_name_are_each_called_as_what_they_are():
    many = [named_alike(number) for number in range(2 * MOST_ALIKE)]
    assert [one() for one in many] == list(range(2 * MOST_ALIKE))
    assert [one() for one in many] == list(range(2 * MOST_ALIKE))
