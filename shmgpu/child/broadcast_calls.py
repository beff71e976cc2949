"""Calls that run once on each helper of a pool, and again on each that joins it.

Owns what such a call has that others have not: no batch, no result, and an output buffer with a
part for each helper, where one on which the function raises says so. Never sends.
"""

from __future__ import annotations

from typing import Any

from shmgpu import core
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call, CallPlan
from shmgpu.errors import BroadcastError, RemoteError, ShmError


class BroadcastPlan(CallPlan):
    """What broadcasts of one function with one signature share."""

    __slots__ = ()
    may_batch = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_bytes = core.BROADCAST_REPORT_BYTES * core.helper_slots()

    def new_call(self, arena: Arena) -> Call:
        """A broadcast of this signature."""
        return BroadcastCall(self, arena)


class BroadcastCall(Call):
    """One of them.

    Attributes:
        helper: after a failure: on which helper; -1: on none in particular.
        has_effect: whether all other helpers have had it, and later ones will.
    """

    __slots__ = ("has_effect", "helper")

    def write(self, value_bytes: bytes, arena: Arena) -> None:
        """As of any call."""
        super().write(value_bytes, arena)
        self.config.broadcast = 1
        self.helper = -1
        self.has_effect = False

    def note(self, reply: Any) -> None:
        """It failed: on which helper, whose part of the output buffer says how."""
        self.helper = helper = int(reply.helper) if reply.helper < core.MAX_HELPERS else -1
        self.has_effect = reply.gang == core.GANG_COMMITTED
        if helper >= 0 and self.result is not None:
            first = core.BROADCAST_REPORT_BYTES * helper
            self.result = self.result[first : first + core.BROADCAST_REPORT_BYTES]

    def done(self) -> None:
        """It was answered while its caller waited, who reads the answer before it releases this."""

    def error_of(self, error: ShmError) -> ShmError:
        """What is raised, in the words for a broadcast."""
        if not isinstance(error, RemoteError):
            return error
        told = error.type_name, error.message, error.traceback_text
        return BroadcastError(*told, self.helper, self.has_effect)
