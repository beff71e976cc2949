"""Collectives of members: counted while they run, or explained before.

Owns the counters, and how they are asked. Never changes what is done. But it sends what waits when
counting begins and ends, so that it counts what was recorded between the two.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

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
        self._counts.update(one.kind.removesuffix("_many") for one in lowered.collectives)
        before = self.nbytes or (0,) * lowered.mesh.size
        if len(before) == lowered.mesh.size:
            self.nbytes = tuple(map(sum, zip(before, lowered.nbytes, strict=True)))

    def get_comm_counts(self) -> dict[str, int]:
        """How often they met, by the kind of meeting: ``"all_reduce"``, ``"all_gather"``, ..."""
        return dict(self._counts)

    def get_total_counts(self) -> int:
        """How often they met."""
        return self._counts.total()


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
