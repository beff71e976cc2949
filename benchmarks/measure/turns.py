"""Kinds of work that many clients do by turns, all the same kind at a time.

A clock process says whose turn it is. On a machine whose speed changes by the second, what stands
beside each other within a second can be compared, and what was measured one after the other cannot.
Never says what a client does.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.stage import all_come, shared_array, start_clock

TURN_S = 0.05  # of one kind
_WAITS, _OVER = -1, -2  # instead of a kind's number


class Turns:
    """The clock of ``clients`` processes that do each of ``kinds`` in turn, and their counts.

    Args:
        clients: how many processes :meth:`drive`.
        kinds: how many kinds there are.
        seconds: how long all turns take together, at least; each kind has equally many.
    """

    def __init__(self, clients: int, kinds: int, seconds: float) -> None:
        self.cycles = max(1, round(seconds / (kinds * TURN_S)))
        self._kinds = kinds
        self._turn = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._turn[0] = _WAITS
        self._ready = shared_array((clients,), "int64")
        self._counts = shared_array((clients, kinds), "int64")
        self._took_ns = shared_array((kinds,), "int64")
        self._clock = 0

    def start_clock(self) -> None:
        """Fork the clock. Call it before the clients are made, from a single-threaded process."""
        self._clock = start_clock(self._run_clock)

    def _run_clock(self, parent: int) -> None:
        order = list(range(self._kinds))
        try:
            for _ in range(self.cycles if all_come(self._ready.all, parent) else 0):
                for kind in order:
                    began = time.monotonic_ns()
                    self._turn[0] = kind
                    time.sleep(TURN_S)
                    self._took_ns[kind] += time.monotonic_ns() - began
                order.reverse()  # whatever a kind leaves behind does not always meet the same one
        finally:
            self._turn[0] = _OVER

    def lasts(self, kind: int) -> bool:
        """In a client: whether that kind's turn is not over yet."""
        return bool(self._turn[0] == kind)

    def drive(self, client: int, work: Callable[[int], int]) -> None:
        """In a client: do what the clock says until it is over.

        ``work(kind)`` does that kind while its turn :meth:`lasts`, and says how often it did.
        """
        self._ready[client] = 1
        while (kind := self._turn[0]) != _OVER:
            if kind == _WAITS:
                time.sleep(0.001)
            else:
                self._counts[client, kind] += work(kind)

    def rates(self) -> list[float]:
        """Wait for the clock: how often a second each kind was done by all clients together."""
        if self._clock:
            os.waitpid(self._clock, 0)
            self._clock = 0
        if not self._took_ns.all():
            raise ProbeFailed("not every client reached the start")
        rates: list[float] = (self._counts.sum(axis=0) / (self._took_ns * 1e-9)).tolist()
        if not all(rates):
            raise ProbeFailed("some kinds were not done at all")
        return rates
