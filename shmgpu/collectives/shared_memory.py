"""Collectives through regions of shared memory that all helpers map: of arrays in host memory.

Owns the description as the C core reads it, one for each prepared collective. The work is done
there (``csrc/helper/collective.h``), without the interpreter's lock. Never copies an array itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.collectives.operations import CollectiveSpec, check_array, group_of
from shmgpu.errors import BadParams, ShmError

_ndarray = np.ndarray
_NOTHING = core.pointer(0)


class SharedMemory:
    """The backend."""

    name = "shared memory"

    def prepare(self, collective: CollectiveSpec, rank: int, size: int) -> PreparedInMemory:
        """Make one ready; arrays are NumPy's, or torch's on the CPU."""
        return PreparedInMemory(collective, rank, size)

    def finish(self) -> None:
        """Nothing is ever enqueued."""


class PreparedInMemory:
    """One collective, ready to be run."""

    __slots__ = ("_described", "_gets", "_gives", "collective")

    def __init__(self, collective: CollectiveSpec, rank: int, size: int) -> None:
        self.collective = collective
        own, members = group_of(collective, rank, size)
        self._gives, self._gets = collective.elements(own, members)
        element, units = collective.element
        self._described = core.new_collective(
            kind=core.COLLECTIVES[collective.kind],
            dtype=core.COLLECTIVE_DTYPES[element],
            reduction=core.REDUCTIONS[collective.reduction],
            algorithm=core.ALGORITHMS[collective.algorithm],
            root=collective.root,
            size=len(collective.group),
            group=collective.group,
            counts=[count * units for count in collective.counts],
            received=[count * units for count in collective.received],
        )

    def run(self, number: int, source: Any, target: Any) -> None:
        """Take part in it; see :class:`Prepared`."""
        self._described.id = number
        status = core.gang_collective(
            self._described, self._at(source, self._gives, "gives"), self._into(target)
        )
        if status:
            raise failure(status)

    def start(self, number: int, source: Any, target: Any) -> Any:
        """The first half of it."""
        self._described.id = number
        status = core.gang_start(
            self._described, self._at(source, self._gives, "gives"), self._into(target)
        )
        if status < 0:
            raise failure(status)
        return status, source, target  # which have to live until they are waited for

    def wait(self, number: int, started: Any) -> None:
        """The rest of it."""
        status = core.gang_wait(started[0], number)
        if status:
            raise failure(status)

    def _into(self, target: Any) -> Any:
        if type(target) is _ndarray and not target.flags.writeable:
            raise BadParams(f"the target of a {self.collective.kind} cannot be written to")
        if target is None and self.collective.kind == "broadcast":
            return _NOTHING
        return self._at(target, self._gets, "gets")

    def _at(self, array: Any, elements: int, what: str) -> Any:
        if array is None and not elements:
            return _NOTHING
        if array is not None and self.collective.kind == "broadcast" and not elements:
            elements = self.collective.counts[0]  # the root may be given its own as a target
        check_array(self.collective, array, elements, what)
        if type(array) is _ndarray:
            if array.nbytes and not array.flags.c_contiguous:
                raise BadParams(f"an array of a {self.collective.kind} is not contiguous")
            return core.pointer(array.ctypes.data if array.nbytes else 0)
        if not array.is_contiguous():
            raise BadParams(f"a tensor of a {self.collective.kind} is not contiguous")
        return core.pointer(array.data_ptr())


def failure(status: int) -> ShmError:
    """What a status of a collective raises."""
    if status == core.EABORTED:
        return core.error_of(status)
    return core.error_of(status, "", core.error_detail())
