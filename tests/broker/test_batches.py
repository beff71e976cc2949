"""Batching: inputs joined on axis 0, one call, outputs cut apart again."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import shmgpu


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def double(helper, x):
    helper.session["sizes"].append(len(x))
    time.sleep(0.002)
    return x * 2


@shmgpu.function(batch=shmgpu.Batch(max_size=32))
def double_torch(helper, x):
    helper.session["sizes"].append(len(x))
    time.sleep(0.002)
    return x * 2


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=64))
def pair(helper, a, b, factor):
    helper.session["sizes"].append(len(a))
    time.sleep(0.002)
    return {"sum": a + b, "rest": (a * factor, "constant")}


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def wrong_rows(helper, x):
    time.sleep(0.002)
    return x.sum(0)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def wrong_kind(helper, x):
    time.sleep(0.002)
    return 5


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def explodes(helper, x):
    time.sleep(0.002)
    raise ValueError("in a batch")


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def grows(helper, x):
    time.sleep(0.002)
    return np.repeat(x, 50_000, axis=1)


@shmgpu.function(
    arrays="numpy",
    batch=shmgpu.Batch(max_size=32),
    out=lambda x: shmgpu.Declared((len(x), 2), "int64"),
)
def declared(helper, x):
    time.sleep(0.002)
    helper.out[:] = x[:, :1]


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8, max_delay=20))
def patient(helper, x):
    helper.session["sizes"].append(len(x))
    return x


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=64))
def add_one(helper, x):
    if (x[:, 0] == -1).any():
        raise ValueError("a row begins with -1")
    return np.add(x, 1, out=helper.room)


@shmgpu.function(arrays="numpy")
def sizes(helper):
    seen = list(helper.session["sizes"])
    helper.session["sizes"].clear()
    return seen


@pytest.fixture
def broker():
    with shmgpu.init(helpers=1, session=lambda helper: {"sizes": []}, devices="cpu"):
        yield


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with shmgpu.init(
        helpers=1,
        session=lambda helper: {"sizes": []},
        devices="cpu",
        inline=request.param == "inline",
    ):
        yield request.param


def rows(n, value):
    return np.full((n, 3), value, np.float32)


@pytest.mark.parametrize("function", [double, double_torch])
def test_every_call_gets_its_own_rows_back(running, function):
    inputs = [rows(1 + n % 3, n) for n in range(200)]
    futures = [function.submit(x) for x in inputs]
    for x, future in zip(inputs, futures, strict=True):
        assert np.array_equal(future.result(10), x * 2)
    seen = sizes()
    assert sum(seen) == sum(len(x) for x in inputs)
    assert max(seen) <= 32
    if running == "broker":
        assert max(seen) > 3
        stats = shmgpu.stats()
        assert stats["mean_batch"] > 1 and stats["bytes"]["gathered"] > 0


def test_a_single_message_is_not_gathered(broker):
    for _ in range(3):
        double(rows(4, 1))
    assert shmgpu.stats()["bytes"]["gathered"] == 0


def large(value):
    return np.full((1, 64 << 10), value, np.float32)


def test_large_calls_that_are_sooner_done_one_after_another_are_not_gathered(broker):
    for start in range(0, 8000, 8):
        futures = [add_one.submit(large(start + n)) for n in range(8)]
        for n, future in enumerate(futures):
            assert (future.result(10) == start + n + 1).all()
        stats = shmgpu.stats()
        batched = sum(helper["batched"] for helper in stats["helpers"])
        if 0 < stats["bytes"]["gathered"] < batched * large(0).nbytes:
            return  # it has tried both ways
    raise AssertionError("all were gathered, or none was")


def test_of_large_calls_one_that_fails_costs_those_at_most_that_it_was_joined_with(broker):
    for _ in range(20):  # in both ways
        futures = [add_one.submit(large(-1 if n == 3 else n)) for n in range(8)]
        with pytest.raises(shmgpu.RemoteError, match="a row begins with -1"):
            futures[3].result(10)
        for n, future in enumerate(futures):
            if future.exception(10) is None:
                assert (future.result() == n + 1).all()
    assert (add_one(large(6)) == 7).all()


def test_trees_and_plain_values_are_batched_by_what_they_share(broker):
    a, b = rows(2, 1), np.full((2, 3), 10.0)
    futures = [pair.submit(a, b, factor) for factor in [2, 3] * 50]
    for index, future in enumerate(futures):
        result = future.result(10)
        assert (result["sum"] == 11).all() and result["sum"].shape == (2, 3)
        assert (result["rest"][0] == [2, 3][index % 2]).all()
        assert result["rest"][1] == "constant"


def test_different_shapes_are_never_joined(broker):
    futures = [double.submit(np.ones((1, 1 + n % 2), "f4")) for n in range(60)]
    assert [f.result(10).shape for f in futures] == [(1, 1 + n % 2) for n in range(60)]


def test_tensors_come_back_as_tensors(running):
    futures = [double_torch.submit(torch.full((1, 2), float(n))) for n in range(40)]
    for n, future in enumerate(futures):
        assert torch.equal(future.result(10), torch.full((1, 2), 2.0 * n))


@pytest.mark.parametrize("function", [wrong_rows, wrong_kind])
def test_outputs_without_a_row_for_each_row_are_an_error_in_a_sentence(broker, function):
    futures = [function.submit(rows(1, n)) for n in range(20)]
    for future in futures[2:]:
        try:
            future.result(10)
        except shmgpu.RemoteError as error:
            assert "is batched" in str(error)
            return
    raise AssertionError("no batch was formed")


def test_an_exception_reaches_every_call_of_the_batch(broker):
    futures = [explodes.submit(rows(1, n)) for n in range(20)]
    for future in futures:
        assert future.exception(10).message == "in a batch"
    assert np.array_equal(double(rows(1, 4)), rows(1, 8))


def test_results_of_a_batch_that_outgrow_their_room_come_back(broker):
    futures = [grows.submit(rows(1, n)) for n in range(20)]
    for n, future in enumerate(futures):
        result = future.result(10)
        assert result.shape == (1, 150_000) and (result == n).all()


def test_declared_outputs_of_a_batch(running):
    futures = [declared.submit(rows(2, n)) for n in range(20)]
    for n, future in enumerate(futures):
        assert future.result(10).tolist() == [[n, n], [n, n]]


def test_a_delay_lets_a_batch_fill(broker):
    futures = [patient.submit(rows(2, n)) for n in range(4)]
    [future.result(10) for future in futures]
    assert sizes() == [8]


def test_unequal_rows_and_scalars_are_refused_in_a_sentence(running):
    with pytest.raises(shmgpu.BadParams, match="equally many rows"):
        pair(rows(2, 1), np.ones((3, 3)), 1)
    with pytest.raises(shmgpu.BadParams, match="axis 0"):
        double(np.ones(()))


def test_more_rows_than_a_batch_may_have_run_alone(running):
    assert double(rows(100, 1)).shape == (100, 3)
    assert double(rows(0, 1)).shape == (0, 3)


class PickledOnce:
    """What is unpickled of it cannot be pickled."""

    def __getstate__(self):
        if hasattr(self, "lock"):
            raise TypeError("a lock cannot be pickled")
        return {"a": 1}

    def __setstate__(self, state):
        self.lock = threading.Lock()


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=64, max_delay=0.2), pickle=True)
def adds_one(helper, x, what):
    return x + 1


def test_what_cannot_be_pickled_twice_may_be_in_a_batch():
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        out = [adds_one.submit(np.ones((1 + n % 3, 2)), PickledOnce()) for n in range(6)]
        assert [future.result(20).shape for future in out] == [(1 + n % 3, 2) for n in range(6)]
        del out
