"""Triangular parts, padding, rolling, one-hot: each element's position decides what becomes of it.

Owns their rows and the functions that record them. Never moves an element by its value, except for
one-hot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import arange, full
from shmgpu.ops.elementwise import eq
from shmgpu.ops.graph import Node, Op, Params, Spec, apply
from shmgpu.ops.indexing import put_slices, whole
from shmgpu.ops.promotion import int64
from shmgpu.ops.shaping import (
    cat,
    flatten,
    flip,
    narrow,
    reshape,
    slice_backward,
    take_slices,
    unsqueeze,
)
from shmgpu.ops.stretching import expand

Specs = tuple[Spec, ...]


# ---- triangles -----------------------------------------------------------------------------------


def _triangle(name: str) -> Op:
    def rule(specs: Specs, params: Params) -> Spec:
        (x,) = specs
        if len(x.shape) < 2:
            raise ValueError(f"{name}: {x.shape} has less than the two axes of a matrix")
        return x

    def bind(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        cut, diagonal = getattr(module, name), params[0]
        return lambda x: cut(x, diagonal)

    return Op(
        name,
        rule,
        numpy=bind,
        torch=bind,
        gradients=(lambda g, n: apply(n.op, (g,), n.params),),  # type: ignore[arg-type]
    )


TRIL = _triangle("tril")
TRIU = _triangle("triu")


def tril(x: Node, diagonal: int = 0) -> Node:
    """The last two axes' lower triangle; 0 above."""
    return apply(TRIL, (x,), (rules.whole(diagonal, "tril", "diagonal"),))


def triu(x: Node, diagonal: int = 0) -> Node:
    """The last two axes' upper triangle; 0 below."""
    return apply(TRIU, (x,), (rules.whole(diagonal, "triu", "diagonal"),))


# ---- margins, turns, one of many -----------------------------------------------------------------


def _mirrored(x: Node, axis: int, before: int, after: int) -> list[Node]:
    end = x.spec.shape[axis] - 1
    return [
        flip(narrow(x, axis, 1, before), (axis,)),
        flip(narrow(x, axis, end - after, after), (axis,)),
    ]


def _from_the_other_end(x: Node, axis: int, before: int, after: int) -> list[Node]:
    length = x.spec.shape[axis]
    return [narrow(x, axis, length - before, before), narrow(x, axis, 0, after)]


def _repeated(x: Node, axis: int, before: int, after: int) -> list[Node]:
    shape, end = x.spec.shape, x.spec.shape[axis] - 1
    return [
        expand(narrow(x, axis, place, 1), (*shape[:axis], count, *shape[axis + 1 :]))
        for place, count in ((0, before), (end, after))
    ]


# Borders of the elements themselves: what makes those of an axis, and what a margin is less than.
_BORDERS: dict[str, tuple[Callable[..., list[Node]], Callable[[int], float]]] = {
    "reflect": (_mirrored, lambda length: length),
    "circular": (_from_the_other_end, lambda length: length + 1),
    "replicate": (_repeated, lambda length: math.inf if length else 1),
}


def pad(x: Node, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Node:
    """A border around the elements; ``pad`` holds (before, after) for each axis, last axis first.

    Args:
        x: a tensor.
        pad: the margins; one below 0 takes away.
        mode: ``"constant"``; or ``"reflect"``, the elements mirrored at the outermost one,
            ``"replicate"``, the outermost one again and again, ``"circular"``, those of the other
            end.
        value: of a constant border, 0 by default.

    Raises:
        ValueError: the margins do not fit the tensor, or there is no such mode.
    """
    shape = x.spec.shape
    margins = tuple(pad)
    if mode != "constant" and mode not in _BORDERS:
        raise ValueError(f"pad: mode={mode!r} must be one of constant, {', '.join(_BORDERS)}")
    if len(margins) % 2 or len(margins) > 2 * len(shape):
        raise ValueError(f"pad: {margins} must be pairs (before, after), one an axis of {shape}")
    before, after = [0] * len(shape), [0] * len(shape)
    for at in range(0, len(margins), 2):
        axis = len(shape) - 1 - at // 2
        before[axis], after[axis] = margins[at : at + 2]
    sizes = tuple([a + n + b for a, n, b in zip(before, shape, after, strict=True)])
    if min(sizes, default=0) < 0:
        raise ValueError(f"pad: {margins} takes more from {shape} than there is")
    if not any(margins):
        return x
    # A negative margin takes away.
    kept = [slice(max(-a, 0), n - max(-b, 0)) for a, n, b in zip(before, shape, after, strict=True)]
    x = take_slices(x, kept)
    if mode != "constant":
        return _bordered(x, mode, before, after)
    starts = tuple([max(a, 0) for a in before])
    stops = tuple([a + n for a, n in zip(starts, x.spec.shape, strict=True)])
    if x.spec.shape == sizes:
        return x
    if not value:
        return slice_backward(x, sizes, (starts, stops, (1,) * len(sizes)))
    slices = [slice(a, b) for a, b in zip(starts, stops, strict=True)]
    return put_slices(full(sizes, value, x.spec.dtype), slices, x)


def _bordered(x: Node, mode: str, before: Sequence[int], after: Sequence[int]) -> Node:
    make, limit = _BORDERS[mode]
    for axis, margins in enumerate(zip(before, after, strict=True)):
        length, wanted = x.spec.shape[axis], [max(one, 0) for one in margins]
        if max(wanted) >= limit(length):
            raise ValueError(
                f"pad: mode={mode!r} has too few elements on axis {axis} of {x.spec.shape} for "
                f"margins of {margins}"
            )
        if any(wanted):
            first, last = make(x, axis, *wanted)
            x = cat([first, x, last], axis)
    return x


def roll(x: Node, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Node:
    """Elements shifted along axes; those shifted past the end come in again at the beginning."""
    if dims is None:
        return reshape(roll(flatten(x), shifts, 0), x.spec.shape)
    steps = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(steps) != len(axes):
        raise ValueError(f"roll: shifts={steps} and dims={axes} must be equally many")
    for step, dim in zip(steps, axes, strict=True):
        axis = rules.axis_of(dim, len(x.spec.shape), "roll")
        length = x.spec.shape[axis]
        back = -step % length if length else 0
        if back:
            x = cat([narrow(x, axis, back, length - back), narrow(x, axis, 0, back)], axis)
    return x


def one_hot(x: Node, num_classes: int) -> Node:
    """int64: along a new last axis, 1 at the index that the element gives, 0 elsewhere."""
    if rules.whole(num_classes, "one_hot", "num_classes") < 1:
        raise ValueError(
            "one_hot: give num_classes, 1 or more: the greatest element is not known while "
            "recording"
        )
    places = arange(0, 1, num_classes, int64)
    return cast(eq(unsqueeze(whole(x, "one_hot"), -1), places), int64)
