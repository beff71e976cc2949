"""Calls of a gang: one message that several helpers run at once, each on a block of its own.

Owns the table in front of the blocks (``shm_gang_block_t``), which lies with them in one piece of
the arena, and the members' output buffers. Each block is that of a raw call
(:mod:`shmgpu.child.raw_calls`). Such a call has one end: it stands, or nothing of it does, and
where it failed it says on which helper. For functions of the package. Never sends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call
from shmgpu.child.raw_calls import MAX_KEPT_BLOCK, RawCallPlan
from shmgpu.codec.arrays import aligned
from shmgpu.codec.layout import VERSION, block_writer, parts_at
from shmgpu.errors import ShmError

LEAST_OUTPUT_BYTES = 4096  # of each member: where the text of an exception has room, too

_HEAD = struct.Struct(core.GANG_BLOCK_FORMAT)


@dataclass(frozen=True)
class MemberBlock:
    """What one member is sent.

    Attributes:
        head, code: the two parts of a raw call that are its function's own.
        addresses: of arrays in the arena.
        output_bytes: size of its output buffer.
    """

    head: bytes
    code: bytes
    addresses: Sequence[int] = ()
    output_bytes: int = 0


class GangCallPlan(RawCallPlan):
    """What calls of a function on the same helpers share, above all calls that are ready for use.

    Attributes:
        helpers: by rank: ranks follow the helpers' numbers.
        mask: the same as bits.
    """

    __slots__ = ("helpers", "mask")

    def __init__(
        self, row: int, pool: int, helpers: Sequence[int], name: str, port: int = 0
    ) -> None:
        super().__init__(row, pool, 0, name, port)
        self.helpers = tuple(sorted(set(helpers)))
        self.mask = sum(1 << helper for helper in self.helpers)


class GangCall(Call):
    """One call of a gang; see :meth:`fill`.

    Attributes:
        outputs: addresses of the output buffers, by rank.
        failed_helper: after a failure: on which helper; -1: on none in particular.
        is_committed: whether what it did stands, also after a failure.
    """

    __slots__ = ("_buffers", "failed_helper", "is_committed", "outputs")

    plan: GangCallPlan

    def write(self, value_bytes: bytes, arena: Arena) -> None:
        """Nothing of it stays from call to call."""
        self.signature = self.plan.signature
        self.config.gang = 1
        self.config.placement = self.plan.mask
        self.outputs: list[int] = []
        self._buffers: list[Any] = []
        self.failed_helper = -1
        self.is_committed = False

    def fill(self, parts: Sequence[MemberBlock], arena: Arena) -> None:
        """Write all of it: the table, a block for each member by rank, and their output buffers.

        Raises:
            ArenaFull: the arena has no memory for the blocks or an output buffer.
        """
        members = self.plan.helpers
        assert len(parts) == len(members), "a part for each member"
        offsets = []
        end = aligned(_HEAD.size + 4 * len(members))
        for part in parts:
            offsets.append(end)
            end = aligned(end + _block_bytes(part))
        if end > len(self.block):
            self.block, self.address = arena.allocate(end)
        _HEAD.pack_into(self.block, 0, end, core.GANG_BLOCK_VERSION, len(members), self.plan.mask)
        struct.pack_into(f"<{len(members)}I", self.block, _HEAD.size, *offsets)
        self._buffers = buffers = []
        self.outputs = []
        for part, offset in zip(parts, offsets, strict=True):
            nbytes = max(part.output_bytes, LEAST_OUTPUT_BYTES)
            buffer, address = arena.allocate(nbytes)
            buffers.append(buffer)
            self.outputs.append(address)
            _write(self.block, offset, part, address, nbytes, self.plan.shift)
        self.result = buffers

    def note(self, reply: Any) -> None:
        """It failed: whose failure it is, and whether it stands. Its error's text is there."""
        self.failed_helper = helper = int(reply.helper) if reply.helper < 64 else -1
        self.is_committed = reply.gang == core.GANG_COMMITTED
        if self._buffers and helper in self.plan.helpers:
            self.result = self._buffers[self.plan.helpers.index(helper)]

    def blame(self, error: ShmError) -> None:
        """Say the same of the error that is raised."""
        error._helper = self.failed_helper
        error._is_committed = self.is_committed

    def done(self) -> None:
        """It was answered while its caller waited: it owned nothing but the output buffers."""
        if len(self.block) > MAX_KEPT_BLOCK:
            self.block = b""
        self.result = None
        self._buffers = []
        self.plan.idle.append(self)

    def release(self) -> None:
        """As any call; it stays the gang's."""
        if len(self.block) > MAX_KEPT_BLOCK:
            self.block = b""
        self._buffers = []
        super().release()

    def forget_options(self) -> None:
        """It has none: where it runs is what it is."""


def _block_bytes(part: MemberBlock) -> int:
    return parts_at(len(part.addresses)) + len(part.head) + len(part.code)


def _write(
    buffer: Any, offset: int, part: MemberBlock, output: int, nbytes: int, shift: int
) -> None:
    arity = len(part.addresses)
    addresses = [address + shift for address in part.addresses]
    lengths = len(part.head), len(part.code)
    size = _block_bytes(part)
    put = block_writer(arity)
    put(buffer, offset, size, VERSION, arity, output + shift, nbytes, *addresses, *lengths)
    begin = offset + parts_at(arity)
    buffer[begin : offset + size] = part.head + part.code


def outcome_of(error: BaseException) -> tuple[int, bool]:
    """(helper, is_committed) of an error that a call of a gang raised; helper -1: of none."""
    if not isinstance(error, ShmError):
        return -1, False
    return error._helper, error._is_committed
