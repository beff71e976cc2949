"""What the demo prints: aligned tables with units.

Owns the words and the layout. Never computes anything but ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.demo.audit import FRAME_BYTES, Audit
from shmgpu.demo.digits import CLASSES, IMAGE_SHAPE
from shmgpu.demo.serve import Served
from shmgpu.demo.stage import Measured

# One float32 image there, one row of float32 scores back.
PAYLOAD_BYTES = 4 * (IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2] + CLASSES)

_COPY_SITES = {
    "marshalled": "marshalled",
    "gathered": "gathered into batches",
    "copied_in": "copied in by children",
    "copied_out": "copied out by helpers",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
}


def measured(outcome: Measured, mean_batch: float, payload_in_pipes: bool) -> dict[str, float]:
    """What one side measured, by name; units are in the names."""
    written = [traffic.written for traffic in outcome.traffic]
    known = [count for count in written if count is not None]
    result = {
        "accuracy": outcome.accuracy,
        "calls": outcome.calls,
        "calls_per_s": outcome.rate,
        "latency_p50_us": outcome.latency_us(0.5),
        "latency_p99_us": outcome.latency_us(0.99),
        "mean_batch": mean_batch,
        "payload_bytes_per_s": outcome.rate * PAYLOAD_BYTES,
        "payload_in_pipes_bytes_per_call": float(PAYLOAD_BYTES if payload_in_pipes else 0),
    }
    if len(known) == len(written) and outcome.all_calls:
        result["pipe_bytes_per_call"] = sum(known) / outcome.all_calls
    return result


# label, quantity, how it is shown, what it is multiplied by, whether a ratio says anything
_ROWS = (
    ("accuracy on held-out images", "accuracy", "{:.2f} %", 100, False),
    ("calls per second", "calls_per_s", "{:,.0f} /s", 1, True),
    ("latency p50", "latency_p50_us", "{:,.2f} ms", 1e-3, True),
    ("latency p99", "latency_p99_us", "{:,.2f} ms", 1e-3, True),
    ("mean batch size", "mean_batch", "{:.1f} calls", 1, False),
    ("payload served", "payload_bytes_per_s", "{:,.2f} MB/s", 1e-6, True),
    ("payload through pipes, a call", "payload_in_pipes_bytes_per_call", "{:,.0f} B", 1, False),
    ("all through pipes, a call", "pipe_bytes_per_call", "{:,.0f} B", 1, True),
)


def comparison(ours: dict[str, float], theirs: dict[str, float] | None) -> str:
    """Both sides, a line for each quantity; the last column is ours over theirs."""
    lines = [["", "shmgpu", *(["multiprocessing", "ratio"] if theirs else [])]]
    for label, name, form, factor, compare in _ROWS:
        line = [label]
        for side in (ours, theirs) if theirs else (ours,):
            line.append(form.format(side[name] * factor) if name in side else "not measured")
        if theirs:
            known = compare and name in ours and theirs.get(name)
            line.append(f"{ours[name] / theirs[name]:.2f} x" if known else "")
        lines.append(line)
    return table(lines)


def copies(served: Served) -> str:
    """The byte counters of every copy site while the children were served."""
    calls = served.outcome.all_calls
    lines = [("bytes at every copy site", "in all", "a call")]
    for name, label in _COPY_SITES.items():
        count = served.bytes[name]
        lines.append((f"  {label}", f"{count:,} B", f"{count / calls:,.0f} B" if calls else ""))
    return table(lines)


def proof(audit: Audit) -> str:
    """Frames counted inside beside bytes counted by the kernel, and what follows from them."""
    lines: list[Sequence[str]] = [
        ("", "frames out", f"x {FRAME_BYTES}", "/proc", "frames in", f"x {FRAME_BYTES}", "/proc")
    ]
    for kind in ("child", "helper", "parent"):
        row = audit.of_kind(kind)
        plural = {"child": "children", "helper": "helpers"}.get(kind, kind)
        lines.append(
            (
                kind if row.number == 1 else f"{row.number} {plural}",
                f"{row.frames_out:,}",
                f"{row.frames_out * FRAME_BYTES:,} B",
                "not measured" if row.written is None else f"{row.written:,} B",
                f"{row.frames_in:,}",
                f"{row.frames_in * FRAME_BYTES:,} B",
                "not measured" if row.read is None else f"{row.read:,} B",
            )
        )
    differences = audit.differences
    if differences:
        verdict = "pipe bytes are NOT frames x 64:\n" + "\n".join(f"  {one}" for one in differences)
    elif audit.confirmed:
        verdict = (
            f"pipe bytes = frames x {FRAME_BYTES} in each of {len(audit.processes)} processes: "
            "no payload byte passed between them"
        )
    else:
        verdict = (
            "this kernel does not tell what every process moves (/proc/PID/io), so the zero is "
            "counted but not confirmed from outside"
        )
    return f"{table(lines)}\n{verdict}"


def as_data(audit: Audit) -> dict[str, Any]:
    """The proof as plain values."""
    return {
        "confirmed": audit.confirmed and not audit.differences,
        "differences": audit.differences,
        "processes": [vars(process) for process in audit.processes],
    }


def table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
