"""A running broker, watched from another process of the same user.

A broker's parent keeps one descriptor of the scoreboard, the memory file of all counters. That
makes the broker visible under ``/proc`` without a name, a socket or a thread, and nothing is left
behind when it ends. A monitor maps the file read-only: the broker notices nothing, and pays
nothing.

Owns finding brokers, and what two readings of the counters say together: rates, shares and
latencies. Never writes to a broker, never believes a file that it finds, never draws. A process can
watch one broker at a time, and none while it runs one itself.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shmgpu import core
from shmgpu.attach import spawn
from shmgpu.errors import NotRunning, ShmError
from shmgpu.watch import server_counters, trace
from shmgpu.watch.stats import stats

SCOREBOARD = "/memfd:shmgpu-scoreboard"
MOST_RECORDS = 65536  # calls of one interval from which latencies are taken, the latest

# Numbers that show the present state; all others only grow, and have a rate.
STANDING = {
    "pid", "state", "generation", "pool", "queued", "in_flight", "arena_used_bytes", "arena_bytes",
    "started_ns", "parent_pid", "children", "helpers", "window", "parked_limit",
}  # fmt: skip

Row = dict[str, Any]

RECORD = np.dtype(
    {
        "names": [name for name, _, _ in core.TRACE_FIELDS],
        "formats": [kind for _, kind, _ in core.TRACE_FIELDS],
        "offsets": [offset for _, _, offset in core.TRACE_FIELDS],
        "itemsize": core.TRACE_BYTES,
    }
)


# ---- finding -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningBroker:
    """A broker that runs.

    Attributes:
        pid: of its parent process.
        descriptor: number under which the parent holds the scoreboard.
        command: the parent's command line.
        children: how many slots for children it has.
        helpers: how many helpers.
        started_ns: when it began, CLOCK_MONOTONIC.
    """

    pid: int
    descriptor: int
    command: str
    children: int
    helpers: int
    started_ns: int


def find() -> list[RunningBroker]:
    """Every broker that this process may watch, oldest first.

    Raises:
        ShmError: none can be watched, but one was found; the sentence says why not.
    """
    found: list[RunningBroker] = []
    refused: list[str] = []
    for pid, descriptor in _scoreboards():
        try:
            with Monitor(pid, descriptor) as watch:
                broker = core.broker_stats()
                if _is_parent(pid, broker["parent_pid"]):
                    found.append(
                        RunningBroker(
                            pid,
                            descriptor,
                            watch.command,
                            broker["children"],
                            broker["helpers"],
                            broker["started_ns"],
                        )
                    )
        except NotRunning:
            continue  # it ended meanwhile
        except ShmError as error:
            refused.append(f"process {pid}: {error}")
    if refused and not found:
        raise ShmError("; ".join(refused))
    return sorted(found, key=lambda one: one.started_ns)


def _scoreboards() -> Iterator[tuple[int, int]]:
    """Process and descriptor of everything that is named as a scoreboard, in other processes."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue  # somebody else's, or gone
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/fd/{descriptor}").startswith(SCOREBOARD):
                    yield int(name), int(descriptor)


def _is_parent(pid: int, parent_pid: int) -> bool:
    """A fork of the user's own may hold the scoreboard too; in a container, pids have two names."""
    if pid == parent_pid:
        return True
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc", str(pid), "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == str(parent_pid)
    return False


def _command(pid: int) -> str:
    try:
        raw = pathlib.Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return ""
    words = raw.decode(errors="replace").rstrip("\0").split("\0")
    if spawn.BOOTSTRAP in words:  # the interpreter and this file do not tell brokers apart
        words = ["shmgpu", *words[words.index(spawn.BOOTSTRAP) + 1 :]]
    text = " ".join(words)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# ---- watching ------------------------------------------------------------------------------


class Monitor:
    """One broker, read again and again; a context manager.

    Args:
        pid: the process that holds the scoreboard.
        descriptor: its number there; see :func:`find`.

    Raises:
        NotRunning: the process is gone, or may not be read.
        ShmError: what it holds is no scoreboard, or one of another version.
        LaunchError: this process watches a broker already, or runs one.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.command = _command(pid)
        self._path = f"/proc/{pid}/fd/{descriptor}"
        try:
            # Not waiting: the number may have become the end of a pipe.
            opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise NotRunning(
                f"the broker of process {pid} cannot be read: {error.strerror}"
            ) from None
        try:
            core.monitor_open(opened)
            self._file = _identity(os.fstat(opened))
        finally:
            os.close(opened)  # the mapping keeps the file, and its number from being reused
        self._is_open = True
        self._counters = server_counters.find(pid)
        self._models: dict[str, Row] = {}
        self._names: dict[int, str] = {}
        self._next_record = 0
        self._last: dict[str, Any] | None = None
        self._last_ns = 0

    def is_running(self) -> bool:
        """Whether the broker has not ended; its last counters can be read even then."""
        try:
            return _identity(os.stat(self._path)) == self._file
        except OSError:
            return False

    def sample(self) -> dict[str, Any]:
        """What the counters say now, and since the last sample (at first: since the start).

        The keys are those of :func:`shmgpu.stats`, and ``rates`` of what grows, per second; see
        the package's page for all of them. Only plain values: it can be written as JSON.
        """
        now_ns = time.monotonic_ns()
        counters = stats()
        before = self._last
        broker = counters["broker"]
        since_ns = self._last_ns if before is not None else broker["started_ns"]
        seconds = max(now_ns - since_ns, 1) / 1e9
        records, weight = self._records(broker["trace_written"])
        batches = _calls_per_run(records)
        children = [
            self._child(index, row, before and before["children"][index], seconds)
            for index, row in enumerate(counters["children"])
        ]
        helpers = [
            self._helper(index, row, before and before["helpers"][index], seconds, batches)
            for index, row in enumerate(counters["helpers"])
        ]
        before_models = self._models
        self._models, workers = server_counters.read(self._counters or "")
        for child, worker in zip(children, workers, strict=False):
            child["connections"] = worker["connections"]
        models = server_counters.show(self._models, before_models, seconds)
        self._last, self._last_ns = counters, now_ns
        return {
            "pid": self.pid,
            "command": self.command,
            "running": self.is_running(),
            "time": time.time(),
            "uptime_s": max(0.0, (now_ns - broker["started_ns"]) / 1e9),
            "interval_s": seconds,
            "broker": broker,
            "rates": _rates(broker, before and before["broker"], seconds),
            "models": models,
            "helpers": helpers,
            "children": children,
            "functions": self._functions(records, weight, seconds),
            "bytes": counters["bytes"],
            "mean_batch": counters["mean_batch"],
        }

    def close(self) -> None:
        """Let go of the broker."""
        if self._is_open:
            self._is_open = False
            core.monitor_close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _child(self, index: int, row: Row, before: Row | None, seconds: float) -> Row:
        # Calls whose caller died count for the slot, whichever process holds it by now.
        outstanding = row["submitted"] - row["answered"] - row["dropped"]
        return {
            "child": index,
            **row,
            "state": _name(core.CHILD_STATES, row["state"]),
            "outstanding": max(0, outstanding) if row["state"] == 1 else 0,
            "rates": _rates(row, before, seconds),
        }

    def _helper(
        self, index: int, row: Row, before: Row | None, seconds: float, batches: dict[int, float]
    ) -> Row:
        rates = _rates(row, before, seconds)
        return {
            "helper": index,
            **row,
            "state": _name(core.HELPER_STATES, row["state"]),
            # A long call counts when it ends, so one interval may hold more than its own time.
            "busy": min(1.0, rates["busy_ns"] / 1e9),
            "waits": min(1.0, rates["collective_wait_ns"] / 1e9),
            "calls_per_run": batches.get(index),
            "rates": rates,
        }

    def _records(self, written: int) -> tuple[npt.NDArray[np.void], float]:
        """The trace records since the last sample, and how many calls each of them stands for."""
        first = max(self._next_record, written - MOST_RECORDS)
        new = written - self._next_record
        self._next_record, raw = core.read_trace_bytes(first, max(0, written - first))
        records = np.frombuffer(raw, dtype=RECORD)
        return records, max(1.0, new / len(records)) if len(records) else 1.0

    def _functions(self, records: npt.NDArray[np.void], weight: float, seconds: float) -> list[Row]:
        rows = []
        for function in np.unique(records["function"]):
            own = records[records["function"] == function]
            handed = own[(own["handed_ns"] != 0) & (own["helper"] != core.NO_HELPER)]
            own = own[_stands_for_its_call(own)]
            queued_ns = handed["handed_ns"].astype(np.float64) - handed["queued_ns"]
            units = handed["finished_units"].astype(np.float64) - handed["started_units"]
            calls = len(own) * weight
            rows.append(
                {
                    "name": self._function_name(int(function)),
                    "calls": round(calls),
                    "failed": round(np.count_nonzero(own["status"]) * weight),
                    "calls_per_s": calls / seconds,
                    "calls_per_run": _mean_run(handed["batch"]),
                    **_quantiles("queued", queued_ns),
                    **_quantiles("service", units * trace.UNIT_NS),
                }
            )
        return sorted(rows, key=lambda row: -row["calls"])

    def _function_name(self, function: int) -> str:
        if function not in self._names:
            self._names = core.function_names()
        return self._names.get(function) or "a function of C"


def _stands_for_its_call(records: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Of a call that several helpers ran at once one record counts: that of the first of them."""
    members = records["members"].astype(np.uint64)
    first = members & (~members + np.uint64(1))
    own = np.uint64(1) << (records["helper"].astype(np.uint64) & np.uint64(63))
    found: npt.NDArray[np.bool_] = (members == 0) | (first == own)
    return found


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _name(names: Sequence[str], state: int) -> str:
    return names[state] if 0 <= state < len(names) else str(state)


def _rates(row: Row, before: Row | None, seconds: float) -> dict[str, float]:
    """Growth per second of every number that only grows; at least 0, should one restart."""
    return {
        name: max(0, value - (before[name] if before else 0)) / seconds
        for name, value in row.items()
        if name not in STANDING and isinstance(value, int)
    }


def _mean_run(batch: npt.NDArray[Any]) -> float | None:
    """Calls a run, when each record says how many calls its own run had."""
    if not len(batch):
        return None
    return float(len(batch) / np.sum(1.0 / np.maximum(batch, 1)))


def _calls_per_run(records: npt.NDArray[np.void]) -> dict[int, float]:
    means = {}
    for helper in np.unique(records["helper"]):
        mean = _mean_run(records["batch"][records["helper"] == helper])
        if mean is not None:
            means[int(helper)] = mean
    return means


def _quantiles(name: str, nanoseconds: npt.NDArray[np.float64]) -> dict[str, float | None]:
    if not len(nanoseconds):
        return {f"{name}_p50_us": None, f"{name}_p99_us": None}
    p50, p99 = np.quantile(np.maximum(nanoseconds, 0) / 1e3, [0.5, 0.99])
    return {f"{name}_p50_us": float(p50), f"{name}_p99_us": float(p99)}
