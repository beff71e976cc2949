"""Rules of operations without an input: any axis may be cut, each member makes its own part.

What is drawn is drawn whole by each member, which then takes its part: so numbers are the same,
cut or not, for a seed. That costs each member the work of all: generators whose numbers do not
depend on how many were drawn before would change what a seed gives, and torch has none on a CPU.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import (
    Rule,
    RuleBuilder,
    Scheme,
    Situation,
    Specs,
    local_shape_at,
    shape_of,
)
from shmgpu.ops import creation, shaping
from shmgpu.ops.graph import Op, Params, Spec


def _made(specs: Specs, params: Params, out: Spec) -> Scheme:
    return Scheme(((),) * len(specs), tuple(range(len(out.shape))), out.shape)


def _made_whole(specs: Specs, params: Params, out: Spec) -> Scheme:
    names = tuple(range(len(out.shape)))
    return Scheme(((),) * len(specs), names, out.shape, split=frozenset(names))


def _part_of_whole(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    whole = b.apply(s.step.op, inputs, s.step.params)

    def part(rank: int) -> tuple[Op, tuple[int, ...], Params]:
        ranges = s.out[rank]
        starts = tuple([start for start, _ in ranges])
        stops = tuple([stop for _, stop in ranges])
        return shaping.SLICE, (whole,), (starts, stops, (1,) * len(shape_of(ranges)))

    return b.each(part)


_IN_PARTS = Rule(_made_whole, split=_part_of_whole)

RULES: dict[Op, Rule] = {
    creation.FULL: Rule(_made, local=local_shape_at(1)),
    **dict.fromkeys(
        (creation.ARANGE, creation.LINSPACE, creation.EYE, creation.RANDN, creation.RAND),
        _IN_PARTS,
    ),
}
