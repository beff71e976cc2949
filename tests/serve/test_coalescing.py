"""Requests that go as one message: which do, and what becomes of it when their clients leave."""

from __future__ import annotations

import time
import types

import pytest

from shmgpu.serve.frontend import coalescing
from shmgpu.serve.frontend.coalescing import Coalescer
from shmgpu.serve.frontend.fast_path import FastPath


class Noting:
    """Takes any call, and remembers which there were."""

    def __init__(self, *answers):
        self.calls = []
        self.answers = dict(answers)

    def __getattr__(self, name):
        return lambda *args: self.calls.append(name) or self.answers.get(name)


def under_way(count, is_cancelled):
    """A coalescer of so many requests whose call is out."""
    one = object.__new__(Coalescer)
    one._prepared = types.SimpleNamespace(queue=None, coalescer_count=1, coalescers=[])
    one._calls = types.SimpleNamespace(accounting=Noting(), port=Noting(("cancel", is_cancelled)))
    one.served, one._started = None, [0] * count
    one._messages = {count: (types.SimpleNamespace(keeper=one), [])}
    one._timer = Noting()
    one.call, one.taken, one.gone = object(), count, 0
    return one


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "it had ended"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_call_is_given_up_when_the_last_of_its_clients_has_left(count, is_cancelled):
    """Then there is room for another coalescer; one whose call had ended stays what it is."""
    one = under_way(count, is_cancelled)
    timer, (call, _) = one._timer, one._messages[count]
    for left in range(count):
        assert one._calls.port.calls == [] and one._prepared.coalescer_count == 1
        one._left(left)
    assert one._calls.port.calls == ["cancel"]
    assert one._calls.accounting.calls == ["leave", "cancelled"] * count
    assert one._prepared.coalescers == []  # its memory may still be written to
    gone = call.keeper is None, one.call is None, timer.calls == ["cancel"]
    assert gone == (is_cancelled,) * 3
    assert one._prepared.coalescer_count == 1 - is_cancelled


def test_who_leaves_before_the_message_is_sent_cancels_no_call():
    one = under_way(2, True)
    one.call = None
    one._left(0)
    one._left(1)
    assert one.gone == 2 and one._calls.port.calls == []


def alike(rows=1, most=8, nbytes=64, shape=None, for_model=(), regions=False, delay=0):
    """A prepared request of one input of so many bytes, of a model that takes so many rows."""
    spec = types.SimpleNamespace(shape=(rows, 2) if shape is None else shape)
    return types.SimpleNamespace(
        served=types.SimpleNamespace(batch_max_rows=most, description={"max_delay_ms": delay}),
        template=types.SimpleNamespace(
            rows=rows, request=types.SimpleNamespace(for_model=for_model), uses_regions=regions
        ),
        plan=types.SimpleNamespace(hint=types.SimpleNamespace(specs=[spec], nbytes=0)),
        inputs=[(0, nbytes)],
    )


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({"most": 0}, 0),
        ({"most": 1}, 0),  # one by itself goes by itself
        ({"most": 2}, 2),
        ({"most": 7, "rows": 3}, 2),
        ({"most": 5, "rows": 3}, 0),
        ({"most": 1 << 20}, coalescing.MOST_TOGETHER),
        ({"nbytes": coalescing.MOST_BYTES // 2}, 2),
        ({"nbytes": coalescing.MOST_BYTES // 2 + 1}, 0),
        ({"nbytes": 0}, 8),
        ({"shape": ()}, 0),
        ({"shape": (2, 2)}, 0),
        ({"for_model": ("x",)}, 0),
        ({"regions": True}, 0),
        ({"delay": 1}, 0),
    ],
)
def test_requests_go_together_as_far_as_their_model_and_a_message_take_them(said, count):
    assert coalescing.requests_together(alike(**said)) == count


def filling(capacity, began_ns=None):
    """A coalescer that is being filled, and the turns of the loop that wait for it."""
    one = under_way(capacity, True)
    turns = []
    one._calls.loop = types.SimpleNamespace(call_soon=turns.append)
    one._started[0] = time.monotonic_ns() if began_ns is None else began_ns
    one._turns, one._seen, one.taken, one._timer = [None] * capacity, 0, 0, None
    call = types.SimpleNamespace(deadline_ns=0)
    one._messages = {count: (call, []) for count in range(1, capacity + 1)}
    one._prepared.coalescer, one._prepared.timeout = one, None
    return one, turns


def test_a_coalescer_goes_when_a_turn_of_the_loop_has_read_nothing_more():
    one, turns = filling(8)
    for taken in (1, 2, 4):
        one.taken = taken
        one.send()
        assert len(turns) == taken.bit_length() and one._calls.port.calls == []
    turns[-1]()
    assert one._calls.port.calls == ["resend"] and one._prepared.coalescer is None
    assert one._prepared.come_together
    turns[-1]()  # one turn more, of before
    assert one._calls.port.calls == ["resend"] and len(turns) == 3


@pytest.mark.parametrize(("capacity", "taken", "began_ns"), [(4, 4, None), (4, 2, 0)])
def test_a_coalescer_that_is_full_or_was_begun_long_ago_goes_at_once(capacity, taken, began_ns):
    one, turns = filling(capacity, began_ns)
    one.taken = taken
    one.send()
    assert one._calls.port.calls == ["resend"] and turns == []


def test_one_that_came_by_itself_does_not_say_that_more_will():
    one, turns = filling(4)
    one._prepared.come_together = True
    one.taken = 1
    one.send()
    turns[-1]()
    assert one._calls.port.calls == ["resend"] and not one._prepared.come_together


@pytest.mark.parametrize(
    ("capacity", "pending", "come_together", "is_coalesced"),
    [(8, 0, False, False), (8, 1, False, True), (8, 0, True, True), (0, 1, True, False)],
)
def test_a_request_goes_with_others_where_there_are_some_or_were_just_now(
    capacity, pending, come_together, is_coalesced
):
    path, coalescer = object.__new__(FastPath), Noting()
    path._calls, path._accounting = None, types.SimpleNamespace(pending=pending)
    path._slot = lambda prepared: None  # there is no room for it
    prepared = types.SimpleNamespace(
        capacity=capacity, come_together=come_together, coalescer=coalescer, ready=[]
    )
    assert path._start(prepared, None, memoryview(b""), 0) == is_coalesced
    assert coalescer.calls == ["add"] * is_coalesced
