"""The trace ring as a file that Perfetto and Chrome open.

Owns the translation from one record for each call's life to the trace-event format: a track for
each helper with what it executed, a track for each child with what it waited for, and a counter of
the queue's depth. A call that several helpers ran at once has a record for each of them: a slice on
each track, joined by arrows. See Google's "Trace Event Format" for the fields. Never changes the
ring that it reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from shmgpu import core
from shmgpu.common import parsers
from shmgpu.errors import BadParams, ConfigError

HELPERS_PID = 1
CHILDREN_PID = 2
TENSORS_PID = 3  # of what shmgpu.debug saves
UNIT_NS = core.UNIT_NS
MAX_COUNTER_SAMPLES = 200_000
EVENTS_AT_ONCE = 1000  # one by one they take four times as long


def read() -> list[dict[str, int]]:
    """The records that the ring still holds, oldest first; times are CLOCK_MONOTONIC ns."""
    return core.read_trace()[1]


def write(path: str | os.PathLike[str], records: Iterable[dict[str, int]] | None = None) -> int:
    """Write the trace to a file: how many calls it holds.

    Args:
        path: of the file, by custom ending in ``.json``.
        records: of :func:`read`; those of the running broker unless given.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = parsers.parse_path(path, "path")
    if records is None:
        core.broker_stats()  # NotRunning if there is no broker that could have a trace
    rows = read() if records is None else _checked(records)
    gangs = _gangs(rows)
    names: dict[int, str] = {}
    try:
        file = open(path, "w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"path={path!r} cannot be written ({error.strerror})") from None
    with file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        separator, rest = "", events(rows, names)
        while some := list(islice(rest, EVENTS_AT_ONCE)):
            file.write(separator + json.dumps(some, separators=(",", ":"))[1:-1])
            separator = ",\n"
        file.write("\n]}\n")
    return len(rows) - sum(len(places) - 1 for places in gangs.values())


def _gangs(records: list[dict[str, int]]) -> dict[tuple[int, ...], list[int]]:
    """Where the members' records of each call stand that several helpers ran at once."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, record in enumerate(records):
        if record.get("members"):
            found.setdefault(_gang_of(record), []).append(number)
    return found


def _gang_of(record: dict[str, int]) -> tuple[int, ...]:
    return record["slot"], record["generation"], record["sequence"], record["handed_ns"]


def _status_of(records: list[dict[str, int]]) -> int:
    """The status of a call: of its members that failed, one that was not stopped by another."""
    failed = [record["status"] for record in records if record["status"]]
    own = [status for status in failed if -abs(status) != core.EABORTED]
    return (own or failed or [0])[0]


def _checked(records: Any) -> list[dict[str, int]]:
    try:
        rows = list(records)
    except TypeError:
        rows = [records]
    for row in rows:
        if not isinstance(row, dict) or "queued_ns" not in row:
            raise BadParams("records= are rows of shmgpu.watch.trace.read(): one of them is not")
    return rows


def events(
    records: list[dict[str, int]], names: dict[int, str] | None = None
) -> Iterator[dict[str, Any]]:
    """The trace events of some records; ``names`` may give functions' names by row."""
    names = {} if names is None else names
    start = min((record["queued_ns"] for record in records), default=0)
    yield _meta(HELPERS_PID, None, "process_name", "helpers")
    yield _meta(CHILDREN_PID, None, "process_name", "children")
    for helper in sorted(
        {record["helper"] for record in records if record["helper"] != core.NO_HELPER}
    ):
        yield _meta(HELPERS_PID, helper, "thread_name", f"helper {helper}")
    for slot in sorted({record["slot"] for record in records}):
        yield _meta(CHILDREN_PID, slot, "thread_name", f"child {slot}")
    executed: set[tuple[int, int, int]] = set()
    ended: dict[int, int] = {}  # of each helper, the end of its last slice
    gangs = _gangs(records)
    for number, record in enumerate(records):
        name = _name(record["function"], names)
        begin, end = record["queued_ns"], record["answered_ns"]
        status = record["status"]
        members = [number]
        if record.get("members"):
            members = gangs[_gang_of(record)]
            status = _status_of([records[place] for place in members])
        details: dict[str, Any] = {
            "sequence": record["sequence"],
            "rows": record["rows"],
            "status": core.status_name(-abs(status)) if status else "SHM_OK",
        }
        span = {"cat": "call", "id": number, "pid": CHILDREN_PID, "tid": record["slot"]}
        if number == members[-1]:  # of a call's members the last to end is its end
            yield {**span, "name": name, "ph": "b", "ts": _us(begin - start), "args": details}
            if record["handed_ns"]:
                yield {
                    **span,
                    "name": "handed over",
                    "ph": "n",
                    "ts": _us(record["handed_ns"] - start),
                }
            yield {**span, "name": name, "ph": "e", "ts": _us(max(end, begin) - start)}
        if len(members) > 1 and number == members[0]:
            yield from _arrows([records[place] for place in members], number, start)
        if not record["handed_ns"] or record["helper"] == core.NO_HELPER:
            continue
        started = record["handed_ns"] + record["started_units"] * UNIT_NS
        # Both ends are whole units from their own hand-over, so a call may seem to begin a part of
        # one before the end of the last. Slices of a helper do not overlap.
        before = ended.get(record["helper"], 0)
        if before - UNIT_NS < started < before:
            started = before
        finished = record["handed_ns"] + record["finished_units"] * UNIT_NS
        ended[record["helper"]] = max(before, finished)
        if record["batch"] > 1:
            # Each message of a batch has the same slice; drawn once.
            key = (record["helper"], record["handed_ns"], record["function"])
            if key in executed:
                continue
            executed.add(key)
            details = {"messages": record["batch"]}
        if record.get("members"):
            own = record["status"]
            details = {
                **details,
                "status": core.status_name(-abs(own)) if own else "SHM_OK",
                "moved_bytes": record["moved_bytes"],
                "waited_us": _us(record["waited_units"] * UNIT_NS),
            }
        yield {
            "name": name,
            "cat": "execute",
            "ph": "X",
            "pid": HELPERS_PID,
            "tid": record["helper"],
            "ts": _us(started - start),
            "dur": _us(max(finished - started, 1)),
            "args": {**details, "batch": record["batch"]},
        }
    yield from _queue_depth(records, start)


def _arrows(members: list[dict[str, int]], number: int, start: int) -> Iterator[dict[str, Any]]:
    """From the member that began first to each of the others."""
    ran = [record for record in members if record["finished_units"]]
    if not ran:
        return
    begun = [record["handed_ns"] + record["started_units"] * UNIT_NS for record in ran]
    first = begun.index(min(begun))
    for place, (record, at) in enumerate(zip(ran, begun, strict=True)):
        if place == first:
            continue
        arrow = {"name": "gang", "cat": "gang", "id": f"{number}.{place}", "pid": HELPERS_PID}
        source = {"ph": "s", "tid": ran[first]["helper"], "ts": _us(begun[first] - start)}
        yield {**arrow, **source}
        yield {**arrow, "ph": "f", "bp": "e", "tid": record["helper"], "ts": _us(at - start)}


def _queue_depth(records: list[dict[str, int]], start: int) -> Iterator[dict[str, Any]]:
    changes: list[tuple[int, int]] = []
    gangs = _gangs(records)
    for number, record in enumerate(records):
        if record.get("members") and number != gangs[_gang_of(record)][0]:
            continue
        changes.append((record["queued_ns"], 1))
        changes.append((record["handed_ns"] or record["answered_ns"], -1))
    changes.sort()
    depth = 0
    step = max(1, len(changes) // MAX_COUNTER_SAMPLES)
    for index, (at, change) in enumerate(changes):
        depth += change
        if index % step == 0:
            yield {
                "name": "queued",
                "ph": "C",
                "pid": HELPERS_PID,
                "ts": _us(at - start),
                "args": {"calls": max(depth, 0)},
            }


def _name(function: int, names: dict[int, str]) -> str:
    name = names.get(function)
    if name is None:
        name = names[function] = core.function_name(function) or "a function of C"
    return name


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _meta(pid: int, tid: int | None, kind: str, name: str) -> dict[str, Any]:
    event: dict[str, Any] = {"name": kind, "ph": "M", "pid": pid, "args": {"name": name}}
    if tid is not None:
        event["tid"] = tid
    return event
