"""Calls of a gang: one message that several helpers run at once, each on a block of its own.

Owns the table in front of the blocks (``shm_gang_block_t``), which lies with them in one piece of
the arena, and the members' output buffers. Each block is that of a raw call
(:mod:`shmgpu.child.raw_calls`). Such a call has one end: it stands, or nothing of it does, and
where it failed it says on which helper. For functions of the package. Never sends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from shmgpu import core
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call
from shmgpu.child.raw_calls import MAX_KEPT_BLOCK, RawCallPlan
from shmgpu.codec.arrays import aligned
from shmgpu.codec.layout import VERSION, WORD_BYTES, block_writer, parts_at
from shmgpu.errors import ShmError

LEAST_OUTPUT_BYTES = 4096  # of each member: where the text of an exception has room, too


class MemberBlock:
    """What one member is sent.

    Attributes:
        head, code: the two parts of a raw call that are its function's own.
        addresses: of arrays in the arena.
        output_bytes: size of its output buffer.
        says: whether it says when its results are there, before the call has ended.
    """

    __slots__ = ("addresses", "code", "head", "output_bytes", "says")

    def __init__(
        self,
        head: bytes,
        code: bytes,
        addresses: Sequence[int] = (),
        output_bytes: int = 0,
        says: bool = False,
    ) -> None:
        self.head = head
        self.code = code
        self.addresses = addresses
        self.output_bytes = output_bytes
        self.says = says


class GangCallPlan(RawCallPlan):
    """What calls of a function on the same helpers share, above all calls that are ready for use.

    Attributes:
        helpers: by rank: ranks follow the helpers' numbers.
        mask: the same as bits.
        table: what stands before the blocks.
    """

    __slots__ = ("helpers", "mask", "table")

    def __init__(
        self, row: int, pool: int, helpers: Sequence[int], name: str, port: int = 0
    ) -> None:
        super().__init__(row, pool, 0, name, port)
        self.helpers = tuple(sorted(set(helpers)))
        self.mask = sum(1 << helper for helper in self.helpers)
        self.table = struct.Struct(f"{core.GANG_BLOCK_FORMAT}{len(self.helpers)}I")


class GangCall(Call):
    """One call of a gang; see :meth:`fill`.

    Attributes:
        outputs: addresses of the output buffers, by rank.
        failed_helper: after a failure: on which helper; -1: on none in particular.
        is_committed: whether what it did stands, also after a failure.
    """

    __slots__ = (
        "_buffers",
        "_unused",
        "_words",
        "failed_helper",
        "is_committed",
        "outputs",
    )

    plan: GangCallPlan

    def write(self, value_bytes: bytes, arena: Arena) -> None:
        """Nothing of it stays from call to call."""
        self.signature = self.plan.signature
        self.config.gang = 1
        self.config.placement = self.plan.mask
        self.outputs: list[int] = []
        self._words: dict[int, memoryview] = {}  # by rank, of members that have one
        self._buffers: list[Any] = []
        # By rank, of members that had nothing to write: the buffer and its address.
        self._unused: dict[int, tuple[Any, int]] = {}
        self.failed_helper = -1
        self.is_committed = False

    def fill(self, parts: Sequence[MemberBlock], arena: Arena) -> None:
        """Write all of it: the table, a block for each member by rank, and their output buffers.

        Raises:
            ArenaFull: the arena has no memory for the blocks or an output buffer.
        """
        plan = self.plan
        assert len(parts) == len(plan.helpers), "a part for each member"
        offsets = []
        end = aligned(plan.table.size)
        for part in parts:
            offsets.append(end)
            end += aligned(parts_at(len(part.addresses)) + len(part.head) + len(part.code))
        if end > len(self.block):
            self.block, self.address = arena.allocate(end)
        block, shift, unused = self.block, plan.shift, self._unused
        plan.table.pack_into(
            block, 0, end, core.GANG_BLOCK_VERSION, len(parts), plan.mask, *offsets
        )
        self.result = self._buffers = buffers = []
        self.outputs = outputs = []
        self._words = {}
        for rank, part in enumerate(parts):
            nbytes = part.output_bytes
            if part.says:
                buffer, output = self._with_word(rank, nbytes, arena)
            elif nbytes == 0 and rank in unused:
                buffer, output = unused[rank]
            else:
                buffer, output = arena.allocate(max(nbytes, LEAST_OUTPUT_BYTES))
                if nbytes == 0:
                    unused[rank] = buffer, output
            buffers.append(buffer)
            outputs.append(output)
            _write(block, offsets[rank], part, output, len(buffer), shift)

    @property
    def words(self) -> list[int]:
        """Addresses of the words of members that say when their results are there."""
        return [self.outputs[rank] - WORD_BYTES for rank in self._words]

    def _with_word(self, rank: int, nbytes: int, arena: Arena) -> tuple[Any, int]:
        """An output buffer with a word before it, and room for an exception's text behind it."""
        whole, address = arena.allocate(WORD_BYTES + aligned(nbytes) + LEAST_OUTPUT_BYTES)
        buffer = memoryview(whole)
        self._words[rank] = word = buffer[:4].cast("I")
        word[0] = core.NOT_SAID
        return buffer[WORD_BYTES:], address + WORD_BYTES

    def note(self, reply: Any) -> None:
        """It failed: whose failure it is, and whether it stands. Its error's text is there."""
        self.failed_helper = helper = int(reply.helper) if reply.helper < 64 else -1
        self.is_committed = reply.gang == core.GANG_COMMITTED
        if self._buffers and helper in self.plan.helpers:
            self.result = self._failure_of(self.plan.helpers.index(helper))

    def _failure_of(self, rank: int) -> Any:
        """What that member wrote of an exception: behind its results, where it had said them."""
        buffer, word = self._buffers[rank], self._words.get(rank)
        has_said = word is not None and word[0] == core.SAID_RESULTS
        return buffer[-LEAST_OUTPUT_BYTES:] if has_said else buffer

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
        """As any call; it stays the gang's. Somebody may still read what it wrote."""
        self._unused = {}
        if len(self.block) > MAX_KEPT_BLOCK:
            self.block = b""
        self._buffers = []
        super().release()

    def forget_options(self) -> None:
        """It has none: where it runs is what it is."""


def _write(
    block: Any, offset: int, part: MemberBlock, output: int, nbytes: int, shift: int
) -> None:
    head, code, addresses = part.head, part.code, part.addresses
    arity = len(addresses)
    begin = offset + parts_at(arity)
    end = begin + len(head) + len(code)
    if shift:
        output += shift
        addresses = [address + shift for address in addresses]
    put = block_writer(arity)
    put(
        block,
        offset,
        end - offset,
        VERSION,
        arity,
        output,
        nbytes,
        *addresses,
        len(head),
        len(code),
    )
    block[begin:end] = head + code


def outcome_of(error: BaseException) -> tuple[int, bool]:
    """(helper, is_committed) of an error that a call of a gang raised; helper -1: of none."""
    if not isinstance(error, ShmError):
        return -1, False
    return error._helper, error._is_committed
