"""What this process is in a broker, and which functions it may call: their rows.

Owns the entry of a function into the table. Never calls one.
"""

from __future__ import annotations

from shmgpu.core.binding import ffi, kept, lib


def register_function(
    name: str,
    *,
    batch_max_rows: int = 0,
    batch_delay_ns: int = 0,
    hang_after_ns: int = 0,
    idempotent: bool = False,
    max_queue: int = 0,
    drops_oldest: bool = False,
) -> tuple[int, int]:
    """Make a row in the function table: (status, the row's address)."""
    text = ffi.new("char[]", name.encode())
    config = ffi.new("shm_function_config_t *")
    config.name = text
    config.params_size = ffi.sizeof("shm_block_t")
    config.batch_max_rows = batch_max_rows
    config.batch_delay_ns = batch_delay_ns
    config.hang_after_ns = hang_after_ns
    config.max_queue = max_queue
    if idempotent:
        config.flags |= lib.SHM_FUNCTION_IDEMPOTENT
    if drops_oldest:
        config.flags |= lib.SHM_FUNCTION_DROPS_OLDEST
    row = ffi.new("uint64_t *")
    kept.append(text)
    status = int(lib.shm_register_function(config, row))
    return status, int(row[0])


def function_name(row: int) -> str:
    """Name of a row, or ``""``."""
    pointer = lib.shm_function_name(row)
    if pointer == ffi.NULL:
        return ""
    name: bytes = ffi.string(pointer)
    return name.decode("utf-8", "replace")


def role() -> int:
    """What this process is: one of the ROLE_ constants."""
    return int(lib.shm_get_role())


def child_id() -> int:
    """Number of this child, or a status."""
    return int(lib.shm_get_child_id())


def helper_id() -> int:
    """Number of this helper, or a status."""
    return int(lib.shm_get_helper_id())
