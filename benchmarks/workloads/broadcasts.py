"""broadcast: new weights for every helper of a pool, beside a plain call with the same arguments.

One child, helpers that do nothing but copy what they are given, as ``load_state_dict`` does. By
turns within one process it broadcasts, calls once (which reaches one helper), and calls each helper
by its number (which reaches all that are there at the time, but none that comes later). The weights
lie in the arena; for the largest, copying them is nearly all there is to do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed, Workload

HELPERS = 2
SIZES = {"64B": 64, "16MiB": 16 << 20}
WARM_UP = 20
LIMIT_S = 120.0
WAYS = ("broadcast", "call", "each")


def pushes(payload_bytes: int, seconds: float) -> dict[str, float]:
    """Return the median microseconds of each way."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    @shmgpu.function(arrays="numpy")
    def set_weights(helper: Any, weights: Any) -> None:
        helper.weights = weights.copy()

    @shmgpu.function(arrays="numpy")
    def first(helper: Any) -> float:
        return float(helper.weights[0])

    def run(rank: int) -> dict[str, float]:
        weights = shmgpu.arena.zeros((payload_bytes // 4,), "float32")
        each = [set_weights.options(helpers=[number]) for number in range(HELPERS)]

        def call_each() -> None:
            for call in each:
                call(weights)

        ways: dict[str, Callable[[], Any]] = {
            "broadcast": lambda: set_weights.broadcast(weights),
            "call": lambda: set_weights(weights),
            "each": call_each,
        }
        took: dict[str, list[int]] = {way: [] for way in WAYS}
        now = time.perf_counter_ns
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(took["broadcast"]) <= WARM_UP:
            for way, push in ways.items():
                began = now()
                push()
                took[way].append(now() - began)
        weights[0] = 7
        set_weights.broadcast(weights)
        for number in range(HELPERS):
            if first.options(helpers=[number])() != 7:
                raise ProbeFailed("a helper has other weights")
        return {way: statistics.median(times[WARM_UP:]) / 1000 for way, times in took.items()}

    found: list[dict[str, float]] = shmgpu.launch(
        run,
        children=1,
        helpers=HELPERS,
        devices=["cpu"],
        arena=4 * payload_bytes + (4 << 20),
        threads=1,
    )
    return found[0]


def _group(name: str, payload_bytes: int) -> Group:
    def run(seconds: float) -> dict[str, float]:
        found: dict[str, float] = isolate.call(
            "benchmarks.workloads.broadcasts:pushes",
            seconds + LIMIT_S,
            seconds=seconds,
            payload_bytes=payload_bytes,
        )
        return found

    probe = Probe("shmgpu", run, dict.fromkeys(WAYS, "us"), ("shmgpu",))
    return Group(
        name,
        (probe,),
        (
            Figure(f"{name}_call", ("shmgpu", "broadcast"), ("shmgpu", "call")),
            Figure(f"{name}_each", ("shmgpu", "broadcast"), ("shmgpu", "each")),
        ),
    )


WORKLOAD = Workload(
    "broadcast",
    f"New weights for {HELPERS} helpers: a broadcast beside a plain call, and beside one to each",
    tuple(_group(name, payload_bytes) for name, payload_bytes in SIZES.items()),
)
