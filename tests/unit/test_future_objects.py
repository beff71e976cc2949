"""Futures and awaited calls by themselves: the port is played."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import threading
import time
import types

import pytest

from shmgpu import core
from shmgpu.child import futures
from shmgpu.child.futures import ENDED, CallFuture, LoopReader, LoopReaders, Started
from shmgpu.errors import CallCancelled


class Port:
    """Notes what is asked of it."""

    def __init__(self, immediate=False):
        self.transport = types.SimpleNamespace(immediate=immediate, descriptors=tuple)
        self.cancelled, self.called, self.outstanding, self.polled = [], [], 0, 0
        self.ends = None  # the call whose end is there

    def cancel(self, ticket):
        self.cancelled.append(ticket)
        return True

    def call_reader(self, ticket):
        self.called.append(ticket)

    def await_end(self, ticket, until):
        self.called.append((ticket, until))
        if self.ends is not None:
            self.ends._result, self.ends._made = 7, ENDED

    def poll(self):
        self.polled += 1

    def expire(self, ticket):
        self.called.append(("expire", ticket))


def ticket(**said):
    plain = {"sequence": 3, "handler": 1, "is_near": False, "ready": None, "call": None}
    return types.SimpleNamespace(**(plain | said))


class LoopFuture(concurrent.futures.Future):
    """What an awaiting coroutine gives its loop."""

    def __iter__(self):
        yield self


class Loop:
    """Notes what it is asked to look at, and runs nothing by itself."""

    def __init__(self, is_closed=False):
        self.closed, self.read, self.later, self.soon = is_closed, {}, [], []
        self.create_future = LoopFuture

    def is_closed(self):
        return self.closed

    def add_reader(self, descriptor, call, *args):
        self.read[descriptor] = functools.partial(call, *args)

    def remove_reader(self, descriptor):
        del self.read[descriptor]

    def call_later(self, seconds, call, *args):
        self.later.append(functools.partial(call, *args))

    def call_soon_threadsafe(self, call, *args):
        if self.closed:
            raise RuntimeError("it is closed")
        self.soon.append(functools.partial(call, *args))


def started(loop=None, **said):
    one = Started(loop or Loop(), Port())
    one._ticket = ticket(**said)
    return one


# ---- futures ----------------------------------------------------------------------------------


def test_a_wait_ends_with_its_time_or_at_once_when_the_end_was_told():
    condition = futures._Condition()
    with condition:
        assert not condition.wait(0) and not condition._waiters
        assert not condition.wait(-5) and not condition._waiters
        condition.notify_all()
        assert condition.wait(20)
    condition = futures._Condition()

    def tell():
        with condition:
            condition.notify_all()

    teller = threading.Timer(0.01, tell)
    with condition:
        teller.start()
        assert condition.wait(20)
    teller.join()


def test_who_waits_for_several_hears_of_one_that_was_cancelled():
    one = CallFuture(Port())
    one._ticket = ticket()
    waiting = threading.Thread(target=concurrent.futures.wait, args=([one], 20))
    waiting.start()
    until = time.monotonic() + 20
    while not getattr(one, "_waiters", None):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert one.cancel() and not one.running() and one.cancelled()
    waiting.join(20)
    assert not waiting.is_alive() and one._port.cancelled == [one._ticket]


def test_a_callback_that_raises_costs_the_others_nothing(caplog):
    one, told = CallFuture(Port()), []
    one.add_done_callback(lambda future: 1 / 0)
    one.add_done_callback(told.append)
    one.ended(None, 7, None)
    assert told == [one] and one.result() == 7
    assert "exception calling callback for <CallFuture: returned int>" in caplog.text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, "waits to be sent"),
        ({"_ticket": ticket()}, "sent, no answer seen yet"),
        ({"_ticket": ticket(sequence=0)}, "waits to be sent"),
        ({"_made": ENDED, "_result": 5}, "returned int"),
        ({"_made": ENDED, "_exception": ValueError()}, "raised ValueError"),
        ({"_state": futures.CANCELLED}, "cancelled"),
        ({"_state": futures.FINISHED, "_result": "x"}, "returned str"),
    ],
)
def test_a_future_says_what_is_known_of_it(said, shown):
    for one in (CallFuture(Port()), Started(Loop(), Port())):
        for name, value in said.items():
            setattr(one, name, value)
        assert futures._told_of(one) == shown
        assert shown in repr(one)


@pytest.mark.parametrize(
    ("result", "error", "wanted"),
    [
        (7, None, 7),
        (None, ValueError("no"), ValueError),
        (None, CallCancelled("no"), asyncio.CancelledError),
    ],
)
def test_a_loops_future_ends_once(result, error, wanted):
    async def course():
        future = asyncio.get_running_loop().create_future()
        futures._fulfil(future, result, error)
        futures._fulfil(future, 8, None)  # which changes nothing
        return await future

    if wanted == 7:
        assert asyncio.run(course()) == 7
        return
    with pytest.raises(wanted):
        asyncio.run(course())


# ---- event loops --------------------------------------------------------------------------------


def test_a_loop_watches_the_port_while_any_call_waits_in_it_and_a_moment_longer():
    reader, port, loop = LoopReader(), Port(), Loop()
    port.transport.descriptors = lambda: (5, -1, 6)
    reader.look_after(loop, port)
    reader.look_after(loop, port)
    reader.enter(loop, port, started())
    reader.enter(loop, port, started())
    assert list(loop.read) == [5, -1, 6] and len(reader.waiting) == 2
    loop.later.pop()()  # it looks, and will again: some wait
    assert list(loop.read) == [5, -1, 6] and port.polled == 1
    reader.waiting.clear()
    port.outstanding = 1  # somebody else's
    loop.later.pop()()
    assert list(loop.read) == [-1] and port.polled == 2
    port.outstanding = 0
    loop.later.pop()()
    assert not loop.later and port.polled == 2
    reader.enter(loop, port, started())
    assert list(loop.read) == [-1, 5, 6]


def test_a_loop_that_called_through_another_port_before_watches_the_new_one_alone():
    reader, loop = LoopReader(), Loop()
    for descriptors in ((5, 6), (6, 7)):
        port = Port()
        port.transport.descriptors = lambda own=descriptors: own
        reader.enter(loop, port, started())
        assert list(loop.read) == list(descriptors)
    loop.closed = True
    reader.enter(loop, Port(), started())
    assert list(loop.read) == [6, 7]  # nothing is asked of it any more


def test_a_loop_that_called_through_another_port_before_looks_after_the_calls_of_the_new_one():
    reader, loop, before, now = LoopReader(), Loop(), Port(), Port()
    before.outstanding = now.outstanding = 1
    reader.look_after(loop, before)
    reader.look_after(loop, now)
    for _ in range(2):
        loop.later.pop(0)()
    assert (before.polled, now.polled, len(loop.later)) == (0, 1, 1)
    loop.later.pop()()
    assert now.polled == 2


def test_what_a_loop_looks_at_goes_with_it():
    readers, loop = LoopReaders(), Loop()
    assert readers.of(loop) is readers.of(loop) and len(readers.by_loop) == 1
    del loop
    gc.collect()
    assert not readers.by_loop


def test_who_awaits_it_second_and_finds_the_end_wakes_the_first(monkeypatch):
    monkeypatch.setattr(futures.readers, "turns", 0)  # the loop's turn is not now
    one = started(ready=object())
    woken = one.send(None)
    one._ticket.is_near, one._port.ends = True, one
    with pytest.raises(StopIteration) as caught:
        one.__await__().send(None)
    assert caught.value.value == 7 and woken.done()


def test_a_port_that_ends_asks_nothing_of_a_loop_that_looks_at_another():
    readers, loop, mine = LoopReaders(), Loop(), Port()
    mine.transport.descriptors = lambda: (5,)
    readers.of(loop).enter(loop, mine, started(loop))
    readers.leave(Port())
    assert loop.read and not loop.soon


@pytest.mark.parametrize("is_there", [False, True])
def test_who_alone_waits_in_a_loop_is_read_in_c_where_its_end_is_as_expected(monkeypatch, is_there):
    asked = []

    def read_alone(waiting, glance):
        asked.append((set(waiting), glance))
        return is_there

    monkeypatch.setattr(futures, "read_alone", read_alone)
    loop = Loop()
    one = started(loop)
    one._port.transport.descriptors = lambda: (5,)
    one.send(None)
    loop.read[5]()
    assert asked == [({one}, core.GLANCE)] and one._port.polled == (not is_there)


def test_those_whose_ends_a_loop_reads_go_on_at_once_and_after_an_exception_in_its_next_turn():
    loop, gone_on = Loop(), []
    several = [started(loop) for _ in range(3)]
    port = several[0]._port
    port.transport.descriptors = lambda: (5,)
    for one in several:
        one._port = port
        one.send(None)

    def go_on(wake):
        if gone_on:
            raise SystemExit
        gone_on.append(wake)
        wake.set_result(None)

    def poll():
        for one in several:
            one.reader.is_at_work = True
            one.ended(None, 7, None)
        assert not any(one._woken.done() for one in several)

    port.poll = poll
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(futures, "go_on", go_on)
        patched.setattr(asyncio, "_get_running_loop", lambda: loop)
        loop.read[5]()
    assert gone_on == [several[0]._woken] and several[2]._woken.done()


def test_a_look_that_a_task_breaks_off_is_followed_by_another():
    reader, port, loop = LoopReader(), Port(), Loop()
    port.outstanding = 1

    def poll():
        raise SystemExit

    port.poll = poll
    reader.look_after(loop, port)
    for _ in range(2):
        with pytest.raises(SystemExit):
            loop.later.pop()()
        assert reader.looks() is port and len(loop.later) == 1


def test_what_breaks_a_reading_off_leaves_alone_whoever_was_cancelled_meanwhile():
    reader, port, wakes = LoopReader(), Port(), [LoopFuture() for _ in range(3)]

    def poll():
        reader.due += wakes
        wakes[1].cancel()
        raise SystemExit

    port.poll = poll
    with pytest.raises(SystemExit):
        reader._read(port)
    assert all(wake.done() for wake in wakes) and not reader.due


@pytest.mark.parametrize("others", [0, 1])
def test_what_is_not_to_be_taken_so_is_read_with_all_others(others):
    loop = Loop()
    waiting = [started(loop, ready=object() if others else None) for _ in range(1 + others)]
    for one in waiting:
        one._port.transport.descriptors = lambda: (5,)
        one.send(None)
    loop.read[5]()
    assert waiting[-1]._port.polled == 1


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_end_from_another_thread_wakes_the_loop_of_who_waits(is_closed):
    loop = Loop()
    one = started(loop)
    woken = one.send(None)
    loop.closed = is_closed
    one.ended(None, 7, None)
    assert not woken.done() and len(loop.soon) == (not is_closed)
    for told in loop.soon:
        told()
    assert woken.done() == (not is_closed)


def test_who_was_not_woken_as_an_exception_struck_is_woken_by_the_next_look():
    loop = Loop()
    one = started(loop)
    one.reader.look_after(loop, one._port)
    woken = one.send(None)
    one.ended(None, 7, None)
    loop.later.pop()()
    assert woken.done()


# ---- awaited calls ------------------------------------------------------------------------------


def test_an_answer_that_is_there_is_given_at_once_and_an_error_raised():
    one = started()
    one.ended(None, 7, None)
    with pytest.raises(StopIteration) as caught:
        one.send(None)
    assert caught.value.value == 7 and one._ticket.handler is None
    for error, wanted in (
        (ValueError("no"), ValueError),
        (CallCancelled("no"), asyncio.CancelledError),
    ):
        one = started(Loop(is_closed=True))
        one.ended(None, None, error)
        with pytest.raises(wanted):
            one.send(None)


def test_a_call_that_is_near_lets_others_have_their_turn_now_and_then(monkeypatch):
    monkeypatch.setattr(futures.readers, "turns", futures.TURNS - 1)
    one = started(is_near=True)
    assert one.send(None) is None  # the others' turn
    one.ended(None, 7, None)
    with pytest.raises(StopIteration) as caught:
        one.send(None)
    assert caught.value.value == 7 and futures.readers.turns == futures.TURNS
    given_up = started(is_near=True)
    monkeypatch.setattr(futures.readers, "turns", futures.TURNS - 1)
    given_up.send(None)
    with pytest.raises(KeyboardInterrupt):
        given_up.throw(KeyboardInterrupt())
    assert given_up._port.cancelled == [given_up._ticket]


def test_a_call_that_nobody_began_to_await_is_given_up_by_what_is_thrown_and_closed_for_good():
    one = started()
    one.close()  # nothing has begun
    with pytest.raises(ValueError, match="no"):
        one.throw(ValueError("no"))
    assert one._port.cancelled == [one._ticket]
    near = started(is_near=True)
    futures.readers.turns = futures.TURNS - 1
    near.send(None)
    near.close()
    with pytest.raises(StopIteration):
        near.send(None)


def test_a_call_has_the_methods_of_a_loops_future_and_no_others_names():
    async def course():
        one = started(asyncio.get_running_loop())
        assert not hasattr(one, "__wrapped__")
        one.ended(None, 7, None)
        return one.done(), one.result()

    assert asyncio.run(course()) == (True, 7)


def test_a_time_that_is_over_expires_the_call_unless_it_has_ended():
    async def course(ends_first):
        one = started(asyncio.get_running_loop())
        if ends_first:
            one.ended(None, 7, None)
        one.expire_in(0)
        await asyncio.sleep(0.01)
        return ("expire", one._ticket) in one._port.called

    assert asyncio.run(course(False)) and not asyncio.run(course(True))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("asks", [False, True])
def test_an_exception_that_nobody_asked_for_is_told_to_the_loop(is_closed, asks):
    told = []
    loop = Loop(is_closed)
    loop.call_exception_handler = told.append
    one = started(loop)
    error = ValueError("no")
    one.ended(None, None, error)
    if asks:
        with pytest.raises(ValueError, match="no"):
            one.send(None)
    del one
    error.__traceback__ = None
    wanted = [] if asks or is_closed else [error]
    assert [what["exception"] for what in told] == wanted
