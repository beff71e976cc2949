"""What was recorded once for a structure is recorded again: the same, and never what it was not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import optim
from shmgpu.ops import creation, elementwise, graph, templates
from shmgpu.ops.casting import alias
from shmgpu.ops.graph import Node, spec_of
from shmgpu.ops.promotion import as_node, float32, float64, number
from shmgpu.tensors import autograd


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(autograd, "_templates", templates.Templates())


@pytest.fixture
def asked(monkeypatch):
    """How often the walk has asked the rules."""
    calls = []
    walk = autograd._walk
    monkeypatch.setattr(autograd, "_walk", lambda *given: calls.append(1) or walk(*given))
    return calls


def gradient(function, values, package=gt):
    x = package.tensor(values, dtype=package.float64, requires_grad=True)
    function(x).backward()
    return np.asarray(x.grad.data if package is gt else x.grad)


def agree(function, *values):
    for one in values:
        ours, theirs = gradient(function, one), gradient(function, one, torch)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_rules_are_asked_once_for_each_structure(engine, asked):
    agree(lambda x: (x.sin() * x + 3.0 * x).sum(), [1.0, 2.0], [0.1, -2.0], [5.0, 7.0])
    assert len(asked) == 1
    agree(lambda x: (x.sin() * x + 3.0 * x).sum(), [1.0], [2.0])  # another shape
    agree(lambda x: (x.sin() * x - 3.0 * x).sum(), [1.0], [2.0])  # another operation
    agree(lambda x: (x.sin() * x + 3.0 * x).mean(), [1.0], [2.0])
    assert len(asked) == 4


def test_numbers_are_those_of_the_graph_at_hand(engine, asked):
    for factor in (2.0, 3.0, -0.5):
        agree(lambda x, f=factor: (x * f * x / (f + 1.0)).sum(), [1.0, 2.0])
    assert len(asked) == 1


def test_a_power_of_0_is_another_structure_than_one_of_another_number(engine):
    for exponent in (3.0, 0.0, 4.0, 0.0):
        agree(lambda x, n=exponent: (x**n).sum(), [0.0, 2.0])


def test_one_value_used_twice_is_not_two(engine):
    values = [1.5, -2.0]
    agree(lambda x: (x * x).sum(), values)
    for package in (gt, torch):
        x, y = (package.tensor(values, requires_grad=True) for _ in range(2))
        (x * y).sum().backward()
        np.testing.assert_allclose(np.asarray(x.grad), values)


def test_gradients_that_are_asked_for_are_those_that_were_meant(engine):
    for package in (gt, torch):
        grad = package.grad if package is gt else package.autograd.grad
        for place in (0, 1, 0, 1):
            x, y = (package.tensor(n, requires_grad=True) for n in (2.0, 5.0))
            middle = x * y
            out = middle * x
            wanted = [(x, 20.0), (middle, 2.0)][place]
            assert float(grad(out, wanted[0])[0]) == wanted[1]


def test_a_seed_that_waits_is_not_recorded_again_with_what_it_follows_from(engine):
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    for factor in (1.0, 10.0):
        seed = gt.tensor([1.0, 1.0]) * factor
        x.grad = None
        (x * 3.0).backward(seed)
        assert x.grad.tolist() == [3 * factor, 3 * factor]
    # A seed that is a part's gradient is added where that belongs: its own history is looked at.
    for factor in (1.0, 10.0):
        parts = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (seed,) = gt.grad((parts[1:] * factor).sum(), parts)
        y = gt.tensor([1.0, 1.0, 1.0], requires_grad=True)
        gt.grad([y * 2.0, y * 1.0], [y], [seed, seed])
        (found,) = gt.grad([y * 2.0, y * 1.0], [y], [seed, seed])
        assert found.tolist() == [0, 3 * factor, 3 * factor]


def test_gradients_of_gradients_are_not_cut_off_by_what_was_recorded_without(engine):
    def slopes(x, **options):
        return gt.grad((x**3).sum(), x, **options)[0]

    x = gt.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        assert not slopes(x).requires_grad
        assert gt.grad(slopes(x, create_graph=True).sum(), x)[0].tolist() == [6, 12]


def test_what_is_released_stays_released_however_its_gradient_was_recorded(engine):
    for _ in range(2):
        x = gt.tensor(2.0, requires_grad=True)
        y = x * x
        y.backward()
        with pytest.raises(RuntimeError, match="released"):
            y.backward()
        assert x.grad.item() == 4


def test_a_rule_of_an_optimiser_is_asked_once_and_its_numbers_are_those_of_the_step(
    engine, monkeypatch
):
    monkeypatch.setattr(optim.optimizer, "_templates", templates.Templates())
    calls = []
    rule = optim.Adam._change
    monkeypatch.setattr(
        optim.Adam, "_change", staticmethod(lambda *given: calls.append(1) or rule(*given))
    )
    made = []
    for package in (gt, torch):
        params = [package.tensor([n, 2.0 * n], requires_grad=True) for n in (1.0, 3.0)]
        optimizer = package.optim.Adam(params, lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            sum((one * one).sum() for one in params).backward()
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        made.append([np.asarray(one.detach()) for one in params])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)
    assert len(calls) == 2  # once for each parameter, in the first step


def test_parameters_that_share_a_gradient_do_so_in_that_step_alone(engine):
    made = []
    for package in (gt, torch):
        x, y = (package.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        optimizer = package.optim.SGD([x, y], lr=0.1, momentum=0.9)
        for factor in (1, 3, 1):
            optimizer.zero_grad()
            (x + (y if factor == 1 else y * factor)).sum().backward()
            optimizer.step()
        made.append([np.asarray(one.detach()) for one in (x, y)])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)


# ---- what a template must not keep ---------------------------------------------------------------


def leaf(value=None, spec=spec_of(float32, (2,))):  # noqa: B008
    return Node(None, (), (), spec, value)


def made_of(given, rule):
    """The template of what a rule records, and how often it is asked in three turns."""
    store, asked = templates.Templates(), []
    for _ in range(3):
        with gt.no_grad():
            store.record("key", given, lambda: asked.append(1) or rule(*given))
    return len(asked)


def test_a_template_of_nothing_is_given_nothing():
    kind = creation.full((2,), 1.5, float32)
    made = templates.Template([(kind.op, (), kind.params, kind.spec, None)], [0])
    (node,) = made.instantiate([])
    assert (node.op, node.inputs, node.params, node.spec) == (kind.op, (), kind.params, kind.spec)


def test_a_template_is_what_follows_from_what_was_given_alone():
    x, other = leaf(), leaf()
    assert made_of([x], lambda x: [elementwise.add(x, x)]) == 1
    assert made_of([x], lambda x: [x]) == 1
    assert made_of([x], lambda x: [elementwise.mul(x, 2.0)]) == 1
    assert made_of([x], lambda x: [elementwise.add(x, other)]) == 3
    waits = creation.full((2,), 3.0, float32)
    assert made_of([x], lambda x: [elementwise.add(x, waits)]) == 3


def test_the_value_of_a_number_that_was_given_is_not_kept():
    x, two = leaf(), number(2.0, float32)
    assert made_of([x, two], lambda x, n: [elementwise.mul(x, n)]) == 1
    assert made_of([x, two], lambda x, n: [elementwise.mul(x, alias(n))]) == 3
    wide = leaf(spec=spec_of(float64, (2,)))
    assert made_of([wide, two], lambda x, n: [elementwise.mul(x, as_node(n, float64))]) == 3


def test_what_gradients_flow_through_is_not_kept():
    x = leaf()
    x.needs_grad = True

    def rule(x):
        graph.grad_mode.enabled = True
        return [elementwise.add(x, x)]

    assert made_of([x], rule) == 3


def test_a_store_forgets_when_it_is_full(monkeypatch):
    monkeypatch.setattr(templates, "MAX_STEPS", 10)
    store, x = templates.Templates(), leaf()
    for key in range(50):
        store.record(key, [x], lambda: [elementwise.add(x, x)])
        assert len(store._known) <= 5


def test_a_hook_is_called_though_the_same_graph_was_recorded_without(engine):
    for factor in (None, 10.0, None):
        x = gt.tensor([1.0, 2.0], requires_grad=True)
        middle = x * 3.0
        if factor is not None:
            middle.register_hook(lambda g, f=factor: g * f)
        middle.sum().backward()
        assert x.grad.tolist() == [3 * (factor or 1)] * 2
