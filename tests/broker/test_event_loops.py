"""Calls awaited in event loops: who reads answers, and what becomes of calls nobody awaits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import shmgpu
from shmgpu.child import futures, quick, replies, runtime
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
    monkeypatch.setattr(quick, "start_awaited", lambda *given: None)  # which asks no such port


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


def test_a_loop_may_have_the_pipe_that_it_watches_not_block(x):
    # uvloop does so, and never takes it back: a thread that reads there finds nothing yet.
    async def main():
        for _ in range(300):
            assert (await add_one.aio(x))[0] == 1

    pipe = runtime.require_port().transport.descriptors()[0]
    os.set_blocking(pipe, False)
    try:
        for _ in range(300):
            assert add_one(x)[0] == add_one.submit(x).result()[0] == 1
        asyncio.run(main())
    finally:
        os.set_blocking(pipe, True)


@shmgpu.function(arrays="numpy")
def add_one_far(helper, x):
    time.sleep(0.002)
    return x + 1


@pytest.fixture
def far(x, monkeypatch):
    """A call whose answer nobody watches for; what is told when a task goes on in a later turn."""
    for _ in range(3):
        add_one_far(x)
    asked = []
    port = runtime.require_port()
    monkeypatch.setattr(port, "poll", lambda: asked.append("poll") or type(port).poll(port))

    async def awaits_several(asked=asked):
        loop = asyncio.get_running_loop()
        await add_one_far.aio(x)
        await asyncio.sleep(0)
        asked.clear()
        with pytest.MonkeyPatch.context() as patched:
            soon = loop.call_soon
            patched.setattr(
                loop, "call_soon", lambda *a, **k: asked.append("soon") or soon(*a, **k)
            )
            for _ in range(20):
                assert (await add_one_far.aio(x))[0] == 1
        return asked

    return awaits_several


in_c = pytest.mark.skipif(bool(quick.why_not()), reason=f"not used: {quick.why_not()}")


@in_c
def test_who_alone_awaits_goes_on_in_the_callback_that_reads_the_answer(far, monkeypatch):
    monkeypatch.setattr(futures.Started, "__await__", lambda call: call.steps(None))
    # Now and then others of the loop have a turn, and the loop looks for calls that nobody awaits.
    asked = asyncio.run(far())
    assert asked.count("soon") < 10 and asked.count("poll") < 10


@in_c
def test_those_who_await_go_on_in_the_callback_that_reads_their_answers(far, monkeypatch):
    monkeypatch.setattr(futures.Started, "__await__", lambda call: call.steps(None))
    monkeypatch.setattr(futures, "read_alone", lambda waiting, glance: False)
    asked = asyncio.run(far())
    assert asked.count("soon") < 10 <= asked.count("poll")


# ---- in place of the loop -----------------------------------------------------------------------


@pytest.fixture
def tried(x, monkeypatch):
    """How waits in place ended without an answer: False: the loop had to do; None: none began."""
    said, steps = [], futures.Started.steps

    def taken(started, tried):
        said.append(tried)
        return steps(started, tried)

    monkeypatch.setattr(futures.Started, "steps", taken)
    return said


# A wait in place that something came for; on a busy machine that may have come before.
BROKEN_OFF = ([False], [None])


@contextlib.asynccontextmanager
async def call_in_place(tried):
    """A call that is waited for in place of the loop, until its gate is opened."""
    gate = shmgpu.arena.zeros(1)
    gate[0] = 1
    for _ in range(3 + 64):  # after those that are left out
        await held.aio(gate[:], 7)
    gate[0] = 0
    tried.clear()
    try:
        yield gate, held.aio(gate[:], 7)
    finally:
        gate[0] = 1


@in_c
def test_where_a_loop_has_nothing_else_to_do_an_answer_is_waited_for_in_its_place(far, tried):
    asked = asyncio.run(far())
    assert len(tried) < 10 and asked.count("soon") < 10 and asked.count("poll") < 10


def in_a_moment(loop, act):
    loop.call_later(0.02, act)


def from_a_thread(loop, act):
    threading.Timer(0.02, loop.call_soon_threadsafe, (act,)).start()


def as_bytes_come(loop, act):
    read, write = socket.socketpair()

    def come():
        loop.remove_reader(read)
        read.close()
        write.close()
        act()

    loop.add_reader(read, come)
    threading.Timer(0.02, write.send, (b"x",)).start()


def by_a_signal(loop, act):
    def handle():
        loop.remove_signal_handler(signal.SIGALRM)
        act()

    loop.add_signal_handler(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.02)


@in_c
@pytest.mark.parametrize("way", [in_a_moment, from_a_thread, as_bytes_come, by_a_signal])
def test_whatever_else_comes_is_done_while_an_answer_is_waited_for(tried, way):
    async def main():
        async with call_in_place(tried) as (gate, call):
            way(asyncio.get_running_loop(), lambda: gate.fill(1))
            return await call

    assert asyncio.run(main()) == 7  # held() gives up after 20 s
    assert tried in BROKEN_OFF


@in_c
def test_a_task_is_cancelled_in_time_where_it_waits_in_place(tried):
    async def main():
        async with call_in_place(tried) as (_, call):
            asyncio.get_running_loop().call_later(0.02, asyncio.current_task().cancel)
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: runtime.require_port().outstanding == 0)

    asyncio.run(main())
    assert tried in BROKEN_OFF


@in_c
def test_ctrl_c_ends_a_wait_in_place(tried):
    async def main():
        async with call_in_place(tried) as (_, call):
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            await call

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    # Before 3.11 the handler of SIGINT is not asyncio's, and raises within the wait.
    assert tried in (BROKEN_OFF if sys.version_info >= (3, 11) else ([],))
    assert add_one(shmgpu.arena.zeros(4)).tolist() == [1] * 4


class Enough(Exception):
    pass


async def drives(call):
    return await asyncio.create_task(call)


@in_c
@pytest.mark.parametrize("waits", [awaits, drives])
def test_what_a_signal_handler_raises_gives_the_call_up_that_is_waited_for_in_place(
    tried, monkeypatch, waits
):
    calls = []

    def enough(number, frame):
        raise Enough

    async def main():
        async with call_in_place(tried) as (_, call):
            calls.append(call)
            with pytest.raises(Enough):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                await waits(call)

    def was_given_up():
        with contextlib.suppress(Enough):
            asyncio.run(main())
        return tried == [] and "cancelled" in repr(calls[-1])

    monkeypatch.setattr(futures, "LOOK_S", 60)  # a look would end that wait before
    before = signal.signal(signal.SIGALRM, enough)
    try:
        # On a busy machine it may strike before that wait begins, or after it.
        assert any(was_given_up() for _ in range(10))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def other_tasks(loop, ready):
    async def other():
        return 7

    ready.append(asyncio.ensure_future(other()))


async def a_debugger(loop, ready):
    loop.set_debug(True)


async def tasks_that_begin_at_once(loop, ready):
    loop.set_task_factory(lambda loop, course, **named: asyncio.Task(course, loop=loop, **named))


@in_c
@pytest.mark.parametrize("other", [other_tasks, a_debugger, tasks_that_begin_at_once])
def test_where_there_is_something_else_the_loop_has_its_turn(tried, other):
    async def main():
        async with call_in_place(tried) as (gate, call):
            ready = []
            await other(asyncio.get_running_loop(), ready)
            asyncio.get_running_loop().call_later(0.02, gate.fill, 1)
            assert await call == 7
            assert [await one for one in ready] == [7] * len(ready)

    asyncio.run(main())
    assert tried == [None]


@in_c
def test_those_who_await_at_once_all_wait_in_the_loop(tried):
    async def main():
        async with call_in_place(tried) as (gate, call):
            first = asyncio.ensure_future(call)
            await asyncio.sleep(0.06)  # it has waited in place, and waits in the loop
            tried.clear()
            others = []
            for at in range(
                3
            ):  # one by one: of those that are ready at once the loop runs the next
                others.append(asyncio.ensure_future(held.aio(gate[:], at)))
                await asyncio.sleep(0.001)
            assert tried == [None] * 3
            gate[0] = 1
            assert await asyncio.gather(first, *others) == [7, 0, 1, 2]

    asyncio.run(main())


@in_c
def test_answers_that_are_always_there_do_not_keep_what_else_comes_from_its_turn(x):
    async def main():
        loop, read = asyncio.get_running_loop(), []
        mine, others = socket.socketpair()
        loop.add_reader(mine, lambda: read.append(mine.recv(1)))
        await add_one.aio(x)
        others.send(b"x")
        for _ in range(2 * futures.TURNS):  # less than until the loop looks for other calls
            call = add_one.aio(x)
            time.sleep(0.001)  # until the answer is there
            await call
            if read:
                break
        loop.remove_reader(mine)
        mine.close()
        others.close()
        return read

    assert asyncio.run(main()) == [b"x"]


class OthersLoop(asyncio.SelectorEventLoop):
    """Somebody's own: what it has to do is not known."""


@in_c
def test_a_loop_of_others_making_has_its_turn_always(tried):
    async def main():
        async with call_in_place(tried) as (gate, call):
            asyncio.get_running_loop().call_later(0.02, gate.fill, 1)
            return await call

    loop = OthersLoop()
    try:
        assert loop.run_until_complete(main()) == 7
    finally:
        loop.close()
    assert tried == [None]


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="no garbage is collected as C makes a thing"
)
@in_c
def test_another_loop_that_calls_as_a_call_is_made_has_none_of_its_calls(x):
    other = asyncio.new_event_loop()

    def calls(phase, info):
        quick.know_loop(asyncio._get_running_loop, other, readers.of(other))

    async def main():
        await add_one.aio(x)
        loop, before = asyncio.get_running_loop(), gc.get_threshold()
        gc.callbacks.append(calls)
        try:
            for count in range(1, 40):  # things that are made until garbage is collected
                gc.collect()
                quick.know_loop(asyncio._get_running_loop, loop, readers.of(loop))
                gc.set_threshold(count)
                one = add_one.aio(x)
                gc.set_threshold(*before)
                assert one.reader is readers.of(loop)
                await one
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(calls)

    with contextlib.closing(other):
        asyncio.run(main())


def test_a_call_that_was_left_in_the_queue_is_sent_by_the_loops_next_look(x, monkeypatch):
    """As by a signal handler that took all ends just as its sender had found the window full."""
    port = runtime.require_port()

    async def main():
        with monkeypatch.context() as patched:
            patched.setattr(port, "pump", lambda: None)
            call = add_one.options(priority=1).aio(x)
        assert len(port._queue) == 1
        return await asyncio.wait_for(call, 20)

    assert asyncio.run(main()).tolist() == [1] * 4


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


def test_an_error_that_was_awaited_is_told_to_nobody_else_whatever_was_asked_before():
    told = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        started = fails.aio(1)
        await until(lambda: runtime.require_port().outstanding == 0)
        assert started.done()
        with pytest.raises(shmgpu.RemoteError):
            await started
        del started
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == []


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


def test_tasks_that_drive_one_call_may_all_wait_for_it():
    """Also where a loop's futures, as those written in Python, stand no second task."""
    gate = shmgpu.arena.zeros(1)

    async def main():
        loop = asyncio.get_running_loop()
        loop.create_future = lambda: asyncio.futures._PyFuture(loop=loop)
        one = held.aio(gate[:], 7)
        together = [asyncio.create_task(one) for _ in range(3)]
        await asyncio.sleep(0.01)
        gate[0] = 1
        return await asyncio.gather(*together)

    assert asyncio.run(main()) == [7] * 3


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_tasks_that_drive_one_call_have_the_same_end(raises):
    """Each drives it itself: at once, one after the other, and once it has ended."""

    async def main():
        one = (fails if raises else add_one).aio(np.ones(3))
        together = [asyncio.create_task(one) for _ in range(3)]
        ends = await asyncio.gather(*together, return_exceptions=True)
        ends += await asyncio.gather(asyncio.create_task(one), return_exceptions=True)
        with contextlib.suppress(shmgpu.RemoteError):
            ends.append(await one)
        return ends

    ends = asyncio.run(main())
    if raises:
        assert [type(one) for one in ends] == [shmgpu.RemoteError] * 4
    else:
        assert [one.tolist() for one in ends] == [[2] * 3] * 5


def test_a_loop_that_made_the_pipe_of_replies_non_blocking_does_not_end_calls(x):
    # As loops of libuv do with all that they watch.
    os.set_blocking(runtime.require_port().transport.descriptors()[0], False)
    for _ in range(10_000):  # each is looked for where the broker has only begun to answer
        assert add_one(x)[0] == 1


@pytest.mark.parametrize("asks", ("done", "timeout", "task"))
def test_a_loop_that_is_closed_with_calls_in_flight_is_forgotten(x, asks):
    gate = shmgpu.arena.zeros(1)

    async def main():
        bound = held.options(timeout=20) if asks == "timeout" else held
        started = bound.aio(gate[:], x)
        if asks == "done":
            assert not started.done()
        elif asks == "task":
            asyncio.ensure_future(started).set_name("left")
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    was = weakref.ref(loop)
    del loop
    gate[0] = 1
    while runtime.require_port()._out:
        add_one(x)
    gc.collect()
    assert was() is None


def test_what_a_signal_handler_raises_costs_no_other_thread_its_answer(x, monkeypatch, caplog):
    # Such as the TimeoutError of a program that limits the time of something by SIGALRM.
    monkeypatch.setattr(replies, "REST_S", 30.0)  # nor does the reader end it
    gate, told, ends = shmgpu.arena.zeros(1), [], futures.CallFuture.ended

    def raises(*signal):
        raise TimeoutError("of the handler")

    def ended(self, *given):
        if threading.current_thread() is threading.main_thread() and not told:
            told.append(True)
            signal.raise_signal(signal.SIGUSR1)  # CPython looks for signals at any function's top
        ends(self, *given)

    monkeypatch.setattr(futures.CallFuture, "ended", ended)
    before = signal.signal(signal.SIGUSR1, raises)
    try:
        future = held.submit(gate[:], x)
        gate[0] = 1
        end = time.monotonic() + 20
        with pytest.raises(TimeoutError, match="of the handler"):
            while time.monotonic() < end:
                runtime.require_port().poll()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert future.result(20) is not None
    assert "a reply was lost" not in caplog.text


@pytest.mark.parametrize("raised", (TimeoutError, KeyboardInterrupt))
def test_a_future_of_the_loop_is_told_though_a_signal_handler_struck_as_it_was(raised, monkeypatch):
    gate, struck, fulfils = shmgpu.arena.zeros(1), [], futures._fulfil

    def raises(*signal):
        raise raised("of the handler")

    def fulfil(*given):
        if not struck:
            struck.append(True)
            signal.raise_signal(signal.SIGUSR1)
        fulfils(*given)

    async def main():
        started = held.options(timeout=20).aio(gate[:], 5)
        gate[0] = 1
        return await asyncio.wait_for(started, 10)

    monkeypatch.setattr(futures, "_fulfil", fulfil)
    before = signal.signal(signal.SIGUSR1, raises)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    ends = loop.create_task(main())
    try:
        with contextlib.suppress(raised):
            loop.run_until_complete(ends)
        assert loop.run_until_complete(ends) == 5 and struck
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.close()
