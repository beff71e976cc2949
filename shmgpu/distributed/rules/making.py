"""Rules of operations without an input: any axis may be cut, each member makes its own part.

Random numbers are an exception: each member draws all of them and takes its part. So a seed gives
the same numbers, cut or not, though each member does the work of all. Generators that can start in
the middle would change what a seed gives, and torch has none for CPUs.

Owns what a member makes. Never adds a collective.
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
