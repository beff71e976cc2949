"""From any layout to any other: the value stays, and what is moved is what was said."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from amount import examples
from distributed.members import check, hold, lies, mesh_of, recorded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import shmgpu.tensors.tensor as st
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.moves import MoveKind, path
from shmgpu.distributed.placements import Shard
from shmgpu.ops import redistribution

RNG = np.random.default_rng(1)
few = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=examples(400))


def moved(shape, have, want, **how):
    """A tensor that lies one way is asked for in another."""
    x = hold(st.tensor(RNG.integers(-9, 10, shape).astype("f4")))
    asked = st.Tensor(redistribution.redistribute(x._node, want))
    case = recorded(kept=[asked, asked + 1.0])
    return check(case, have.mesh, [have], exact=True, **how)


def kinds(have, want, shape=(12, 12, 12)):
    return [one.kind for one in path(have, want, shape)]


@some.composite
def layouts(draw, mesh, ndim, shape):
    """Some layout, perhaps not cut evenly."""
    words = [draw(some.sampled_from(["R", "P", *map(str, range(ndim))])) for _ in mesh.shape]
    layout = lies(mesh, " ".join(words))
    cuts = []
    for dim in layout.sharded:
        if draw(some.booleans()):
            count = mesh.count(layout.axes_of(dim)) - 1
            inner = draw(some.lists(some.integers(0, shape[dim]), min_size=count, max_size=count))
            cuts.append((dim, (0, *sorted(inner), shape[dim])))
    return Layout(mesh, layout.placements, cuts)


def try_any(data):
    mesh = mesh_of(*data.draw(some.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (2, 1, 2)])))
    shape = tuple(data.draw(some.lists(some.integers(0, 6), min_size=1, max_size=3)))
    have, want = (data.draw(layouts(mesh, len(shape), shape)) for _ in range(2))
    moved(shape, have, want, overlap=data.draw(some.booleans()))


@few
@given(some.data())
def test_a_value_is_the_same_wherever_it_lies(data):
    try_any(data)


@pytest.mark.slow
@many
@given(some.data())
def test_a_value_is_the_same_wherever_it_lies_at_length(data):
    try_any(data)


@pytest.mark.parametrize(
    ("have", "want", "steps"),
    [
        ("R", "R", []),
        ("0", "0", []),
        ("R", "1", [MoveKind.SLICE]),
        ("0", "R", [MoveKind.GATHER]),
        ("0", "1", [MoveKind.EXCHANGE]),
        ("P", "R", [MoveKind.REDUCE]),
        ("P", "1", [MoveKind.SCATTER]),
        ("R", "P", [MoveKind.FIRST]),
        ("0", "P", [MoveKind.GATHER, MoveKind.FIRST]),
        ("M", "P", [MoveKind.REDUCE, MoveKind.FIRST]),
        ("P P", "R R", [MoveKind.REDUCE]),  # once, over both axes
        ("P M", "R R", [MoveKind.REDUCE, MoveKind.REDUCE]),
        ("P R", "0 1", [MoveKind.SCATTER, MoveKind.SLICE]),
        ("P P", "0 R", [MoveKind.SCATTER, MoveKind.REDUCE]),
        ("0 0", "R R", [MoveKind.GATHER]),  # of all pieces at once
        ("0 0", "0 R", [MoveKind.GATHER]),
        (
            "0 0",
            "R 0",
            [MoveKind.GATHER, MoveKind.SLICE],
        ),  # pieces of one half do not lie side by side
        ("0 0", "0 1", [MoveKind.EXCHANGE]),
        ("0 1", "0 2", [MoveKind.EXCHANGE]),
        ("0 1", "1 0", [MoveKind.GATHER, MoveKind.GATHER, MoveKind.SLICE]),
        ("R 0", "0 R", [MoveKind.GATHER, MoveKind.SLICE]),
        ("R 0", "1 0", [MoveKind.SLICE]),
        ("0 R", "R 1", [MoveKind.SLICE, MoveKind.GATHER]),  # what is gathered is less then
        ("P 0", "R 0", [MoveKind.REDUCE]),
        ("P 0", "1 0", [MoveKind.SCATTER]),
        ("P 0", "0 0", [MoveKind.REDUCE, MoveKind.GATHER, MoveKind.SLICE]),
    ],
)
def test_the_way_is_short(have, want, steps):
    mesh = mesh_of(2, 2) if " " in have else mesh_of(2)
    assert kinds(lies(mesh, have), lies(mesh, want)) == steps


def test_other_cuts_move_only_what_changes_hands():
    mesh = mesh_of(2)
    have, want = (Layout(mesh, [Shard(0)], [(0, (0, at, 10))]) for at in (4, 6))
    lowered, outcome = moved((10, 3), have, want)
    assert [one.kind for one in lowered.collectives] == ["realign"]
    assert outcome.moved == [2 * 3 * 4, 0]  # two rows, to the first


@pytest.mark.parametrize("count", [2, 3, 4])
def test_moves_cost_what_is_said_of_them(count):
    mesh, shape = mesh_of(count), (12, 24)
    whole = 12 * 24 * 4
    for have, want, nbytes in (
        ("0", "R", whole * (count - 1) // count),
        ("P", "0", whole * (count - 1) // count),
        ("P", "R", 2 * whole * (count - 1) // count),
        ("0", "1", whole * (count - 1) // count**2),
        ("R", "0", 0),
    ):
        _, outcome = moved(shape, lies(mesh, have), lies(mesh, want))
        assert outcome.moved == [nbytes] * count
        (first, *_) = [*path(lies(mesh, have), lies(mesh, want), shape), None]
        assert first.nbytes(whole) == pytest.approx(nbytes)


def test_every_pair_of_layouts_has_a_way():
    for mesh in (mesh_of(2), mesh_of(2, 2)):
        words = [" ".join(one) for one in itertools.product("R01P", repeat=mesh.ndim)]
        for have, want in itertools.product(words, repeat=2):
            moves = path(lies(mesh, have), lies(mesh, want), (8, 8))
            at = lies(mesh, have)
            for one in moves:
                assert one.have is at
                at = one.want
            assert at is lies(mesh, want)


def test_what_is_each_helper_s_own_lies_nowhere_else():
    from shmgpu.distributed.placements import Local

    mesh = mesh_of(2)
    with pytest.raises(ValueError, match="each helper's own"):
        path(Layout(mesh, [Local()]), lies(mesh, "R"), (4,))
