"""Collectives through torch.distributed: NCCL, where each member has a GPU of its own.

A communicator belongs to a group of helpers in one life of each: it is made at first use, through a
memory file that only this broker's helpers have, and dropped when a member was replaced.
Work is enqueued on the device. Before the call may commit, :meth:`ProcessGroups.finish` waits for
all of it, and gives up when the call is given up, because a member died: NCCL itself would wait.
Owns the communicators. Never makes torch.distributed's default group, which is the user's.
"""

from __future__ import annotations

import importlib
import time
from datetime import timedelta
from typing import Any

from shmgpu import core
from shmgpu.collectives.operations import REDUCING, CollectiveSpec, check_array, group_of
from shmgpu.collectives.shared_memory import failure

MADE_WITHIN = timedelta(seconds=20)  # a communicator: a member that dies meanwhile costs as long
# NCCL's own limit for one operation. It is long, because other members may compute for as long as
# they like; a member that dies is noticed here.
NEVER = timedelta(days=30)
LOOK_S = 2e-4  # between two looks whether work is done

_OPS = {"sum": "SUM", "mean": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}


class ProcessGroups:
    """The backend, for a gang of these helpers.

    Args:
        meeting_fd: the file through which members find each other.
        helpers: their numbers, by rank.
        rank: this member's.
    """

    name = "nccl"

    def __init__(self, meeting_fd: int, helpers: tuple[int, ...], rank: int) -> None:
        self.helpers = helpers
        self.rank = rank
        self._path = f"/proc/self/fd/{meeting_fd}"
        self._store: Any = None
        self._groups: dict[tuple[int, ...], Any] = {}
        self._epoch = -1
        self._works: list[Any] = []

    def prepare(self, collective: CollectiveSpec, rank: int, size: int) -> PreparedInGroup:
        """Make one ready; arrays are torch's, on each member's own device."""
        return PreparedInGroup(self, collective, rank, size)

    def group(self, ranks: tuple[int, ...]) -> Any:
        """The communicator of these members, of the processes that they are now."""
        epoch = core.gang_epoch()
        if epoch != self._epoch:
            self._drop(abort=False)
            self._epoch = epoch
        found = self._groups.get(ranks)
        if found is None:
            found = self._groups[ranks] = self._make(ranks)
        return found

    def _make(self, ranks: tuple[int, ...]) -> Any:
        distributed: Any = importlib.import_module("torch.distributed")
        if self._store is None:
            self._store = distributed.FileStore(self._path, -1)
            self._store.set_timeout(MADE_WITHIN)
        gang, group = "-".join(map(str, self.helpers)), "-".join(map(str, ranks))
        store = distributed.PrefixStore(f"{gang}/{group}/{self._epoch}", self._store)
        own = ranks.index(self.rank)
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = NEVER
        return distributed.ProcessGroupNCCL(store, own, len(ranks), options)

    def enqueue(self, work: Any) -> Any:
        """Note work that has to be done before the call commits."""
        self._works.append(work)
        return work

    def wait_for(self, work: Any) -> None:
        """Until it is done, unless the call is given up: then GangAborted."""
        while not work.is_completed():
            if core.gang_state() == core.GANG_ABORTED:
                self._drop(abort=True)
                raise failure(core.EABORTED)
            time.sleep(LOOK_S)
        work.wait()

    def finish(self) -> None:
        """Until everything that was enqueued is done."""
        works, self._works = self._works, []
        for work in works:
            self.wait_for(work)

    def _drop(self, abort: bool) -> None:
        """Let go of all communicators; aborted ones wait for nobody."""
        groups, self._groups, self._works = self._groups, {}, []
        for group in groups.values():
            if abort:
                group.abort()


class PreparedInGroup:
    """One collective, ready to be run."""

    __slots__ = ("_gets", "_gives", "_own", "_owner", "_ranks", "collective")

    def __init__(
        self, owner: ProcessGroups, collective: CollectiveSpec, rank: int, size: int
    ) -> None:
        self.collective = collective
        self._owner = owner
        self._own, members = group_of(collective, rank, size)
        self._ranks = collective.group or tuple(range(size))
        self._gives, self._gets = collective.elements(self._own, members)

    def run(self, number: int, source: Any, target: Any) -> None:
        """Take part in it; see :class:`Prepared`. On a device it is enqueued."""
        self.wait(number, self.start(number, source, target))

    def start(self, number: int, source: Any, target: Any) -> Any:
        """Enqueue it."""
        collective = self.collective
        check_array(collective, source, self._gives, "gives")
        if collective.kind != "broadcast" or target is not None:
            gets = self._gets or (self._gives if collective.kind == "broadcast" else 0)
            check_array(collective, target, gets, "gets")
        group = self._owner.group(self._ranks)
        works = getattr(self, "_" + collective.kind)(group, source, target)
        return [self._owner.enqueue(work) for work in works], target

    def wait(self, number: int, started: Any) -> None:
        """Have what is enqueued from here on come after it."""
        works, target = started
        for work in works:
            work.wait()
        if self.collective.reduction == "mean" and self.collective.kind in REDUCING:
            target.div_(len(self._ranks))

    # ---- kinds ---------------------------------------------------------------------------

    def _op(self) -> Any:
        from torch import distributed

        return getattr(distributed.ReduceOp, _OPS[self.collective.reduction])

    def _parts(self, flat: Any, counts: tuple[int, ...]) -> list[Any]:
        return list(flat.reshape(-1).split(list(counts)))

    def _barrier(self, group: Any, source: Any, target: Any) -> list[Any]:
        return [group.barrier()]

    def _all_reduce(self, group: Any, source: Any, target: Any) -> list[Any]:
        from torch import distributed

        if target is not source:
            target.copy_(source.view(target.shape))
        options = distributed.AllreduceOptions()
        options.reduceOp = self._op()
        return [group.allreduce([target], options)]

    def _broadcast(self, group: Any, source: Any, target: Any) -> list[Any]:
        is_root = self._own == self.collective.root
        if is_root and target is not None and target is not source:
            target.copy_(source.view(target.shape))
        return [self._spread(group, source if is_root else target, self.collective.root)]

    def _spread(self, group: Any, tensor: Any, root: int) -> Any:
        from torch import distributed

        options = distributed.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        return group.broadcast([tensor], options)

    def _all_gather(self, group: Any, source: Any, target: Any) -> list[Any]:
        """Where pieces differ in length, which no backend gathers, each rank gives its own."""
        parts = self._parts(target, self.collective.counts)
        parts[self._own].copy_(source.reshape(-1))
        if len(set(self.collective.counts)) == 1:
            return [group.allgather([parts], [source.reshape(-1).contiguous()])]
        return [self._spread(group, part, rank) for rank, part in enumerate(parts) if part.numel()]

    def _reduce_scatter(self, group: Any, source: Any, target: Any) -> list[Any]:
        from torch import distributed

        works = []
        for rank, part in enumerate(self._parts(source, self.collective.counts)):
            if not part.numel():
                continue
            options = distributed.ReduceOptions()
            options.reduceOp = self._op()
            options.rootRank = rank
            options.rootTensor = 0
            mine = target if rank == self._own else part.clone()  # reduced in place everywhere
            if rank == self._own:
                mine.copy_(part.view(target.shape))
            works.append(group.reduce([mine], options))
        return works

    def _all_to_all(self, group: Any, source: Any, target: Any) -> list[Any]:
        collective = self.collective
        gets, gives = list(collective.received), list(collective.counts)
        return [group.alltoall_base(target.reshape(-1), source.reshape(-1), gets, gives)]

    def _scatter(self, group: Any, source: Any, target: Any) -> list[Any]:
        collective = self.collective
        if self._own != collective.root:
            return [group.recv([target], collective.root, 0)] if target.numel() else []
        parts = self._parts(source, collective.counts)
        target.copy_(parts[self._own].view(target.shape))
        return [
            group.send([part.contiguous()], rank, 0)
            for rank, part in enumerate(parts)
            if rank != self._own and part.numel()
        ]

    def _gather(self, group: Any, source: Any, target: Any) -> list[Any]:
        collective = self.collective
        if self._own != collective.root:
            return [group.send([source], collective.root, 0)] if source.numel() else []
        parts = self._parts(target, collective.counts)
        parts[self._own].copy_(source.reshape(-1))
        return [
            group.recv([part], rank, 0)
            for rank, part in enumerate(parts)
            if rank != self._own and part.numel()
        ]

    def _send(self, group: Any, source: Any, target: Any) -> list[Any]:
        return [group.send([source], 1 - self._own, 0)] if source.numel() else []

    def _recv(self, group: Any, source: Any, target: Any) -> list[Any]:
        return [group.recv([target], 1 - self._own, 0)] if target.numel() else []
