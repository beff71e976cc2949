"""submit, aio, map, threads, cancellation, deadlines: many calls out at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import selectors
import signal
import socket
import threading
import time
import weakref

import numpy as np
import pytest
from crash.programs import until

import shmgpu
from shmgpu import core
from shmgpu.child import futures, replies, runtime
from shmgpu.child.futures import ENDED, CallFuture, readers
from shmgpu.child.tickets import Inbox
from shmgpu.errors import CallCancelled


@shmgpu.function(arrays="numpy")
def far(helper, x):
    time.sleep(0.003)  # nobody looks for its answer in place
    return x


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def sleep(helper, seconds, x=None):
    time.sleep(seconds)
    return x


@shmgpu.function(arrays="numpy")
def held(helper, gate, x=None):
    """It takes until its caller opens the gate, however late the caller gets to that."""
    wait_until(lambda: gate[0])
    return x


@shmgpu.function(arrays="numpy")
def big(helper, n):
    return np.full(n, 3, np.uint8)


@shmgpu.function(arrays="numpy", max_queue=2)
def few(helper, seconds):
    time.sleep(seconds)
    return seconds


@shmgpu.function(arrays="numpy")
def fails(helper, x):
    raise ValueError(str(x))


@shmgpu.function(arrays="numpy")
def count(helper):
    helper.session["n"] = helper.session.get("n", 0) + 1
    return helper.session["n"]


@shmgpu.function(arrays="numpy", timeout=0.05)
def slow_by_nature(helper, gate):
    wait_until(lambda: gate[0])


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with shmgpu.init(
        helpers=1, session=lambda helper: {}, devices="cpu", inline=request.param == "inline"
    ):
        yield request.param


@pytest.fixture
def broker():
    with shmgpu.init(helpers=1, session=lambda helper: {}, devices="cpu") as session:
        yield session


def live_blocks():
    gc.collect()
    return shmgpu.arena.stats()["live_blocks"]


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def test_submit_gives_futures_with_the_results(running):
    x = shmgpu.arena.zeros(4)
    futures = [add_one.submit(x) for _ in range(500)]
    assert all(isinstance(f, concurrent.futures.Future) for f in futures)
    assert all(f.result(10).tolist() == [1] * 4 for f in futures)


def test_submit_never_blocks_beyond_the_window(broker):
    gate = shmgpu.arena.zeros(1)
    futures = [held.submit(gate[:]) for _ in range(300)]
    assert not any(f.done() for f in futures)
    gate[0] = 1
    assert [f.result(10) for f in futures] == [None] * 300


def test_a_failed_call_is_the_futures_exception(running):
    with pytest.raises(shmgpu.RemoteError, match="boom"):
        fails.submit("boom").result(10)
    assert isinstance(fails.submit(1).exception(10), shmgpu.RemoteError)


def test_what_raises_as_it_hears_of_its_end_costs_no_other_call_its_own(running, monkeypatch):
    said = []  # not caplog: what it keeps of an exception holds the arena
    monkeypatch.setattr(replies.logger, "exception", said.append)
    futures = [add_one.submit(np.zeros(3)) for _ in range(3)]
    monkeypatch.setattr(futures[0], "ended", lambda call, result, error: 1 / 0)
    later = [add_one.submit(np.zeros(3)) for _ in range(3)]
    assert all(f.result(10).tolist() == [1] * 3 for f in (*futures[1:], *later))
    assert futures[0].done() or "a reply was lost" in said[0]


def test_calls_that_wait_for_the_window_learn_what_their_results_need(broker):
    futures = [add_one.submit(np.zeros(3)) for _ in range(300)]
    assert all(f.result(10).tolist() == [1] * 3 for f in futures)
    assert shmgpu.stats()["children"][0]["frames_sent"] == 300  # nobody had to ask for room
    # The first window's results described themselves (more than the array's 24 bytes).
    before = shmgpu.stats()["bytes"]["copied_out"]
    assert add_one(np.zeros(3)).tolist() == [1] * 3
    assert shmgpu.stats()["bytes"]["copied_out"] - before == 24


def test_results_that_outgrow_their_room_come_back_from_futures(running):
    futures = [big.submit(n) for n in (10, 500_000, 3, 1_000_000)]
    assert [len(f.result(10)) for f in futures] == [10, 500_000, 3, 1_000_000]


def test_an_arena_that_is_too_small_for_a_result_fails_that_future_only(running):
    bad, good = big.submit(100_000_000), add_one.submit(np.zeros(2))
    with pytest.raises(shmgpu.ArenaFull):
        bad.result(10)
    assert good.result(10).tolist() == [1, 1]
    assert add_one(np.zeros(2)).tolist() == [1, 1]


def test_arrays_given_to_submit_are_read_only_until_it_is_done(broker):
    x, gate = shmgpu.arena.zeros(4), shmgpu.arena.zeros(1)
    first, second = held.submit(gate[:], x), held.submit(gate[:], x)
    with pytest.raises(ValueError):
        x[0] = 1
    gate[0] = 1
    first.result(10)
    second.result(10)
    x[0] = 1
    fixed = shmgpu.arena.zeros(4)
    fixed.flags.writeable = False
    add_one.submit(fixed).result(10)
    assert not fixed.flags.writeable


def test_a_queued_call_can_be_cancelled(broker):
    gate = shmgpu.arena.zeros(1)
    running = held.submit(gate[:])
    queued = [count.submit() for _ in range(20)]
    for future in queued:
        future.cancel()
    wait_until(lambda: all(f.done() for f in queued))
    assert all(f.cancelled() for f in queued)
    with pytest.raises(concurrent.futures.CancelledError):
        queued[0].result()
    gate[0] = 1
    assert running.result(10) is None
    assert count() == 1


def test_a_call_that_waits_for_the_window_is_cancelled_at_once(broker):
    gate = shmgpu.arena.zeros(1)
    futures = [held.submit(gate[:]) for _ in range(200)]
    assert futures[-1].cancel() and futures[-1].cancelled()
    assert runtime.require_port().outstanding == 199, "nothing of it is kept"
    gate[0] = 1
    assert [f.result(10) for f in futures[:-1]] == [None] * 199


def test_a_cancelled_call_is_given_up_whether_it_runs_or_waits(broker):
    def cancelled():
        return shmgpu.stats()["broker"]["cancelled"]

    gate = shmgpu.arena.zeros(1)
    futures = [held.submit(gate[:], "done") for _ in range(4)]
    wait_until(lambda: shmgpu.stats()["helpers"][0]["in_flight"] > 0)
    assert [future.cancel() for future in futures] == [True] * 4
    assert all(future.cancelled() for future in futures)
    gate[0] = 1
    wait_until(lambda: shmgpu.stats()["broker"]["answered"] >= 4)
    assert 1 <= cancelled() <= 3
    ended = sleep.submit(0, "done")
    assert ended.result(10) == "done" and not ended.cancel()


def test_a_deadline_releases_the_caller_and_the_late_result_its_memory(broker):
    x, gate = shmgpu.arena.zeros(100), shmgpu.arena.zeros(1)
    for _ in range(4):  # until what is kept for calls that repeat is in place
        add_one(x)
    gate[0] = 1
    held.options(timeout=20)(gate, x)
    gate[0] = 0
    base = live_blocks()
    start = time.monotonic()
    with pytest.raises(shmgpu.CallTimeout):
        held.options(timeout=0.05)(gate, x)
    assert time.monotonic() - start > 0.04
    assert isinstance(shmgpu.CallTimeout("x"), TimeoutError)
    assert live_blocks() > base - 3
    with pytest.raises(shmgpu.CallTimeout):
        slow_by_nature(gate)
    gate[0] = 1

    def settled():
        add_one(x)
        return live_blocks() <= base + 3

    wait_until(settled)


def test_a_function_s_deadline_is_lifted_for_one_call_and_kept_beside_other_options(broker):
    gate = shmgpu.arena.zeros(1)
    lifted = slow_by_nature.options(timeout=None).submit(gate[:])

    async def both():
        awaited = slow_by_nature.options(timeout=None).aio(gate[:])
        with pytest.raises(shmgpu.CallTimeout):
            await slow_by_nature.options(priority=1).aio(gate[:])
        gate[0] = 1
        return await awaited

    assert asyncio.run(both()) is lifted.result(20) is None
    assert repr(slow_by_nature.options(timeout=None)).endswith("with timeout=None>")


def test_a_deadline_is_kept_while_the_call_waits_for_the_window():
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=2):
        gate = shmgpu.arena.zeros(1)
        first = [held.submit(gate[:]) for _ in range(3)]  # two that are sent, and one that waits
        took_s = []
        for _ in range(10):
            begun = time.monotonic()
            with pytest.raises(shmgpu.CallTimeout):
                held.options(timeout=0.01).submit(gate[:]).result()
            took_s.append(time.monotonic() - begun)
        gate[0] = 1
        for one in first:
            one.result(20)
    assert 0.01 <= min(took_s) and sorted(took_s)[1] < 0.03  # machines are busy now and then


def test_a_deadline_of_a_submitted_call_is_its_exception(broker):
    gate = shmgpu.arena.zeros(1)
    # Long enough for it to begin: one that has not is dropped, and makes room for the other.
    future = held.options(timeout=0.5).submit(gate[:])
    behind = sleep.options(timeout=0.6).submit(0)
    with pytest.raises(shmgpu.CallTimeout):
        future.result(10)
    with pytest.raises(shmgpu.CallTimeout):
        behind.result(10)
    gate[0] = 1
    assert add_one(np.zeros(1)).tolist() == [1]


def test_a_future_whose_lock_somebody_left_locked_keeps_no_other_from_its_end(broker, monkeypatch):
    """As Ctrl-C within ``concurrent.futures.wait`` leaves those that it has taken."""
    monkeypatch.setattr(futures, "HELD_S", 0.05)
    gate = shmgpu.arena.zeros(1)
    left = held.submit(gate[:], np.full(1, 7.0))
    left._condition.acquire()
    later = [add_one.submit(np.zeros(1)) for _ in range(3)]
    try:
        gate[0] = 1
        assert len(concurrent.futures.wait(later, timeout=20).done) == 3
        assert not left._made.has_told
    finally:
        left._condition.release()
    assert left.result(20).tolist() == [7]  # it is told late


@pytest.mark.parametrize("end", ["a result", "an error", "cancelled"])
def test_what_ended_before_a_wait_began_does_not_end_it_when_it_is_told_of_again(end):
    """Whoever goes on after an interrupt tells it once more; a wait counts the ends it was told."""
    results = {
        "a result": (1, None),
        "an error": (None, ValueError("no")),
        "cancelled": (None, CallCancelled()),
    }
    ended, other = CallFuture(None), CallFuture(None)
    ended.ended(None, *results[end])
    assert ended.done()
    done = []
    waits = threading.Thread(target=lambda: done.append(concurrent.futures.wait([ended, other])))
    waits.start()
    wait_until(lambda: getattr(other, "_waiters", None))
    ended.ended(None, *results[end])
    assert not other._waiters[0].event.is_set()
    other.ended(None, 2, None)
    waits.join()
    assert done[0].done == {ended, other} and not done[0].not_done


def test_a_waiter_that_an_interrupt_kept_from_hearing_of_an_end_hears_of_it_once():
    """By whoever goes on, and those that it reached before are not told again."""
    future = CallFuture(None)
    told = []

    class Waiter:
        def __init__(self, breaks_off):
            self.finished_futures = []
            self.breaks_off = breaks_off

        def add_result(self, one):
            if self.breaks_off:
                self.breaks_off = False
                raise KeyboardInterrupt
            self.finished_futures.append(one)
            told.append(self)

    first, second = Waiter(False), Waiter(True)
    with future._condition:
        future._waiters += [first, second]
    with pytest.raises(KeyboardInterrupt):
        future.ended(None, 1, None)
    assert told == [first]
    future.ended(None, 1, None)
    future.ended(None, 1, None)
    assert told == [first, second] and future.result(0) == 1


def test_whoever_has_its_end_goes_on_where_another_thread_was_interrupted(broker, monkeypatch):
    monkeypatch.setattr(replies, "REST_S", 30.0)
    owner = runtime.require_port()
    first, second = sleep.submit(0), sleep.submit(0)
    for future in (first, second):
        number = future._ticket.sequence
        wait_until(lambda number=number: owner.transport.await_end(number, 0) == core.OK)
    owner._inboxes.append(Inbox())
    # Something struck there:
    owner.transport.take_end_of(first._ticket.sequence, owner._inboxes[-1])
    assert second.result(10) is None
    assert first._made is ENDED


def test_a_future_that_nobody_waits_for_ends_all_the_same(broker):
    """Arrays that it had can be written to then, and what was kept for it is given back."""
    x, called = shmgpu.arena.zeros(4), []
    for _ in range(3):
        add_one(x)
    add_one.submit(x)
    big.submit(n=500_000)  # it has to ask for room
    wait_until(lambda: x.flags.writeable and not runtime.require_port()._out)
    add_one.submit(x).add_done_callback(called.append)
    wait_until(lambda: x.flags.writeable and called)


def test_calls_that_are_only_ever_submitted_are_made_in_c_and_stay_so(broker):
    """Also where another thread has ended some of them, which takes what was ready for these."""
    x, called = shmgpu.arena.zeros(4), []
    for _ in range(2):
        for _ in range(4):
            assert add_one.submit(x).result(10).tolist() == [1] * 4
        sent = add_one.submit(x)
        assert sent._ticket.ready is not None
        sent.add_done_callback(called.append)
        wait_until(lambda: called)
        called.clear()


def test_a_result_that_several_threads_wait_for_is_each_ones(broker):
    gate, results = shmgpu.arena.zeros(1), []
    future = held.submit(gate[:], "done")
    threads = [threading.Thread(target=lambda: results.append(future.result(20))) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate[0] = 1
    for thread in threads:
        thread.join()
    assert results == ["done"] * 3


@pytest.mark.parametrize("way", ["cancelled", "late"])
def test_who_waits_for_a_future_hears_at_once_that_nothing_will_come(broker, way):
    """Its helper has the call, and answers when the gate opens."""
    gate, ends = shmgpu.arena.zeros(1), []
    target = held if way == "cancelled" else held.options(timeout=0.2)
    future = target.submit(gate[:])
    wait_until(lambda: shmgpu.stats()["helpers"][0]["in_flight"] > 0)

    def wait():
        try:
            future.result()
        except BaseException as error:
            ends.append(type(error))

    waits = threading.Thread(target=wait)
    waits.start()
    if way == "cancelled":
        assert future.cancel()
    waits.join(20)
    gate[0] = 1
    wanted = concurrent.futures.CancelledError if way == "cancelled" else shmgpu.CallTimeout
    assert ends == [wanted]


def test_a_wait_for_a_future_ends_when_its_time_is_over(broker):
    gate = shmgpu.arena.zeros(1)
    future = held.submit(gate[:], 5)
    for wait in (future.result, future.exception):
        with pytest.raises(concurrent.futures.TimeoutError):
            wait(0.02)
    assert not future.done() and not future.cancelled()
    gate[0] = 1
    assert future.result(10) == 5


def test_map_yields_in_order(running):
    results = add_one.map(np.full(2, n) for n in range(300))
    assert [int(r[0]) for r in results] == list(range(1, 301))
    assert list(sleep.map([0, 0], ["a", "b"])) == ["a", "b"]
    assert list(add_one.map([])) == []
    assert list(sleep.map([0, 0, 0], iter("ab"))) == ["a", "b"]


def test_map_reads_its_iterable_as_results_are_taken(running):
    taken = []

    def source():
        for n in range(1000):
            taken.append(n)
            yield np.full(1, n)

    results = add_one.map(source(), in_flight=10)
    next(results)
    assert len(taken) <= 11
    results.close()


@pytest.mark.parametrize(("window", "most"), [(2, 16), (8, 16), (9, 18)])
def test_map_has_twice_the_window_in_flight_and_16_at_least(window, most):
    taken = []
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=window):
        results = add_one.map(taken.append(n) or np.zeros(1) for n in range(100))
        next(results)
        assert len(taken) == most
        results.close()


def test_map_has_no_more_in_flight_than_may_wait(running):
    taken = []
    results = few.map(taken.append(n) or 0.01 for n in range(20))
    assert next(results) == 0.01 and len(taken) == 2
    assert list(results) == [0.01] * 19


def test_map_raises_what_a_call_raised(running):
    with pytest.raises(shmgpu.RemoteError, match="7"):
        list(fails.map([7]))


def test_awaiting_uses_no_thread(running):
    x = shmgpu.arena.zeros(3)

    async def main():
        results = await asyncio.gather(*[add_one.aio(x) for _ in range(300)])
        assert threading.active_count() == 1
        with pytest.raises(shmgpu.RemoteError):
            await fails.aio(1)
        assert len(await big.aio(300_000)) == 300_000
        return results

    assert all(r.tolist() == [1, 1, 1] for r in asyncio.run(main()))


def test_an_awaited_call_times_out_and_is_cancelled(broker):
    gate = shmgpu.arena.zeros(1)

    async def main():
        with pytest.raises(shmgpu.CallTimeout):
            await held.options(timeout=0.05).aio(gate[:])
        task = asyncio.ensure_future(held.aio(gate[:]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(held.aio(gate[:]), 0.02)
        gate[0] = 1
        return await add_one.aio(np.zeros(1))

    assert asyncio.run(main()).tolist() == [1]


def test_several_loops_in_turn(broker):
    async def main():
        return await add_one.aio(np.zeros(1))

    for _ in range(3):
        assert asyncio.run(main()).tolist() == [1]


def test_a_child_may_call_from_many_threads(running):
    errors = []

    def work(n):
        try:
            x = shmgpu.arena.zeros(8)
            for step in range(100):
                x[:] = n * 1000 + step
                assert add_one(x)[0] == n * 1000 + step + 1
                assert add_one.submit(x).result(10)[0] == n * 1000 + step + 1
                assert len(big(n + 1)) == n + 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_all_ways_at_once(broker):
    stop = threading.Event()
    errors = []

    def blocking():
        try:
            while not stop.is_set():
                assert add_one(np.zeros(2)).tolist() == [1, 1]
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=blocking)
    thread.start()

    async def main():
        for _ in range(20):
            futures = [add_one.submit(np.full(1, n)) for n in range(20)]
            awaited = await asyncio.gather(*[add_one.aio(np.full(1, n)) for n in range(20)])
            assert [int(a[0]) for a in awaited] == list(range(1, 21))
            assert [int(f.result(10)[0]) for f in futures] == list(range(1, 21))

    try:
        asyncio.run(main())
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_ctrl_c_interrupts_a_blocked_call_and_the_next_one_works(broker):
    x, gate = shmgpu.arena.zeros(10), shmgpu.arena.zeros(1)
    main_thread = threading.main_thread().ident
    timer = threading.Timer(0.1, signal.pthread_kill, [main_thread, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        held(gate, x)
    timer.join()
    gate[0] = 1
    assert add_one(x).tolist() == [1] * 10


def test_a_signal_handler_runs_during_a_blocked_call_which_goes_on(broker):
    gate = shmgpu.arena.zeros(1)
    seen = []

    def handler(*_):
        seen.append(time.monotonic())
        gate[0] = len(seen) >= 5

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        assert held(gate, "on") == "on"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 5


def test_futures_that_are_out_fail_at_shutdown():
    with shmgpu.init(helpers=1, devices="cpu"):
        futures = [sleep.submit(0.02) for _ in range(100)]
    assert all(f.done() for f in futures)
    assert isinstance(futures[-1].exception(), shmgpu.NotRunning)


@pytest.mark.parametrize("then", ["another loop", "a blocking call"])
def test_an_event_loop_that_was_closed_with_calls_out_is_not_kept(broker, then):
    class Loop(asyncio.SelectorEventLoop):
        pass

    x = shmgpu.arena.zeros(3)

    async def leave():
        for _ in range(3):
            sleep.aio(0.1)  # nobody awaits it

    loop = Loop()
    loop.run_until_complete(leave())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    if then == "another loop":

        async def ask():
            return [await add_one.aio(x) for _ in range(5)]

        assert len(asyncio.run(ask())) == 5
    for _ in range(5):
        assert add_one(x).tolist() == [1, 1, 1]
    wait_until(lambda: add_one(x) is not None and gc.collect() >= 0 and gone() is None)
    assert all(loop() is not None for loop in readers.by_loop)


@pytest.fixture
def when_signalled():
    """Have SIGUSR1 do something in this thread."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda work: signal.signal(signal.SIGUSR1, lambda *_: work())
    signal.signal(signal.SIGUSR1, before)


def test_an_event_loop_whose_answer_a_signal_handler_took_in_is_woken(broker, when_signalled):
    gate, armed, late = shmgpu.arena.zeros(1), [], []

    class Selector(selectors.DefaultSelector):
        def select(self, timeout=None):
            if armed and timeout != 0:  # about to sleep, after the loop has chosen for how long
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)
            return super().select(timeout)

    def work():
        gate[0] = 1
        for _ in range(2):  # the one helper has answered before the first; the second takes that in
            assert add_one(np.zeros(1)).tolist() == [1]

    when_signalled(work)
    loop = asyncio.SelectorEventLoop(Selector())

    def give_up():
        late.append(True)
        loop.call_soon_threadsafe(lambda: None)

    async def main():
        waiting = held.aio(gate[:], 7)
        armed.append(True)
        return await waiting

    watchdog = threading.Timer(20, give_up)
    watchdog.start()
    assert loop.run_until_complete(main()) == 7
    watchdog.cancel()
    watchdog.join()
    loop.close()
    assert not late


def test_a_signal_handler_that_calls_takes_no_callback_from_an_event_loop(broker, when_signalled):
    broken, handled = [], []

    class Loop(asyncio.SelectorEventLoop):
        def time(self):
            now = self._current_handle
            watched = self._selector.get_map().values()
            if any(now is key.data[0] for key in watched):  # a reader's callback is about to run
                signal.raise_signal(signal.SIGUSR1)
            return super().time()

    x = np.zeros(1)
    when_signalled(lambda: handled.append(add_one(x).tolist()))

    async def main():
        for _ in range(20):
            assert (await add_one.aio(x)).tolist() == [1]

    loop = Loop()
    loop.set_exception_handler(lambda loop, context: broken.append(context))
    loop.set_debug(True)  # it looks at the time before each callback
    loop.run_until_complete(main())
    loop.close()
    assert handled and not broken


@pytest.mark.parametrize("where", ["its own loop", "a loop that stands", "another thread's loop"])
def test_after_the_end_a_loop_watches_no_number_that_others_may_get(where):
    loop = asyncio.new_event_loop()

    async def calls():
        await far.aio(np.zeros(2))
        assert readers.of(loop)._descriptors, "it watches on for a moment"

    async def ends_here():
        await calls()
        session.shutdown()
        await others()

    async def ends_elsewhere():
        await calls()
        await loop.run_in_executor(None, session.shutdown)
        await others()

    async def others():
        pairs = [socket.socketpair() for _ in range(8)]
        try:
            for one, other in pairs:
                one.setblocking(False)
                told = asyncio.ensure_future(loop.sock_recv(one, 9))
                await asyncio.sleep(0)
                other.send(b"told")
                assert await asyncio.wait_for(told, 5) == b"told"
        finally:
            for one in itertools.chain(*pairs):
                one.close()

    session = shmgpu.init(helpers=1, devices="cpu", arena="16MiB")
    try:
        if where == "a loop that stands":
            loop.run_until_complete(calls())
            session.shutdown()
            loop.run_until_complete(others())
        else:
            loop.run_until_complete(ends_here() if where == "its own loop" else ends_elsewhere())
    finally:
        session.shutdown()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_the_reader_ends_when_nothing_is_out(broker):
    assert add_one.submit(np.zeros(1)).result(10).tolist() == [1]
    wait_until(lambda: threading.active_count() == 1)
    assert add_one.submit(np.zeros(1)).result(10).tolist() == [1]


@pytest.mark.parametrize("window", [1, 3])
def test_f25_a_blocking_call_serves_those_that_fill_the_window_and_ask_for_room(window):
    async def main(x):
        waiting = [big.aio(100_000) for _ in range(window)]
        assert add_one(x).tolist() == [1] * 3  # the loop that would serve them waits for this
        return await asyncio.gather(*waiting)

    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB", window=window):
        assert [len(y) for y in asyncio.run(main(np.zeros(3)))] == [100_000] * window


@pytest.mark.parametrize("window", [1, 3])
def test_f25_a_callback_that_calls_serves_those_that_fill_the_window_and_ask_for_room(window):
    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB", window=window):
        gate, filled, came = shmgpu.arena.zeros(1), threading.Event(), []

        def again(future):  # in the thread that reads replies, and would serve them
            filled.wait(10)
            came.append(add_one(np.zeros(3)).tolist())

        first = held.submit(gate[:])
        first.add_done_callback(again)
        gate[0] = 1
        first.exception(10)
        rest = [big.submit(100_000) for _ in range(window)]
        filled.set()
        assert [len(f.result(10)) for f in rest] == [100_000] * window
        wait_until(lambda: came == [[1] * 3])


def test_f37_giving_up_a_call_that_has_ended_means_no_other_that_uses_its_memory(broker):
    gate, owner = shmgpu.arena.zeros(1), runtime.require_port()
    gate[0] = 1
    asks = held.options(priority=1)  # its memory is used again at once
    ended = asks.submit(gate[:])
    ended.result(10)
    gate[0] = 0
    other = asks.submit(gate[:])
    assert other._ticket.call is ended._ticket.call
    assert not owner.cancel(ended._ticket)
    owner.expire(ended._ticket)
    assert not ended.cancel()
    gate[0] = 1
    assert other.result(10) is None


def test_an_error_keeps_nothing_alive_of_who_read_it(broker):
    class Kept:
        future: object

    def ask():
        kept = Kept()
        try:
            raise KeyError("that is handled meanwhile")
        except KeyError:
            kept.future = fails.submit(1)
            assert isinstance(kept.future.exception(10), shmgpu.RemoteError)
        return weakref.ref(kept)

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()


LOOKS = ("_has_work", "_linger_ns", "_expire_all", "_is_anything_out")


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_out_may_change_wherever_an_object_is_made(broker, look):
    """There garbage is collected before CPython 3.12, and finalizers may call."""
    port = runtime.require_port()
    port._deadlines = True
    others = itertools.count(-2, -1)
    gate = shmgpu.arena.zeros(1)
    running = [held.submit(gate[:]) for _ in range(3)]

    def change(phase, info):
        port._out[next(others)] = None  # which is no ticket
        if len(port._out) > 50:
            for other in [one for one in list(port._out) if one < -1]:
                port._out.pop(other, None)

    before = gc.get_threshold()
    gc.callbacks.append(change)
    gc.set_threshold(1)
    try:
        for turn in range(1000):
            _garbage = [[] for _ in range(turn % 4)]
            getattr(port, look)()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(change)
        for other in [one for one in list(port._out) if one < -1]:
            port._out.pop(other, None)
        gate[0] = 1
    assert [one.result(20) is not None for one in running]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_broke_off_the_reader_costs_no_later_call_its_callback(broker, monkeypatch):
    port = runtime.require_port()
    breaks, end, broken = [True], port._end, []

    def once(*given):
        if breaks and threading.current_thread() is not threading.main_thread():
            broken.append(threading.current_thread())
            breaks.clear()
            raise RuntimeError("as if")
        return end(*given)

    monkeypatch.setattr(port, "_end", once)
    told = [threading.Event() for _ in range(3)]
    calls = add_one.options(priority=1)
    calls.submit(np.ones(3)).add_done_callback(lambda ended: told[0].set())
    until(lambda: not breaks and port._reader is None, "the reader breaks off")
    broken[0].join(20)  # with its last words, which are this test's to expect
    assert add_one(np.ones(3)).tolist() == [2] * 3  # goes on where it stopped
    assert told[0].wait(20)
    for event in told[1:]:
        calls.submit(np.ones(3)).add_done_callback(lambda ended, event=event: event.set())
        assert event.wait(20)
