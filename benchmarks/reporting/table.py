"""Rows as text for people: figures one a line, curves one a block."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from benchmarks.measure.figures import Row
from benchmarks.measure.harness import SKIPPED
from benchmarks.reporting.charts import Chart, charts_of

HEADINGS = ("figure", "value", "", "baseline", "its value", "ratio", "spread", "asked", "met")
_LEFT = frozenset({0, 2, 3, 7, 8})
_BASELINE = (3, 4)  # its columns, of which lines are made where there is no room for them
_LEFT_OF_NARROW = frozenset({0, 2, 5, 6})
WIDTH = 100  # of what is printed
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


def _short_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes for a terminal: all that was skipped for one reason is one line."""
    skipped: dict[str, dict[str, None]] = {}
    for row in rows:
        for note in row.notes:
            probe, is_skipped, why = note.partition(SKIPPED)
            if is_skipped:
                skipped.setdefault(why, {})[probe] = None
    lines = [line for line in notes_of(rows) if SKIPPED not in line]
    return lines + [f"{_some(list(probes))}{SKIPPED}{why}" for why, probes in skipped.items()]


def only_noted(row: Row) -> bool:
    """Return whether a row has no number, and a note that says why."""
    return row.value is None and row.baseline_value is None and bool(row.notes)


def _some(names: list[str], most: int = 4) -> str:
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more} more"


def lines_of(rows: Sequence[Row]) -> str:
    """Return rows as a table with one line for each that has a number; "" where none has."""
    cells = [_cells(row) for row in rows if not only_noted(row)]
    if not cells:
        return ""
    text = aligned([HEADINGS, *cells], _LEFT)
    return text if _fits(text) else _narrow([HEADINGS, *cells])


def _fits(text: str) -> bool:
    return max(map(len, text.splitlines())) <= WIDTH


def _narrow(lines: Sequence[tuple[str, ...]]) -> str:
    """Return a table without the baseline's columns: it stands above the lines that it is of."""
    kept = [[cell for at, cell in enumerate(line) if at not in _BASELINE] for line in lines]
    of = {name.partition(".")[0] for name, *_ in kept[1:]}
    if len(of) == 1:
        kept = [[name.removeprefix(f"{min(of)}."), *rest] for name, *rest in kept]
        kept[0][0] = f"{min(of)}: figure"
    kept = [[cell.replace(" .. ", "..") for cell in line] for line in kept]
    heading, rule, *text = aligned(kept, _LEFT_OF_NARROW).splitlines()
    shown, before = [heading, rule], None
    for line, cells in zip(text, lines[1:], strict=True):
        baseline = " ".join(cells[at] for at in _BASELINE if cells[at] != "-")
        if baseline != before:
            shown.append(f"against {baseline}:" if baseline else "against nothing:")
            before = baseline
        shown.append(line)
    return "\n".join(shown)


def _across(chart: Chart) -> list[list[str]]:
    """Return a chart as cells, heading first: a line for each series, then for each ratio."""
    return [list(column) for column in zip(*chart_lines(chart), strict=True)]


def _blocks(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines as tables that fit the width, each with the first column and some others."""
    for last in range(len(lines[0]), 1, -1):
        text = aligned([line[:last] for line in lines], frozenset({0}))
        if _fits(text):
            break
    rest = [[line[0], *line[last:]] for line in lines]
    return [text, *_blocks(rest)] if last < len(lines[0]) else [text]


def curves_of(rows: Sequence[Row]) -> str:
    """Return a block for each curve: a line for each series, the places on the curve across."""
    parts = []
    for chart in charts_of(rows):
        if chart.xs:
            parts.append("\n".join([chart.heading, *_blocks(_across(chart))]))
        elif not all(map(only_noted, chart.rows)):
            parts.append(f"{chart.heading}: nothing measured")
    return "\n\n".join(parts)


def what_is_said(rows: Sequence[Row]) -> str:
    """Return the notes of rows, a line each."""
    return "\n".join(
        textwrap.fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for note in _short_notes(rows)
    )
