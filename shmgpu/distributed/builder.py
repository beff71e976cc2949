"""Adds operations to local programs: the same for all members, or one for each.

Owns what a member does whose piece is empty: it contributes a value that leaves the outcome of the
others as it is. Never chooses an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.distributed.draft import Draft, Entry, common
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.rules.base import Made
from shmgpu.ops import (
    batch_normalising,
    collective,
    creation,
    indexing,
    linear,
    losses,
    normalising,
    reductions,
    stretching,
    windows,
)
from shmgpu.ops.graph import Op, Params, Spec, spec_of
from shmgpu.ops.program import Program
from shmgpu.ops.promotion import CATEGORY, FLOAT, bool_

# What a member without elements contributes to a reduction of each kind: it leaves the outcome of
# the others as it is.
REDUCTION_OF: dict[Op, str] = {
    stretching.SUM: "sum",
    reductions.AMAX: "max",
    reductions.AMIN: "min",
    reductions.ALL: "min",
    reductions.ANY: "max",
    reductions.PROD: "prod",
    linear.MATMUL: "sum",
    linear.LINEAR: "sum",
    windows.CONV2D: "sum",
    windows.CONV2D_INPUT: "sum",
    windows.CONV2D_WEIGHT: "sum",
    normalising.LAYER_NORM_WEIGHT: "sum",
    batch_normalising.BATCH_NORM_SUMS: "sum",
    indexing.EMBEDDING: "sum",
    indexing.EMBEDDING_BACKWARD: "sum",
    indexing.GATHER: "sum",
    losses.NLL: "sum",
}


class Builder:
    """Adds operations, as :class:`shmgpu.distributed.rules.base.Builder` says, and a few more."""

    def __init__(self, program: Program, mesh: Mesh, leaves: Sequence[Layout]) -> None:
        self.mesh = mesh
        self.ranks = range(mesh.size)
        self.draft = Draft(program, mesh)
        self.step = -1
        self._rules: dict[Any, Spec] = {}
        self._numbers: dict[Any, int] = {}
        for spec, layout, resident in zip(program.arrays, leaves, program.resident, strict=True):
            local = layout.local_specs(spec) if resident else spec
            self.draft.specs.append(list(local) if isinstance(local, tuple) else local)
        self.draft.specs.extend(program.numbers)

    # ---- what rules ask for ----------------------------------------------------------------------

    def spec_at(self, value: int, rank: int) -> Spec:
        """Type and shape of a member's value."""
        return self.draft.spec_at(value, rank)

    def number(self, value: complex, spec: Spec) -> int:
        """A plain number that is the same each time."""
        if CATEGORY[spec.dtype] == FLOAT:
            value = float(value)  # type: ignore[arg-type]
        key = (repr(value), spec)
        slot = self._numbers.get(key)
        if slot is None:
            slot = self._numbers[key] = len(self.draft.specs)
            self.draft.specs.append(spec)
            self.draft.constants[slot] = value
        return slot

    def apply(self, op: Op, inputs: Sequence[int], params: Params = ()) -> int:
        """The same operation with each member."""
        slots = tuple(inputs)
        specs = [self.draft.specs[one] for one in slots]
        if any(type(spec) is list for spec in specs):
            return self.each(lambda rank: (op, slots, params))
        return self.add(Entry(op, slots, params, self._spec_of(op, tuple(specs), params)))  # type: ignore[arg-type]

    def each(self, make: Callable[[int], Made]) -> int:
        """An operation for each rank."""
        made = [self._filled(*make(rank), rank) for rank in self.ranks]
        ops, inputs, params, specs = (common(column) for column in zip(*made, strict=True))
        return self.add(Entry(ops, inputs, params, specs))

    def all_reduce(self, value: int, op: str, axes: tuple[int, ...]) -> int:
        """Reduced along axes of the mesh."""
        if self.mesh.count(axes) == 1:
            return value
        return self.meet(collective.ALL_REDUCE, value, axes, lambda rank: (op,))

    # ---- and lowering itself ---------------------------------------------------------------------

    def add(self, entry: Entry) -> int:
        """An operation that is ready."""
        entry.step = self.step
        return self.draft.add(entry)

    def meet(self, op: Op, value: int, axes: tuple[int, ...], rest: Callable[[int], Params]) -> int:
        """A collective of one value; its number comes when all are there."""
        groups = self.mesh.groups(axes)
        places = self.mesh.places
        members = [tuple([places[one] for one in groups[rank]]) for rank in self.ranks]
        params: list[Params] = [(0, members[rank], *rest(rank)) for rank in self.ranks]
        specs = [
            self._spec_of(op, (self.spec_at(value, rank),), params[rank]) for rank in self.ranks
        ]
        return self.add(Entry(op, (value,), common(params), common(specs), axes=axes))

    def _spec_of(self, op: Op, specs: tuple[Spec, ...], params: Params) -> Spec:
        key = (op, params, specs)
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = op.rule(specs, params)
        return found

    def _filled(
        self, op: Op, inputs: tuple[int, ...], params: Params, rank: int
    ) -> tuple[Op, tuple[int, ...], Params, Spec]:
        """The operation; or, where its piece is empty, or of nothing, what stands for that."""
        specs = tuple([self.spec_at(one, rank) for one in inputs])
        spec = self._spec_of(op, specs, params)
        if 0 in spec.shape and not op.is_view:
            return self.filled(spec, 0)
        kind = REDUCTION_OF.get(op)
        if kind is not None and any(0 in one.shape for one in specs):
            return self.filled(spec, neutral(kind, spec))
        return op, inputs, params, spec

    def filled(self, spec: Spec, value: complex) -> tuple[Op, tuple[int, ...], Params, Spec]:
        """One number all over."""
        number = self.number(value, spec_of(spec.dtype, ()))
        return creation.FULL, (number,), (spec.dtype, spec.shape), spec


def neutral(kind: str, spec: Spec) -> complex:
    """What changes nothing in a reduction of that kind."""
    if kind in ("sum", "avg"):
        return -0.0 if CATEGORY[spec.dtype] == FLOAT else 0  # 0 would change -0
    if kind == "prod":
        return 1
    if spec.dtype is bool_:
        return kind == "min"
    if CATEGORY[spec.dtype] == FLOAT:
        return float("-inf" if kind == "max" else "inf")
    bits = 8 * spec.dtype.itemsize
    if spec.dtype.name.startswith("u"):
        return 0 if kind == "max" else (1 << bits) - 1
    return -(1 << (bits - 1)) if kind == "max" else (1 << (bits - 1)) - 1
