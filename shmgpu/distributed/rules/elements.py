"""Rules of operations on elements: any axis may be cut; few operations accept partial inputs.

Owns which operations do, such as sums and products with a number. Never moves an element.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import ANY, Rule, Specs, aligned
from shmgpu.ops import activations, casting, elementwise, transcendental, updates
from shmgpu.ops.graph import Op, Params
from shmgpu.ops.promotion import is_float


def _widens(specs: Specs, params: Params) -> bool:
    """Rounding is not linear, so of casts only those that never round."""
    (spec,), (dtype,) = specs, params
    return is_float(spec.dtype) and is_float(dtype) and dtype.itemsize > spec.dtype.itemsize


_PLAIN = Rule(aligned)
_FIRST = Rule(aligned, linear=((0,),))  # linear in the first input
_BOTH = Rule(aligned, linear=((0, 1),))  # in both at once

LINEAR: dict[Op, Rule] = {
    casting.CAST: Rule(aligned, linear=((0,),), if_linear=_widens),
    casting.CAST_PARTS: _FIRST,
    elementwise.ADD: _BOTH,
    elementwise.SUB: _BOTH,
    elementwise.ADD_SCALED: _BOTH,
    elementwise.MUL: Rule(aligned, linear=((0,), (1,))),
    elementwise.DIV: _FIRST,
    elementwise.NEG: _FIRST,
    elementwise.WHERE: Rule(aligned, linear=((1, 2),), kinds=ANY),
    elementwise.RELU_BACKWARD: _FIRST,
    elementwise.MAXIMUM: Rule(aligned, linear=((0, 1),), kinds=("max",)),
    elementwise.MINIMUM: Rule(aligned, linear=((0, 1),), kinds=("min",)),
    activations.GELU_BACKWARD: _FIRST,
    activations.SILU_BACKWARD: _FIRST,
}

_OTHERS = (activations.GELU, activations.SILU, activations.LEAKY_RELU)

RULES: dict[Op, Rule] = {
    **{
        row: _PLAIN
        for family in (elementwise, transcendental, updates)
        for row in vars(family).values()
        if isinstance(row, Op)
    },
    **dict.fromkeys(_OTHERS, _PLAIN),
    **LINEAR,
}
