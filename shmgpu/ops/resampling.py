"""Images and signals of another size: adaptive pooling, the nearest neighbour, lines between two.

Owns the functions that record them. Never computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.ops import graph, ordering, rules
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import arange
from shmgpu.ops.elementwise import add, clamp, floor, mul, sub
from shmgpu.ops.graph import Node
from shmgpu.ops.indexing import index_select
from shmgpu.ops.promotion import float64, int64, is_float
from shmgpu.ops.reductions import amax, mean
from shmgpu.ops.shaping import cat, narrow, permute, reshape
from shmgpu.ops.windows import NO_INDICES, avg_pool2d, max_pool2d

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
    windows = _even(input, output_size, name)
    return avg_pool2d(input, windows) if windows else _adapted(input, output_size, 2, name, mean)


def _even(x: Node, output_size: Any, name: str) -> list[int] | None:
    """Rows and columns of each window, if all are of one size, which there is a kernel for."""
    pairs = list(zip(x.spec.shape[-2:], _sizes(x, output_size, 2, name), strict=True))
    windows = [n // size for n, size in pairs]
    return windows if all(windows) and not any(n % size for n, size in pairs) else None


def _first_largest(x: Node, dim: int, keepdim: bool) -> Node:
    """With the gradient to the first of equal ones."""
    if not (x.needs_grad and graph.grad_mode.enabled):
        return amax(x, dim, keepdim)
    found = ordering.max(x, dim, keepdim)
    assert isinstance(found, ordering.Found)
    return found.values


def adaptive_max_pool1d(input: Node, output_size: Any, return_indices: bool = False) -> Node:
    """As :func:`adaptive_avg_pool1d`, with the largest element of each window.

    ``return_indices`` must be False: ValueError.
    """
    rules.only("adaptive_max_pool1d", return_indices=(return_indices, False, NO_INDICES))
    return _adapted(input, output_size, 1, "adaptive_max_pool1d", _first_largest)


def adaptive_max_pool2d(input: Node, output_size: Any, return_indices: bool = False) -> Node:
    """As :func:`adaptive_avg_pool2d`, with the largest element of each window.

    ``return_indices`` must be False: ValueError.
    """
    name = "adaptive_max_pool2d"
    rules.only(name, return_indices=(return_indices, False, NO_INDICES))
    windows = _even(input, output_size, name)
    if windows:
        return max_pool2d(input, windows)
    return _adapted(input, output_size, 2, name, _first_largest)


def _moved(x: Node, shape: Sequence[int], order: Sequence[int]) -> Node:
    """In that shape, with the last five axes in that order."""
    lead = len(shape) - 5
    return permute(reshape(x, tuple(shape)), (*range(lead), *[lead + one for one in order]))


def _image(x: Node, factor: int, name: str) -> tuple[int, ...]:
    if len(x.spec.shape) < 3 or rules.whole(factor, name, "the factor") < 1:
        raise ValueError(
            f"{name}: takes (..., C, H, W), and a factor from 1: not {x.spec.shape}, {factor}"
        )
    return x.spec.shape


def pixel_shuffle(input: Node, upscale_factor: int) -> Node:
    """Channels as finer pixels: (..., C r r, H, W) -> (..., C, H r, W r), where r is the factor.

    Shi et al., Real-Time Single Image and Video Super-Resolution, 2016.

    Raises:
        ValueError: there are fewer axes, or the channels are no multiple of r r.
    """
    *lead, channels, rows, columns = _image(input, upscale_factor, "pixel_shuffle")
    r = upscale_factor
    if channels % (r * r):
        raise ValueError(f"pixel_shuffle: {channels} channels are no multiple of {r} * {r}")
    count = channels // (r * r)
    moved = _moved(input, (*lead, count, r, r, rows, columns), (0, 3, 1, 4, 2))
    return reshape(moved, (*lead, count, rows * r, columns * r))


def pixel_unshuffle(input: Node, downscale_factor: int) -> Node:
    """Pixels as channels: (..., C, H r, W r) -> (..., C r r, H, W), where r is the factor.

    Raises:
        ValueError: there are fewer axes, or rows or columns are no multiples of r.
    """
    *lead, channels, rows, columns = _image(input, downscale_factor, "pixel_unshuffle")
    r = downscale_factor
    if rows % r or columns % r:
        raise ValueError(f"pixel_unshuffle: {rows} rows, {columns} columns: no multiples of {r}")
    apart = (*lead, channels, rows // r, r, columns // r, r)
    return reshape(
        _moved(input, apart, (0, 2, 4, 1, 3)), (*lead, channels * r * r, rows // r, columns // r)
    )


LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}  # modes, and how many axes each is for
NEAREST = {"nearest": 0.0, "nearest-exact": 0.5}  # where in an element of the output it is asked


def _nearest(x: Node, axis: int, out: int, step: float, begin: float) -> Node:
    # The small addition keeps a number that should be whole from being rounded down.
    at = mul(add(arange(0, 1, out, float64), begin), step * (1 + 1e-12))
    last = x.spec.shape[axis] - 1
    return index_select(x, axis, cast(clamp(floor(at), None, last), int64))


def _between(x: Node, axis: int, out: int, step: float, align_corners: bool) -> Node:
    """On the line from one neighbour to the next."""
    ndim, last = len(x.spec.shape), x.spec.shape[axis] - 1
    if align_corners:
        at = mul(arange(0, 1, out, float64), last / max(out - 1, 1))
    else:
        at = sub(mul(add(arange(0, 1, out, float64), 0.5), step), 0.5)
    at = clamp(at, 0.0, float(last))
    before = floor(at)
    share = cast(sub(at, before), x.spec.dtype)
    share = reshape(share, tuple([out if one == axis else 1 for one in range(ndim)]))
    low = index_select(x, axis, cast(before, int64))
    high = index_select(x, axis, cast(clamp(add(before, 1.0), None, last), int64))
    return add(mul(low, sub(1.0, share)), mul(high, share))


def interpolate(
    input: Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Node:
    """Resizes by taking the nearest element of the input, or between two, as PyTorch defines it.

    Args:
        input: (N, C, ...); of floats, where ``mode`` is not one of the nearest.
        size: lengths of the axes after the second, one number for all; or else use
        scale_factor: the factors by which they grow, one number for all.
        mode: ``"nearest"``, ``"nearest-exact"``; or ``"linear"``, ``"bilinear"``, ``"trilinear"``,
            by the number of these axes.
        align_corners: of the linear modes: the first and last elements stay where they are.
        recompute_scale_factor: distances are taken from the lengths, not from ``scale_factor``.
        antialias: must be False.

    Raises:
        ValueError: neither a size nor a factor, or both; another mode, or one that is for another
            number of axes; or ``align_corners`` or ``antialias`` where there is none.
        TypeError: the tensor is not of floats.
    """
    have = input.spec.shape
    places = len(have) - 2
    if mode not in NEAREST and LINEAR.get(mode) != places:
        modes = [*NEAREST, *[name for name, axes in LINEAR.items() if axes == places]]
        raise ValueError(
            f"interpolate: mode={mode!r} of an input {have} must be one of {', '.join(modes)}"
        )
    if mode in NEAREST:
        instead = f"mode={mode!r} has no corners to align"
        rules.only("interpolate", align_corners=(align_corners, None, instead))
    elif not is_float(input.spec.dtype):
        raise TypeError(
            f"interpolate: the tensor is {input.spec.dtype.name}, and must be of floats"
        )
    instead = "resize by the mean of windows, adaptive_avg_pool2d, where aliasing disturbs"
    rules.only("interpolate", antialias=(antialias, False, instead))
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
        step = length / out if scale_factor is None or recompute_scale_factor else 1 / wanted
        if out == length and (step == 1 or mode in NEAREST):
            continue
        if mode in NEAREST:
            x = _nearest(x, axis, out, step, NEAREST[mode])
        else:
            x = _between(x, axis, out, step, bool(align_corners))
    return x
