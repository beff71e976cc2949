"""Results that did not fit their output buffers, kept until their callers offer larger ones.

Owns them, bounded in bytes, in time and in number: a caller that never offers a buffer cannot fill
a helper's memory, and a child that forgets its requests loses only its own oldest results. Knows no
function and no block. Never drops a result of a child that keeps to its window and its quota while
there is space.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from shmgpu import core

KEPT_SECONDS = 60.0

Key = tuple[int, int, int]  # sequence, slot, generation


class Parked(NamedTuple):
    """One result."""

    blob: Any
    status: int
    until: float


class Parking:
    """Such results, and their limits.

    Args:
        limit: bytes of all of them together.
        limit_of: bytes of a slot's; 0: as of anybody.
        most: results of one slot. No child has more calls open, each with one.
    """

    def __init__(
        self,
        limit: int,
        limit_of: Callable[[int], int] = core.parked_limit,
        most: int = core.MAX_WINDOW,
    ) -> None:
        self.limit = limit
        self.bytes = 0
        self._limit_of = limit_of
        self._most = most
        self._parked: OrderedDict[Key, Parked] = OrderedDict()
        self._by_slot: dict[int, OrderedDict[Key, int]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def make_place(self, key: Key, needed: int) -> bool:
        """Whether that many bytes may be kept; older results make way for them."""
        limit = self._limit_of(key[1])
        if needed > self.limit or (limit and needed > limit):
            return False
        self.take(key)  # a child may give two calls one number
        mine: OrderedDict[Key, int] = self._by_slot.get(key[1], OrderedDict())
        kept = sum(mine.values()) if limit else 0
        while mine and (len(mine) >= self._most or (limit and kept + needed > limit)):
            oldest, size = next(iter(mine.items()))
            kept -= size
            self.take(oldest)
        now = time.monotonic()
        while self._parked:
            oldest, parked = next(iter(self._parked.items()))
            if parked.until > now and self.bytes + needed <= self.limit:
                break
            self.take(oldest)
        return True

    def put(self, key: Key, blob: Any, status: int) -> None:
        """Keep a result for which there is space."""
        self._parked[key] = Parked(blob, status, time.monotonic() + KEPT_SECONDS)
        self._by_slot.setdefault(key[1], OrderedDict())[key] = len(blob)
        self.bytes += len(blob)

    def take(self, key: Key) -> Parked | None:
        """The result, which is kept no longer; ``None`` when it is not there (any more)."""
        parked = self._parked.pop(key, None)
        if parked is not None:
            mine = self._by_slot[key[1]]
            self.bytes -= mine.pop(key)
            if not mine:
                del self._by_slot[key[1]]
        return parked
