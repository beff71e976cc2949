"""Raw calls: the caller writes the parameter block itself, and the function reads it itself.

For functions of the package whose calls are never twice alike, so that nothing of a call could be
remembered. A raw call has a block of the same shape (:mod:`shmgpu.codec.layout`), with bytes of the
function's own instead of a signature and plain values, and its result is arrays that both sides
know: there is nothing to describe, to look up or to learn. Owns the caller's blocks. Never sends.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmgpu import core
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call, CallPlan
from shmgpu.codec.arrays import aligned
from shmgpu.codec.layout import VERSION, TreeLayout, address_writer, block_writer, parts_at
from shmgpu.codec.pytree import flatten

MAX_KEPT_BLOCK = 4096  # bytes of a block that an idle call keeps

_EMPTY = TreeLayout(bytes(flatten(((), {}), callable).structure), ())


class RawCallPlan(CallPlan):
    """What raw calls with equally many arrays share, above all blocks that are ready for use."""

    __slots__ = ("begin", "put", "shift")

    def __init__(self, row: int, pool: int, arity: int, name: str, port: int = 0) -> None:
        super().__init__(row, pool, _EMPTY, None, False, None, False, 0, name, port=port)
        self.arity = arity
        self.fixed = True
        self.begin = parts_at(arity)  # of the function's own bytes
        self.put = block_writer(arity)
        self.shift = core.arena_shift()
        self.pack = address_writer(arity, self.shift)


class RawCall(Call):
    """One raw call; see :meth:`fill`."""

    __slots__ = ("output_address",)

    plan: RawCallPlan
    output_address: int

    def write(self, value_bytes: bytes, arena: Arena) -> None:
        """Nothing of it stays from call to call."""
        self.signature = self.plan.signature

    def fill(
        self, head: bytes, code: bytes, addresses: Sequence[int], output_bytes: int, arena: Arena
    ) -> None:
        """Write all of it.

        Args:
            head: the first part of the function's own.
            code: the second.
            addresses: of arrays in the arena; as many as the call is for.
            output_bytes: the output buffer's size.
            arena: the caller's.

        Raises:
            ArenaFull: the arena has no memory for the block or the output buffer.
        """
        plan = self.plan
        begin = plan.begin
        end = begin + len(head) + len(code)
        if end > len(self.block):
            self.block, self.address = arena.allocate(aligned(end))
        self.addresses = addresses
        self.result, output = arena.allocate(output_bytes or 1)
        self.output_address = output
        shift = plan.shift
        if shift:
            addresses = [address + shift for address in addresses]
            output += shift
        n = plan.arity
        plan.put(
            self.block, 0, end, VERSION, n, output, output_bytes, *addresses, len(head), len(code)
        )
        self.block[begin:end] = head + code

    def done(self) -> None:
        """It was answered while its caller waited: it owned nothing but the output buffer."""
        if len(self.block) > MAX_KEPT_BLOCK:  # it told of a whole program
            self.block = b""
        self.result = None
        self.plan.idle.append(self)

    def release(self) -> None:
        """As any call."""
        if len(self.block) > MAX_KEPT_BLOCK:
            self.block = b""
        super().release()
