"""A debug trace as a file: trace events that Perfetto opens, and beside them all the data.

Owns the file's shape, both ways. The events of pid 3 are this child's messages, one track for each
helper; those of a MOVE say where it began and ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from shmgpu.debug.tape import Tape
from shmgpu.debug.ticks import Span, label_of

TENSORS_PID = 3
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
