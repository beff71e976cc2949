"""What was chosen and what it costs, for people: as data and as text.

Owns the words. Never chooses: it reports the choice that was made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shmgpu.distributed.layout import Layout
from shmgpu.distributed.lowered import Collective, Lowered
from shmgpu.distributed.placements import of_code
from shmgpu.ops.graph import Spec
from shmgpu.ops.program import Program


@dataclass(frozen=True)
class RunnerUp:
    """The next best placement of an operation's output along an axis of the mesh.

    Attributes:
        axis: of the mesh.
        placement: of the output.
        more: what it would have cost more, in bytes; see :mod:`shmgpu.distributed.choice`.
    """

    axis: int
    placement: str
    more: float


@dataclass(frozen=True)
class ExplainedStep:
    """One operation of the whole program.

    Attributes:
        slot: number of its value.
        operation: its name.
        spec: type and shape of the whole output.
        inputs: numbers of the values that it reads.
        lay: how they lay for it.
        lies: how its output lies.
        collectives: what members meet for on its behalf.
        runners_up: along each axis of the mesh where there was another way.
    """

    slot: int
    operation: str
    spec: Spec
    inputs: tuple[int, ...]
    lay: tuple[Layout, ...]
    lies: Layout
    collectives: tuple[Collective, ...]
    runners_up: tuple[RunnerUp, ...]


@dataclass(frozen=True)
class Explanation:
    """How a program is done on a mesh: ``print`` it.

    Attributes:
        lowered: what it is an explanation of.
        steps: each operation, in order.
        ending: collectives on behalf of nothing but what is kept or looked at.
        nbytes: that each member takes from others, by rank.
    """

    lowered: Lowered
    steps: tuple[ExplainedStep, ...]
    ending: tuple[Collective, ...]
    nbytes: tuple[int, ...]

    def __str__(self) -> str:
        mesh = self.lowered.mesh
        names = f" ({', '.join(mesh.names)})" if mesh.names else ""
        count = len(self.lowered.collectives)
        meetings = f"{count} collectives" if count != 1 else "1 collective"
        text = [
            f"{len(self.steps)} operations on a mesh of {' x '.join(map(str, mesh.shape))}{names}: "
            f"{meetings}, {max(self.nbytes):,} bytes that a member takes from others"
        ]
        told: set[int] = set()
        for line in self.steps:
            given = ", ".join(
                f"%{one} {layout}" for one, layout in zip(line.inputs, line.lay, strict=True)
            )
            shape = f"{line.spec.dtype.name} {line.spec.shape}"
            text.append(f"  %{line.slot} = {line.operation}({given}) -> {line.lies}   {shape}")
            text += self._meetings(line.collectives, told)
            text += [
                f"      or {one.placement} along {self._axis(one.axis)}: {one.more:,.0f} more"
                for one in line.runners_up
                if one.more >= 1  # or it is as good
            ]
        if self.ending:
            text.append("  for what is kept or looked at")
            text += self._meetings(self.ending, told)
        return "\n".join(text)

    def _meetings(self, collectives: tuple[Collective, ...], told: set[int]) -> list[str]:
        found = []
        for one in collectives:
            axes = " and ".join(self._axis(axis) for axis in one.axes)
            shapes = " or ".join(map(str, dict.fromkeys(one.shapes)))
            again = " (above)" if one.number in told else f", {max(one.nbytes):,} bytes"
            told.add(one.number)
            found.append(f"      #{one.number} {one.kind} along {axes} of {shapes}{again}")
        return found

    def _axis(self, axis: int) -> str:
        mesh = self.lowered.mesh
        return mesh.names[axis] if mesh.names else f"axis {axis}"


def explain(program: Program, lowered: Lowered) -> Explanation:
    """How the members do what ``program`` does, of which ``lowered`` came."""
    first = len(program.arrays) + len(program.numbers)
    by_step: dict[int, list[Collective]] = {}
    for one in lowered.collectives:
        for place in dict.fromkeys(one.steps):
            by_step.setdefault(place, []).append(one)
    lines = []
    for place, (step, (lay, lies)) in enumerate(zip(program.steps, lowered.placed, strict=True)):
        lines.append(
            ExplainedStep(
                slot=first + place,
                operation=step.op.name,
                spec=step.spec,
                inputs=step.inputs,
                lay=lay,
                lies=lies,
                collectives=tuple(by_step.get(place, ())),
                runners_up=_runners_up(lowered, first + place),
            )
        )
    return Explanation(lowered, tuple(lines), tuple(by_step.get(-1, ())), lowered.nbytes)


def _runners_up(lowered: Lowered, slot: int) -> tuple[RunnerUp, ...]:
    found = []
    for axis, choice in enumerate(lowered.choices):
        table = choice.tables[slot]
        chosen = choice.codes[slot]
        others = {code: cost for code, cost in (table or {}).items() if code != chosen}
        if not others or table is None or lowered.mesh.shape[axis] == 1:
            continue
        code = min(others, key=others.__getitem__)
        more = others[code] - table[chosen]
        if math.isfinite(more):
            found.append(RunnerUp(axis, str(of_code(code)), more))
    return tuple(found)
