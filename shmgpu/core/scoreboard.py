"""The scoreboard: counters of the broker and its processes, the trace, and another broker's.

Owns how structures of C become dictionaries. Never writes to the scoreboard.
"""

from __future__ import annotations

from typing import Any

from shmgpu.core.binding import as_dict, buffer_of, ffi, lib
from shmgpu.core.constants import BYTES_NAMES, MAX_FUNCTIONS
from shmgpu.core.statuses import check, error_detail, fail


def broker_stats() -> dict[str, int]:
    """Counters of the dispatcher."""
    stats = ffi.new("shm_broker_stats_t *")
    check(lib.shm_get_broker_stats(stats), "the statistics could not be read")
    return as_dict(stats, "shm_broker_stats_t")


def child_stats(child: int) -> dict[str, Any]:
    """Counters of one child; ``bytes`` is a dict by kind."""
    stats = ffi.new("shm_child_stats_t *")
    check(lib.shm_get_child_stats(child, stats), "the statistics could not be read")
    row: dict[str, Any] = as_dict(stats, "shm_child_stats_t")
    row["bytes"] = dict(zip(BYTES_NAMES, (int(n) for n in stats.bytes), strict=True))
    return row


def helper_stats(helper: int) -> dict[str, Any]:
    """Counters of one helper, and its pool's name; ``bytes`` is a dict by kind."""
    stats = ffi.new("shm_helper_stats_t *")
    check(lib.shm_get_helper_stats(helper, stats), "the statistics could not be read")
    row: dict[str, Any] = as_dict(stats, "shm_helper_stats_t")
    name = ffi.string(stats.pool_name).decode(errors="ignore")  # it may be cut within a letter
    row["pool_name"] = name or str(row["pool"])
    row["bytes"] = dict(zip(BYTES_NAMES, (int(n) for n in stats.bytes), strict=True))
    return row


def read_trace(start: int = 0, limit: int = 1 << 20) -> tuple[int, list[dict[str, int]]]:
    """Records of the trace ring from number ``start`` on: (next number, records)."""
    chunk = 4096
    out = ffi.new("shm_trace_record_t[]", chunk)
    cursor = ffi.new("uint64_t *", start)
    records: list[dict[str, int]] = []
    while len(records) < limit:
        count = check(lib.shm_read_trace(cursor, out, chunk), "the trace could not be read")
        records.extend(as_dict(out[i], "shm_trace_record_t") for i in range(count))
        if count < chunk:
            break
    return int(cursor[0]), records


# Name, NumPy's name of the type and offset of each field of a trace record.
TRACE_FIELDS = [
    (name, field.type.cname.removesuffix("_t"), field.offset)
    for name, field in ffi.typeof("shm_trace_record_t").fields
]
TRACE_BYTES: int = ffi.sizeof("shm_trace_record_t")


def read_trace_bytes(start: int, limit: int) -> tuple[int, Any]:
    """At most ``limit`` trace records from number ``start`` on, as they lie: (next, buffer)."""
    out = ffi.new("shm_trace_record_t[]", max(1, limit))
    cursor = ffi.new("uint64_t *", start)
    count = check(lib.shm_read_trace(cursor, out, limit), "the trace could not be read")
    return int(cursor[0]), buffer_of(out)[: count * TRACE_BYTES]


def function_names() -> dict[int, str]:
    """Names of the scoreboard's functions by row."""
    rows = ffi.new("shm_function_row_t[]", MAX_FUNCTIONS)
    count = check(lib.shm_get_functions(rows, MAX_FUNCTIONS), "the functions could not be read")
    return {
        int(rows[i].function): ffi.string(rows[i].name).decode("utf-8", "replace")
        for i in range(count)
    }


def monitor_open(descriptor: int) -> None:
    """Read, from here on, the scoreboard in that file instead of one of our own.

    Raises:
        ShmError: it holds no scoreboard, or one of another version.
        LaunchError: this process has a broker.
    """
    status = int(lib.shm_monitor_open(descriptor))
    if status < 0:
        fail(status, "", error_detail())


def monitor_close() -> None:
    """Let go of what :func:`monitor_open` opened."""
    lib.shm_monitor_close()
