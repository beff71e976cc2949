"""Every layer and loss of nn does what torch's does; an optimiser goes on where another stopped."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from tensors.against_torch import same

import shmgpu as gt
from shmgpu import nn, optim

RNG = np.random.default_rng(23)
ROWS = RNG.normal(size=(3, 4))
IMAGES = RNG.normal(size=(2, 4, 6, 6))
SHARES = RNG.uniform(0.1, 0.9, size=(3, 4))
CLASSES = np.array([1, 3, 0])

# Arguments of the layer, and what goes in. Two settings at least where there are any, so that one
# that is not handed on shows.
LAYERS = [
    ("Linear", (4, 3), {}, ROWS),
    ("Linear", (4, 3), {"bias": False}, ROWS),
    ("Conv2d", (4, 6, 3), {}, IMAGES),
    ("Conv2d", (4, 6, (2, 3)), {"stride": 2, "padding": 1, "groups": 2, "bias": False}, IMAGES),
    ("Conv2d", (4, 6, 2), {"dilation": 2, "padding": "same"}, IMAGES),
    ("Embedding", (5, 3), {}, CLASSES),
    ("LayerNorm", (4,), {}, ROWS),
    ("LayerNorm", ((3, 4),), {"eps": 0.1}, ROWS),
    ("LayerNorm", (4,), {"elementwise_affine": False}, ROWS),
    ("ReLU", (), {}, ROWS),
    ("LeakyReLU", (), {}, ROWS),
    ("LeakyReLU", (0.3,), {}, ROWS),
    ("GELU", (), {}, ROWS),
    ("GELU", (), {"approximate": "tanh"}, ROWS),
    ("SiLU", (), {}, ROWS),
    ("Sigmoid", (), {}, ROWS),
    ("Tanh", (), {}, ROWS),
    ("Softmax", (), {"dim": -1}, ROWS),
    ("Softmax", (0,), {}, ROWS),
    ("LogSoftmax", (), {"dim": -1}, ROWS),
    ("LogSoftmax", (0,), {}, ROWS),
    ("Flatten", (), {}, IMAGES),
    ("Flatten", (0, 2), {}, IMAGES),
    ("MaxPool2d", (2,), {}, IMAGES),
    ("MaxPool2d", (2,), {"stride": 1, "padding": 1, "dilation": 2}, IMAGES),
    ("AvgPool2d", (2,), {}, IMAGES),
    ("AvgPool2d", ((2, 3), 1, 1), {}, IMAGES),
]
LOSSES = [
    ("MSELoss", ROWS, ROWS[::-1].copy()),
    ("L1Loss", ROWS, ROWS[::-1].copy()),
    ("CrossEntropyLoss", ROWS, CLASSES),
    ("NLLLoss", np.log(SHARES), CLASSES),
    ("BCELoss", SHARES, SHARES[::-1].copy()),
    ("BCEWithLogitsLoss", ROWS, SHARES),
]
# What is held against torch elsewhere, or stands in no formula: file, and a word of its tests.
ELSEWHERE = {
    "Dropout": "test_dropout_of_a_layer_is_in_training_only",
    "Sequential": "test_layers_in_a_row",
    "ModuleList": "test_layers_in_a_row",
    "SGD": "test_an_optimiser_goes_on_where_another_run_stopped",
    "Adam": "test_an_optimiser_goes_on_where_another_run_stopped",
    "AdamW": "test_an_optimiser_goes_on_where_another_run_stopped",
}


def both(values, grads=True):
    """The same for us and for torch; floats collect gradients."""
    theirs = torch.tensor(values, dtype=None if values.dtype.kind == "i" else torch.float32)
    ours = gt.tensor(np.asarray(theirs))
    if grads and theirs.is_floating_point():
        return ours.requires_grad_(), theirs.requires_grad_()
    return ours, theirs


def agree(ours, theirs, given, *targets):
    """Both modules give the same, and so do the gradients of what went in and of the parameters."""
    x, want_x = both(given)
    pairs = [both(one, grads=False) for one in targets]
    out = ours(x, *[one for one, _ in pairs])
    want = theirs(want_x, *[one for _, one in pairs])
    same(out, want, 1e-4)
    if not want.requires_grad:
        return
    (out * out).sum().backward()
    (want * want).sum().backward()
    if want_x.grad is not None:
        same(x.grad, want_x.grad, 1e-4)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(one.grad, other.grad, 1e-4)


@pytest.mark.parametrize(
    ("name", "arguments", "settings", "given"),
    LAYERS,
    ids=[f"{n}-{a}-{s}" for n, a, s, _ in LAYERS],
)
def test_a_layer_does_what_torchs_does(name, arguments, settings, given):
    with gt.init(inline=True, arena="16MiB", threads=1):
        ours = getattr(nn, name)(*arguments, **settings)
        theirs = getattr(torch.nn, name)(*arguments, **settings)
        theirs.load_state_dict(nn.state_tensors(ours.state_dict()))
        agree(ours, theirs, given)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "given", "target"), LOSSES, ids=[name for name, *_ in LOSSES])
def test_a_loss_is_torchs(name, given, target, reduction):
    with gt.init(inline=True, arena="16MiB", threads=1):
        agree(
            getattr(nn, name)(reduction),
            getattr(torch.nn, name)(reduction=reduction),
            given,
            target,
        )
        if reduction == "mean":
            agree(getattr(nn, name)(), getattr(torch.nn, name)(), given, target)


def test_dropout_of_a_layer_is_in_training_only(engine):
    layer = nn.Dropout(0.25)
    x = gt.ones(100, 100)
    share = (layer(x).data != 0).mean()
    assert 0.7 < share < 0.8 and np.isclose(layer(x).data.max(), 1 / 0.75)
    assert 0.45 < (nn.Dropout()(x).data != 0).mean() < 0.55
    assert (layer.eval()(x).data == 1).all()
    assert (layer.train()(x).data == 0).any()


def test_layers_in_a_row(engine):
    first, second = nn.Linear(4, 3), nn.Tanh()
    row = nn.Sequential(first, second)
    x = gt.tensor(ROWS.astype("float32"))
    np.testing.assert_array_equal(row(x).data, second(first(x)).data)
    assert list(row) == [first, second] and row[0] is first and row[-1] is second and len(row) == 2
    row.append(nn.Flatten(0))
    assert row(x).shape == (9,)
    listed = nn.ModuleList([first])
    listed.append(nn.Linear(3, 2))
    assert [name for name, _ in listed.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]
    assert row(x).shape != listed[1](first(x)).shape


def test_every_layer_and_loss_is_held_against_torchs():
    """Whoever adds one adds a row above, or a test that ELSEWHERE names."""
    held = {name for name, *_ in [*LAYERS, *LOSSES]} | set(ELSEWHERE)
    public = {name for name in nn.__all__ if inspect.isclass(getattr(nn, name))}
    assert public - held == {"Module"}
    assert held <= public and all(callable(globals()[test]) for test in ELSEWHERE.values())


OPTIMISERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6}),
]


@pytest.mark.parametrize("carried", ["tensors", "arrays"])
@pytest.mark.parametrize(("name", "settings"), OPTIMISERS, ids=[f"{n}-{s}" for n, s in OPTIMISERS])
def test_an_optimiser_goes_on_where_another_run_stopped(name, settings, carried):
    """Three steps, a state that is saved and loaded, three more: as torch, which ran through."""
    start = ROWS.astype("float32")
    theirs = torch.tensor(start, requires_grad=True)
    step_theirs = getattr(torch.optim, name)([theirs], **settings)
    with gt.init(inline=True, arena="16MiB", threads=1):
        ours = gt.tensor(start).requires_grad_()
        step_ours = getattr(optim, name)([ours], **settings)

        def run(times):
            for _ in range(times):
                for one, step in ((ours, step_ours), (theirs, step_theirs)):
                    step.zero_grad()
                    (one * one * one).sum().backward()
                    step.step()

        run(3)
        saved = step_ours.state_dict()
        if carried == "arrays":
            saved["state"] = [
                {k: v.numpy() if isinstance(v, gt.Tensor) else v for k, v in one.items()}
                for one in saved["state"]
            ]
        ours = gt.tensor(np.array(ours.data)).requires_grad_()
        step_ours = getattr(optim, name)([ours], lr=123.0)
        step_ours.load_state_dict(saved)
        run(3)
        np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_an_optimisers_state_of_another_model_is_refused(engine):
    one, two = (gt.ones(2, requires_grad=True) for _ in range(2))
    saved = optim.SGD([one, two]).state_dict()
    with pytest.raises(ValueError, match="of 2 parameters, this of 1"):
        optim.SGD([one]).load_state_dict(saved)
