"""Optimisers do what torch's do: step for step, in groups, and after states were exchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn, optim

START = np.random.default_rng(31).normal(size=(3, 4)).astype("float32")

# Each rule, and settings that each have their own part of the formula.
RULES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.05, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "amsgrad": True}),
    ("RMSprop", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.7, "centered": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "maximize": True}),
    ("Adamax", {"lr": 0.05, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
]


def run(parameter, optimizer, times):
    for _ in range(times):
        optimizer.zero_grad()
        (parameter * parameter * parameter.sin()).sum().backward()
        optimizer.step()


def same(ours, theirs):
    np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", dict(RULES))
def test_a_rule_is_torchs_and_goes_on_with_torchs_state_and_torch_with_ours(name):
    with gt.init(inline=True, arena="16MiB", threads=1):
        for settings in (settings for known, settings in RULES if known == name):
            rules = getattr(optim, name), getattr(torch.optim, name)
            ours = gt.tensor(START, requires_grad=True)
            theirs = torch.tensor(START, requires_grad=True)
            steps = [
                rule([one], **settings) for rule, one in zip(rules, (ours, theirs), strict=True)
            ]
            run(ours, steps[0], 7)  # more than RAdam waits for
            run(theirs, steps[1], 7)
            same(ours, theirs)
            state, torchs = steps[0].state_dict(), steps[1].state_dict()
            known = torchs["state"].get(0, {})
            assert set(state["state"].get(0, {})) == {k for k, v in known.items() if v is not None}
            assert set(state["param_groups"][0]) == set(torchs["param_groups"][0])
            # Each goes on with the other's state.
            again = gt.tensor(theirs.detach().numpy(), requires_grad=True)
            torch_again = torch.tensor(np.array(ours.data), requires_grad=True)
            step, torch_step = rules[0]([again], lr=9.0), rules[1]([torch_again], lr=9.0)
            step.load_state_dict(torchs)
            torch_step.load_state_dict(nn.state_tensors(state))
            run(theirs, steps[1], 3)
            run(again, step, 3)
            run(torch_again, torch_step, 3)
            same(again, theirs)
            same(again, torch_again)


def test_groups_have_settings_of_their_own(engine):
    def made(package, tensors, rule):
        first, second, third = (tensors(START * n) for n in (1, 2, 3))
        groups = [{"params": [first]}, {"params": second, "lr": 0.01, "momentum": 0.0}]
        step = rule(groups, lr=0.1, momentum=0.9)
        step.add_param_group({"params": [third], "weight_decay": 0.1})
        for _ in range(3):
            step.zero_grad()
            (first * second * third).sum().backward()
            step.step()
        return step, [first, second, third]

    mine, ours = made(gt, lambda v: gt.tensor(v, requires_grad=True), optim.SGD)
    _, theirs = made(torch, lambda v: torch.tensor(v, requires_grad=True), torch.optim.SGD)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)
    groups = mine.state_dict()["param_groups"]
    assert [group["params"] for group in groups] == [[0], [1], [2]]
    assert [group["lr"] for group in groups] == [0.1, 0.01, 0.1]
    assert [bool(mine.state[one]) for one in ours] == [
        True,
        False,
        True,
    ] and "momentum: 0.9" in repr(mine)
    with pytest.raises(ValueError, match="given twice"):
        mine.add_param_group({"params": [ours[0]]})
    with pytest.raises(ValueError, match=r"of groups of \[1, 1, 1\] parameters, this of \[1\]"):
        optim.SGD([ours[0]]).load_state_dict(mine.state_dict())


def test_a_gradient_of_another_shape_is_refused_and_nothing_has_changed(engine):
    w = gt.ones(3, requires_grad=True)
    adam = optim.Adam([w])
    for shape in ((2,), (1,), (3, 1)):
        w.grad = gt.ones(*shape)
        with pytest.raises(RuntimeError, match=r"of shape \(3,\) has a gradient of shape"):
            adam.step()
    assert w.tolist() == [1, 1, 1] and not adam.state.get(w)


def test_a_closure_computes_the_gradients_of_a_step(engine):
    weight = gt.tensor(START, requires_grad=True)
    step = optim.SGD([weight], lr=0.1)

    def closure():
        step.zero_grad(set_to_none=False)
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    with gt.no_grad():
        loss = step.step(closure=closure)
    assert loss.item() == pytest.approx(float((START**2).sum()), rel=1e-5)
    np.testing.assert_allclose(weight.data, START * 0.8, rtol=1e-5)


def test_another_learning_rate_makes_no_other_program(engine):
    from shmgpu.tensors import current

    weight = gt.tensor(START, requires_grad=True)
    step = optim.AdamW([weight], lr=0.1)
    schedule = optim.lr_scheduler.ExponentialLR(step, 0.9)
    for count in range(12):
        run(weight, step, 1)
        weight.numpy()
        schedule.step()
        if count == 2:
            known = len(current.recorder()._programs)
    assert len(current.recorder()._programs) == known


def test_settings_out_of_range_are_refused(engine):
    weight = gt.ones(2, requires_grad=True)
    for call, error, words in (
        (lambda: optim.SGD(weight), TypeError, "give a list"),
        (lambda: optim.SGD([weight], capturable=True), TypeError, "no settings capturable"),
        (
            lambda: optim.SGD([weight], momentum=0.9, dampening=0.1, nesterov=True),
            ValueError,
            "no dampening",
        ),
        (lambda: optim.Adamax([weight], betas=(1.0, 0.9)), ValueError, "below 1"),
        (lambda: optim.Adadelta([weight], rho=1.5), ValueError, "0 to 1"),
        (lambda: optim.RAdam([gt.ones(2)]), ValueError, "requires_grad=True"),
        (lambda: optim.NAdam([]), ValueError, "no parameters"),
        (lambda: optim.Adagrad([weight], lr_decay=-1), ValueError, "lr_decay=-1 must be"),
        (lambda: optim.RMSprop([weight], alpha=-1), ValueError, "alpha=-1 must be"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert optim.Adam([weight], foreach=True, fused=False).param_groups[0]["foreach"] is True


def test_a_saved_state_stays_what_it_was(engine):
    weight = gt.tensor(START, requires_grad=True)
    step, other = (optim.Adam([weight], lr=0.1) for _ in range(2))
    run(weight, step, 1)
    saved = step.state_dict()
    before = np.array(saved["state"][0]["exp_avg"].data)
    other.load_state_dict(saved)
    run(weight, step, 2)
    run(weight, other, 2)
    np.testing.assert_array_equal(saved["state"][0]["exp_avg"].data, before)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_of_several_steps_that_failed_the_first_says_what_the_counts_were(order):
    with gt.init(inline=True, arena="1MiB"):
        weight = gt.ones(2, requires_grad=True)
        optimizer = optim.Adam([weight])
    optimizer._turns[weight] = 4
    for turn in order:
        optimizer._take_back(weight, {"step": turn - 1}, turn)
    assert optimizer.state[weight] == {"step": 0}
