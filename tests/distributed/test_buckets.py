"""Collectives as few and as early as can be: what goes together, what waits for what."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.members import check, hold, lies, lower, mesh_of, recorded
from distributed.test_forms import Layers

import shmgpu.tensors.tensor as st
from shmgpu.ops import collective

RNG = np.random.default_rng(13)


def whole(*shape, dtype="f4"):
    return RNG.integers(-3, 4, shape).astype(dtype)


def resident(*shape, dtype="f4"):
    return hold(st.tensor(whole(*shape, dtype=dtype)))


@pytest.fixture(params=[2, 3])
def mesh(request):
    return mesh_of(request.param)


def sums(count, rows=12, wide=25, dtype="f4"):
    """So many partial sums of 100 or 200 bytes."""
    return [resident(rows, wide, dtype=dtype).sum(0) for _ in range(count)]


def lowered_of(mesh, outs, **how):
    case = recorded(kept=outs)
    wanted = {slot: lies(mesh, "R") for slot in case.program.kept}
    lie = [lies(mesh, "0")] * len(case.program.arrays)
    lowered, _ = check(case, mesh, lie, wanted, exact=True, **how)
    return lowered


def test_what_is_reduced_alike_is_reduced_as_one(mesh):
    lowered = lowered_of(mesh, sums(7))
    assert [(one.kind, one.shapes[0]) for one in lowered.collectives] == [
        ("all_reduce_many", (175,))
    ]
    assert len(lowered.collectives[0].steps) == 7


def test_a_bucket_holds_so_many_bytes(mesh):
    lowered = lowered_of(mesh, sums(7), bucket_bytes=250)
    assert [one.shapes[0] for one in lowered.collectives] == [(50,), (50,), (50,), (25,)]
    assert len(lowered_of(mesh, sums(7), bucket_bytes=0).collectives) == 7
    # What is greater than a bucket has one of its own.
    lowered = lowered_of(mesh, [*sums(1), *sums(1, wide=100), *sums(1)], bucket_bytes=250)
    assert sorted(one.shapes[0] for one in lowered.collectives) == [(25,), (25,), (100,)]


def test_types_and_kinds_have_buckets_of_their_own(mesh):
    x = resident(12, 25)
    outs = [*sums(2), *sums(2, dtype="f8"), x.amax(0), resident(12, 25).amax(0)]
    lowered = lowered_of(mesh, outs)
    assert len(lowered.collectives) == 3


def test_who_needs_another_s_outcome_goes_with_a_later_one(mesh):
    first = resident(12, 6).sum(0)
    second = (resident(12, 6) * (first * first)).sum(0)
    third = resident(12, 6).sum(0)
    lowered = lowered_of(mesh, [first, second, third])
    assert len(lowered.collectives) == 2
    assert [one.number for one in lowered.collectives] == [0, 1]


def test_chains_that_cross_make_no_circle(mesh):
    """Each needs the other's first half: two buckets at least, and in an order."""
    a, b = resident(12, 6).sum(0), resident(12, 6).amax(0)
    c = (resident(12, 6) * (b * b)).sum(0)
    d = (resident(12, 6) * (a * a)).amax(0)
    lowered = lowered_of(mesh, [a, b, c, d])
    assert len(lowered.collectives) in (3, 4)


def steps_of(lowered):
    return [step.op for step in lowered.programs[0].steps]


def test_halves_stand_apart(mesh):
    """A collective begins where its input is there, and ends where its outcome is used."""
    total = resident(12, 6).sum(0)
    other = (resident(6, 6) @ resident(6, 6)).exp()
    case = recorded(kept=[(total * total) * other])
    lie = [lies(mesh, "0"), None, None]
    lowered, _ = check(case, mesh, lie, tolerance=1e-4, overlap=True)
    ops = [op.name for op in steps_of(lowered)]
    assert ops.index("start") < ops.index("matmul") < ops.index("exp") < ops.index("wait")
    assert ops[ops.index("wait") + 1] == "mul"
    assert len(lowered.collectives) == 1
    assert lowered.collectives[0].kind == "all_reduce"


def test_one_layer_s_weights_are_gathered_while_the_one_before_is_at_work(mesh):
    net = Layers(mesh, 4)
    case = recorded(read=[net.forward()])
    lie = [lies(mesh, "0")] * len(case.program.arrays)
    lowered, _ = check(case, mesh, lie, exact=True, overlap=True)
    begun, most = 0, 0
    order = []
    for op in steps_of(lowered):
        begun += (op is collective.START) - (op is collective.WAIT)
        most = max(most, begun)
        if op.name in ("start", "wait", "matmul"):
            order.append(op.name)
    assert most == 1
    assert order == [
        "start", "wait", "start", "matmul", "wait", "start", "matmul", "wait", "start", "matmul",
        "wait", "matmul",
    ]  # fmt: skip


def test_every_beginning_has_its_end(mesh):
    net = Layers(mesh, 3)
    y = net.forward()
    parameters = [one for layer in net.layers for one in layer]
    gradients = st.grad([(y * y).sum()], parameters)
    case = recorded(kept=gradients)
    lie = [lies(mesh, "0")] * len(case.program.arrays)
    lowered = lower(case.program, mesh, lie, overlap=True, bucket_bytes=64)
    ops = steps_of(lowered)
    assert ops.count(collective.START) == ops.count(collective.WAIT) == len(lowered.collectives)
    numbers = [step.params[1] for step in lowered.programs[0].steps if step.op is collective.START]
    assert numbers == [*range(len(numbers))]
