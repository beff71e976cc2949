"""The gang that a helper is a member of while one call runs there and on others.

Owns what the function of such a call is told: its rank, the others, how to exchange arrays with
them, and the commit. A function that changes what outlives the call, resident arrays above all,
commits first: until then the call may be given up and sent again, from then on it stands. Never
decides a gang's fate: that is one atomic word (``csrc/ipc/gang.h``).
"""

from __future__ import annotations

from functools import cache, cached_property

from shmgpu import core
from shmgpu.collectives.choice import Backends
from shmgpu.collectives.in_order import InOrder
from shmgpu.collectives.operations import Collectives
from shmgpu.collectives.programs import ProgramCollectives
from shmgpu.collectives.shared_memory import failure


class GangMember:
    """One gang, seen by one of its members.

    Attributes:
        helpers: numbers of the helpers, by rank.
        rank: this member's.
        size: how many there are.
        ticket: the gang's number: 32 bits, which wrap.
        has_committed: whether :meth:`commit` has returned.
    """

    def __init__(self, mask: int, ticket: int, number: int, backends: Backends) -> None:
        self.helpers = helpers_in(mask)
        self.rank = self.helpers.index(number)
        self.size = len(self.helpers)
        self.ticket = ticket
        self.has_committed = False
        self._backends = backends
        self._programs: ProgramCollectives | None = None

    @property
    def collectives(self) -> Collectives:
        """The backend that prepares collectives of these members."""
        return self._backends.of(self.helpers)

    @cached_property
    def exchange(self) -> InOrder:
        """Collectives one after another, numbered as they come."""
        return InOrder(self.collectives, self.rank, self.size)

    @property
    def programs(self) -> ProgramCollectives:
        """Collectives as programs of the engine ask for them."""
        if self._programs is None:  # a cached property takes a lock at each first look
            self._programs = self._backends.programs_of(self.helpers)
        return self._programs

    def commit(self) -> None:
        """All that may fail is done here; wait until it is everywhere. From then on it stands.

        There are no collectives after it. A call that returns without it commits by returning.

        Raises:
            GangAborted: a member failed or died: leave everything as it was.
        """
        if self.has_committed:
            return
        self.collectives.finish()
        status = core.gang_commit()
        if status:
            raise failure(status)
        self.has_committed = True

    def settle(self) -> None:
        """What was enqueued and not committed is done, before the call is answered."""
        if not self.has_committed:
            self.collectives.finish()

    def abort(self) -> None:
        """Give the call up: others hear of it when they next wait. Does nothing once it stands."""
        core.gang_abort()


@cache
def helpers_in(mask: int) -> tuple[int, ...]:
    """The numbers of the helpers that a mask names, rising."""
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
