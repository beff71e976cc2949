"""The words of the suite: probe, figure, curve, group, workload, row.

A *probe* is one variant of a workload: something that can be run for a while and yields
quantities. A *figure* is one number the suite reports: a probe's quantity, usually beside the same
quantity of a baseline probe, with what is asked of it. A *group* holds the probes that are run in
turn, A B A B, and the figures read from them. A *curve* is what figures along one quantity (the
number of children, the payload's bytes) belong to. A *workload* is a named list of groups.

This file declares and checks; it measures nothing and prints nothing.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Runner = Callable[[float], Mapping[str, float | str]]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class Unavailable(Exception):
    """A probe cannot run here; the message says in a few words why (a peer is not installed)."""


class ProbeFailed(Exception):
    """A probe ran and failed; the message says how."""


@dataclass(frozen=True)
class Asked:
    """A target such as ``>= 0.85``: for the ratio where there is a baseline, else for the value."""

    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Asked:
        """Read ``"<= 1.2"``; ValueError for anything else."""
        match = re.fullmatch(r"\s*(<=|>=|==|<|>)\s*([-+.\deE]+)\s*", text)
        if match is None:
            raise ValueError(f"a target is a comparison and a number, as in '>= 0.85': {text!r}")
        return cls(match[1], float(match[2]))

    def met_by(self, number: float) -> bool:
        """Whether ``number`` satisfies the target; NaN never does."""
        return not math.isnan(number) and _COMPARISONS[self.comparison](number, self.bound)

    def __str__(self) -> str:
        """Return the target as it is written in a row."""
        return f"{self.comparison} {self.bound:g}"


@dataclass(frozen=True)
class Probe:
    """One variant of a workload.

    ``run`` takes the seconds to measure for or, with ``counted=True``, a number of repetitions
    that the harness calibrates so that a run takes the round's seconds. It returns one number for
    each quantity in ``units``, or a few words on why it did not measure that one. ``needs`` names
    modules that must be installed; ``times`` says how many times the round's seconds a run takes.
    """

    name: str
    run: Runner
    units: Mapping[str, str]
    needs: tuple[str, ...] = ()
    counted: bool = False
    times: float = 1.0


@dataclass(frozen=True)
class Curve:
    """What several figures are points of: ``name``, over ``x`` (its name, with a unit if any).

    Figures of one curve may be spread over groups; each says where it lies and which line of the
    plot it is on. ``log`` says which of the axes are logarithmic, as in ``"xy"``.
    """

    name: str
    x: str
    log: str = "xy"


@dataclass(frozen=True)
class Point:
    """Where a figure lies: on ``curve`` at ``x``, on the line ``series``."""

    curve: Curve
    x: float
    series: str


@dataclass(frozen=True)
class Figure:
    """One reported number: quantity ``of`` (probe, quantity), beside ``against`` where given.

    ``baseline`` is the baseline's name in rows; without it the baseline probe's own name. A figure
    that is part of a curve says so by its ``point``.
    """

    name: str
    of: tuple[str, str]
    against: tuple[str, str] | None = None
    asked: str | None = None
    baseline: str | None = None
    point: Point | None = None


@dataclass(frozen=True)
class Group:
    """Probes that are run in turn, and what is read from them.

    ``seconds`` is the least a round of each probe takes, whatever the run's effort says; ``rounds``
    is the most rounds that are of use. A quick run that does not name the group leaves it out with
    ``quick=False``, and takes at most ``quick_rounds`` of it: one, where starting it costs seconds.
    """

    name: str
    probes: tuple[Probe, ...]
    figures: tuple[Figure, ...]
    seconds: float = 0.0
    rounds: int | None = None
    quick: bool = True
    quick_rounds: int | None = None

    def __post_init__(self) -> None:
        """Check that every figure can be read, and compares like with like."""
        names = [probe.name for probe in self.probes]
        if len(set(names)) != len(names):
            raise ValueError(f"group {self.name!r} has two probes of one name: {names}")
        for figure in self.figures:
            unit = self.unit_of(figure.of)
            if figure.asked is not None:
                Asked.parse(figure.asked)
            if figure.against is not None and self.unit_of(figure.against) != unit:
                raise ValueError(
                    f"figure {figure.name!r} compares {unit} with {self.unit_of(figure.against)}"
                )

    def unit_of(self, quantity: tuple[str, str]) -> str:
        """Return the unit of (probe, quantity); ValueError when there is none of that name."""
        for probe in self.probes:
            if probe.name == quantity[0] and quantity[1] in probe.units:
                return probe.units[quantity[1]]
        raise ValueError(f"group {self.name!r} has no quantity {quantity[1]!r} of {quantity[0]!r}")


@dataclass(frozen=True)
class Workload:
    """A named list of groups.

    ``about`` is one sentence for ``--list``; ``preface`` gives lines to print before measuring;
    ``quick_seconds`` is what a quick run takes for it, about: then it begins no more rounds.
    """

    name: str
    about: str
    groups: tuple[Group, ...]
    preface: Callable[[], str] | None = None
    quick_seconds: float = 30.0


@dataclass(frozen=True)
class Row:
    """One figure as it is printed and kept.

    ``value`` and ``baseline_value`` are medians over the rounds, ``ratio`` is the median of the
    rounds' own ratios (so that drift of the machine between rounds cancels). ``spread`` gives, for
    each of the three that is there, the quartiles over the rounds (from five rounds on, else the
    least and the greatest). ``notes`` say why something is missing.
    """

    name: str
    value: float | None
    unit: str
    baseline: str | None = None
    baseline_value: float | None = None
    ratio: float | None = None
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    asked: str | None = None
    met: bool | None = None
    rounds: int = 0
    notes: tuple[str, ...] = ()
    point: Point | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)
