"""What was recorded is sent unasked when it has become much, at whatever operation that is.

The bound is 4,096 tensors that nobody has read. Here it is none at all, or so few that each kind of
operation is one at which something is sent: the same comes of every program.
"""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.tensors import current

pytestmark = pytest.mark.operations

X = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
OPTIMISERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"]


def views():
    t = gt.tensor(X)
    for _ in range(3):
        t = (t + 1).reshape(4, 3).T[:, 1:].unsqueeze(0).expand(2, 3, 3)[0].reshape(9)
        t = gt.cat([t, t[:3]]).view(3, 4)
        t[0, 1:] += 2
        t.T[1] *= 0.5
    return [t]


def several_results():
    x = gt.tensor(X) + 1
    return [
        *gt.max(x * 2, 1), *gt.sort(x - 1, 0), *gt.topk(x * 3, 2), *(x + 2).split(2, 1),
        *(x * 2).unbind(0), *(x + 3).chunk(2, 1), *gt.var_mean(x * 2),
    ]  # fmt: skip


def network():
    gt.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )


def accumulated():
    net = network()
    for number in range(3):
        (net(gt.tensor(X) * number) ** 2).mean().backward()
    return [one.grad for one in net.parameters()]


def asked_gradients():
    net = network()
    first = gt.grad((net(gt.tensor(X)) ** 3).mean(), list(net.parameters()), create_graph=True)
    second = gt.grad(sum((one * one).sum() for one in first), list(net.parameters()))
    return [*first, *second]


def hooked():
    x = gt.tensor(X, requires_grad=True)
    seen = []
    y = (x * 2).exp()
    y.register_hook(lambda g: seen.append(g * 1) or g * 0.5)
    y.retain_grad()
    (y.reshape(12) * y.T.reshape(12)).sum().backward()
    return [x.grad, y.grad, *seen]


def trained(name):
    net = network()
    made = getattr(optim, name)(net.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        made.zero_grad()
        losses.append((net(gt.tensor(X)) ** 2).mean())
        losses[-1].backward()
        made.step()
    return [*losses, *net.parameters(), *net.buffers()]


PROGRAMS = {
    one.__name__: one for one in (views, several_results, accumulated, asked_gradients, hooked)
}
PROGRAMS |= {f"trained by {name}": lambda name=name: trained(name) for name in OPTIMISERS}


@pytest.mark.parametrize("most", [0, 1, 2, 5])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_comes_of_it_wherever_it_is_sent(engine, monkeypatch, program, most):
    wanted = [np.asarray(one.data) for one in PROGRAMS[program]()]
    monkeypatch.setattr(current, "MAX_PENDING", most)
    found = [np.asarray(one.data) for one in PROGRAMS[program]()]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("phase", range(3))
def test_more_than_the_bound_of_views_may_stay_unread(engine, phase):
    """One of three operations is a view, so one of these loops meets the bound at it."""
    x = gt.zeros(2, 3)
    for _ in range(phase):
        x = x + 1
    for _ in range(current.MAX_PENDING // 3 + 10):
        x = (x + 1).T * 1.0
    assert x.tolist() == [[phase + current.MAX_PENDING // 3 + 10] * x.shape[1]] * x.shape[0]
