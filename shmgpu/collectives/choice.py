"""Which backend the members of a gang use, by the devices that they have.

Owns the backends that this helper has made, one for each set of members. Never exchanges anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.collectives.operations import Collectives
from shmgpu.collectives.programs import ProgramCollectives
from shmgpu.collectives.shared_memory import SharedMemory


class Backends:
    """The backends of one helper.

    Args:
        number: of the helper.
        devices: of all helpers, by number.
        meeting_fd: file by which helpers with a GPU each make communicators; -1: there is none.
    """

    def __init__(self, number: int, devices: Sequence[str], meeting_fd: int = -1) -> None:
        self._number = number
        self._devices = devices
        self._meeting_fd = meeting_fd
        self._memory = SharedMemory()
        self._made: dict[tuple[int, ...], Collectives] = {}
        self._programs: dict[tuple[int, ...], ProgramCollectives] = {}

    def of(self, helpers: tuple[int, ...]) -> Collectives:
        """The backend of a gang of these helpers."""
        found = self._made.get(helpers)
        if found is None:
            found = self._made[helpers] = self._choose(helpers)
        return found

    def programs_of(self, helpers: tuple[int, ...]) -> ProgramCollectives:
        """The collectives of programs that a gang of these helpers runs; a call of it begins."""
        found = self._programs.get(helpers)
        if found is None:
            rank = helpers.index(self._number)
            found = ProgramCollectives(self.of(helpers), rank, len(helpers))
            self._programs[helpers] = found
        found.begin()
        return found

    def _choose(self, helpers: tuple[int, ...]) -> Collectives:
        devices = [self._devices[helper] for helper in helpers]
        own = self._devices[self._number]
        if own == "cpu":
            return self._memory
        on_gpus = [device for device in devices if device != "cpu"]
        made: Any
        if self._meeting_fd >= 0 and len(set(on_gpus)) == len(devices):
            from shmgpu.collectives.process_groups import ProcessGroups

            made = ProcessGroups(self._meeting_fd, helpers, helpers.index(self._number))
        else:
            from shmgpu.collectives.staged import Staged

            made = Staged(own)
        chosen: Collectives = made
        return chosen
