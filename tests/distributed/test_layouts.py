"""Meshes, placements and layouts: who has which piece, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from distributed.members import lies, mesh_of
from hypothesis import given, settings
from hypothesis import strategies as some

from shmgpu.distributed.layout import Layout, even_bounds, layout_of, replicated
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import Partial, Replicate, Shard
from shmgpu.ops.graph import spec_of
from shmgpu.ops.promotion import float32

SHAPES = [(1,), (2,), (3,), (4,), (2, 2), (2, 3), (2, 1, 2)]


def test_equal_ones_are_one_object():
    assert Shard(1) is Shard(1)
    assert Replicate() is Replicate()
    assert Partial() is Partial("sum")
    mesh = mesh_of(2, 2)
    assert mesh is mesh_of(2, 2)
    assert lies(mesh, "0 R") is lies(mesh, "0 R")
    assert layout_of(mesh, [Shard(-1), Shard(0)], 3) is lies(mesh, "2 0")
    assert mesh is not mesh_of(2, 2, names=("a", "b"))
    even = Layout(mesh, [Shard(0), Replicate()], [(0, (0, 3, 5))])
    assert even is lies(mesh, "0 R")  # cuts that are where they would be say nothing
    assert Layout(mesh, [Shard(0), Replicate()], [(0, (0, 2, 5))]) is not even


@pytest.mark.parametrize(
    "one", [Shard(2), Shard(-1), Replicate(), Partial("max"), mesh_of(2, 2), lies(mesh_of(3), "1")]
)
def test_copies_and_pickles_are_the_same_object(one):
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one


def test_a_layout_says_where_it_is_cut():
    assert str(lies(mesh_of(2, 2), "0 R")) == "(S(0), R)"
    assert str(Layout(mesh_of(2), [Shard(0)], [(0, (0, 2, 5))])) == "S(0) cut 0 at (0, 2, 5)"


def test_placements_say_what_they_are():
    assert Shard(1).is_shard()
    assert Shard(1).is_shard(1)
    assert not Shard(1).is_shard(0)
    assert Replicate().is_replicate()
    assert Partial("max").is_partial()
    assert not Partial("max").is_partial("sum")
    assert not Replicate().is_partial()
    assert repr([Shard(1), Replicate(), Partial()]) == "[Shard(1), Replicate(), Partial('sum')]"


@settings(max_examples=30, deadline=None)
@given(
    length=some.integers(0, 30),
    counts=some.lists(some.integers(1, 4), min_size=1, max_size=3),
)
def test_pieces_differ_by_at_most_one_and_longer_ones_come_first(length, counts):
    bounds = even_bounds(length, counts)
    assert (bounds[0], bounds[-1]) == (0, length)
    assert len(bounds) == np.prod(counts) + 1
    for cuts in range(len(counts)):
        inner = int(np.prod(counts[cuts + 1 :]))
        lengths = np.diff(bounds[::inner])
        groups = lengths.reshape(-1, counts[cuts])
        assert (groups.max(1) - groups.min(1) <= 1).all()
        assert (np.diff(groups, axis=1) <= 0).all()


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=20, deadline=None)
@given(data=some.data())
def test_pieces_make_the_whole_each_element_once_a_replica(shape, data):
    mesh = mesh_of(*shape)
    sizes = data.draw(some.lists(some.integers(0, 7), min_size=1, max_size=3))
    words = [data.draw(some.sampled_from(["R", *map(str, range(len(sizes)))])) for _ in shape]
    layout = lies(mesh, " ".join(words))
    seen = np.zeros(sizes, int)
    for rank in range(mesh.size):
        seen[layout.piece(rank, tuple(sizes))] += 1
        local = layout.local_spec(rank, spec_of(float32, tuple(sizes)))
        assert local.shape == seen[layout.piece(rank, tuple(sizes))].shape
    replicas = np.prod([n for n, word in zip(shape, words, strict=True) if word == "R"], dtype=int)
    assert (seen == replicas).all()


def test_an_axis_that_two_cut_is_cut_by_them_in_order():
    mesh = mesh_of(2, 3)
    layout = lies(mesh, "0 0")
    starts = [layout.piece(rank, (11,))[0].start for rank in range(6)]
    assert starts == [0, 2, 4, 6, 8, 10]  # 6 and 5, and these in three
    assert layout.axes_of(0) == (0, 1)
    assert layout.axes_of(1) == ()


def test_groups_are_of_those_who_differ_in_these_axes_alone():
    mesh = mesh_of(2, 3, names=("data", "tensor"))
    assert mesh.groups((1,)) == ((0, 1, 2),) * 3 + ((3, 4, 5),) * 3
    assert mesh.groups((0,))[4] == (1, 4)
    assert mesh.groups((0, 1))[2] == (0, 1, 2, 3, 4, 5)
    assert mesh.axis("tensor") == mesh.axis(-1) == 1
    assert mesh.is_first(1, (0,))
    assert not mesh.is_first(1, (0, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mesh([0, 1], (3,)), "3 members, and 2 helpers"),
        (lambda: Mesh([0, 0], (2,)), "once"),
        (lambda: Mesh([], ()), "one to 3 axes"),
        (lambda: Mesh(range(16), (2, 2, 2, 2)), "one to 3 axes"),
        (lambda: Mesh([0, 1], (2,), ("a", "b")), "one for each axis"),
        (lambda: Mesh(range(4), (2, 2), ("a", "a")), "different"),
        (lambda: Partial("mean"), "sum, avg, max, min, prod"),
        (lambda: layout_of(mesh_of(2), [Shard(2)], 2), "tensor of 2 axes"),
        (lambda: layout_of(mesh_of(2), [Shard(-3)], 2), "tensor of 2 axes"),
        (lambda: Layout(mesh_of(2), [Shard(-1)]), "counts from the last"),
        (lambda: Layout(mesh_of(2, 2), [Shard(0)]), "2 axes, and 1 placements"),
        (lambda: Layout(mesh_of(2), [Shard(0)], [(1, (0, 1, 2))]), "axis 1 is not cut"),
        (lambda: Layout(mesh_of(2), [Shard(0)], [(0, (0, 1))]), "axis 0 is not cut"),
        (lambda: Layout(mesh_of(2), [Shard(0)], [(0, (0, 3, 2))]), "axis 0 is not cut"),
        (lambda: lies(mesh_of(2), "1").pieces((4,)), "an axis that a tensor of"),
        (
            lambda: Layout(mesh_of(2), [Shard(0)], [(0, (0, 1, 4))]).pieces((5,)),
            "axis 0 is 5 long",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("dim", [1.0, True, "0", None])
def test_a_shard_is_of_an_axis_s_number(dim):
    with pytest.raises(TypeError, match="must be a whole number"):
        Shard(dim)


def test_an_axis_of_a_mesh_that_there_is_not_is_named():
    with pytest.raises(KeyError, match=r"no axis 'pipe': it has 'data'"):
        mesh_of(2, names=("data",)).axis("pipe")
    with pytest.raises(KeyError, match="no names"):
        mesh_of(2).axis("data")
    with pytest.raises(KeyError, match="none of the number 1"):
        mesh_of(2).axis(1)


def test_a_layout_says_what_it_is():
    mesh = mesh_of(2, 2)
    assert str(lies(mesh, "0 R")) == "(S(0), R)"
    assert str(lies(mesh_of(2), "P")) == "P(sum)"
    assert replicated(mesh).is_replicated
    assert lies(mesh, "R P").is_partial
    cut = Layout(mesh_of(2), [Shard(0)], [(0, (0, 1, 4))])
    assert str(cut) == "S(0) cut 0 at (0, 1, 4)"
    assert [cut.local_spec(rank, spec_of(float32, (4, 2))).shape for rank in (0, 1)] == [
        (1, 2),
        (3, 2),
    ]
