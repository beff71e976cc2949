"""A debug trace as a file: trace events that Perfetto opens, and beside them all the data.

Owns the file's format, for writing and for reading. The events of TENSORS_PID are this child's
messages, one track for each helper; those of a MOVE say where it began and ended. Never executes
anything that a file says.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from shmgpu.tensors.debug.tape import Tape
from shmgpu.tensors.debug.ticks import Span, label_of
from shmgpu.watch.tables import align
from shmgpu.watch.trace import TENSORS_PID

KEY = "shmgpu_debug"
VERSION = 1


def write(
    path: str | os.PathLike[str],
    tape: Tape,
    *,
    spans: Sequence[Span],
    rank: int,
    parts: dict[str, Any],
) -> None:
    """Write the file; ``parts`` are what :mod:`shmgpu.debug` returns."""
    start = tape.started_ns
    events: list[dict[str, Any]] = [
        _meta("process_name", None, f"tensors of child {rank}"),
        *(_meta("thread_name", one, f"helper {one}") for one in sorted({s.helper for s in spans})),
    ]
    events += [
        {
            "name": span.label,
            "cat": "program",
            "ph": "X",
            "pid": TENSORS_PID,
            "tid": span.helper,
            "ts": (span.start_ns - start) / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            "args": {},
        }
        for span in spans
    ]
    moves = {row.message: row for row in tape.instructions if row.kind == "MOVE"}
    for sent in tape.messages:
        row = moves.get(sent.number)
        if row is not None:
            events.append(
                {
                    "name": f"MOVE #{row.tensor}",
                    "cat": "move",
                    "ph": "X",
                    "pid": TENSORS_PID,
                    "tid": row.source,
                    "ts": (sent.sent_ns - start) / 1000,
                    "dur": max(sent.answered_ns - sent.sent_ns, 0) / 1000,
                    "args": {"from": row.source, "to": row.helper, "bytes": row.nbytes},
                }
            )
    messages = [
        {
            "message": sent.number,
            "helper": sent.helper,
            "what": label_of(sent),
            "operations": dict(sent.operations),
            "milliseconds": max(sent.answered_ns - sent.sent_ns, 0) / 1e6,
            "error": sent.error,
        }
        for sent in tape.messages
    ]
    body = {"version": VERSION, "rank": rank, "messages": messages, **parts}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": events, KEY: body}, file)


def _meta(kind: str, tid: int | None, name: str) -> dict[str, Any]:
    event: dict[str, Any] = {"name": kind, "ph": "M", "pid": TENSORS_PID, "args": {"name": name}}
    if tid is not None:
        event["tid"] = tid
    return event


def describe(saved: dict[str, Any]) -> str:
    """What a file says of tensors, as tables; nothing where it is of a launch.

    Raises:
        KeyError, TypeError, ValueError: it was not written here.
    """
    body = saved.get(KEY)
    if body is None:
        return ""
    messages, queue = body["messages"], body["output_queue"]
    operations = sum((Counter(one["operations"]) for one in messages), Counter())
    moves = [row for row in queue if row["kind"] == "MOVE"]
    moved = sum(row["nbytes"] for row in moves)
    parts = [
        f"child {body['rank']}: {operations.total():,} operations in {len(messages):,} messages, "
        f"{len(moves):,} MOVE{'s' * (len(moves) != 1)} of {moved:,} bytes"
    ]
    spans = [event for event in saved["traceEvents"] if event["ph"] == "X"]
    programs = [event for event in spans if event["cat"] == "program"]
    begin = min((event["ts"] for event in programs), default=0.0)
    end = max((event["ts"] + event["dur"] for event in programs), default=0.0)
    lines = [["helper", "busy", "messages", "operations", "moved there", "holds"]]
    for helper in sorted({event["tid"] for event in programs}):
        busy = sum(event["dur"] for event in programs if event["tid"] == helper)
        own = [one for one in messages if one["helper"] == helper]
        held = [one["nbytes"] for one in body["handles"] if one["helper"] == helper]
        lines.append(
            [
                str(helper),
                f"{100 * busy / (end - begin):.1f} %" if end > begin else "",
                f"{len(own):,}",
                f"{sum(sum(one['operations'].values()) for one in own):,}",
                f"{sum(row['nbytes'] for row in moves if row['helper'] == helper):,} B",
                f"{len(held)} tensor{'s' * (len(held) != 1)}, {sum(held):,} B",
            ]
        )
    parts.append(align(lines))
    lines = [["operation", "times", "share"]]
    for name, count in operations.most_common(10):
        lines.append([name, f"{count:,}", f"{100 * count / operations.total():.1f} %"])
    parts.append(align(lines))
    errors = [one for one in messages if one["error"]]
    if errors:
        parts.append(f"failed messages: {len(errors)}; the last: {errors[-1]['error']}")
    dropped = {name: count for name, count in body["dropped"].items() if count}
    if dropped:
        parts.append(
            "dropped, because tapes are bounded: "
            + ", ".join(f"{count:,} {name}" for name, count in dropped.items())
        )
    return "\n\n".join(parts)
