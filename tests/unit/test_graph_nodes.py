"""Nodes of recorded graphs in C: what they refuse, and how long chains of them go."""

from __future__ import annotations

import weakref

import pytest

from shmgpu.codec.dtypes import by_name
from shmgpu.ops import graph

native = pytest.importorskip("shmgpu._graph", reason="a tree that was not built")
SPEC = graph.spec_of(by_name("float32"), (2,))


class Value:
    """Of a node; knows when it goes."""


def chained(length):
    """The last of so many nodes, each the input of the next, and what is left of their values."""
    alive = weakref.WeakSet()
    node = None
    for _ in range(length):
        value = Value()
        alive.add(value)
        node = native.Node(None, () if node is None else (node, node), (), SPEC, value)
    return node, alive


@pytest.mark.parametrize("length", [1, 49, 50, 51, 52, 30_000])
def test_a_chain_goes_with_its_last_node_however_long_it_is(length):
    node, alive = chained(length)
    before = node.inputs[0] if node.inputs else None
    assert len(alive) == length
    del node
    assert len(alive) == length - 1
    del before
    assert not alive


def test_what_is_no_node_is_refused_where_it_is_made():
    leaf = graph.leaf(SPEC, None)
    assert native.Node("op", (leaf,), ("p",), SPEC).value is None
    for given, sentence in (
        ((None, (), ()), "expected at least 4 arguments, got 3"),
        ((None, (), (), SPEC, None, 1), "expected at most 5 arguments, got 6"),
        ((None, [leaf], (), SPEC), "the inputs of a node are a tuple of nodes"),
        ((None, (leaf, 1), (), SPEC), "the inputs of a node are nodes"),
    ):
        with pytest.raises(TypeError, match=sentence):
            native.Node(*given)
    with pytest.raises(TypeError, match="takes no named arguments"):
        native.Node(None, (), (), SPEC, value=1)


def test_inputs_and_a_value_can_be_others_and_never_gone():
    one, other = graph.leaf(SPEC, 1), graph.leaf(SPEC, 2)
    node = native.Node("op", (one,), (), SPEC)
    node.inputs = (other, one)
    assert node.inputs == (other, one)
    for wrong in ([one], (one, 2)):
        with pytest.raises(TypeError, match="the inputs of a node are"):
            node.inputs = wrong
    with pytest.raises(AttributeError, match="a node has inputs"):
        del node.inputs
    assert node.inputs == (other, one)
    node.value = value = Value()
    assert node.value is value
    with pytest.raises(AttributeError, match="has the value None"):
        del node.value
    assert node.value is value
