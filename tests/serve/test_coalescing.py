"""Requests that go as one message: which do, and what becomes of it when their clients leave."""

from __future__ import annotations

import gc
import types
import weakref

import numpy as np
import pytest

from shmgpu.errors import ArenaFull
from shmgpu.serve.frontend import coalescing, lanes
from shmgpu.serve.frontend.coalescing import Coalescer, Lane
from shmgpu.serve.frontend.fast_path import FastPath
from shmgpu.serve.scheduling.accounting import Accounting
from shmgpu.serve.state.counters import FIELDS, INDEX

NOW_NS = 10**6


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
    one._prepared = types.SimpleNamespace(queue=None)
    one._lane = lane = Lane(count, Coalescer)
    lane.count = lane.users = 1
    one._calls = types.SimpleNamespace(accounting=Noting(), port=Noting(("cancel", is_cancelled)))
    one.served, one._started, one._leave = None, [0] * count, []
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
        assert one._calls.port.calls == [] and one._lane.count == 1
        one._left(left)
    assert one._calls.port.calls == ["cancel"]
    assert one._calls.accounting.calls == ["leave", "cancelled"] * count
    assert one._lane.empty == []  # its memory may still be written to
    gone = call.keeper is None, one.call is None, timer.calls == ["cancel"]
    assert gone == (is_cancelled,) * 3
    assert one._lane.count == 1 - is_cancelled


def test_who_leaves_before_the_message_is_sent_cancels_no_call():
    one = under_way(2, True)
    one.call = None
    one._left(0)
    one._left(1)
    assert one.gone == 2 and one._calls.port.calls == []


def test_who_leaves_before_the_message_is_sent_was_never_counted_as_handed_over():
    """The count that all see is a whole number of no sign."""
    one, _ = filling(8)
    counters = memoryview(np.zeros(len(FIELDS), np.uint64))
    queue = types.SimpleNamespace(counter=INDEX["pending_0"], pending=0, most=0)
    served = types.SimpleNamespace(base=0)
    accounting = Accounting(counters, 100)
    one._calls.accounting, one._prepared.queue, one.served = accounting, queue, served

    def counts():
        return accounting.pending, queue.pending, counters[INDEX["pending_0"]]

    for index in range(3):
        accounting.admit_one(queue)
        one.taken = index + 1
        one._left(index)
    assert counts() == (0, 0, 0) and counters[INDEX["cancel_count"]] == 3
    accounting.admit_one(queue)
    one.taken = one._seen = 4
    one.send()
    assert counts() == (1, 1, 1)
    one._left(3)
    assert counts() == (0, 0, 0) and counters[INDEX["cancel_count"]] == 4


def alike(rows=1, most=8, nbytes=64, shape=None, for_model=(), delay=0):
    """A prepared request of one input of so many bytes, of a model that takes so many rows."""
    spec = types.SimpleNamespace(shape=(rows, 2) if shape is None else shape)
    return types.SimpleNamespace(
        served=types.SimpleNamespace(batch_max_rows=most, description={"max_delay_ms": delay}),
        template=types.SimpleNamespace(
            rows=rows, request=types.SimpleNamespace(for_model=for_model), uses_regions=False
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
        ({"rows": 0}, 0),
        ({"most": 1 << 20}, lanes.MOST_TOGETHER),
        ({"nbytes": lanes.MOST_BYTES // 2}, 2),
        ({"nbytes": lanes.MOST_BYTES // 2 + 1}, 0),
        ({"nbytes": 0}, 8),
        ({"shape": ()}, 0),
        ({"shape": (2, 2)}, 0),
        ({"for_model": ("x",)}, 0),
        ({"delay": 1}, 0),
    ],
)
def test_requests_go_together_as_far_as_their_model_and_a_message_take_them(said, count):
    assert lanes.requests_together(alike(**said)) == count


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch):
    """Between two lines of a test; on a busy machine it may be more than one waits for."""
    monkeypatch.setattr(coalescing, "_now", lambda: NOW_NS)


def filling(capacity, age_ns=0):
    """A coalescer that is being filled, and the turns of the loop that wait for it."""
    one = under_way(capacity, True)
    turns = []
    one._calls.loop = types.SimpleNamespace(call_soon=turns.append)
    one._started[0] = NOW_NS - age_ns
    one._turns, one._seen, one.taken, one._timer = [None] * capacity, 0, 0, None
    call = types.SimpleNamespace(deadline_ns=0)
    one._messages = {count: (call, []) for count in range(1, capacity + 1)}
    one._lane.filling, one._prepared.timeout = one, None
    return one, turns


def test_a_coalescer_goes_when_a_turn_of_the_loop_has_read_nothing_more():
    one, turns = filling(8, coalescing.MOST_READING_NS - 1)
    for taken in (1, 2, 4):
        one.taken = taken
        one.send()
        assert len(turns) == taken.bit_length() and one._calls.port.calls == []
    turns[-1]()
    assert one._calls.port.calls == ["resend"] and one._lane.filling is None
    assert one._lane.come_together
    turns[-1]()  # one turn more, of before
    assert one._calls.port.calls == ["resend"] and len(turns) == 3


@pytest.mark.parametrize(
    ("taken", "age_ns"), [(4, 0), (2, coalescing.MOST_READING_NS)], ids=["full", "begun long ago"]
)
def test_a_coalescer_that_is_full_or_was_begun_long_ago_goes_at_once(taken, age_ns):
    one, turns = filling(4, age_ns)
    one.taken = taken
    one.send()
    assert one._calls.port.calls == ["resend"] and turns == []


def test_one_that_came_by_itself_does_not_say_that_more_will():
    one, turns = filling(4)
    one._lane.come_together = True
    one.taken = 1
    one.send()
    turns[-1]()
    assert one._calls.port.calls == ["resend"] and not one._lane.come_together


@pytest.mark.parametrize(
    ("has_lane", "pending", "come_together", "is_coalesced"),
    [
        (True, 0, False, False),
        (True, 1, False, True),
        (True, 0, True, True),
        (False, 1, True, False),
    ],
)
def test_a_request_goes_with_others_where_there_are_some_or_were_just_now(
    has_lane, pending, come_together, is_coalesced
):
    path, coalescer = object.__new__(FastPath), Noting()
    path._calls, path._accounting = None, types.SimpleNamespace(pending=pending)
    path._slot = lambda prepared: None  # there is no room for it
    lane = Lane(8, Coalescer)
    lane.come_together, lane.filling = come_together, coalescer
    prepared = types.SimpleNamespace(lane=lane if has_lane else None, ready=[])
    assert path._start(prepared, None, memoryview(b""), 0) == is_coalesced
    assert coalescer.calls == ["add"] * is_coalesced


def test_a_lane_that_nobody_uses_keeps_nothing_ready():
    one = under_way(2, True)
    lane, (call, _) = one._lane, one._messages[2]
    one._clear()
    assert lane.empty == [one] and lane.count == 1
    lane.leave()
    assert lane.empty == [] and lane.count == 0 and call.keeper is None


def test_what_is_under_way_when_the_last_user_leaves_is_not_kept_either():
    one = under_way(2, True)
    lane, (call, _) = one._lane, one._messages[2]
    lane.leave()
    assert lane.count == 1 and call.keeper is one
    one._clear()
    assert lane.empty == [] and lane.count == 0 and call.keeper is None


def test_a_lane_has_so_many_coalescers_and_none_without_room():
    made = []
    loop = types.SimpleNamespace(call_soon=lambda send: None)
    calls = types.SimpleNamespace(loop=loop)
    prepared = types.SimpleNamespace(is_current=lambda: True)

    def kind(*args):
        made.append(args)
        return types.SimpleNamespace(send=None)

    lane = Lane(2, kind)
    for count in range(1, coalescing.MOST_COALESCERS + 1):
        assert lane.open(prepared, calls, None) is lane.filling
        assert lane.count == count == len(made)
    assert lane.open(prepared, calls, None) is None
    lane.empty.append(lane.filling)
    assert lane.open(prepared, calls, None) is lane.filling and lane.empty == []
    lane.empty.append(lane.filling)
    lane.capacity = 0
    assert lane.open(prepared, calls, None) is None


@pytest.mark.parametrize("is_current", [True, False])
def test_a_lane_without_memory_or_with_results_that_differ_now_opens_none(is_current):
    def kind(*args):
        raise ArenaFull("full", 1, 1, 1)

    lane = Lane(2, kind)
    prepared = types.SimpleNamespace(is_current=lambda: is_current)
    assert lane.open(prepared, None, None) is None and lane.count == 0


def in_regions(served, places, shape=(1, 2), queue="queue"):
    """A prepared request whose tensors lie there."""
    inputs = [{"in": place, "shape": shape} for place in places[:1]]
    outputs = tuple((at, *place) for at, place in enumerate(places[1:]))
    said = np.array([8, *shape]).tobytes()
    return types.SimpleNamespace(
        served=served, queue=queue, timeout=None, call_priority=0, version=1, places=b"",
        plan=types.SimpleNamespace(hint=None), told=[(0, len(said), said)],
        template=types.SimpleNamespace(
            rows=1, request=types.SimpleNamespace(for_model=()), uses_regions=True, omits=False,
            pieces=[], wanted=[(0, None, True)], args=[1, outputs, *inputs],
        ),
    )  # fmt: skip


class Served:
    """A model of one input and one output."""

    batch_max_rows = 8
    has_bytes = False

    def __init__(self, kind="float"):
        self.description = {"max_delay_ms": 0}
        self.inputs = self.outputs = [types.SimpleNamespace(kind=kind)]


def test_requests_that_differ_in_their_places_alone_share_a_lane():
    served, known = Served(), lanes.Lanes()
    one = in_regions(served, [(1, 0, 8), (2, 8, 8)])
    lane = known.join(one)
    assert np.frombuffer(one.places, "i8").tolist() == [1, 0, 8, 2, 8, 8]
    assert known.join(in_regions(served, [(3, 0, 8), (4, 0, 8)])) is lane and lane.users == 2
    other = [
        in_regions(Served(), [(3, 0, 8), (4, 0, 8)]),
        in_regions(served, [(3, 0, 8), (4, 0, 8)], shape=(1, 1)),
        in_regions(served, [(3, 0, 8), (4, 0, 8)], queue="another"),
    ]
    assert all(known.join(each) is not lane for each in other)
    large = 1 << 18
    assert known.join(in_regions(served, [(3, 0, large), (4, 0, 8)])) is None
    assert known.join(in_regions(Served("bool"), [(3, 0, 8), (4, 0, 8)])) is None
    mixed = in_regions(served, [(3, 0, 8), (4, 0, 8)])
    mixed.template.pieces = ["in the body"]
    assert known.join(mixed) is None


def test_one_for_which_there_is_not_all_of_the_room_gives_back_what_it_had_at_once():
    """And not when Python's collector comes: the arena is full."""

    class Roomless(Coalescer):
        def _make_room(self, capacity):
            rooms.append(weakref.ref(self))

        def _layout(self, count):
            return types.SimpleNamespace(nbytes=8)

    def allocate(nbytes):
        raise ArenaFull("full")

    rooms = []
    arena = types.SimpleNamespace(allocate=allocate)
    calls = types.SimpleNamespace(port=types.SimpleNamespace(arena=arena))
    lane = Lane(4, Roomless)
    prepared = types.SimpleNamespace(is_current=lambda: True, served=None)
    gc.disable()
    try:
        assert lane.open(prepared, calls, None) is None
        assert [room() for room in rooms] == [None] and lane.count == 0
    finally:
        gc.enable()
