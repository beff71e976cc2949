"""Threads of one program that come into a broker, or leave it, at the same moment."""

from __future__ import annotations

import threading
import time

import numpy as np
from attach import brokers, served
from attach.brokers import said

import shmgpu
from shmgpu import core
from shmgpu.child import runtime

THREADS = 8
LATELY = brokers.DEADLINE_S


def at_once(body, count=THREADS):
    """What the function returned, or raised, in each of so many threads that begin together."""
    barrier = threading.Barrier(count)
    outcomes = []

    def run(number):
        barrier.wait()
        try:
            outcomes.append(body(number))
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(brokers.DEADLINE_S)
        assert not thread.is_alive()
    return outcomes


FIRST_CALLS = """
import numpy as np, shmgpu
from attach import served
from attach.test_threads import at_once

def body(number):
    return [served.add_one(np.full(3, number + turn)).tolist() for turn in range(20)]

outcomes = at_once(body)
expected = [[[n + t + 1] * 3 for t in range(20)] for n in range(8)]
assert sorted(outcomes, key=str) == sorted(expected, key=str), outcomes
print(sum(child["pid"] > 0 for child in shmgpu.stats()["children"]), shmgpu.rank())
"""


def test_threads_that_make_first_calls_share_one_place(tmp_path):
    path = tmp_path / "b.sock"
    with brokers.up(path):
        for _ in range(3):  # each finds the broker as the one before left it
            assert said(FIRST_CALLS, SHMGPU_SOCKET=str(path), SHMGPU_AUTO="join").split()[0] == "1"


def test_of_threads_that_connect_one_succeeds(place):
    for _ in range(5):
        outcomes = at_once(lambda number: shmgpu.connect(place, wait=brokers.DEADLINE_S))
        errors = [one for one in outcomes if isinstance(one, BaseException)]
        assert len(errors) == THREADS - 1
        assert {type(error) for error in errors} == {shmgpu.LaunchError}
        assert all("already in a broker" in str(error) for error in errors)
        x = shmgpu.arena.zeros(1000)
        assert (served.add_one(x) == 1).all()
        at_once(lambda number: shmgpu.disconnect())
        assert not shmgpu.is_running()


READS = """
import threading, shmgpu
from attach import served
from shmgpu import core

ends, looks = threading.Event(), 0

def reads():
    global looks
    while not ends.is_set():
        for row in rows:
            core.function_name(row)
        core.helper_goes_on(0)
        try:
            shmgpu.stats()
        except shmgpu.NotRunning:
            pass
        looks += 1

with shmgpu.connect():
    rows = [served.add_one.row, served.held.row]
threads = [threading.Thread(target=reads) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(100):
    with shmgpu.connect():
        pass
ends.set()
for thread in threads:
    thread.join()
print("read" if looks else "")
"""


def test_threads_that_look_while_another_comes_and_leaves_find_it_or_nothing(place):
    assert said(READS, SHMGPU_SOCKET=str(place)) == "read"


def test_threads_that_call_while_another_leaves_hear_that_it_has_left(place):
    outcomes = []
    left = threading.Event()

    def call():
        x = np.ones((2, 2))
        functions = (served.add_one, served.doubled, served.of_session)
        while not left.is_set():
            for function in functions:
                try:
                    outcomes.append(type(function(x)))
                except Exception as error:
                    outcomes.append(error)

    def ended(future):  # disconnect() waits for this, and meanwhile there are calls
        already = len(outcomes)
        brokers.until(lambda: len(outcomes) > already + 50, "threads call")

    shmgpu.connect(place, wait=LATELY)
    served.add_one(np.ones((2, 2)))
    future = served.slow.submit(np.ones(1), 0.2)
    future.add_done_callback(ended)
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    brokers.until(lambda: len(outcomes) > 20, "threads call")
    shmgpu.disconnect()
    after = len(outcomes)
    brokers.until(lambda: len(outcomes) > after + 20, "threads go on calling")
    left.set()
    for thread in threads:
        thread.join(LATELY)
    errors = [one for one in outcomes if one is not np.ndarray]
    assert {type(one) for one in errors} == {shmgpu.NotRunning}, {str(one) for one in errors}
    assert any("left its broker" in str(one) for one in errors)


def test_threads_that_begin_and_end_one_of_their_own_end_with_none():
    def body(number):
        try:
            shmgpu.init(devices="cpu", arena="1MiB", threads=1)
        except shmgpu.LaunchError as error:
            assert "cannot start a broker inside a child" in str(error)
            return "refused"
        answer = served.add_one(np.zeros(1)).tolist()
        shmgpu.shutdown()
        return answer

    outcomes = at_once(body, 3)
    assert [1.0] in outcomes and all(one in ("refused", [1.0]) for one in outcomes), outcomes
    assert not shmgpu.is_running()


JOINS_BESIDE = """
import os, signal, sys, threading, numpy as np, shmgpu
from attach import brokers, served
from shmgpu.child import runtime

full, free = sys.argv[1:]

def somebody_joins():
    free = runtime._gate.acquire(blocking=False)
    if free:
        runtime._gate.release()
    return not free

threading.Thread(target=shmgpu.connect, args=(full,), kwargs={"wait": None}, daemon=True).start()
brokers.until(somebody_joins, "a thread waits to join")
if os.fork() == 0:
    signal.alarm(20)
    shmgpu.connect(free)
    os.write(1, str(served.add_one(np.zeros(1)).tolist()).encode())
    os._exit(0)
assert os.wait()[1] == 0
os._exit(0)
"""


def test_a_process_that_is_forked_while_a_thread_joins_can_join_for_itself(tmp_path):
    full, free = tmp_path / "full.sock", tmp_path / "free.sock"
    with brokers.up(full, slots=1, helpers=1), brokers.up(free, helpers=1), shmgpu.connect(full):
        code = f"import sys\nsys.argv = ['', {str(full)!r}, {str(free)!r}]\n{JOINS_BESIDE}"
        assert said(code) == "[1.0]"


def test_a_thread_that_was_held_up_sends_nothing_to_the_next_broker(place):
    class Held:
        @property
        def __array_interface__(self):
            entered.set()
            assert gate.wait(LATELY)
            return np.ones(2).__array_interface__

    def call(number):
        if number:
            return served.add_one(Held())
        entered.wait(LATELY)
        shmgpu.disconnect()
        shmgpu.connect(place, wait=LATELY)
        gate.set()
        return served.add_one(np.ones(3)).tolist()

    entered, gate = threading.Event(), threading.Event()
    shmgpu.connect(place, wait=LATELY)
    assert served.add_one(np.ones(2)).tolist() == [2, 2]
    outcomes = at_once(call, 2)
    assert [2, 2, 2] in outcomes
    assert any(isinstance(one, shmgpu.NotRunning) for one in outcomes), outcomes


def test_a_port_takes_no_replies_of_the_next_one(place):
    class Handler:
        def ended(self, call, result, error):
            self.result = result

    def submit():
        port, handler = runtime.require_port(), Handler()
        port.submit(served.add_one, (np.ones(2),), {}, None, handler, False)
        return port, handler

    def answered():
        return core.child_stats(core.child_id())["answered"]

    def poll_until(condition, *ports):
        end = time.monotonic() + LATELY
        while not condition() and time.monotonic() < end:
            for port in ports:
                port.poll()

    shmgpu.connect(place, wait=LATELY)
    before, _ = submit()
    shmgpu.disconnect()
    shmgpu.connect(place, wait=LATELY)
    earlier = answered()
    after, handler = submit()
    poll_until(lambda: answered() > earlier, before)
    before.poll()
    assert not hasattr(handler, "result")
    poll_until(lambda: hasattr(handler, "result"), before, after)
    assert handler.result.tolist() == [2, 2]
