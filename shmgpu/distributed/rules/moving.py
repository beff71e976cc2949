"""Rules of operations that move elements and compute nothing: all accept partial inputs.

Owns which axes of the outcome are which axes of the input. Never adds a collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.distributed.layout import Ranges
from shmgpu.distributed.rules.base import (
    ANY,
    EVERY,
    OUT,
    SUMS,
    Names,
    Rule,
    Scaled,
    Scheme,
    SchemeOf,
    Specs,
    Taken,
    aligned,
    local_shape_at,
    shape_of,
)
from shmgpu.ops import indexing, rearranging, shaping, stretching
from shmgpu.ops.graph import Op, Params, Spec

# ---- other shapes ----------------------------------------------------------------------------


def _groups(have: tuple[int, ...], want: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Neighbouring axes of both shapes that have equally many elements, as few as can be."""
    found: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(have) or b < len(want):
        mine: list[int] = []
        theirs: list[int] = []
        here = there = 1
        while (not mine and not theirs) or here != there:
            if here <= there and a < len(have):
                here *= have[a]
                mine.append(a)
                a += 1
            else:
                there *= want[b]
                theirs.append(b)
                b += 1
        found.append((mine, theirs))
    return found


def _reshaped(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Of each group of axes what both sides' leading ones have in common may be cut."""
    (spec,) = specs
    have, want = spec.shape, out.shape
    mine: list[int | None] = [None] * len(have)
    theirs: list[int | None] = [None] * len(want)
    lengths: list[int] = []
    maps: dict[tuple[int, int], Scaled | Taken] = {}
    for a, b in _groups(have, want) if math.prod(have) else ():
        first = [axis for axis in a if have[axis] > 1]
        second = [axis for axis in b if want[axis] > 1]
        if not first or not second:
            continue
        total = math.prod(have[axis] for axis in a)
        here, there = total // have[first[0]], total // want[second[0]]
        both = math.lcm(here, there)
        for where, axis, step in ((0, first[0], here), (OUT, second[0], there)):
            if both != step:
                maps[where, axis] = Scaled(both // step)
        mine[first[0]] = theirs[second[0]] = len(lengths)
        lengths.append(total // both)
    return Scheme((tuple(mine),), tuple(theirs), tuple(lengths), maps=maps)


def _permuted(specs: Specs, params: Params, out: Spec) -> Scheme:
    (axes,) = params
    return Scheme((tuple(range(len(axes))),), tuple(axes), specs[0].shape)


def _stretched(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Axes that are stretched may be cut: of those each member makes its own part."""
    return aligned(specs, params, out)


# ---- parts -----------------------------------------------------------------------------------

Slices = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _taking(
    whole: tuple[int, ...], part: tuple[int, ...], parts: Slices, where: int
) -> tuple[Names, dict[tuple[int, int], Scaled | Taken]]:
    """Labels, which are the whole's axes, and how those of the part (``where``) follow."""
    starts, _, steps = parts
    maps: dict[tuple[int, int], Scaled | Taken] = {}
    names: list[int | None] = []
    for axis, (start, step, n, count) in enumerate(zip(starts, steps, whole, part, strict=True)):
        # Turned round, the pieces would come in the opposite order.
        names.append(axis if step > 0 else None)
        if step > 0 and (start, step, count) != (0, 1, n):
            maps[where, axis] = Taken(start, step, count)
    return tuple(names), maps


def _sliced(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, maps = _taking(specs[0].shape, out.shape, params, OUT)
    return Scheme((names,), names, specs[0].shape, maps=maps)


def _placed(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, maps = _taking(out.shape, specs[0].shape, params[1:], 0)
    return Scheme((names,), names, out.shape, maps=maps)


def _into(parts_of: Callable[[Params], Any]) -> SchemeOf:
    """A part is put into the first input."""

    def scheme(specs: Specs, params: Params, out: Spec) -> Scheme:
        names, maps = _taking(out.shape, specs[1].shape, parts_of(params), 1)
        return Scheme((names, names), names, out.shape, maps=maps)

    return scheme


def _local_slices(parts: Slices, whole: Ranges, part: Ranges) -> Slices:
    """The slices by which a member takes its part out of what it has of the whole."""
    starts, stops, steps = [], [], []
    for start, stop, step, (low, high), (first, last) in zip(*parts, whole, part, strict=True):
        if step > 0:
            start = min(max(start + step * first - low, 0), high - low)
            stop = start + step * (last - first - 1) + 1 if last > first else start
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    return tuple(starts), tuple(stops), tuple(steps)


def _local_slice(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    return _local_slices(params, ins[0], out)


def _local_slice_backward(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    return (shape_of(out), *_local_slices(params[1:], out, ins[0]))


def _local_slice_add(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    return (shape_of(out), *_local_slices(params[1:], out, ins[1]))


def _local_slice_scatter(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    return _local_slices(params, out, ins[1])


# ---- joined; triangles -----------------------------------------------------------------------


def _joined(specs: Specs, params: Params, out: Spec) -> Scheme:
    (axis,) = params
    names = tuple([None if at == axis else at for at in range(len(out.shape))])
    return Scheme((names,) * len(specs), names, out.shape)


def _local_diagonal(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    (rows, _), (columns, _) = out[-2:]
    return (params[0] + rows - columns,)


_TRIANGLE = Rule(aligned, linear=((0,),), local=_local_diagonal)

RULES: dict[Op, Rule] = {
    shaping.RESHAPE: Rule(_reshaped, linear=((0,),), kinds=ANY, local=local_shape_at(0)),
    shaping.PERMUTE: Rule(_permuted, linear=((0,),), kinds=ANY),
    stretching.EXPAND: Rule(_stretched, linear=((0,),), kinds=ANY, local=local_shape_at(0)),
    shaping.SLICE: Rule(_sliced, linear=((0,),), kinds=ANY, local=_local_slice),
    shaping.SLICE_BACKWARD: Rule(_placed, linear=((0,),), local=_local_slice_backward),
    shaping.SLICE_ADD: Rule(
        _into(lambda params: params[1:]), linear=((0, 1),), kinds=SUMS, local=_local_slice_add
    ),
    indexing.SLICE_SCATTER: Rule(
        _into(lambda params: params), linear=((0, 1),), kinds=ANY, local=_local_slice_scatter
    ),
    shaping.CAT: Rule(_joined, linear=EVERY, kinds=ANY),
    rearranging.TRIL: _TRIANGLE,
    rearranging.TRIU: _TRIANGLE,
}
