"""Learning rates go as torch's schedules have them go, for a hundred steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import optim

STEPS = 100


def of_ones_own(schedules):
    """What a user makes of the class that all have in common."""

    class Own(schedules.LRScheduler):
        def get_lr(self):
            return [rate / (1 + self.last_epoch) for rate in self.base_lrs]

    return Own


# Each is made by either library's lr_scheduler, of an optimiser with two groups.
SCHEDULES = {
    "one's own": lambda s, o: of_ones_own(s)(o),
    "LambdaLR": lambda s, o: s.LambdaLR(o, [lambda n: 0.95**n, lambda n: 1 / (1 + n)]),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda n: 0.97),
    "StepLR": lambda s, o: s.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [5, 20, 20, 60], 0.3),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.25, 9),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 0.9, 30),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.96),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 40, 2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 30, 0.01),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 7, 2, 0.01),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [0.5, 0.7], total_steps=STEPS + 1),
    "OneCycleLR in three phases": lambda s, o: s.OneCycleLR(
        o, 0.5, epochs=11, steps_per_epoch=10, three_phase=True, anneal_strategy="linear"
    ),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 7, 11),
    "CyclicLR triangular2": lambda s, o: s.CyclicLR(o, [0.01, 0.02], 0.2, 7, mode="triangular2"),
    "CyclicLR exp_range": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 9, mode="exp_range", gamma=0.99),
    "CyclicLR by a function": lambda s, o: s.CyclicLR(
        o, 0.01, 0.2, 9, scale_fn=lambda x: 1 / x, cycle_momentum=False
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o,
        [s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9), s.StepLR(o, 9, 0.5)],
        [10, 40],
    ),
    "SequentialLR warm": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=10), s.CosineAnnealingLR(o, 90)], [10]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.5, 20), s.ExponentialLR(o, 0.97), s.CosineAnnealingLR(o, 60)],
        optimizer=o,
    ),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, factor=0.5, patience=3, cooldown=2),
    "ReduceLROnPlateau max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", 0.3, 2, threshold=0.2, threshold_mode="abs", min_lr=[0.01, 1e-3]
    ),
}


def made(name, package, ones):
    weights = [ones(2, requires_grad=True) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.3}]
    optimizer = package.SGD(groups, lr=0.1, momentum=0.9)
    return optimizer, SCHEDULES[name](package.lr_scheduler, optimizer)


def walk(optimizer, schedule, steps):
    """The groups' settings after each step."""
    seen = []
    for number in steps:
        if "Plateau" in type(schedule).__name__:
            schedule.step(metrics=math.cos(number / 9) + 1)
        else:
            schedule.step()
        seen.append([(group["lr"], group["momentum"]) for group in optimizer.param_groups])
        assert schedule.get_last_lr() == [rate for rate, _ in seen[-1]]
    return seen


pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")


@pytest.fixture(scope="module")
def here():
    with gt.init(inline=True, arena="16MiB", threads=1):
        yield


@pytest.mark.table
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_torchs_and_go_on_from_a_state(here, name):
    ours, theirs = made(name, optim, gt.ones), made(name, torch.optim, torch.ones)
    firsts = [[group["lr"] for group in one.param_groups] for one, _ in (ours, theirs)]
    assert firsts[0] == pytest.approx(firsts[1])
    found, want = walk(*ours, range(50)), walk(*theirs, range(50))
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)
    assert getattr(ours[1], "last_epoch", None) == getattr(theirs[1], "last_epoch", None)
    # Another run takes over: its own schedule, and the states of both.
    optimizer, schedule = made(name, optim, gt.ones)
    optimizer.load_state_dict(ours[0].state_dict())
    schedule.load_state_dict(ours[1].state_dict())
    found, want = walk(optimizer, schedule, range(50, STEPS)), walk(*theirs, range(50, STEPS))
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


def test_a_step_can_be_named(here):
    for name in (
        "StepLR",
        "MultiStepLR",
        "ConstantLR",
        "LinearLR",
        "ExponentialLR",
        "PolynomialLR",
    ):
        optimizer, schedule = made(name, optim, gt.ones)
        walk(optimizer, schedule, range(12))
        rates = schedule.get_last_lr()
        schedule.step(epoch=0)
        schedule.step(epoch=12)
        assert schedule.get_last_lr() == pytest.approx(rates)
    optimizer, schedule = made("CosineAnnealingWarmRestarts", optim, gt.ones)
    walk(optimizer, schedule, range(12))
    rates = schedule.get_last_lr()
    schedule.step(0)
    schedule.step(12)
    assert schedule.get_last_lr() == pytest.approx(rates)


def test_schedules_refuse_in_sentences(here):
    optimizer, _ = made("StepLR", optim, gt.ones)
    s = optim.lr_scheduler
    plain = optim.Adagrad([gt.ones(1, requires_grad=True)])
    for call, words in (
        (lambda: s.LambdaLR(optimizer, [abs]), "give a function, or 2, not 1"),
        (lambda: s.ConstantLR(optimizer, 2.0), "must be above 0"),
        (lambda: s.LinearLR(optimizer, 0.0), "must be above 0"),
        (lambda: s.OneCycleLR(optimizer, 1.0), "give total_steps"),
        (lambda: s.OneCycleLR(plain, 1.0, 10), "has no momentum"),
        (lambda: s.OneCycleLR(optimizer, 1.0, 10, anneal_strategy="sin"), "'cos' or 'linear'"),
        (lambda: s.CyclicLR(optimizer, 0.1, 1.0, mode="square"), "must be 'triangular'"),
        (lambda: s.CyclicLR(optimizer, [0.1], 1.0), "one for each"),
        (lambda: s.CosineAnnealingWarmRestarts(optimizer, 0), "must be 1 or more"),
        (lambda: s.SequentialLR(optimizer, [s.StepLR(optimizer, 1)], [3]), "need 0 milestones"),
        (lambda: s.ChainedScheduler([]), "one schedule or more"),
        (lambda: s.ReduceLROnPlateau(optimizer, factor=1.0), "must be below 1"),
        (lambda: s.ReduceLROnPlateau(optimizer, mode="least"), "must be 'min' or 'max'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="takes an optimiser, not an int"):
        s.LRScheduler(3)
    with pytest.raises(TypeError, match="takes the figure"):
        s.ReduceLROnPlateau(optimizer).step()
    with pytest.raises(KeyError, match="needs an 'initial_lr'"):
        s.StepLR(optim.Adagrad([gt.ones(1, requires_grad=True)]), 3, last_epoch=5)
    schedule = s.OneCycleLR(optimizer, 1.0, 3)
    with pytest.raises(ValueError, match="beyond the 3"):
        walk(optimizer, schedule, range(9))
