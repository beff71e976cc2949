"""Calls awaited in event loops: who reads answers, and what becomes of calls nobody awaits."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import numpy as np
import pytest

import shmgpu
from shmgpu.child import futures, runtime
from shmgpu.child.futures import ENDED, readers


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def held(helper, gate, x=None):
    end = time.monotonic() + 20
    while not gate[0]:
        assert time.monotonic() < end
    return x


@shmgpu.function(arrays="numpy")
def fails(helper, x):
    raise ValueError(str(x))


@pytest.fixture(scope="module", autouse=True)
def broker():
    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB") as session:
        yield session


@pytest.fixture
def x():
    made = shmgpu.arena.zeros(4)
    for _ in range(3):  # until such calls are made in C
        add_one(made)
    return made


@pytest.fixture
def near(monkeypatch):
    """Every answer is taken to be near, as of calls whose last answers were."""
    sends = runtime.require_port().submit

    def submit(*given):
        ticket = sends(*given)
        ticket.is_near = True
        return ticket

    monkeypatch.setattr(runtime.require_port(), "submit", submit, raising=False)


async def awaits(started):
    """As a task of its own does."""
    return await started


async def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.002)


def test_without_a_loop_it_is_told_what_to_use_instead(x):
    with pytest.raises(RuntimeError, match=r"add_one\.aio\(\) needs .* use add_one\.submit\(\)"):
        add_one.aio(x)
    assert runtime.require_port().outstanding == 0


def test_an_answer_that_is_near_is_read_by_who_awaits_it_and_the_loop_has_no_part_in_it(x, near):
    async def main():
        while True:
            started = add_one.aio(x)
            assert (await started).tolist() == [1] * 4
            if started._woken is None:
                return started._made, threading.active_count()

    made, threads = asyncio.run(main())
    assert made is ENDED and threads == 1
    assert x.flags.writeable


def test_who_does_nothing_but_await_calls_lets_others_of_its_loop_go_on(x, near, monkeypatch):
    port = runtime.require_port()
    ends = port.await_end  # and every answer is there as it is looked for
    monkeypatch.setattr(port, "await_end", lambda ticket, until_ns: ends(ticket, 0), raising=False)

    async def main():
        seen = []

        async def other():
            while len(seen) < 3:
                seen.append(None)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(5 * futures.TURNS):
            await add_one.aio(x)
        assert task.done()

    asyncio.run(main())


def test_a_far_answer_does_not_keep_the_loop_from_others(x, near):
    gate = shmgpu.arena.zeros(1)

    async def main():
        waiting = asyncio.ensure_future(held.aio(gate[:], 7))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate[0] = 1
        return await waiting

    assert asyncio.run(main()) == 7


def test_a_call_that_nobody_awaits_ends_all_the_same(x):
    async def main():
        add_one.aio(x)
        assert not x.flags.writeable
        await until(lambda: x.flags.writeable and not runtime.require_port()._out)
        assert not readers.of(asyncio.get_running_loop()).waiting

    asyncio.run(main())
    gc.collect()
    assert all(loop() is not None for loop in readers.by_loop)


def test_an_error_that_nobody_asks_for_is_told_to_the_loop_and_no_other():
    told = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(str(context["exception"])))
        with pytest.raises(shmgpu.RemoteError, match="asked for"):
            await fails.aio("asked for")
        fails.aio("nobody's")
        await until(lambda: not runtime.require_port()._out)
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert len(told) == 1 and "nobody's" in told[0]


def test_a_call_has_the_methods_of_a_future_before_its_end_and_after(x):
    async def main():
        gate, seen = shmgpu.arena.zeros(1), []
        started = held.aio(gate[:], 5)
        assert not started.done()
        started.add_done_callback(lambda future: seen.append(future.result()))
        gate[0] = 1
        assert await started == await started == started.result() == 5
        await until(lambda: seen == [5])
        later = add_one.aio(x)
        await until(later.done)
        assert later.result().tolist() == [1] * 4

    asyncio.run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_cancelling_a_task_gives_its_call_up_whether_it_has_begun_to_wait(begun, near):
    gate = shmgpu.arena.zeros(1)

    async def main():
        before = shmgpu.stats()["broker"]["cancelled"]
        running = asyncio.ensure_future(held.aio(gate[:]))
        queued = asyncio.ensure_future(held.aio(gate[:]))
        await until(lambda: shmgpu.stats()["helpers"][0]["in_flight"] > 0)
        last = asyncio.ensure_future(add_one.aio(np.zeros(3)))
        if begun:
            await asyncio.sleep(0)
        last.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last
        await until(lambda: shmgpu.stats()["broker"]["cancelled"] == before + 1)
        gate[0] = 1
        assert await running is None and await queued is None

    asyncio.run(main())


def test_calls_of_several_loops_in_threads_at_once_each_come_to_their_own():
    errors = []

    def work(number):
        async def main():
            x = shmgpu.arena.zeros(3) + number
            for _ in range(100):
                answers = await asyncio.gather(add_one.aio(x), add_one.aio(x))
                assert all(y.tolist() == [number + 1] * 3 for y in answers)
                assert (await add_one.aio(x)).tolist() == [number + 1] * 3

        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_calls_that_are_awaited_together_all_end(x):
    async def main():
        for _ in range(5):
            answers = await asyncio.gather(*(add_one.aio(x) for _ in range(8)))
            assert all(answer.tolist() == [1] * 4 for answer in answers)

    asyncio.run(main())
    assert x.flags.writeable


@pytest.mark.parametrize("first", ["awaits", "asks"])
def test_whoever_awaits_the_same_call_gets_the_same_answer(x, first):
    gate = shmgpu.arena.zeros(1)

    async def asks(started):
        while not started.done():
            await asyncio.sleep(0.001)
        return started.result()

    async def main():
        started = held.aio(gate[:], 7)
        kinds = [awaits, asks, awaits] if first == "awaits" else [asks, awaits, awaits]
        tasks = [asyncio.ensure_future(kind(started)) for kind in kinds]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        gate[0] = 1
        return await asyncio.gather(*tasks), await started

    assert asyncio.run(main()) == ([7, 7, 7], 7)


@pytest.mark.parametrize("who", ["the call", "one of two"])
def test_a_call_that_is_cancelled_as_somebody_awaits_it_wakes_them(x, who):
    gate = shmgpu.arena.zeros(1)

    async def main():
        started = held.aio(gate[:], 7)

        tasks = [asyncio.ensure_future(awaits(started)) for _ in range(2)]
        await asyncio.sleep(0.01)
        (started if who == "the call" else tasks[0]).cancel()
        done, late = await asyncio.wait(tasks, timeout=5)
        assert not late and all(task.cancelled() for task in done)
        with pytest.raises(asyncio.CancelledError):
            await started

    asyncio.run(main())
    gate[0] = 1
    assert add_one(x).tolist() == [1] * 4


def test_a_call_of_a_thread_beside_a_loop_that_has_just_awaited_one_ends(x):
    answers = []

    def call():
        answers.extend(add_one(np.zeros(4, "float32")).tolist() for _ in range(50))

    async def main():
        thread = threading.Thread(target=call)
        await add_one.aio(x)
        thread.start()
        while thread.is_alive():
            await add_one.aio(x)

    asyncio.run(main())
    assert answers == [[1] * 4] * 50


@pytest.mark.parametrize("others", [0, 1])
def test_a_coroutine_that_is_closed_as_it_awaits_a_call_takes_it_along_unless_others_do(x, others):
    gate = shmgpu.arena.zeros(1)

    async def main():
        started = held.aio(gate[:], 7)

        closed = awaits(started)
        closed.send(None)
        tasks = [asyncio.ensure_future(awaits(started)) for _ in range(others)]
        await asyncio.sleep(0.01)
        closed.close()
        gate[0] = 1
        assert await asyncio.gather(*tasks) == [7] * others
        if not others:
            with pytest.raises(asyncio.CancelledError):
                await started

    asyncio.run(main())
