"""payload: what a call costs when its argument is 64 MiB instead of 64 B.

The function touches its argument's first element only, so nothing but the call itself is left to
measure. One child makes both kinds of call by turns, in blocks, through one helper: the two sizes
see the same machine at the same time.
"""

from __future__ import annotations

import statistics
import time

from benchmarks import isolate
from benchmarks.figures import Figure, Group, Probe, ProbeFailed, Workload

SMALL_BYTES = 64
LARGE_BYTES = 64 << 20
BLOCK_CALLS = 50
LIMIT_S = 90.0


def shmgpu_payload(seconds: float) -> dict[str, float]:
    """Return the median call's microseconds for the small and for the large argument."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import numpy as np

    import shmgpu

    @shmgpu.function(arrays="numpy")
    def touch_first(helper, x):  # type: ignore[no-untyped-def]
        return x[:1] + 1

    def run(rank: int) -> dict[str, float]:
        arrays = []
        for nbytes in (SMALL_BYTES, LARGE_BYTES):
            x = shmgpu.arena.empty((nbytes // 4,), "float32")
            x[:] = 1  # the large argument has all its pages, as a real one would
            arrays.append(x)
            if not np.array_equal(touch_first(x), [2.0]):
                raise ProbeFailed("shmgpu gave a wrong answer")
        took_us: list[list[float]] = [[], []]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for x, mine in zip(arrays, took_us, strict=True):
                for _ in range(BLOCK_CALLS):
                    began = time.perf_counter_ns()
                    touch_first(x)
                    mine.append((time.perf_counter_ns() - began) / 1000)
        return {"small": statistics.median(took_us[0]), "large": statistics.median(took_us[1])}

    results = shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena="96MiB")
    return dict(results[0])


def _run(seconds: float) -> dict[str, float]:
    result = isolate.call("benchmarks.payload:shmgpu_payload", seconds + LIMIT_S, seconds=seconds)
    return dict(result)


WORKLOAD = Workload(
    "payload",
    "a call that touches its argument's first element only, at 64 MiB and at 64 B",
    (
        Group(
            "size",
            (Probe("shmgpu", _run, {"small": "us", "large": "us"}, needs=("shmgpu",)),),
            (
                Figure(
                    "call_64MiB",
                    ("shmgpu", "large"),
                    ("shmgpu", "small"),
                    "<= 1.1",
                    "shmgpu, 64 B",
                ),
            ),
        ),
    ),
)
