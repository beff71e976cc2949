"""A checkpoint gives what the function gives, and computes it again for the gradients."""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import nn, optim

X = np.random.default_rng(5).normal(size=(4, 3)).astype("float32")


def grads(model, x):
    return [np.array(one.grad.data) for one in (x, *model.parameters())]


def test_values_and_gradients_are_those_of_the_function(engine):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), nn.Dropout(0.5))
    found = []
    for call in (lambda f, x: f(x), gt.checkpoint):
        gt.manual_seed(7)
        x = gt.tensor(X, requires_grad=True)
        y = call(model, x * 2)
        out = (y * y * gt.rand(4, 3)).sum()
        out.backward()
        found.append([np.array(out.data), *grads(model, x)])
        model.zero_grad()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_it_is_called_again_when_gradients_are_asked_for_and_draws_alike(engine):
    calls, x = [], gt.tensor(X, requires_grad=True)

    def part(x):
        calls.append(1)
        return nn.functional.dropout(x, 0.5)

    y = gt.checkpoint(part, x)
    kept = np.array(y.data)
    assert len(calls) == 1
    y.sum().backward()
    assert len(calls) == 2
    np.testing.assert_array_equal(x.grad.data != 0, kept != 0)
    with gt.no_grad():
        gt.checkpoint(part, x)
    assert len(calls) == 3
    other = gt.tensor(np.ones((40, 3), "float32"), requires_grad=True)
    y = gt.checkpoint(part, other, use_reentrant=False, preserve_rng_state=False)
    kept = np.array(y.data)
    y.sum().backward()
    assert ((other.grad.data != 0) != (kept != 0)).any()  # it drew anew


def test_several_outputs_and_what_takes_no_gradient(engine):
    x, plain = gt.tensor(X, requires_grad=True), gt.ones(4, 3)
    first, second, third = gt.checkpoint(lambda x, y: (x * y, x.exp(), y + 1), x, plain)
    assert not third.requires_grad
    (first.sum() + second.sum()).backward()
    np.testing.assert_allclose(x.grad.data, 1 + np.exp(X), rtol=1e-5)
    assert plain.grad is None


def test_a_model_of_checkpoints_trains_alike(engine):
    losses = []
    for call in (lambda f, x: f(x), gt.checkpoint):
        gt.manual_seed(3)
        model = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        step = optim.Adam(model.parameters(), lr=0.05)
        for _ in range(4):
            step.zero_grad()
            x = gt.tensor(X)
            for layer in model:
                x = call(lambda v, layer=layer: layer(v).tanh(), x)
            loss = ((x - 1) * (x - 1)).mean()
            loss.backward()
            step.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gradients_of_gradients_are_refused(engine):
    x = gt.tensor(X, requires_grad=True)
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        gt.checkpoint(lambda x: x.exp(), x).sum().backward(create_graph=True)
