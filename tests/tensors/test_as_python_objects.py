"""A tensor among Python's own: copied, pickled, formatted, compared, counted with, taken over."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn
from shmgpu.errors import NotRunning


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_a_life_of_its_own(engine, way):
    held = gt.randn(3, 4)
    first = (held * 1).data.copy()
    again = way(held)
    del again
    gc.collect()
    assert gt.ones(2).tolist() == [1, 1]  # what is let go of rides on this message
    assert np.array_equal((held * 1).data, first)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_parameter_collects_for_itself(engine, way):
    weight = gt.tensor([1.0, 2.0], requires_grad=True)
    other = way(weight)
    (other * 3).sum().backward()
    assert other.grad.tolist() == [3, 3]
    assert weight.grad is None


def test_a_model_is_copied_and_pickled(engine):
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    x = gt.ones(1, 3)
    model(x).sum().backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other(x).data, model(x).data)
        with gt.no_grad():
            other[0].weight -= 1.0
        assert not np.array_equal(other[0].weight.data, model[0].weight.data)


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
def test_what_gradients_flow_through_is_not_copied_behind_their_back(engine, way):
    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        way(gt.ones(2, requires_grad=True) * 2)


def test_a_pickle_that_is_read_after_the_end_says_what_to_pass():
    with gt.init(inline=True, arena="16MiB"):
        pickled = pickle.dumps(gt.ones(2))
    with pytest.raises(NotRunning, match=r"pass tensor.numpy\(\) instead"):
        pickle.loads(pickled)


def test_one_element_is_formatted_as_a_number(engine):
    assert f"{gt.tensor(1.5):.3f}" == "1.500"
    assert f"{gt.ones(2)}" == "tensor([1., 1.], dtype=float32)"


def test_one_whole_number_is_an_index(engine):
    assert "abc"[gt.tensor(1)] == "b"
    assert list(range(gt.tensor(3))) == [0, 1, 2]
    with pytest.raises(TypeError, match="not an index"):
        "abc"[gt.tensor(1.0)]


def test_nothing_and_text_are_not_equal_to_a_tensor(engine):
    x = gt.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "x") is True
    assert (x == 1).tolist() == [True, True]


@pytest.mark.parametrize("one", [np.float32(2), np.float64(2), np.int64(2), np.int8(2)])
def test_numbers_of_numpy_are_plain_numbers(engine, one):
    x = gt.tensor([1.0, 2.0])
    for made in (x * one, one * x, x + one - one, x.clamp(one, one), x / (1 / one)):
        assert isinstance(made, gt.Tensor)
        assert made.dtype is gt.float32
    assert (x * one).tolist() == [2, 4]
    x *= one
    assert x.tolist() == [2, 4]


def test_torch_takes_a_tensor_as_it_is(engine):
    x = gt.tensor([[1.0, 2.0]])
    for take in (torch.from_dlpack, torch.as_tensor, torch.tensor):
        assert torch.equal(take(x), torch.tensor([[1.0, 2.0]]))


def test_names_of_pytorch_that_models_use(engine):
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.transpose(0, 1).contiguous().view(4).tolist() == [1, 3, 2, 4]
    assert x.masked_fill(gt.tensor([True, False]), 9).tolist() == [[9, 2], [9, 4]]
    x.div_(2)
    assert x.tolist() == [[0.5, 1], [1.5, 2]]
    x.fill_(7)
    assert x.tolist() == [[7, 7], [7, 7]]
    with pytest.raises(TypeError, match="must be of bools"):
        x.masked_fill(gt.ones(2), 0.0)


def test_an_input_that_does_not_matter_is_none_where_that_is_allowed(engine):
    x, y = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    found, none = gt.grad((x * 2).sum(), [x, y], allow_unused=True)
    assert found.tolist() == [2, 2]
    assert none is None
    with pytest.raises(RuntimeError, match="allow_unused=True"):
        gt.grad((x * 2).sum(), [x, y])


def test_gradients_begin_with_those_that_are_given(engine):
    x = gt.ones(2, requires_grad=True)
    (found,) = gt.grad(x * 2, x, grad_outputs=gt.tensor([3.0, 5.0]), retain_graph=False)
    assert found.tolist() == [6, 10]
    (x * 2).backward(gradient=gt.tensor([1.0, 4.0]))
    assert x.grad.tolist() == [2, 8]
    assert not x.requires_grad_(requires_grad=False).requires_grad


def test_layouts_of_memory_change_nothing(engine):
    x = gt.ones(2, 3)
    for make in (gt.empty_like, gt.ones_like, gt.zeros_like, gt.rand_like, gt.randn_like):
        assert make(x, memory_format=torch.contiguous_format).shape == (2, 3)
    assert x.to("float64", memory_format=torch.channels_last).dtype.name == "float64"
    assert x.is_contiguous(memory_format=torch.channels_last)
