"""The units of the suite: which way is better, and how an axis says them."""

from __future__ import annotations

MORE, LESS = 1, -1

# What a user wants of a quantity in this unit. A new unit needs a line here.
BETTER: dict[str, int] = {
    "1/s": MORE,
    "rows/s": MORE,
    "MiB/s": MORE,
    "GiB/s": MORE,
    "GB/s": MORE,
    "share": MORE,
    "index": MORE,
    "0 or 1": MORE,
    "of alone": MORE,
    "times alone": LESS,
    "ns": LESS,
    "us": LESS,
    "ms": LESS,
    "s": LESS,
    "ticks": LESS,
    "B": LESS,
    "KiB": LESS,
    "MiB": LESS,
    "GiB": LESS,
}
# Figures of which a user wants the opposite of what their unit says.
OTHER_WAY = frozenset({"batching.greedy_share"})

NAMES = {"1/s": "per second", "us": "µs"}


def better(name: str, unit: str) -> int | None:
    """Return whether MORE or LESS of a row is better; None for a unit that is not in the table."""
    way = BETTER.get(unit)
    return -way if way is not None and name in OTHER_WAY else way


def spelled(unit: str) -> str:
    """Return a unit as an axis says it."""
    return NAMES.get(unit, unit)
