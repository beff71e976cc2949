"""Tensors that are given to functions of NumPy and PyTorch."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

import shmgpu as gt


@pytest.fixture(scope="module", autouse=True)
def running():
    with gt.init(inline=True, arena="4MiB"):
        yield


@pytest.fixture
def t():
    return gt.tensor([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "name", ["mean", "sum", "max", "std", "prod", "any", "cumsum", "concatenate", "argsort"]
)
def test_functions_of_numpy_compute_on_its_elements(t, name):
    function = getattr(np, name)
    for options in ({}, {"axis": 0}):
        got, wanted = function(t, **options), function(t.numpy(), **options)
        assert type(got) is type(wanted) and np.array_equal(got, wanted)
    assert np.array_equal(np.stack([t, 2 * t]), np.stack([t.numpy(), 2 * t.numpy()]))


def test_what_numpy_asks_of_the_shape_computes_nothing(t):
    with mock.patch.object(gt.Tensor, "__array__", side_effect=AssertionError):
        assert (np.shape(t), np.ndim(t)) == ((2, 2), 2)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda t: torch.relu(t), "use shmgpu.relu() or the tensor's own .relu(), or give it"),
        (lambda t: torch.nn.functional.mse_loss(t, torch.ones(2, 2)), "use shmgpu.mse_loss(), or"),
        (lambda t: torch.matmul(torch.ones(2, 2), t), "use shmgpu.matmul() or the tensor's own"),
        (lambda t: torch.stack([t, t]), "use shmgpu.stack(), or give it a copy"),
        (lambda t: torch.allclose(t, t), "use shmgpu.allclose() or the tensor's own .allclose()"),
        (lambda t: torch.geqrf(t), "in a helper: give it a copy of them, torch.tensor("),
        (lambda t: torch.nn.Linear(2, 2)(t), "shmgpu.linear()"),
    ],
)
def test_functions_of_pytorch_name_what_to_call_instead(t, call, instead):
    with pytest.raises(TypeError) as caught:
        call(t)
    assert "was given a tensor of shmgpu" in str(caught.value) and instead in str(caught.value)


@pytest.mark.parametrize("operator", "add sub mul truediv floordiv matmul pow eq lt".split())
def test_operators_between_a_tensor_of_pytorch_and_one_of_shmgpu_give_the_latter(t, operator):
    other = torch.full((2, 2), 2.0)
    got = getattr(__import__("operator"), operator)(other, t)
    assert isinstance(got, gt.Tensor)
    wanted = getattr(__import__("operator"), operator)(other, torch.tensor(t.numpy()))
    assert torch.equal(torch.tensor(got), wanted)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # which torch then does not
def test_tensors_of_pytorch_are_indexed_and_sized_by_those_of_shmgpu():
    other = torch.arange(4.0)
    assert other[gt.tensor(1)] == 1 and other[gt.tensor([1, 2])].tolist() == [1, 2]
    other[0] = gt.tensor(7.0)
    assert other.tolist() == [7, 1, 2, 3]
    assert torch.zeros(gt.tensor(3)).shape == (3,)
    with pytest.raises(TypeError, match=r"PyTorch's zeros\(\) was given a tensor of shmgpu"):
        torch.zeros(gt.tensor([3]))  # which has an axis
    assert torch.tensor(gt.tensor([1.0, 2.0])).tolist() == [1, 2]
