"""The scoreboard: counters of the broker and its processes, the trace, and another broker's.

Owns how structures of C become dictionaries. Never writes to the scoreboard.
"""

from __future__ import annotations

import struct
from typing import Any

from shmgpu.core.binding import as_dict, buffer_of, ffi, lib
from shmgpu.core.constants import BYTES_NAMES, MAX_FUNCTIONS
from shmgpu.core.statuses import check, error_detail, fail


def broker_stats() -> dict[str, int]:
    """Counters of the dispatcher."""
    stats = ffi.new("shm_broker_stats_t *")
    check(lib.shm_get_broker_stats(stats), "the statistics could not be read")
    return as_dict(stats, "shm_broker_stats_t")


def is_paused(pool: int) -> bool:
    """Whether that pool starts no calls for now."""
    stats = ffi.new("shm_broker_stats_t *")
    status = lib.shm_get_broker_stats(stats)
    return status >= 0 and bool(stats.paused_pools >> pool & 1)


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


# Name, NumPy's name of the type and offset of each field of a trace record.
TRACE_FIELDS = [
    (name, field.type.cname.removesuffix("_t"), field.offset)
    for name, field in ffi.typeof("shm_trace_record_t").fields
]
TRACE_BYTES: int = ffi.sizeof("shm_trace_record_t")
_CODES = {"uint64": "Q", "uint32": "I", "uint16": "H", "int16": "h", "uint8": "B"}
_TRACE_RECORD = struct.Struct("=" + "".join(_CODES[kind] for _, kind, _ in TRACE_FIELDS))
_TRACE_CHUNK = 4096  # records that are read at once


def read_trace(start: int = 0, limit: int = 1 << 20) -> tuple[int, list[dict[str, int]]]:
    """Records of the trace ring from number ``start`` on: (next number, records)."""
    names = [name for name, _, _ in TRACE_FIELDS]
    records: list[dict[str, int]] = []
    while len(records) < limit:
        start, raw = read_trace_bytes(start, _TRACE_CHUNK)
        records += [dict(zip(names, row, strict=True)) for row in _TRACE_RECORD.iter_unpack(raw)]
        if len(raw) < _TRACE_CHUNK * TRACE_BYTES:
            break
    return start, records


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
