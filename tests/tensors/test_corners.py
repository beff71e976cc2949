"""Corners of layers, schedules and the array API that programs come to seldom."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import array_api as xp
from shmgpu import nn, optim
from shmgpu.nn import functional as F
from shmgpu.nn import losses
from shmgpu.tensors import walks

pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
def running():
    with gt.init(inline=True, arena="16MiB"):
        yield


def test_lists_of_modules_are_lists():
    one, other, third = nn.ReLU(), nn.Linear(2, 3), nn.Tanh()
    parts = nn.ModuleList([one, other])
    assert one in parts and third not in parts
    parts += [third]
    assert list(parts) == [one, other, third] and parts[-1] is third
    some = parts[1:]
    assert type(some) is nn.ModuleList and list(some) == [other, third]
    named = nn.ModuleDict({"a": one, "b": other})
    assert named["a"] is one and "c" not in named
    with pytest.raises(KeyError):
        named["c"]


def test_what_a_layer_is_made_of_is_shown_as_torch_shows_it():
    listed = nn.ParameterList([gt.ones(2), gt.ones(3, 4)])
    assert listed.extra_repr() == "float32 (2,), float32 (3, 4)"
    made = [one.Bilinear(2, 3, 4, bias=False) for one in (nn, torch.nn)]
    assert made[0].extra_repr() == made[1].extra_repr()


@pytest.mark.parametrize(
    ("drop", "fits"), [(F.dropout1d, (2, 3)), (F.dropout2d, (3, 4))], ids=["1d", "2d"]
)
def test_channels_are_dropped_of_tensors_that_have_some(drop, fits):
    for axes in range(1, 6):
        x = gt.ones((2,) * axes)
        if axes in fits:
            assert drop(x, 1.0).data.tolist() == np.zeros((2,) * axes).tolist()
            assert drop(x, 0.5, False) is x and drop(x, 0) is x
        else:
            with pytest.raises(ValueError, match=rf"must have \({fits[0]}, {fits[1]}\) axes"):
                drop(x)
    with pytest.raises(TypeError, match="the tensor is int64, and must be of floats"):
        drop(gt.ones((2,) * fits[0], dtype=gt.int64))
    for p in (-0.01, 1.01):
        with pytest.raises(ValueError, match="must be a probability, 0 to 1"):
            drop(gt.ones((2,) * fits[0]), p)


def test_dropout_that_keeps_the_variance_may_drop_all_or_nothing():
    x = gt.tensor([1.0, -2.0])
    assert F.alpha_dropout(x, 1, True).tolist() == [0, 0]
    assert F.alpha_dropout(x, 0, True) is x and F.alpha_dropout(x, 0.5) is x
    for p in (-0.01, 1.01):
        with pytest.raises(ValueError, match="must be a probability, 0 to 1"):
            F.alpha_dropout(x, p, True)


def test_what_a_lone_sequence_pads_is_attended_to_by_nobody():
    ours, theirs = nn.MultiheadAttention(4, 2), torch.nn.MultiheadAttention(4, 2)
    state = theirs.state_dict()
    ours.load_state_dict({name: gt.tensor(value.numpy()) for name, value in state.items()})
    x = np.random.default_rng(3).standard_normal((3, 4)).astype("f4")
    padding = np.array([False, False, True])
    found = ours(*[gt.tensor(x)] * 3, key_padding_mask=gt.tensor(padding))
    wanted = theirs(*[torch.from_numpy(x)] * 3, key_padding_mask=torch.from_numpy(padding))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.data, other.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: nn.MSELoss("mean", 5), "MSELoss takes reduction"),
        (lambda: nn.MSELoss(reduce=True), "MSELoss takes reduction"),
        (lambda: nn.HuberLoss("mean", 1.0, 2.0), "HuberLoss takes "),
    ],
)
def test_a_loss_says_what_it_takes(make, names):
    with pytest.raises(TypeError, match=names):
        make()


LOSSES = [
    name
    for name, kind in vars(losses).items()
    if isinstance(kind, type) and issubclass(kind, losses._Loss) and kind is not losses._Loss
]


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_not_said_of_a_loss_is_as_torch_has_it(name):
    ours, theirs = getattr(nn, name)(), getattr(torch.nn, name)()
    assert type(ours).defaults
    for setting, value in type(ours).defaults:
        assert getattr(ours, setting) == value == getattr(theirs, setting), setting


def test_a_parameter_may_be_made_of_a_list_and_an_attribute_taken_away():
    made = nn.Parameter([1.0, 2.0])
    assert made.requires_grad and made.tolist() == [1, 2]
    assert not nn.Parameter([1.0], requires_grad=False).requires_grad
    layer = nn.Linear(2, 2)
    layer.note = 5
    del layer.note
    del layer.bias
    assert not hasattr(layer, "note") and not hasattr(layer, "bias")
    with pytest.raises(AttributeError):
        del layer.absent


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_state_has_its_layers_its_rows_and_its_width(kind):
    layer = kind(2, 3, num_layers=2)
    count = 2 if kind is nn.LSTM else 1

    def state(*shape):
        made = tuple(gt.zeros(shape) for _ in range(count))
        return made if count == 2 else made[0]

    rows = gt.ones(5, 4, 2)
    layer(rows, state(2, 4, 3))
    for shape in ((1, 4, 3), (2, 3, 3), (2, 4, 2)):
        with pytest.raises(ValueError, match=rf"must be {count} tensor\(s\) of \(2, 4, 3\)"):
            layer(rows, state(*shape))
    layer(rows[:, 0], state(2, 3))
    with pytest.raises(ValueError, match=rf"must be {count} tensor\(s\) of \(2, 3\)"):
        layer(rows[:, 0], state(2, 4))


def adam():
    return optim.Adam([gt.ones(2, requires_grad=True)], lr=0.1)


def test_schedules_that_are_one_are_of_one_optimiser():
    one, other = adam(), adam()
    with pytest.raises(ValueError, match="all schedules must be of one optimiser"):
        optim.lr_scheduler.ChainedScheduler(
            [optim.lr_scheduler.StepLR(each, 2) for each in (one, other)]
        )
    with pytest.raises(ValueError, match="give one schedule or more"):
        optim.lr_scheduler.ChainedScheduler([])


def test_a_cycle_of_momentum_moves_the_first_beta_alone():
    optimizer = adam()
    schedule = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=4, base_momentum=0.5, max_momentum=0.75
    )
    (group,) = optimizer.param_groups
    weight = torch.ones(2, requires_grad=True)
    theirs = torch.optim.Adam([weight], lr=0.1)
    same = torch.optim.lr_scheduler.OneCycleLR(
        theirs, max_lr=1.0, total_steps=4, base_momentum=0.5, max_momentum=0.75
    )
    for _ in range(3):
        assert group["betas"] == pytest.approx(theirs.param_groups[0]["betas"])
        theirs.step()
        schedule.step()
        same.step()


def test_a_schedule_of_ones_own_may_be_told_an_epoch():
    class Halved(optim.lr_scheduler.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

    optimizer = adam()
    schedule = Halved(optimizer)
    schedule.step(3)
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4 and schedule.last_epoch == 3


def test_what_is_no_array_is_kept_of_a_state_as_it_is():
    optimizer = adam()
    (one,) = optimizer.param_groups[0]["params"]
    one.sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["note"] = "mine"
    optimizer.load_state_dict(saved)
    assert optimizer.state[one]["note"] == "mine" and optimizer.state[one]["step"] == 1


def test_the_array_api_reads_nested_tensors_and_repeats_by_counts():
    x = gt.tensor([1.0, 2.0])
    assert xp.asarray([[x, x * 2], (x, [5.0, 6.0])]).tolist() == [
        [[1, 2], [2, 4]],
        [[1, 2], [5, 6]],
    ]
    assert xp.repeat(gt.tensor([[1, 2], [3, 4]]), gt.tensor([1, 0, 2, 1])).tolist() == [1, 3, 3, 4]
    assert xp.repeat(gt.tensor([[1, 2], [3, 4]]), gt.tensor([2, 1]), axis=0).tolist() == [
        [1, 2],
        [1, 2],
        [3, 4],
    ]
    assert xp.from_dlpack(x) is x and xp.from_dlpack(x, copy=True) is not x
    with pytest.raises(ValueError, match="copy=False, and elements must be copied"):
        xp.from_dlpack(np.ones(2), copy=False)
    assert xp.from_dlpack(np.ones(2)).tolist() == [1, 1]
    for copy, is_same in ((None, True), (False, True), (True, False)):
        assert (xp.asarray(x, copy=copy) is x) == is_same
    with pytest.raises(ValueError, match="copy=False, and list is no tensor"):
        xp.asarray([1.0], copy=False)
    with pytest.raises(ValueError, match="another type needs a copy"):
        xp.asarray(x, dtype=xp.float64, copy=False)


def test_names_of_the_modules_are_those_that_they_give():
    from shmgpu.compat.gt import nn as gts
    from shmgpu.nn.utils import rnn

    assert dir(rnn) == sorted(rnn.__all__)
    assert set(dir(gts)) == set(dir(nn))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_the_place_in_all_of_a_tensor_keeps_its_axes_where_that_is_asked_for(name, shape):
    array = np.arange(6.0)[: int(np.prod(shape, initial=1))].reshape(shape) % 4
    found = getattr(gt, name)(gt.tensor(array), keepdim=True)
    assert found.shape == (1,) * len(shape)
    assert found.item() == getattr(np, name)(array) == getattr(gt, name)(gt.tensor(array)).item()


class Drawn:
    """A node of a program that is drafted."""

    def __init__(self, saves, *inputs, leaf=None, needs_grad=True, is_released=False):
        self.op, self.inputs, self.leaf = types.SimpleNamespace(saves=saves), inputs, leaf
        self.needs_grad, self.is_released = needs_grad, is_released


def test_what_a_backward_will_need_of_a_program_is_kept():
    leaf = Drawn("", leaf="a parameter")
    by_input, by_output = Drawn("i", leaf), Drawn("o", leaf)
    neither, both = Drawn("", by_input, by_output), Drawn("io", by_output)
    gone = Drawn("io", leaf, is_released=True)
    end = Drawn("", neither, both, gone, Drawn("io", needs_grad=False))
    draft = types.SimpleNamespace(
        open_ends=[end], order=[by_input, by_output, neither, both, gone, end]
    )
    alive, saved = walks.graph_alive(draft)
    assert alive == {end, neither, both, by_input, by_output}
    assert saved == {by_output, both}  # the leaf was there before
