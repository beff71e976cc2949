"""What a saved trace adds up to: helpers, functions, batches.

Owns the sums over the events of a launch's trace, and their tables. Never reads the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmgpu.errors import ShmError
from shmgpu.watch import trace
from shmgpu.watch.tables import align


class BadTrace(ShmError):
    """A file is not a trace that shmgpu wrote."""


@dataclass
class HelperUse:
    """What one helper did."""

    busy_us: float = 0.0
    batches: list[int] = field(default_factory=list)  # calls run as one, each time


@dataclass
class FunctionUse:
    """How a function's calls fared: microseconds from queued to answered, and to handed over."""

    answered_us: list[float] = field(default_factory=list)
    waited_us: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass
class Summary:
    """What a trace says, added up."""

    span_us: float = 0.0
    helpers: dict[int, HelperUse] = field(default_factory=dict)
    functions: dict[str, FunctionUse] = field(default_factory=dict)


def summarise(events: Sequence[dict[str, Any]]) -> Summary:
    """Add up the trace events of :mod:`shmgpu.watch.trace`.

    Raises:
        BadTrace: an event lacks what shmgpu writes.
    """
    made = Summary()
    first, last = np.inf, -np.inf
    began: dict[int, float] = {}
    try:
        for event in events:
            if event["ph"] in "MC":
                continue
            at, number = float(event["ts"]), int(event.get("id", -1))
            first, last = min(first, at), max(last, at + float(event.get("dur", 0.0)))
            if event["ph"] == "X" and event["pid"] == trace.HELPERS_PID:
                use = made.helpers.setdefault(int(event["tid"]), HelperUse())
                use.busy_us += float(event["dur"])
                use.batches.append(int(event["args"]["batch"]))
            elif event["ph"] == "b":
                began[number] = at
                called = made.functions.setdefault(str(event["name"]), FunctionUse())
                called.failed += event["args"]["status"] != "SHM_OK"
                handed_to = called
            elif event["ph"] == "n":
                handed_to.waited_us.append(at - began[number])
            elif event["ph"] == "e":
                called = made.functions[str(event["name"])]
                called.answered_us.append(at - began.pop(number))
    except (KeyError, TypeError, ValueError, UnboundLocalError) as error:
        raise BadTrace(f"an event is not as shmgpu writes it ({error!r})") from error
    made.span_us = max(0.0, last - first)
    return made


def describe(summary: Summary) -> str:
    """A summary as tables."""
    if not summary.functions:
        return "No call was traced."
    calls = sum(len(use.answered_us) for use in summary.functions.values())
    seconds = summary.span_us / 1e6
    parts = [f"{calls:,} calls in {seconds:.3f} s"]

    lines = [["helper", "busy", "runs", "calls", "mean batch"]]
    sizes: list[int] = []
    for number, helper in sorted(summary.helpers.items()):
        sizes += helper.batches
        share = helper.busy_us / summary.span_us if summary.span_us else 0.0
        lines.append(
            [
                str(number),
                f"{100 * share:.1f} %",
                f"{len(helper.batches):,}",
                f"{sum(helper.batches):,}",
                f"{np.mean(helper.batches):.1f}",
            ]
        )
    parts.append(align(lines))

    lines = [["function", "calls", "failed", "p50", "p90", "p99", "max", "queued p50"]]
    for name, use in sorted(summary.functions.items()):
        answered = np.quantile(use.answered_us or [np.nan], [0.5, 0.9, 0.99, 1.0])
        lines.append(
            [
                name,
                f"{len(use.answered_us):,}",
                f"{use.failed:,}",
                *(f"{value:,.1f} us" for value in answered),
                f"{np.median(use.waited_us or [np.nan]):,.1f} us",
            ]
        )
    parts.append(align(lines))

    if sizes:
        lines = [["calls a run", "runs", "share", ""]]
        edges = [1 << power for power in range(max(sizes).bit_length())]
        for low in edges:
            count = sum(low <= size < 2 * low for size in sizes)
            share = count / len(sizes)
            label = str(low) if low == 1 else f"{low} to {2 * low - 1}"
            lines.append([label, f"{count:,}", f"{100 * share:.1f} %", "#" * round(30 * share)])
        parts.append(align(lines, left=(0, 3)))
    return "\n\n".join(parts)
