"""Rules of normalisation: over features that are whole, or over a batch that may be cut.

If the batch is cut, its mean and variance are reduced over members: first the mean, then the
squares of distances from it, because the mean of squares less the square of the mean loses digits.

Owns these reductions. Never cuts the features that are normalised over.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import (
    Names,
    Rule,
    RuleBuilder,
    Scheme,
    Situation,
    Specs,
)
from shmgpu.ops import batch_normalising, casting, elementwise, normalising, shaping, stretching
from shmgpu.ops.graph import Op, Params, Spec, spec_of

# ---- of features -----------------------------------------------------------------------------


def _lead(spec: Spec, count: int) -> tuple[Names, tuple[int, ...]]:
    """Labels of the axes that are not normalised, those that are being whole; and lengths."""
    free = len(spec.shape) - count
    return (*range(free), *[None] * count), spec.shape[:free]


def _layer_norm(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, lengths = _lead(specs[0], params[0])
    tail: Names = (None,) * params[0]
    return Scheme((names, tail, tail), names, lengths)


def _moments(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, lengths = _lead(specs[0], params[0])
    return Scheme((names,), (None, *names), lengths)


def _to_input(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, lengths = _lead(specs[1], params[0])
    return Scheme((names, names, (None,) * params[0], (None, *names)), names, lengths)


def _to_weight(specs: Specs, params: Params, out: Spec) -> Scheme:
    names, lengths = _lead(specs[1], params[0])
    tail: Names = (None,) * params[0]
    reduced = dict.fromkeys(range(len(lengths)), "sum")
    return Scheme((names, names, tail, (None, *names)), tail, lengths, reduced=reduced)


# ---- of a batch ------------------------------------------------------------------------------

C = 1  # the label of channels: labels are the input's axes


def _over(spec: Spec) -> tuple[int, ...]:
    return (0, *range(2, len(spec.shape)))


def _batch_moments(specs: Specs, params: Params, out: Spec) -> Scheme:
    (x,) = specs
    one = out.nbytes // 2
    return Scheme(
        (tuple(range(len(x.shape))),),
        (None, C),
        x.shape,
        split=frozenset(_over(x)),
        moves=dict.fromkeys(_over(x), (one, one)),
    )


def _split_batch_moments(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    (x,) = inputs
    (spec,), out = s.specs, s.step.spec
    over, axes = _over(spec), s.cut_by(_over(spec))
    count = b.number(spec.nbytes // spec.dtype.itemsize // spec.shape[1], spec_of(out.dtype, ()))
    if spec.dtype is not out.dtype:
        x = b.apply(casting.CAST, (x,), (out.dtype,))

    def mean(value: int) -> int:
        total = b.all_reduce(b.apply(stretching.SUM, (value,), (over, True)), "sum", axes)
        return b.apply(elementwise.DIV, (total, count))

    middle = mean(x)
    centred = b.apply(elementwise.SUB, (x, middle))
    spread = mean(b.apply(elementwise.MUL, (centred, centred)))
    rows = [_as_row(b, one) for one in (middle, spread)]
    return b.apply(shaping.CAT, rows, (0,))


def _as_row(b: RuleBuilder, value: int) -> int:
    """(1, channels) of (1, channels, 1, ...)."""
    return b.each(lambda rank: (shaping.RESHAPE, (value,), (b.spec_at(value, rank).shape[:2],)))


def _batch_norm(specs: Specs, params: Params, out: Spec) -> Scheme:
    names = tuple(range(len(out.shape)))
    return Scheme((names, (C,), (C,), (None, C)), names, out.shape)


def _batch_sums(specs: Specs, params: Params, out: Spec) -> Scheme:
    x = specs[1]
    names = tuple(range(len(x.shape)))
    reduced = dict.fromkeys(_over(x), "sum")
    return Scheme((names, names, (None, C)), (None, C), x.shape, reduced=reduced)


def _batch_input(specs: Specs, params: Params, out: Spec) -> Scheme:
    x = specs[1]
    names = tuple(range(len(x.shape)))
    over = _over(x)
    return Scheme(
        (names, names, (C,), (None, C)),
        names,
        x.shape,
        split=frozenset(over),
        moves=dict.fromkeys(over, (specs[3].nbytes,)),
    )


def _split_batch_input(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    """``(g - mean(g) - h mean(g h)) w scale``, h being the input normalised."""
    g, x, w, moments = inputs
    spec, wide = s.specs[1], spec_of(s.specs[3].dtype, ())
    total = b.number(spec.nbytes // spec.dtype.itemsize // spec.shape[1], wide)
    sums = b.apply(batch_normalising.BATCH_NORM_SUMS, (g, x, moments), s.step.params)
    sums = b.all_reduce(sums, "sum", s.cut_by(_over(spec)))
    means = b.apply(elementwise.DIV, (sums, total))

    def channels(pair: int, place: int) -> int:
        """One row of (2, channels), so that it stretches over the input."""

        def part(rank: int) -> tuple[Op, tuple[int, ...], Params]:
            (_, n) = b.spec_at(pair, rank).shape
            return shaping.SLICE, (pair,), ((place, 0), (place + 1, n), (1, 1))

        return _stretchable(b, b.each(part), len(spec.shape))

    if s.specs[1].dtype is not wide.dtype:
        g, x, w = (b.apply(casting.CAST, (one,), (wide.dtype,)) for one in (g, x, w))
    eps = b.number(s.step.params[0], wide)
    scale = b.apply(elementwise.RSQRT, (b.apply(elementwise.ADD, (channels(moments, 1), eps)),))
    h = b.apply(elementwise.SUB, (x, channels(moments, 0)))
    h = b.apply(elementwise.MUL, (h, scale))
    rest = b.apply(elementwise.MUL, (h, channels(means, 0)))
    rest = b.apply(elementwise.ADD, (rest, channels(means, 1)))
    made = b.apply(elementwise.SUB, (g, rest))
    made = b.apply(elementwise.MUL, (made, scale))
    made = b.apply(elementwise.MUL, (made, _stretchable(b, w, len(spec.shape))))
    if s.step.spec.dtype is not wide.dtype:
        made = b.apply(casting.CAST, (made,), (s.step.spec.dtype,))
    return made


def _stretchable(b: RuleBuilder, value: int, ndim: int) -> int:
    """As many elements as there are channels, in the shape (channels, 1, ...)."""

    def shaped(rank: int) -> tuple[Op, tuple[int, ...], Params]:
        n = b.spec_at(value, rank).shape[-1]
        return shaping.RESHAPE, (value,), ((n, *[1] * (ndim - 2)),)

    return b.each(shaped)


RULES: dict[Op, Rule] = {
    normalising.LAYER_NORM: Rule(_layer_norm, linear=((1, 2),)),
    normalising.MOMENTS: Rule(_moments),
    normalising.LAYER_NORM_INPUT: Rule(_to_input, linear=((0,),)),
    normalising.LAYER_NORM_WEIGHT: Rule(_to_weight, linear=((0,),)),
    batch_normalising.BATCH_MOMENTS: Rule(_batch_moments, split=_split_batch_moments),
    batch_normalising.BATCH_NORM: Rule(_batch_norm, linear=((1, 2),)),
    batch_normalising.BATCH_NORM_SUMS: Rule(_batch_sums, linear=((0,),)),
    batch_normalising.BATCH_NORM_INPUT: Rule(
        _batch_input, linear=((0,),), split=_split_batch_input
    ),
}
