"""Views: which part of a tensor another one shows, and that part put back when it was changed.

A view is a chain of the operations whose output's elements lie where their input's do. Owns how a
chain is read off the nodes, done again on a new value, and undone. Never knows a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.ops.casting import ALIAS
from shmgpu.ops.graph import Node, Op, Params, apply
from shmgpu.ops.indexing import put_slices
from shmgpu.ops.shaping import PERMUTE, RESHAPE, SLICE, permute, reshape
from shmgpu.ops.stretching import EXPAND

Chain = tuple[tuple[Op, Params], ...]

DETACHED: Chain = ((ALIAS, ()),)  # all of a tensor, whatever node shows it


def chain_from(root: Node, node: Node) -> Chain | None:
    """The operations that make ``node`` a view of ``root``; None where it is none."""
    found: list[tuple[Op, Params]] = []
    while node is not root:
        if node.op is None or not node.op.is_view:
            return None
        found.append((node.op, node.params))
        (node,) = node.inputs
    return tuple(reversed(found))


def again(root: Node, chain: Chain) -> Node:
    """The view of another value."""
    for op, params in chain:
        root = apply(op, (root,), params)
    return root


def put_back(root: Node, chain: Chain, value: Node) -> Node:
    """``root`` with ``value`` where the view shows it: the cost is that of the view's bytes."""
    under = []
    for op, params in chain:
        under.append(root)
        root = apply(op, (root,), params)
    for (op, params), whole in zip(reversed(chain), reversed(under), strict=True):
        value = _UNDO[op](whole, params, value)
    return value


def _slices_back(whole: Node, params: Params, value: Node) -> Node:
    parts = [
        slice(start, None if stop < 0 else stop, step)
        for start, stop, step in zip(*params, strict=True)
    ]
    return put_slices(whole, parts, value)


_UNDO: dict[Op, Callable[[Node, Params, Node], Node]] = {
    RESHAPE: lambda whole, params, value: reshape(value, whole.spec.shape),
    PERMUTE: lambda whole, params, value: permute(
        value, tuple(sorted(range(len(params[0])), key=params[0].__getitem__))
    ),
    SLICE: _slices_back,
    EXPAND: lambda whole, params, value: reshape(value, whole.spec.shape),  # of one element each
    ALIAS: lambda whole, params, value: value,
}


# ---- where elements lie --------------------------------------------------------------------------

_DONE: dict[Op, Callable[[Any, Any], Any]] = {
    RESHAPE: lambda x, params: _reshaped(x, params[0]),
    PERMUTE: lambda x, params: x.transpose(params[0]),
    SLICE: lambda x, params: x[
        tuple([slice(a, None if b < 0 else b, c) for a, b, c in zip(*params, strict=True)])
    ],
    EXPAND: lambda x, params: np.broadcast_to(x, params[0]),
    ALIAS: lambda x, params: x,
}


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """None where the elements would have to be copied, as PyTorch's ``reshape`` does."""
    same = x.view()
    try:
        same.shape = shape
    except AttributeError:
        return None
    return same


_ANCHOR = np.zeros(1, np.uint8)  # where all of them begin


def layout(shape: tuple[int, ...], chain: Chain) -> Any:
    """An array that lies as the view does over elements of that shape; never to be read.

    None where no such view could be: elements would have to be copied.
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    place = np.lib.stride_tricks.as_strided(_ANCHOR, shape, strides)
    for op, params in chain:
        place = _DONE[op](place, params)
        if place is None:
            return None
    return place


def is_expanded(chain: Chain) -> bool:
    """Whether a view may show one element in several places."""
    return any(op is EXPAND for op, _ in chain)


def overlaps_itself(place: Any) -> bool:
    """Whether several of its elements lie in one place, as those of an expanded axis do."""
    return any(n > 1 and step == 0 for n, step in zip(place.shape, place.strides, strict=True))


def overlap(one: Any, other: Any) -> bool:
    """Whether two views of one tensor, which lie so, may show the same elements."""
    if one is None or other is None:
        return True  # nobody knows
    return bool(one.size and other.size and np.shares_memory(one, other))
