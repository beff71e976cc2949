"""Rows as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Row

SCHEMA = 1
HEADINGS = ("figure", "value", "", "baseline", "its value", "ratio", "spread", "asked", "met")
_LEFT = frozenset({0, 2, 3, 7, 8})


def number(value: float | None) -> str:
    """Return a number in at most four digits that matter, thousands separated."""
    if value is None:
        return "-"
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _spread(row: Row) -> str:
    pair = row.spread.get("ratio") or row.spread.get("value")
    return f"{number(pair[0])} .. {number(pair[1])}" if pair else "-"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        number(row.value),
        row.unit,
        row.baseline or "-",
        number(row.baseline_value),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        _spread(row),
        row.asked or "",
        {True: "yes", False: "NO", None: ""}[row.met],
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as an aligned table; the spread is the ratio's where there is one."""
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rule = tuple("-" * width for width in widths)
    text = []
    for line in [lines[0], rule, *lines[1:]]:
        cells = [
            cell.ljust(width) if column in _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            notes.setdefault(note, []).append(row.name)
    text += [f"{', '.join(names)}: {note}" for note, names in notes.items()]
    return "\n".join(text)


def as_json(rows: Sequence[Row], environment: dict[str, Any], quick: bool) -> str:
    """Return the run as one JSON document; infinite and undefined numbers become null."""
    document = {
        "schema": SCHEMA,
        "quick": quick,
        "environment": environment,
        "rows": [row.as_json() for row in rows],
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _finite(item: Any) -> Any:
    if isinstance(item, float):
        return item if math.isfinite(item) else None
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(value) for value in item]
    return item


def save(path: Path, text: str) -> None:
    """Write the document in one step, so that a run that is cut short leaves no half file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
