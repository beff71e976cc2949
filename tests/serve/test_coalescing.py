"""Requests that go as one message: what becomes of it when their clients leave."""

from __future__ import annotations

import types

import pytest

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
