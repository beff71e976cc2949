"""What ``shmgpu top`` shows of a sample: its headline, its tables, and how numbers are written.

Owns the columns, one list for each table, with the text and the order of each; a terminal and a
plain print-out show the same. Never reads a broker: everything is made of one sample
(:meth:`shmgpu.watch.monitor.Monitor.sample`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.common.wording import counted

Row = dict[str, Any]
BAR_CELLS = 8
SERVING = [core.HELPER_STATES[state] for state in core.HELPERS_THAT_SERVE]
PLAIN_CHILDREN = 20  # a print-out shows the busiest


# ---- numbers ---------------------------------------------------------------------------------


def count(value: float) -> str:
    """A whole number, shortened from 100,000 on: ``1,234``, ``123k``, ``12.3M``."""
    return f"{value:,.0f}" if abs(value) < 99_999.5 else _scaled(value, 1000, "kMGT", "")


def rate(value: float | None) -> str:
    """A number a second: ``0``, ``3.2``, ``1,234``, ``123k``."""
    if value is None:
        return "-"
    return f"{value:.1f}" if 0.05 <= value < 9.95 else count(value)


def duration(microseconds: float | None) -> str:
    """A time in the unit that suits it: ``85 us``, ``1.2 ms``, ``3.5 s``."""
    if microseconds is None:
        return "-"
    for limit, unit in ((1e3, "us"), (1e6, "ms")):
        if microseconds < limit * 0.9995:
            value = microseconds / (limit / 1e3)
            return f"{value:.1f} {unit}" if 0.05 <= value < 9.95 else f"{value:.0f} {unit}"
    return f"{microseconds / 1e6:,.1f} s"


def size(value: float) -> str:
    """Bytes: ``512 B``, ``1.5 MiB``."""
    return f"{value:.0f} B" if value < 1023.5 else _scaled(value, 1024, "KMGT", "iB", " ")


def clock(seconds: float) -> str:
    """How long something has run: ``0:00:12``, ``3d 4:05:06``."""
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {text}" if days else text


def bar(share: float) -> str:
    """A share from 0 to 1 as a bar and a percentage."""
    share = min(1.0, max(0.0, share))
    full = round(share * BAR_CELLS)
    return f"{'━' * full}{'╌' * (BAR_CELLS - full)} {100 * share:3.0f}%"


def _scaled(value: float, base: int, units: str, suffix: str, gap: str = "") -> str:
    for unit in units:
        value /= base
        if abs(value) < base * 0.9995 or unit == units[-1]:
            break
    digits = f"{value:.0f}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0")
    return f"{digits}{gap}{unit}{suffix}"


# ---- tables ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: its title.
        text: what it shows of a row.
        order: by what it sorts; None sorts last.
        left: its text begins at the left, not ends at the right.
        falls: sorted by this column, the largest come first unless told otherwise.
    """

    heading: str
    text: Callable[[Row], str]
    order: Callable[[Row], Any]
    left: bool = False
    falls: bool = True


@dataclass(frozen=True)
class TextTable:
    """One table: which rows of a sample, in which columns.

    Attributes:
        name: key of its rows in a sample.
        columns: from the left; the first one names the row.
        sorted_by: heading of the column that it is sorted by at first.
        is_bad: whether a row calls for attention.
    """

    name: str
    columns: tuple[Column, ...]
    sorted_by: str
    is_bad: Callable[[Row], bool]

    def column(self, heading: str) -> int:
        """Index of a column."""
        return [column.heading for column in self.columns].index(heading)

    def arrange(
        self, rows: Sequence[Row], column: int | None = None, reverse: bool = False
    ) -> list[Row]:
        """Rows in the order of a column; equal ones stay in the order of their names."""
        by = self.columns[self.column(self.sorted_by) if column is None else column]
        known = [row for row in rows if by.order(row) is not None]
        unknown = [row for row in rows if by.order(row) is None]
        return sorted(known, key=by.order, reverse=by.falls != reverse) + unknown


def _key(name: str, heading: str, text: Callable[[Any], str], **kind: bool) -> Column:
    return Column(heading, lambda row: text(row[name]), lambda row: row[name], **kind)


def _rate(name: str, heading: str) -> Column:
    return Column(heading, lambda row: rate(row["rates"][name]), lambda row: row["rates"][name])


def _arena(total_bytes: int) -> Column:
    def share(row: Row) -> float:
        return float(row["arena_used_bytes"]) / total_bytes if total_bytes else 0.0

    return Column(
        f"arena of {size(total_bytes)}",
        lambda row: f"{bar(share(row))} {size(row['arena_used_bytes']):>9}",
        lambda row: row["arena_used_bytes"],
    )


MODELS = TextTable(
    "models",
    (
        _key("model", "model", str, left=True, falls=False),
        _key("requests_per_s", "requests/s", rate),
        _key("inferences_per_s", "inferences/s", rate),
        _key("failed_per_s", "failed/s", rate),
        _key("pending", "pending", count),
        _key("requests_per_run", "requests/run", rate),
        _key("request_us", "request", duration),
        _key("queue_us", "queue", duration),
        _key("compute_us", "compute", duration),
        _key("failed", "failed", count),
    ),
    "requests/s",
    lambda row: row["failed_per_s"] > 0,
)


# Of helpers that exchange arrays with others: how often, how much, and how long they wait for them.
EXCHANGED = (
    _rate("collectives", "collectives/s"),
    Column(
        "moved/s",
        lambda row: size(row["rates"]["collective_bytes"]),
        lambda row: row["rates"]["collective_bytes"],
    ),
    _key("waits", "waits", bar),
)


def tables(sample: dict[str, Any]) -> tuple[TextTable, ...]:
    """A server's models, if it is one, then helpers, functions and children."""
    exchanges = any(row["collectives"] for row in sample["helpers"])
    paused = paused_pools(sample)

    def state(row: Row) -> str:
        is_paused = row["state"] in SERVING and row["pool_name"] in paused
        return "paused" if is_paused else str(row["state"])

    helpers = TextTable(
        "helpers",
        (
            _key("helper", "helper", str, falls=False),
            Column("state", state, state, left=True, falls=False),
            _key("pool_name", "pool", str, left=True, falls=False),
            _key("pid", "pid", str, falls=False),
            _key("generation", "gen", count),
            _key("busy", "busy", bar),
            _key("in_flight", "in flight", count),
            _rate("finished", "calls/s"),
            _key("calls_per_run", "calls/run", rate),
            *(EXCHANGED if exchanges else ()),
            _key("deaths", "deaths", count),
        ),
        "helper",
        lambda row: row["state"] in ("dead", "given up"),
    )
    functions = TextTable(
        "functions",
        (
            _key("name", "function", str, left=True, falls=False),
            _key("calls_per_s", "calls/s", rate),
            _key("failed", "failed", count),
            _key("calls_per_run", "calls/run", rate),
            _key("queued_p50_us", "queued p50", duration),
            _key("queued_p99_us", "queued p99", duration),
            _key("service_p50_us", "service p50", duration),
            _key("service_p99_us", "service p99", duration),
        ),
        "calls/s",
        lambda row: row["failed"] > 0,
    )
    connections = _key("connections", "connections", count)
    is_server = any("connections" in row for row in sample["children"])
    children = TextTable(
        "children",
        (
            _key("child", "child", str, falls=False),
            _key("state", "state", str, left=True, falls=False),
            _key("pid", "pid", str, falls=False),
            _key("generation", "gen", count),
            _rate("answered", "calls/s"),
            _rate("failed", "failed/s"),
            _key("queued", "queued", count),
            _key("outstanding", "out", count),
            *((connections,) if is_server else ()),
            _arena(sample["broker"]["arena_bytes"]),
            _key("protocol_errors", "protocol", count),
            _key("restarts", "restarts", count),
        ),
        "calls/s",
        lambda row: row["protocol_errors"] > 0 or row["state"] == "quarantined",
    )
    models = (MODELS,) if sample.get("models") else ()
    return *models, helpers, functions, children


def rows_of(sample: dict[str, Any], table: TextTable) -> list[Row]:
    """What a table shows: places that no child has ever had are left out."""
    return [row for row in sample[table.name] if row.get("state") != "unused"]


def paused_pools(sample: dict[str, Any]) -> list[str]:
    """Names of the pools that start no calls until ``shmgpu resume``."""
    mask = sample["broker"]["paused_pools"]
    return sorted({row["pool_name"] for row in sample["helpers"] if mask >> row["pool"] & 1})


def headline(sample: dict[str, Any]) -> tuple[str, str]:
    """Two lines about the whole broker."""
    broker, rates = sample["broker"], sample["rates"]
    running = sum(row["state"] == "running" for row in sample["children"])
    ready = sum(row["state"] in SERVING for row in sample["helpers"])
    state = "up" if sample["running"] else "ended after"
    first = f"broker {sample['pid']}  {state} {clock(sample['uptime_s'])}  {sample['command']}"
    models = sample.get("models") or []
    served = sum(row["requests_per_s"] for row in models)
    paused = paused_pools(sample)
    facts = (
        *((counted(len(models), "model"), f"{rate(served)} requests/s") if models else ()),
        f"{running} of {counted(broker['children'], 'child', 'children')}",
        f"{ready} of {counted(broker['helpers'], 'helper')}",
        *((f"{counted(len(paused), 'pool')} paused: {', '.join(paused)}",) if paused else ()),
        f"{count(queue(sample))} queued",
        f"{count(broker['in_flight'])} in flight",
        f"{rate(rates['answered'])} calls/s",
        f"{rate(rates['failed'])} failed/s",
        counted(broker["helper_deaths"] + broker["child_deaths"], "death"),
        counted(broker["helper_respawns"] + broker["child_restarts"], "restart"),
    )
    return first, "  ".join(facts)


def queue(sample: dict[str, Any]) -> int:
    """Calls that wait for a helper."""
    return int(sample["broker"]["queued"])


# ---- a print-out -----------------------------------------------------------------------------


def plain(sample: dict[str, Any]) -> str:
    """A sample as text; of many children the busiest."""
    parts = ["\n".join(headline(sample))]
    for table in tables(sample):
        rows = table.arrange(rows_of(sample, table))
        shown = rows[:PLAIN_CHILDREN]
        if not shown:
            continue
        lines = [[column.heading for column in table.columns]]
        lines += [[column.text(row) for column in table.columns] for row in shown]
        left = [index for index, column in enumerate(table.columns) if column.left]
        parts.append(align(lines, left))
        if len(rows) > len(shown):
            parts[-1] += f"\n... and {len(rows) - len(shown):,} more"
    return "\n\n".join(parts)


def align(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Cells in columns as wide as their widest; ``left`` lists those that begin at the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
