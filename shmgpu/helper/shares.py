"""A CPU helper's share of the cores, in compute threads, while helpers come and go.

Owns the count of helpers that share. Never changes a number of threads that a session function
chose.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shmgpu import core
from shmgpu.common import devices
from shmgpu.common.blas import BlasThreads

NOT_THERE = (core.HELPER_LEAVING, core.HELPER_ABSENT)


class Share:
    """The threads of one helper.

    Args:
        number: the helper's.
        others: the numbers of those that compute on the CPU, empty slots included.
        cores: what they share.
        threads: what it begins with.
    """

    def __init__(self, number: int, others: Sequence[int], cores: int, threads: int) -> None:
        self.number = number
        self.others = others
        self.cores = cores
        self.threads = threads
        self.blas: BlasThreads | None = None

    def wanted(self) -> int:
        """How many it should have, as many helpers as there are or will be in a moment."""
        count = sum(
            one == self.number or core.helper_stats(one)["state"] not in NOT_THERE
            for one in self.others
        )
        return devices.threads_of_helper(self.cores, count)

    def look(self) -> None:
        """Helpers may have come or gone: have the threads that are right from now on."""
        wanted = self.wanted()
        if wanted == self.threads:
            return
        torch = sys.modules.get("torch")
        if torch is not None and torch.get_num_threads() != self.threads:
            return
        self.threads = wanted
        devices.set_threads(wanted)
        if self.blas is not None:
            self.blas.set(wanted)
