"""Pieces as tensors of each member's own: what is done between to_local and from_local."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.members import check, hold, lies, lower, mesh_of, recorded
from tensors.samples import OURS

import shmgpu.tensors.tensor as st
from shmgpu.ops import redistribution

RNG = np.random.default_rng(17)
F = OURS


def whole(*shape):
    return RNG.integers(-3, 4, shape).astype("f4")


def resident(*shape, **options):
    return hold(st.tensor(whole(*shape), **options))


def local(tensor, layout, *gradient):
    return st.Tensor(redistribution.to_local(tensor._node, layout, *gradient))


def joined(tensor, layout, shape, *gradient):
    return st.Tensor(redistribution.from_local(tensor._node, layout, shape, *gradient))


def run_local(outs, mesh, leaves):
    """What members make; on one helper such a program means something else."""
    from distributed.members import run_lowered

    case = recorded(read=outs)
    return run_lowered(lower(case.program, mesh, leaves), case).read


@pytest.fixture(params=[2, 3])
def mesh(request):
    return mesh_of(request.param)


def test_each_member_does_what_is_between_with_its_own_piece(mesh):
    x = resident(6, 4)
    rows = lies(mesh, "0")
    piece = local(x, rows)
    assert piece.shape == (6 // mesh.size, 4)
    y = joined(piece - piece.sum(0), rows, (6, 4))
    (got,) = run_local([y * 1.0], mesh, [rows])
    pieces = x._node.value.array.reshape(mesh.size, -1, 4)
    want = pieces - pieces.sum(1, keepdims=True)
    np.testing.assert_array_equal(got, want.reshape(6, 4))


def test_pieces_are_parts_of_a_sum_where_that_is_said(mesh):
    x = resident(6, 4)
    rows, parts = lies(mesh, "0"), lies(mesh, "P")
    total = joined(local(x, rows).sum(0), parts, (4,))
    (got,) = run_local([F.relu(total)], mesh, [rows])
    np.testing.assert_array_equal(got, np.maximum(x._node.value.array.sum(0), 0))


def test_gradients_go_back_the_same_way(mesh):
    rows = lies(mesh, "0")
    x = resident(6, 4, requires_grad=True)
    y = joined(local(x, rows) * 3.0, rows, (6, 4))
    (g,) = st.grad([(y * y).sum()], [x])
    (got,) = run_local([g], mesh, [rows])
    np.testing.assert_array_equal(got, 18 * x._node.value.array)


def test_weights_that_all_have_collect_parts_of_their_gradient(mesh):
    """A weight is whole with each; what each has of its gradient is summed where that is said."""
    rows, everywhere, parts = lies(mesh, "0"), lies(mesh, "R"), lies(mesh, "P")
    x, w = resident(6, 4), resident(4, 5, requires_grad=True)
    y = joined(local(x, rows) @ local(w, everywhere, parts), rows, (6, 5))
    (g,) = st.grad([y.sum()], [w])
    (got,) = run_local([g], mesh, [rows])
    want = np.repeat(x._node.value.array.sum(0)[:, None], 5, 1)
    np.testing.assert_array_equal(got, want)


def test_members_own_values_meet_what_all_have(mesh):
    rows = lies(mesh, "0")
    x, bias = resident(6, 4), resident(4)
    y = joined(local(x, rows) + bias, rows, (6, 4))
    (got,) = run_local([y * 1.0], mesh, [rows, lies(mesh, "0")])  # which is gathered first
    np.testing.assert_array_equal(got, x._node.value.array + bias._node.value.array)


def test_pieces_of_several_shapes_are_refused(mesh):
    x = resident(7, 4)
    with pytest.raises(ValueError, match="cut it evenly"):
        local(x, lies(mesh, "0"))
    with pytest.raises(ValueError, match=r"do not make \(9, 4\)"):
        joined(resident(2, 4), lies(mesh, "0"), (9, 4))


def test_what_is_each_member_s_own_is_not_shown(mesh):
    x = resident(6, 4)
    case = recorded(read=[local(x, lies(mesh, "0")) * 2.0])
    with pytest.raises(ValueError, match="each helper's own"):
        lower(case.program, mesh, [lies(mesh, "0")])


def test_over_two_axes_a_piece_is_a_member_s():
    mesh = mesh_of(2, 2)
    both = lies(mesh, "0 1")
    x = resident(4, 6)
    y = joined(local(x, both).T, lies(mesh, "1 0"), (6, 4))
    (got,) = run_local([y * 1.0], mesh, [both])
    np.testing.assert_array_equal(got, x._node.value.array.T)


def test_a_mesh_of_one_does_what_one_helper_does():
    mesh = mesh_of(1)
    x = resident(6, 4)
    rows = lies(mesh, "0")
    y = joined(local(x, rows) * 2.0, rows, (6, 4))
    check(recorded(read=[y + 1.0]), mesh, [rows], exact=True)
