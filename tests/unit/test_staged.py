"""Host memory through which collectives of a shared GPU go: kept, and bounded."""

from __future__ import annotations

import pytest
import torch

from shmgpu.codec.dtypes import by_name
from shmgpu.collectives import staged
from shmgpu.collectives.operations import CollectiveSpec

LIKE = torch.zeros(1)


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setattr(staged, "MAX_KEPT", 4096)
    return staged.Staged("cpu")


def test_what_was_given_back_is_used_again_by_type_and_size(backend):
    first = backend.take(LIKE, 100)
    assert first.dtype == torch.float32 and first.numel() == 100
    backend.give_back(first)
    assert backend.take(LIKE, 99) is not first
    assert backend.take(LIKE.to(torch.int32), 100) is not first
    assert backend.take(LIKE, 100) is first
    assert backend.take(LIKE, 100) is not first


def test_no_more_is_kept_than_may_be_however_often_it_is_taken(backend):
    for _ in range(10):
        buffers = [backend.take(LIKE, 512) for _ in range(4)]  # 2,048 bytes each
        backend.give_back(*buffers)
        again = [backend.take(LIKE, 512) for _ in range(4)]
        assert [any(one is other for other in buffers) for one in again] == [True] * 2 + [False] * 2
        backend.give_back(*again)
    kept = [backend.take(LIKE, 512) for _ in range(2)]
    backend.give_back(*kept)
    smaller = backend.take(LIKE, 1)
    backend.give_back(smaller)  # it is full
    assert backend.take(LIKE, 1) is not smaller


class Inner:
    """A gather to its root, of which the other member gives 7 and 8."""

    def __init__(self, collective):
        self.collective, self.ran = collective, []

    def run(self, number, given, got):
        self.ran.append((number, given))
        if got is not None:
            got.copy_(torch.cat([given, torch.tensor([7, 8])]))

    start = run

    def wait(self, number, started):
        self.ran.append((number, started))


def prepared(backend, monkeypatch, rank):
    monkeypatch.setattr(
        backend._memory, "prepare", lambda collective, rank, size: Inner(collective), raising=False
    )
    collective = CollectiveSpec("gather", by_name("int64"), counts=(4, 2))
    return backend.prepare(collective, rank, 2)


def test_a_member_gives_a_copy_and_gets_into_its_own_whatever_their_shapes(backend, monkeypatch):
    made = prepared(backend, monkeypatch, 0)
    source = torch.tensor([[1, 2], [3, 4]])
    for half in (False, True):
        target = torch.zeros(3, 2, dtype=torch.int64)
        made._inner.ran.clear()
        if half:
            started = made.start(5, source, target)
            assert target.sum() == 0
            made.wait(6, started)
            assert made._inner.ran[1] == (6, None)
        else:
            made.run(5, source, target)
        number, given = made._inner.ran[0]
        assert number == 5 and given.tolist() == [1, 2, 3, 4]
        assert given.data_ptr() != source.data_ptr()
        assert target.tolist() == [[1, 2], [3, 4], [7, 8]]
        assert backend._kept_bytes == 8 * (4 + 6)  # both are given back, to be used again


def test_who_gets_nothing_or_gives_nothing_needs_no_memory(backend, monkeypatch):
    made = prepared(backend, monkeypatch, 1)
    made.run(5, torch.tensor([7, 8]), torch.zeros(6))
    assert backend._kept_bytes == 8 * 2
    collective = CollectiveSpec("barrier")
    backend.prepare(collective, 1, 2).run(5, torch.zeros(3), torch.zeros(3))
    assert backend._kept_bytes == 8 * 2
    backend.finish()
