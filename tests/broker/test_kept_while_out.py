"""What a helper reads and writes is a call's own until its end, and nobody's for longer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch
from crash.programs import until

import shmgpu
from shmgpu.child import replies, runtime

ITEMS = 5000
HEARD_OF = ["quick", "in Python"]


@pytest.fixture(params=HEARD_OF)
def broker(request, monkeypatch):
    monkeypatch.setenv("SHMGPU_QUICK_CALLS", str(int(request.param == "quick")))
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        yield request.param


def array(value, items=ITEMS):
    made = shmgpu.arena.empty(items, "float64")
    made[:] = value
    return made


def others():
    """Whoever asks for memory next: the first has what was freed last."""
    return [array(7) for _ in range(20)]


def wait_for(gate):
    until(lambda: os.path.exists(gate), "the gate is opened")


@shmgpu.function(arrays="numpy")
def total(helper, arrays, gate):
    wait_for(gate)
    return float(arrays["in"][0].sum())


@shmgpu.function(arrays="numpy", mutates=True)
def wipes(helper, arrays, gate):
    wait_for(gate)
    arrays["in"][0][...] = -1


@shmgpu.function(arrays="numpy")
def summed(helper, x):
    return float(x.sum())


@pytest.fixture
def gate(tmp_path):
    """Open; whoever wants it closed unlinks it."""
    made = tmp_path / "gate"
    made.touch()
    return made


def submitted(loop, function, *args):
    return function.submit(*args).result


def awaited(loop, function, *args):
    async def main():
        return await function.aio(*args)

    task = loop.create_task(main())
    loop.run_until_complete(asyncio.sleep(0))  # it begins
    return lambda: loop.run_until_complete(task)


@pytest.mark.parametrize("way", [submitted, awaited], ids=lambda way: way.__name__)
@pytest.mark.parametrize("function", [total, wipes], ids=["reads", "writes"])
def test_a_list_that_is_emptied_takes_no_array_from_the_helper(broker, gate, way, function):
    loop = asyncio.new_event_loop()
    for _ in range(4):
        way(loop, function, {"in": [array(1)]}, str(gate))()
    gate.unlink()
    passed = {"in": [array(1)]}
    end = way(loop, function, passed, str(gate))
    passed["in"].clear()
    new = others()
    gate.touch()
    assert end() == (ITEMS if function is total else None)
    assert all((one == 7).all() for one in new)
    loop.close()


@pytest.mark.parametrize("function", [total, wipes], ids=["reads", "writes"])
def test_nor_does_another_thread_while_the_caller_waits(broker, gate, function):
    for _ in range(4):
        function({"in": [array(1)]}, str(gate))
    gate.unlink()
    passed, new = {"in": [array(1)]}, []

    def empties():
        until(lambda: shmgpu.stats()["broker"]["in_flight"] == 1, "the helper has its call")
        passed["in"].clear()
        new.extend(others())
        gate.touch()

    thread = threading.Thread(target=empties)
    thread.start()
    assert function(passed, str(gate)) == (ITEMS if function is total else None)
    thread.join()
    assert all((one == 7).all() for one in new)


@pytest.mark.parametrize("made_in", HEARD_OF)
def test_who_keeps_a_future_that_has_ended_keeps_nothing_of_its_call(broker, made_in):
    calls = summed if made_in == "quick" else summed.options(priority=1)
    for _ in range(4):
        summed(array(1))
    x = array(1)
    gone = weakref.ref(x)
    future = calls.submit(x)
    assert future.result() == ITEMS and x.flags.writeable
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("how", ["cancelled", "too late", "broker gone"])
def test_nor_does_who_keeps_one_that_was_never_sent(how, gate):
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=1):
        gate.unlink()
        out = total.submit({"in": [array(1)]}, str(gate))
        x = array(1)
        gone = weakref.ref(x)
        calls = summed.options(timeout=0.01) if how == "too late" else summed
        future = calls.submit(x)
        del x
        assert gone() is not None
        if how == "broker gone":
            runtime.require_port().close(shmgpu.BrokerDied("as if"))
        elif how == "cancelled":
            assert future.cancel()
        if how != "cancelled":
            with pytest.raises((shmgpu.CallTimeout, shmgpu.BrokerDied)):
                future.result(20)
        gc.collect()
        assert gone() is None
        gate.touch()
        if how != "broker gone":
            assert out.result() == ITEMS
        del out


# ---- tensors -----------------------------------------------------------------------------------


@shmgpu.function
def torch_total(helper, x, gate):
    wait_for(gate)
    return float(x.sum())


def tensor(value):
    return torch.from_numpy(array(value))


@pytest.mark.parametrize("in_list", [False, True], ids=["alone", "in a list"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: setattr(x, "data", torch.zeros(1, dtype=torch.float64)),
        lambda x: x.set_(torch.zeros(1, dtype=torch.float64).untyped_storage()),
    ],
    ids=["data", "set_"],
)
def test_a_tensor_that_gets_other_memory_takes_none_from_the_helper(broker, gate, change, in_list):
    function = torch_total_of_first if in_list else torch_total
    for _ in range(4):
        function([tensor(1)] if in_list else tensor(1), str(gate))
    gate.unlink()
    x = tensor(1)
    future = function.submit([x] if in_list else x, str(gate))
    change(x)
    new = others()
    gate.touch()
    assert future.result() == ITEMS
    del new


@shmgpu.function
def torch_total_of_first(helper, tensors, gate):
    wait_for(gate)
    return float(tensors[0].sum())


@shmgpu.function
def as_it_is(helper, x):
    return x + 0


@pytest.mark.parametrize("made_in", HEARD_OF)
def test_an_array_over_a_tensors_memory_may_be_written_to_again(broker, made_in):
    """NumPy, which did not make that memory, would not allow it."""
    calls = summed if made_in == "quick" else summed.options(priority=1)
    for _ in range(4):
        x = as_it_is(torch.ones(ITEMS)).numpy()
        told = threading.Event()
        future = calls.submit(x)
        future.add_done_callback(lambda ended, told=told: told.set())
        assert told.wait(20) and future.result() == ITEMS
        if broker == "quick" or not quick_is_missing():
            until(lambda x=x: x.flags.writeable, "it is still lent")
    del x, future


def quick_is_missing():
    from shmgpu.child import quick

    return quick.set_writeable is quick._set_writeable


# ---- two threads ---------------------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def as_many(helper, x, count, gate):
    wait_for(gate)
    return np.full(count, x[0]), "a value, so that no layout is promised"


def test_a_larger_buffer_that_is_offered_too_late_goes_to_no_other_call(broker, gate, monkeypatch):
    """A thread that serves a call's request is slow, and meanwhile the call ends."""
    port = runtime.require_port()
    monkeypatch.setattr(replies, "REST_S", 30.0)  # nor does the reader serve it
    slow, begun, go = [], threading.Event(), threading.Event()
    look = port._output_for

    def output_for(call, needed):
        if threading.current_thread() in slow:
            begun.set()
            assert go.wait(20)
        return look(call, needed)

    monkeypatch.setattr(port, "_output_for", output_for)
    first = as_many.submit(array(1, 4), ITEMS, str(gate))

    def asks():
        with contextlib.suppress(CancelledError):
            first.result(20)

    slow.append(threading.Thread(target=asks))
    slow[0].start()
    assert begun.wait(20)
    assert first.cancel()
    until(lambda: port.poll() == 0 and not port.outstanding, "another thread refuses its request")
    gate.unlink()
    second = as_many.submit(array(2, 4), 100, str(gate))
    call = second._ticket.call
    assert call is first._ticket.call
    before = bytes(call.block), call.result
    go.set()
    slow[0].join()
    assert bytes(call.block) == before[0] and call.result is before[1]
    third = as_many.submit(array(3, 4), 100, str(gate))
    gate.touch()
    for future, value in ((second, 2), (third, 3)):
        assert future.result(20)[0].tolist() == [value] * 100
    del second, third, future, call, before


class Looks:
    """A number that looks at a block while it is written there."""

    def __init__(self, number, block):
        self.number = number
        self.block = block
        self.seen = []

    def __index__(self):
        self.seen.append(bytes(self.block))
        return self.number


def test_a_larger_buffer_that_is_offered_twice_is_there_all_the_while(broker, gate, monkeypatch):
    """The helper reads the block as soon as the first of two threads has offered it."""
    port = runtime.require_port()
    grow, seen = port.transport.grow, []

    def twice(sequence, token, block):
        monkeypatch.setattr(port.transport, "grow", grow)
        status = grow(sequence, token, block)
        (reply,) = port._growing
        ticket = port._out[int(reply.ticket)]
        call, (size, buffer, address) = ticket.call, ticket.offers[token]
        looks = Looks(address, call.block)
        ticket.offers[token] = size, buffer, looks
        seen.append({bytes(call.block)})
        port._offer(reply)
        seen.append({*looks.seen, bytes(call.block)})
        return status

    monkeypatch.setattr(port.transport, "grow", twice)
    future = as_many.submit(array(1, 4), ITEMS, str(gate))
    assert future.result(20)[0].tolist() == [1] * ITEMS
    assert seen[0] == seen[1]
    del future


def test_who_cancels_what_has_ended_takes_nothing_from_the_next_call(gate, monkeypatch):
    """It could not be sent, and whoever cancels it is slow to go on."""
    calls = total.options(priority=1)

    def full(call):
        raise shmgpu.ArenaFull("as if", 1, 1, 1, 1)

    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", window=1):
        port = runtime.require_port()
        gate.unlink()
        first = calls.submit({"in": [array(1)]}, str(gate))
        second = calls.submit({"in": [array(1)]}, str(gate))
        call = second._ticket.call
        call.result = None  # it found no memory, either
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(port.arguments, "allocate_output", full)
            meanwhile.setattr(port.arguments, "allocate_small_output", full)
            meanwhile.setattr(port, "_is_anything_out", lambda: False)
            meanwhile.setattr(port, "_settle", lambda looks: 0)  # whoever tells of it is slow
            port.pump()
        passed, third, unqueue = {"in": [array(1)]}, [], port._unqueue

        def slowly(ticket):
            port._settle(False)
            third.append(calls.submit(passed, str(gate)))
            unqueue(ticket)

        monkeypatch.setattr(port, "_unqueue", slowly)
        assert port.cancel(second._ticket)
        assert third[0]._ticket.call is call
        passed["in"].clear()
        new = others()
        gate.touch()
        assert [first.result(20), third[0].result(20)] == [ITEMS, ITEMS]
        del first, second, third[:], call, new


@shmgpu.function(arrays="numpy")
def of_either_kind(helper, x, is_usual):
    return x * 2 if is_usual else [float(x[0]) * 2, "other kind"]


def test_a_call_that_another_thread_makes_again_is_that_ones_alone(broker, monkeypatch):
    """Whoever ended it is slow to go on."""
    monkeypatch.setattr(replies, "REST_S", 30.0)  # nor does the reader end it
    slow, kept, go = [], threading.Event(), threading.Event()
    keep = replies.keep

    def slowly(*given):
        is_kept = keep(*given)
        if threading.current_thread() in slow:
            kept.set()
            assert go.wait(20)
        return is_kept

    monkeypatch.setattr(replies, "keep", slowly)
    if broker == "in Python":
        kept.set()  # nothing is
    of_either_kind(array(0, 400), True)
    one = of_either_kind.submit(array(1, 400), True)
    slow.append(threading.Thread(target=one.result))
    slow[0].start()
    assert kept.wait(20)
    rest = [of_either_kind.submit(array(value, 400), False) for value in range(2, 6)]
    go.set()
    slow[0].join()
    assert [future.result(20) for future in rest] == [[2.0 * v, "other kind"] for v in range(2, 6)]
    del one, rest


# ---- where the arena is full --------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def hundred(helper, k):
    return np.full(100, float(k))


@shmgpu.function(arrays="numpy")
def hundred_in_time(helper, k, gate):
    wait_for(gate)
    return np.full(100, float(k))


def fill(leave_bytes):
    """What holds all of the arena but so many bytes."""
    arena = runtime.current.arena
    held, size = [], 1 << 18
    while size >= 64:
        stats = arena.stats()
        if stats["free_bytes"] - size < leave_bytes or stats["largest_free_bytes"] < size + 64:
            size //= 2
            continue
        held.append(arena.allocate(size))
    return held


@pytest.mark.parametrize("leave_bytes", range(1024, 3072, 256))
def test_a_call_that_was_answered_returns_though_nothing_can_be_kept_of_it(broker, leave_bytes):
    hundred(1)
    hundred.signatures.clear()
    held = fill(leave_bytes)
    assert hundred(2)[0] == 2
    del held


def test_a_submission_waits_for_memory_where_calls_are_out_that_may_bring_some(broker, gate):
    for _ in range(4):
        hundred(1), hundred_in_time(1, str(gate))
    busy = [hundred(1) for _ in range(2)]  # the ready calls' own buffers
    gate.unlink()
    out = hundred_in_time.submit(2, str(gate))
    for signature in hundred_in_time.signatures:  # what might be given back
        signature.ready.clear()
    for plan in (*hundred.plans.values(), *hundred_in_time.plans.values()):
        plan.rooms.clear()
        plan.idle.clear()
    held = fill(512)
    future = hundred.submit(3)
    assert not future.done()
    held.clear()
    gate.touch()
    assert out.result()[0] == 2 and future.result()[0] == 3
    del busy
