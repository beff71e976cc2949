"""What torch computes in one call is what its operations give one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shmgpu.engine import fusion, joint
from shmgpu.engine import plan as planning
from shmgpu.engine.backends import NumpyBackend, TorchBackend
from shmgpu.engine.compile import Pool, compiled
from shmgpu.engine.plan import Options
from shmgpu.ops import batch_normalising, normalising, windows
from shmgpu.ops import elementwise as e
from shmgpu.ops.graph import apply, leaf, spec_of
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.promotion import float32, float64

CONV = ((1, 2), (1, 0), (1, 1), 2)  # stride, padding, dilation, groups


class There:
    """Stands for an array in the arena; ``Away`` for one that the helper holds."""


class Away(There):
    pass


def given(*shapes, dtype=float32):
    return [leaf(spec_of(dtype, shape), There()) for shape in shapes]


def convolution(dtype):
    x, w = given((3, 4, 6, 5), (8, 2, 3, 2), dtype=dtype)
    g = e.mul(apply(windows.CONV2D, (x, w), CONV), 0.5)
    return [
        apply(windows.CONV2D_INPUT, (g, w), (x.spec.shape, *CONV)),
        apply(windows.CONV2D_WEIGHT, (g, x), (w.spec.shape, *CONV)),
    ]


def batch_norm(dtype):
    x, g, w = given((5, 3, 4), (5, 3, 4), (3,), dtype=dtype)
    moments = apply(batch_normalising.BATCH_MOMENTS, (x,))
    return [
        apply(batch_normalising.BATCH_NORM_INPUT, (g, x, w, moments), (1e-5,)),
        apply(batch_normalising.BATCH_NORM_SUMS, (g, x, moments), (1e-5,)),
    ]


def layer_norm(dtype):
    x, w, b = given((5, 3, 4), (3, 4), (3, 4), dtype=dtype)
    params = (2, 1e-5)
    out = apply(normalising.LAYER_NORM, (x, w, b), params)
    g, moments = e.mul(out, 0.5), apply(normalising.MOMENTS, (x,), params)
    return [
        out,
        apply(normalising.LAYER_NORM_INPUT, (g, x, w, moments), params),
        apply(normalising.LAYER_NORM_WEIGHT, (g, x, w, moments), params),
    ]


def program_of(results, read):
    found, stack = set(), list(results)
    while stack:
        node = stack.pop()
        if node.op is not None and node not in found:
            found.add(node)
            stack += node.inputs
    order = sorted(found, key=lambda node: node.number)
    kept = [node for node in results if node not in read]
    return ProgramDraft(order, read, Away).settled(kept, []).program(Away)


def results_of(program, backend, options):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in program.arrays]
    if backend.name == "torch":
        arrays = [torch.from_numpy(one) for one in arrays]
    made = compiled(program, backend, Pool(backend), options)
    with backend.running():
        read, kept = made.run(arrays, [0.5] * len(program.numbers))
        kept = kept if made.rest is None else made.rest(kept)
    return [np.asarray(one) for one in (*read, *kept)]


@pytest.mark.parametrize(("make", "count"), [(convolution, 1), (batch_norm, 1), (layer_norm, 2)])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_they_are_what_they_are_alone_and_on_numpy(make, count, dtype):
    results = make(dtype)
    program = program_of(results, results[:1])
    plan = planning.make(program, Options(), fusion.groups, joints=joint.JOINTS)
    assert sum(unit.joint is not None for unit in plan.units) == count
    assert not any(u.joint for u in planning.make(program, Options(), fusion.groups).units)
    torches = TorchBackend("cpu")
    want = results_of(program, torches, Options(reuse_results=False))
    for got, one, other in zip(
        results_of(program, torches, Options()),
        want,
        results_of(program, NumpyBackend(), Options()),
        strict=True,
    ):
        np.testing.assert_allclose(got, one, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got, other, rtol=1e-4, atol=1e-4)


def test_what_needs_the_other_comes_after_it():
    """A gradient by a weight that was changed by that very weight's gradient."""
    g, x, w = given((3, 4, 5, 5), (3, 4, 5, 5), (4, 4, 1, 1))
    params = ((1, 1), (0, 0), (1, 1), 1)
    to_weight = apply(windows.CONV2D_WEIGHT, (g, x), (w.spec.shape, *params))
    changed = e.sub(w, to_weight)
    to_input = apply(windows.CONV2D_INPUT, (g, changed), (x.spec.shape, *params))
    program = program_of([to_weight, to_input], [])
    plan = planning.make(program, Options(), fusion.groups, joints=joint.JOINTS)
    assert not any(unit.joint for unit in plan.units)


def test_no_loop_waits_for_what_waits_for_it():
    """Of a chain the first half is needed by one of the two, and the second needs the other."""
    params = ((1, 1), (0, 0), (1, 1), 1)
    g, x, w = given((2, 16, 4, 4), (2, 16, 5, 5), (16, 16, 2, 2))
    half = e.neg(e.add(w, w))
    to_input = apply(windows.CONV2D_INPUT, (g, half), (x.spec.shape, *params))
    to_weight = apply(windows.CONV2D_WEIGHT, (g, x), (w.spec.shape, *params))
    rest = e.mul(e.add(to_weight, w), half)
    program = program_of([to_input, rest], [])
    plan = planning.make(program, Options(), fusion.groups, joints=joint.JOINTS)
    assert [unit.slots for unit in plan.units] == [(3, 4), (5, 6), (7, 8)]
    assert plan.units[1].joint is not None
