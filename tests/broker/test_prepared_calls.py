"""Calls that repeat take a short cut: whatever happens in one is as in any other call."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import shmgpu
from shmgpu.child import runtime


@shmgpu.function(arrays="numpy")
def act(helper, x):
    """As x[0] says: 0 answers, 1 waits for x[3], 2 raises, 3 dies, 4 answers more, 5 otherwise."""
    order = int(x[0])
    if order == 1:
        end = time.monotonic() + 20
        while not x[3]:
            assert time.monotonic() < end
            time.sleep(0.002)
    elif order == 2:
        raise ValueError("as told")
    elif order == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    elif order == 4:
        return np.full(100_000, 7, np.float32)
    elif order == 5:
        return {"not": "an array"}
    return x + 1


@pytest.fixture(params=["quick", "in Python"])
def broker(request, monkeypatch):
    monkeypatch.setenv("SHMGPU_QUICK_CALLS", str(int(request.param == "quick")))
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        yield


def warm():
    """An array with which the call repeats; a fixture's would outlive the broker."""
    made = shmgpu.arena.zeros(4)
    for _ in range(5):
        assert act(made).tolist() == [1] * 4
    return made


def test_results_that_are_kept_stay_as_they_were(broker):
    x = warm()
    kept = []
    for n in range(200):
        x[1] = n
        kept.append(act(x))
    assert [int(y[1]) for y in kept] == list(range(1, 201))
    views = [y[1:2] for y in kept]
    del kept
    for _ in range(50):
        act(x)
    assert [int(v[0]) for v in views] == list(range(1, 201))


def test_memory_returns(broker):
    x = warm()
    act(x)
    gc.collect()
    before = shmgpu.arena.stats()["used_bytes"]
    kept = [act(x) for _ in range(100)]
    assert shmgpu.arena.stats()["used_bytes"] > before
    del kept
    gc.collect()
    assert shmgpu.arena.stats()["used_bytes"] <= before + 1024


def test_a_call_that_raises_dies_or_answers_otherwise_says_so(broker):
    x = warm()
    for _ in range(2):
        x[0] = 2
        with pytest.raises(shmgpu.RemoteError, match="as told"):
            act(x)
        x[0] = 3
        with pytest.raises(shmgpu.HelperDied):
            act(x)
        x[0] = 4
        assert act(x).tolist() == [7] * 100_000
        x[0] = 5
        assert act(x) == {"not": "an array"}
        x[0] = 0
        for _ in range(5):
            assert act(x).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("more", range(4))
def test_a_result_that_does_not_fit_whichever_of_the_ready_calls_it_meets_is_given(broker, more):
    x = warm()
    for _ in range(more):
        act(x)
    for _ in range(3):
        x[0] = 4
        assert act(x).tolist() == [7] * 100_000
        x[0] = 0
        assert act(x).tolist() == [1] * 4


def test_ctrl_c_in_one_leaves_the_next_in_order(broker):
    x = warm()
    x[0] = 1
    main = threading.main_thread().ident
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        act(x)
    timer.join()
    assert runtime.require_port().outstanding == 1  # its memory is kept until it has ended
    x[3] = 1
    y = shmgpu.arena.zeros(4)
    for n in range(300):
        y[1] = n
        assert act(y).tolist() == [1, n + 1, 1, 1]


def test_arrays_from_elsewhere_are_copied_as_ever(broker):
    x = warm()
    outside = np.zeros(4, np.float32)
    strided = shmgpu.arena.zeros(8)[::2]
    for n in range(20):
        for other in (outside, strided, x):
            other[1] = n
            assert act(other).tolist() == [1, n + 1, 1, 1]


def test_a_signal_handler_runs_and_the_call_goes_on(broker):
    x = warm()
    seen = []

    def handler(*_):
        seen.append(1)
        x[3] = len(seen) >= 5

    before = signal.signal(signal.SIGALRM, handler)
    try:
        x[0] = 1
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        assert act(x).tolist() == [2, 1, 1, 2]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 5


def test_a_broker_that_is_gone_is_heard_of(broker):
    x = shmgpu.arena.zeros(4)
    for _ in range(5):
        act(x)
    os.kill(shmgpu.stats()["broker"]["parent_pid"], signal.SIGKILL)
    for _ in range(3):
        with pytest.raises(shmgpu.BrokerDied):
            for _ in range(1000):
                act(x)


def test_a_new_broker_starts_afresh():
    for _ in range(3):
        with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
            x = shmgpu.arena.zeros(4)
            kept = [act(x) for _ in range(10)]
        assert all(y.tolist() == [1] * 4 for y in kept)
        with pytest.raises(shmgpu.NotRunning):
            act(x)
        del x, kept


def test_threads_repeat_side_by_side(broker):
    errors = []

    def work(n):
        try:
            x = shmgpu.arena.zeros(4)
            for step in range(300):
                x[1:] = n, step, 1
                assert act(x).tolist() == [1, n + 1, step + 1, 2]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_calls_that_repeat_do_not_pass_through_python(monkeypatch):
    """Unless the user says so, or C cannot; whatever happened in one of them meanwhile."""
    for wanted in ("1", "0"):
        monkeypatch.setenv("SHMGPU_QUICK_CALLS", wanted)
        with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
            x = warm()
            seen = []
            through = shmgpu.Function.call_in_python
            monkeypatch.setattr(
                shmgpu.Function,
                "call_in_python",
                lambda *given, seen=seen, through=through: seen.append(1) or through(*given),
            )
            result = None
            for _ in range(20):
                result = act(x)
            assert len(seen) == (0 if wanted == "1" else 20)
            for order in (2, 5, 4):
                x[0] = order
                try:
                    result = act(x)
                except shmgpu.RemoteError:
                    pass
            x[0] = 0
            for _ in range(4):
                result = act(x)  # two ready calls take turns again
            seen.clear()
            for _ in range(20):
                result = act(x)
            assert len(seen) == (0 if wanted == "1" else 20)
            monkeypatch.undo()
            del x, result


def test_nothing_is_left_of_a_call_that_repeats(broker):
    x = warm()
    act(x)
    gc.collect()

    def counts():
        held = (x, x.dtype, act, act.plans_port)
        return sys.getallocatedblocks(), [sys.getrefcount(one) for one in held]

    for _ in range(2):
        blocks, references = counts()
        for _ in range(5000):
            act(x)
        more, as_before = counts()
    assert as_before == references
    assert more - blocks < 100


@shmgpu.function(arrays="numpy")
def add(helper, x, y):
    return x + y


@pytest.mark.parametrize("order", [">", "<"])
def test_the_byte_order_of_what_lies_in_the_arena_is_seen_at_each_call(broker, order):
    made = shmgpu.arena.zeros(4)
    turned = made.view(f"{order}f4")
    turned[...] = 0.5
    for _ in range(5):
        assert act(turned).tolist() == [1.5] * 4
        assert add(turned, made.view("=f4") * 0).tolist() == [0.5] * 4
        assert add(turned, turned).tolist() == [1] * 4
