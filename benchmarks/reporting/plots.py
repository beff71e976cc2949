"""Charts and bars as PNG files, drawn by matplotlib without a display.

Colours are Okabe and Ito's, which the colour-blind tell apart; each line has a marker of its own as
well. Sizes are for a page that shows a picture 800 pixels wide. This file decides how things look,
and nothing about what is shown.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure.units import spelled
from benchmarks.reporting.charts import Chart, Line
from benchmarks.reporting.table import number, place

MISSING = "Plots need matplotlib: pip install -e '.[bench]' brings it."

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, BROWN = "#CC79A7", "#56B4E9", "#7F7F7F", "#8C5A2B"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, BROWN)
MARKERS = "osD^vP*X"
AROUND = ("-", ":", "-.")  # where there are more lines than colours
INK, FAINT = "#222222", "#DDDDDD"

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 4.4, 150
COLOURS_KEPT = 64
MOST_LINES = 8
AXIS_CHARACTERS = 80  # digits that fit side by side below the axes
LEGEND_CHARACTERS, LEGEND_HANDLE_CHARACTERS = 92, 7
STYLE = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Bar:
    """One bar: its name, length and spread; ``ours`` is drawn in the colour that stands out."""

    name: str
    value: float
    spread: tuple[float, float] | None = None
    ours: bool = False


def available() -> bool:
    """Return whether plots can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def _figure(path: Path, height_in: float = HEIGHT_IN) -> Iterator[Any]:
    """Give a figure's only axes, and write them to ``path`` in the end."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image  # matplotlib stands on it

    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH_IN, height_in), DPI, facecolor="white", layout="constrained")
        canvas = FigureCanvasAgg(figure)
        yield figure.add_subplot()
        canvas.draw()
        # Few colours make a third of the bytes, and nothing inside tells the hour or a version:
        # the same figures make the same file.
        image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
        image.convert("RGB").quantize(COLOURS_KEPT).save(path, optimize=True)


def draw(chart: Chart, path: Path, title: str | None = None, y: str | None = None) -> None:
    """Draw a chart to ``path``; ``title`` and ``y``, the axis' label, have words of their own."""
    with _figure(path) as axes:
        for line, look in zip(chart.lines, looks(chart.lines), strict=True):
            _draw_line(axes, line, look)
        _scale(axes, chart)
        axes.set_xlabel(chart.curve.x)
        axes.set_ylabel(y or spelled(chart.unit))
        _head(axes, title or chart.title, [line.name for line in chart.lines])


def looks(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return how each line is drawn.

    A baseline that stands beside one series has that series' colour, and all baselines are dashed.
    """
    chosen: dict[str, int] = {}
    free = iter(range(len(lines)))
    result = []
    for line in lines:
        if line.beside in chosen:
            index = chosen[line.beside]
        else:
            index = chosen[line.name] = next(free)
        look = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
            "linewidth": 2.2 if index == 0 else 1.7,
            "linestyle": "--" if line.baseline else AROUND[index // len(COLOURS) % len(AROUND)],
        }
        result.append(look)
    return result


def _draw_line(axes: Any, line: Line, look: dict[str, Any]) -> None:
    marks = sorted(line.marks.items())
    xs = [x for x, _mark in marks]
    axes.plot(xs, [mark.value for _x, mark in marks], label=line.name, markersize=5.5, **look)
    spreads = [mark.spread or (mark.value, mark.value) for _x, mark in marks]
    if len(xs) > 1:
        low, high = zip(*spreads, strict=True)
        axes.fill_between(xs, low, high, color=look["color"], alpha=0.16, linewidth=0)
    else:
        axes.vlines(xs, *zip(*spreads, strict=True), color=look["color"], alpha=0.4, linewidth=4)


def logarithmic(chart: Chart) -> str:
    """Return which axes are drawn logarithmic: those of the curve that have nothing at zero."""
    values = [mark.value for line in chart.lines for mark in line.marks.values()]
    lowest = {"x": min(chart.xs, default=0), "y": min(values, default=0)}
    return "".join(axis for axis in "xy" if axis in chart.curve.log and lowest[axis] > 0)


def apart(xs: Sequence[float], labels: Sequence[str]) -> list[float]:
    """Return those of the rising places on a logarithmic axis whose labels do not touch.

    The last one stays, since it says how far the axis goes.
    """
    width = math.log(xs[-1] / xs[0]) or 1.0
    kept = [len(xs) - 1]
    for at in reversed(range(len(xs) - 1)):
        gap = AXIS_CHARACTERS * math.log(xs[kept[-1]] / xs[at]) / width
        if gap > (len(labels[at]) + len(labels[kept[-1]])) / 2 + 2:
            kept.append(at)
    return [xs[at] for at in reversed(kept)]


def _scale(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    values = [mark.value for line in chart.lines for mark in line.marks.values()]
    xs = chart.xs
    log = logarithmic(chart)
    if "x" in log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(apart(xs, [place(x, chart.curve.x) for x in xs]))
    if "y" in log:
        axes.set_yscale("log")
        # Few decades have few powers of ten: more ticks, so that values can be read.
        steps = (1.0, 2.0, 5.0) if max(values) < 1000 * min(values) else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif values and min(values) >= 0:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _at: place(x, chart.curve.x)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _at: number(y)))
    axes.tick_params(which="both", length=0)


def _head(axes: Any, title: str, names: Sequence[str]) -> None:
    """Put title and legend above the axes, where they hide nothing."""
    rows = 0
    if len(names) > 1:
        fit = max(1, LEGEND_CHARACTERS // (max(map(len, names)) + LEGEND_HANDLE_CHARACTERS))
        rows = -(-len(names) // min(fit, len(names)))
        columns = -(-len(names) // rows)
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderpad=0.2,
            handlelength=2.2, columnspacing=1.4,
        )  # fmt: skip
    axes.set_title(title, loc="left", fontweight="bold", fontsize=12.5, pad=10 + 19 * rows)


def draw_bars(bars: Sequence[Bar], path: Path, title: str, x: str) -> None:
    """Draw bars to ``path``, from the top in the order given, each with its value at its end."""
    from matplotlib.ticker import FuncFormatter

    with _figure(path, 1.2 + 0.36 * len(bars)) as axes:
        at = range(len(bars))
        colours = [BLUE if bar.ours else "#B0B7BF" for bar in bars]
        axes.barh(at, [bar.value for bar in bars], color=colours, height=0.68)
        for y, bar in enumerate(bars):
            low, high = bar.spread or (bar.value, bar.value)
            axes.hlines(y, low, high, color=INK, linewidth=1.2)
            weight = "bold" if bar.ours else "normal"
            axes.annotate(
                number(bar.value), (max(high, bar.value), y), xytext=(6, 0), fontweight=weight,
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_yticks(at, [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.margins(x=0.15)
        axes.set_xlim(left=0)
        axes.set_xlabel(x)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: number(value)))
        axes.tick_params(length=0)
        axes.set_title(title, loc="left", fontweight="bold", fontsize=12.5, pad=10)
