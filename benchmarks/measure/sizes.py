"""Along payload sizes: which there are, how a point is named, and when it is not measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure.task import DIRECTIONS, Task

SIZES = {
    "64B": 64,
    "4KiB": 4 << 10,
    "64KiB": 64 << 10,
    "1MiB": 1 << 20,
    "16MiB": 16 << 20,
    "256MiB": 256 << 20,
}
LARGEST_BYTES = max(SIZES.values())
LONGEST_CALL_S = 2.0
COPIES = 10  # of the payload that a peer may have at a time, in its own and in shared memory
SHARED = "/dev/shm"


def quantity(direction: str, size: str) -> str:
    """Return the name of a point."""
    return f"{direction}_{size}"


QUANTITIES = tuple(quantity(direction, size) for direction in DIRECTIONS for size in SIZES)


def tasks() -> list[Task]:
    """Return the tasks of all points."""
    return [Task(way, nbytes, stamped=True) for way in DIRECTIONS for nbytes in SIZES.values()]


def along(
    median_us: Callable[[Task], float], most_bytes: int = LARGEST_BYTES
) -> dict[str, float | str]:
    """Return each point's microseconds, or a few words on why it was not measured.

    Payloads are left out that are larger than ``most_bytes``, whose calls would take longer than
    ``LONGEST_CALL_S``, judged by the one before, or for which memory is short.
    """
    result: dict[str, float | str] = {}
    for direction in DIRECTIONS:
        us_per_byte = 0.0
        for size, nbytes in SIZES.items():
            point = quantity(direction, size)
            if nbytes > most_bytes:
                result[point] = f"{size} is more than was asked for"
            elif us_per_byte * nbytes > LONGEST_CALL_S * 1e6:
                result[point] = f"a call of {size} would take over {LONGEST_CALL_S:.0f} s"
            elif COPIES * nbytes > memory_bytes():
                result[point] = f"{COPIES} times {size} is more than the free memory"
            else:
                took_us = median_us(Task(direction, nbytes, stamped=True))
                result[point] = took_us
                us_per_byte = took_us / nbytes if nbytes >= SIZES["1MiB"] else 0.0
    return result


def memory_bytes() -> int:
    """Return how much memory is free, for processes and for shared memory alike."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    ram = 1024 * int(lines["MemAvailable"].split()[0])
    if not os.path.isdir(SHARED):
        return ram
    shared = os.statvfs(SHARED)
    return min(ram, shared.f_bavail * shared.f_frsize)
