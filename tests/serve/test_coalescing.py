"""Requests that go as one message: which do, and what becomes of it when their clients leave."""

from __future__ import annotations

import types

import pytest

from shmgpu.serve.frontend import coalescing
from shmgpu.serve.frontend.coalescing import Coalescer


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
