"""Where the demo's clients are driven, counted and watched, whoever answers them.

Owns one shared anonymous mapping, made before anything is forked, and the *watcher*: a process of
its own, forked first, that starts all clients together, draws the progress bar, and reads from
/proc what each process wrote and read, while all of them stand still. The clients of shmgpu and
those of the ``multiprocessing`` baseline run the same loop, :meth:`ClientStage.drive`. Never sends
a request itself.

Clients and watcher go through the same phases together: all are warmed up; traffic is read and
frames are noted; clients serve until the deadline; traffic is read and frames are noted again;
everybody may leave.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmgpu.common.progress import ProgressBar
from shmgpu.errors import ShmError

WARM_UP_CALLS = 64
SAMPLES = 1 << 16  # latencies kept of each client, the last ones

# A client says which of these it has reached; the watcher says which one has begun.
_STILL, _SERVING, _STILL_AGAIN, _LEAVING = 1, 2, 3, 4

_TICK_S = 0.005
_QUIET_S = 0.05
_QUIET_TRIES = 40
_COULD_NOT_READ = -1


class StageFailed(ShmError):
    """The clients did not get through their work."""


@dataclass(frozen=True)
class Traffic:
    """What one process moved by system calls between the two readings, in bytes.

    ``written`` and ``read`` are None where /proc would not say.
    """

    name: str
    written: int | None
    read: int | None


@dataclass(frozen=True)
class Measured:
    """What the clients saw.

    Attributes:
        correct: images put in the right class in each client's first pass.
        images: images in those passes: each held-out one once.
        calls: calls answered before the deadline.
        all_calls: those, and the ones that were answered later.
        seconds: the measured span.
        latencies_us: of the calls, microseconds.
        traffic: of every process, clients first.
    """

    correct: int
    images: int
    calls: int
    all_calls: int
    seconds: float
    latencies_us: NDArray[np.float64]
    traffic: tuple[Traffic, ...]

    @property
    def accuracy(self) -> float:
        """Share of the held-out images put in the right class."""
        return self.correct / self.images

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    def latency_us(self, quantile: float) -> float:
        """A quantile of the calls' latencies, microseconds."""
        if not len(self.latencies_us):
            return math.nan
        return float(np.quantile(self.latencies_us, quantile))


class ClientStage:
    """The common start, the counters and the watcher of one run.

    A context manager: entering forks the watcher, so do it in a process without threads, before
    the clients are made; leaving ends it.

    Args:
        clients: how many processes call :meth:`drive`.
        servers: how many processes answer them, each of which calls :meth:`enter_server`.
        seconds: how long to serve.
        label: what the progress bar says.
        show: draw the bar; None means on a terminal only.
        watch_parent: whether the process that makes the stage moves traffic worth reading.
    """

    def __init__(
        self,
        clients: int,
        servers: int,
        seconds: float,
        label: str,
        show: bool | None = None,
        watch_parent: bool = False,
    ) -> None:
        self.clients = clients
        self.servers = servers
        self.seconds = seconds
        self._label = label
        self._show = show
        self._names = [f"client {rank}" for rank in range(clients)]
        self._names += [f"server {number}" for number in range(servers)]
        self._names += ["parent"] * watch_parent
        everyone = len(self._names)
        self._words = _shared((2,), "int64")  # phase, deadline
        self._pids = _shared((everyone,), "int64")
        self._reached = _shared((clients,), "int64")
        self._counts = _shared((clients, 4), "int64")  # calls, all calls, images, correct
        self._latencies_ns = _shared((clients, SAMPLES), "int64")
        self._traffic = _shared((2, everyone, 2), "int64")  # before and after; written, read
        if watch_parent:
            self._pids[-1] = os.getpid()
        self._home = os.getpid()
        self._watcher = 0

    # ---- in the process that makes it ------------------------------------------------------

    def __enter__(self) -> ClientStage:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                self._watch()
                status = 0
            finally:
                os._exit(status)
        self._watcher = pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher:
            if self._words[0] != _LEAVING:
                with suppress(ProcessLookupError):
                    os.kill(self._watcher, signal.SIGKILL)
            os.waitpid(self._watcher, 0)
            self._watcher = 0

    def outcome(self) -> Measured:
        """What the clients saw; after all of them have left.

        Raises:
            StageFailed: not all of them got through.
        """
        if self._words[0] != _LEAVING:
            raise StageFailed("the demo's clients did not get through their work")
        calls, all_calls, images, correct = (int(n) for n in self._counts.sum(0))
        kept = [
            samples[: min(int(count), SAMPLES)]
            for samples, count in zip(self._latencies_ns, self._counts[:, 0], strict=True)
        ]
        before, after = self._traffic
        return Measured(
            correct,
            images,
            calls,
            all_calls,
            self.seconds,
            np.concatenate(kept) / 1000,
            tuple(
                Traffic(name, None, None)
                if _COULD_NOT_READ in (*before[index], *after[index])
                else Traffic(name, *(int(n) for n in after[index] - before[index]))
                for index, name in enumerate(self._names)
            ),
        )

    # ---- in clients and servers ------------------------------------------------------------

    def enter_server(self, number: int) -> None:
        """In a server: be known to the watcher."""
        self._pids[self.clients + number] = os.getpid()

    def drive(
        self,
        rank: int,
        ask: Callable[[int], int],
        labels: NDArray[np.int64],
        at_start: Callable[[], object] = lambda: None,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        """In a client: classify its images again and again until the time is over.

        Args:
            rank: of the client.
            ask: classifies one of the client's images, named by its index.
            labels: of the client's images; the first pass over them is always completed.
            at_start: called before it serves, while no client does.
            at_end: called after it has served, while no client does.
        """
        expected = [int(label) for label in labels]
        if expected:
            for call in range(WARM_UP_CALLS):
                ask(call % len(expected))
        self._pids[rank] = os.getpid()
        self._enter(rank, _STILL)
        at_start()
        self._enter(rank, _SERVING)
        self._serve(rank, ask, expected)
        self._enter(rank, _STILL_AGAIN)
        at_end()
        self._enter(rank, _LEAVING)

    def _serve(self, rank: int, ask: Callable[[int], int], expected: list[int]) -> None:
        # Plain memory rather than arrays: an array's element costs ten times as much to set.
        samples = memoryview(self._latencies_ns[rank])
        now = time.monotonic_ns
        deadline = int(self._words[1])
        calls = in_time = correct = passes = 0
        late = False
        while expected and not (late and passes):
            for index, label in enumerate(expected):
                asked = now()
                digit = ask(index)
                answered = now()
                calls += 1
                late = answered > deadline
                if not late:
                    samples[in_time % SAMPLES] = answered - asked
                    in_time += 1
                elif passes:
                    break
                if not passes:
                    correct += digit == label
            passes += 1
        self._counts[rank] = in_time, calls, len(expected), correct

    def _enter(self, rank: int, phase: int) -> None:
        self._reached[rank] = phase
        while self._words[0] < phase:
            time.sleep(_TICK_S)
            if not self._alive():
                raise StageFailed("the demo was ended")

    def _alive(self) -> bool:
        """Whether the process that made the stage, and will reap the watcher, still is there."""
        try:
            os.kill(self._home, 0)
        except ProcessLookupError:
            return False
        return True

    # ---- the watcher -----------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._all_at(_STILL):
            return
        self._take_traffic(0)
        self._words[0] = _STILL
        if not self._all_at(_SERVING):
            return
        self._words[1] = time.monotonic_ns() + int((self.seconds + _TICK_S) * 1e9)
        time.sleep(_TICK_S)  # so that no processor shows the phase before the deadline
        self._words[0] = _SERVING
        began = time.monotonic()
        with ProgressBar(100, self._label, "%", self._show) as bar:

            def draw() -> None:
                passed = min(100, int(100 * (time.monotonic() - began) / self.seconds))
                bar.update(passed - bar.count)

            if not self._all_at(_STILL_AGAIN, draw):
                return
        self._take_traffic(1)
        self._words[0] = _STILL_AGAIN
        if self._all_at(_LEAVING):
            self._words[0] = _LEAVING

    def _all_at(self, phase: int, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Wait for every client; False when no client is left to wait for."""
        while self._reached.min() < phase:
            meanwhile()
            time.sleep(_TICK_S)
            if not self._alive():
                return False
        return True

    def _take_traffic(self, row: int) -> None:
        """Read what each process has moved so far, once nothing moves any more."""
        seen = [traffic_of(int(pid)) for pid in self._pids]
        for _ in range(_QUIET_TRIES):
            time.sleep(_QUIET_S)
            again = [traffic_of(int(pid)) for pid in self._pids]
            if again == seen:
                break
            seen = again
        self._traffic[row] = [pair or (_COULD_NOT_READ, _COULD_NOT_READ) for pair in seen]


def traffic_of(pid: int) -> tuple[int, int] | None:
    """Bytes a process has written and read by system calls, or None where /proc does not say."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file)
        return int(fields["wchar"]), int(fields["rchar"])
    except (OSError, ValueError, KeyError):
        return None


def _shared(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Zeros in memory that processes forked later share."""
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(1, count) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, count).reshape(shape)
