"""Host memory through which collectives of a shared GPU go: kept, and bounded."""

from __future__ import annotations

import pytest
import torch

from shmgpu.collectives import staged

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
