"""A local program that is being built: all members have the same operations in the same places.

Owns what is in one place. Values have numbers: first the arrays given, then the plain numbers
given, then constants and operations in the order in which they were added. Never orders operations
or writes them: :mod:`.buckets` does the one, and :mod:`.lowered` the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shmgpu.distributed.mesh import Mesh
from shmgpu.ops.graph import Op, Params, Spec
from shmgpu.ops.program import Program


@dataclass
class Entry:
    """One operation of the local programs.

    Attributes:
        op, inputs, params, spec: of all members, or a list by rank.
        step: the place in the whole program for whose sake it is; -1 for what is wanted at the end.
        axes: of the mesh, along which members meet, if they do.
    """

    op: Op | list[Op]
    inputs: tuple[int, ...] | list[tuple[int, ...]]
    params: Params | list[Params]
    spec: Spec | list[Spec]
    step: int = -1
    axes: tuple[int, ...] = ()

    def at(self, rank: int) -> tuple[Op, tuple[int, ...], Params, Spec]:
        """A member's."""
        return (
            self.op[rank] if type(self.op) is list else self.op,  # type: ignore[return-value]
            self.inputs[rank] if type(self.inputs) is list else self.inputs,
            self.params[rank] if type(self.params) is list else self.params,
            self.spec[rank] if type(self.spec) is list else self.spec,
        )

    @property
    def is_same(self) -> bool:
        """Whether all members do the same."""
        return list not in (type(self.op), type(self.inputs), type(self.params), type(self.spec))

    @property
    def is_collective(self) -> bool:
        """Whether members meet."""
        return type(self.op) is Op and self.op.is_collective

    @property
    def is_view(self) -> bool:
        """Whether nothing is computed."""
        return type(self.op) is Op and self.op.is_view


@dataclass
class Draft:
    """Local programs on their way.

    Attributes:
        specs: of each value: of all members, or a list by rank.
        entries: operations, by the number of their value.
        constants: plain numbers that are the same each time.
        sakes: of a value that stands for several, the steps they are for.
    """

    program: Program
    mesh: Mesh
    specs: list[Spec | list[Spec]] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)
    constants: dict[int, complex] = field(default_factory=dict)
    sakes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def spec_at(self, value: int, rank: int) -> Spec:
        """Type and shape of a member's value."""
        spec = self.specs[value]
        return spec[rank] if type(spec) is list else spec  # type: ignore[return-value]

    def add(self, entry: Entry) -> int:
        """The number of the value of one more operation."""
        slot = len(self.specs)
        self.specs.append(entry.spec)
        self.entries[slot] = entry
        return slot


def common(column: Iterable[Any]) -> Any:
    """What all members have; else the list of what each has."""
    listed = list(column)
    first = listed[0]
    return first if all(one is first or one == first for one in listed) else listed
