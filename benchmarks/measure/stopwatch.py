"""Timing one client whose calls may take microseconds or a second.

``Stage`` measures a span of time, which suits many short calls. Here at least ``LEAST_CALLS`` calls
are timed, however long each takes, and then as many as fit in the seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.stage import shared_array

LEAST_CALLS = 3
WARM_CALLS = 1
MOST_CALLS = 1 << 16


class Stopwatch:
    """The times of one client's calls, seen by the process that made the stopwatch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._median_us = shared_array((1,), "float64")

    def drive(self, client: int, call: Callable[[], object]) -> None:
        """In the client: call and keep the median time."""
        for _ in range(WARM_CALLS):
            call()
        took_ns: list[int] = []
        now = time.perf_counter_ns
        end = now() + int(self.seconds * 1e9)
        while len(took_ns) < LEAST_CALLS or (now() < end and len(took_ns) < MOST_CALLS):
            began = now()
            call()
            took_ns.append(now() - began)
        self._median_us[0] = statistics.median(took_ns) / 1000

    def median_us(self) -> float:
        """Return the median time of a call; ProbeFailed when the client never came so far."""
        if not self._median_us[0]:
            raise ProbeFailed("no call was answered")
        return float(self._median_us[0])
