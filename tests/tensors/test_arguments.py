"""Each argument that optimisers, schedules, layers and draws have by name does what PyTorch's does.

Every one of them is given alone, another value than its default; it must change what comes out, and
what comes out must be torch's. A new argument needs a value in the tables here.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn, optim

START = np.random.default_rng(31).normal(size=(3, 4)).astype("float32")
BASE = {"lr": 0.05}
OTHERS = {  # a value for each setting of an optimiser, and what must be set beside it
    "lr": (0.2, {}),
    "betas": ((0.5, 0.7), {}),
    "eps": (0.3, {}),
    "weight_decay": (0.3, {}),
    "amsgrad": (True, {"betas": (0.5, 0.2)}),
    "maximize": (True, {}),
    "decoupled_weight_decay": (True, {"weight_decay": 0.3}),
    "momentum": (0.6, {}),
    "dampening": (0.4, {"momentum": 0.6}),
    "nesterov": (True, {"momentum": 0.6}),
    "rho": (0.5, {}),
    "lr_decay": (0.4, {}),
    "initial_accumulator_value": (0.7, {}),
    "momentum_decay": (0.3, {}),
    "alpha": (0.6, {}),
    "centered": (True, {}),
}
OPTIMISERS = [
    name
    for name in optim.__all__
    if inspect.isclass(getattr(optim, name)) and name not in ("Optimizer", "lr_scheduler")
]


def named(call):
    """The arguments that may be left out."""
    return [
        name
        for name, one in inspect.signature(call).parameters.items()
        if one.default is not one.empty
    ]


@pytest.fixture(scope="module")
def here():
    with gt.init(inline=True, arena="16MiB", threads=1):
        yield


def after_steps(rule, weight, settings):
    step = rule([weight], **settings)
    for _ in range(8):  # RAdam waits for six
        step.zero_grad()
        (weight * weight * weight.sin()).sum().backward()
        step.step()
    return weight


@pytest.mark.table
@pytest.mark.parametrize("name", OPTIMISERS)
def test_each_setting_of_an_optimiser_is_torchs(here, name):
    rule, other = getattr(optim, name), getattr(torch.optim, name)

    def both(settings):
        ours = after_steps(rule, gt.tensor(START, requires_grad=True), settings)
        theirs = after_steps(other, torch.tensor(START, requires_grad=True), settings)
        np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=5e-4, atol=5e-5)
        return np.array(ours.data)

    for setting in named(rule):
        value, beside = OTHERS[setting]
        plain = both(BASE | beside)
        assert not np.array_equal(both(BASE | beside | {setting: value}), plain), setting


RATES = {  # what a schedule needs, and another value for each argument that it has by name
    "ConstantLR": ({}, {"factor": 0.7, "total_iters": 3}),
    "CosineAnnealingLR": ({"T_max": 9}, {"eta_min": 0.05}),
    "CosineAnnealingWarmRestarts": ({"T_0": 3}, {"T_mult": 2, "eta_min": 0.05}),
    "CyclicLR": (
        {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 3, "mode": "exp_range", "gamma": 0.9},
        {
            "step_size_up": 2,
            "step_size_down": 5,
            "mode": "triangular",
            "gamma": 0.5,
            "scale_fn": lambda x: 1 / (1 + x),
            "scale_mode": "iterations",
            "cycle_momentum": False,
            "base_momentum": 0.3,
            "max_momentum": 0.99,
        },
    ),
    "ExponentialLR": ({"gamma": 0.9}, {}),
    "LambdaLR": ({"lr_lambda": lambda n: 0.9**n}, {}),
    "LinearLR": ({}, {"start_factor": 0.7, "end_factor": 0.8, "total_iters": 3}),
    "MultiStepLR": ({"milestones": [2, 5]}, {"gamma": 0.7}),
    "MultiplicativeLR": ({"lr_lambda": lambda n: 0.99**n}, {}),
    "OneCycleLR": (
        {"max_lr": 0.4, "total_steps": 20},
        {
            "total_steps": 15,
            "pct_start": 0.5,
            "anneal_strategy": "linear",
            "cycle_momentum": False,
            "base_momentum": 0.3,
            "max_momentum": 0.99,
            "div_factor": 3.0,
            "final_div_factor": 10.0,
            "three_phase": True,
        },
    ),
    "PolynomialLR": ({}, {"total_iters": 9, "power": 2.0}),
    "StepLR": ({"step_size": 3}, {"gamma": 0.7}),
}
BESIDE = {  # what makes it count
    "CyclicLR scale_mode": {"scale_fn": lambda x: 0.5 ** (x - 1)},
    "OneCycleLR pct_start": {"pct_start": 0.2},
}
WITH_OTHERS = {"epochs", "steps_per_epoch"}  # test_schedules.py: instead of total_steps


def rates(package, name, settings, last_epoch=-1):
    """Rates and momentums of twelve steps."""
    ones = gt.ones if package is optim else torch.ones
    group = {"params": [ones(2, requires_grad=True)], "lr": 0.1}
    if last_epoch >= 0:  # as a run leaves it that is gone on with
        group |= {
            "initial_lr": 0.1, "max_lr": 0.4, "min_lr": 0.001, "base_momentum": 0.8,
            "max_momentum": 0.9,
        }  # fmt: skip
    optimizer = package.SGD([group], lr=0.1, momentum=0.9)
    known = settings if last_epoch < 0 else {**settings, "last_epoch": last_epoch}
    schedule = getattr(package.lr_scheduler, name)(optimizer, **known)
    seen = []
    for _ in range(12):
        seen.append([optimizer.param_groups[0][key] for key in ("lr", "momentum")])
        schedule.step()
    return np.array(seen)


def agreed(name, settings, last_epoch=-1):
    ours, theirs = (rates(one, name, settings, last_epoch) for one in (optim, torch.optim))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    return ours


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("name", RATES)
def test_each_setting_of_a_schedule_is_torchs(here, name):
    needed, others = RATES[name]
    known = set(named(getattr(optim.lr_scheduler, name)))
    assert known - set(others) - set(needed) - WITH_OTHERS == {"last_epoch"}
    for setting, value in others.items():
        beside = needed | BESIDE.get(f"{name} {setting}", {})
        assert not np.allclose(agreed(name, beside), agreed(name, beside | {setting: value})), (
            setting
        )
    later = agreed(name, needed, last_epoch=4)
    assert not np.allclose(later, agreed(name, needed)) or name == "ExponentialLR"


NEEDED = {  # of the layers whose parameters have a type
    "BatchNorm1d": [4], "BatchNorm2d": [4], "Bilinear": [2, 3, 4], "Conv1d": [4, 6, 3],
    "Conv2d": [4, 6, 3], "ConvTranspose1d": [4, 6, 3], "ConvTranspose2d": [4, 6, 3],
    "Embedding": [5, 3], "GRU": [4, 6], "GRUCell": [4, 6], "GroupNorm": [2, 4],
    "InstanceNorm1d": [4], "InstanceNorm2d": [4], "LSTM": [4, 6], "LSTMCell": [4, 6],
    "LayerNorm": [4], "Linear": [4, 6], "MultiheadAttention": [4, 2], "PReLU": [], "RMSNorm": [4],
    "RNN": [4, 6], "RNNCell": [4, 6], "TransformerEncoderLayer": [4, 2],
}  # fmt: skip
WITHOUT_A_BIAS = {"Embedding", "PReLU", "RMSNorm"}


def shapes(module):
    return {name: tuple(one.shape) for name, one in module.state_dict().items()}


@pytest.mark.parametrize("name", NEEDED)
def test_a_layer_has_the_type_and_the_biases_that_are_asked_for(here, name):
    ours, theirs = getattr(nn, name), getattr(torch.nn, name)
    wide = ours(*NEEDED[name], dtype="float64", device="cpu").state_dict()
    other = theirs(*NEEDED[name], dtype=torch.float64).state_dict()
    kinds = {key: str(one.dtype).removeprefix("torch.") for key, one in other.items()}
    assert {key: one.dtype.name for key, one in wide.items()} == kinds
    if name in WITHOUT_A_BIAS:
        return
    affine = {"affine": True} if name.startswith("Instance") else {}
    bare = shapes(ours(*NEEDED[name], bias=False, **affine))
    assert bare == shapes(theirs(*NEEDED[name], bias=False, **affine))
    assert bare != shapes(ours(*NEEDED[name], **affine))


def test_each_layer_with_a_type_is_in_the_table():
    typed = {
        name
        for name in nn.__all__
        if inspect.isclass(getattr(nn, name))
        and "dtype" in inspect.signature(getattr(nn, name)).parameters
    }
    assert typed == set(NEEDED)


STATISTICS = np.random.default_rng(3).normal(size=(6, 4, 5)).astype("float32") * 3
LAYERS = {  # a layer with each of the settings that test_layers.py does not give to it
    "BatchNorm1d": [{"affine": False}, {"track_running_stats": False}],
    "BatchNorm2d": [{"eps": 3.0}, {"momentum": 0.6}],
    "InstanceNorm1d": [{"eps": 3.0}, {"momentum": 0.6, "track_running_stats": True}],
    "InstanceNorm2d": [{"eps": 3.0}, {"momentum": 0.6, "track_running_stats": True}],
    "ConvTranspose1d": [{"padding": 1}, {"groups": 2}, {"dilation": 2}],
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_setting_of_a_layer_is_torchs(here, name):
    given = STATISTICS[..., None] if name.endswith("2d") else STATISTICS
    for settings in LAYERS[name]:
        ours = getattr(nn, name)(*NEEDED[name], **settings)
        theirs = getattr(torch.nn, name)(*NEEDED[name], **settings)
        theirs.load_state_dict(nn.state_tensors(ours.state_dict()))
        for mode in (True, True, False):
            found = ours.train(mode)(gt.tensor(given))
            want = theirs.train(mode)(torch.tensor(given))
            np.testing.assert_allclose(found.data, want.detach().numpy(), atol=2e-5)


def test_modules_are_listed_as_torchs_are(here):
    def made(package):
        first = package.Sequential(package.BatchNorm1d(3), package.ReLU())
        model = package.Sequential(first, package.Linear(3, 3), first)
        return model, first

    (ours, first), (theirs, their_first) = made(nn), made(torch.nn)
    for settings in ({}, {"recurse": False}, {"prefix": "a"}, {"remove_duplicate": False}):
        for method in ("named_buffers", "named_parameters"):
            found, want = (getattr(one, method)(**settings) for one in (ours, theirs))
            assert [name for name, _ in found] == [name for name, _ in want], settings
    for settings in ({}, {"prefix": "a"}, {"remove_duplicate": False}):
        found, want = (one.named_modules(**settings) for one in (ours, theirs))
        assert [name for name, _ in found] == [name for name, _ in want], settings
    known, theirs_known = {first}, {their_first}
    found, want = ours.named_modules(memo=known), theirs.named_modules(memo=theirs_known)
    assert [name for name, _ in found] == [name for name, _ in want] == ["", "1"]
    assert len(known) == len(theirs_known) == 3
    assert len(list(first.buffers(recurse=False))) == 0 and len(list(first.buffers())) == 3
    state = {"mine": 1}
    assert ours.state_dict(destination=state, keep_vars=True) is state
    assert state["mine"] == 1 and state["1.weight"] is ours[1].weight


def test_a_hook_may_come_before_those_that_there_are(here):
    layer, seen = nn.Linear(2, 2), []
    layer.register_forward_pre_hook(lambda module, given: seen.append("first"))
    layer.register_forward_pre_hook(lambda module, given: seen.append("before"), prepend=True)
    layer(gt.ones(1, 2))
    assert seen == ["before", "first"]


SHAPE = (80, 50)
DRAWS = {  # of nn.init: arguments by name
    "uniform_": [{"a": -1.0}, {"b": 3.0}],
    "normal_": [{"mean": 2.0}, {"std": 3.0}],
    "trunc_normal_": [{"mean": 1.0}, {"std": 0.5}, {"a": -0.5}, {"b": 0.5}],
    "xavier_uniform_": [{"gain": 2.0}],
    "xavier_normal_": [{"gain": 2.0}],
    "kaiming_uniform_": [{"a": 2.0}, {"mode": "fan_out"}, {"nonlinearity": "relu"}],
    "kaiming_normal_": [{"a": 2.0}, {"mode": "fan_out"}, {"nonlinearity": "tanh"}],
    "orthogonal_": [{"gain": 2.0}],
    "sparse_": [{"sparsity": 0.3, "std": 2.0}],
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_setting_of_a_draw_is_torchs(here, name):
    draw, other = getattr(nn.init, name), getattr(torch.nn.init, name)
    needed = {"sparsity": 0.1} if name == "sparse_" else {}
    gt.manual_seed(5)
    torch.manual_seed(5)
    for settings in ({}, *DRAWS[name]):
        found = np.array(draw(gt.zeros(*SHAPE), **(needed | settings)).data)
        want = other(torch.zeros(*SHAPE), **(needed | settings)).numpy()
        assert found.std() == pytest.approx(want.std(), rel=0.1)
        assert found.mean() == pytest.approx(want.mean(), abs=0.1 * float(want.std()))
        assert (found == 0).mean() == pytest.approx((want == 0).mean(), abs=0.01)
        assert np.percentile(found, 99) == pytest.approx(np.percentile(want, 99), rel=0.1)
    assert set(named(draw)) - {"generator"} <= {key for one in DRAWS[name] for key in one}
    again = [draw(gt.zeros(*SHAPE), **needed, generator=seeded()).tolist() for _ in range(2)]
    assert again[0] == again[1]


def seeded():
    return gt.Generator().manual_seed(7)


def test_a_scale_goes_down_and_up_by_the_factors_that_are_asked_for(here):
    weight = gt.ones(2, requires_grad=True)
    step = optim.SGD([weight], lr=0.5)
    scaler = gt.amp.GradScaler(
        init_scale=32.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=1
    )
    seen = []
    for factor in (float("inf"), 1.0):
        step.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(step)
        scaler.update()
        seen.append(scaler.get_scale())
    assert seen == [8.0, 32.0]
