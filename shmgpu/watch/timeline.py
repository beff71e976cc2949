"""A saved trace as a picture: helpers from top to bottom, time from left to right.

Owns the drawing, of what launches trace and of what :mod:`shmgpu.debug` saves. Never loads
matplotlib before something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shmgpu.errors import ShmError
from shmgpu.watch import trace

MAX_BARS = 20_000
WIDTH_INCHES = 12.0
LANE_INCHES = 0.7
MAX_NAMES = 8  # in the legend, the busiest first; the others share a grey


@dataclass(frozen=True)
class CallBar:
    """What a helper executed: milliseconds since the trace began."""

    helper: int
    start_ms: float
    length_ms: float
    name: str


@dataclass(frozen=True)
class Arrow:
    """A MOVE from one helper to another."""

    source: int
    target: int
    start_ms: float
    end_ms: float
    nbytes: int


def parts(events: Sequence[dict[str, Any]]) -> tuple[list[CallBar], list[Arrow]]:
    """What is drawn of trace events."""
    bars, arrows = [], []
    for event in events:
        if event["ph"] != "X" or event["pid"] not in (trace.HELPERS_PID, trace.TENSORS_PID):
            continue
        start, length = float(event["ts"]) / 1000, float(event["dur"]) / 1000
        if event.get("cat") == "move":
            where = event["args"]
            source, target, nbytes = int(where["from"]), int(where["to"]), int(where["bytes"])
            arrows.append(Arrow(source, target, start, start + length, nbytes))
        else:
            bars.append(CallBar(int(event["tid"]), start, length, str(event["name"])))
    return bars, arrows


def draw(events: Sequence[dict[str, Any]], path: str | os.PathLike[str], title: str = "") -> int:
    """Draw trace events as a PNG: how many bars it has.

    Raises:
        ShmError: matplotlib is not installed, or there is nothing to draw.
    """
    bars, arrows = parts(events)
    if not bars:
        raise ShmError("no helper executed anything in this trace: there is no timeline to draw")
    bars = bars[-MAX_BARS:]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ShmError("a timeline is drawn by matplotlib: pip install matplotlib") from error

    helpers = sorted(
        {bar.helper for bar in bars} | {end for one in arrows for end in (one.source, one.target)}
    )
    lane = {helper: -index for index, helper in enumerate(helpers)}
    busiest: dict[str, float] = {}
    for bar in bars:
        busiest[bar.name] = busiest.get(bar.name, 0.0) + bar.length_ms
    names = sorted(busiest, key=lambda name: -busiest[name])
    colour = {name: f"C{index}" for index, name in enumerate(names[:MAX_NAMES])}

    figure = Figure(figsize=(WIDTH_INCHES, 1.6 + LANE_INCHES * len(helpers)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name in names:
        for helper in helpers:
            spans = [
                (bar.start_ms, bar.length_ms)
                for bar in bars
                if bar.name == name and bar.helper == helper
            ]
            if spans:
                axes.broken_barh(
                    spans, (lane[helper] - 0.35, 0.7), facecolors=colour.get(name, "0.7")
                )
    for one in arrows:
        axes.annotate(
            "",
            xy=(one.end_ms, lane[one.target]),
            xytext=(one.start_ms, lane[one.source]),
            arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1.0},
        )
    axes.set_yticks([lane[one] for one in helpers], [f"helper {one}" for one in helpers])
    axes.set_xlabel("milliseconds")
    axes.set_title(title)
    axes.margins(y=0.15)
    legend = [Patch(color=colour[name], label=name) for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        legend.append(Patch(color="0.7", label=f"{len(names) - MAX_NAMES} others"))
    if arrows:
        legend.append(Patch(color="black", label=f"MOVE ({len(arrows)})"))
    figure.legend(handles=legend, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, format="png", dpi=120)
    return len(bars)
