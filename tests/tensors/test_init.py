"""How parameters begin, and what is done to all of them at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn

MANY = (60, 50)


def test_gains_are_torchs():
    for word in ("linear", "relu", "leaky_relu", "tanh", "sigmoid", "selu", "conv2d"):
        assert nn.init.calculate_gain(word) == torch.nn.init.calculate_gain(word)
    assert nn.init.calculate_gain("leaky_relu", param=0.3) == torch.nn.init.calculate_gain(
        "leaky_relu", 0.3
    )
    with pytest.raises(ValueError, match="must be one of linear"):
        nn.init.calculate_gain("sin")


def test_fixed_values_are_torchs(engine):
    for name, shape, more in (
        ("ones_", (2, 3), ()), ("zeros_", (2, 3), ()), ("constant_", (2, 3), (0.3,)),
        ("eye_", (2, 3), ()), ("dirac_", (4, 2, 3), ()), ("dirac_", (4, 3, 2, 3), (2,)),
    ):  # fmt: skip
        ours = gt.randn(*shape, requires_grad=True)
        assert getattr(nn.init, name)(ours, *more) is ours
        theirs = getattr(torch.nn.init, name)(torch.randn(*shape), *more)
        np.testing.assert_array_equal(ours.data, theirs.numpy())
        assert ours.requires_grad and ours.is_leaf


def test_draws_have_the_spread_that_torch_gives_them(engine):
    gt.manual_seed(3)
    init = nn.init
    inputs, outputs = MANY[1], MANY[0]
    for call, deviation in (
        (init.uniform_, math.sqrt(1 / 12)),
        (init.normal_, 1.0),
        (init.xavier_uniform_, math.sqrt(2 / (inputs + outputs))),
        (init.xavier_normal_, math.sqrt(2 / (inputs + outputs))),
        (init.kaiming_uniform_, math.sqrt(2 / inputs)),
        (
            lambda x: init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"),
            math.sqrt(2 / outputs),
        ),
        (init.orthogonal_, math.sqrt(1 / outputs)),
        (init.trunc_normal_, 0.8796),
    ):
        drawn = np.array(call(gt.zeros(*MANY)).data)
        assert drawn.std() == pytest.approx(deviation, rel=0.1)
        again = np.array(call(gt.zeros(*MANY)).data)
        assert (drawn != again).any()
    assert (np.abs(init.trunc_normal_(gt.zeros(*MANY), a=-0.5, b=1.0).data - 0.25) <= 0.75).all()
    off = init.trunc_normal_(gt.zeros(*MANY), mean=1.0, std=2.0, a=0.5, b=2.5).data
    assert (np.abs(off - 1.5) <= 1.0).all() and off.min() < 0.51 and off.max() > 2.49
    q = np.array(init.orthogonal_(gt.zeros(4, 3, 2), gain=2.0).data).reshape(4, 6)
    np.testing.assert_allclose(q @ q.T, 4 * np.eye(4), atol=1e-5)
    assert (init.sparse_(gt.zeros(10, 3), 0.4).data == 0).sum(0).tolist() == [4, 4, 4]
    for call in (init.xavier_normal_, init.orthogonal_, init.eye_, init.dirac_):
        with pytest.raises(ValueError, match="axes"):
            call(gt.zeros(3))
    with pytest.raises(ValueError, match="lies in"):
        init.trunc_normal_(gt.zeros(3), a=5.0, b=6.0)


def gradients(package, ones):
    """Parameters with gradients, and one without."""
    made = [ones(2, 3), ones(4), ones(1)]
    for scale, one in enumerate(made[:2], 1):
        one.requires_grad_()
        (one * one * scale).sum().backward()
    return made


def test_gradients_are_clipped_as_torch_clips_them(engine):
    for norm_type, most in ((2.0, 1.5), (1.0, 3.0), (math.inf, 0.5), (2.0, 100.0)):
        ours, theirs = gradients(nn, gt.ones), gradients(torch.nn, torch.ones)
        found = nn.utils.clip_grad_norm_(ours, most, norm_type=norm_type)
        want = torch.nn.utils.clip_grad_norm_(theirs, most, norm_type)
        assert found.item() == pytest.approx(want.item(), rel=1e-5)
        for one, other in zip(ours[:2], theirs[:2], strict=True):
            np.testing.assert_allclose(one.grad.data, other.grad.numpy(), rtol=1e-5)
    ours, theirs = gradients(nn, gt.ones), gradients(torch.nn, torch.ones)
    nn.utils.clip_grad_value_(ours, 2.5)
    torch.nn.utils.clip_grad_value_(theirs, 2.5)
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        np.testing.assert_array_equal(one.grad.data, other.grad.numpy())
    assert nn.utils.get_total_norm([]).item() == 0
    ours[0].grad.fill_(math.inf)
    with pytest.raises(RuntimeError, match="the norm of the gradients is inf"):
        nn.utils.clip_grad_norm_(ours[0], 1.0, error_if_nonfinite=True)


def test_parameters_go_into_one_vector_and_back(engine):
    model = nn.Linear(3, 2)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (8,)
    nn.utils.vector_to_parameters(gt.arange(8).to("float32"), model.parameters())
    assert model.weight.tolist() == [[0, 1, 2], [3, 4, 5]] and model.bias.tolist() == [6, 7]
    assert model.weight.requires_grad
    with pytest.raises(ValueError, match="has not the 8 elements"):
        nn.utils.vector_to_parameters(gt.ones(7), model.parameters())
