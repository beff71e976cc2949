"""Small networks that are trained in one way and in another, and must end alike."""

from __future__ import annotations

import numpy as np

import shmgpu as gt
from shmgpu.distributed import distribute_tensor

RNG = np.random.default_rng(5)
BATCH, WIDE, HIDDEN, OUT = 24, 8, 24, 4
X = RNG.standard_normal((5, BATCH, WIDE)).astype("f4")
TARGETS = RNG.standard_normal((5, BATCH, OUT)).astype("f4")
WEIGHTS = [
    (RNG.standard_normal((WIDE, HIDDEN)) / 3).astype("f4"),
    (RNG.standard_normal((HIDDEN, OUT)) / 3).astype("f4"),
]


def same(value):
    return value


def on(mesh, *placements):
    """Puts a tensor on a mesh."""
    return lambda one: distribute_tensor(one, mesh, placements)


def train(steps=6, put=(same, same), batch=same, optimiser=None, each=None):
    """Losses of the steps, and the weights: ``put`` and ``batch`` say where tensors lie.

    ``each`` is called with a step's number before it.
    """
    weights = [
        how(gt.tensor(one, requires_grad=True)) for how, one in zip(put, WEIGHTS, strict=True)
    ]
    make = optimiser or (lambda params: gt.optim.SGD(params, lr=0.05, momentum=0.9))
    opt = make(weights)
    losses = []
    for step in range(steps):
        if each is not None:
            each(step)
        x, target = (batch(gt.tensor(one[step % 5])) for one in (X, TARGETS))
        y = (x @ weights[0]).relu() @ weights[1]
        loss = ((y - target) * (y - target)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights


def train_alone(**settings):
    """The same on one helper's engine in this process: (losses, weights as arrays)."""
    with gt.init(inline=True, arena="16MiB", threads=1):
        losses, weights = train(**settings)
        return losses, [one.numpy().copy() for one in weights]
