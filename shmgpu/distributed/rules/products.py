"""Rules of products: of matrices, and of filters with windows. What is summed over may be cut.

Owns who adds a bias if members share a sum: the first of them, so that it counts once. Never adds
up the partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shmgpu.distributed.layout import Ranges
from shmgpu.distributed.rules.base import (
    OUT,
    Names,
    Rule,
    Scaled,
    Scheme,
    Specs,
    Taken,
    elements,
    shape_of,
)
from shmgpu.ops import linear, windows
from shmgpu.ops.graph import Op, Params, Spec


def _matmul(specs: Specs, params: Params, out: Spec) -> Scheme:
    """(..., n, k) and (..., k, m) -> (..., n, m); a vector has k alone."""
    a, b = specs[0].shape, specs[1].shape
    lead = len(out.shape) - (len(a) > 1) - (len(b) > 1)
    k = len(out.shape)
    batch = out.shape[:lead]

    def leading(shape: tuple[int, ...]) -> Names:
        first = lead - len(shape)
        return tuple([label if n == batch[label] else None for label, n in enumerate(shape, first)])

    left = (*leading(a[:-2]), lead, k) if len(a) > 1 else (k,)
    right = (*leading(b[:-2]), k, len(out.shape) - 1) if len(b) > 1 else (k,)
    lengths = (*out.shape, a[-1])
    return Scheme((left, right), tuple(range(k)), lengths, reduced={k: "sum"})


def _layer(specs: Specs, params: Params, out: Spec) -> Scheme:
    """(..., k) with (m, k) and (m,) -> (..., m)."""
    x = specs[0].shape
    m, k = len(out.shape) - 1, len(out.shape)
    inputs: tuple[Names, ...] = ((*range(m), k), (m, k), (m,))
    return Scheme(inputs[: len(specs)], tuple(range(k)), (*out.shape, x[-1]), reduced={k: "sum"})


def _matmul_work(specs: Specs, out: Spec) -> int:
    return elements(out) * specs[0].shape[-1]


# ---- convolution -----------------------------------------------------------------------------

IMAGES, IN, ANSWERS, GROUPS = range(4)  # images, channels in, channels out, groups of channels


def _convolution(
    image: Spec, filters: Spec, answer: Spec, groups: int
) -> tuple[Names, Names, Names, tuple[int, ...], dict[str, Scaled]]:
    """Labels of images, filters and answers; and how axes scale where groups are cut."""
    lengths = (image.shape[0], image.shape[1], answer.shape[1], groups)
    if groups == 1:
        return (
            (IMAGES, IN, None, None),
            (ANSWERS, IN, None, None),
            (IMAGES, ANSWERS, None, None),
            lengths,
            {},
        )
    scales = {"in": Scaled(image.shape[1] // groups), "out": Scaled(answer.shape[1] // groups)}
    return (
        (IMAGES, GROUPS, None, None),
        (GROUPS, None, None, None),
        (IMAGES, GROUPS, None, None),
        lengths,
        {name: one for name, one in scales.items() if one.factor > 1},
    )


def _maps(
    scales: dict[str, Scaled], places: dict[str, list[tuple[int, int]]]
) -> dict[tuple[int, int], Scaled | Taken]:
    return {place: one for name, one in scales.items() for place in places[name]}


def _conv2d(specs: Specs, params: Params, out: Spec) -> Scheme:
    x, w, y, lengths, scales = _convolution(specs[0], specs[1], out, params[3])
    inputs: tuple[Names, ...] = (x, w, (w[0],))
    maps = _maps(scales, {"in": [(0, 1)], "out": [(1, 0), (2, 0), (OUT, 1)]})
    return Scheme(inputs[: len(specs)], y, lengths, reduced={IN: "sum"}, maps=maps)


def _conv2d_input(specs: Specs, params: Params, out: Spec) -> Scheme:
    x, w, y, lengths, scales = _convolution(out, specs[1], specs[0], params[4])
    maps = _maps(scales, {"in": [(OUT, 1)], "out": [(1, 0), (0, 1)]})
    return Scheme((y, w), x, lengths, reduced={ANSWERS: "sum"}, maps=maps)


def _conv2d_weight(specs: Specs, params: Params, out: Spec) -> Scheme:
    x, w, y, lengths, scales = _convolution(specs[1], out, specs[0], params[4])
    maps = _maps(scales, {"in": [(1, 1)], "out": [(OUT, 0), (0, 1)]})
    return Scheme((y, x), w, lengths, reduced={IMAGES: "sum"}, maps=maps)


# Groups follow from how many channels each has, which no cut changes.


def _local_conv2d(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    *rest, groups = params
    if groups == 1:
        return params
    (low, high), each = ins[0][1], ins[1][1]
    return (*rest, (high - low) // (each[1] - each[0]))


def _local_conv2d_input(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    _, *rest, groups = params
    if groups > 1:
        (low, high), each = out[1], ins[1][1]
        groups = (high - low) // (each[1] - each[0])
    return (shape_of(out), *rest, groups)


def _local_conv2d_weight(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    _, *rest, groups = params
    if groups > 1:
        (low, high), each = ins[1][1], out[1]
        groups = (high - low) // (each[1] - each[0])
    return (shape_of(out), *rest, groups)


def _conv2d_work(specs: Specs, out: Spec) -> int:
    return elements(out) * math.prod(specs[1].shape[1:])


def _back_work(specs: Specs, out: Spec) -> int:
    return elements(specs[0]) * math.prod(specs[1].shape[1:])


def _channels(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Pooling: images and channels; rows and columns are whole."""
    names = (IMAGES, IN, None, None)
    return Scheme((names,), names, out.shape[:2])


def _local_shape_first(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
    return (shape_of(out), *params[1:])


RULES: dict[Op, Rule] = {
    linear.MATMUL: Rule(_matmul, linear=((0,), (1,)), work=_matmul_work),
    linear.LINEAR: Rule(
        _layer, linear=((0,), (1,), (0, 2), (1, 2)), once={2: "drop"}, work=_matmul_work
    ),
    windows.CONV2D: Rule(
        _conv2d,
        linear=((0,), (1,), (0, 2), (1, 2)),
        once={2: "drop"},
        local=_local_conv2d,
        work=_conv2d_work,
    ),
    windows.CONV2D_INPUT: Rule(
        _conv2d_input, linear=((0,), (1,)), local=_local_conv2d_input, work=_back_work
    ),
    windows.CONV2D_WEIGHT: Rule(
        _conv2d_weight, linear=((0,), (1,)), local=_local_conv2d_weight, work=_back_work
    ),
    windows.MAX_POOL2D: Rule(_channels),
    windows.MAX_POOL2D_INDICES: Rule(_channels),
    windows.AVG_POOL2D: Rule(_channels, linear=((0,),)),
    windows.AVG_POOL2D_BACKWARD: Rule(_channels, linear=((0,),), local=_local_shape_first),
}
