"""A page of one kept run: what was asked beside what was measured, tables, and a plot per curve.

The page is Markdown with PNGs in a folder beside it. It says what a result says and adds no
judgement; where plots cannot be drawn, the tables of the curves still stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import plots
from benchmarks.charts import Chart, charts_of, workload_of
from benchmarks.environment import busy_warning
from benchmarks.figures import Row
from benchmarks.results import Result, save
from benchmarks.table import chart_lines, notes_of, number, ratio_text, spread_text

PAGE = "report.md"
PLOTS = "plots"
SIMULATED = "simulate"
PREDICTED, MEASURED = "predicted", "measured"

HEADINGS = ("figure", "value", "unit", "baseline", "its value", "ratio", "spread")
ABOUT = """\
Ratios are a row's own value over its baseline's, taken in turn in the same run. The spread holds
the quartiles over the rounds (least and greatest of fewer than five), of the ratio where there is
one. What misses its target is in bold."""
ASKED = ("figure", "against", "asked", "measured", "spread")


def write(
    result: Result, folder: Path, tick: Callable[[str], None] = lambda _name: None
) -> list[Path]:
    """Write the page and its plots into ``folder``, and return the files, the page first.

    ``tick`` is called with each plot's name once it is drawn.
    """
    charts = charts_of(result.rows)
    drawn: dict[int, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    if plots.available() and charts:
        (folder / PLOTS).mkdir(exist_ok=True)
        for chart, name in zip(charts, file_names(charts), strict=True):
            path = folder / PLOTS / name
            if chart.xs:
                plots.draw(chart, path)
                drawn[id(chart)] = path
            tick(chart.title)
    page = folder / PAGE
    pictures = {key: f"{PLOTS}/{path.name}" for key, path in drawn.items()}
    save(page, page_of(result, charts, pictures))
    return [page, *drawn.values()]


def file_names(charts: Sequence[Chart]) -> list[str]:
    """Return a file's name for each chart, no two alike."""
    names: list[str] = []
    for chart in charts:
        stem = slug(chart.title)
        tries = (stem, f"{stem}-{slug(chart.unit)}", *(f"{stem}-{n}" for n in range(2, 99)))
        names.append(next(f"{name}.png" for name in tries if f"{name}.png" not in names))
    return names


def slug(text: str) -> str:
    """Return text as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def page_of(result: Result, charts: Sequence[Chart], pictures: dict[int, str]) -> str:
    """Return the page; ``pictures`` gives the file of a chart by its identity."""
    rows = result.rows
    parts = ["# Benchmark report", *_preface(result), *_environment(result)]
    asked = [row for row in rows if row.asked is not None]
    if asked:
        parts += ["## What was asked", _summary(asked), _markdown([ASKED, *map(_asked, asked)])]
    for workload in dict.fromkeys(map(workload_of, rows)):
        if workload == SIMULATED:
            continue
        mine = [chart for chart in charts if chart.workload == workload]
        parts += [f"## {workload}", *_figures(rows, workload)]
        for chart in mine:
            parts += [f"### {chart.heading}"]
            parts += _picture(chart, pictures)
            parts += [_markdown(chart_lines(chart))] if chart.xs else ["Nothing was measured."]
    parts += _prediction(rows, charts, pictures)
    notes = notes_of(rows)
    if notes:
        parts += ["## What is missing, and why", "\n".join(f"- {_cell(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _preface(result: Result) -> list[str]:
    parts = [ABOUT]
    if result.quick:
        parts.append("**A quick run**: short rounds and few, for a first look.")
    warning = busy_warning(dict(result.environment)) if _has_load(result) else None
    return [*parts, f"**{warning}**"] if warning else parts


def _has_load(result: Result) -> bool:
    return bool(result.environment.get("load_average") and result.environment.get("cores_allowed"))


_NAMES = {
    "time": "measured",
    "commit": "commit",
    "cpu": "processor",
    "cores_allowed": "cores",
    "gpus": "GPUs",
    "memory_bytes": "memory",
    "kernel": "Linux",
    "load_average": "load average before",
    "python": "Python",
    "packages": "packages",
    "libc": "C library",
    "compiler": "compiler",
    "flags": "compiler flags",
}


def _environment(result: Result) -> list[str]:
    lines = [("", "")]
    for key, name in _NAMES.items():
        value = result.environment.get(key)
        if not value:
            continue
        if key == "memory_bytes":
            value = f"{value / (1 << 30):.1f} GiB"
        if key == "load_average":
            value = ", ".join(f"{load:.2f}" for load in value)
        if isinstance(value, dict):
            value = ", ".join(f"{name} {version}" for name, version in value.items() if version)
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        lines.append((name, str(value)))
    return ["## Environment", _markdown(lines)] if len(lines) > 1 else []


def _summary(asked: Iterable[Row]) -> str:
    verdicts = [row.met for row in asked]
    met, missed, open_ = (verdicts.count(verdict) for verdict in (True, False, None))
    text = f"{met} of {len(verdicts)} targets are met"
    text += f", {missed} missed" if missed else ""
    return text + (f", {open_} not measured." if open_ else ".")


def _asked(row: Row) -> tuple[str, ...]:
    judged = row.value if row.baseline is None else row.ratio
    unit = f" {row.unit}" if row.baseline is None and judged is not None else ""
    measured = f"{number(judged) if row.baseline is None else ratio_text(judged)}{unit}"
    measured = f"**{measured}**" if row.met is False else measured
    return (
        f"`{row.name}`",
        row.baseline or "",
        f"{row.asked}{' ' + row.unit if row.baseline is None else ''}",
        measured,
        spread_text(row),
    )


def _figures(rows: Iterable[Row], workload: str) -> list[str]:
    """Return the table of a workload's rows that lie on no curve, if it has any."""
    lines = [
        (
            f"`{row.name}`",
            number(row.value),
            row.unit,
            row.baseline or "",
            number(row.baseline_value) if row.baseline else "",
            ratio_text(row.ratio) if row.baseline else "",
            spread_text(row),
        )
        for row in rows
        if workload_of(row) == workload and row.point is None
    ]
    return [_markdown([HEADINGS, *lines])] if lines else []


def _picture(chart: Chart, pictures: dict[int, str]) -> list[str]:
    file = pictures.get(id(chart))
    # Square brackets would end the text early.
    what = f"{chart.heading}, by {chart.curve.x}".translate(str.maketrans("[]", "()"))
    return [f"![{what}]({file})"] if file else []


def _prediction(
    rows: Sequence[Row], charts: Sequence[Chart], pictures: dict[int, str]
) -> list[str]:
    """Return the section that holds the simulation's numbers against the measured ones."""
    mine = [row for row in rows if workload_of(row) == SIMULATED]
    if not mine:
        return []
    parts = ["## Prediction beside measurement"]
    deviations = [abs(d) for row in mine if (d := deviation(row)) is not None]
    for chart in charts:
        if chart.workload == SIMULATED:
            parts += [f"### {chart.heading}"]
            parts += _picture(chart, pictures)
            lines, more = _side_by_side(chart)
            parts.append(_markdown(lines))
            deviations += more
    plain = [row for row in mine if row.point is None]
    if plain:
        heading = ("figure", PREDICTED, MEASURED, "unit", "deviation")
        parts.append(_markdown([heading, *map(_predicted, plain)]))
    if deviations:
        sentence = (
            f"The prediction is off by {100 * max(deviations):.0f} % at most and by "
            f"{100 * sum(deviations) / len(deviations):.0f} % on average, over "
            f"{len(deviations)} numbers that were measured, too."
        )
        parts.insert(1, sentence)
    return parts


def deviation(row: Row) -> float | None:
    """Return by how much a row's prediction is above what was measured, relative to that."""
    if row.value is None or not row.baseline_value:
        return None
    return row.value / row.baseline_value - 1


def _predicted(row: Row) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        number(row.value),
        number(row.baseline_value),
        row.unit,
        _percent(deviation(row)),
    )


def _side_by_side(chart: Chart) -> tuple[list[list[str]], list[float]]:
    """Return a chart's table with the deviation where both lines have a mark.

    Then the deviations that no row holds by itself, without their signs.
    """
    lines = chart_lines(chart)
    predicted, measured = chart.line(PREDICTED), chart.line(MEASURED)
    if predicted is None or measured is None:
        return lines, []
    lines = [line[: 1 + len(chart.lines)] for line in lines]
    lines[0].append("deviation")
    apart = []
    for line, x in zip(lines[1:], chart.xs, strict=True):
        a, b = predicted.marks.get(x), measured.marks.get(x)
        off = a.value / b.value - 1 if a and b and b.value else None
        line.append(_percent(off))
        if off is not None and not any(x in rows for rows in chart.ratios.values()):
            apart.append(abs(off))
    return lines, apart


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines as a table, the first one as its heading."""
    heading, *rest = [[_cell(cell) for cell in line] for line in lines]
    rule = ["---"] * len(heading)
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, rule, *rest])
