"""A child's arena: blocks out and back, addresses, statistics.

Owns the handles of blocks. Never looks into a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.core.binding import UINTPTR, as_dict, buffer_of, cast, ffi, lib
from shmgpu.core.statuses import check, error_detail, fail

_CHARS = ffi.typeof("char *")
_CHAR_ARRAY = ffi.typeof("char[]")
_from_buffer = ffi.from_buffer
_new_owned = ffi.new_allocator(lib.shm_malloc, lib.shm_free, should_clear_after_alloc=False)


def address_of(exporter: Any) -> int:
    """Where the bytes of a C-contiguous buffer exporter begin; ValueError when they are strided."""
    return int(cast(UINTPTR, _from_buffer(exporter)))


def allocate(size_bytes: int) -> tuple[Any, int]:
    """A block of the calling child's arena: (owner, address).

    The owner exports the block's bytes through the buffer protocol; the block goes back to the
    arena when the owner, and everything that holds its buffer, is garbage. Raises MemoryError
    (a plain one) when the library refuses; ask :func:`last_status` why.
    """
    owned = _new_owned(_CHAR_ARRAY, size_bytes)
    return buffer_of(owned), int(cast(UINTPTR, owned))


def allocate_block(size_bytes: int) -> tuple[Any, Any, int]:
    """As :func:`allocate`, for blocks that may be freed early: (owner, buffer, address)."""
    owned = _new_owned(_CHAR_ARRAY, size_bytes)
    return owned, buffer_of(owned), int(cast(UINTPTR, owned))


def shrink(buffer: Any, size_bytes: int) -> None:
    """Give back the tail of a block that :func:`allocate` gave; its address stays."""
    lib.shm_realloc(_from_buffer(buffer), size_bytes)


def release(owner: Any) -> None:
    """Free what :func:`allocate_block` or :func:`wrap` gave, now."""
    ffi.release(owner)


def wrap(address: int, size_bytes: int, give_back: Callable[[Any], object]) -> tuple[Any, Any]:
    """(owner, buffer) over somebody else's memory, who is told when both are garbage."""
    owner = ffi.gc(cast(_CHARS, address), give_back)
    return owner, buffer_of(owner, size_bytes)


def window_on(address: int, size_bytes: int) -> Any:
    """A writable buffer over memory that nobody owns here, such as all arenas."""
    return buffer_of(cast(_CHARS, address), size_bytes)


def last_status() -> int:
    """Why this thread's last allocation failed."""
    return int(lib.shm_last_status())


def malloc(size_bytes: int) -> int:
    """shm_malloc: the block's address, or 0."""
    return int(cast(UINTPTR, lib.shm_malloc(size_bytes)))


def free(address: int) -> int:
    """shm_free: a status."""
    return int(lib.shm_free(cast("void *", address)))


def arena_stats() -> dict[str, int]:
    """The calling child's allocator statistics, bytes and counts."""
    stats = ffi.new("shm_arena_stats_t *")
    check(lib.shm_get_arena_stats(stats), "the arena's statistics could not be read")
    return as_dict(stats, "shm_arena_stats_t")


def arena_check() -> int:
    """Status of the allocator's own check of every invariant."""
    return int(lib.shm_check())


def arena_base(child: int) -> int:
    """Address of a child's arena."""
    return int(lib.shm_arena_base(child))


def arena_bytes() -> int:
    """Bytes of each arena."""
    return int(lib.shm_arena_bytes())


def reservation() -> tuple[int, int]:
    """(address, bytes) of the reservation in which all arenas lie."""
    return int(lib.shm_reservation_base()), int(lib.shm_reservation_bytes())


def check_memory(size_bytes: int) -> None:
    """Raise LaunchError, in a sentence, when the machine cannot give that much to arenas."""
    status = lib.shm_check_memory(size_bytes)
    if status < 0:
        fail(status, "", error_detail())
