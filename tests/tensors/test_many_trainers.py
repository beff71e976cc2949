"""Thirty-two programs train thirty-two models on two helpers, and none can tell."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import nn, optim

CHILDREN, HELPERS, STEPS, BATCH = 32, 2, 24, 8
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


def trained_with_others(number):
    model, step = trainer_of(number)
    for _ in range(STEPS):
        step()
    return weights_of(model)


def trained_alone(rank):
    """One after the other, with a helper that nobody else uses."""
    found = []
    for number in range(CHILDREN):
        model, step = trainer_of(number)
        for _ in range(STEPS):
            step()
        found.append(weights_of(model))
    return found


def most_in_between(path):
    """How many messages of one child a helper was handed, at most, while another's waited for it.

    As the dispatcher's trace has it: how soon each child came back for more is the system's affair.
    """
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    came = {event["id"]: event for event in events if event["ph"] == "b"}
    handed = {event["id"]: event["ts"] for event in events if event["ph"] == "n"}
    calls = sorted((at, came[number]["ts"], came[number]["tid"]) for number, at in handed.items())
    most, before = 0, dict.fromkeys(range(CHILDREN), 0.0)
    for place, (at, since, child) in enumerate(calls):
        others = Counter()
        for earlier, _, other in reversed(calls[:place]):
            if earlier <= max(since, before[child]):
                break
            others[other] += other % HELPERS == child % HELPERS
        most = max(most, *others.values(), 0)
        before[child] = at
    return most


def test_the_models_are_different():
    assert len({repr(plan_of(number)) for number in range(CHILDREN)}) == CHILDREN


@pytest.mark.slow  # 32 programs, each trained twice
def test_everyone_ends_with_the_weights_it_would_have_had_alone(tmp_path, monkeypatch):
    """Bit by bit: the operations are the same, one thread computes each, and nothing is shared.

    Loops in C are compiled on the way, for some sooner than for others, and change nothing either.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"devices": "cpu", "threads": 1, "arena": "8MiB"}
    trace = tmp_path / "trace.json"
    together = gt.launch(
        trained_with_others, children=CHILDREN, helpers=HELPERS, trace_path=trace, **settings
    )
    (alone,) = gt.launch([trained_alone], helpers=1, **settings)
    for weights, wanted in zip(together, alone, strict=True):
        assert weights.keys() == wanted.keys()
        for name, one in weights.items():
            assert one.tobytes() == wanted[name].tobytes()
    # In turn: who waits is passed over by nobody twice, but for what the helper was handed ahead.
    assert 1 <= most_in_between(trace) <= 2
