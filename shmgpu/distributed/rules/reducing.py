"""Rules of operations along an axis: reductions, orders, running sums, softmax.

Owns which outcomes are partial, and how softmax runs along an axis that is cut: its maximum and its
sum are reduced over the members. Never gathers that axis.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import (
    SUMS,
    Rule,
    RuleBuilder,
    Scheme,
    SchemeOf,
    Situation,
    Specs,
    along,
)
from shmgpu.ops import activations, elementwise, ordering, reductions, stretching
from shmgpu.ops.graph import Op, Params, Spec


def _reduced_by(op: str) -> SchemeOf:
    def scheme(specs: Specs, params: Params, out: Spec) -> Scheme:
        axes, keepdim = params
        shape = specs[0].shape
        kept: list[int | None] = []
        for axis in range(len(shape)):
            if axis not in axes:
                kept.append(axis)
            elif keepdim:
                kept.append(None)
        names = tuple(range(len(shape)))
        return Scheme((names,), tuple(kept), shape, reduced=dict.fromkeys(axes, op))

    return scheme


def _reduction(op: str, kinds: tuple[str, ...]) -> Rule:
    return Rule(_reduced_by(op), linear=((0,),), kinds=kinds)


def _found(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Of argmax and argmin: (axis, keepdim)."""
    axis, keepdim = params
    shape = specs[0].shape
    names = tuple([None if at == axis else at for at in range(len(shape))])
    kept = names if keepdim else tuple([at for at in names if at is not None])
    return Scheme((names,), kept, shape)


def _first(params: Params) -> int:
    axis: int = params[0]
    return axis


# ---- softmax, also of an axis that is cut ----------------------------------------------------


def _softmax(reductions_within: int) -> SchemeOf:
    """The axis, too, may be cut: its maximum, its sum or both are reduced on the way."""

    def scheme(specs: Specs, params: Params, out: Spec) -> Scheme:
        (axis,) = params
        names = tuple(range(len(out.shape)))
        if not names:
            return Scheme(((),) * len(specs), (), ())
        one = out.nbytes // max(out.shape[axis], 1)
        return Scheme(
            (names,) * len(specs),
            names,
            out.shape,
            split=frozenset((axis,)),
            moves={axis: (one,) * reductions_within},
        )

    return scheme


def _summed(b: RuleBuilder, s: Situation, value: int) -> int:
    (axis,) = s.step.params
    return b.all_reduce(b.apply(stretching.SUM, (value,), ((axis,), True)), "sum", s.axes[axis])


def _shifted(b: RuleBuilder, s: Situation, x: int) -> int:
    (axis,) = s.step.params
    most = b.all_reduce(b.apply(reductions.AMAX, (x,), ((axis,), True)), "max", s.axes[axis])
    return b.apply(elementwise.SUB, (x, most))


def _split_softmax(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    e = b.apply(elementwise.EXP, (_shifted(b, s, inputs[0]),))
    return b.apply(elementwise.DIV, (e, _summed(b, s, e)))


def _split_log_softmax(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    moved = _shifted(b, s, inputs[0])
    total = _summed(b, s, b.apply(elementwise.EXP, (moved,)))
    return b.apply(elementwise.SUB, (moved, b.apply(elementwise.LOG, (total,))))


def _split_softmax_backward(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    g, y = inputs
    total = _summed(b, s, b.apply(elementwise.MUL, (g, y)))
    return b.apply(elementwise.MUL, (y, b.apply(elementwise.SUB, (g, total))))


def _split_log_softmax_backward(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    g, y = inputs
    share = b.apply(elementwise.MUL, (b.apply(elementwise.EXP, (y,)), _summed(b, s, g)))
    return b.apply(elementwise.SUB, (g, share))


RULES: dict[Op, Rule] = {
    stretching.SUM: _reduction("sum", SUMS),
    reductions.AMAX: _reduction("max", ("max",)),
    reductions.AMIN: _reduction("min", ("min",)),
    reductions.ALL: _reduction("min", ()),
    reductions.ANY: _reduction("max", ()),
    reductions.PROD: _reduction("prod", ("prod",)),
    ordering.ARGMAX: Rule(_found),
    ordering.ARGMIN: Rule(_found),
    ordering.ARGSORT: Rule(along(_first)),
    ordering.CUMSUM: Rule(along(_first), linear=((0,),)),
    ordering.CUMPROD: Rule(along(_first)),
    activations.SOFTMAX: Rule(_softmax(2), split=_split_softmax),
    activations.LOG_SOFTMAX: Rule(_softmax(2), split=_split_log_softmax),
    activations.SOFTMAX_BACKWARD: Rule(
        _softmax(1),
        linear=((0,),),
        split=_split_softmax_backward,
    ),
    activations.LOG_SOFTMAX_BACKWARD: Rule(
        _softmax(1),
        linear=((0,),),
        split=_split_log_softmax_backward,
    ),
}
