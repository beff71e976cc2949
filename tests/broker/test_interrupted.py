"""Calls that are interrupted, at every point where CPython runs signal handlers.

Each test does one thing again and again. Each time a signal handler runs at the next point, and
raises as Ctrl-C does, or calls; then the port must be whole: every place of the window is free,
every other call that was out has its own result, and all ways of calling work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import signal
import sys
import threading
import time

import numpy as np
import pytest
from interrupts import PACKAGE, Interrupts

import shmgpu
from shmgpu import core
from shmgpu.child import futures, replies, runtime

WINDOW = 4
ENDS_WITHIN_S = 10
FEW = 2  # points of a call that is mostly C's


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def full(helper, n):
    return np.full(n, 3, np.uint8)


@shmgpu.function(arrays="numpy")
def fails(helper, x):
    raise ValueError(str(x))


@shmgpu.function(arrays="numpy")
def large(helper, x):
    return np.full(9000, len(x), np.uint16)


@shmgpu.function(arrays="numpy")
def large_and_late(helper, x):
    time.sleep(0.05)
    return np.full(9000, len(x), np.uint16)


@shmgpu.function(arrays="numpy")
def sleeps(helper, x):
    time.sleep(float(x[0]))
    return x


@shmgpu.function(arrays="numpy")
def held(helper, gate):
    """It takes until its caller opens the gate."""
    wait_until(lambda: gate[0], "the gate stays shut")
    return "opened"


def interrupt(number, frame):
    raise KeyboardInterrupt


@contextlib.contextmanager
def signal_after(seconds, handler=lambda *_: None):
    """One signal; unless another handler is given, it means nothing."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    return Interrupts(tmp_path_factory.mktemp("interrupts"))


@pytest.fixture
def interrupts(handler, request, monkeypatch):
    """A call that C makes has no such points, unless its wait is interrupted."""
    params = getattr(request.node, "callspec", None)
    is_quick = params is not None and params.params.get("operation") in QUICK
    monkeypatch.setenv("SHMGPU_QUICK_CALLS", str(int(is_quick)))
    with shmgpu.init(helpers=1, devices="cpu", arena="32MiB", window=WINDOW):
        with handler.installed():
            yield handler


def wait_until(condition, what):
    end = time.monotonic() + ENDS_WITHIN_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.0002)


class Others:
    """Calls that are out meanwhile, and whatever else must be as it was."""

    def __init__(self):
        self.x = shmgpu.arena.zeros(8)
        self.out = []
        self.number = 0
        self.extra = []  # futures whose submission may have been interrupted

    def submit(self):
        for _ in range(2):
            self.number += 1
            self.out.append((self.number, add_one.submit(np.full(3, float(self.number)))))

    def check(self):
        """Everything has its own end, and nothing is held."""
        port = runtime.require_port()
        assert add_one(self.x).tolist() == [1] * 8
        for number, future in self.out:
            assert future.result(ENDS_WITHIN_S).tolist() == [number + 1] * 3
        for future in self.extra:
            with contextlib.suppress(concurrent.futures.CancelledError, shmgpu.RemoteError):
                future.result(ENDS_WITHIN_S)
        self.out.clear()
        self.extra.clear()
        assert add_one.submit(self.x).result(ENDS_WITHIN_S).tolist() == [1] * 8
        wait_until(lambda: not core.port_outstanding(), "a place of the window is lost")
        wait_until(lambda: not port._out, f"calls are kept for ever: {port._out}")
        assert not (port._struck or port._early or port._told or port._growing or port._queue)
        # The reader may have told of an end, and not yet taken it out.
        wait_until(lambda: not any(port._inboxes), "what was told stays in an inbox")
        assert self.x.flags.writeable
        trial = threading.Thread(target=self._take_the_lock, args=(port._lock,))
        trial.start()
        trial.join()
        assert self.taken, "the port's lock is held by nobody"

    def _take_the_lock(self, lock):
        self.taken = lock.acquire(timeout=5)
        if self.taken:
            lock.release()


@pytest.fixture
def others(interrupts):
    made = Others()
    yield made
    vars(made).clear()  # it holds arrays of the arena, and so do tracebacks in cycles
    gc.collect()


def called(others):
    add_one(others.x)


def resumed(others):
    """A call that C makes, whose wait ends early."""
    x = shmgpu.arena.zeros(1)
    sleeps(x)
    with signal_after(0.002):
        x[0] = 0.01
        sleeps(x)


def called_with_more(others):
    add_one(x=others.x)


def grown(others):
    others.number += 1
    assert len(full(5000 * (1 + others.number % 7))) > 0


def always_grown(others):
    """Nobody has seen a result for an array of that shape."""
    others.number += 1
    assert large(np.zeros(others.number, np.uint8))[-1] == others.number


def failed(others):
    with contextlib.suppress(shmgpu.RemoteError):
        fails(1)


def submitted(others):
    others.submit()
    future = add_one.submit(others.x)
    others.extra.append(future)
    began = time.monotonic()
    with contextlib.suppress(concurrent.futures.CancelledError):
        future.result(ENDS_WITHIN_S)
    assert time.monotonic() < began + ENDS_WITHIN_S, "nobody woke it"


def resubmitted(others):
    """Calls that C sends, and whose ends it tells."""
    for _ in range(3):
        add_one(others.x)
    x = shmgpu.arena.zeros(8)
    futures = [add_one.submit(x) for _ in range(2)]
    others.extra += futures
    assert all(future.result().tolist() == [1] * 8 for future in futures)
    assert x.flags.writeable


def submitted_to_nobody(others):
    """The thread that reads replies is to be started."""
    wait_until(lambda: runtime.require_port()._reader is None, "the reader never ends")
    others.extra.append(add_one.submit(others.x))


def submitted_beyond_the_window(others):
    for _ in range(2 * WINDOW):
        others.extra.append(full.submit(9000))


def cancelled(others):
    others.submit()
    future = add_one.submit(others.x)
    others.extra.append(future)
    future.cancel()


def run_in_a_loop(main):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # what it logs of a task holds the arena
    try:
        assert all(y.tolist() == [1] * 8 for y in loop.run_until_complete(main()))
    finally:
        loop.close()
        futures.readers.by_loop.clear()  # who waited in it


def awaited(others):  # a loop whose own code is interrupted is no concern of ours
    async def main():
        return await asyncio.gather(*(add_one.aio(others.x) for _ in range(WINDOW + 2)))

    run_in_a_loop(main)


def reawaited(others):
    """Calls that C sends and ends, one after the other."""
    for _ in range(3):
        add_one(others.x)

    async def main():
        return [await add_one.aio(others.x) for _ in range(3)]

    run_in_a_loop(main)


QUICK = (resumed, resubmitted, reawaited)


@pytest.mark.parametrize(
    "operation",
    [
        called,
        resumed,
        called_with_more,
        grown,
        failed,
        submitted,
        resubmitted,
        cancelled,
    ],
    ids=lambda operation: operation.__name__,
)
def test_f30_an_exception_from_a_signal_handler_costs_no_other_call_anything(
    interrupts, others, operation
):
    operation(others)
    others.check()
    least = FEW if operation is resumed else 5
    interrupted_at(least, interrupts, lambda: operation(others), others.check)


@pytest.mark.parametrize("operation", [awaited, reawaited], ids=lambda made: made.__name__)
def test_f30_an_exception_in_an_event_loop_costs_no_other_call_anything(
    interrupts, others, operation
):
    operation(others)
    points = interrupts.at_every_point(lambda: operation(others), others.check, files=PACKAGE)
    assert points > 20


@pytest.mark.parametrize(
    "operation",
    [
        called,
        resumed,
        submitted,
        resubmitted,
        cancelled,
        awaited,
        reawaited,
    ],
    ids=lambda operation: operation.__name__,
)
@pytest.mark.parametrize(
    "way",
    [
        called,
        "submits",
    ],
    ids=lambda way: getattr(way, "__name__", way),
)
def test_f24_a_signal_handler_may_call_at_any_moment(interrupts, others, operation, way):
    call_at_every_point(interrupts, others, operation, way)


# CPython 3.10 looks for signals after nearly every instruction: between those of one step, too.
not_in_3_10 = pytest.mark.skipif(sys.version_info < (3, 11), reason="Known, see the changelog")


@pytest.mark.parametrize("gap", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
@pytest.mark.parametrize(
    "operation",
    [called, *(pytest.param(one, marks=not_in_3_10) for one in (submitted, submitted_to_nobody))],
    ids=lambda operation: operation.__name__,
)
def test_an_exception_may_break_off_what_the_last_one_left_to_be_done(
    interrupts, others, operation, gap, monkeypatch
):
    monkeypatch.setattr(replies, "LINGER_NS", 1_000_000)
    operation(others)
    others.check()
    points = interrupts.at_every_point(lambda: operation(others), others.check, gap=gap)
    assert points > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [called, grown, submitted, cancelled, submitted_beyond_the_window, awaited],
    ids=lambda operation: operation.__name__,
)
@pytest.mark.parametrize("way", [grown, "cancels"], ids=lambda way: getattr(way, "__name__", way))
def test_a_signal_handler_may_do_more_than_call(interrupts, others, operation, way):
    call_at_every_point(interrupts, others, operation, way)


@pytest.mark.slow
def test_an_exception_beyond_the_window_costs_no_other_call_anything(interrupts, others):
    assert interrupts.at_every_point(lambda: submitted_beyond_the_window(others), others.check) > 5


def interrupted_at(least, interrupts, operation, *how, **more):
    """Interrupt it at every point, of which there are more than so many.

    A wait that a signal is to break off may have ended before that on a busy machine, and what is
    made in C has no points then: it is tried again.
    """
    points = 0
    for _ in range(10):
        points = interrupts.at_every_point(operation, *how, **more)
        if points > least:
            return
    raise AssertionError(f"only {points} points")


def call_at_every_point(interrupts, others, operation, way):
    def act():
        if way == "submits":
            others.extra.append(add_one.submit(others.x))
        elif way == "cancels":
            for future in others.extra:
                future.cancel()
        else:
            way(others)

    operation(others)
    least = FEW if operation is resumed else 5
    interrupted_at(least, interrupts, lambda: operation(others), others.check, act)


def test_a_call_that_was_late_once_is_given_up_like_any_other():
    """Its block is used again, and the next call in it is interrupted: neither keeps anything."""
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB", window=WINDOW):
        others = Others()
        port = runtime.require_port()
        with pytest.raises(shmgpu.CallTimeout):
            sleeps.options(timeout=0.02)(np.array([0.1]))
        wait_until(lambda: port.poll() == 0 and not port._out, "the late reply has not come")

        def live():
            port.poll()
            gc.collect()
            return shmgpu.arena.stats()["live_blocks"]

        kept = []
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt), signal_after(0.02, interrupt):
                sleeps(np.array([0.05]))
            others.check()
            kept.append(live())
        wait_until(lambda: live() <= kept[1], "an interrupted call keeps what it had")


def test_an_interrupted_call_leaves_the_queue():
    def broker():
        return shmgpu.stats()["broker"]

    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        gate = shmgpu.arena.zeros(1)
        running = held.submit(gate[:])
        wait_until(lambda: broker()["in_flight"] == 1, "the helper has not got its call")
        with pytest.raises(KeyboardInterrupt), signal_after(0.02, interrupt):
            add_one(np.ones(1))
        wait_until(lambda: broker()["cancelled"] == 1, "it still waits")
        assert not running.done()
        gate[0] = 1
        assert running.result() == "opened"


def test_a_signal_handler_that_would_wait_for_the_call_it_interrupts_is_told_so(handler):
    """At window 1 that call has the only place, and gets room when the handler returns."""
    told = []

    def act():
        try:
            called(others)
        except shmgpu.ShmError as error:
            told.append(str(error))

    with shmgpu.init(helpers=1, devices="cpu", arena="32MiB", window=1), handler.installed():
        others = Others()
        points = handler.at_every_point(lambda: always_grown(others), others.check, act, PACKAGE)
        seen = len(told)
        for _ in range(20):
            threading.Timer(0.02, handler.interrupt, (act,)).start()
            assert large_and_late(np.zeros(3, np.uint8))[-1] == 3
            others.check()
            if len(told) > seen:
                break
            # It came before the call, or after it, as it may on a busy machine.
        vars(others).clear()
        gc.collect()
    assert points > 5
    assert 0 < seen < len(told)
    assert all("signal handler" in one and "larger window" in one for one in told)


def test_no_callback_of_a_future_is_lost_or_called_twice(interrupts):
    called = []

    def operation():
        future._done_callbacks = [called.append, called.append]
        called.clear()
        future._invoke_callbacks()

    def check():
        future._invoke_callbacks()  # as whoever goes on does
        assert called == [future, future]

    future = futures.CallFuture(runtime.require_port())
    assert interrupts.at_every_point(operation, check) > 2
