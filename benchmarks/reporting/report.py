"""A page of one kept run: what was asked beside what was measured, tables, and a plot per curve.

The page is Markdown with PNGs in a folder beside it. It says what a result says and adds no
judgement; where plots cannot be drawn, the tables of the curves still stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.measure.environment import busy_warning
from benchmarks.measure.figures import Row
from benchmarks.reporting import plots
from benchmarks.reporting.charts import Chart, charts_of, workload_of
from benchmarks.reporting.results import Result, save
from benchmarks.reporting.table import chart_lines, notes_of, number, place, ratio_text, spread_text

PAGE = "report.md"
PLOTS = "plots"
SIMULATED = "simulate"
PREDICTED, MEASURED = "predicted", "measured"
Pair = tuple[str, float | None, float | None]  # name, predicted, measured

HEADINGS = ("figure", "value", "unit", "baseline", "its value", "ratio", "spread")
ABOUT = """\
Ratios are a row's own value over its baseline's, taken in turn in the same run. A row's ratio is
the median of its rounds' ratios, and so not quite its value over its baseline's, which are medians
of their own. The spread holds the quartiles over the rounds (least and greatest of fewer than
five), of the ratio where there is one. What misses its target is in bold."""
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
                plots.draw(drawable(chart), path)
                drawn[id(chart)] = path
            tick(chart.title)
    page = folder / PAGE
    pictures = {key: f"{PLOTS}/{path.name}" for key, path in drawn.items()}
    save(page, page_of(result, charts, pictures))
    return [page, *drawn.values()]


def drawable(chart: Chart) -> Chart:
    """Return the chart with no more lines than an eye can tell apart, where it has families."""
    return chart.best_of_families() if len(chart.lines) > plots.MOST_LINES else chart


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
    if result.stopped:
        parts.append("**The run was stopped early**: what came after is not here.")
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
    if file is None:
        return []
    some = [] if drawable(chart) is chart else ["Drawn is the best configuration of each."]
    return [f"![{what}]({file})", *some]


def _prediction(
    rows: Sequence[Row], charts: Sequence[Chart], pictures: dict[int, str]
) -> list[str]:
    """Return the section that holds the simulation's numbers against the measured ones."""
    mine = [row for row in rows if workload_of(row) == SIMULATED]
    parts = []
    for chart in charts:
        if chart.workload == SIMULATED:
            parts += [f"### {chart.heading}", *_picture(chart, pictures)]
            parts += _side_by_side(_pairs(chart)) or [_markdown(chart_lines(chart))]
    plain = [row for row in mine if row.point is None]
    pairs = [_pair(row) for row in plain if row.baseline == MEASURED]
    parts += _side_by_side(pairs)
    parts += _figures([row for row in plain if row.baseline != MEASURED], SIMULATED)
    return ["## Prediction beside measurement", *parts] if parts else []


def _pair(row: Row) -> Pair:
    at = f"{place(row.point.x, row.point.curve.x)}: " if row.point else ""
    return f"{at}`{row.name}`", row.value, row.baseline_value


def _pairs(chart: Chart) -> list[Pair]:
    """Return a chart's predictions with what was measured in their place, if anything was.

    They are rows whose baseline is the measurement, or a line of each.
    """
    pairs = [_pair(row) for row in chart.rows if row.baseline == MEASURED]
    predicted, measured = chart.line(PREDICTED), chart.line(MEASURED)
    if not pairs and predicted and measured:
        pairs = [
            (place(x, chart.curve.x), mark.value, measured.marks[x].value)
            for x, mark in predicted.marks.items()
            if x in measured.marks
        ]
    return pairs


def _side_by_side(pairs: Sequence[Pair]) -> list[str]:
    """Return how far predictions are off, in a sentence and in a table; nothing for no pairs."""
    if not pairs:
        return []
    off = [a / b - 1 if a is not None and b else None for _name, a, b in pairs]
    known = [abs(share) for share in off if share is not None]
    lines = [("", PREDICTED, MEASURED, "deviation")]
    lines += [
        (name, number(a), number(b), "-" if share is None else f"{100 * share:+.1f} %")
        for (name, a, b), share in zip(pairs, off, strict=True)
    ]
    parts = [_markdown(lines)]
    if known:
        parts.insert(
            0,
            f"Off by {100 * max(known):.0f} % at most, by {100 * sum(known) / len(known):.0f} % "
            f"on average of {len(known)}.",
        )
    return parts


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines as a table, the first one as its heading."""
    heading, *rest = [[_cell(cell) for cell in line] for line in lines]
    rule = ["---"] * len(heading)
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, rule, *rest])
