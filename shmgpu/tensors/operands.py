"""What a program gives to an operation, as the graph takes it: tensors, numbers, arrays, lists.

Owns :class:`Shown`, which is what a tensor looks like from below, and how other values become
nodes: plain numbers stay numbers, and everything else is copied into this child's arena. Never
makes a tensor, and never records an operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmgpu import arena
from shmgpu.codec import arrays, dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops import graph
from shmgpu.ops.graph import Node, spec_of
from shmgpu.ops.promotion import CATEGORY, TYPES, bool_, float32, number
from shmgpu.tensors import current
from shmgpu.tensors.message import Held


class Shown:
    """What shows one node of the graph at a time: a tensor."""

    __slots__ = ("_node",)
    _node: Node


def as_operand(value: Any, dtype: DType | None = None) -> Any:
    """A tensor's node, a plain number as it is, anything else as a new leaf."""
    if isinstance(value, Shown):
        return value._node
    if isinstance(value, np.generic):
        value = value.item()  # as weak as Python's own, as in PyTorch
    if isinstance(value, (bool, int, float)):
        return value if dtype is None else number(value, dtype)
    return leaf_of(value, None)


_LISTED = frozenset((list, tuple, int, float, bool))
_FLOAT64 = np.dtype(np.float64)


def leaf_of(data: Any, dtype: Any) -> Node:
    """A copy of the data, in this child's arena."""
    current.recorder()  # the first tensor of a program joins a broker, or starts one
    if isinstance(data, Shown):
        data = current.elements(data._node)
    is_listed = type(data) in _LISTED or not arrays.is_array(data)
    if is_listed:
        data = arrays.of_lists(data)
    if dtype is not None:
        dtype = dtypes.of_any(dtype)
    elif is_listed and data.dtype is _FLOAT64:
        dtype = float32  # as PyTorch takes Python's floats
    copied, address = arena.kept(data, dtype)
    return graph.leaf(spec_of(kind_of(copied), copied.shape), Held(copied, address))


def as_index(index: Any) -> Any:
    """Tensors, arrays and lists in square brackets as nodes."""
    if isinstance(index, tuple):
        return tuple([as_index(one) for one in index])
    if isinstance(index, Shown):
        return index._node
    if isinstance(index, list) or (arrays.is_array(index) and not isinstance(index, np.generic)):
        return leaf_of(index, None)
    return index


def places_of(index: Any, shape: tuple[int, ...]) -> Any:
    """A mask of bools whose elements are known as the places where it holds."""
    if isinstance(index, list) and any(isinstance(one, Shown) for one in index):
        return index
    mask = np.asarray(index)
    if mask.dtype != bool or not mask.ndim:
        return index
    if mask.shape != shape[: mask.ndim]:
        raise IndexError(f"the mask's shape {mask.shape} is not a prefix of {shape}")
    return mask.nonzero()


def places_among(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of several parts, with the places where they hold instead of masks of bools.

    Their elements are computed now: the shape depends on them.
    """
    masks = {at: mask for at, one in enumerate(index) if (mask := _mask(one)) is not None}
    if not masks:
        return index
    taken = [masks[at].ndim if at in masks else one is not None for at, one in enumerate(index)]
    dots = next((at for at, one in enumerate(index) if one is Ellipsis), None)
    if dots is not None:
        taken[dots] = len(shape) - sum(taken) + 1
    found: list[Any] = []
    for at, one in enumerate(index):
        if at in masks:
            axis = sum(taken[:at])
            found += places_of(masks[at], shape[axis:])
        else:
            found.append(one)
    return tuple(found)


def _mask(one: Any) -> Any:
    """The elements of a mask of bools that has axes; None of anything else."""
    if isinstance(one, Shown):
        is_mask = one._node.spec.dtype is bool_ and one._node.spec.shape
        return current.elements(one._node) if is_mask else None
    if isinstance(one, np.ndarray) or (isinstance(one, list) and one and type(one[0]) is bool):
        mask = np.asarray(one)
        return mask if mask.dtype == bool and mask.ndim else None
    return None


def kind_of(array: np.ndarray[Any, Any]) -> DType:
    """The element type of a tensor with an array's elements; a TypeError where there is none."""
    kind = dtypes.of_numpy(array.dtype)
    if kind not in CATEGORY:
        raise TypeError(
            f"tensors can be {', '.join(one.name for one in TYPES)}, not {kind.name}: convert"
        )
    return kind
