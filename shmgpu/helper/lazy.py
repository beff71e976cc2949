"""Helpers whose session is made at the first call, and given back when none has come for long.

Owns what waits for a session: the first calls, and broadcasts that are run as soon as there is one.
Never ends a process to give memory back: it offers that to the parent, which knows what is on its
way here.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from shmgpu import core
from shmgpu.common.logs import logger
from shmgpu.helper.broadcasts import Broadcasts
from shmgpu.helper.decoded import Helper
from shmgpu.helper.executor import Executor

_unpack_all = struct.Struct(core.WORK_FORMAT).iter_unpack
_WORK = core.WORK_BYTES


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

    def all(self) -> Any:
        """Each work that there is, as a tuple of WORK_FORMAT's members."""
        return _unpack_all(self.view[: self.count * _WORK])


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
            delivery, function, _, version, _, _, _, generation, _, _, slot, kind, _ = next(
                iter(taken.all())
            )
            if kind != core.WORK_APPLY:
                return True
            self._keep(function, _Broadcast(core.broadcast_take(), slot, generation, version))
            core.helper_finish(delivery, core.OK, 0)

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
    for (
        delivery,
        function,
        params,
        _,
        sequence,
        _,
        size,
        generation,
        _,
        _,
        slot,
        kind,
        _,
    ) in taken.all():
        if kind == 0:
            work = (function, params, size, slot, generation, sequence)
            core.helper_finish(delivery, *executor.fail(work, failure))


def offer_end(helper: Helper) -> None:
    """Nothing has come for long: let this process be ended, unless it keeps something."""
    try:
        if any(keeps() for keeps in helper.keeps_something):
            return
    except Exception:
        logger.exception("what this helper keeps could not be told: it stays")
        return
    core.helper_offer_end()
