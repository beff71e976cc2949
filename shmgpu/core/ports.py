"""Calls, as a child sends them and a helper takes them.

Owns the names of the hot paths, such as :data:`port_call` and :data:`helper_step`. Each is the C
function itself, because one more Python frame in a call would cost more than the call. Never waits
but in C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.core.binding import UINTPTR, buffer_of, cast, ffi, format_of, lib

port_call: Callable[[Any, int, int, Any], int] = lib.shm_port_call
port_wait: Callable[[int, int, Any], int] = lib.shm_port_wait
port_abandon: Callable[[int], int] = lib.shm_port_abandon
port_grow: Callable[[int, int, int], int] = lib.shm_port_grow
port_cancel: Callable[[int], int] = lib.shm_port_cancel
port_give_up: Callable[[int], int] = lib.shm_port_give_up
port_fd: Callable[[], int] = lib.shm_port_fd
port_event_fd: Callable[[], int] = lib.shm_port_event_fd
port_window: Callable[[], int] = lib.shm_port_window
port_is_lost: Callable[[], int] = lib.shm_port_is_lost
port_outstanding: Callable[[], int] = lib.shm_port_outstanding
count_bytes: Callable[[int, int], None] = lib.shm_count_bytes
port_submit: Callable[[Any, int, int, int, Any], int] = lib.shm_port_submit
port_number: Callable[[], int] = lib.shm_port_number
port_await: Callable[[int, int], int] = lib.shm_port_await
port_take_end: Callable[[int], Any] = lib.shm_port_take_end  # .sequence is 0 where there is none
port_await_end: Callable[[int, int, int], int] = lib.shm_port_await_end
GLANCE: int = lib.SHM_GLANCE  # a deadline: what has come by now, or does so in no time
port_take_end_of: Callable[[int, int], Any] = lib.shm_port_take_end_of
port_take_growing: Callable[[int], Any] = lib.shm_port_take_growing


def new_reply() -> Any:
    """Room for one reply: .sequence, .ticket, .value, .token, .status, .helper, .gang."""
    return ffi.new("shm_reply_t *")


# Room for a sequence, at index 0: what port_submit tells.
new_sequence: Callable[[], Any] = functools.partial(ffi.new, ffi.typeof("uint64_t *"))


def new_repeat(
    config: Any, params: int, argument_bytes: Sequence[int], room_bytes: int, reply: Any
) -> tuple[Any, int]:
    """The description of a call that repeats, and its address; keep ``reply`` alive."""
    made = ffi.new(
        "shm_repeat_t *",
        [config[0], params, room_bytes, reply, len(argument_bytes), list(argument_bytes)],
    )
    return made, int(cast(UINTPTR, made))


def address_of_call(name: str) -> int:
    """Where a function of C is, for who calls it from C: ``"port_repeat"``."""
    return int(cast(UINTPTR, ffi.addressof(lib, f"shm_{name}")))


def new_call_config(
    function: int,
    pool: int,
    priority: int = 0,
    placement: int = 0,
    port: int = 0,
    gang: bool = False,
    broadcast: bool = False,
) -> Any:
    """What does not change between calls of one signature; .batch_key and .rows may be set."""
    config = ffi.new("shm_call_config_t *")
    config.gang = gang
    config.broadcast = broadcast
    config.port = port
    config.function = function
    config.pool = pool
    config.priority = priority
    config.placement = placement
    return config


def send_message(function: int, params: int) -> int:
    """shm_send_msg: a status."""
    message = ffi.new("shm_msg_t *")
    message.func_ptr = cast("shm_func_t", function)
    message.params = cast("void *", params)
    return int(lib.shm_send_msg(message))


def read_message() -> tuple[int, int, int]:
    """shm_read_msg: (status, func_ptr, params)."""
    message = ffi.new("shm_msg_t *")
    status = int(lib.shm_read_msg(message))
    return (
        status,
        int(cast(UINTPTR, message.func_ptr)),
        int(cast(UINTPTR, message.params)),
    )


# ---- a helper's calls -------------------------------------------------------------------------

helper_ready: Callable[[int], int] = lib.shm_helper_ready
helper_step: Callable[[Any, int, int, int], int] = lib.shm_helper_step
helper_take: Callable[[Any, int, int], int] = lib.shm_helper_take
helper_finish: Callable[[int, int, int], int] = lib.shm_helper_finish
helper_go_on: Callable[[], int] = lib.shm_helper_go_on
helper_goes_on: Callable[[int], int] = lib.shm_helper_goes_on
helper_tell_idle: Callable[[int], int] = lib.shm_helper_tell_idle
helper_offer_end: Callable[[], int] = lib.shm_helper_offer_end
helper_session: Callable[[int], int] = lib.shm_helper_session

# Kinds of work: a plain call, and others.
WORK_CALL: int = lib.SHM_WORK_CALL
WORK_GROW: int = lib.SHM_WORK_GROW
WORK_GANG: int = lib.SHM_WORK_GANG
WORK_BROADCAST: int = lib.SHM_WORK_BROADCAST
WORK_APPLY: int = lib.SHM_WORK_APPLY
WORK_FORMAT = format_of("shm_work_t")
WORK_BYTES: int = ffi.sizeof("shm_work_t")
# What one call alone needs of it.
ONE_WORK_FORMAT = format_of(
    "shm_work_t", {"function", "params", "sequence", "block_bytes", "generation", "slot", "kind"}
)


def new_works(capacity: int) -> tuple[Any, Any]:
    """Room for one batch of works: (handle for helper_step, buffer to unpack from)."""
    works = ffi.new("shm_work_t[]", capacity)
    return works, buffer_of(works)
