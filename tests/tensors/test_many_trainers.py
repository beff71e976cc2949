"""Thirty-two programs train thirty-two models on two helpers, and none can tell."""

from __future__ import annotations

import random
import time

import numpy as np

import shmgpu as gt
from shmgpu import nn, optim

CHILDREN, HELPERS, STEPS, BATCH = 32, 2, 24, 8
FIRST_STEPS = 4  # in which helpers read and compile what the others repeat
WIDTHS = range(8, 24)
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu")
OPTIMISERS = (
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.02}),
)


def plan_of(number):
    """What the child of that number trains: no two are alike."""
    rng = random.Random(number)
    widths = [WIDTHS[number % len(WIDTHS)]]
    widths += [rng.choice(WIDTHS) for _ in range(number // len(WIDTHS) + rng.randrange(2))]
    return widths, rng.choice(ACTIVATIONS), OPTIMISERS[number % len(OPTIMISERS)]


def trainer_of(number):
    """The model, and a function that trains it by one step."""
    widths, activation, (kind, settings) = plan_of(number)
    gt.manual_seed(number)
    rng = np.random.default_rng(number)
    layers = [nn.Linear(a, b) for a, b in zip([4, *widths], [*widths, 2], strict=True)]
    model = nn.Sequential(*layers)
    optimiser = getattr(optim, kind)(model.parameters(), **settings)

    def step():
        x, y = (rng.standard_normal((BATCH, n), dtype="float32") for n in (4, 2))
        x = gt.tensor(x)
        for layer in layers[:-1]:
            x = getattr(gt, activation)(layer(x))
        loss = nn.mse_loss(layers[-1](x), gt.tensor(y))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    return model, step


def weights_of(model):
    return {name: np.array(one.numpy()) for name, one in model.state_dict().items()}


def answered():
    return [row["answered"] for row in gt.stats()["children"][:CHILDREN]]


def trained_with_others(number):
    """The weights; and what each child had been answered when this one was done."""
    model, step = trainer_of(number)
    for _ in range(FIRST_STEPS):
        step()
    until = time.monotonic() + 60
    while min(answered()) < FIRST_STEPS:  # from here on everybody wants something at every moment
        assert time.monotonic() < until, "not every child came to the start"
        time.sleep(0.001)
    before = answered()
    for _ in range(STEPS - FIRST_STEPS):
        step()
    served = np.subtract(answered(), before)
    return weights_of(model), served


def trained_alone(rank):
    """One after the other, with a helper that nobody else uses."""
    found = []
    for number in range(CHILDREN):
        model, step = trainer_of(number)
        for _ in range(STEPS):
            step()
        found.append(weights_of(model))
    return found


def jain(service):
    """Jain's fairness index: 1 where all are served alike, 1/n where one has everything."""
    x = np.asarray(service, "float64")
    return x.sum() ** 2 / (len(x) * (x * x).sum())


def test_the_models_are_different():
    assert len({repr(plan_of(number)) for number in range(CHILDREN)}) == CHILDREN


def test_everyone_ends_with_the_weights_it_would_have_had_alone(tmp_path, monkeypatch):
    """Bit by bit: the operations are the same, one thread computes each, and nothing is shared.

    Loops in C are compiled on the way, for some sooner than for others, and change nothing either.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"devices": "cpu", "threads": 1, "arena": "8MiB"}
    together = gt.launch(trained_with_others, children=CHILDREN, helpers=HELPERS, **settings)
    (alone,) = gt.launch([trained_alone], helpers=1, **settings)
    for (weights, _), wanted in zip(together, alone, strict=True):
        assert weights.keys() == wanted.keys()
        for name, one in weights.items():
            assert one.tobytes() == wanted[name].tobytes()
    # When the first was done, the others of its helper had been given nearly as much. (How the two
    # helpers share the machine's cores is the system's: the benchmark has the index of all.)
    first = min((served for _, served in together), key=np.sum)
    for helper in range(HELPERS):
        assert jain(first[helper::HELPERS]) >= 0.95
