"""messages: round trips of empty messages in C, beside the raw relay.

Both programs are built by the same compiler with the same flags and take the same arguments;
``benchmarks/c/stage.h`` counts for both.

Three curves go through one common point, 32 children, 2 helpers and a window of 1: over children,
over helpers, over the window. The relay is run at every point of each. A fourth goes over the
window once more with every process on one core, where the kernel has nothing to choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, Workload
from benchmarks.measure.native import build, run_json

START_LIMIT_S = 90.0
HANDOVER = 16  # frames handed to a helper ahead by the relay, or a whole window if that is more
LIBRARIES: Mapping[str, str | None] = {"messages": "*.c", "relay": None}
LABELS = {"messages": "shmgpu", "relay": "relay"}

COMMON = {"children": 32, "helpers": 2, "window": 1}
WINDOW16 = {**COMMON, "window": 16}
MEASURED = (COMMON, WINDOW16, {**COMMON, "children": 256})  # by the groups with a target
SIZES = {
    "children": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "helpers": (1, 2, 4, 8),
    "window": (1, 2, 4, 8, 16, 32, 64),
}
CURVES = {
    "children": Curve("messages over children", "children"),
    "helpers": Curve("messages over helpers", "helpers"),
    "window": Curve("messages over the window", "messages a child has out"),
}
ONE_CORE = Curve("messages over the window, on one core", "messages a child has out")
ONE_CORE_WINDOWS = (1, 2, 4, 16, 64)
IN_QUICK = (8,)
# Where the kernel puts the processes halves or doubles a rate, anew in each round: see README.md.
CURVE_ROUNDS = 3


@contextmanager
def on_one_core() -> Iterator[None]:
    """Let what is started meanwhile run on one core of those allowed, the last."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def carried(program: str, seconds: float, **sizes: int) -> dict[str, Any]:
    """Run one of the two programs; ``sizes`` are its arguments, as in ``window=16``."""
    handover = max(HANDOVER, sizes.get("window", 1))
    arguments = {**sizes, "handover": handover, "seconds": seconds}
    words = [
        word
        for name, size in arguments.items()
        for word in (f"--{name.replace('_', '-')}", str(size))
    ]
    path = build(program, library=LIBRARIES[program])
    return run_json([path, *words], seconds + START_LIMIT_S)


def _probe(program: str, *, label: str | None = None, **sizes: int) -> Probe:
    """Run ``program``: its rate, and when one child alone is active its latency."""
    timed = sizes.get("window", 1) == 1 and sizes.get("active", sizes["children"]) == 1

    def run(seconds: float) -> dict[str, float]:
        result = carried(program, seconds, **sizes)
        quantities = {"rate": result["rate"]}
        if timed:
            quantities["median"] = result["median_ns"] / 1000
            quantities["p99"] = result["p99_ns"] / 1000
        return quantities

    units = {"rate": "1/s", "median": "us", "p99": "us"} if timed else {"rate": "1/s"}
    return Probe(label or LABELS[program], run, units)


def _one_core_group(window: int) -> Group:
    """Return the group of a window with all processes on one core."""
    sizes = {**COMMON, "window": window}

    def probe(program: str) -> Probe:
        def run(seconds: float) -> dict[str, float]:
            with on_one_core():
                return {"rate": carried(program, seconds, **sizes)["rate"]}

        return Probe(LABELS[program], run, {"rate": "1/s"})

    point = Point(ONE_CORE, window, "shmgpu")
    return Group(
        f"one_core_{window}",
        (probe("messages"), probe("relay")),
        (_rate(f"rate_one_core_{window}", None, point),),
        rounds=CURVE_ROUNDS,
        quick=False,
    )


def lone_latency(label: str) -> Probe:
    """Return the probe of a lone child's round trip through one helper: rate, median and p99."""
    return _probe("messages", label=label, children=1, helpers=1)


def _beside_relay(sizes: Mapping[str, int]) -> tuple[Probe, Probe]:
    return _probe("messages", **sizes), _probe("relay", **sizes)


def _rate(name: str, asked: str | None = None, point: Point | None = None) -> Figure:
    return Figure(name, ("shmgpu", "rate"), ("relay", "rate"), asked, point=point)


def _points(sizes: Mapping[str, int]) -> tuple[Figure, ...]:
    """Return a figure for each curve that goes through this point."""
    return tuple(
        _rate(f"rate_over_{along}_{sizes[along]}", None, Point(curve, sizes[along], "shmgpu"))
        for along, curve in CURVES.items()
        if sizes == {**COMMON, along: sizes[along]}
    )


def _point_group(along: str, size: int) -> Group:
    sizes = {**COMMON, along: size}
    return Group(
        f"{along}_{size}",
        _beside_relay(sizes),
        _points(sizes),
        rounds=CURVE_ROUNDS,
        quick=size in IN_QUICK,
    )


WORKLOAD = Workload(
    "messages",
    "round trips of empty messages from C, beside a raw relay of poll, read and write",
    (
        Group(
            "window1", _beside_relay(COMMON), (_rate("rate_window1", ">= 0.85"), *_points(COMMON))
        ),
        Group(
            "window16",
            _beside_relay(WINDOW16),
            (_rate("rate_window16", ">= 0.85"), *_points(WINDOW16)),
        ),
        Group(
            "children256",
            (
                _probe("messages", children=256, helpers=2, label="shmgpu, 256 children"),
                _probe("messages", children=32, helpers=2, label="shmgpu, 32 children"),
                _probe("relay", children=256, helpers=2),
            ),
            (
                Figure(
                    "rate_children256",
                    ("shmgpu, 256 children", "rate"),
                    ("shmgpu, 32 children", "rate"),
                    ">= 0.9",
                ),
                Figure(
                    "rate_children256_relay",
                    ("shmgpu, 256 children", "rate"),
                    ("relay", "rate"),
                    point=Point(CURVES["children"], 256, "shmgpu"),
                ),
            ),
        ),
        Group(
            "latency",
            (
                _probe("messages", children=1, helpers=1),
                _probe("relay", children=1, helpers=1),
                _probe(
                    "messages", children=256, helpers=1, active=1, label="shmgpu, 255 idle besides"
                ),
            ),
            (
                Figure("latency", ("shmgpu", "median"), ("relay", "median"), "<= 1.2"),
                Figure("latency_p99", ("shmgpu", "p99"), ("relay", "p99")),
                Figure(
                    "latency_among_idle",
                    ("shmgpu, 255 idle besides", "median"),
                    ("shmgpu", "median"),
                    "<= 1.3",
                    "shmgpu, alone",
                ),
            ),
        ),
        *(
            _point_group(along, size)
            for along, sizes in SIZES.items()
            for size in sizes
            if {**COMMON, along: size} not in MEASURED
        ),
        *map(_one_core_group, ONE_CORE_WINDOWS),
    ),
)
