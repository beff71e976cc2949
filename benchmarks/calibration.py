"""What things cost on this machine: three runs of the broker, and costs that explain them.

A lone child gives what a wake-up of a sleeping core costs, both of the others what is left of that
when cores are taken, and what a frame costs where many travel together. Each run says not only its
rate but what each role used of the cores and how often the dispatcher turned, so twelve costs face
more observations than there are of them. They are found by Gauss-Newton steps on the logarithms
(costs are positive and known to a factor at best), damped as by Levenberg and Marquardt, with a
weak pull towards typical costs, which decides what the runs leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from benchmarks.model import Box, Costs, Load, Outcome, predict

Vector = NDArray[np.float64]

# A lone child whose calls take 10 us of a device, and 32 children with 1 and 16 calls out each.
RUNS: Mapping[str, Load] = {
    "lone": Load(children=1, helpers=1, service_us=10.0),
    "window1": Load(children=32, helpers=2),
    "window16": Load(children=32, helpers=2, window=16),
}
CALLS: Mapping[str, tuple[int, int]] = {
    "lone": (10, 60),
    "window1": (300, 1000),
    "window16": (1500, 4000),
}

# How much an error of an observation weighs. Rates count most: they are what is asked.
WEIGHTS: Mapping[str, float] = {
    "rate": 3.0,
    "dispatcher_us": 1.0,
    "helpers_us": 1.0,
    "children_us": 1.0,
    "turns": 0.3,
}
LONE_BUSY_WEIGHT = 2.0
PULL = 0.15
STEP = 0.2
NAMES = tuple(item.name for item in fields(Costs))
TYPICAL = Costs()


@dataclass(frozen=True)
class Fit:
    """Costs, and how far they leave each run's rate from what was measured: predicted/measured."""

    costs: Costs
    rates: Mapping[str, float]


def _vector(costs: Costs) -> Vector:
    return np.array([math.log(getattr(costs, name)) for name in NAMES])


def _costs(vector: Vector) -> Costs:
    return Costs(
        **{name: float(math.exp(value)) for name, value in zip(NAMES, vector, strict=True)}
    )


def _observations(outcomes: Mapping[str, Outcome]) -> Vector:
    """Return the logarithms of what is observed, weighted; the same for both sides of the fit."""
    found = [
        weight * math.log(getattr(outcomes[run], name))
        for run in RUNS
        for name, weight in WEIGHTS.items()
    ]
    return np.array([*found, LONE_BUSY_WEIGHT * math.log(outcomes["lone"].busy)])


def _simulate(costs: Costs, cores: int) -> dict[str, Outcome]:
    return {run: predict(load, Box(cores), costs, calls=CALLS[run]) for run, load in RUNS.items()}


def fit(
    measured: Mapping[str, Outcome],
    *,
    rounds: int = 4,
    start: Costs = TYPICAL,
    tick: Callable[[int], None] = lambda _done: None,
) -> Fit:
    """Return the costs that explain the measured ``RUNS``; the same runs give the same costs."""
    cores = measured["lone"].cores
    wanted, prior = _observations(measured), _vector(TYPICAL)

    def misfit(vector: Vector) -> tuple[Vector, dict[str, Outcome]]:
        outcomes = _simulate(_costs(vector), cores)
        tick(1)
        return np.concatenate([_observations(outcomes) - wanted, PULL * (vector - prior)]), outcomes

    at = _vector(start)
    residual, outcomes = misfit(at)
    damping = 0.3
    for _ in range(rounds):
        columns = []
        for index in range(len(NAMES)):
            nearby = at.copy()
            nearby[index] += STEP
            columns.append((misfit(nearby)[0] - residual) / STEP)
        slope = np.stack(columns, axis=1)
        for _attempt in range(3):
            normal = slope.T @ slope + damping * np.eye(len(NAMES))
            step = np.clip(np.linalg.solve(normal, -slope.T @ residual), -0.7, 0.7)
            tried, tried_outcomes = misfit(at + step)
            if tried @ tried < residual @ residual:
                at, residual, outcomes = at + step, tried, tried_outcomes
                damping /= 3
                break
            damping *= 4
        else:
            break
    ratios = {run: outcomes[run].rate / measured[run].rate for run in RUNS}
    return Fit(_costs(at), ratios)
