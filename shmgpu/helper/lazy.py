"""Helpers whose session is made at the first call, and given back when none has come for long.

Owns what waits for a session: the first calls, and broadcasts that are run as soon as there is one.
Never ends a process to give memory back: it offers that to the parent, which knows what is on its
way here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from shmgpu import core
from shmgpu.common.logs import logger
from shmgpu.helper.broadcasts import Broadcasts
from shmgpu.helper.decoded import Helper
from shmgpu.helper.executor import Executor

_unpack_all = struct.Struct(core.WORK_FORMAT).iter_unpack
_WORK = core.WORK_BYTES


class _Work(NamedTuple):
    """One work, as WORK_FORMAT has its members; the C header says what they are."""

    delivery: int
    function: int
    params: int
    token: int
    sequence: int
    members: int
    size: int
    generation: int
    rows: int
    ticket: int
    slot: int
    kind: int
    reserved: int


class Works:
    """What was taken last, and room for what is taken next.

    Attributes:
        works: room for it, as the core wants it.
        view: the same, to unpack from.
        count: how many works there are, or why there are none: a status.
    """

    __slots__ = ("count", "view", "works")

    def __init__(self) -> None:
        self.works, self.view = core.new_works(core.MAX_BATCH)
        self.count = 0

    def take(self) -> None:
        """Wait for the next."""
        self.count = core.helper_take(self.works, core.MAX_BATCH, -1)

    def all(self) -> Iterator[_Work]:
        """Each that there is."""
        return map(_Work._make, _unpack_all(self.view[: self.count * _WORK]))


class _Broadcast(NamedTuple):
    descriptor: int
    slot: int
    generation: int
    version: int


class Postponed:
    """Waits for the first call, and keeps the last broadcast of each function until then."""

    def __init__(self) -> None:
        self._last: dict[int, _Broadcast] = {}

    def wait(self, taken: Works) -> bool:
        """Whether a call has come; if not, there will be none."""
        while True:
            taken.take()
            if taken.count == core.EINTR:  # a child has left, for whom nothing is kept
                continue
            if taken.count < 0:
                return False
            work = next(taken.all())
            if work.kind != core.WORK_APPLY:
                return True
            kept = _Broadcast(core.broadcast_take(), work.slot, work.generation, work.token)
            self._keep(work.function, kept)
            core.helper_finish(work.delivery, core.OK, 0)

    def _keep(self, function: int, one: _Broadcast) -> None:
        before = self._last.pop(function, None)
        if before is not None:
            core.broadcast_close(before.descriptor)
        self._last[function] = one

    def apply(self, broadcasts: Broadcasts) -> None:
        """There is a session: run them, in their order.

        Raises:
            RuntimeError: one failed, as the log says; it has said there why.
        """
        for function, (descriptor, slot, generation, version) in self._last.items():
            status, _ = broadcasts.apply(function, descriptor, b"", slot, generation, version)
            if status != core.OK:
                raise RuntimeError("the last broadcast failed on it")
        self._last.clear()


def refuse(executor: Executor, taken: Works, error: BaseException) -> None:
    """Answer the calls that wait for a session with what its function raised.

    Others that wait (a gang's part, a broadcast) learn it from this helper's end.
    """
    failure = RuntimeError(
        "the helper could not make its session, which it does at its first call: "
        f"{type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    for one in taken.all():
        if one.kind == core.WORK_CALL:
            call = (one.function, one.params, one.size, one.slot, one.generation, one.sequence)
            core.helper_finish(one.delivery, *executor.fail(call, failure))


def offer_end(helper: Helper) -> None:
    """Nothing has come for long: let this process be ended, unless it keeps something."""
    try:
        if any(keeps() for keeps in helper.keeps_something):
            return
    except Exception:
        logger.exception("what this helper keeps could not be told: it stays")
        return
    core.helper_offer_end()
