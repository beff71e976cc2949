"""Independent parts of a recording are computed by several helpers; no weight is moved for that."""

from __future__ import annotations

import numpy as np
import pytest
from attach.brokers import until

import shmgpu as gt
from shmgpu import core, debug, nn
from shmgpu.tensors import current, spreading
from shmgpu.tensors.message import HelperIncarnation

SIDE = 128  # a product of two such squares is worth a helper of its own


@pytest.fixture
def two(monkeypatch):
    """Two helpers that have nothing to do, and what each of them runs."""
    monkeypatch.setattr(current, "_in_turn", False)  # a process that has GT's names goes by turns
    with gt.init(helpers=2, devices="cpu", arena="32MiB", debug=True):
        until(lambda: all(map(is_idle, range(2))), "both helpers are idle")
        yield
        debug.disable()


def ran(op):
    """On which helper each operation of that name ran, in order."""
    return [
        row["helper"]
        for row in debug.get_output_queue()
        if row["kind"] == "RUN" and row["call"].startswith(f"{op}(")
    ]


def is_idle(helper):
    row = core.helper_stats(helper)
    return not row["in_flight"] and not row["goes_on"]


def moves():
    return sum(row["kind"] == "MOVE" for row in debug.get_output_queue())


# ---- what is a part ------------------------------------------------------------------------------


def parts(*tensors):
    order = sorted(
        {node for one in tensors for node in ancestors(one._node)}, key=lambda node: node.number
    )
    return spreading.parts_of(order)


def ancestors(node):
    return [node, *(n for one in node.inputs for n in ancestors(one) if n.op is not None)]


def test_parts_are_what_shares_nothing_that_is_computed(engine):
    shared = gt.tensor([1.0])
    a, b = gt.zeros(3), gt.zeros(3)
    assert len(parts(a + shared, b + shared)) == 2  # an array lies where all see it
    assert len(parts(a + 1, b + 1, a + b)) == 1
    assert len(parts(a + 1, a + 2)) == 1
    chain = gt.zeros(3)
    for _ in range(300):
        chain = chain + 1
    assert [len(part.nodes) for part in parts(chain)] == [301]


def test_what_uses_one_resident_tensor_is_one_part(engine):
    weight = gt.zeros(3) + 1
    current.recorder().send()
    assert len(parts(weight + 1, weight + 2)) == 1
    assert len(parts(weight + 1, gt.zeros(3))) == 2


def test_work_is_estimated_from_shapes(engine):
    for made, work in (
        (gt.zeros(4, 5), 20),
        (gt.zeros(4, 5) @ gt.zeros(5, 6), 120),
        (nn.functional.linear(gt.zeros(4, 5), gt.zeros(6, 5)), 120),
        (gt.conv2d(gt.zeros(1, 2, 5, 5), gt.zeros(3, 2, 2, 2)), 3 * 16 * 8),
        (gt.zeros(4, 5).sum(), 1),
    ):
        assert spreading.work_of(made._node) == work


def test_parts_go_to_helpers_that_are_idle_and_hold_least(engine):
    def part():
        made = spreading.Part()
        made.nodes = [(gt.zeros(600, 600) + 1)._node]
        return made

    lives = [HelperIncarnation(number) for number in range(3)]
    lives[0].nbytes = 10
    everybody = spreading.spread([part(), part(), part()], [], lives, lambda life: True)
    assert [life.number for life, _ in everybody] == [1, 2, 0]
    free = spreading.spread([part(), part()], [], lives, lambda life: life is lives[2])
    assert [(life.number, len(found.nodes)) for life, found in free] == [(2, 2)]
    busy = spreading.spread([part(), part()], [], lives, lambda life: False)
    assert [life.number for life, _ in busy] == [1, 2]
    read = part()
    planned = spreading.spread([read, part()], read.nodes, lives, lambda life: True)
    assert planned[-1][1].nodes == read.nodes and len(planned) == 2


# ---- with helpers --------------------------------------------------------------------------------


def test_independent_products_are_computed_by_both_helpers(two):
    a, b = gt.randn(SIDE, SIDE), gt.randn(SIDE, SIDE)
    c, d = a @ a, b @ b
    total = c.sum()
    assert np.isfinite(total.item())
    assert len(set(ran("matmul"))) == 2
    np.testing.assert_allclose(d.data, b.data @ b.data, rtol=1e-3, atol=1e-3)
    assert moves() == 0 and debug.verify()


def test_what_one_result_needs_stays_together(two):
    a, b = gt.randn(SIDE, SIDE), gt.randn(SIDE, SIDE)
    assert np.isfinite(((a @ a) + (b @ b)).sum().item())
    assert len(set(ran("matmul"))) == 1 and moves() == 0


def test_small_parts_are_one_message(two):
    many = [gt.zeros(4) + number for number in range(10)]
    assert many[3].tolist() == [3] * 4
    assert {row["message"] for row in debug.get_tape()} == {1}
    assert many[7].tolist() == [7] * 4


def test_two_models_train_side_by_side_each_where_its_weights_are(two):
    models = [nn.Linear(SIDE, SIDE) for _ in range(2)]
    x = [gt.randn(SIDE, SIDE) for _ in models]
    optimisers = [gt.SGD(model.parameters(), lr=0.1) for model in models]

    def step():
        losses = []
        for model, optimiser, inputs in zip(models, optimisers, x, strict=True):
            losses.append((model(inputs) ** 2).mean())
            optimiser.zero_grad()
            losses[-1].backward()
            optimiser.step()
        return [loss.item() for loss in losses]

    first = step()
    homes = [
        {row["helper"] for row in debug.get_handles() if row["tensor"] == one.id}
        for model in models
        for one in model.parameters()
    ]
    assert sorted(homes, key=min) == [{0}, {0}, {1}, {1}] and homes[0] == homes[1]
    last = [step() for _ in range(5)][-1]
    assert all(after < before for before, after in zip(first, last, strict=True))
    assert moves() == 0 and debug.verify()


def test_values_are_those_of_one_helper(two):
    def play():
        gt.manual_seed(3)
        made = [gt.randn(SIDE, SIDE, requires_grad=True) for _ in range(5)]
        outs = [(one @ one).tanh().sum() for one in made]
        outs[1].backward()
        outs[3].backward()
        return [float(one.item()) for one in outs] + [
            float(made[place].grad.sum().item()) for place in (1, 3)
        ]

    spread = play()
    gt.shutdown()
    with gt.init(helpers=1, devices="cpu", arena="32MiB"):
        assert play() == spread


def test_a_flush_waits_for_all_parts_and_a_failure_costs_its_own(two):
    fine = gt.randn(SIDE, SIDE)
    fine = fine @ fine
    wrong = (gt.zeros(SIDE, SIDE) + 1)[gt.tensor([0, 999])] @ gt.ones(SIDE, SIDE)
    other = gt.ones(SIDE, SIDE) @ gt.ones(SIDE, SIDE)
    current.recorder().flush()
    assert not current.recorder()._sent
    with pytest.raises(gt.RemoteError, match="999"):
        _ = wrong.data
    assert other.data[0, 0] == SIDE and np.isfinite(fine.data).all()
