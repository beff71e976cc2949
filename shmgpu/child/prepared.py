"""Calls that differ from the last one only in addresses: one array in, one small array out.

Most calls of a loop differ from the last one in two addresses. For these a :class:`PreparedCall`
keeps everything else ready: the block, the C description of the call, and a small output buffer
with the array over it that will be the result. At least two take turns, because the last result
usually lives until the next one replaces it. Owns that readiness. Never sends.

Results are views on a PreparedCall's array, and NumPy makes every view of a view hold that same
array: so its reference count tells whether anybody still uses the buffer.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call
from shmgpu.child.promise import MAX_KEPT_OUTPUT

MAX_KEYS = 64  # signatures of one function
MAX_READY = 8  # calls kept ready for one signature: threads that call at once


class PreparedCall:
    """One call that is ready to be made again.

    Attributes:
        call: the call whose block is used.
        recipe: the C description (``shm_repeat_t``) of it.
        result: array over the output buffer, of which the caller gets a view.
        owner: the output buffer, for C.
    """

    __slots__ = ("call", "owner", "recipe", "result")

    def __init__(self, call: Call, arena: Arena) -> None:
        promised = call.signature
        self.call = call
        self.recipe = core.new_repeat(
            call.config, call.address, call.plan.nbytes[0], promised.output_bytes, call.reply
        )
        self.owner, buffer, _ = arena.block(promised.output_bytes)
        arena.set_aside += promised.output_bytes
        self.result = np.ndarray(promised.shape, promised.dtype, buffer)

    def renew(self, arena: Arena) -> None:
        """Leave the buffer to whoever still uses it, and take another."""
        shape, dtype = self.result.shape, self.result.dtype
        self.owner, buffer, _ = arena.block(max(self.result.nbytes, 1))
        self.result = np.ndarray(shape, dtype, buffer)

    @property
    def kept_bytes(self) -> int:
        """What it keeps of the arena between calls."""
        return self.call.kept_bytes + int(self.result.nbytes)


class _Probe:
    __slots__ = ("result",)

    def __init__(self) -> None:
        self.result = object()


# What getrefcount(prepared.result) gives when nobody else refers to it: interpreters count the
# reference on their own stack differently.
_probe = _Probe()
UNHELD = getrefcount(_probe.result)


class PreparedCalls(dict[Any, deque[PreparedCall]]):
    """A function's ready calls, by (dtype, shape) of the argument; the longest unused is next.

    Args:
        most: signatures that have some.
    """

    def __init__(self, most: int = MAX_KEYS) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: Any, call: Call, arena: Arena) -> bool:
        """Make a call that has just gone the expected way ready to repeat, if that is worth it."""
        plan = call.plan
        promised = call.signature
        if (
            promised.output_bytes > MAX_KEPT_OUTPUT
            or not plan.nbytes[0]
            or promised is not plan.signature
        ):
            return False
        ready = self.get(key)
        if ready is None:
            if len(self) >= self.most:
                return False
            ready = self[key] = deque()
        if len(ready) >= MAX_READY:
            return False
        if not ready:
            another = Call(plan, arena)
            if another.signature is not promised:  # another thread's result was of another kind
                return False
            ready.append(PreparedCall(another, arena))
        ready.append(PreparedCall(call, arena))
        return True
