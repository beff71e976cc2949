"""The calling process's arena as an allocator: blocks out, blocks back.

Owns two implementations. :class:`SharedArena` is the real one, allocated by C. :class:`LocalArena`
serves ``inline=True``, where there is no other process: ordinary memory with the same interface, so
that the codec and its checks are the same. A block is (buffer, address); it goes back when the
buffer and everything that refers to it are garbage. Never looks at what lies in a block.
"""

from __future__ import annotations

import bisect
import gc
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shmgpu import core
from shmgpu.errors import ArenaFull, BadParams, NotRunning, ShmError

LOOKED_AT = 16384  # bytes that are kept between two looks at a crowded arena


def _nothing() -> bool:
    return False


class Arena:
    """What both arenas are.

    Attributes:
        base, end: addresses between which every block lies.
        capacity: end - base, bytes.
        reclaimers: called, in order, to give back what is merely kept for speed before an
            allocation is refused; each says whether it gave back anything.
        set_aside: bytes taken for what calls may keep, since whoever counts that set it to 0.
        awaits: whether submitted calls have not ended, whose ends will bring memory back.
        made_larger_by: how whoever started the broker says how large an arena is, with ``{size}``.
    """

    made_larger_by = 'launch(..., arena="{size}")'

    def __init__(self, base: int, capacity: int) -> None:
        self.base = base
        self.end = base + capacity
        self.capacity = capacity
        self.reclaimers: list[Callable[[], bool]] = []
        self.set_aside = 0
        self.awaits: Callable[[], bool] = _nothing
        # When the last useless search for garbage ended, and how long it took.
        self._searched = (0.0, 0.0)
        self._unseen = self.capacity  # bytes kept since it was last looked how full it is
        self._crowded = False

    def allocate(self, size_bytes: int) -> tuple[Any, int]:
        """A block of exactly that many bytes: (buffer, address); raises ArenaFull."""
        try:
            return self._allocate(size_bytes)
        except MemoryError:
            pass  # the error that is raised instead says as much
        _, buffer, address = self._insist(size_bytes)
        return buffer, address

    def block(self, size_bytes: int) -> tuple[Any, Any, int]:
        """The same for blocks that may be freed early: (owner, buffer, address)."""
        try:
            return self._block(size_bytes)
        except MemoryError:
            pass
        return self._insist(size_bytes)

    def shrink(self, buffer: Any, size_bytes: int) -> None:
        """Free the tail of a block's memory, which must not be used any more."""

    def is_crowded(self, size_bytes: int) -> bool:
        """Whether half of it is in use: what nobody sends is better kept in ordinary memory.

        To be asked for whatever is kept, with its size. Looking takes longer than a small
        operation: it looks once for each sixteenth of the arena, and once for each copy of a few
        pages while it is crowded.
        """
        self._unseen += (size_bytes + 63) & -64
        if self._unseen > (LOOKED_AT if self._crowded else self.capacity >> 4):
            self._unseen = 0
            self._crowded = self.stats()["free_bytes"] < self.capacity >> 1
        return self._crowded

    def _insist(self, size_bytes: int) -> tuple[Any, Any, int]:
        for reclaim in self.reclaimers:
            if reclaim():
                try:
                    return self._block(size_bytes)
                except MemoryError:
                    pass
        if self._may_search():
            begun = time.perf_counter()
            # What it finds says nothing: the interpreter may have collected a moment ago.
            gc.collect()
            try:
                return self._block(size_bytes)
            except MemoryError:
                pass
            ended = time.perf_counter()
            self._searched = (ended, ended - begun)
        raise self.refused(size_bytes)

    def _may_search(self) -> bool:
        """Whether it is worth while to look for garbage that refers to itself.

        While submitted calls have not ended, each of them asks, and whoever was refused asks again;
        so then at most a tenth of the time goes into searches that free nothing.
        """
        ended, took = self._searched
        return time.perf_counter() >= ended + 9 * took or not self.awaits()

    def _allocate(self, size_bytes: int) -> tuple[Any, int]:
        _, buffer, address = self._block(size_bytes)
        return buffer, address

    def _block(self, size_bytes: int) -> tuple[Any, Any, int]:
        raise NotImplementedError

    def stats(self) -> dict[str, int]:
        """Bytes and counts: capacity_bytes, used_bytes, free_bytes, live_blocks, ..."""
        raise NotImplementedError

    def refused(self, size_bytes: int) -> ShmError:
        """The error of an allocation that failed."""
        stats = self.stats()
        free, largest = stats["free_bytes"], stats["largest_free_bytes"]
        capacity = stats["capacity_bytes"]
        return ArenaFull(
            f"the arena has no room for {size_bytes:,} bytes: {free:,} of {capacity:,} are free "
            f"and the largest block is {largest:,}; drop arrays that are no longer needed, or "
            f"{self._way_to_more(size_bytes, capacity)}",
            size_bytes,
            free,
            largest,
            capacity,
        )

    def _way_to_more(self, size_bytes: int, capacity: int) -> str:
        wanted = 1 << (2 * max(size_bytes, capacity) - 1).bit_length()
        size = f"{wanted >> 30}GiB" if wanted >= 1 << 30 else f"{max(wanted >> 20, 1)}MiB"
        return f"have a larger arena: {self.made_larger_by.format(size=size)}"


class SharedArena(Arena):
    """This child's arena; helpers see it at the same addresses."""

    def __init__(self, child: int) -> None:
        super().__init__(core.arena_base(child), core.arena_bytes())

    def _allocate(self, size_bytes: int) -> tuple[Any, int]:
        if size_bytes > self.capacity:
            raise MemoryError
        return core.allocate(size_bytes or 1)

    def _block(self, size_bytes: int) -> tuple[Any, Any, int]:
        if size_bytes > self.capacity:
            raise MemoryError
        return core.allocate_block(size_bytes or 1)

    def shrink(self, buffer: Any, size_bytes: int) -> None:
        core.shrink(buffer, size_bytes)

    def stats(self) -> dict[str, int]:
        return core.arena_stats()

    def refused(self, size_bytes: int) -> ShmError:
        if core.role() != core.ROLE_CHILD:
            return NotRunning(
                "this process has no arena: only a child can allocate, as long as it is in its "
                "broker, and not a process that it forked"
            )
        return super().refused(size_bytes)

    def _way_to_more(self, size_bytes: int, capacity: int) -> str:
        whole = core.broker_stats()["arena_bytes"]
        if capacity >= whole:
            return super()._way_to_more(size_bytes, capacity)
        return (
            f"have this program's quota raised, which leaves it that much of the {whole:,} that an "
            "arena of its broker has"
        )


class LocalArena(Arena):
    """Ordinary memory that behaves like an arena; first fit, neighbours merged."""

    def __init__(self, capacity: int) -> None:
        self._map = mmap.mmap(-1, max(capacity, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE)
        super().__init__(core.address_of(self._map), max(capacity, mmap.PAGESIZE))
        self._lock = threading.Lock()
        self._free = [(self.base, self.capacity)]  # (address, bytes), by address
        self._live: dict[int, int] = {}
        self._returned: deque[int] = deque()  # a finalizer may run anywhere, so it only notes
        self._peak = 0
        self._allocations = 0
        self._frees = 0
        self._failures = 0

    def _block(self, size_bytes: int) -> tuple[Any, Any, int]:
        rounded = (max(size_bytes, 1) + 63) & -64
        with self._lock:
            self._merge()
            for index, (address, size) in enumerate(self._free):
                if size >= rounded:
                    if size == rounded:
                        del self._free[index]
                    else:
                        self._free[index] = (address + rounded, size - rounded)
                    self._live[address] = rounded
                    self._allocations += 1
                    self._peak = max(self._peak, sum(self._live.values()))
                    break
            else:
                self._failures += 1
                raise MemoryError
        returned = self._returned
        keep = self._map

        def release(_: Any) -> None:
            assert keep is not None
            returned.append(address)

        owner, buffer = core.wrap(address, size_bytes, release)
        return owner, buffer, address

    def _merge(self) -> None:
        while self._returned:
            address = self._returned.popleft()
            size = self._live.pop(address, 0)
            self._frees += 1
            index = bisect.bisect(self._free, (address, 0))
            if index < len(self._free) and address + size == self._free[index][0]:
                size += self._free.pop(index)[1]
            if index and sum(self._free[index - 1]) == address:
                index -= 1
                before, before_size = self._free.pop(index)
                address, size = before, before_size + size
            self._free.insert(index, (address, size))

    def stats(self) -> dict[str, int]:
        with self._lock:
            self._merge()
            used = sum(self._live.values())
            return {
                "capacity_bytes": self.capacity,
                "used_bytes": used,
                "peak_bytes": self._peak,
                "footprint_bytes": self._peak,
                "free_bytes": self.capacity - used,
                "largest_free_bytes": max((size for _, size in self._free), default=0),
                "live_blocks": len(self._live),
                "allocations": self._allocations,
                "frees": self._frees,
                "failures": self._failures,
            }


def checked_size(size_bytes: Any) -> int:
    """A user's number of bytes; raises BadParams for 0, negatives and what is no number."""
    try:
        size = size_bytes.__index__()
    except (AttributeError, TypeError):
        raise BadParams(f"a size is a whole number of bytes, not {size_bytes!r}") from None
    if not 0 < size < 1 << 63:
        raise BadParams(f"a block of {size} bytes cannot be allocated: ask for 1 byte or more")
    return int(size)
