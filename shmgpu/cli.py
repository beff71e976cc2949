"""The command line: ``shmgpu demo``, ``shmgpu trace``, ``shmgpu --version``.

Owns arguments, exit statuses and what a saved trace's summary looks like. A misuse or a failure
that shmgpu knows ends in one sentence on standard error: status 2 for arguments, else 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmgpu import trace
from shmgpu.errors import ShmError

INTERRUPTED = 130  # as a shell counts what SIGINT ended, and what SIGPIPE did
NOBODY_READS = 141
MOST_CHILDREN = 512  # so that each has a held-out image to classify
DEMO_TRACE = "shmgpu-demo.trace.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command: its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except ShmError as error:
        print(f"shmgpu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has had enough; the interpreter must not try to flush to them at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shmgpu",
        description="Many CPU processes share few deep-learning sessions, without copies.",
    )
    parser.add_argument(
        "--version", action="version", version=f"shmgpu {importlib.metadata.version('shmgpu')}"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train and serve on real data, beside multiprocessing",
        description="Train a small network on handwritten digits in a helper, let child "
        "processes classify held-out ones through helpers, prove from outside that no payload "
        "passed between processes, and do the same through multiprocessing. "
        "Needs shmgpu[demo].",
    )
    add = demo.add_argument
    add(
        "--children",
        type=_whole(1, MOST_CHILDREN),
        default=32,
        metavar="N",
        help="child processes (32)",
    )
    add("--helpers", type=_whole(1, 64), default=2, metavar="N", help="helper processes (2)")
    add("--seconds", type=_seconds, default=5.0, metavar="S", help="how long each side serves (5)")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:0 (the machine's GPUs, else cpu)")
    add("--trace", metavar="PATH", default=DEMO_TRACE, help=f"where the trace goes ({DEMO_TRACE})")
    add("--no-baseline", action="store_true", help="leave multiprocessing out of it")
    add("--json", metavar="FILE", help="write the figures there too")
    demo.set_defaults(run=_demo)

    summary = commands.add_parser(
        "trace",
        help="summarise saved traces",
        description="Summarise traces that launch(trace_path=...), write_trace() or the demo "
        "wrote: how busy each helper was, how long each function's calls took, batch sizes.",
    )
    summary.add_argument("files", metavar="FILE", nargs="+", help="a saved trace")
    summary.set_defaults(run=_trace)
    return parser


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to 3600")
    return seconds


# ---- shmgpu demo ---------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    # Here, because it imports torch, which the other commands do without.
    from shmgpu.demo import run

    return run.run(
        run.Options(
            children=options.children,
            helpers=options.helpers,
            seconds=options.seconds,
            device=options.device,
            trace=options.trace,
            baseline=not options.no_baseline,
            json=options.json,
        )
    )


# ---- shmgpu trace --------------------------------------------------------------------------


class BadTrace(ShmError):
    """A file is no trace that shmgpu wrote."""


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
    """Add up the trace events of :mod:`shmgpu.trace`.

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


def _trace(options: argparse.Namespace) -> int:
    for index, path in enumerate(options.files):
        try:
            with open(path, encoding="utf-8") as file:
                summary = summarise(json.load(file)["traceEvents"])
        except OSError as error:
            raise BadTrace(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, BadTrace) as error:
            raise BadTrace(
                f"{path} is no trace that shmgpu wrote: give a file from launch(trace_path=...)"
            ) from error
        print("\n" * (index > 0) + f"{path}\n\n{describe(summary)}")
    return 0


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
    parts.append(_table(lines))

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
    parts.append(_table(lines))

    if sizes:
        lines = [["calls a run", "runs", "share", ""]]
        edges = [1 << power for power in range(max(sizes).bit_length())]
        for low in edges:
            count = sum(low <= size < 2 * low for size in sizes)
            share = count / len(sizes)
            label = str(low) if low == 1 else f"{low} to {2 * low - 1}"
            lines.append([label, f"{count:,}", f"{100 * share:.1f} %", "#" * round(30 * share)])
        parts.append(_table(lines, left=(0, 3)))
    return "\n\n".join(parts)


def _table(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
