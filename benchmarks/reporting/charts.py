"""Rows that are points of curves, put together: one chart for each curve and unit.

A chart has lines, and a line has marks. A row's ``value`` is a mark on the line of its series, and
its ``baseline_value`` one on a line of the baseline's name. A baseline that was measured anew for
each series (the relay with a window of 1, and of 16) gets a line for each. This file decides what
belongs together; it formats nothing and draws nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from benchmarks.measure.figures import Curve, Row
from benchmarks.measure.units import MORE, better

OURS = "shmgpu"


@dataclass(frozen=True)
class Mark:
    """One point of a line, in the chart's unit; ``spread`` is (low, high) where there is one."""

    value: float
    spread: tuple[float, float] | None = None


@dataclass
class Line:
    """One line of a chart: ``marks`` by x.

    A baseline's line names in ``beside`` the one series that it stands beside, or None where it
    stands beside all.
    """

    name: str
    baseline: bool = False
    beside: str | None = None
    marks: dict[float, Mark] = field(default_factory=dict)


@dataclass
class Chart:
    """All that was measured on one curve in one unit.

    ``ratios`` gives the row that holds a ratio: (series, baseline) -> x -> row.
    """

    workload: str
    curve: Curve
    unit: str
    rows: list[Row]
    lines: list[Line]
    ratios: dict[tuple[str, str], dict[float, Row]]

    @property
    def title(self) -> str:
        """Return the curve's name, after its workload's unless that begins it."""
        name = self.curve.name
        return name if name.startswith(self.workload) else f"{self.workload}: {name}"

    @property
    def heading(self) -> str:
        """Return the title with the unit, said once."""
        unit = f"[{self.unit}]"
        return self.title if unit in self.title else f"{self.title} {unit}"

    @property
    def xs(self) -> list[float]:
        """Return where something was measured, in rising order."""
        return sorted({x for line in self.lines for x in line.marks})

    def best_of_families(self) -> Chart:
        """Return the chart with one line, the best, of each family."""
        way = better("", self.unit) or MORE
        families: dict[str, list[Line]] = {}
        for line in self.lines:
            families.setdefault(family(line.name), []).append(line)
        lines = []
        for mine in families.values():
            # Configurations that could not carry the largest payloads are compared on the rest.
            common = set.intersection(*(set(line.marks) for line in mine)) or set(self.xs)
            lines.append(max(mine, key=lambda line, at=common: way * _level(line, at)))  # type: ignore[misc]
        return replace(self, lines=lines)

    def line(self, name: str) -> Line | None:
        """Return the line of that name."""
        return next((line for line in self.lines if line.name == name), None)


def workload_of(row: Row) -> str:
    """Return the name of the workload that a row is of."""
    return row.name.partition(".")[0]


def family(name: str) -> str:
    """Return whose configuration a line is: "ZeroMQ" of "ZeroMQ (copy)" and of "ZeroMQ, copy"."""
    return re.split(r",| \(", name)[0]


def _level(line: Line, xs: Iterable[float]) -> float:
    """Return the mean of the logarithms of a line's marks at ``xs``."""
    logs = [
        math.log(line.marks[x].value) for x in xs if x in line.marks and line.marks[x].value > 0
    ]
    return sum(logs) / len(logs) if logs else 0.0


def charts_of(rows: Iterable[Row]) -> list[Chart]:
    """Return the charts of the rows, in the order in which they first appear."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.point is not None:
            key = (workload_of(row), row.point.curve.name, row.unit)
            found.setdefault(key, []).append(row)
    return [_chart(workload, unit, rows) for (workload, _name, unit), rows in found.items()]


def _chart(workload: str, unit: str, rows: list[Row]) -> Chart:
    ours: dict[str, Line] = {}
    theirs: dict[tuple[str, str], Line] = {}
    ratios: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        assert row.point is not None
        x, series = row.point.x, row.point.series
        if row.value is not None:
            line = ours.setdefault(series, Line(series))
            line.marks[x] = Mark(row.value, row.spread.get("value"))
        if row.baseline is None or row.baseline == series:
            continue
        if row.baseline_value is not None:
            line = theirs.setdefault((row.baseline, series), Line(row.baseline, True, series))
            line.marks[x] = Mark(row.baseline_value, row.spread.get("baseline_value"))
        if row.ratio is not None:
            ratios.setdefault((series, row.baseline), {})[x] = row
    lines = [*ours.values(), *_baselines(theirs, ours)]
    lines.sort(key=lambda line: family(line.name) != OURS)
    curve = rows[0].point.curve if rows[0].point else Curve("", "")
    return Chart(workload, curve, unit, rows, lines, ratios)


def _baselines(theirs: dict[tuple[str, str], Line], ours: dict[str, Line]) -> list[Line]:
    """Join the lines of one baseline, unless two series saw different values of it at one x."""
    lines = []
    for name in dict.fromkeys(name for name, _series in theirs):
        same = [line for (other, _series), line in theirs.items() if other == name]
        joined = Line(name, True, marks={x: m for line in same for x, m in line.marks.items()})
        if all(joined.marks[x] == mark for line in same for x, mark in line.marks.items()):
            if name not in ours:
                lines.append(joined)
            else:
                ours[name].marks = {**joined.marks, **ours[name].marks}
        else:
            for line in same:
                line.name = f"{name} ({line.beside})"
                lines.append(line)
    return lines
