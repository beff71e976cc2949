"""The plots of the figures' page, redrawn from a kept run.

``PICTURES`` is the table of them: which rows each is made of, and the words on it. A run that lacks
the rows of a picture leaves the picture as it is, and says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure.figures import Row
from benchmarks.measure.native import ROOT
from benchmarks.measure.units import spelled
from benchmarks.reporting import plots
from benchmarks.reporting.charts import OURS, Chart, charts_of, family, workload_of
from benchmarks.reporting.results import Result, ResultError, load

RESULTS = ROOT / "benchmarks" / "results"
PLOTS = RESULTS / "plots"
TIMES = frozenset({"s", "ms", "us", "ns"})


@dataclass(frozen=True)
class Picture:
    """One picture: its file, the rows it needs in words, and what draws it, or returns False."""

    file: str
    of: str
    draw: Callable[[Sequence[Row], Path], bool]


def rate_bars(rows: Sequence[Row]) -> list[plots.Bar]:
    """Return a bar for shmgpu and for the best configuration of each peer, the fastest first.

    All of them were taken in turn: of several groups it is the one with the most peers. Beside a
    rate of another group, minutes away, a peer's would look better or worse than it is.
    """
    rates = max(_taken_together(rows), key=len, default=[])
    bars: dict[str, plots.Bar] = {}
    for row in rates:
        if row.baseline is not None and row.baseline_value is not None:
            peer = family(row.baseline)
            bar = plots.Bar(peer, row.baseline_value, row.spread.get("baseline_value"))
            bars[peer] = max(bar, bars.get(peer, bar), key=lambda bar: bar.value)
    if not rates or rates[0].value is None:
        return []
    mine = plots.Bar(OURS, rates[0].value, rates[0].spread.get("value"), ours=True)
    return sorted([mine, *bars.values()], key=lambda bar: -bar.value)


def _taken_together(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rates of the workload calls, those of one group together.

    Rows of one group have shmgpu's rate from the same samples, and so the same to the last digit.
    """
    groups: dict[float, list[Row]] = {}
    for row in rows:
        is_rate = workload_of(row) == "calls" and row.unit == "1/s" and row.point is None
        if is_rate and row.value is not None and row.baseline_value is not None:
            groups.setdefault(row.value, []).append(row)
    return list(groups.values())


def _draw_rates(rows: Sequence[Row], path: Path) -> bool:
    bars = rate_bars(rows)
    if bars:
        title = "Calls a second: 32 processes call 2 workers"
        plots.draw_bars(bars, path, title, "calls per second, 64-byte arrays (longer is better)")
    return bool(bars)


def chart_for(rows: Sequence[Row], workload: str, over: str, best: str) -> Chart | None:
    """Return the workload's chart of a time over a quantity with ``over`` in its name.

    Of several it is one with ``best`` in its name, and of those the first with the most lines.
    """
    charts = [
        chart
        for chart in charts_of(rows)
        if chart.workload == workload and over in chart.curve.x and chart.unit in TIMES
    ]
    return max(charts, key=lambda c: (best in c.curve.name, len(c.lines)), default=None)


def _along(
    workload: str, over: str, best: str, title: str, y: str
) -> Callable[[Sequence[Row], Path], bool]:
    def draw(rows: Sequence[Row], path: Path) -> bool:
        chart = chart_for(rows, workload, over, best)
        if chart is not None and chart.xs:
            unit = spelled(chart.unit)
            plots.draw(chart.best_of_families(), path, title, f"{y}, {unit} (lower is better)")
            return True
        return False

    return draw


PICTURES = (
    Picture("calls.png", "the rates of the workload calls", _draw_rates),
    Picture(
        "payload.png",
        "the times of the workload payload as a curve over bytes",
        _along(
            "payload", "byte", ", in", "What a call costs as its argument grows", "time of a call"
        ),
    ),
    Picture(
        "batching.png",
        "the latencies of the workload batching as a curve over load",
        _along("batching", "load", "p99", "Latency as more is asked for", "99th percentile"),
    ),
)


def latest(folder: Path = RESULTS) -> Result:
    """Return the latest full run kept in ``folder``, or the latest quick one if none is full.

    One that was stopped early is taken where there is no other.
    """
    results = [load(path) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise ResultError(f"{folder} holds no result: measure with --json, and keep it there.")
    return max(
        results, key=lambda r: (not r.stopped, not r.quick, str(r.environment.get("time", "")))
    )


def seconds_of_latest(quick: bool, folder: Path = RESULTS) -> Mapping[str, float]:
    """Return how long each group took in the latest run of a kind that ``folder`` has."""
    took: list[tuple[str, Mapping[str, float]]] = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ResultError):  # whoever wants to measure does not need it
            result = load(path)
            if result.quick == quick:
                took.append((str(result.environment.get("time", "")), result.took_s))
    return max(took, key=lambda one: one[0], default=("", {}))[1]


def write(result: Result, folder: Path = PLOTS) -> tuple[list[Path], list[str]]:
    """Draw the pictures into ``folder``; return the files, and a sentence for each left out."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, left_out = [], []
    for picture in PICTURES:
        path = folder / picture.file
        if picture.draw(result.rows, path):
            drawn.append(path)
        else:
            name = result.path.name if result.path else "the run"
            left_out.append(f"{picture.file} is left as it is: {name} lacks {picture.of}.")
    return drawn, left_out
