"""How each operation may be done on pieces: a rule for each row of the table of operations.

If a row has no rule, each member computes it whole. That is right, but every member does all of the
work. Rows that have no rule for a reason are in :data:`WHOLE`; a test lists the others. Never
chooses between the ways that a rule allows: :mod:`shmgpu.distributed.choice` does.
"""

from __future__ import annotations

from shmgpu.distributed.rules import (
    elements,
    finding,
    losses,
    making,
    moving,
    normalising,
    products,
    reducing,
    solving,
)
from shmgpu.distributed.rules.base import Rule
from shmgpu.ops.graph import Op

RULES: dict[Op, Rule] = {
    row: rule
    for family in (
        elements,
        moving,
        reducing,
        products,
        solving,
        normalising,
        losses,
        finding,
        making,
    )
    for row, rule in family.RULES.items()
}

# Rows that lowering replaces itself, or that only lowered programs have.
LOWERED_OTHERWISE = {
    "alias": "the value is its input's, wherever that lies",
    "checkpoint": "likewise; its other inputs are of concern to gradients alone",
    "redistribute": "says itself how its output lies",
    "to_local": "likewise",
    "from_local": "likewise",
}
WHOLE: dict[str, str] = {}
