"""A child's side of the original C interface: send one message, read one answer.

A message is a row of the function table and the address of a parameter block; both are the
caller's. Owns these two calls. Never checks a block: a helper does, and it answers a Python
function's message only if :mod:`shmgpu.child.port` could have written the block. So these calls are
for functions registered from C, and for tests that forge messages.
"""

from __future__ import annotations

from typing import Any

from shmgpu import core
from shmgpu.arena import Block
from shmgpu.child import runtime
from shmgpu.common.parsers import shortened
from shmgpu.errors import BadParams, ShmError
from shmgpu.functions import Function


def shm_send_msg(function: Function[Any, Any] | int, params: Block | int) -> None:
    """Hand a message to some helper; does not wait.

    Args:
        function: a decorated function, or the address of a row or a C function.
        params: the parameter block, or its address.

    Raises:
        BadParams: one of them is not an address.
        ShmError: the window of outstanding messages is full, or the broker is gone.
    """
    runtime.require()
    row = function.row if isinstance(function, Function) else _word(function, "function")
    address = params.address if isinstance(params, Block) else _word(params, "params")
    core.check(core.send_message(row, address), "the message was not sent")


def _word(value: Any, name: str) -> int:
    """An address, as a message has it."""
    try:
        word = int(value.__index__())
    except (AttributeError, TypeError):
        word = -1
    if not 0 <= word < 1 << 64:
        raise BadParams(
            f"{name}={shortened(value)} is not an address: pass a "
            f"{'decorated function' if name == 'function' else 'block of shm_malloc()'}, or where "
            "it lies as a whole number"
        )
    return word


def shm_read_msg() -> tuple[int, int, int]:
    """Wait for the next answered message: (status, function, params).

    The status is 0 or a negative code; ``shmgpu.status_text(status)`` is its sentence.
    """
    runtime.require()
    while True:
        status, function, params = core.read_message()
        if status == core.EAGAIN and function == 0:
            raise ShmError("no message is out: send one with shm_send_msg() first")
        if status != core.EINTR:
            return status, function, params


def shm_get_child_id() -> int:
    """In a child: its number, from 0; NotRunning elsewhere."""
    if runtime.current is not None and runtime.current.inline:
        return 0
    return core.check(core.child_id(), "this process has no child's number")
