"""Images and signals of another size: adaptive pooling, and the nearest neighbour.

Owns the functions that record them. Never computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shmgpu.ops import graph, ordering
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import arange
from shmgpu.ops.elementwise import floor, mul
from shmgpu.ops.graph import Node
from shmgpu.ops.indexing import index_select
from shmgpu.ops.promotion import float64, int64, is_float
from shmgpu.ops.reductions import amax, mean
from shmgpu.ops.shaping import cat, narrow, reshape
from shmgpu.ops.windows import avg_pool2d

Reduce = Callable[[Node, int, bool], Node]


def _sizes(x: Node, output_size: Any, places: int, name: str) -> list[int]:
    """The lengths wanted of the last axes; None in their place keeps one."""
    have = x.spec.shape
    if len(have) not in (places + 1, places + 2):
        axes = "C, H, W" if places == 2 else "C, L"
        raise ValueError(f"{name}: the input {have} must be (N, {axes}) or ({axes})")
    if not is_float(x.spec.dtype):
        raise TypeError(f"{name}: the tensor is {x.spec.dtype.name}, and must be of floats")
    sizes = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * places
    found = [n if size is None else size for size, n in zip(sizes, have[-places:], strict=False)]
    if len(sizes) != places or not all(isinstance(n, int) and n > 0 for n in found):
        raise ValueError(f"{name}: output_size={output_size!r} must be {places} numbers, or one")
    return found


def _adapted(x: Node, output_size: Any, places: int, name: str, reduce: Reduce) -> Node:
    """One axis after the other: the windows are the same all along the other one.

    Windows are reduced along columns first, so that of equal elements the first of the first row
    is found, as in torch.
    """
    axes = range(len(x.spec.shape) - places, len(x.spec.shape))
    sizes = _sizes(x, output_size, places, name)
    for axis, size in reversed(list(zip(axes, sizes, strict=True))):
        shape = x.spec.shape
        length = shape[axis]
        if length % size == 0:
            split = reshape(x, (*shape[:axis], size, length // size, *shape[axis + 1 :]))
            x = reduce(split, axis + 1, False)
            continue
        parts = []
        for place in range(size):
            start, end = place * length // size, -(-(place + 1) * length // size)
            parts.append(reduce(narrow(x, axis, start, end - start), axis, True))
        x = cat(parts, axis)
    return x


def adaptive_avg_pool1d(input: Node, output_size: Any) -> Node:
    """The means of ``output_size`` windows, evenly spread: (N, C, L) -> (N, C, size)."""
    return _adapted(input, output_size, 1, "adaptive_avg_pool1d", mean)


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Node:
    """The means of ``output_size`` windows, evenly spread: (N, C, H, W) -> (N, C, *output_size).

    One number is for both axes; None in place of one keeps an axis.

    Raises:
        ValueError: other axes, or sizes that are none.
        TypeError: the tensor is not of floats.
    """
    name = "adaptive_avg_pool2d"
    lengths, sizes = input.spec.shape[-2:], _sizes(input, output_size, 2, name)
    windows = [n // size for n, size in zip(lengths, sizes, strict=True)]
    if all(windows) and not any(n % size for n, size in zip(lengths, sizes, strict=True)):
        return avg_pool2d(input, windows)  # all of one size, which there is a kernel for
    return _adapted(input, output_size, 2, name, mean)


def _first_largest(x: Node, dim: int, keepdim: bool) -> Node:
    """With the gradient to the first of equal ones."""
    if not (x.needs_grad and graph.grad_mode.enabled):
        return amax(x, dim, keepdim)
    found = ordering.max(x, dim, keepdim)
    assert isinstance(found, ordering.Found)
    return found.values


def adaptive_max_pool1d(input: Node, output_size: Any) -> Node:
    """As :func:`adaptive_avg_pool1d`, with the largest element of each window."""
    return _adapted(input, output_size, 1, "adaptive_max_pool1d", _first_largest)


def adaptive_max_pool2d(input: Node, output_size: Any) -> Node:
    """As :func:`adaptive_avg_pool2d`, with the largest element of each window."""
    return _adapted(input, output_size, 2, "adaptive_max_pool2d", _first_largest)


def interpolate(
    input: Node, size: Any = None, scale_factor: Any = None, mode: str = "nearest"
) -> Node:
    """Resizes by taking the nearest element of the input, as PyTorch defines it.

    Args:
        input: (N, C, ...).
        size: lengths of the axes after the second, one number for all; or else use
        scale_factor: the factors by which they grow, one number for all.
        mode: ``"nearest"``, the only one there is.

    Raises:
        ValueError: neither a size nor a factor, or both; or another mode.
    """
    have = input.spec.shape
    places = len(have) - 2
    if mode != "nearest":
        raise ValueError(f"interpolate: mode={mode!r} must be 'nearest'")
    if places < 1 or (size is None) == (scale_factor is None):
        raise ValueError(
            f"interpolate: give size or scale_factor, and an input (N, C, ...), not {have}"
        )
    given = size if scale_factor is None else scale_factor
    listed = list(given) if isinstance(given, (tuple, list)) else [given] * places
    if len(listed) != places or min(listed) <= 0:
        raise ValueError(f"interpolate: {given!r} must be a number above 0, or {places} of them")
    x = input
    for axis, (length, wanted) in enumerate(zip(have[2:], listed, strict=True), 2):
        out = wanted if scale_factor is None else math.floor(length * wanted)
        if out == length:
            continue
        step = length / out if scale_factor is None else 1 / wanted
        # The small addition keeps a number that should be whole from being rounded down.
        places_of = floor(mul(arange(0, 1, out, float64), step * (1 + 1e-12)))
        x = index_select(x, axis, cast(places_of, int64))
    return x
