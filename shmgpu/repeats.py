"""Calls that repeat: one array in, one small array out, nothing new but where they lie.

Most calls of a loop differ from the last one in two addresses. For these a :class:`Repeat`
keeps everything else ready: the block, the C description of the call, and two small rooms for
results, used in turn, because the last result usually lives until the next one replaces it.
This file owns that readiness; it sends nothing.

A room is free when nobody but its Repeat refers to it, which the reference count tells: an
array over a room, and every view of that array, holds the room itself.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

from shmgpu import core
from shmgpu.memory import Arena
from shmgpu.plans import Call

MAX_ROOM = 4096  # bytes of a result whose room is worth keeping
MAX_KEYS = 64  # signatures of one function
MAX_READY = 8  # calls kept ready for one signature: threads that call at once


class Repeat:
    """One call that is ready to be made again.

    Attributes:
        call: the call whose block is used.
        recipe: the C description (``shm_repeat_t``) of it.
        room, owner: where the next result goes, as a buffer and for C.
        shape, dtype: of the result.
    """

    __slots__ = (
        "call",
        "dtype",
        "owner",
        "recipe",
        "room",
        "shape",
        "size",
        "spare",
        "spare_owner",
    )

    def __init__(self, call: Call, arena: Arena) -> None:
        plan = call.plan
        self.call = call
        self.shape = plan.hint_shape
        self.dtype = plan.hint_type
        self.size = plan.room
        self.recipe = core.new_repeat(
            call.config, call.address, plan.nbytes[0], plan.room, call.reply
        )
        self.owner, self.room, _ = arena.block(plan.room)
        self.spare_owner, self.spare, _ = arena.block(plan.room)

    def turn(self, allocate: Callable[[int], tuple[Any, Any, int]]) -> None:
        """The room is taken: use the other one, or leave it to its holder and make a new one."""
        if getrefcount(self.spare) == UNHELD:
            self.room, self.spare = self.spare, self.room
            self.owner, self.spare_owner = self.spare_owner, self.owner
        else:
            self.owner, self.room, _ = allocate(self.size)


class _Probe:
    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = object()


# What getrefcount(repeat.room) gives when nobody else refers to the room: interpreters count
# the reference on their own stack differently.
_probe = _Probe()
UNHELD = getrefcount(_probe.room)


class Repeats(dict[Any, list[Repeat]]):
    """A function's ready calls, by (dtype, shape) of the argument."""

    def keep(self, key: Any, call: Call, arena: Arena) -> bool:
        """Make a call that has just gone the expected way ready to repeat, if that is worth it."""
        plan = call.plan
        ready = self.get(key)
        if ready is None:
            if len(self) >= MAX_KEYS:
                return False
            ready = self[key] = []
        if len(ready) >= MAX_READY or plan.room > MAX_ROOM or not plan.nbytes[0]:
            return False
        ready.append(Repeat(call, arena))
        return True
