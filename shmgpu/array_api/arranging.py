"""Functions of the array API that arrange elements: shapes, joining, indexing; and products.

Owns what the standard asks of them beyond PyTorch's functions. Never computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.array_api.arguments import F, tensor_of, together
from shmgpu.array_api.elementwise import checked
from shmgpu.tensors.tensor import Tensor, tensor

Axes = int | tuple[int, ...]


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """The tensor broadcast to a shape."""
    made: Tensor = F["broadcast_to"](x, shape)
    return made


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All tensors broadcast to one shape."""
    shape = np.broadcast_shapes(*(one.shape for one in arrays))
    return [broadcast_to(one, shape) for one in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis; flattened first for None."""
    given = together("concat", *arrays)
    if axis is None:
        given, axis = [one.ravel() for one in given], 0
    made: Tensor = F["concat"](given, axis)
    return made


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Joined along a new axis."""
    made: Tensor = F["stack"](together("stack", *arrays), axis)
    return made


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis."""
    made: tuple[Tensor, ...] = F["unbind"](x, axis)
    return made


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """With a new axis of length 1.

    Raises:
        IndexError: the axis is out of range.
    """
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise IndexError(f"expand_dims: axis={axis} is out of range for {x.ndim} axes and one more")
    made: Tensor = F["unsqueeze"](x, axis)
    return made


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Without axes of length 1.

    Raises:
        ValueError: one of them has another length.
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for one in axes:
        if x.shape[one] != 1:
            raise ValueError(f"squeeze: axis {one} of {x.shape} is not of length 1")
    made: Tensor = F["squeeze"](x, axes)
    return made


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """The order reversed along an axis, several, or all."""
    made: Tensor = F["flip"](x, tuple(range(x.ndim)) if axis is None else axis)
    return made


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Axes moved to other positions; the others keep their order.

    Raises:
        ValueError: their numbers differ, or an axis is named twice.
    """
    froms, tos = (
        [one % x.ndim for one in ((axes,) if isinstance(axes, int) else axes)]
        for axes in (source, destination)
    )
    if len(froms) != len(tos) or len(set(froms)) != len(froms) or len(set(tos)) != len(tos):
        raise ValueError(f"moveaxis: {source} and {destination} must name equally many axes, once")
    order = [axis for axis in range(x.ndim) if axis not in froms]
    for place, axis in sorted(zip(tos, froms, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, tuple(order))


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order."""
    made: Tensor = F["permute"](x, tuple(axes))
    return made


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The matrices of the last two axes, transposed."""
    if tensor_of(x, "matrix_transpose").ndim < 2:
        raise ValueError(f"matrix_transpose: {x.shape} must have two axes at least")
    return x.mT


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; a copy if ``copy``."""
    made: Tensor = x.reshape(tuple(shape))
    return made.clone() if copy else made


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Elements shifted along axes; those that leave at one end enter at the other."""
    made: Tensor = F["roll"](x, shift, axis)
    return made


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element, or slice along an axis, repeated so many times.

    Args:
        x: any tensor.
        repeats: how often; a tensor of counts, one for each, is computed now, at a message's
            cost.
        axis: along which; None flattens first.
    """
    if isinstance(repeats, int):
        made: Tensor = F["repeat_interleave"](x, repeats, axis)
        return made
    if axis is None:
        x, axis = x.ravel(), 0
    counts = np.broadcast_to(np.asarray(repeats), (x.shape[axis],))
    places = tensor(np.repeat(np.arange(len(counts)), counts))
    made = F["index_select"](x, axis, places)
    return made


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Repeated so many times along each axis."""
    made: Tensor = F["tile"](x, tuple(repetitions))
    return made


# ---- indexing ------------------------------------------------------------------------------------


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Slices along an axis, which may be omitted for a vector.

    Raises:
        ValueError: it is omitted for a tensor of several axes.
    """
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: give axis= for a tensor of {x.ndim} axes")
        axis = 0
    made: Tensor = F["index_select"](x, axis, indices)
    return made


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each element of ``indices`` the element at that index along an axis."""
    made: Tensor = F["take_along_dim"](x, indices, axis)
    return made


# ---- products ------------------------------------------------------------------------------------


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Matrix products over the last two axes; a vector is a row on the left, a column on the right.

    Raises:
        ValueError: one of them has no axis, or lengths differ.
    """
    a, b = together("matmul", x1, x2)
    checked("matmul", "numeric", a)
    made: Tensor = F["matmul"](a, b)
    return made


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """Products summed over the last ``axes`` of x1 and the first of x2, or over those named."""
    a, b = together("tensordot", x1, x2)
    checked("tensordot", "numeric", a)
    made: Tensor = F["tensordot"](a, b, axes)
    return made


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Products summed over one axis, counted from the end.

    Raises:
        ValueError: the axis is not negative, or its lengths differ.
    """
    a, b = together("vecdot", x1, x2)
    checked("vecdot", "numeric", a)
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise ValueError(f"vecdot: axis={axis} must count from the end, within both shapes")
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(f"vecdot: {a.shape} and {b.shape} differ along axis {axis}")
    made: Tensor = F["sum"](a * b, axis, dtype=a.dtype)
    return made
