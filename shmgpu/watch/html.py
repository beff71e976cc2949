"""Counters as a notebook shows them: tables of helpers and children.

Owns their columns. Never reads a broker: everything is made of what :func:`shmgpu.stats` returned.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu import core
from shmgpu.watch.tables import count, duration, size

Row = dict[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], str]]]


def _count(name: str) -> Callable[[Row], str]:
    return lambda row: count(row[name])


def _name(names: Sequence[str]) -> Callable[[Row], str]:
    return lambda row: names[row["state"]] if row["state"] < len(names) else str(row["state"])


FACTS = ("answered", "failed", "queued", "in_flight")
HELPERS: Columns = (
    ("helper", _count("number")),
    ("pool", lambda row: str(row["pool_name"])),
    ("state", _name(core.HELPER_STATES)),
    ("pid", lambda row: str(row["pid"])),
    ("calls", _count("finished")),
    ("in flight", _count("in_flight")),
    ("busy", lambda row: duration(row["busy_ns"] / 1e3)),
    ("copied out", lambda row: size(row["bytes"]["copied_out"])),
    ("deaths", _count("deaths")),
)
CHILDREN: Columns = (
    ("child", _count("number")),
    ("state", _name(core.CHILD_STATES)),
    ("pid", lambda row: str(row["pid"])),
    ("calls", _count("answered")),
    ("failed", _count("failed")),
    ("queued", _count("queued")),
    ("arena used", lambda row: size(row["arena_used_bytes"])),
    ("copied in", lambda row: size(row["bytes"]["copied_in"])),
    ("restarts", _count("restarts")),
)


def page(stats: dict[str, Any]) -> str:
    """All of it, as HTML without a style of its own."""
    broker = stats["broker"]
    facts = [f"{count(broker[name])} {name.replace('_', ' ')}" for name in FACTS]
    head = f"<p>{', '.join(facts)}, {stats['mean_batch']:.1f} calls a batch</p>"
    return head + _table(HELPERS, stats["helpers"]) + _table(CHILDREN, stats["children"])


def _table(columns: Columns, rows: Sequence[Row]) -> str:
    heads = "".join(f"<th>{heading}</th>" for heading, _ in columns)
    lines = [
        "".join(f"<td>{html.escape(text({**row, 'number': number}))}</td>" for _, text in columns)
        for number, row in enumerate(rows)
    ]
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
