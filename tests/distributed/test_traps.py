"""What is known to go wrong when operations are done on pieces: each has a test of its own."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.members import check, hold, lies, lower, mesh_of, recorded, run_lowered
from tensors.samples import OURS

import shmgpu.tensors.tensor as st
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.placements import Partial, Shard
from shmgpu.distributed.rules import RULES
from shmgpu.distributed.rules.base import options_of
from shmgpu.ops import TABLE, redistribution
from shmgpu.ops.graph import spec_of
from shmgpu.ops.promotion import bool_, float32, int64

RNG = np.random.default_rng(7)
F = OURS


def whole(*shape):
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-4, 5, shape).astype("f4")


def resident(array, **options):
    return hold(st.tensor(array, **options))


def asked(tensor, layout):
    return st.Tensor(redistribution.redistribute(tensor._node, layout))


@pytest.fixture(params=[2, 3, 4])
def mesh(request):
    return mesh_of(request.param)


# ---- what is partial -------------------------------------------------------------------------

BENT = {
    "relu": lambda x: F.relu(x),
    "abs": lambda x: F.abs(x),
    "exp": lambda x: F.exp(x * 0.1),
    "square": lambda x: x * x,
    "clamp": lambda x: F.clamp(x, -1.0, 1.0),
    "maximum": lambda x: F.maximum(x, x * 0.5),
    "amax": lambda x: F.amax(x, 0),
    "argmax": lambda x: F.argmax(x, 0),
    "prod": lambda x: F.prod(x * 0.25, 1),
    "softmax": lambda x: F.softmax(x, 1),
    "sort": lambda x: F.sort(x, 0)[0],
    "compared": lambda x: x > 0.5,
    "rounded": lambda x: F.round(x * 0.25),
    "plus one": lambda x: x + 1.0,
    "one less": lambda x: 1.0 - x,
    "halved type": lambda x: x.to("float16"),
    "whole type": lambda x: x.to("int64"),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "any": lambda x: F.any(x > 1, 0),
}


@pytest.mark.table
@pytest.mark.parametrize("way", BENT)
def test_what_bends_takes_no_part_of_a_sum(mesh, way):
    x, w = resident(whole(4, 12)), resident(whole(12, 6))
    y = BENT[way](x @ w)  # which is partial, as its inputs are cut along what is summed over
    case = recorded(read=[y])
    lowered, _ = check(case, mesh, [lies(mesh, "1"), lies(mesh, "0")], tolerance=1e-5)
    assert [one.kind for one in lowered.collectives]


def test_a_number_added_to_a_partial_sum_counts_once(mesh):
    x, w = resident(whole(4, 12)), resident(whole(12, 6))
    bias, one = resident(whole(6)), st.tensor(np.float32(1.0))
    for add in (lambda y: y + 1.0, lambda y: y + bias, lambda y: one + y, lambda y: y - bias):
        case = recorded(read=[add(x @ w)])
        said = [lies(mesh, "1"), lies(mesh, "0"), lies(mesh, "R")]
        check(case, mesh, said[: len(case.program.arrays)], exact=True)


@pytest.mark.parametrize("layer", ["linear", "conv2d"])
def test_a_bias_counts_once_and_costs_no_meeting_of_its_own(mesh, layer):
    if layer == "linear":
        x, w, bias = (resident(whole(*s)) for s in ((5, 12), (6, 12), (6,)))
        y, said = F.linear(x, w, bias), ("1", "1", "R")
    else:
        x, w, bias = (resident(whole(*s)) for s in ((2, 12, 5, 5), (6, 12, 3, 3), (6,)))
        y, said = F.conv2d(x, w, bias), ("1", "1", "R")
    case = recorded(read=[y])
    _, outcome = check(case, mesh, [lies(mesh, one) for one in said], exact=True)
    assert outcome.calls == {"all_reduce": 1}


def test_a_bias_is_added_everywhere_where_parts_are_averaged(mesh):
    x, w, bias = (resident(whole(*s)) for s in ((5, 12), (6, 12), (6,)))
    case = recorded(read=[F.linear(x, w, bias) * mesh.size])
    said = [lies(mesh, one) for one in ("A", "R", "R")]
    check(case, mesh, said, tolerance=1e-5)


def test_sums_of_partial_sums_wait_for_one_meeting(mesh):
    x = resident(whole(4, 12))
    u, v, w = (resident(whole(12, 6)) for _ in range(3))
    y = (x @ u) * 2.0 - (x @ v) + F.neg(x @ w).reshape(6, 4).transpose(0, 1)
    case = recorded(read=[y.sum(0)])
    said = [lies(mesh, one) for one in ("1", "0", "0", "0")]
    _, outcome = check(case, mesh, said, exact=True)
    assert outcome.calls == {"all_reduce": 1}


def test_no_rule_adds_what_is_partial_to_what_is_whole():
    x, number = spec_of(float32, (4, 4)), spec_of(float32, ())
    for name in ("add", "sub", "add_scaled", "where", "maximum", "slice_add", "cat"):
        row = TABLE[name]
        given = {
            "add_scaled": (x, x, number),
            "where": (spec_of(bool_, (4, 4)), x, x),
        }.get(name, (x, x))
        params = {"slice_add": ((4, 4), (0, 0), (4, 4), (1, 1)), "cat": (0,)}.get(name, ())
        for option in options_of(RULES[row], given, params, row.rule(given, params)):
            summed = [
                code
                for spec, code in zip(given, option.inputs, strict=True)
                if spec is x and code < 0
            ]
            assert len(summed) in (0, sum(spec is x for spec in given)), (name, option)


def test_a_maximum_of_maxima_is_one_but_no_sum_of_them(mesh):
    x = resident(whole(12, 6))
    case = recorded(read=[F.amax(F.amax(x, 0, True), 1), F.amax(x, 0).sum()])
    lowered, _ = check(case, mesh, [lies(mesh, "0")], exact=True)
    assert {one.kind for one in lowered.collectives} <= {"all_reduce", "all_reduce_many"}
    kept = Layout(mesh, [Partial("max")])
    x = resident(whole(12, 6))
    case = recorded(read=[(x + 1.0).sum()])
    check(case, mesh, [kept], exact=True)


# ---- means -----------------------------------------------------------------------------------

MEANS = {
    "mean": lambda x, y: x.mean(),
    "mean of an axis": lambda x, y: x.mean(0),
    "var": lambda x, y: x.var(0),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "batch_norm": lambda x, y: F.nn.functional.batch_norm(x, None, None, None, None, True),
    "cross_entropy": lambda x, y: F.cross_entropy(x, st.tensor(np.arange(7) % 8)),
    "ignored": lambda x, y: F.cross_entropy(
        x, st.tensor(np.array([1, 1, 1, 1, 0, 2, 3])), ignore_index=1
    ),
    "smooth": lambda x, y: F.nn.functional.smooth_l1_loss(x, y),
    "group_norm": lambda x, y: F.nn.functional.group_norm(x, 2),
}


@pytest.mark.parametrize("way", MEANS)
def test_means_over_uneven_pieces_are_of_all_elements(mesh, way):
    """Seven rows: pieces are of four and three, of three, two and two, and of 2, 2, 2 and 1."""
    x, y = (resident(RNG.standard_normal((7, 8)), requires_grad=True) for _ in range(2))
    out = MEANS[way](x, y)
    gradients = st.grad([out.sum() if out.ndim else out], [x, y], allow_unused=True)
    case = recorded(read=[out], kept=[one for one in gradients if one is not None])
    check(case, mesh, [lies(mesh, "0")] * len(case.program.arrays), tolerance=1e-10)


def test_a_member_without_a_row_changes_nothing():
    mesh = mesh_of(4)
    x, y = (resident(whole(2, 3), requires_grad=True) for _ in range(2))
    outs = [x.mean(), F.amax(x, 0), F.mse_loss(x, y), F.amin(x), F.prod(x, 0), (x @ y.T).sum()]
    gradients = st.grad([outs[0], outs[2], outs[5]], [x, y])
    case = recorded(read=outs, kept=[*gradients, F.all(x > -9, 0), F.any(x > 9, 0)])
    check(case, mesh, [lies(mesh, "0")] * 2, tolerance=1e-6)


# ---- shapes ----------------------------------------------------------------------------------


def test_values_are_right_where_shapes_alone_would_be(mesh):
    """A square: pieces of another axis would have the same shapes."""
    size = mesh.size * 2
    x, w = resident(whole(size, size)), resident(whole(size, size))
    for said in ("0 0", "0 1", "1 0", "1 1"):
        case = recorded(read=[x @ w, x.T + w, (x @ w).T, x.reshape(-1, 2) * 2.0])
        a, b = (lies(mesh, one) for one in said.split())
        check(case, mesh, [a, b], exact=True)


SHAPES = [
    ((6, 4), (24,)),
    ((24,), (6, 4)),
    ((6, 4), (8, 3)),
    ((6, 4), (4, 6)),
    ((5, 3), (15,)),
    ((15,), (3, 5)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((12,), (2, 1, 6)),
    ((1, 7), (7, 1)),
    ((4, 1, 6), (2, 2, 3, 2)),
]


@pytest.mark.table
@pytest.mark.parametrize(("have", "want"), SHAPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_reshape_across_the_border_of_pieces_works(mesh, have, want, dim):
    x = resident(whole(*have))
    y = x.reshape(*want) * 1.0
    case = recorded(kept=[y])
    for kept in range(len(want)):
        wanted = {case.slot(y): lies(mesh, str(kept))}
        check(case, mesh, [lies(mesh, str(min(dim, len(have) - 1)))], wanted, exact=True)


def test_a_reshape_along_the_border_of_pieces_moves_nothing(mesh):
    x = resident(whole(mesh.size * 2, 4, 3))
    case = recorded(kept=[x.reshape(-1, 3) + 0.0, x.reshape(2 * mesh.size, 12) + 0.0])
    lowered, _ = check(case, mesh, [lies(mesh, "0")], exact=True)
    assert not lowered.collectives
    assert lowered.kept == (lies(mesh, "0"),) * 2


CUT = {
    "front": np.s_[:5],
    "back": np.s_[3:],
    "middle": np.s_[2:9],
    "every other": np.s_[::2],
    "every third from the second": np.s_[1::3],
    "one": np.s_[4:5],
    "none": np.s_[4:4],
    "turned": np.s_[::-1],
    "turned middle": np.s_[9:2:-2],
}


@pytest.mark.parametrize("way", CUT)
def test_a_slice_of_a_cut_axis_stays_where_it_lies(mesh, way):
    x = resident(whole(11, 3), requires_grad=True)
    y = x[CUT[way]]
    (g,) = st.grad([(y * y).sum()], [x])
    case = recorded(kept=[y * 2.0, g])
    wanted = {case.slot(g): lies(mesh, "0")}
    lowered, _ = check(case, mesh, [lies(mesh, "0")], wanted, exact=True)
    if "turned" not in way:
        assert not lowered.collectives
        assert lowered.kept[0].is_replicated is (way == "none") or lowered.kept[0].sharded == (0,)


def test_neighbours_on_a_cut_axis_meet_only_at_the_borders(mesh):
    x = resident(whole(60, 4))
    case = recorded(kept=[x[1:] - x[:-1]])
    lowered, _ = check(case, mesh, [lies(mesh, "0")], exact=True)
    assert [one.kind for one in lowered.collectives] == ["realign"]
    assert max(lowered.nbytes) <= (mesh.size - 1) * 4 * 4  # a few rows at most


def test_cuts_that_are_not_even_meet_others(mesh):
    x, y = resident(whole(9, 4)), resident(whole(9, 4))
    odd = Layout(mesh, [Shard(0)], [(0, (0, *range(1, mesh.size), 9))])
    case = recorded(read=[(x * y).sum(1), x @ y.T])
    check(case, mesh, [odd, lies(mesh, "0")], exact=True)


# ---- the rest --------------------------------------------------------------------------------


def test_random_numbers_are_the_same_cut_or_not(mesh):
    x = resident(whole(9, 6))
    for made in (F.dropout(x, 0.5), x + F.randn(9, 6), x * F.rand(9, 6)):
        case = recorded(read=[made])
        for said in ("R", "0", "1"):
            check(case, mesh, [lies(mesh, said)], exact=True)


def test_an_index_that_leads_nowhere_is_refused_wherever_the_table_lies(mesh):
    table = resident(whole(7, 4))
    for wrong in (7, -1, 100, -50):
        index = st.tensor(np.array([0, wrong, 3]))
        for look in (
            lambda index: F.embedding(index, table),
            lambda index: F.gather(table, 0, index.reshape(3, 1)),
            lambda index: F.cross_entropy(table.T[:3], index),
        ):
            case = recorded(read=[look(index)])
            for said in ("R", "0", "1"):
                lie = [lies(mesh, said) if one else None for one in case.program.resident]
                with pytest.raises(IndexError):
                    run_lowered(lower(case.program, mesh, lie), case)


def test_signs_of_zeros_and_what_is_not_finite_pass_masks_and_gathers(mesh):
    table = np.array([[-0.0, np.inf], [np.nan, -np.inf], [1.0, -0.0], [0.0, 2.0]], "f4")
    x, index = resident(table), st.tensor(np.array([2, 0, 1, 3, 0]))
    case = recorded(read=[F.embedding(index, x), x * 1.0, F.amax(x, 0)])
    lowered = lower(case.program, mesh, [None, lies(mesh, "0")])
    got = run_lowered(lowered, case).read
    for one, want in zip(got, (table[[2, 0, 1, 3, 0]], table, table.max(0)), strict=True):
        np.testing.assert_array_equal(one, want)
        np.testing.assert_array_equal(np.signbit(one), np.signbit(want))


def test_whole_numbers_and_bools_are_reduced_as_what_they_are(mesh):
    x = hold(st.tensor(RNG.integers(-100, 100, (9, 4))))
    flags = hold(st.tensor(RNG.random((9, 4)) < 0.4))
    outs = [x.sum(0), F.amax(x, 0), F.amin(x), F.prod(x[:3], 0), F.any(flags, 0), F.all(flags)]
    outs += [F.gather(flags, 0, st.tensor(np.array([[0, 3, 8, 2]]))), flags.sum()]
    case = recorded(read=outs)
    lie = [lies(mesh, "0") if one else None for one in case.program.resident]
    check(case, mesh, lie, exact=True)
    assert case.program.specs[case.program.read[0]].dtype is int64


def test_a_tensor_on_another_mesh_is_refused(mesh):
    x = resident(whole(4, 4))
    other = mesh_of(5)
    with pytest.raises(ValueError, match="have all of its tensors on one mesh"):
        lower(recorded(read=[x + 1.0]).program, mesh, [lies(other, "R")])
    with pytest.raises(ValueError, match="1 arrays, and 2 layouts"):
        lower(recorded(read=[x + 1.0]).program, mesh, [None, None])
    with pytest.raises(ValueError, match="an axis that a tensor of"):
        lower(recorded(read=[x + 1.0]).program, mesh, [lies(mesh, "2")])
    with pytest.raises(ValueError, match="no tensor of the program"):
        lower(recorded(read=[x + 1.0]).program, mesh, [None], {1: lies(mesh, "R")})
