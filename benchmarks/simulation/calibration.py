"""What things cost on this machine: three runs of the broker, and costs that explain them.

A lone child gives what a device and a sleeping core cost, a crowd what is left of a wake-up where
all cores are taken and many processes share the caches, and 16 calls out each what a frame costs
where many travel together. Each run says not only its rate but what each role used of the cores and
how often the dispatcher turned, so the twelve costs face sixteen observations. They are found by
Gauss-Newton steps on the logarithms (costs are positive, and known to a factor at best), damped as
by Levenberg and Marquardt, with a weak pull towards typical costs, which decides what the runs
leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.model import ClosedLoad, Costs, Outcome, SimulatedMachine, predict

Vector = NDArray[np.float64]

RUNS: Mapping[str, ClosedLoad] = {
    "lone": ClosedLoad(children=1, helpers=1, service_us=10.0),
    "crowd": ClosedLoad(children=96, helpers=2),
    "window16": ClosedLoad(children=32, helpers=2, window=16),
}
CALLS: Mapping[str, tuple[int, int]] = {
    "lone": (10, 60),
    "crowd": (300, 2500),
    "window16": (1500, 8000),
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
STEP = 0.25
STEPS = 8
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
    return {
        run: predict(load, SimulatedMachine(cores), costs, calls=CALLS[run])
        for run, load in RUNS.items()
    }


def fit(
    measured: Mapping[str, Outcome],
    *,
    rounds: int = 2,
    tick: Callable[[int], None] = lambda _done: None,
) -> Fit:
    """Return the costs that explain the measured ``RUNS``; the same runs give the same costs."""
    cores = measured["lone"].cores
    wanted, prior = _observations(measured), _vector(TYPICAL)

    def observe(vector: Vector) -> Vector:
        tick(1)
        return _observations(_simulate(_costs(vector), cores))

    def residual_of(vector: Vector, observed: Vector) -> Vector:
        return np.concatenate([observed - wanted, PULL * (vector - prior)])

    at, observed = prior, observe(prior)
    for _ in range(rounds):
        slope = np.stack(
            [(observe(at + STEP * unit) - observed) / STEP for unit in np.eye(len(NAMES))], axis=1
        )
        damping = 0.1
        for _ in range(STEPS):
            residual = residual_of(at, observed)
            full = np.concatenate([slope, PULL * np.eye(len(NAMES))])
            normal = full.T @ full + damping * np.eye(len(NAMES))
            step = np.clip(np.linalg.solve(normal, -full.T @ residual), -0.7, 0.7)
            found = observe(at + step)
            # Broyden (1965): the slope is put right along the step that was taken.
            slope = slope + np.outer(found - observed - slope @ step, step) / (step @ step)
            tried = residual_of(at + step, found)
            if tried @ tried < residual @ residual:
                at, observed = at + step, found
                damping /= 2
            else:
                damping *= 3
    outcomes = _simulate(_costs(at), cores)
    ratios = {run: outcomes[run].rate / measured[run].rate for run in RUNS}
    return Fit(_costs(at), ratios)
