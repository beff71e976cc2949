"""Collectives of members: counted while they run, or explained before.

Owns the counters, and how they are asked. Never changes what is done. But it sends what waits when
counting begins and ends, so that it counts what was recorded between the two.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shmgpu import core
from shmgpu.distributed.explaining import Explanation
from shmgpu.distributed.lowered import Lowered
from shmgpu.parallel.placer import MeshPlacer
from shmgpu.tensors import current
from shmgpu.tensors.tensor import Tensor


class CommDebugMode:
    """A context that counts what members meet for, and the bytes that they take from each other.

    Several tensors that are reduced (or gathered) together are one meeting.

    Attributes:
        nbytes: that each member took from others, by rank; () before the first message.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._algorithms: Counter[str] = Counter()
        self.nbytes: tuple[int, ...] = ()

    def __enter__(self) -> CommDebugMode:
        current.recorder().send()
        _placer().watchers.append(self._sent)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            current.recorder().send()
        finally:
            _placer().watchers.remove(self._sent)

    def _sent(self, lowered: Lowered) -> None:
        kinds = [one.kind.removesuffix("_many") for one in lowered.collectives]
        self._counts.update(kinds)
        if "all_reduce" in kinds:
            self._algorithms[lowered.algorithm] += kinds.count("all_reduce")
        before = self.nbytes or (0,) * lowered.mesh.size
        if len(before) == lowered.mesh.size:
            self.nbytes = tuple(map(sum, zip(before, lowered.nbytes, strict=True)))

    def __repr__(self) -> str:
        told = ", ".join(f"{kind} {count}" for kind, count in self._counts.items())
        return f"<CommDebugMode: {told or 'nothing so far'}>"

    def get_comm_counts(self) -> dict[str, int]:
        """How often they met, by the kind of meeting: ``"all_reduce"``, ``"all_gather"``, ..."""
        return dict(self._counts)

    def get_algorithm_counts(self) -> dict[str, int]:
        """How often they met for an all_reduce, by the algorithm that was asked for."""
        return dict(self._algorithms)

    def get_total_counts(self) -> int:
        """How often they met."""
        return self._counts.total()


@contextlib.contextmanager
def all_reduce_algorithm(name: str) -> Iterator[None]:
    """What is recorded within does its all_reduces in that way, on helpers that are CPUs.

    Each gives the same bits, for reductions go in the order of ranks. What waits is sent when it
    begins and ends.

    Args:
        name: ``"naive"`` (all read all), ``"ring"``, ``"all_to_all"`` (each reduces its part, and
            all gather), or ``"auto"``: by size.

    Raises:
        ValueError: there is no such algorithm, or no mesh yet.
    """
    placer = _placer()
    before = set_algorithm(placer, name)
    try:
        yield
    finally:
        set_algorithm(placer, before)


def set_algorithm(placer: MeshPlacer, name: str) -> str:
    """Use it for what is recorded from now on; which it was before."""
    if name not in core.ALGORITHMS:
        raise ValueError(
            f"all_reduce_algorithm: there is no {name!r}: use one of "
            f"{', '.join(sorted(core.ALGORITHMS))}"
        )
    current.recorder().send()
    before, placer.algorithm = placer.algorithm, name
    return before


def explain(*tensors: Tensor) -> Explanation:
    """How the members of a mesh will compute these tensors: ``print`` it.

    It tells how each operation's inputs and output lie, what members meet for, how many bytes that
    moves, and what the next best way would have cost. Nothing is sent.

    Args:
        *tensors: recorded, and not yet computed, as all that nobody has looked at.

    Raises:
        ValueError: there is nothing to be computed, or not on a mesh.
    """
    return _placer().explain([one._node for one in tensors])


def _placer() -> MeshPlacer:
    placer: Any = current.recorder().placer
    if placer is None:
        raise ValueError("there is no mesh yet: init_device_mesh() makes one")
    found: MeshPlacer = placer
    return found
