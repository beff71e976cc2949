"""What a worker keeps of requests it has seen: of one state of its models, and not without end."""

from __future__ import annotations

import types

import pytest

from shmgpu.serve.frontend import fast_path, json_fast_path
from shmgpu.serve.frontend.fast_path import FastPath
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
