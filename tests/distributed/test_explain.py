"""A plan in words: placements, meetings, bytes, and what would have been the next best."""

from __future__ import annotations

import numpy as np
from distributed.members import check, hold, lies, mesh_of, recorded

import shmgpu.tensors.tensor as st
from shmgpu.distributed.explaining import explain


def perceptron():
    x = st.tensor(np.ones((8, 6), "f4"))
    w1, w2 = (hold(st.tensor(np.ones(shape, "f4"))) for shape in ((6, 10), (10, 4)))
    return recorded(read=[(x @ w1).relu() @ w2])


def explained(mesh, *words):
    case = perceptron()
    lowered, outcome = check(case, mesh, [lies(mesh, one) for one in words])
    return explain(case.program, lowered), outcome


def test_each_operation_stands_with_its_placements_and_what_it_meets_for():
    mesh = mesh_of(2, 2, names=("data", "tensor"))
    plan, outcome = explained(mesh, "0 R", "R 1", "R 0")
    assert str(plan).splitlines() == [
        "3 operations on a mesh of 2 x 2 (data, tensor): 1 collective, 64 bytes that a member "
        "takes from others",
        "  %3 = matmul(%0 (S(0), R), %1 (R, S(1))) -> (S(0), S(1))   float32 (8, 10)",
        "  %4 = relu(%3 (S(0), S(1))) -> (S(0), S(1))   float32 (8, 10)",
        "  %5 = matmul(%4 (S(0), S(1)), %2 (R, S(0))) -> (S(0), P(sum))   float32 (8, 4)",
        "  for what is kept or looked at",
        "      #0 all_reduce along tensor of (4, 4), 64 bytes",
    ]
    assert outcome.moved == [64] * 4
    assert plan.nbytes == (64,) * 4


def test_the_next_best_way_is_named_where_it_costs_more():
    plan, _ = explained(mesh_of(2), "0", "R", "0")
    (other,) = [one for step in plan.steps for one in step.runners_up if one.more >= 1][:1]
    assert f"or {other.placement} along axis 0: {other.more:,.0f} more" in str(plan)


def test_totals_are_those_of_the_collectives():
    plan, outcome = explained(mesh_of(3), "0", "0", "1")
    assert plan.nbytes == tuple(outcome.moved)
    met = {one.number: one for step in plan.steps for one in step.collectives}
    met |= {one.number: one for one in plan.ending}
    for rank in range(3):
        assert sum(one.nbytes[rank] for one in met.values()) == outcome.moved[rank]


def test_a_mesh_of_one_meets_nobody():
    plan, _ = explained(mesh_of(1), "0", "1", "0")
    assert "0 collectives, 0 bytes" in str(plan)
    assert "or " not in str(plan).replace("for ", "")
