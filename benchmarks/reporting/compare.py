"""Two kept runs, row by row: what became better, what worse, and what is only noise.

A row's *number* is its ratio where both runs have one against the same baseline, because ratios
taken side by side outlive a change of machine and hour; else it is its value. Two numbers differ
when both are true:

- their *bands* lie apart. A band is the row's spread (the quartiles over the rounds; least and
  greatest of fewer than five) with three quarters of its width added at either end. Of things
  compared with themselves, the spreads alone lie apart in one case of twenty, which in a table of
  hundreds is a false alarm in every run; the bands in one of seven hundred (seven rounds) or of two
  hundred and fifty (three);
- they are more than ``LEAST_CHANGE`` apart, relative to the old one: less than that decides nothing
  for a user, however surely it was measured.

Which of two different numbers is better follows from the row's target, or else from its unit
(``measure/units.py``). Every other pair is the same, or was measured in one of the runs only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from benchmarks.measure.figures import Asked, Row
from benchmarks.measure.units import LESS, MORE, better
from benchmarks.reporting.results import Result
from benchmarks.reporting.table import aligned, number

LEAST_CHANGE = 0.05
MARGIN = 0.75  # of a spread's width, added at either end of it


class Change(str, Enum):
    """What became of a row."""

    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"  # nobody said which way is better
    SAME = "same"
    MISSING = "missing"  # measured in the old run only
    NEW = "new"  # measured in the new run only


@dataclass(frozen=True)
class Comparison:
    """One row of both runs.

    ``of`` says which number was judged, "ratio" or "value"; ``change`` is the new number relative
    to the old one, less one, and None where either is missing.
    """

    name: str
    verdict: Change
    of: str
    unit: str
    old: float | None
    new: float | None
    old_spread: tuple[float, float] | None = None
    new_spread: tuple[float, float] | None = None
    change: float | None = None


def direction(row: Row) -> int | None:
    """Return MORE or LESS, whichever is better for the row's number, or None if nobody said."""
    if row.asked is not None:
        comparison = Asked.parse(row.asked).comparison
        if comparison != "==":
            return MORE if comparison.startswith(">") else LESS
    return better(row.name, row.unit)


def band(number: float, spread: tuple[float, float] | None) -> tuple[float, float]:
    """Return where the number may lie in a run like this one; a lone number is its own band."""
    low, high = spread or (number, number)
    margin = MARGIN * (high - low)
    return min(low, number) - margin, max(high, number) + margin


def change_of(old: float, new: float) -> float:
    """Return the new number relative to the old one, less one; from zero to more is infinite."""
    if old == new:
        return 0.0
    return math.copysign(math.inf, new) if old == 0 else (new - old) / abs(old)


def judge(old: Row | None, new: Row | None, least_change: float = LEAST_CHANGE) -> Comparison:
    """Return what became of a row; one of the two may be absent."""
    row = new or old
    if row is None:
        raise ValueError("there is no row to judge")
    of = "ratio" if old and new and _both_ratios(old, new) else "value"
    # Numbers of different units are never compared: the old one counts as not measured.
    if old and new and of == "value" and old.unit != new.unit:
        old = None
    was, now = (getattr(side, of) if side else None for side in (old, new))
    spreads = [side.spread.get(of) if side else None for side in (old, new)]
    change = None if was is None or now is None else change_of(was, now)
    if change is not None:
        verdict = Change.SAME
        if abs(change) > least_change and _apart(band(was, spreads[0]), band(now, spreads[1])):
            verdict = _turn(change, direction(row))
    elif was is now:  # neither run could measure it: a peer that is not installed
        verdict = Change.SAME
    else:
        verdict = Change.NEW if was is None else Change.MISSING
    unit = "" if of == "ratio" else row.unit
    return Comparison(row.name, verdict, of, unit, was, now, *spreads, change)


def _both_ratios(old: Row, new: Row) -> bool:
    return None not in (old.ratio, new.ratio) and old.baseline == new.baseline


def _apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[1] < other[0] or other[1] < one[0]


def _turn(change: float, wanted: int | None) -> Change:
    if wanted is None:
        return Change.CHANGED
    return Change.BETTER if change * wanted > 0 else Change.WORSE


def compare(
    old: Iterable[Row], new: Iterable[Row], least_change: float = LEAST_CHANGE
) -> list[Comparison]:
    """Return a verdict for every row of either run, the new run's order first."""
    before = {row.name: row for row in old}
    after = {row.name: row for row in new}
    names = dict.fromkeys([*after, *before])
    return [judge(before.get(name), after.get(name), least_change) for name in names]


# What makes numbers of two runs incomparable, and how it is called in the warning.
_CONDITIONS = {
    "cpu": "processor",
    "cores": "cores",
    "cores_allowed": "cores allowed",
    "governor": "frequency governor",
    "container": "limits of the container",
    "memory_bytes": "memory",
    "kernel": "kernel",
    "machine": "architecture",
    "gpus": "GPUs",
    "python": "Python",
    "libc": "C library",
    "compiler": "compiler",
    "flags": "compiler flags",
    "huge_pages": "transparent huge pages",
    "settings": "SHMGPU_* settings",
}


def differences(old: Result, new: Result) -> list[str]:
    """Return a warning for everything that differs between the runs besides the code."""
    warnings = []
    if old.quick != new.quick:
        words = {True: "a quick run", False: "a full run"}
        warnings.append(
            f"{words[old.quick]} beside {words[new.quick]}: short rounds are not long ones"
        )
    for run, name in ((old, "the old one"), (new, "the new one")):
        if run.stopped:
            warnings.append(f"{name} was stopped early, and lacks rows")
    for key, name in _CONDITIONS.items():
        if key in old.environment and key in new.environment:
            was, now = (_said(result.environment[key], key) for result in (old, new))
            if was != now:
                warnings.append(f"{name}: {was} and now {now}")
    was, now = (result.environment.get("packages") or {} for result in (old, new))
    for package in sorted(was.keys() & now.keys()):
        if was[package] != now[package] and package != "shmgpu":
            warnings.append(f"{package}: {_said(was[package])} and now {_said(now[package])}")
    return warnings


def _said(value: Any, key: str = "") -> str:
    """Return a condition in words, no finer than what matters."""
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / (1 << 30):.1f} GiB"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


HEADINGS = ("row", "verdict", "of", "old", "spread", "new", "spread", "change")
_LEFT = frozenset({0, 1, 2, 4, 6})
_LOUDEST_FIRST = list(Change)


def text(comparisons: Iterable[Comparison], everything: bool = False) -> str:
    """Return the verdicts as a table, the worst first, and their sum.

    Rows that are the same are left to the sum, unless ``everything`` is wanted.
    """
    comparisons = list(comparisons)
    counts = Counter(item.verdict for item in comparisons)
    shown = [item for item in comparisons if everything or item.verdict is not Change.SAME]
    shown.sort(key=lambda item: _LOUDEST_FIRST.index(item.verdict))
    total = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Change if counts[verdict])
    total = f"{len(comparisons)} rows: {total or 'nothing to compare'}"
    if not shown:
        return total
    return f"{aligned([HEADINGS, *map(_cells, shown)], _LEFT)}\n\n{total}"


def _cells(item: Comparison) -> tuple[str, ...]:
    def span(pair: tuple[float, float] | None) -> str:
        return f"{number(pair[0])} .. {number(pair[1])}" if pair else "-"

    return (
        item.name,
        item.verdict.value,
        f"{item.of} {item.unit}".rstrip(),
        number(item.old),
        span(item.old_spread),
        number(item.new),
        span(item.new_spread),
        "-" if item.change is None else f"{100 * item.change:+.1f} %",
    )


def as_data(comparisons: Iterable[Comparison], warnings: Iterable[str]) -> dict[str, Any]:
    """Return verdicts and warnings as plain data."""
    rows = [{**asdict(item), "verdict": item.verdict.value} for item in comparisons]
    return {"warnings": list(warnings), "rows": rows}
