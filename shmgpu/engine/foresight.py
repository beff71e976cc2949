"""Random numbers that are drawn while nobody waits for them.

A child whose programs have drawn the same twice in a row, with seeds that follow on each other,
will most likely draw it with the next ones: that is done when the second run has been answered.
What was drawn for one seed is what that seed gives: a guess that fails costs time and changes
nothing. Owns the guess, and what was drawn for it. Never decides what a seed gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmgpu.engine.backends import Backend
from shmgpu.ops.creation import DRAWN, DrawnAhead
from shmgpu.ops.program import Program

MIN_BYTES = 1 << 14  # that a program draws; fewer are drawn as quickly as they are kept
MAX_BYTES = 8 << 20  # for more, the memory is worth more than the time saved


def seeds_of(program: Program) -> set[int]:
    """Places of numbers that do nothing but seed."""
    first = len(program.arrays)
    seeds: set[int] = set()
    others: set[int] = set()
    for step in program.steps:
        drawn = step.op in DRAWN
        (seeds if drawn else others).update(one - first for one in step.inputs)
    return {one for one in seeds - others if 0 <= one < len(program.numbers)}


@dataclass(frozen=True)
class Draws:
    """What a program draws, where that is worth drawing ahead.

    Attributes:
        places: of the seeds among the program's numbers.
        kinds: what is drawn for each: operation, params, spec.
        kernels: what draws for each.
    """

    places: tuple[int, ...] = ()
    kinds: tuple[Any, ...] = ()
    kernels: tuple[Any, ...] = ()

    @classmethod
    def of(cls, program: Program, backend: Backend) -> Draws:
        """Those of a program; none on a device, which draws beside, nor with NumPy."""
        if not backend.is_host or backend.name != "torch":
            return cls()
        places = seeds_of(program)
        first = len(program.arrays)
        found = {
            step.inputs[0] - first: step
            for step in program.steps
            if step.op in DRAWN and step.inputs[0] - first in places
        }
        steps = dict(sorted(found.items()))
        if not MIN_BYTES <= sum(step.spec.nbytes for step in steps.values()) <= MAX_BYTES:
            return cls()
        return cls(
            tuple(steps),
            tuple((step.op, step.params, step.spec) for step in steps.values()),
            tuple(
                backend.kernel(step.op, (program.numbers[place],), step.params, step.spec)
                for place, step in steps.items()
            ),
        )


class Foresight:
    """What a child is expected to draw next.

    Attributes:
        is_likely: it did what was expected the last time.
    """

    __slots__ = ("_arrays", "_draws", "_seeds", "is_likely")

    def __init__(self) -> None:
        self._draws = Draws()
        self._seeds: list[int] = []
        self._arrays: list[DrawnAhead] = []
        self.is_likely = False

    def meet(self, draws: Draws, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """A run with these numbers: they, with what was drawn already in the place of its seed."""
        seeds = [numbers[place] for place in draws.places]
        self.is_likely = draws.kinds == self._draws.kinds and seeds == self._seeds
        if self.is_likely and self._arrays:
            given = list(numbers)
            for place, array in zip(draws.places, self._arrays, strict=True):
                given[place] = array
            numbers = tuple(given)
        self._draws = draws
        self._seeds = [seed + len(seeds) for seed in seeds]
        self._arrays = []
        return numbers

    def draw(self) -> None:
        """Draw what is expected."""
        draws = zip(self._draws.kernels, self._seeds, strict=True)
        self._arrays = [DrawnAhead(kernel(seed)) for kernel, seed in draws]
