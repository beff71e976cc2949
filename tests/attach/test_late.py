"""Functions that are defined after ``init()`` are carried to its helpers at their first call."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest

import shmgpu

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
    with pytest.raises(shmgpu.BadFunction, match="cannot be broadcast: move its definition above"):
        locked.broadcast()
