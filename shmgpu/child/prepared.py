"""Calls that differ from an earlier one only in addresses, ready to be made again in C.

Most calls of a loop differ from the last one in the addresses of their arrays. For these a
:class:`PreparedCall` keeps everything else ready: the block, the C description of the call, and a
small output buffer with the array over it that will be the result. At least two take turns, because
the last result usually lives until the next one replaces it. ``csrc/python/quick`` makes them; this
owns their readiness. Never sends.

Results are views on a PreparedCall's array, and NumPy makes every view of a view hold that same
array: so its reference count tells whether anybody still uses the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call
from shmgpu.child.promise import MAX_KEPT_OUTPUT

MAX_SIGNATURES = 64  # of one function
MAX_READY = 8  # calls kept ready for one signature: threads that call at once


class PreparedCall(quick.QuickCall):
    """One call that is ready to be made again.

    Attributes:
        call: the call whose block is used.
        result: array over the output buffer, of which the caller gets a view.
    """

    __slots__ = ("_arena",)

    def __init__(self, call: Call, arena: Arena) -> None:
        promised = call.signature
        self.call = call
        self._arena = arena
        self.describe(
            *core.new_repeat(
                call.config, call.address, call.plan.nbytes, promised.output_bytes, call.reply
            )
        )
        arena.set_aside += promised.output_bytes
        self.renew()

    def renew(self) -> None:
        """Leave the output buffer to whoever still uses it, and take another."""
        promised = self.call.signature
        owner, buffer, address = self._arena.block(promised.output_bytes)
        self.hold(owner, address, np.ndarray(promised.shape, promised.dtype, buffer))

    @property
    def kept_bytes(self) -> int:
        """What it keeps of the arena between calls."""
        return int(self.call.kept_bytes + self.result.nbytes)


def keep(signatures: list[Any], args: Any, kwargs: Any, call: Call, arena: Arena) -> bool:
    """Make a call that has just gone the expected way ready to repeat, if that is worth it.

    ``signatures`` are those of the function that has some already.
    """
    plan = call.plan
    promised = call.signature
    if promised.output_bytes > MAX_KEPT_OUTPUT or promised is not plan.signature:
        return False
    signature = quick.native.find(signatures, args, kwargs)
    if signature is None:
        if len(signatures) >= MAX_SIGNATURES:
            return False
        try:
            signature = quick.native.Signature(args, kwargs)
        except ValueError:  # such calls are not made in C
            return False
        signatures.append(signature)
    ready = signature.ready
    if len(ready) >= MAX_READY:
        return False
    if not ready:
        another = Call(plan, arena)
        if another.signature is not promised:  # another thread's result was of another kind
            return False
        ready.append(PreparedCall(another, arena))
    ready.append(PreparedCall(call, arena))
    return True
