"""``from_numpy`` of an array in the arena copies nothing, and the array is read only meanwhile."""

from __future__ import annotations

import gc
import time
import warnings

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu.tensors import current


def lent(shape=(3, 4), dtype="float32"):
    array = gt.arena.zeros(shape, dtype)
    array[...] = 1.5 if array.dtype.kind == "f" else 1
    return array


def copied_in():
    return gt.stats()["children"][0]["bytes"]["copied_in"]


def test_an_array_of_the_arena_is_not_copied_and_is_read_only_until_the_tensor_is_gone(engine):
    array = lent()
    x = gt.from_numpy(array)
    assert np.shares_memory(x.data, array)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2
    assert (x * 2).sum().item() == 36
    del x
    gc.collect()
    array[0] = 2  # nothing needs it any more
    assert array.sum() == 4 * 2 + 8 * 1.5


def test_what_was_recorded_and_waits_sees_the_elements_as_they_were(engine):
    array = lent()
    waiting = gt.from_numpy(array) * 2
    gc.collect()
    assert not array.flags.writeable
    assert waiting.sum().item() == 36
    assert array.flags.writeable  # done with, and nothing can ask for a gradient


def test_a_graph_that_may_be_walked_back_keeps_the_loan(engine):
    array = lent()
    w = gt.ones(3, 4, requires_grad=True)
    loss = (gt.from_numpy(array) * w).sum()
    assert loss.item() == 18
    gc.collect()
    assert not array.flags.writeable
    loss.backward()
    np.testing.assert_array_equal(w.grad.data, np.full((3, 4), 1.5))
    gc.collect()
    assert array.flags.writeable


def test_an_array_that_data_gave_keeps_the_loan(engine):
    array = lent()
    seen = gt.from_numpy(array).data.numpy()
    gc.collect()
    assert np.shares_memory(seen, array)
    assert not array.flags.writeable
    del seen
    gc.collect()
    assert array.flags.writeable


def test_an_array_lent_twice_comes_back_with_the_last(engine):
    array = lent()
    x, y = gt.from_numpy(array), gt.from_numpy(array)
    assert (x + y).sum().item() == 36
    del x
    gc.collect()
    assert not array.flags.writeable
    del y
    gc.collect()
    assert array.flags.writeable


def test_what_the_caller_made_read_only_stays_so(engine):
    array = lent()
    array.flags.writeable = False
    del gt.from_numpy(array).grad
    gc.collect()
    assert not array.flags.writeable


def test_gradients_are_collected_at_a_lent_leaf(engine):
    array = lent()
    x = gt.from_numpy(array, requires_grad=True)
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.data, 2 * array)
    with gt.no_grad():
        x -= 0.5 * x.grad  # another value: the array is what it was
    assert (x.data == 0).all() and (array == 1.5).all()
    with pytest.raises(TypeError, match="int32 has no gradient"):
        gt.from_numpy(lent(dtype="int32"), requires_grad=True)


@pytest.mark.parametrize("make", [
    lambda: np.ones((3, 4), "float32"),  # not in the arena
    lambda: lent().T,
    lambda: lent((3, 8))[:, ::2],
    lambda: lent().tolist(),
    lambda: torch.from_numpy(lent()),
])  # fmt: skip
def test_anything_else_is_copied(engine, make):
    data = make()
    x = gt.from_numpy(data)
    if isinstance(data, np.ndarray):
        assert not np.shares_memory(x.data, data)
        assert data.flags.writeable
        data[...] = 7
    np.testing.assert_array_equal(x.sum().item(), 18 if not (x.data == 1).all() else 12)


def test_an_element_type_that_tensors_lack_is_refused_and_lends_nothing(engine):
    array = lent(dtype="complex64")
    with pytest.raises(TypeError, match="complex64"):
        gt.from_numpy(array)
    assert array.flags.writeable


def test_torch_reads_a_tensor_without_a_copy(engine):
    x = gt.ones(3, 4) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that it is read only
        theirs = torch.from_numpy(x.data.numpy())
    assert theirs.data_ptr() == x.data.ctypes.data
    assert theirs.sum() == 24
    back = gt.tensor(theirs)
    assert back.data.ctypes.data != theirs.data_ptr() and back.sum().item() == 24


def test_nothing_is_copied_into_the_arena_of_a_child():
    with gt.init(helpers=1, devices="cpu", arena="8MiB"):
        array = lent((256, 256))
        before = copied_in()
        x = gt.from_numpy(array)
        current.recorder().send()
        out = x * 2
        current.recorder().send()
        del x
        assert out.sum().item() == 2 * 1.5 * 256 * 256
        assert copied_in() == before
        until = time.monotonic() + 30
        while not array.flags.writeable:  # what was sent unasked is heard of with what comes next
            assert time.monotonic() < until
            (gt.ones(1) + 1).item()
