"""Several clients timed at once: a common start, a measured span, and every call's latency.

``Stage`` counts many clients or times one; a crowd does both, for calls that take long enough that
two readings of the clock do not matter. One process watches: it waits until all stand at the
start, opens and closes the span, and ends the run. All memory is shared and is made before anything
is forked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.stage import shared_array

WARM_S = 0.2
START_LIMIT_S = 120.0
_ROOM_PER_S = 20_000  # calls of one client that are kept; memory is taken only as it is written
_MEASURING, _STOPPED = 0, 1


class Crowd:
    """``clients`` processes that call in a loop, and what each call took."""

    def __init__(self, clients: int, seconds: float) -> None:
        self.clients = clients
        self.seconds = seconds
        self._ready = shared_array((clients,), "int64")
        self._flags = shared_array((2,), "int64")
        self._latencies_s = shared_array((clients, int(_ROOM_PER_S * (seconds + 1))), "float64")
        self._span_s = shared_array((1,), "float64")

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return bool(self._flags[_STOPPED])

    def stand_ready(self, client: int) -> None:
        """In a client: be at the start."""
        self._ready[client] = 1

    @contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """In a client: what raises in the block ends the run at once, with nobody waited for."""
        try:
            yield
        except BaseException:
            self._flags[_STOPPED] = 1
            raise

    def drive(self, client: int, call: Callable[[], object]) -> None:
        """In a client: call once, stand ready, then call until the run is over."""
        call()
        self.stand_ready(client)
        mine, flags, taken, now = self._latencies_s[client], self._flags, 0, time.monotonic
        while not flags[_STOPPED]:
            began = now()
            call()
            if flags[_MEASURING] and taken < len(mine):
                mine[taken] = now() - began
                taken += 1

    def watch(self, reading: Callable[[], Any] = lambda: None) -> tuple[Any, Any]:
        """In the watcher: have the span take place; return ``reading()`` at its begin and end.

        The clients go on while the second reading is taken. Raises ProbeFailed when some client
        does not come to the start. However it ends, the clients are told to stop.
        """
        try:
            limit = time.monotonic() + START_LIMIT_S
            while not self._ready.all():
                if self.stopped or time.monotonic() > limit:
                    raise ProbeFailed("not every client reached the start")
                time.sleep(0.001)
            time.sleep(WARM_S)
            before = reading()
            began = time.monotonic()
            self._flags[_MEASURING] = 1
            time.sleep(self.seconds)
            self._flags[_MEASURING] = 0
            self._span_s[0] = time.monotonic() - began
            return before, reading()
        finally:
            self._flags[_STOPPED] = 1

    def result(self) -> dict[str, float]:
        """Return calls a second that ended in the span (``rate``), ``p50_ms`` and ``p99_ms``."""
        taken = self._latencies_s[self._latencies_s > 0]
        if not len(taken) or not self._span_s[0]:
            raise ProbeFailed("no call was answered")
        p50, p99 = np.quantile(taken, (0.5, 0.99))
        return {
            "rate": len(taken) / float(self._span_s[0]),
            "p50_ms": 1000 * float(p50),
            "p99_ms": 1000 * float(p99),
        }
