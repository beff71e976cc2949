"""A soak: a storm's load for half an hour, with few deaths, while somebody looks at the gauges.

    cd tests && python -m crash.soak --seconds 1800 --out ../build/soak

A further child, which nobody kills, samples what every role holds: memory of its own, address
space, descriptors, threads, bytes of its arena in use; and from the trace, how long plain calls
took. Of the helpers it is the first, which lives through it all: what the others hold depends on
their age. After a warm-up each figure must be flat by the slope test (see slope.py), and every
promise of the storm must hold.
Leaves the samples as JSON and, where matplotlib is installed, the curves as a picture.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import shmgpu
from shmgpu import core

from . import storm_load as load
from .slope import FEWEST, Trend, trend
from .storm import arguments, begin, weather

SAMPLES = 360  # in a run
WARM_UP = 1 / 6  # of the run: pages are touched, caches fill, the first of each role get old
SPARED = 1  # helpers that nobody kills
PAUSE_S = 0.02  # of each child, after each thing it does: the load is steady, the machine not full

Sample = dict[str, float]


@dataclass(frozen=True)
class Gauge:
    """A figure: its unit, and by how much it may grow in the whole run and still be flat."""

    unit: str
    bound: Callable[[float], float]  # of the series' median


def absolute(growth: float) -> Callable[[float], float]:
    return lambda median: growth


def relative(share: float) -> Callable[[float], float]:
    return lambda median: share * median


GAUGES = {
    "parent: memory": Gauge("MiB", absolute(1.0)),
    "helper: memory": Gauge("MiB", absolute(2.0)),
    "child: memory": Gauge("MiB", absolute(2.0)),
    "parent: address space": Gauge("MiB", absolute(4.0)),
    "helper: address space": Gauge("MiB", absolute(8.0)),
    "child: address space": Gauge("MiB", absolute(8.0)),
    "parent: descriptors": Gauge("", absolute(0.5)),
    "helper: descriptors": Gauge("", absolute(0.5)),
    "child: descriptors": Gauge("", absolute(0.5)),
    "parent: threads": Gauge("", absolute(0.1)),
    "helper: threads": Gauge("", absolute(0.1)),
    "child: threads": Gauge("", absolute(0.3)),
    "child: arena in use": Gauge("KiB", absolute(64.0)),
    "plain call: p99": Gauge("ms", relative(0.25)),
}


# ---- sampling, in a child that nobody kills ----------------------------------------------------


def role_figures(pid: int) -> Sample | None:
    """What a process holds; None when it has gone.

    Its memory is what is its own: pages of arenas come and go with their children.
    """
    try:
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return {
            "memory": int(re.search(r"^Anonymous:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024,
            "address space": int(re.search(r"^VmSize:\s+(\d+)", status, re.MULTILINE)[1]) / 1024,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)[1]),
        }
    except (OSError, TypeError):
        return None


def sample(children: int, traced: int) -> tuple[Sample, int]:
    """All gauges now, each the mean of those who live; and where the trace was read up to."""
    stats = shmgpu.stats()
    found: Sample = {}
    for role, pids in {
        "parent": [stats["broker"]["parent_pid"]],
        "helper": [row["pid"] for row in stats["helpers"][:SPARED]],
        "child": [row["pid"] for row in stats["children"][:children]],
    }.items():
        living = [figures for pid in pids if pid and (figures := role_figures(pid))]
        for name in living[0] if living else ():
            found[f"{role}: {name}"] = float(np.mean([figures[name] for figures in living]))
    used = [row["arena_used_bytes"] for row in stats["children"][:children]]
    found["child: arena in use"] = float(np.mean(used)) / 1024
    traced, records = core.read_trace(traced)
    took = [
        record["answered_ns"] - record["queued_ns"]
        for record in records
        if record["function"] == load.plain.row and record["status"] == 0
    ]
    if took:
        found["plain call: p99"] = float(np.percentile(took, 99)) / 1e6
    return found, traced


def observe(children: int, every_s: float) -> list[tuple[float, Sample]]:
    """Sample until all is calm."""
    started = time.monotonic()
    taken: list[tuple[float, Sample]] = []
    traced = 0
    while not load.ledger.get("calm"):
        due = started + every_s * (len(taken) + 1)
        time.sleep(max(0.0, min(0.2, due - time.monotonic())))
        if time.monotonic() >= due:
            figures, traced = sample(children, traced)
            taken.append((time.monotonic() - started, figures))
    return taken


# ---- the verdict -------------------------------------------------------------------------------


def judge(samples: list[tuple[float, Sample]], seconds: float) -> dict[str, Trend]:
    """The trend of each gauge after the warm-up; raises ValueError when too few were taken."""
    trends = {}
    for name, gauge in GAUGES.items():
        series = [
            (at, figures[name])
            for at, figures in samples
            if WARM_UP * seconds <= at <= seconds and name in figures
        ]
        values = [value for _, value in series]
        bound = gauge.bound(float(np.median(values))) if values else 0.0
        trends[name] = trend([at for at, _ in series], values, bound)
    return trends


def draw(path: pathlib.Path, samples: list[tuple[float, Sample]], trends: dict[str, Trend]) -> bool:
    """The curves as a picture; False where matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    figure, axes = pyplot.subplots(5, 3, figsize=(15, 15), sharex=True, layout="constrained")
    for axis, (name, gauge) in zip(axes.flat, GAUGES.items(), strict=False):
        series = [(at / 60, figures[name]) for at, figures in samples if name in figures]
        axis.plot(*zip(*series, strict=True), linewidth=0.8)
        axis.set_title(f"{name}: {trends[name].growth:+.3g} {gauge.unit}".rstrip(), fontsize=10)
        axis.set_ylim(bottom=0)
        axis.set_ylabel(gauge.unit)
    axes.flat[-1].set_axis_off()
    for axis in (*axes[-1][:2], axes[-2][2]):
        axis.set_xlabel("minutes")
        axis.tick_params(labelbottom=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return True


def report(out: pathlib.Path, seed: int, seconds: float, samples: Any) -> bool:
    """Write, print, and say whether all is flat."""
    trends = judge(samples, seconds)
    out.mkdir(parents=True, exist_ok=True)
    for name, gauge in GAUGES.items():
        one = trends[name]
        print(
            f"  {'flat' if one.is_flat else 'RISES':5}  {name:22} {one.growth:+9.3f} {gauge.unit:4}"
            f" in the run (99 %: {one.least:+.3f} to {one.most:+.3f}; bound {one.bound:.3f})"
        )
    data = {
        "seed": seed,
        "seconds": seconds,
        "trends": {name: vars(one) | {"flat": one.is_flat} for name, one in trends.items()},
        "samples": [{"at_s": at, **figures} for at, figures in samples],
    }
    (out / "soak.json").write_text(json.dumps(data, indent=1))
    drawn = draw(out / "soak.png", samples, trends)
    print(f"soak: {out / 'soak.json'}" + (f" {out / 'soak.png'}" if drawn else ""))
    return all(one.is_flat for one in trends.values())


def main() -> int:
    parser = arguments(__doc__, seconds=1800, rate=0.3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.set_defaults(scale=False)
    options = parser.parse_args()
    every_s = max(0.5, options.seconds / SAMPLES)
    if options.seconds * (1 - WARM_UP) < 1.5 * FEWEST * every_s:
        parser.error("--seconds is too short for a slope: use 30 or more")
    load.touches_arenas = True
    load.hang_share = 0.003

    def observer(rank: int) -> list[tuple[float, Sample]]:
        return observe(options.children, every_s)

    seed = begin("soak", options)
    status, results = weather(
        "soak", options, seed, pause_s=PAUSE_S, also=[observer], spared=SPARED, prefault=True
    )
    if not results:
        return status
    is_flat = report(options.out, seed, options.seconds, results[-1])
    return status if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
