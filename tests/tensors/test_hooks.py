"""Gradients that are looked at on their way: hooks, kept gradients of what is no leaf, data set."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

import shmgpu as gt


def both(play):
    """What the same lines do with either library."""
    return play(gt), play(torch)


def test_a_hook_sees_and_changes_the_gradient(engine):
    def play(f):
        seen = []
        x = f.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = x * x
        y.register_hook(lambda g: seen.append(g.tolist()))
        y.register_hook(lambda g: g * 2)
        y.register_hook(lambda g: seen.append(g.tolist()))
        x.register_hook(lambda g: g + 1)
        (y * f.tensor([1.0, 10.0, 100.0])).sum().backward()
        return seen, x.grad.tolist()

    ours, theirs = both(play)
    assert ours == theirs


def test_a_leaf_s_hook_outlives_updates_and_ends_when_it_is_removed(engine):
    def play(f):
        x = f.tensor([1.0, 2.0], requires_grad=True)
        found = []
        with x.register_hook(lambda g: g * 3):
            for _ in range(2):
                (x * x).sum().backward()
                found.append(x.grad.tolist())
                with f.no_grad():
                    x -= 0.1 * x.grad
                x.grad = None
        handle = x.register_hook(lambda g: g * 5)
        handle.remove()
        handle.remove()
        (x * x).sum().backward()
        return np.round([*found, x.grad.tolist()], 5).tolist()

    ours, theirs = both(play)
    assert ours == theirs


def test_the_gradient_of_what_is_no_leaf_is_kept_after_its_hooks(engine):
    def play(f):
        x = f.tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        y.retain_grad()
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        z = y * y
        z.sum().backward(retain_graph=True)
        first = y.grad.tolist()
        z.sum().backward()
        return (
            first,
            y.grad.tolist(),
            y.retains_grad,
            z.retains_grad,
            x.retains_grad,
            x.grad.tolist(),
        )

    ours, theirs = both(play)
    assert ours == theirs


def test_grad_calls_hooks_and_keeps_nothing(engine):
    def play(f, grad):
        x = f.tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        (found,) = grad((y * y).sum(), [y])
        return found.tolist()

    assert play(gt, gt.grad) == play(torch, torch.autograd.grad)


def test_a_hook_s_result_is_differentiated_again(engine):
    def play(f, grad):
        x = f.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.register_hook(lambda g: g * x)
        (first,) = grad(y.sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
        return first.tolist(), second.tolist()

    assert play(gt, gt.grad) == play(torch, torch.autograd.grad)


def test_a_tensor_that_is_gone_is_not_kept_for_its_gradient(engine):
    x = gt.ones(2, requires_grad=True)
    y = x * 3
    y.retain_grad()
    gone, total = weakref.ref(y), (y * y).sum()
    del y
    gc.collect()
    assert gone() is None
    total.backward()
    assert x.grad.tolist() == [18, 18]


def test_hooks_where_no_gradient_flows_are_refused(engine):
    x = gt.ones(2)
    for call in (lambda: x.register_hook(print), x.retain_grad):
        with pytest.raises(RuntimeError, match="no gradients flow"):
            call()
    y = gt.ones(2, requires_grad=True) * 1
    y.register_hook(lambda g: g.sum())
    with pytest.raises(RuntimeError, match=r"returned the shape \(\) for a gradient of \(2,\)"):
        y.sum().backward()


def test_data_may_be_set_without_a_gradient(engine):
    weight = gt.ones(2, 3, requires_grad=True)
    view = weight.detach()[0]
    weight.data = gt.full((2, 3), 2.0)
    assert weight.is_leaf and weight.requires_grad
    assert weight.tolist() == [[2, 2, 2]] * 2
    assert view.tolist() == [1, 1, 1]  # it shows what it was taken from
    (weight * weight).sum().backward()
    assert weight.grad.tolist() == [[4, 4, 4]] * 2
    weight.data = weight.data - 0.5 * weight.grad.data  # an array, as .data is
    assert weight.tolist() == [[0, 0, 0]] * 2
    plain = gt.zeros(3)
    plain.data = np.arange(4)
    assert plain.dtype == gt.int64 and plain.tolist() == [0, 1, 2, 3]


def test_data_that_a_tensor_cannot_have_is_refused(engine):
    weight = gt.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="cannot become int64"):
        weight.data = gt.arange(2)
    with pytest.raises(RuntimeError, match="gradients flow through"):
        (weight * 2).data = gt.zeros(2)


def test_data_that_is_changed_in_place_says_what_does(engine):
    weight = gt.ones(2, requires_grad=True)
    with pytest.raises(AttributeError, match=r"under no_grad\(\).*tensor\.fill_"):
        weight.data.fill_(2)
    with pytest.raises(ValueError, match=r"under no_grad\(\).*tensor\[\.\.\.\] = value"):
        weight.data[0] = 2
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = weight.data.nothing
    own = weight.data.copy()
    own[0] = 2
    assert own.tolist() == [2, 1] and weight.tolist() == [1, 1]


def test_in_says_whether_an_element_is_equal(engine):
    numbers = gt.arange(5)
    assert 3 in numbers and 7 not in numbers and gt.tensor(4) in numbers
    assert 0.5 in gt.tensor([[0.0, 0.5]]) and float("nan") not in gt.tensor([float("nan")])
    assert 1 not in gt.zeros(0)


def test_setting_data_of_a_view_takes_it_from_what_it_showed(engine):
    base = gt.zeros(4)
    part = base[:2]
    part.data = gt.ones(2)
    part += 1
    assert part.tolist() == [2, 2] and base.tolist() == [0, 0, 0, 0]
    base += 5
    assert part.tolist() == [2, 2]


def test_detach_in_place_ends_the_way_back(engine):
    x = gt.ones(2, requires_grad=True)
    y = x * 2
    assert y.detach_() is y and not y.requires_grad and y.is_leaf
    assert y.tolist() == [2, 2]


def test_a_hook_reads_a_gradient_while_others_are_on_their_way(engine):
    """What they are made of was sent, and stays known until they are there."""

    def play(f):
        seen = []
        x = f.tensor([1.0, 2.0, 3.0], requires_grad=True)
        w = f.tensor([2.0, 2.0, 2.0], requires_grad=True)
        first = x * x
        second = first * w
        for one in (second, first, x):
            one.register_hook(lambda g: seen.append(g.sum().item()))
        (second * w).sum().backward()
        return seen, x.grad.tolist(), w.grad.tolist()

    ours, theirs = both(play)
    assert ours == theirs
