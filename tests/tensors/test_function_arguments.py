"""Tensors are arguments of functions, and come back from them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import errors


@gt.function
def twice(helper, x, more=0):
    return x * 2 + more


@gt.function(arrays="numpy")
def parts(helper, given):
    return {"sum": given["x"].sum(), "turned": [given["x"].T.copy(), given["n"]], "type": "dict"}


@gt.function(arrays="numpy")
def complex_of(helper, x):
    return x.astype("complex64")


@pytest.fixture(params=[True, False], ids=["inline", "helper"])
def broker(request):
    with gt.init(inline=request.param, devices="cpu", arena="8MiB"):
        yield


def test_a_tensor_is_computed_and_a_tensor_comes_back(broker):
    x = gt.ones(2, 3) * 3
    y = twice(x, more=1)
    assert type(y) is gt.Tensor and y.dtype is gt.float32 and y.shape == (2, 3)
    assert (y + x).data.tolist() == [[10] * 3] * 2
    y.requires_grad_()
    (y * y).sum().backward()
    assert (y.grad.data == 14).all()


def test_in_trees_and_with_plain_values(broker):
    found = parts({"x": gt.tensor([[1, 2], [3, 4]]), "n": 5})
    assert type(found["turned"][0]) is gt.Tensor
    assert found["turned"][0].data.tolist() == [[1, 3], [2, 4]]
    assert (found["sum"], found["turned"][1], found["type"]) == (10, 5, "dict")


def test_submitted_awaited_and_mapped(broker):
    xs = [gt.ones(3) * n for n in range(3)]
    futures = [twice.submit(x) for x in xs]
    assert [one.result().sum().item() for one in futures] == [0, 6, 12]
    assert [one.sum().item() for one in twice.map(xs, progress=False)] == [0, 6, 12]

    async def both():
        return await asyncio.gather(*[twice.aio(x) for x in xs])

    assert [one.sum().item() for one in asyncio.run(both())] == [0, 6, 12]


def test_an_argument_that_is_changed_while_the_call_is_out_was_given_as_it_was(broker):
    for _ in range(20):
        x = gt.ones(1000) * 2
        future = twice.submit(x)
        x -= 2
        other = [gt.zeros(1000) + n for n in range(3)]
        assert [one.sum().item() for one in other] == [0, 1000, 2000]
        assert future.result().sum().item() == 4000


def test_arrays_beside_tensors_and_types_that_tensors_lack(broker):
    assert type(twice(np.ones(3, "float32"))) is np.ndarray
    assert type(twice(np.ones(3, "float32"), more=gt.ones(3) * 1)) is gt.Tensor
    assert complex_of(gt.ones(2)).dtype == np.complex64


def test_an_element_type_of_16_bits_and_one_number(broker):
    half = gt.tensor([1.5, 2.5], dtype="bfloat16")
    back = twice(half)
    assert back.dtype is gt.bfloat16 and back.tolist() == [3, 5]
    assert twice(gt.tensor(4.0)).item() == 8
    assert twice(gt.zeros(0, 3)).shape == (0, 3)


def test_nothing_is_copied():
    with gt.init(helpers=1, devices="cpu", arena="8MiB"):
        x = gt.ones(500) * 2
        assert x.sum().item() == 1000
        shown = x.data
        before = gt.stats()["children"][0]["bytes"]["copied_in"]
        y = twice(x)
        assert (y + 1).sum().item() == 2500
        assert gt.stats()["children"][0]["bytes"]["copied_in"] == before
        assert shown.ctypes.data == x.data.ctypes.data


def test_a_gradient_that_would_be_lost_is_an_error_that_says_so(broker):
    w = gt.ones(2, requires_grad=True)
    with pytest.raises(errors.BadParams, match="detach"):
        twice(w * 2)
    assert twice((w * 2).detach()).data.tolist() == [4, 4]
    assert twice(w).data.tolist() == [2, 2]
    with gt.no_grad():
        assert twice(w * 2).data.tolist() == [4, 4]
