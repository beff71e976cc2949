"""Broadcasts, on one helper: a function is run on arguments that outlive whoever sent them.

Owns the copying of a call's arguments into a memory file, and the running of a function on such a
file. Never decides who runs what, or which version a pool has: the parent does
(``csrc/broker/dispatch_broadcasts.c``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from shmgpu import core
from shmgpu.codec.arrays import ArraySpec, aligned
from shmgpu.codec.layout import RESULT_AT, address_writer
from shmgpu.common.logs import logger
from shmgpu.errors import BadParams
from shmgpu.helper.arena_views import ArenaViews
from shmgpu.helper.block_reader import BlockReader
from shmgpu.helper.decoded import DecodedCall, RawRequest
from shmgpu.helper.executor import Executor
from shmgpu.helper.parked_results import Key

# Where each helper reports a failure: its part of the caller's output buffer.
REPORT_BYTES = core.BROADCAST_REPORT_BYTES

_MOST_AT_ONCE = 1 << 30  # bytes: the kernel writes a little less than 2 GiB
_NOBODY: Key = (0, 0, 0)


class _Kept(NamedTuple):
    """A call that was read from a file, and what makes arrays of its memory."""

    call: DecodedCall
    views: ArenaViews


class Broadcasts:
    """Runs them, for one helper.

    Args:
        executor: the helper's.
        publish: hands a file over to the parent: a status.
    """

    def __init__(
        self, executor: Executor, publish: Callable[[int], int] = core.broadcast_publish
    ) -> None:
        self._executor = executor
        self._publish = publish

    def run_first(
        self, function: int, block: bytes, slot: int, generation: int, sequence: int, version: int
    ) -> tuple[int, int]:
        """Run one that was just sent, before all other helpers: (status, value) to answer."""
        executor = self._executor
        key = (sequence, slot, generation)
        executor.helper.caller = (slot, generation)
        sent = executor.find(function, block, slot)
        if isinstance(sent, RawRequest):  # no file says where its arrays lie
            return core.EBAD_FUNCTION, 0
        if isinstance(sent, tuple):
            return sent
        if sent.hint is not None:
            return executor.refuse(slot, BadParams("a broadcast promises a result"))
        report = sent.with_values(sent.values, sent.kind)
        self._use_part(report)
        descriptor = -1
        try:
            descriptor = _make_file(block, sent.specs, executor.views.read_only)
            kept = self._read(function, descriptor)
        except (MemoryError, OSError) as error:  # the function has not run: nothing has changed
            core.broadcast_close(descriptor)
            values = (type(error).__name__, str(error), "")
            with executor.writer.parking_nothing():
                return executor.writer.put_values(core.ENO_MEMORY, report, values, key)
        except Exception:  # no block may end a helper
            core.broadcast_close(descriptor)
            logger.exception("a broadcast could not be read again from its memory file")
            return core.EBAD_PARAMS, core.UNREADABLE
        outcome = self._run(function, kept, report, key)
        if outcome[0] == core.OK and self._publish(descriptor) != core.OK:
            outcome = core.EREMOTE, 0  # it has run here, and the others will not have it
        if outcome[0] == core.OK:
            executor.helper.version = version
        core.broadcast_close(descriptor)
        return outcome

    def apply(
        self,
        function: int,
        descriptor: int,
        block: bytes,
        slot: int,
        generation: int,
        version: int,
    ) -> tuple[int, int]:
        """Run one that has run on another helper.

        ``block`` is what its sender had sent, to report a failure; empty where nobody waits.
        """
        executor = self._executor
        executor.helper.caller = (slot, generation) if block else (0, 0)
        report = None
        try:
            kept = self._read(function, descriptor)
            if block:
                report = kept.call.with_values(kept.call.values, kept.call.kind)
                report.output_offset, report.output_bytes = executor.reader.output_of(block, slot)
                self._use_part(report)
        except Exception:
            logger.exception("a broadcast could not be read: this helper ends and is replaced")
            return core.EBAD_PARAMS, core.UNREADABLE
        finally:
            core.broadcast_close(descriptor)
        outcome = self._run(function, kept, report, _NOBODY)
        if outcome[0] == core.OK:
            executor.helper.version = version
        return outcome

    def _read(self, function: int, descriptor: int) -> _Kept:
        """The arguments in a file. They live as long as anybody has one of them."""
        executor = self._executor
        memory = core.broadcast_map(descriptor)
        size = len(memory)
        views = ArenaViews(memory, 0, executor.device)
        reader = BlockReader(
            executor.functions, views, lambda slot: (0, size), False, executor.device.is_cuda
        )
        call = reader.read(function, memory[: int.from_bytes(memory[:4], "little")], 0)
        assert isinstance(call, DecodedCall)
        return _Kept(call, views)

    def _run(
        self, function: int, kept: _Kept, report: DecodedCall | None, key: Key
    ) -> tuple[int, int]:
        executor = self._executor
        target = executor.functions[function]
        helper = executor.helper
        before = len(helper.later)
        helper.offered = None
        try:
            if target.arrays_kind != "numpy":
                kept.views.tensors(kept.call)  # which the call has from then on
            executor.run(target, kept.call)
            executor.device.finish()
            return core.OK, 0
        except BaseException as error:
            del helper.later[before:]
            if report is None:
                logger.error(
                    "%s, as it was last broadcast, failed: this helper ends and is replaced",
                    target.name,
                    exc_info=error,
                )
            with executor.writer.parking_nothing():
                outcome = executor.put_failure(report, error, key)
            return outcome if outcome[0] == core.EREMOTE else (core.EREMOTE, 0)

    def _use_part(self, report: DecodedCall) -> None:
        """Have it name this helper's part of the output buffer; none where it is too small."""
        skipped = REPORT_BYTES * self._executor.helper.id
        left = report.output_bytes - skipped
        report.output_offset += skipped if left > 0 else 0
        report.output_bytes = min(max(left, 0), REPORT_BYTES)


def _make_file(block: bytes, specs: list[tuple[int, ArraySpec]], memory: memoryview) -> int:
    """A sealed memory file with a block and its arrays; in that block, addresses are offsets."""
    places = []
    end = aligned(len(block))
    for _, spec in specs:
        places.append(end)
        end = aligned(end + spec.nbytes)
    head = bytearray(block)
    address_writer(len(specs), 0)(head, RESULT_AT, 0, 0, *places)
    descriptor = core.broadcast_make(end)
    try:
        _write(descriptor, memoryview(head), 0)
        for (offset, spec), place in zip(specs, places, strict=True):
            _write(descriptor, memory[offset : offset + spec.nbytes], place)
        core.broadcast_seal(descriptor)
    except BaseException:
        core.broadcast_close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, data: memoryview, place: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + _MOST_AT_ONCE], place + done)
