"""Where clients are counted: the Python twin of ``benchmarks/c/stage.h``.

One shared anonymous mapping, made before anything is forked. A clock process waits until every
client stands at the start, lets them run, and reads their counters at the beginning and at the end
of the measured span, so that neither start-up nor shutdown is measured. Every peer and shmgpu
itself are driven by the same loop, ``drive``.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.figures import ProbeFailed

SAMPLES = 1 << 18
START_LIMIT_S = 60.0
_STRIDE = 16  # counters of 8 bytes, one cache line pair each: no client slows another
_GO, _STOP, _MEASURING, _BEGAN_NS, _ENDED_NS, _SAMPLES = range(0, 6 * _STRIDE, _STRIDE)
_HEADER = 6 * _STRIDE


def shared_array(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return zeros in memory that processes forked later share."""
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, count).reshape(shape)


def start_clock(run: Callable[[int], None]) -> int:
    """Fork a process that does ``run(parent)``, the parent's number; return its own.

    Call it before clients are made, from a single-threaded process.
    """
    parent = os.getpid()
    clock = os.fork()
    if clock == 0:
        try:
            run(parent)
        finally:
            os._exit(0)
    return clock


def all_come(are_ready: Callable[[], bool], parent: int) -> bool:
    """In a clock: wait for all clients; False where some stayed away, or the parent is gone."""
    limit = time.monotonic() + START_LIMIT_S
    while not are_ready():
        if time.monotonic() > limit or os.getppid() != parent:
            return False
        time.sleep(0.001)
    return True


class Stage:
    """The common start, the counters and the samples of ``clients`` processes.

    With one client every call is timed; with several only counted.
    """

    def __init__(self, clients: int, seconds: float) -> None:
        self.clients = clients
        self.seconds = seconds
        self.timed = clients == 1
        self._words = memoryview(mmap.mmap(-1, 8 * (_HEADER + 3 * clients * _STRIDE))).cast("Q")
        self._samples = shared_array((SAMPLES if self.timed else 1,), "int64")
        self._clock = 0

    def start_clock(self) -> None:
        """Fork the clock. Call it before the clients are made, from a single-threaded process."""
        self._clock = start_clock(self._run_clock)

    def _word(self, row: int, client: int) -> int:
        """Return the index of a client's word; row 0 is ready, 1 the counter, 2 the result."""
        return _HEADER + (row * self.clients + client) * _STRIDE

    def _row(self, row: int) -> list[int]:
        return [self._words[self._word(row, client)] for client in range(self.clients)]

    def _run_clock(self, parent: int) -> None:
        words = self._words
        if not all_come(lambda: all(self._row(0)), parent):
            words[_STOP] = words[_GO] = 1
            return
        words[_GO] = 1
        time.sleep(min(0.1, self.seconds / 4))
        before = self._row(1)
        words[_BEGAN_NS] = time.monotonic_ns()
        words[_MEASURING] = 1
        time.sleep(self.seconds)
        words[_MEASURING] = 0
        after = self._row(1)
        words[_ENDED_NS] = time.monotonic_ns()
        for client in range(self.clients):
            words[self._word(2, client)] = after[client] - before[client]
        words[_STOP] = 1

    def drive(self, client: int, call: Callable[[], object]) -> None:
        """In a client: wait for the common start, then call until the clock says stop."""
        words = self._words
        words[self._word(0, client)] = 1
        while not words[_GO]:
            time.sleep(0.001)
        index = self._word(1, client)
        samples, taken, done = self._samples, 0, 0
        now = time.perf_counter_ns
        while not words[_STOP]:
            if self.timed:
                began = now()
                call()
                took = now() - began
                if words[_MEASURING]:
                    samples[taken % SAMPLES] = took
                    taken += 1
            else:
                call()
            done += 1
            words[index] = done
        if self.timed:
            words[_SAMPLES] = taken

    @property
    def span_s(self) -> tuple[float, float]:
        """When the measured span began and ended, in seconds of ``time.monotonic``."""
        return self._words[_BEGAN_NS] * 1e-9, self._words[_ENDED_NS] * 1e-9

    def latencies_us(self) -> NDArray[Any]:
        """Return the timed client's calls in order of time, at most the last ``SAMPLES``."""
        kept: NDArray[Any] = self._samples[: min(SAMPLES, self._words[_SAMPLES])] / 1000.0
        return kept

    def result(self) -> dict[str, float]:
        """Wait for the clock and return ``rate`` and, for one client, the latencies' quantiles."""
        if self._clock:
            os.waitpid(self._clock, 0)
            self._clock = 0
        began, ended = self.span_s
        if not ended:
            raise ProbeFailed("not every client reached the start")
        calls = self._row(2)
        if sum(calls) == 0:
            raise ProbeFailed("no call was answered")
        result = {"rate": sum(calls) / (ended - began), "least": min(calls), "most": max(calls)}
        if self.timed:
            latencies = self.latencies_us()
            result["median_us"] = statistics.median(latencies.tolist())
            result["p99_us"] = float(np.quantile(latencies, 0.99))
        return result
