"""What stands in square brackets: ``x[index]``, and ``x[index] = value``.

Owns how an index is read: integers, slices, None and ... are moved without copying; tensors of
integers gather. Never gives a shape that is not known while recording, so a mask of bools selects
nothing here: ``where`` keeps the shape. A mask whose elements are known is turned into integers
before. Never has a row of its own.
"""

from __future__ import annotations

import operator
from typing import Any

from shmgpu.ops.elementwise import where
from shmgpu.ops.graph import Node, apply
from shmgpu.ops.indexing import INDEX, INDEX_PUT, indexed_shape, put_slices, whole
from shmgpu.ops.promotion import as_node, bool_
from shmgpu.ops.shaping import reshape, take_slices
from shmgpu.ops.stretching import expand

Shape = tuple[int, ...]


class Index:
    """What stood in square brackets, read for a shape.

    Attributes:
        slices: one for each axis.
        shape: what they leave: without the axes of integers, with one for each None.
        axes: of that shape, those that ``indices`` number.
    """

    def __init__(self, index: Any, shape: Shape) -> None:
        parts = list(index) if isinstance(index, tuple) else [index]
        ndim = len(shape)
        taken = sum(one is not None and one is not Ellipsis for one in parts)
        if taken > ndim:
            raise IndexError(f"{taken} indices are too many for the {ndim} axes of {shape}")
        dots = [at for at, one in enumerate(parts) if one is Ellipsis]
        if len(dots) > 1:
            raise IndexError("an index has one ... at most")
        at = dots[0] if dots else len(parts)
        parts[at : at + 1] = [slice(None)] * (ndim - taken)
        self.slices: list[slice] = []
        self.indices: list[Node] = []
        lengths: list[int] = []
        axes: list[int] = []
        for one in parts:
            if one is None:
                lengths.append(1)
                continue
            have = shape[len(self.slices)]
            if isinstance(one, Node):
                self.indices.append(whole(one, "indexing"))
                axes.append(len(lengths))
                one = slice(None)
            if isinstance(one, slice):
                lengths.append(len(range(*one.indices(have))))
                self.slices.append(one)
                continue
            number = _number(one)
            if not -have <= number < have:
                raise IndexError(
                    f"index {number} is out of range for the {have} of axis {len(self.slices)}"
                )
            number %= have
            self.slices.append(slice(number, number + 1))
        self.shape = tuple(lengths)
        self.axes = tuple(axes)

    def part(self, x: Node) -> Node:
        """What integers and slices leave of x."""
        return reshape(take_slices(x, self.slices), self.shape)


def _number(one: Any) -> int:
    if isinstance(one, bool):
        raise IndexError(f"{one} is not an index: use integers, slices, None, ... or tensors")
    try:
        return operator.index(one)
    except TypeError:
        raise IndexError(
            f"{type(one).__name__} is not an index: use integers, slices, None, ... or "
            "tensors of integers"
        ) from None


def getitem(x: Node, index: Any) -> Node:
    """``x[index]``; tensors in the index are nodes.

    Raises:
        IndexError: there is no such part.
        TypeError: a tensor in the index is not of integers.
    """
    read = Index(index, x.spec.shape)
    part = read.part(x)
    return apply(INDEX, (part, *read.indices), (read.axes,)) if read.axes else part


def setitem(x: Node, index: Any, value: Any) -> Node:
    """What x is after ``x[index] = value``; tensors in the index are nodes.

    Raises:
        IndexError, TypeError: as :func:`getitem`.
        ValueError: the value does not fit into that part.
    """
    value = as_node(value, x.spec.dtype)
    if isinstance(index, Node) and index.spec.dtype is bool_:
        return _masked(x, index, value)
    read = Index(index, x.spec.shape)
    if read.axes:
        target = indexed_shape(read.shape, [one.spec.shape for one in read.indices], read.axes)
        whole_value = _fitted(value, target)
        part = apply(INDEX_PUT, (read.part(x), whole_value, *read.indices), (read.axes, False))
    else:
        part = _fitted(value, read.shape)
    lengths = tuple(
        [len(range(*one.indices(n))) for one, n in zip(read.slices, x.spec.shape, strict=True)]
    )
    return put_slices(x, read.slices, reshape(part, lengths))


def _fitted(value: Node, shape: Shape) -> Node:
    have = value.spec.shape
    while len(have) > len(shape) and have[0] == 1:
        have = have[1:]
    try:
        return expand(reshape(value, have), shape)
    except ValueError:
        raise ValueError(
            f"the value's shape {value.spec.shape} does not fit into {shape}"
        ) from None


def _masked(x: Node, mask: Node, value: Node) -> Node:
    ndim = len(mask.spec.shape)
    if mask.spec.shape != x.spec.shape[:ndim]:
        raise IndexError(f"the mask's shape {mask.spec.shape} is not a prefix of {x.spec.shape}")
    if value.spec.shape not in ((), (1,)):
        raise ValueError(
            f"as many values as the mask has hits are needed, and how many that are depends on its "
            f"elements: give one number instead of {value.spec.shape}, or use where(mask, y, x)"
        )
    rest = (1,) * (len(x.spec.shape) - ndim)
    return where(reshape(mask, (*mask.spec.shape, *rest)), reshape(value, ()), x)
