"""What a worker keeps of requests and clients: of one state of its models, and not without end."""

from __future__ import annotations

import collections
import types

import pytest

from shmgpu.serve.frontend import connection, fast_path, json_fast_path
from shmgpu.serve.frontend.fast_path import FastPath, PreparedRequest, RequestSlot
from shmgpu.serve.frontend.json_fast_path import JsonFastPath


class Prepared:
    """A request that was prepared, of that version of the table of models."""

    def __init__(self, version):
        self.version, self.is_closed = version, False
        self.template = types.SimpleNamespace(total=4)

    def close(self):
        assert not self.is_closed
        self.is_closed = True


@pytest.fixture
def worker():
    arena = types.SimpleNamespace(reclaimers=[])
    return types.SimpleNamespace(
        calls=types.SimpleNamespace(accounting=None, port=types.SimpleNamespace(arena=arena)),
        catalog=types.SimpleNamespace(table=types.SimpleNamespace(version=1), version=1),
        scratch=memoryview(bytearray(64)),
    )


def by_head(worker):
    """Of one front end: what it knows, by a number, and how another is made known."""
    path = FastPath(worker.calls, worker.catalog, worker.scratch, None, None)

    def known():
        return {
            int(head + json): one
            for head, (*_, by_json) in path._heads.items()
            for json, one in by_json.items()
        }

    def add(number, prepared):
        head, json = divmod(number, 10)
        path.open(b"%d" % head, b"%d" % json, prepared)

    return path, known, add


def by_kind(worker):
    path = JsonFastPath(worker.calls, worker.catalog, worker.scratch, None)

    def add(number, prepared):
        path._open(number, types.SimpleNamespace(prepared=prepared))

    return path, lambda: {key: one.prepared for key, one in path._known.items()}, add


@pytest.fixture(params=[by_head, by_kind])
def front(request, worker):
    return request.param(worker)


def test_what_is_known_is_of_one_version_of_the_models(front, worker):
    path, known, add = front
    first, late, second = Prepared(1), Prepared(1), Prepared(2)
    add(11, first)
    worker.catalog.table.version = 2
    add(12, late)  # its model may be another by now
    assert known() == {11: first} and not first.is_closed
    add(13, second)
    assert known() == {13: second} and first.is_closed and not second.is_closed
    assert path.forget() and second.is_closed and not known()
    assert not path.forget()


def test_one_that_came_meanwhile_is_replaced_and_counted_once(front, monkeypatch):
    _, known, add = front
    for module in (fast_path, json_fast_path):
        monkeypatch.setattr(module, "MOST_PREPARED", 2)
    first, again, other, more = (Prepared(1) for _ in range(4))
    add(11, first)
    add(11, again)
    assert known() == {11: again} and first.is_closed and not again.is_closed
    add(12, other)
    assert known() == {11: again, 12: other}  # as many as there may be
    add(21, more)
    assert known() == {21: more} and again.is_closed and other.is_closed


def test_the_arena_may_take_back_what_is_kept(front, worker):
    _, known, add = front
    one = Prepared(1)
    add(11, one)
    (reclaim,) = worker.calls.port.arena.reclaimers
    assert reclaim() and one.is_closed and not known()


@pytest.mark.parametrize(
    ("text", "count", "is_open", "may_start", "is_started"),
    [
        (b"beginDAT", 8, True, True, True),
        (b"beginDAT", 7, True, True, False),  # of the next only a part has come
        (b"otherDAT", 8, True, True, False),
        (b"beginDAT", 8, False, True, False),
        (b"beginDAT", 8, True, False, False),
    ],
)
def test_a_connection_asks_the_same_again_as_long_as_that_is_kept(
    worker, text, count, is_open, may_start, is_started
):
    path = FastPath(worker.calls, worker.catalog, worker.scratch, None, lambda *_: False)
    prepared, started = object.__new__(PreparedRequest), []
    prepared.is_open = is_open
    path._may_start = lambda one: may_start
    path._start = lambda *what: started.append(what[-1]) or True
    worker.scratch[: len(text)] = text
    asking = types.SimpleNamespace(lately=(b"begin", 8, prepared))
    assert path.take(asking, count) == is_started
    assert started == [len(b"begin")] * is_started


@pytest.mark.parametrize("is_open", [True, False])
def test_memory_of_a_call_is_kept_ready_only_as_long_as_its_request_is_known(is_open):
    """A connection refers to what it asked last, maybe for hours."""
    slot, told = object.__new__(RequestSlot), []
    slot.prepared = types.SimpleNamespace(is_open=is_open, ready=[], slots=1, join=b"".join)
    slot.block = types.SimpleNamespace(keeper=slot)
    slot.told, slot.pieces, slot.timer, slot.rows, slot.started_ns = [], [b"answer"], None, 1, 0
    slot.served = slot.queue = None
    accounting = types.SimpleNamespace(answered=lambda *counts: None)
    slot.calls = types.SimpleNamespace(accounting=accounting)
    client = types.SimpleNamespace(reply_whole=lambda turn, answer: told.append(answer))
    slot.turn = types.SimpleNamespace(connection=client)
    slot.arrived()
    assert told == [b"answer"]
    assert (slot.prepared.ready, slot.prepared.slots) == ([slot] * is_open, int(is_open))
    assert (slot.block.keeper is slot) == is_open


# ---- slow clients --------------------------------------------------------------------------------


def looked_at(waited, **said):
    """What a connection does, when it is looked at after so many seconds, and what it notes."""
    told = []
    unsent = said.pop("unsent_now", 0)
    played = types.SimpleNamespace(
        limits=types.SimpleNamespace(send_s=30.0, idle_s=60.0, receive_s=10.0),
        since=100.0,
        unsent=0,
        waiting=[],
        is_closing=False,
        request=None,
        transport=types.SimpleNamespace(
            get_write_buffer_size=lambda: unsent,
            abort=lambda: told.append("aborts"),
            close=lambda: told.append("closes"),
        ),
        _refuse=lambda status, sentence: told.append(status),
    )
    vars(played).update(said)
    connection.Connection.look(played, 100.0 + waited)
    return told, played.since - 100.0, played.unsent


def coming(filled):
    return types.SimpleNamespace(coming=types.SimpleNamespace(filled=filled))


@pytest.mark.parametrize(
    ("waited", "said", "told"),
    [
        (60, {}, []),
        (61, {}, ["closes"]),
        (61, {"waiting": [1]}, []),  # it is for the server to do something
        (connection.LINGER_S, {"is_closing": True}, []),
        (connection.LINGER_S + 1, {"is_closing": True}, ["aborts"]),
        (10, {"request": types.SimpleNamespace(coming=None)}, []),
        (11, {"request": types.SimpleNamespace(coming=None)}, [408]),
        (11, {"request": coming(connection.SLOWEST)}, []),
        (12, {"request": coming(connection.SLOWEST)}, [408]),
        (30, {"unsent_now": 5, "unsent": 5}, []),
        (31, {"unsent_now": 5, "unsent": 5}, ["aborts"]),
        (31, {"unsent_now": 5, "unsent": 5, "waiting": [1]}, ["aborts"]),
    ],
)
def test_a_client_that_takes_too_long_is_let_go(waited, said, told):
    assert looked_at(waited, **said)[0] == told


def test_a_client_that_reads_has_all_its_time_again():
    assert looked_at(99, unsent_now=4, unsent=5) == ([], 99, 4)
    assert looked_at(9, unsent=5) == ([], 0, 0)  # it has read all


def test_who_was_answered_hears_no_more_of_a_client_that_leaves():
    """What would be told is held by its request, and its memory with it."""
    written = []
    request = types.SimpleNamespace(is_answered=False, on_disconnect=print)
    played = types.SimpleNamespace(
        transport=types.SimpleNamespace(write=written.append),
        waiting=collections.deque([request]),
        since=0.0,
    )
    connection.Connection.reply_whole(played, request, b"all of it")
    assert written == [b"all of it"] and not played.waiting and played.since > 0
    assert request.is_answered and request.on_disconnect is None
