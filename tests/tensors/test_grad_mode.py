"""Whether what is done with tensors is recorded for gradients, and in whose thread."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn, optim


@pytest.fixture(params=["shmgpu", "torch"])
def both(request):
    """The same sentences hold of PyTorch."""
    if request.param == "torch":
        return torch
    with gt.init(inline=True, arena="16MiB"):
        return gt


def test_no_grad_is_a_context_and_a_decorator_that_may_call_itself(both):
    @both.no_grad()
    def deep(n):
        assert not both.is_grad_enabled()
        return deep(n - 1) if n else n

    assert deep(3) == 0
    assert both.is_grad_enabled()
    again = both.no_grad()
    with again:
        with both.enable_grad():
            assert both.is_grad_enabled()
        assert not both.is_grad_enabled()
    assert both.is_grad_enabled()


def test_one_context_is_entered_again_within_itself():
    again = gt.no_grad()
    with again, again:
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled()


def test_a_decorator_needs_no_brackets_and_keeps_the_functions_name(both):
    @both.no_grad
    def quiet():
        """What it does."""
        return both.is_grad_enabled()

    assert (quiet(), quiet.__name__, quiet.__doc__) == (False, "quiet", "What it does.")

    @both.enable_grad()
    def loud():
        return both.is_grad_enabled()

    with both.no_grad():
        assert loud()


def test_a_generator_has_its_mode_between_its_own_steps_alone(both):
    @both.no_grad()
    def steps():
        answers = []
        try:
            while len(answers) < 2:
                answers.append((yield both.is_grad_enabled()))
        finally:
            answers.append(both.is_grad_enabled())
        return answers

    running = steps()
    assert next(running) is False
    assert both.is_grad_enabled()
    assert running.send("a") is False
    assert both.is_grad_enabled()
    with pytest.raises(StopIteration) as end:
        running.send("b")
    assert end.value.value == ["a", "b", False]
    running = steps()
    next(running)
    running.close()
    assert both.is_grad_enabled()
    running = steps()
    next(running)
    with pytest.raises(KeyError):
        running.throw(KeyError)
    assert both.is_grad_enabled()


def test_set_grad_enabled_holds_at_once_and_as_a_context_until_its_end(both):
    try:
        both.set_grad_enabled(False)
        assert not both.is_grad_enabled()
        with both.set_grad_enabled(True):
            assert both.is_grad_enabled()
        assert not both.is_grad_enabled()
    finally:
        both.set_grad_enabled(True)
    with both.set_grad_enabled(False):
        assert not both.is_grad_enabled()
    assert both.is_grad_enabled()

    @both.set_grad_enabled(False)
    def quiet():
        return both.is_grad_enabled()

    assert both.is_grad_enabled() and not quiet()


def test_an_error_leaves_the_mode_as_it_was(both):
    with pytest.raises(KeyError), both.no_grad():
        raise KeyError
    assert both.is_grad_enabled()


def test_threads_whose_blocks_interleave_have_a_mode_each(both):
    """One enters, then the other; one leaves, then the other."""
    mine = both.no_grad()  # one context for both
    entered, left = threading.Event(), threading.Event()
    seen = {}

    def other():
        seen["new"] = both.is_grad_enabled()
        with mine if both is gt else both.no_grad():
            seen["inside"] = both.is_grad_enabled()
            entered.set()
            assert left.wait(20)
            seen["after the other left"] = both.is_grad_enabled()
        seen["after"] = both.is_grad_enabled()

    thread = threading.Thread(target=other)
    with mine:
        thread.start()
        assert entered.wait(20)
        assert not both.is_grad_enabled()
    assert both.is_grad_enabled()
    left.set()
    thread.join(20)
    assert seen == {"new": True, "inside": False, "after the other left": False, "after": True}


def test_a_thread_evaluates_while_another_trains():
    """Neither's steps fail, and the training ends where it would have ended alone."""
    x = np.random.default_rng(3).standard_normal((16, 8)).astype("float32")
    y = np.arange(16) % 4

    def model():
        gt.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def train(net):
        stepping = optim.Adam(net.parameters(), lr=0.01)
        for _ in range(40):
            stepping.zero_grad()
            nn.cross_entropy(net(gt.tensor(x)), gt.tensor(y)).backward()
            stepping.step()
        return net(gt.tensor(x)).data.copy()

    with gt.init(helpers=1, devices="cpu", arena="32MiB"):
        alone = train(model())
        beside, trained, wrong = model(), threading.Event(), []

        def evaluate():
            while not trained.is_set():
                try:
                    with gt.no_grad():
                        shown = beside(gt.tensor(x)).sum()
                    if shown.requires_grad or not np.isfinite(shown.item()):
                        wrong.append(shown.item())
                except Exception as error:
                    wrong.append(error)

        thread = threading.Thread(target=evaluate)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        thread.start()
        try:
            together = train(beside)
        finally:
            sys.setswitchinterval(interval)
            trained.set()
            thread.join(30)
        assert wrong == []
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["inline", "in a helper"])
def test_what_a_thread_holds_before_it_has_recorded_anything_is_there_when_it_goes_on(where):
    """It has looked at a weight that is not computed, and is stopped; steps are made and sent."""
    holds, goes_on, found = threading.Event(), threading.Event(), []

    class Axes(tuple):
        """Which are looked at after the tensor; that takes until the other thread has gone on."""

        __slots__ = ()

        def __iter__(self):
            holds.set()
            assert goes_on.wait(20)
            return super().__iter__()

    def evaluate():
        with gt.no_grad():
            found.append(weight.sum(Axes((0, 1))).item())

    inline = where == "inline"
    with gt.init(inline=inline, helpers=None if inline else 1, devices="cpu", arena="16MiB"):
        weight = gt.ones(4, 4, requires_grad=True)
        assert weight.sum().item() == 16  # and the helper keeps it
        with gt.no_grad():
            weight -= 0.5
            thread = threading.Thread(target=evaluate)
            thread.start()
            assert holds.wait(20)
            weight -= 0.25
        assert weight.sum().item() == 4
        goes_on.set()
        thread.join(20)
        assert found == [8]
        assert weight.sum().item() == 4
