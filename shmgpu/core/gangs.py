"""Gangs, calls that run on several helpers at once: their collectives, and what is said meanwhile.

Owns the descriptions of collectives. Never waits but in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.core.binding import cast, ffi, format_of, lib, numbers_of

GANG_COMMITTED: int = lib.SHM_GANG_COMMITTED
GANG_ABORTED: int = lib.SHM_GANG_ABORTED
GANG_BLOCK_FORMAT = format_of("shm_gang_block_t")  # what stands before the offsets
GANG_BLOCK_VERSION = 1


COLLECTIVES = numbers_of("shm_collective_kind", "SHM_")
COLLECTIVE_DTYPES = numbers_of("shm_dtype", "SHM_")
REDUCTIONS = numbers_of("shm_reduction", "SHM_REDUCE_")
ALGORITHMS = numbers_of("shm_algorithm", "SHM_ALGORITHM_")

NOT_SAID: int = lib.SHM_NOT_SAID
SAID_RESULTS: int = lib.SHM_SAID_RESULTS
SAID_FAILED: int = lib.SHM_SAID_FAILED

gang_collective: Callable[[Any, Any, Any], int] = lib.shm_gang_collective
gang_start: Callable[[Any, Any, Any], int] = lib.shm_gang_start
gang_wait: Callable[[int, int], int] = lib.shm_gang_wait
gang_commit: Callable[[], int] = lib.shm_gang_commit
gang_abort: Callable[[], int] = lib.shm_gang_abort
gang_state: Callable[[], int] = lib.shm_gang_state
gang_epoch: Callable[[], int] = lib.shm_gang_epoch


def new_collective(**fields: Any) -> Any:
    """A description for :data:`gang_collective`; sequences fill its arrays from the front."""
    made = ffi.new("shm_collective_t *")
    for name, value in fields.items():
        if isinstance(value, int):
            setattr(made, name, value)
        else:
            for index, one in enumerate(value):
                getattr(made, name)[index] = one
    return made


def pointer(address: int) -> Any:
    """An address, for :data:`gang_collective`; 0 is none."""
    return cast("void *", address)


def word_wait(address: int, timeout_ns: int) -> int:
    """What a helper has said by that word of the arena; NOT_SAID if it has not, for so long."""
    return int(lib.shm_word_wait(pointer(address), timeout_ns))


def word_say(address: int, what: int) -> bool:
    """In a helper: say it to whoever waits at that word; False where there is no such word."""
    return bool(lib.shm_word_say(pointer(address), what) == lib.SHM_OK)
