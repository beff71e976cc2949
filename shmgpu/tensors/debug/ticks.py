"""When each helper was busy: from the broker's trace, and this child's own messages.

Owns the spans, and the ticks that are cut from them. Never samples: the dispatcher notes the
beginning and the end of every call anyway, so a tick costs nothing until it is asked for.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from shmgpu import core
from shmgpu.child import runtime
from shmgpu.tensors.debug.rows import Sent
from shmgpu.tensors.debug.tape import Tape
from shmgpu.tensors.functions import EXECUTE
from shmgpu.watch import trace

MAX_TICKS = 10_000


@dataclass(frozen=True)
class Span:
    """What a helper executed from one moment to another (CLOCK_MONOTONIC ns)."""

    helper: int
    start_ns: int
    end_ns: int
    label: str


@dataclass(frozen=True)
class Tick:
    """One tick.

    Attributes:
        number: from 0, when debugging began.
        at_ms: milliseconds since then.
        busy: share of the tick that each helper was executing, 0 to 1.
        running: what it was executing.
    """

    number: int
    at_ms: float
    busy: dict[int, float]
    running: dict[int, list[str]]


def label_of(sent: Sent) -> str:
    """What a message was about, in a few words."""
    if sent.is_move:
        return "MOVE"
    count = sum(sent.operations.values())
    if not count:
        return "READ"
    common = ", ".join(name for name, _ in sent.operations.most_common(2))
    return f"{count} operation{'s' * (count != 1)} ({common}{', ...' * (len(sent.operations) > 2)})"


def spans(tape: Tape) -> list[Span]:
    """What helpers executed since debugging began, of all children where a broker tells."""
    means = runtime.current
    own = [sent for sent in tape.messages if sent.answered_ns]
    records = [] if means is None or means.inline else trace.read()
    records = [
        record
        for record in records
        if record["helper"] != core.NO_HELPER and record["handed_ns"] >= tape.started_ns
    ]
    if not records:
        return [Span(sent.helper, sent.sent_ns, sent.answered_ns, label_of(sent)) for sent in own]
    names = core.function_names()
    tensors = {f"execute_{backend}" for backend in EXECUTE}
    mine = list(tape.messages)
    sent_ns = [sent.sent_ns for sent in mine]
    rank = -1 if means is None else means.rank
    found = []
    for record in records:
        start = record["handed_ns"] + record["started_units"] * trace.UNIT_NS
        end = record["handed_ns"] + record["finished_units"] * trace.UNIT_NS
        label = names.get(record["function"], "a function of C")
        if record["slot"] == rank and label in tensors:
            # The last that had been sent when the dispatcher read this one.
            place = bisect.bisect_right(sent_ns, record["queued_ns"]) - 1
            label = label_of(mine[place]) if place >= 0 else label
        elif label in tensors:
            label = "tensors"
        if record["slot"] != rank:
            label = f"child {record['slot']}: {label}"
        found.append(Span(record["helper"], start, max(end, start + 1), label))
    return sorted(found, key=lambda span: span.start_ns)


def cut(
    found: Sequence[Span], helpers: Sequence[int], start_ns: int, tick_ms: int
) -> tuple[list[Tick], int]:
    """The newest ticks, and how many older ones were dropped."""
    if not found:
        return [], 0
    tick_ns = tick_ms * 1_000_000
    last = (max(span.end_ns for span in found) - start_ns) // tick_ns
    first = max(0, last - MAX_TICKS + 1)
    ticks = [
        Tick(n, n * float(tick_ms), dict.fromkeys(helpers, 0.0), {one: [] for one in helpers})
        for n in range(first, last + 1)
    ]
    for span in found:
        begin = max(span.start_ns - start_ns, 0)
        for n in range(max(begin // tick_ns, first), (span.end_ns - start_ns) // tick_ns + 1):
            tick = ticks[n - first]
            overlap = min(span.end_ns - start_ns, (n + 1) * tick_ns) - max(begin, n * tick_ns)
            share = tick.busy.get(span.helper, 0.0) + overlap / tick_ns
            tick.busy[span.helper] = min(1.0, share)
            running = tick.running.setdefault(span.helper, [])
            if span.label not in running:
                running.append(span.label)
    return ticks, first
