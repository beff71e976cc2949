"""The room that a call sets aside for its result: what is kept, given back, and done without."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import shmgpu


@shmgpu.function(arrays="numpy")
def ones(helper, count):
    return np.ones(count, "uint8")


@shmgpu.function(arrays="numpy", out=lambda count: shmgpu.Declared(count, "uint8"))
def declared_ones(helper, count):
    helper.out[...] = 1


@shmgpu.function(arrays="numpy", batch=4)
def first_row(helper, x):
    return x[:1]


@shmgpu.function(arrays="numpy")
def twice(helper, x):
    return x * 2


@pytest.fixture
def broker():
    with shmgpu.init(helpers=1, devices="cpu", arena="64MiB"):
        yield


def test_a_small_result_after_large_ones_holds_little(broker):
    kept = []
    for _ in range(200):
        ones(1 << 20)
        kept.append(ones(10))
    used = shmgpu.arena.stats()["used_bytes"]
    assert used < 16 << 20
    assert all(array.sum() == 10 for array in kept)


def test_a_result_is_had_when_the_remembered_room_is_not(broker):
    large = ones(40 << 20)
    assert ones(100).sum() == 100
    assert ones.submit(100).result(10).sum() == 100
    assert large.sum() == 40 << 20
    with pytest.raises(shmgpu.ArenaFull):
        ones(40 << 20)
    assert ones(7).sum() == 7


def test_a_result_larger_than_a_helper_keeps_is_refused_and_can_be_had_otherwise(monkeypatch):
    def settled(parked):
        monkeypatch.setenv("SHMGPU_PARKED", parked)
        return shmgpu.init(helpers=1, devices="cpu", arena="4MiB")

    with settled("64KiB"):
        assert ones(60_000).sum() == 60_000
        for ask in (ones, lambda count: ones.submit(count).result(20)):
            with pytest.raises(shmgpu.ResultTooLarge, match=r"out=, or raise SHMGPU_PARKED, or"):
                ask(100_000)
        assert declared_ones(100_000).sum() == 100_000
        assert ones(7).sum() == 7
    with settled("128KiB"):
        assert ones(100_000).sum() == 100_000


def test_a_batched_function_is_held_to_its_rows_alone_too(broker):
    with pytest.raises(shmgpu.ShmError, match="axis 0"):
        first_row(shmgpu.arena.zeros((3, 2)))


def test_aio_gives_what_tasks_can_be_made_of(broker):
    async def main():
        x = np.arange(3.0)
        task = asyncio.create_task(twice.aio(x))
        both = await asyncio.gather(twice.aio(x), asyncio.wait_for(twice.aio(x), 10))
        return [(await task).tolist(), *(one.tolist() for one in both)]

    assert asyncio.run(main()) == [[0, 2, 4]] * 3


def test_a_function_decorated_while_a_broker_runs_is_known_to_it_and_the_next():
    with shmgpu.init(helpers=1, devices="cpu"):

        @shmgpu.function(arrays="numpy")
        def late(helper, x):
            return x + 1

        assert late(np.zeros(2)).tolist() == [1, 1]
    with shmgpu.init(helpers=1, devices="cpu"):
        assert late(np.zeros(2)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "outputs", [{"trace_path": "/nowhere/at/all.json"}, {"stats_into": []}], ids=["trace", "stats"]
)
def test_what_cannot_be_written_at_the_end_is_refused_at_the_start(outputs):
    with pytest.raises(shmgpu.ConfigError):
        shmgpu.launch(lambda rank: rank, children=1, helpers=1, devices="cpu", **outputs)


def test_helpers_that_do_not_exist_are_a_sentence(broker):
    with pytest.raises(shmgpu.ConfigError, match="launched"):
        twice.options(helpers=[7])(np.zeros(2))
