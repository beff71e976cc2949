"""Tensors and values that a program keeps: more of them than its arena has room for."""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu

PART = 100_000  # elements: 400 KB, of which 60 are more than the arena of 16 MiB
MANY = 60

KEEPING = {
    "tensors that were read": lambda t: (t.tolist()[:1], t)[1],
    "arrays of elements": lambda t: t.data,
    "plain arrays": lambda t: t.numpy(),
    "copies of arrays": lambda t: shmgpu.tensor(t.numpy()),
    "tensors that nobody read": lambda t: t,
}


@pytest.fixture(scope="module", params=[False, True], ids=["helpers", "inline"])
def small_arena(request):
    with shmgpu.init(arena="16MiB", helpers=1, inline=request.param):
        yield


@pytest.mark.parametrize("what", KEEPING)
def test_a_program_keeps_more_than_its_arena_holds(small_arena, what):
    kept = [KEEPING[what](shmgpu.arange(PART) + float(i)) for i in range(MANY)]
    for i, one in enumerate(kept):
        assert float(one[0]) == i
        assert float((shmgpu.as_tensor(one) * 1.0).sum()) == pytest.approx(
            i * PART + PART * (PART - 1) / 2
        )


def test_what_was_kept_elsewhere_is_used_like_any_other(small_arena):
    rows = [shmgpu.tensor(np.full((PART,), i, np.float32)) for i in range(MANY)]
    weights = [row.requires_grad_() for row in rows[-8:]]
    loss = sum((weight * rows[0] + weight * weight).sum() for weight in weights)
    loss.backward()
    for i, weight in enumerate(weights, MANY - 8):
        assert weight.grad.data[:: PART // 3].tolist() == [2.0 * i] * 4
    del rows, weights, loss
    assert shmgpu.arena.stats()["free_bytes"] > 14 << 20


def test_while_there_is_room_elements_are_read_where_the_helper_wrote_them(small_arena):
    t = shmgpu.ones(PART)
    address = t.numpy().__array_interface__["data"][0]
    block = shmgpu.arena.zeros(1)  # a place in the arena
    near = block.__array_interface__["data"][0]
    assert abs(address - near) < 16 << 20
