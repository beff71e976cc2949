"""Broadcasts: the memory files that hold their arguments, and the versions of pools.

Owns how such a file becomes a buffer. Never looks into one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.core.binding import UINTPTR, buffer_of, cast, ffi, lib
from shmgpu.core.statuses import ENO_MEMORY, ESYSTEM, OK, check, error_detail, fail

_CHARS = ffi.typeof("char *")

broadcast_publish: Callable[[int], int] = lib.shm_broadcast_publish
broadcast_take: Callable[[], int] = lib.shm_broadcast_take
broadcast_close: Callable[[int], None] = lib.shm_broadcast_close
broadcast_version: Callable[[int], int] = lib.shm_broadcast_version


def helper_slots() -> int:
    """How many helpers the broker of this process can have; 1 where there is none."""
    stats = ffi.new("shm_broker_stats_t *")
    return int(stats.helpers) if lib.shm_get_broker_stats(stats) == OK else 1


def broadcast_make(size_bytes: int) -> int:
    """A memory file to be filled: its descriptor, for :data:`broadcast_close`.

    Raises MemoryError, with a sentence, when the machine cannot give that much.
    """
    descriptor = int(lib.shm_broadcast_make(size_bytes))
    if descriptor == ENO_MEMORY:
        raise MemoryError(error_detail())
    return check(descriptor, "the memory file of a broadcast could not be made")


def broadcast_seal(descriptor: int) -> None:
    """From now on nobody can write to it."""
    check(lib.shm_broadcast_seal(descriptor), "the memory file of a broadcast")


def broadcast_map(descriptor: int) -> Any:
    """A buffer over private pages of a sealed file; they are given back when it is garbage."""
    size_bytes = int(lib.shm_broadcast_bytes(descriptor))
    pages = lib.shm_broadcast_map(descriptor, size_bytes) if size_bytes else ffi.NULL
    if pages == ffi.NULL:
        fail(ESYSTEM, "the memory file of a broadcast", error_detail())
    address = int(cast(UINTPTR, pages))
    owner = ffi.gc(
        cast(_CHARS, address),
        lambda pages: lib.shm_broadcast_unmap(cast("void *", address), size_bytes),
    )
    return buffer_of(owner, size_bytes)
