"""A full window: who waits for a place in it is woken; what was written for a call is current."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np
import pytest

import shmgpu
from shmgpu.child import runtime


@shmgpu.function(arrays="numpy")
def add(helper, x, number):
    return x + number


@shmgpu.function(arrays="numpy")
def sized(helper, x):
    return np.full(int(x[0]), x[0])


@shmgpu.function(arrays="numpy")
def held(helper, x, begun, gate):
    """It takes until somebody makes that file."""
    pathlib.Path(begun).touch()
    while not os.path.exists(gate):
        time.sleep(0.002)
    return x


def test_a_place_that_becomes_free_while_another_thread_reads_replies_wakes_who_waits(tmp_path):
    """One thread's call takes long, and that thread takes in what comes for the others."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with shmgpu.init(helpers=2, devices="cpu", arena="4MiB", window=2):
        x = np.zeros(3)
        long = threading.Thread(target=held, args=(x, str(begun), str(gate)), daemon=True)
        long.start()
        until = time.monotonic() + 15
        while not begun.exists():
            assert time.monotonic() < until
            time.sleep(0.002)

        def calls():
            for turn in range(10):
                assert (add(x, turn) == turn).all()

        others = [threading.Thread(target=calls, daemon=True) for _ in range(4)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        stuck = [thread.is_alive() for thread in others]
        gate.touch()
        for thread in [long, *others]:
            thread.join(30)
        assert stuck == [False] * 4


@pytest.mark.parametrize("window", [1, 2])
def test_threads_that_wait_for_a_place_in_the_window_are_each_woken(window):
    """More of them than places, so that each place that becomes free wakes the next."""
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=window):
        right: list[bool] = []

        def calls(number):
            x = np.full(3, number)
            right.extend((add(x, turn) == number + turn).all() for turn in range(50))

        threads = [threading.Thread(target=calls, args=(n,), daemon=True) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [thread.is_alive() for thread in threads] == [False] * 6
        assert right == [True] * 300


def test_threads_whose_results_differ_in_size_each_get_their_own():
    """What is promised of the next result changes with every result, while others send."""
    with shmgpu.init(helpers=2, devices="cpu", arena="16MiB"):
        step = threading.Barrier(6, timeout=30)
        wrong: list[object] = []

        def calls(number):
            for turn in range(300):
                step.wait()
                x = np.zeros(4 + turn)  # of its own signature, of which nothing is known yet
                for again in range(3):
                    x[0] = count = 1 + (number * 37 + again * 5) % 50
                    try:
                        result = sized(x)
                    except shmgpu.ShmError as error:
                        wrong.append(error)
                    else:
                        if result.tolist() != [count] * count:
                            wrong.append(result)

        threads = [threading.Thread(target=calls, args=(n,), daemon=True) for n in range(6)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            sys.setswitchinterval(interval)
        assert wrong == []


def test_values_are_written_again_when_what_is_promised_of_the_result_has_changed():
    """The values are those of the last call, and the block says which result is expected."""
    with shmgpu.init(inline=True, arena="4MiB"):
        x = np.zeros(3)
        for turn in range(4):
            assert add(x, 5).tolist() == [5, 5, 5], turn
            assert add.submit(x, 5).result().tolist() == [5, 5, 5]
        plans = {id(plan): plan for plan in add.plans.values()}.values()
        calls = [call for plan in plans for call in plan.idle]
        assert calls and all(plan.hint is not None for plan in plans)
        assert all(call.signature is call.plan.signature for call in calls)
        for call in calls:
            call.plan.expect(None)
            call.set_values([5], runtime.require().arena)
            assert call.signature is call.plan.signature


def test_calls_are_given_up_in_time_though_the_pipe_to_the_broker_is_full():
    """It is stopped, and reads neither the calls nor that nobody waits for them any more."""
    most = 896
    with shmgpu.init(devices="cpu", arena="8MiB", window=most):
        x = shmgpu.arena.zeros(1)
        add(x, 1)
        broker = shmgpu.stats()["broker"]["parent_pid"]
        go_on = threading.Timer(10, os.kill, (broker, signal.SIGCONT))
        go_on.start()
        os.kill(broker, signal.SIGSTOP)
        errors = []
        for _ in range(2):  # what was given up leaves room for calls that the window still admits
            futures = [add.options(timeout=0.2).submit(x, 1) for _ in range(most // 2)]
            errors += [type(one.exception()) for one in futures]
        in_time = go_on.is_alive()
        go_on.cancel()
        os.kill(broker, signal.SIGCONT)
        assert errors == [shmgpu.CallTimeout] * most and in_time
        assert add(x, 1)[0] == 1
