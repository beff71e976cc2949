"""What only one program of a training loop needs is given to it for good, step by step.

References tell, so one of ours too many would end it: weights would be written anew in every step,
and no test of values would see it. Each message is answered before the next is made. Where several
are under way, what earlier ones refer to is not given away, and which these are is chance.
"""

from __future__ import annotations

import numpy as np
import pytest
from attach.brokers import until

import shmgpu as gt
from shmgpu import core, nn, optim
from shmgpu.ops.program import ProgramDraft
from shmgpu.tensors import current
from shmgpu.tensors.message import RemoteValue
from shmgpu.tensors.recorder import Recorder
from shmgpu.tensors.walks import outlived

SIDE, BATCH, STEPS = 96, 64, 24  # a part of such products is worth a helper of its own
OPTIMISERS = {  # and how many tensors each parameter has, with itself
    "SGD": (lambda ps: optim.SGD(ps, lr=0.01), 1),
    "momentum": (lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9), 2),
    "Adam": (lambda ps: optim.Adam(ps, lr=0.01), 3),
}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)

    def forward(self, x):
        h = gt.zeros(BATCH, SIDE)
        for _ in range(3):
            h = (self.inner(x) + self.outer(h)).tanh()
        return h


def layers():
    return nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, SIDE))


@pytest.fixture
def sent(monkeypatch):
    """Of each message in turn: its helper, its program, and how much it is given for good."""
    told, deliver, compute = [], Recorder._deliver, Recorder._compute

    def seen(self, message, wait):
        told.append((message.life.number, message.known.number, len(message.donated)))
        return deliver(self, message, wait)

    def answered(self, read, wait):
        self._settle(0)
        compute(self, read, wait)

    monkeypatch.setattr(Recorder, "_deliver", seen)
    monkeypatch.setattr(Recorder, "_compute", answered)
    monkeypatch.setattr(current, "_in_turn", False)
    return told


def is_idle(helper):
    row = core.helper_stats(helper)
    return not row["in_flight"] and not row["goes_on"]


def on_two_helpers():
    """Two nets, each with the helper that holds less."""
    until(lambda: all(map(is_idle, range(2))), "both helpers are idle")
    nets = []
    for make in (layers, Recurrent):
        nets.append(make())
        current.recorder().send()
    return nets


def train(optimiser, nets, reads, kind):
    """A loop over nets that have nothing to do with each other."""
    data = np.random.default_rng(0).standard_normal((BATCH, SIDE)).astype("float32")
    made = [optimiser([*net.parameters()]) for net in nets]
    for net in nets:
        for one in net.parameters() if kind == "hooked" else ():
            one.register_hook(lambda g: g * 0.5)
    pairs = [*zip(nets, made, strict=True)]
    if kind == "zeros":  # two steps of a net in one message: the second replaces what is not there
        pairs = [pairs[0], pairs[0], pairs[1], pairs[1]]
    for _ in range(STEPS):
        for net, one in pairs:
            loss = nn.mse_loss(net(gt.tensor(data)), gt.tensor(data))
            one.zero_grad(set_to_none=kind != "zeros")
            loss.backward()
            one.step()
            if reads:
                loss.item()


@pytest.mark.parametrize("kind", ["plain", "hooked", "zeros"])
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_loop_on_two_helpers_gives_each_step_all_that_the_next_does_not_need(
    sent, name, reads, kind
):
    make, tensors = OPTIMISERS[name]
    with gt.init(helpers=2, devices="cpu", arena="32MiB"):
        train(make, on_two_helpers(), reads, kind)
    steady = sent[-10:]
    # Every message changes a net, and each of the two has 4 parameters.
    assert {given for _, _, given in steady} == {4 * tensors}
    assert {helper for helper, _, _ in steady} == {0, 1}
    assert len({program for _, program, _ in steady}) == 2


@pytest.mark.parametrize("held", [False, True])
def test_what_an_operation_replaced_in_place_is_nobody_s_and_there_again_if_it_fails(engine, held):
    with gt.no_grad():
        state = gt.ones(4) * 2
        assert state.tolist() == [2] * 4  # and the engine holds it
        state += 1
        seen = state * 10
        alias = state.detach()
        hand = alias._node if held else None
        alias.zero_()  # both show zeros; what they showed is gone back to if these fail
        state = alias
        del alias
        wrong = gt.take(gt.ones(3), gt.tensor([9]))
        state += wrong.sum() * 0
        current.recorder().forget_unshown()
        order = current.recorder().waiting()
        draft = ProgramDraft(order, [], RemoteValue)
        kept = [one.op.name for one in outlived(draft)[0]]
        assert kept == (["add"] if held else [])  # of which the alias is made
        del draft, order
        current.recorder().send()
        assert seen.tolist() == [30] * 4
        assert state.tolist() == [0] * 4
        with pytest.raises(gt.RemoteError, match="9 is out of bounds"):
            wrong.tolist()
        if held:
            assert gt.Tensor(hand).tolist() == [3] * 4
