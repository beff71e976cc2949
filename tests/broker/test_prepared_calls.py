"""Calls that repeat take a short cut: whatever happens in one is as in any other call."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import types
from collections import OrderedDict
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from crash.programs import until

import shmgpu
from shmgpu.child import arguments, quick, runtime
from shmgpu.child.futures import CallFuture


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


@shmgpu.function(arrays="numpy")
def after_a_while(helper, x):
    time.sleep(0.002)  # the answer is not near: whoever waits does something else meanwhile
    return x + 1


async def awaited(x):
    return await after_a_while.aio(x)


def called_back(x):
    told = threading.Event()
    future = after_a_while.submit(x)
    future.add_done_callback(lambda ended: told.set())
    assert told.wait(20)
    return future.result()


HEARD_OF = {
    "asked": lambda x, loop: after_a_while.submit(x).result(),
    "asked in time": lambda x, loop: after_a_while.submit(x).result(20),
    "awaited": lambda x, loop: loop.run_until_complete(awaited(x)),
    "called back": lambda x, loop: called_back(x),
    "waited for": lambda x, loop: (
        wait([future := after_a_while.submit(x)], timeout=20) and future.result()
    ),
}


@pytest.mark.parametrize("how", HEARD_OF)
def test_a_submitted_call_leaves_what_it_was_made_of_to_the_next_however_its_end_is_heard_of(how):
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        x = shmgpu.arena.zeros(4)
        loop = asyncio.new_event_loop()
        for _ in range(4):
            assert HEARD_OF[how](x, loop).tolist() == [1] * 4
        (signature,) = after_a_while.signatures
        before = set(signature.ready)
        kept = [HEARD_OF[how](x, loop) for _ in range(3)]  # each with memory of its own
        assert set(signature.ready) == before
        assert [one.tolist() for one in kept] == [[1] * 4] * 3
        assert x.flags.writeable and not runtime.require_port()._out
        loop.close()
        del x, kept, before


def test_a_submitted_call_leaves_its_block_to_the_next_though_its_result_is_too_large_to_keep():
    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB"):
        x = shmgpu.arena.zeros(100_000)
        for _ in range(4):
            assert after_a_while.submit(x).result()[-1] == 1
        plan = next(reversed(after_a_while.plans.values()))
        before = set(plan.idle)
        assert after_a_while.submit(x).result()[-1] == 1
        assert before and set(plan.idle) == before
        del x, plan, before


class BegunLate(CallFuture):
    """The reader ends while it is made: nothing is out yet."""

    @property
    def _port(self):
        return vars(self)["port"]

    @_port.setter
    def _port(self, port):
        until(lambda: port._reader is None, "the reader has ended")
        vars(self)["port"] = port


@pytest.mark.parametrize("broker", ["quick"], indirect=True)
def test_a_call_that_is_sent_as_the_reader_ends_is_read_though_nobody_asks_for_it(broker):
    x = warm()
    for _ in range(4):
        act.submit(x).result()
    future = quick.start(act, (x,), {}, BegunLate)
    until(lambda: x.flags.writeable, "it has ended, and its argument is free")
    assert future.result().tolist() == [1] * 4


@shmgpu.function(arrays="numpy")
def made(helper, what, *args, **kwargs):
    """Any kind of arguments and results."""
    return RESULTS[what](*args, **kwargs)


@shmgpu.function
def made_in_torch(helper, what, *args, **kwargs):
    return RESULTS[what](*args, **kwargs)


@shmgpu.function(arrays="numpy", out=shmgpu.Declared(4))
def declared(helper, what, x):
    return x + 1


@shmgpu.function(arrays="numpy", batch=8)
def batched(helper, x, k):
    return x + k


RESULTS = {
    "sum": lambda *xs: sum(xs),
    "one": lambda x, k=1: x + k,
    "pair": lambda x: (x, x + 1),
    "boxed": lambda box: {"y": box["x"] + box["k"], "l": [box["x"]]},
    "number": lambda x: float(x[0]),
    "whole": lambda x: int(x[0]),
    "flag": lambda x: bool(x[0]),
    "none": lambda x: None,
    "text": lambda x: "text",
    "axes": lambda x: x.reshape(2, 2),
}
KINDS = {
    **{
        name: lambda x, name=name: made(name, x) for name in RESULTS if name not in ("boxed", "sum")
    },
    "two": lambda x: made("sum", x, x),
    "seven": lambda x: made("sum", *[x] * 7),
    "box": lambda x: made("boxed", {"x": x, "k": 3}),
    "keyword": lambda x: made("one", x=x, k=3),
    "no array": lambda x: made("one", 1.5),
    "text and array": lambda x: made("one", x, "a" and 2),
    "outside": lambda x: made("one", np.zeros(4, np.float32)),
    "empty": lambda x: made("sum", x[:0]),
    "torch": lambda x: made_in_torch("pair", torch.from_numpy(x)),
    "declared": lambda x: declared("one", x),
    "batched": lambda x: batched(x[None], 2.5),
}


def as_plain(tree):
    if isinstance(tree, (tuple, list)):
        return type(tree), [as_plain(one) for one in tree]
    if isinstance(tree, dict):
        return {key: as_plain(one) for key, one in tree.items()}
    return (type(tree), tree.tolist()) if hasattr(tree, "tolist") else (type(tree), tree)


@pytest.mark.table
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_that_repeats_is_made_in_c_and_leaves_nothing(monkeypatch, kind):
    call = KINDS[kind]
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        x = shmgpu.arena.zeros(4)
        for _ in range(5):
            wanted = as_plain(call(x))
        monkeypatch.setattr(shmgpu.Function, "call_in_python", None)
        kept = [call(x) for _ in range(2)]
        assert [as_plain(one) for one in kept] == [wanted] * 2
        del kept
        for _ in range(2):
            blocks = sys.getallocatedblocks()
            for _ in range(1000):
                call(x)
            more = sys.getallocatedblocks() - blocks
        assert more < 100
        result = call(x)
        assert as_plain(result) == wanted
        del x, result
        monkeypatch.undo()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Both:
    left: Any
    right: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda x: OrderedDict(b=x + 1, a=x),
        lambda x: Pair(x, x + 1),
        lambda x: Both(x, x + 1),
        lambda x: (x, [{"of": Pair(x, x)}]),
        lambda x: {"of": OrderedDict(x=x)},
    ],
)
def test_results_of_other_types_than_c_makes_are_what_they_are_at_each_call(make):
    @shmgpu.function(arrays="numpy")
    def of(helper, x):
        return make(x)

    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        x = shmgpu.arena.zeros(4)
        for number in range(8):
            x[:] = number
            assert repr(of(x)) == repr(make(x))
        del x


VALUES = [1, 2, -5, 2**62, 2**70, 0, 1.5, -0.0, 0.0, float("inf"), True, False, None, 1, "text", ""]


def test_plain_values_arrive_as_they_are_at_each_call(broker):
    x = shmgpu.arena.zeros(4)
    for _ in range(3):
        for value in VALUES:
            for _ in range(3):
                assert repr(told(x, value, 7)) == repr((value, 7))


@shmgpu.function(arrays="numpy")
def told(helper, x, value, other):
    if x[0] == 2:
        raise ValueError("as told")
    return value, other


@shmgpu.function(arrays="numpy")
def scaled(helper, x, k):
    if x[0] == 2:
        raise ValueError("as told")
    return x * 0 + k


def test_a_value_of_a_call_that_raised_is_nobody_elses(broker):
    x = shmgpu.arena.zeros(4)
    for _ in range(5):
        scaled(x, 1)
    x[0] = 2
    for _ in range(2):
        with pytest.raises(shmgpu.RemoteError, match="as told"):
            scaled(x, 7)
    x[0] = 0
    kept = [scaled(x, 1) for _ in range(12)]
    assert [y.tolist() for y in kept] == [[1] * 4] * 12


def test_what_lies_outside_the_arena_is_copied_and_counted_at_each_call(broker):
    outside = np.zeros(4, np.float32)
    for _ in range(5):
        act(outside)
    before = shmgpu.stats()["bytes"]["copied_in"]
    for n in range(10):
        outside[1] = n
        assert act(outside).tolist() == [1, n + 1, 1, 1]
    assert shmgpu.stats()["bytes"]["copied_in"] - before == 10 * outside.nbytes


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


@shmgpu.function(arrays="numpy")
def after(helper, x, box, folder):
    """Begins, and waits for the gate."""
    open(f"{folder}/begun", "w").close()
    end = time.monotonic() + 20
    while not os.path.exists(f"{folder}/gate"):
        assert time.monotonic() < end
        time.sleep(0.001)
    return x + (1 if box[0] == "a" else 100)


def test_what_is_kept_of_a_call_is_what_was_sent_though_its_list_has_changed(broker, tmp_path):
    """By then it is known what comes back, and nothing is kept of a call yet."""
    x, box, folder = shmgpu.arena.zeros(4), ["a"], str(tmp_path)
    (tmp_path / "gate").touch()
    assert after(x, box, folder).tolist() == [1] * 4
    for name in ("gate", "begun"):
        (tmp_path / name).unlink()

    def write():
        while not (tmp_path / "begun").exists():
            time.sleep(0.001)
        box[0] = "b"
        (tmp_path / "gate").touch()

    writer = threading.Thread(target=write)
    writer.start()
    assert after(x, box, folder).tolist() == [1] * 4
    writer.join()
    for word, wanted in (("b", 100), ("b", 100), ("a", 1), ("b", 100)):
        assert after(x, [word], folder).tolist() == [wanted] * 4


GO, HALF, WAIT = range(3)


@shmgpu.function(arrays="numpy")
def act_as_told(helper, x, order):
    if order == HALF:
        return x[:2] * 100
    if order == WAIT:
        time.sleep(0.05)  # so that the window is still full when the next is submitted
    return x + 1


def test_a_submission_that_finds_the_window_full_leaves_nothing_to_the_next_call():
    """Whose result is of another kind, and lies in another buffer than that one was to have."""
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=2):
        x = np.zeros(100)  # whose result has room for the description of another
        for _ in range(3):
            act_as_told(x, GO)
        for future in [act_as_told.submit(x, GO) for _ in range(5)]:
            future.result()
        del future
        waiting = [act_as_told.submit(x, WAIT) for _ in range(4)]
        for future in waiting:
            future.result()
        del future, waiting
        kept = [act_as_told(x, GO) for _ in range(20)]  # each ready call has another buffer
        for _ in range(12):
            assert act_as_told(x, HALF).tolist() == [0, 0]
            kept.append(act_as_told(x, GO))
        assert all(one.tolist() == [1] * 100 for one in kept)
        del kept


@shmgpu.function(arrays="numpy", timeout=0.1)
def in_time(helper, x):
    time.sleep(float(x[0]))
    return x + 1


def test_a_call_that_was_told_to_take_its_time_gives_the_next_none(broker):
    x = shmgpu.arena.zeros(4)
    for _ in range(4):
        assert in_time.options(timeout=None).submit(x).result().tolist() == [1] * 4
        assert in_time.options(timeout=None)(x).tolist() == [1] * 4
    x[0] = 1.0
    with pytest.raises(shmgpu.CallTimeout):
        in_time(x)


@shmgpu.function(arrays="numpy")
def lengths(helper, arrays):
    return [float(one.sum()) for one in arrays]


@pytest.mark.parametrize("change", [list.clear, lambda given: given.append(given[0])])
def test_a_list_that_changes_as_it_is_looked_at_costs_the_next_call_nothing(
    broker, monkeypatch, change
):
    """Its plan would be that of another kind of arguments, for good."""
    given, look = [np.ones(5)], arguments.flatten

    def flatten(*args):
        if given:
            change(given)
        return look(*args)

    monkeypatch.setattr(arguments, "flatten", flatten)
    lengths(given)
    monkeypatch.setattr(arguments, "flatten", look)
    for _ in range(4):
        assert lengths([np.full(5, 2.0)]) == [10]
        assert lengths.submit([np.full(5, 2.0)]).result() == [10]


def test_calls_of_arrays_need_nothing_of_torch_while_another_thread_imports_it(broker, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # not there yet
    x = warm()
    assert act.submit(x).result().tolist() == [1] * 4
    told = threading.Event()
    act.options(priority=1).submit(x).add_done_callback(lambda ended: told.set())
    assert told.wait(20)
