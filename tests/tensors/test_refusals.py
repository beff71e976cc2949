"""What operations, layers and optimisers refuse: a sentence, in the line that asks for it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.ops import activations
from shmgpu.ops.graph import spec_of
from shmgpu.ops.promotion import float32

CUBE = (2, 3, 4)


def weight():
    return gt.ones(2, requires_grad=True)


REFUSED = {
    "gather by an index of other axes": (lambda: _gather((2, 3), (2,)), "as many axes as"),
    "gather by an index that is longer": (
        lambda: _gather((2, 3), (3, 3)),
        "none longer but axis 1",
    ),
    "scatter_add of another type": (
        lambda: gt.zeros(3).scatter_add(0, gt.tensor([0]), gt.ones(1, dtype="float64")),
        "float64 is added to float32: convert one",
    ),
    "scatter_add of too little": (
        lambda: gt.zeros(3).scatter_add(0, gt.tensor([0, 1]), gt.ones(1)),
        "reaches beyond the source",
    ),
    "an embedding with a weight of one axis": (
        lambda: gt.embedding(gt.tensor([0]), gt.ones(3)),
        "must be \\(how many, how long\\)",
    ),
    "index_select by a matrix": (
        lambda: gt.index_select(gt.ones(CUBE), 0, gt.tensor([[0]])),
        "must have one axis",
    ),
    "index_select of a number": (
        lambda: gt.index_select(gt.tensor(1.0), 0, gt.tensor([0])),
        "without axes has no parts",
    ),
    "masked_fill by several": (
        lambda: gt.ones(2).masked_fill(gt.tensor([True, False]), gt.ones(2)),
        "must be one number",
    ),
    "a mask of another shape": (lambda: gt.ones(3)[np.array([True, False])], "is not a prefix of"),
    "where without a bool": (
        lambda: gt.where(gt.ones(2), gt.ones(2), gt.ones(2)),
        "the condition is float32, and must be bool",
    ),
    "clamp by nothing": (lambda: gt.ones(2).clamp(), "give min, max or both"),
    "the negative of bools": (lambda: -gt.tensor([True]), "use ~x"),
    "a complex number": (lambda: gt.ones(2) + 1j, "not a number that tensors support"),
    "a permute that leaves one out": (
        lambda: gt.ones(CUBE).permute(0, 1),
        "each of the 3 axes once",
    ),
    "a permute that names one twice": (
        lambda: gt.ones(CUBE).permute(0, 1, 1),
        "each of the 3 axes once",
    ),
    "a flatten from back to front": (lambda: gt.ones(CUBE).flatten(2, 1), "lies behind end_dim=1"),
    "the parts of a number": (lambda: gt.unbind(gt.tensor(1.0)), "without axes has no parts"),
    "a cat of none": (lambda: gt.cat([]), "give one tensor or more"),
    "a stack of none": (lambda: gt.stack([]), "give one tensor or more"),
    "a split into parts of none": (lambda: gt.ones(4).split(0), "split_size=0 must be 1 or more"),
    "a split into parts of another sum": (lambda: gt.ones(4).split([1, 2]), "do not make the 4"),
    "a split with a negative part": (lambda: gt.ones(4).split([5, -1]), "do not make the 4"),
    "a chunk into none": (lambda: gt.ones(4).chunk(0), "chunks=0 must be 1 or more"),
    "a reshape with two unknowns": (lambda: gt.ones(4).reshape(-1, -1), "-1"),
    "a sum over an axis twice": (lambda: gt.ones(CUBE).sum((0, -3)), "names an axis twice"),
    "a maximum of nothing": (lambda: gt.ones(0).max(), "of no elements there is none"),
    "a pad of another mode": (lambda: gt.pad(gt.ones(4), (1, 1), mode="mirror"), "one of constant"),
    "a conv of whole numbers": (
        lambda: gt.conv2d(gt.ones(1, 1, 3, 3, dtype="int64"), gt.ones(1, 1, 2, 2, dtype="int64")),
        "must be of floats",
    ),
    "a layer_norm of other lengths": (
        lambda: gt.layer_norm(gt.ones(CUBE), (4,), gt.ones(3), gt.ones(3)),
        "must be of \\(4,\\)",
    ),
    "a layer_norm of whole numbers": (
        lambda: gt.layer_norm(gt.ones(CUBE, dtype="int64"), (4,)),
        "must be of floats",
    ),
    "a gelu of another name": (lambda: gt.gelu(gt.ones(2), approximate="erf"), "'none' or 'tanh'"),
    "a dropout of whole numbers": (
        lambda: gt.dropout(gt.ones(2, dtype="int64"), 0.5, True),
        "must be of floats",
    ),
    "a dropout of no probability": (lambda: gt.dropout(gt.ones(2), 1.5), "a probability, 0 to 1"),
    "a dropout of a negative one": (lambda: gt.dropout(gt.ones(2), -0.1), "a probability, 0 to 1"),
    "attention between other features": (
        lambda: gt.scaled_dot_product_attention(gt.ones(2, 3), gt.ones(2, 4), gt.ones(2, 4)),
        "equally many features",
    ),
    "attention with other places": (
        lambda: gt.scaled_dot_product_attention(gt.ones(2, 3), gt.ones(2, 3), gt.ones(5, 3)),
        "equally many places",
    ),
    "attention masked twice": (
        lambda: gt.scaled_dot_product_attention(
            gt.ones(2, 3), gt.ones(2, 3), gt.ones(2, 3), gt.ones(2, 2), is_causal=True
        ),
        "not both",
    ),
    "a loss of another reduction": (
        lambda: nn.mse_loss(gt.ones(2), gt.ones(2), reduction="median"),
        "reduction='median' must be one of",
    ),
    "more smoothing than all": (
        lambda: nn.cross_entropy(gt.ones(2, 3), gt.tensor([0, 1]), label_smoothing=1.5),
        "label_smoothing=1.5 must be 0 to 1",
    ),
    "a Linear without features": (lambda: nn.Linear(0, 3), "must be 1 or more"),
    "a Linear that gives none": (lambda: nn.Linear(3, 0), "must be 1 or more"),
    "a Conv2d whose groups do not divide": (lambda: nn.Conv2d(3, 4, 1, groups=2), "must divide"),
    "a Conv2d without groups": (lambda: nn.Conv2d(3, 4, 1, groups=0), "must divide"),
    "a layer with an argument too many": (lambda: nn.ReLU(1, 2, 3, 4), "takes"),
    "an optimiser of nothing": (lambda: optim.SGD([], lr=0.1), "no parameters to change"),
    "an optimiser of a plain tensor": (
        lambda: optim.SGD([gt.ones(2)], lr=0.1),
        "a tensor made with requires_grad=True",
    ),
    "an optimiser of what was computed": (
        lambda: optim.SGD([weight() * 2], lr=0.1),
        "a tensor made with requires_grad=True",
    ),
    "a negative rate": (lambda: optim.SGD([weight()], lr=-0.1), "lr=-0.1 must be a number"),
    "a rate that is none": (lambda: optim.Adam([weight()], lr=math.nan), "must be a number"),
    "nesterov without momentum": (
        lambda: optim.SGD([weight()], lr=0.1, nesterov=True),
        "needs a momentum",
    ),
    "a beta of one": (
        lambda: optim.Adam([weight()], lr=0.1, betas=(0.9, 1.0)),
        "at least 0 and below 1",
    ),
    "a negative length": (lambda: gt.ones(2, -1), "whole numbers, 0 or more"),
    "a length of a half": (lambda: gt.ones(2, 0.5), "whole numbers, 0 or more"),
}


def _gather(shape, index):
    return gt.ones(shape).gather(1, gt.zeros(index, dtype="int64"))


@pytest.mark.table
@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_outcome_is_refused_in_a_sentence(engine, what):
    call, words = REFUSED[what]
    with pytest.raises((ValueError, TypeError, IndexError), match=words):
        call()


SIZES = {
    "in_features": lambda n: nn.Linear(n, 1),
    "out_features": lambda n: nn.Linear(1, n),
    "input_size": lambda n: nn.GRU(n, 1),
    "hidden_size": lambda n: nn.GRU(1, n),
    "num_layers": lambda n: nn.GRU(1, 1, n),
    "embed_dim": lambda n: nn.MultiheadAttention(n, 1),
    "num_heads": lambda n: nn.MultiheadAttention(1, n),
    "groups": lambda n: nn.Conv2d(1, 1, 1, groups=n),
    "num_groups": lambda n: nn.GroupNorm(n, 1),
}


@pytest.mark.parametrize("size", SIZES)
def test_a_layer_may_be_of_size_1_and_not_of_0(engine, size):
    SIZES[size](1)
    with pytest.raises(ValueError, match=r"must be|must divide"):
        SIZES[size](0)


@pytest.mark.parametrize(
    "drop",
    [
        lambda p: nn.GRU(1, 1, dropout=p),
        lambda p: nn.Dropout(p)(gt.ones(2)),
        lambda p: nn.functional.alpha_dropout(gt.ones(2), p),
        lambda p: nn.Dropout2d(p)(gt.ones(1, 1, 1, 1)),
    ],
    ids=["GRU", "Dropout", "alpha_dropout", "Dropout2d"],
)
def test_what_is_dropped_is_anything_from_nothing_to_all(engine, drop):
    for p in (0, 1):
        drop(p)
    for p in (-0.01, 1.01):
        with pytest.raises(ValueError, match=r"probability|must be"):
            drop(p)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: gt.relu("text"), "relu: x must be a tensor, not a str"),
        (lambda x: x.narrow(0, None, 1), "narrow: start must be a whole number, not a NoneType"),
        (lambda x: x + None, "add: b must be a tensor or a number, not a NoneType"),
        (lambda x: x.sum(dim={}), "sum: dim must be a whole number or a list of whole .* or None"),
        (lambda x: gt.cat(x), "cat: tensors must be a list of tensors, not a Tensor"),
        (lambda x: gt.sum(input=object()), "sum: x must be a tensor, not an object"),
        (lambda x: nn.functional.elu(x, "1"), "elu: alpha must be a number, not a str"),
        (lambda x: gt.manual_seed("one"), "the seed must be a whole number, not a str"),
        (lambda x: optim.Adam(None), "give a list of parameters, .* not a NoneType"),
    ],
)
def test_an_argument_of_another_kind_is_named_with_what_is_taken(engine, call, words):
    with pytest.raises(TypeError, match=words):
        call(gt.ones(2, 3))


def test_what_an_operation_refuses_itself_is_told_in_its_own_words(engine):
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'dim'"):
        gt.softmax(gt.ones(2))
    with pytest.raises(IndexError, match="argmax") as caught:
        gt.ones(2).argmax(5)
    assert "must be a" not in str(caught.value)
    for settings in ({"lr": "much"}, {"betas": 0.9}, {"betas": ("a", "b")}):
        with pytest.raises(ValueError, match=f"Adam: {next(iter(settings))}="):
            optim.Adam([weight()], **settings)


def test_a_module_that_says_nothing_of_forward_says_so(engine):
    class Silent(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Silent does not say in forward"):
        Silent()(gt.ones(2))


def test_a_module_that_forgets_to_begin_says_so(engine):
    class Hasty(nn.Module):
        def __init__(self):
            self.weight = gt.ones(2)

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) before Hasty.weight"):
        Hasty()


def test_an_optimiser_that_says_nothing_of_its_step_has_none(engine):
    class Silent(optim.Optimizer):
        pass

    one = weight()
    one.sum().backward()
    with pytest.raises(NotImplementedError):
        Silent([one], {}).step()


@pytest.mark.parametrize("place", [1, 2])
def test_an_operation_on_values_of_one_shape_refuses_another_at_each_place(place):
    specs = [spec_of(float32, (2, 3))] * 3
    assert activations.same_shape(tuple(specs), ()) is specs[0]
    specs[place] = spec_of(float32, (3, 2))
    with pytest.raises(ValueError, match="is given where"):
        activations.same_shape(tuple(specs), ())
