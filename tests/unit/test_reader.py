"""How long the reader of replies waits, and for whose."""

from __future__ import annotations

import threading
import types

import pytest

from shmgpu import core
from shmgpu.child import replies
from shmgpu.child.replies import LINGER_NS, QUEUE_NS, Replies

NOW = 10**9


def ticket(deadline_ns=0, handler=len, is_watched=False):
    return types.SimpleNamespace(
        deadline_ns=deadline_ns, handler=handler, is_watched=is_watched, error=None
    )


def port(*out, queue=(), deadlines=True):
    return types.SimpleNamespace(
        _out=dict(enumerate(out)), _queue=list(queue), _deadlines=deadlines, _reader=None
    )


@pytest.mark.parametrize(
    ("found", "linger_ns"),
    [
        (port(), LINGER_NS),
        (port(ticket(NOW + 5), deadlines=False), LINGER_NS),
        (port(queue=[1]), QUEUE_NS),
        (port(queue=[1], deadlines=False), LINGER_NS),
        (port(ticket(NOW + 5)), 5),
        (port(ticket(NOW + 5), ticket(NOW + 3), ticket(NOW + 4)), 3),
        (port(ticket(NOW + LINGER_NS + 1)), LINGER_NS),
        (port(ticket(NOW + QUEUE_NS + 1), queue=[1]), QUEUE_NS),
        (port(ticket(NOW)), 0),
        (port(ticket(NOW - 1)), 0),
        (port(ticket(0)), LINGER_NS),
        (port(None), LINGER_NS),
        (port(ticket(NOW + 5, handler=None)), LINGER_NS),
        (port(ticket(NOW + 5, handler=None), ticket(NOW + 7)), 7),
    ],
)
def test_a_reader_waits_no_longer_than_until_the_first_deadline(monkeypatch, found, linger_ns):
    monkeypatch.setattr(replies.time, "monotonic_ns", lambda: NOW)
    assert Replies._linger_ns(found) == linger_ns


@pytest.mark.parametrize(
    ("found", "has_work"),
    [
        (port(), False),
        (port(queue=[1]), True),
        (port(None), True),
        (port(ticket()), False),
        (port(ticket(), ticket(is_watched=True)), True),
        (port(ticket(NOW)), True),
    ],
)
def test_a_reader_rests_while_others_read_for_themselves(found, has_work):
    assert Replies._has_work(found) == has_work


def test_who_waits_for_the_reader_waits_for_one_that_runs_and_not_for_itself(monkeypatch):
    roused = []
    found = port()
    found._rouse_reader = lambda: roused.append(1)
    Replies.join(found)
    found._reader = threading.current_thread()
    Replies.join(found)
    assert roused == []
    goes_on = threading.Event()
    found._reader = threading.Thread(target=goes_on.wait)
    found._reader.start()
    found._rouse_reader = goes_on.set
    Replies.join(found)
    assert not found._reader.is_alive()
    # One that is just being launched is looked for again, as long as it is the reader.
    found._reader = threading.Thread(target=len)
    monkeypatch.setattr(replies.time, "sleep", lambda seconds: setattr(found, "_reader", None))
    Replies.join(found)
    assert found._reader is None
    found._reader = threading.Thread(target=len)
    monkeypatch.setattr(replies, "JOIN_S", 0.0)
    monkeypatch.setattr(replies.time, "sleep", lambda seconds: pytest.fail("it is not waited for"))
    Replies.join(found)


class Arena:
    """Gives out what it has."""

    def __init__(self, capacity):
        self.capacity, self.shrunk = capacity, []

    def allocate(self, size):
        return bytearray(size), 64

    def refused(self, size):
        return replies.ArenaFull(f"{size} bytes")

    def shrink(self, buffer, size):
        self.shrunk.append((len(buffer), size))


@pytest.mark.parametrize(("needed", "fits"), [(100, True), (101, False)])
def test_a_result_is_given_room_up_to_the_whole_arena(needed, fits):
    found = types.SimpleNamespace(arena=Arena(100))
    call = types.SimpleNamespace(out=None)
    if fits:
        size, buffer, address = Replies._output_for(found, call, needed)
        assert (size, len(buffer), address) == (100, 100, 64)
        return
    with pytest.raises(replies.ArenaFull, match="101 bytes"):
        Replies._output_for(found, call, needed)


@pytest.mark.parametrize(
    ("size", "used", "out", "shrinks"),
    [
        (replies.SPARE_BYTES + 11, 10, None, True),
        (replies.SPARE_BYTES + 10, 10, None, False),
        (replies.SPARE_BYTES + 11, 10, "given", False),
        (replies.SPARE_BYTES + 11, 0, None, False),
    ],
)
def test_a_result_holds_no_more_of_the_arena_than_a_little(monkeypatch, size, used, out, shrinks):
    arena = Arena(0)
    monkeypatch.setattr(replies, "result_of", lambda *told: told[1:3])
    found = types.SimpleNamespace(arena=arena, transport=types.SimpleNamespace(last_error=None))
    call = types.SimpleNamespace(result=bytearray(size), out=out)
    assert Replies._result_of(found, call, core.OK, used) == (core.OK, used)
    assert arena.shrunk == ([(size, used)] if shrinks else [])
