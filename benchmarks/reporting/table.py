"""Rows as text for people: figures one a line, curves one a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.measure.figures import Row
from benchmarks.reporting.charts import Chart, charts_of, plain_rows

HEADINGS = ("figure", "value", "", "baseline", "its value", "ratio", "spread", "asked", "met")
_LEFT = frozenset({0, 2, 3, 7, 8})
_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def number(value: float | None) -> str:
    """Return a number in at most four digits that matter, thousands separated."""
    if value is None:
        return "-"
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def place(x: float, quantity: str) -> str:
    """Return a place on the axis ``quantity``: bytes as "64 KiB", other things as a number."""
    if "byte" in quantity:
        for prefix, size in _BINARY:
            if x >= size:
                return f"{x / size:.4g} {prefix}"
        return f"{x:.4g} B"
    return number(x)


def ratio_text(ratio: float | None) -> str:
    """Return a ratio with three decimals, a small one with two digits that matter."""
    if ratio is None:
        return "-"
    return f"{ratio:.3f}" if abs(ratio) >= 0.01 or ratio == 0 else f"{ratio:.2g}"


def spread_text(row: Row) -> str:
    """Return the ratio's spread, or the value's where there is no ratio."""
    pair = row.spread.get("ratio") or row.spread.get("value")
    return f"{number(pair[0])} .. {number(pair[1])}" if pair else "-"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        number(row.value),
        row.unit,
        row.baseline or "-",
        number(row.baseline_value),
        ratio_text(row.ratio),
        spread_text(row),
        row.asked or "",
        {True: "yes", False: "NO", None: ""}[row.met],
    )


def aligned(lines: Sequence[Sequence[str]], left: frozenset[int] = frozenset()) -> str:
    """Return the lines under the first as heading; the columns ``left`` are set to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in [lines[0], ["-" * width for width in widths], *lines[1:]]:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def chart_lines(chart: Chart) -> list[list[str]]:
    """Return a chart as cells, heading first: x down; values across, then ratios to baselines."""
    heading = [chart.curve.x, *(line.name for line in chart.lines)]
    heading += [f"{series} / {baseline}" for series, baseline in chart.ratios]
    lines = [heading]
    for x in chart.xs:
        marks = [line.marks.get(x) for line in chart.lines]
        ratios = [rows.get(x) for rows in chart.ratios.values()]
        lines.append(
            [place(x, chart.curve.x)]
            + [number(mark.value if mark else None) for mark in marks]
            + [ratio_text(row.ratio if row else None) for row in ratios]
        )
    return lines


def notes_of(rows: Sequence[Row]) -> list[str]:
    """Return each note once, after the names of the rows that have it."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            notes.setdefault(note, []).append(row.name)
    return [f"{_some(names)}: {note}" for note, names in notes.items()]


def only_noted(row: Row) -> bool:
    """Return whether a row has no number, and a note that says why."""
    return row.value is None and row.baseline_value is None and bool(row.notes)


def _some(names: list[str], most: int = 4) -> str:
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more} more"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned tables: one of figures, then a block for each curve.

    The spread is the ratio's where there is one. A point of a curve that has a target stands among
    the figures, too. Of what was not measured there is only the note that says why.
    """
    figures = [row for row in plain_rows(rows) if not only_noted(row)]
    parts = []
    if figures:
        parts.append(aligned([HEADINGS, *map(_cells, figures)], _LEFT))
    for chart in charts_of(rows):
        if chart.xs:
            parts.append(f"{chart.heading}\n{aligned(chart_lines(chart))}")
        elif not all(map(only_noted, chart.rows)):
            parts.append(f"{chart.heading}: nothing measured")
    notes = notes_of(rows)
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)
