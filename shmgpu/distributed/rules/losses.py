"""Rules of losses. A mean is of all elements, so no member divides by how many it has.

Owns how a loss over a cut batch becomes a partial sum. Never averages members' means.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import (
    Rule,
    RuleBuilder,
    Scheme,
    Situation,
    Specs,
    aligned,
    elements,
)
from shmgpu.distributed.rules.finding import rows_within
from shmgpu.ops import elementwise, losses, stretching
from shmgpu.ops.graph import Op, Params, Spec, spec_of
from shmgpu.ops.promotion import int64

# ---- squared differences ---------------------------------------------------------------------


def _mse(specs: Specs, params: Params, out: Spec) -> Scheme:
    shape = specs[0].shape
    names = tuple(range(len(shape)))
    return Scheme(
        (names, names), (), shape, reduced=dict.fromkeys(names, "sum"), split=frozenset(names)
    )


def _split_mse(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    """A member's share of the sum, by the count of all."""
    difference = b.apply(elementwise.SUB, inputs)
    square = b.apply(elementwise.MUL, (difference, difference))
    axes = tuple(range(len(s.specs[0].shape)))
    total = b.apply(stretching.SUM, (square,), (axes, False))
    count = b.number(max(elements(s.specs[0]), 1), spec_of(s.step.spec.dtype, ()))
    return b.apply(elementwise.DIV, (total, count))


def _mse_backward(specs: Specs, params: Params, out: Spec) -> Scheme:
    names = tuple(range(len(out.shape)))
    return Scheme(((), names, names), names, out.shape, split=frozenset(names))


def _split_mse_backward(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    g, x, y = inputs
    share = b.number(2.0 / max(elements(s.step.spec), 1), spec_of(s.step.spec.dtype, ()))
    scaled = b.apply(elementwise.MUL, (g, share))
    return b.apply(elementwise.MUL, (b.apply(elementwise.SUB, (x, y)), scaled))


# ---- classes ---------------------------------------------------------------------------------

IGNORED = -(1 << 40)  # a class that no target names: one that a member has not


def _nll(specs: Specs, params: Params, out: Spec) -> Scheme:
    """(N, classes, ...) and (N, ...): labels are axes of the scores."""
    scores = tuple(range(len(specs[0].shape)))
    target = (0, *scores[2:])
    return Scheme(
        (scores, target), target, specs[0].shape, reduced={1: "sum"}, split=frozenset((1,))
    )


def _local_target(b: RuleBuilder, s: Situation, target: int, places: list[tuple[int, int]]) -> int:
    """Targets as a member counts its classes; those of others are to be ignored."""
    (ignored, *_), length = s.step.params, _classes(s)
    within, moved = rows_within(b, target, places, length)
    counts = b.apply(elementwise.NE, (target, b.number(ignored, spec_of(int64, ()))))
    own = b.apply(elementwise.LOGICAL_AND, (within, counts))
    return b.apply(elementwise.WHERE, (own, moved, b.number(IGNORED, spec_of(int64, ()))))


def _classes(s: Situation) -> int:
    scores = s.specs[0] if s.step.op is losses.NLL else s.step.spec
    return scores.shape[1]


def _split_nll(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    scores, target = inputs
    own = _local_target(b, s, target, [ranges[1] for ranges in s.ins[0]])
    return b.apply(losses.NLL, (scores, own), (IGNORED,))


def _nll_backward(specs: Specs, params: Params, out: Spec) -> Scheme:
    scores = tuple(range(len(out.shape)))
    target = (0, *scores[2:])
    return Scheme((target, target), scores, out.shape, split=frozenset((1,)))


def _split_nll_backward(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    g, target = inputs
    places = [ranges[1] for ranges in s.out]
    own = _local_target(b, s, target, places)
    return b.each(
        lambda rank: (
            losses.NLL_BACKWARD,
            (g, own),
            (IGNORED, places[rank][1] - places[rank][0]),
        )
    )


RULES: dict[Op, Rule] = {
    losses.BCE: Rule(aligned),
    losses.MSE: Rule(_mse, split=_split_mse),
    losses.MSE_BACKWARD: Rule(_mse_backward, linear=((0,),), split=_split_mse_backward),
    losses.NLL: Rule(_nll, linear=((0,),), split=_split_nll),
    losses.NLL_BACKWARD: Rule(_nll_backward, linear=((0,),), split=_split_nll_backward),
}
