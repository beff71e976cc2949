"""An operation fails: it costs what follows from it, and nothing else that was recorded."""

from __future__ import annotations

import logging
import os
import signal
import types

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn, ops, optim
from shmgpu.engine import session
from shmgpu.tensors import current, recorder
from shmgpu.tensors.message import HelperIncarnation, RemoteValue

RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.standard_normal((16, 8)).astype("float32"), RNG.integers(0, 4, 16)) for _ in range(8)
]
BAD = 4  # the batch with a target that there is not


def outcome(batches, make, *, reads=True, metric=(), bad=None):
    """What each step's loss was, or its error, and the parameters at the end."""
    gt.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    stepping, told = make(net.parameters()), []
    for number, (x, y) in enumerate(batches):
        targets = np.where(np.arange(16) == 3, 9, y) if number == bad else y
        stepping.zero_grad()
        logits = net(gt.tensor(x))
        loss = nn.cross_entropy(logits, gt.tensor(targets))
        loss.backward()
        stepping.step()
        wrong = logits[:, gt.tensor([0, 99])].sum() if number in metric else None
        if reads:
            try:
                told.append(loss.item())
            except gt.RemoteError as error:
                told.append(error.message)
            if wrong is not None:
                with pytest.raises(gt.RemoteError, match=r"99 is out of bounds"):
                    wrong.item()
    return told, [one.data.copy() for one in net.parameters()]


def same(some, others):
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def with_momentum(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.fixture(params=["inline", "one helper", "two helpers"])
def where(request):
    if request.param == "inline":
        started = gt.init(inline=True, arena="16MiB")
    else:
        helpers = 1 + (request.param == "two helpers")
        started = gt.init(helpers=helpers, devices="cpu", arena="16MiB")
    with started:
        yield


def test_a_target_out_of_range_costs_one_step(engine):
    """The error goes to who asks for that step's loss, and weights stay as they were before it."""
    left_out = [batch for number, batch in enumerate(BATCHES) if number != BAD]
    expected, weights = outcome(left_out, with_momentum)
    told, found = outcome(BATCHES, with_momentum, bad=BAD)
    error = told.pop(BAD)
    assert "target" in error.lower() and "(in nll_loss)" in error
    assert told == expected and same(found, weights)


def test_it_costs_one_step_in_helpers_too(where):
    left_out = [batch for number, batch in enumerate(BATCHES) if number != BAD]
    _, weights = outcome(left_out, with_momentum)
    _, found = outcome(BATCHES, with_momentum, bad=BAD)
    assert same(found, weights)


OPTIMISERS = {
    "SGD with dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    **{
        name: getattr(optim, name)
        for name in "Adam AdamW NAdam RAdam Adamax Adagrad RMSprop Adadelta".split()
    },
}


@pytest.mark.table
@pytest.mark.parametrize("bad", [0, BAD], ids=["the first", "a later one"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_that_failed_is_not_counted(engine, name, bad):
    left_out = [batch for number, batch in enumerate(BATCHES) if number != bad]
    expected, weights = outcome(left_out, OPTIMISERS[name])
    told, found = outcome(BATCHES, OPTIMISERS[name], bad=bad)
    told.pop(bad)
    assert told == expected and same(found, weights)


def test_steps_that_failed_one_upon_the_other_are_not_counted(engine):
    weight = gt.ones(3, requires_grad=True)
    stepping = optim.Adam([weight])
    for index in (0, 9, 9, 1):
        stepping.zero_grad()
        weight[gt.tensor([index])].sum().backward()
        stepping.step()
        if index == 0:
            first = weight.data.copy()
    with pytest.raises(gt.RemoteError, match="index 9"):  # the last followed from the others
        _ = weight.data
    assert np.array_equal(weight.data, first)
    assert stepping.state[weight]["step"] == 1


@pytest.mark.parametrize("reads", [True, False], ids=["each loss is read", "nothing is read"])
@pytest.mark.parametrize("make", [with_momentum, optim.Adam], ids=["SGD", "Adam"])
def test_a_wrong_index_in_a_metric_costs_no_step(where, make, reads):
    """Also where steps are sent before anybody has heard of it."""
    _, weights = outcome(BATCHES, make)
    _, found = outcome(BATCHES, make, reads=reads, metric=(2, 5))
    assert same(found, weights)


def test_of_steps_that_nobody_reads_the_log_tells_and_weights_are_sound(where, caplog):
    """Or whoever asks first, where it was not heard of by then."""
    gt.manual_seed(0)
    weight = gt.randn(4, 3, requires_grad=True)
    before = weight.data.copy()
    stepping = optim.SGD([weight], lr=0.1)
    told = ""
    with caplog.at_level(logging.WARNING, "shmgpu"):
        for turn in range(6):
            stepping.zero_grad()
            weight[gt.tensor([0, 1 if turn else 9])].sum().backward()
            stepping.step()
        try:
            _ = weight.data
        except gt.RemoteError as error:
            told = error.message
    assert "index 9 is out of bounds" in told + caplog.text
    after = weight.data.copy()
    assert np.isfinite(after).all() and np.array_equal(after[2:], before[2:])
    weight.grad = None
    weight[gt.tensor([0, 1])].sum().backward()
    stepping.step()
    np.testing.assert_allclose((weight.data - after)[:2], -0.1, rtol=1e-5)


def test_each_of_several_failures_is_told_to_who_asks_for_it(engine):
    x = gt.arange(6).to(gt.float32)
    wrong = [x[gt.tensor([0, far])] * 2 for far in (50, 60, 70)]
    fine = x * 2
    for one, far in zip(wrong, (50, 60, 70), strict=True):
        with pytest.raises(gt.RemoteError, match=f"index {far} is out of bounds"):
            _ = one.data
    assert fine.tolist() == [0, 2, 4, 6, 8, 10]


def test_an_assignment_that_fails_is_told_once_and_leaves_the_tensor_as_it_was(engine):
    x = gt.zeros(4)
    x += 1
    x[gt.tensor([1, 7])] = 5.0
    with pytest.raises(gt.RemoteError, match="7 is out of bounds"):
        _ = x.data
    assert x.tolist() == [1, 1, 1, 1]
    x[gt.tensor([1])] = 5.0
    assert x.tolist() == [1, 5, 1, 1]


def test_gradients_that_are_collected_begin_anew_where_they_were_lost(engine):
    weight = gt.ones(3, requires_grad=True)
    weight[gt.tensor([0, 8])].sum().backward()
    with pytest.raises(gt.RemoteError, match="8 is out of bounds"):
        _ = weight.grad.data
    (weight * 2).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


def test_whoever_is_over_the_quota_loses_that_step_and_keeps_the_weights(monkeypatch):
    monkeypatch.setenv("SHMGPU_RESIDENT", "1MiB")
    with gt.init(helpers=1, devices="cpu", arena="16MiB"):
        weight = gt.ones(1000, requires_grad=True)
        stepping = optim.SGD([weight], lr=1.0)
        (weight * 2).sum().backward()
        stepping.step()
        assert weight.data[0] == -1
        large = gt.ones(1 << 20)
        with pytest.raises(gt.RemoteError, match="over its quota"):
            large.sum().item()
            _ = large.data
        del large
        stepping.zero_grad()
        (weight * 2).sum().backward()
        stepping.step()
        assert weight.data[0] == -3


def test_a_large_tensor_is_not_written_over_before_all_that_may_fail_is_done(where):
    """Or half a step would be left behind: its memory is used again otherwise."""
    assert {"index", "gather", "embedding", "nll_loss", "index_put"} <= {
        one.name for one in ops.TABLE.values() if one.may_fail
    }
    x, places = gt.ones(2000), gt.tensor([0, 5000])
    assert x.sum().item() == 2000
    for turn in range(1, 4):
        x += 1
        wrong = (x * 2)[places]
        with pytest.raises(gt.RemoteError, match="5000 is out of bounds"):
            _ = wrong.data
        assert x.sum().item() == 2000 * (1 + turn)


def test_what_a_step_that_failed_would_have_written_over_is_there_for_the_next(where):
    """Its large tensors' memory is used again, but not before all that may fail is done."""

    def after(rows):
        weight = gt.ones(2000, requires_grad=True)
        stepping, told = optim.SGD([weight], lr=1.0, momentum=0.5), []
        for row in rows:
            stepping.zero_grad()
            loss = weight[gt.tensor([0, row])].sum()
            loss.backward()
            stepping.step()
            try:
                told.append(loss.item())
            except gt.RemoteError as error:
                told.append(error.message[:10])
        return told, weight.data.copy()

    told, weight = after([1, 2, 5000, 3])
    wanted, same_weight = after([1, 2, 3])
    assert told == [*wanted[:2], "index 5000", wanted[2]]
    np.testing.assert_array_equal(weight, same_weight)


@pytest.fixture
def full(monkeypatch):
    """What it is given: the next message that is executed runs out of memory at its end."""
    compiled, full = session.compiled, []

    def breaks_off(*args, **options):
        made = compiled(*args, **options)
        run = made.run

        def half_of_it(given, numbers):
            results = run(given, numbers)
            if full:
                raise MemoryError(full.pop())
            return results

        made.run = half_of_it
        return made

    monkeypatch.setattr(session, "compiled", breaks_off)
    return full


def test_what_could_not_be_read_is_an_error_and_nothing_else_is_lost(full):
    with gt.init(inline=True, arena="16MiB", debug=True):
        keeps, x = gt.ones(2000) * 3, gt.ones(2000) * 2
        assert x.sum().item() == 4000 and keeps.sum().item() == 6000
        full.append("there is no more")
        for _ in range(2):
            with pytest.raises(gt.RemoteError, match="there is no more"):
                _ = x.data
        assert keeps.data[0] == 3
        failed = [sent for sent in recorder.observer.messages if sent.error]
        assert len(failed) == 1 and "there is no more" in failed[0].error


def test_what_a_step_wrote_over_before_memory_ran_out_is_lost_and_nothing_else(full):
    with gt.init(inline=True, arena="16MiB"):
        keeps, weight = gt.ones(2000), gt.ones(2000)
        assert weight.sum().item() == keeps.sum().item() == 2000
        full.append("there is no more")
        weight *= 2
        for _ in range(2):
            with pytest.raises(gt.RemoteError, match=r"there is no more"):
                _ = (weight + 1).data
        assert keeps.sum().item() == 2000
        assert (keeps * 2).sum().item() == 4000


@pytest.mark.parametrize("place", [4, -5])
@pytest.mark.parametrize(
    "look",
    [
        lambda x, at: x[at],
        lambda x, at: x.gather(0, at),
        lambda x, at: gt.embedding(at, x.to(gt.float32).unsqueeze(1)),
    ],
    ids=["index", "gather", "embedding"],
)
def test_an_index_one_beyond_either_end_is_out_of_range(engine, look, place):
    x = gt.arange(4)
    with pytest.raises(gt.RemoteError, match=r"IndexError|RuntimeError"):
        _ = look(x, gt.tensor([0, place])).data


def test_no_steps_between_two_numbers_are_none(engine):
    assert gt.linspace(0, 1, 0).tolist() == torch.linspace(0, 1, 0).tolist() == []


def test_structures_that_take_turns_stay_known_to_the_helper(engine):
    """The child remembers thousands of programs, and numbers each once."""
    for _ in range(4):
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
        assert (gt.ones(3) * 4).tolist() == [4, 4, 4]
    (row,) = gt.debug.get_worker_stats().values()
    assert row["programs"] <= 4


def test_steps_that_nobody_read_are_lost_with_their_helper_and_the_error_says_so():
    """Several steps are one message: what was in between them is nothing to go back to."""
    with gt.init(helpers=1, devices="cpu", arena="16MiB"):
        weight = gt.ones(2000, requires_grad=True)
        stepping = optim.Adam([weight], lr=0.1)
        assert weight.sum().item() == 2000
        dies = gt.stats()["helpers"][0]["pid"]
        for turn in range(12):
            stepping.zero_grad()
            (weight * 2).sum().backward()
            stepping.step()
            if turn == 5:
                os.kill(dies, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(gt.HelperDied, match="with it went tensors"):
                _ = weight.data
        again = gt.ones(2000, requires_grad=True)
        (again * 2).sum().backward()
        assert again.grad.data[0] == 2


def test_a_helper_counts_as_holding_what_a_step_that_failed_would_have_written_over():
    """The next tensors go where least is held."""
    life = HelperIncarnation(0)
    value = RemoteValue(None, life, 1, 48)
    value.is_ours = False  # the step's
    donated = [types.SimpleNamespace(value=value)]
    message = types.SimpleNamespace(cleared=(), kept=(), donated=donated)
    recorder.Recorder._take_back(None, message)
    assert value.is_ours and life.nbytes == 48


@pytest.mark.parametrize("order", [6, 7, 8])
def test_what_a_replacement_has_done_it_holds_and_what_came_before_it_does_not(order):
    life = HelperIncarnation(3)
    life.is_over, life.died_over = True, 7
    values = [RemoteValue(None, life, handle, 8 * handle) for handle in (1, 2)]
    kept = [types.SimpleNamespace(value=value) for value in values]
    message = types.SimpleNamespace(
        life=life, order=order, kept=kept, known=types.SimpleNamespace(number=5)
    )
    lives = {}
    recorder.Recorder._rehome(types.SimpleNamespace(lives=lives), message)
    if order < 7:
        assert message.life is life and not lives
        return
    anew = lives[3]
    assert message.life is anew and {value.life for value in values} == {anew}
    assert anew.nbytes == 24 and anew.told == {5} and life.nbytes == 0


def test_gradients_that_were_taken_before_a_failure_is_heard_of_are_computed_after_it(where):
    x, weight = (gt.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
    squares = x * x
    total = (squares * weight * weight).sum()
    wrong = gt.take(x.detach(), gt.tensor([1, 9]))
    current.recorder().send()  # and nobody waits for it
    del squares
    total.backward()
    assert x.grad.tolist() == [2, 16, 54]
    assert weight.grad.tolist() == [2, 16, 54]
    assert total.item() == 98
    with pytest.raises(gt.RemoteError, match="9 is out of bounds"):
        wrong.tolist()
