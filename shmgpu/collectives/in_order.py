"""Collectives one after another, numbered as they come: for functions that members of a gang run.

Owns the numbers. Whoever plans ahead, as the engine does, prepares descriptions instead
(:mod:`shmgpu.collectives.operations`). Never looks what other members do: all must call the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.collectives.operations import Collectives, CollectiveSpec, counts_of, group_of


class InOrder:
    """The collectives of one member of a gang; arrays are NumPy's, or tensors of torch.

    Args:
        backend: who carries them out.
        rank, size: of this member, and of the gang.
    """

    def __init__(self, backend: Collectives, rank: int, size: int) -> None:
        self.backend = backend
        self.rank = rank
        self.size = size
        self._number = 0

    def _run(self, kind: str, source: Any, target: Any, dtype: DType, **more: Any) -> None:
        self._number += 1
        described = CollectiveSpec(kind, dtype, **more)
        self.backend.prepare(described, self.rank, self.size).run(self._number, source, target)

    def all_reduce(
        self,
        array: Any,
        reduction: str = "sum",
        *,
        algorithm: str = "auto",
        group: Sequence[int] = (),
    ) -> Any:
        """What all members have, reduced element by element: an array like this one."""
        target = _like(array, array.shape)
        self._run(
            *("all_reduce", array, target, _dtype(array)),
            counts=counts_of([array]),
            reduction=reduction,
            algorithm=algorithm,
            group=tuple(group),
        )
        return target

    def all_gather(
        self, array: Any, counts: Sequence[int] | None = None, *, group: Sequence[int] = ()
    ) -> Any:
        """What all members have, flat, one after another; ``counts``: elements of each."""
        members = len(group) or self.size
        each = tuple(counts) if counts is not None else counts_of([array]) * members
        target = _like(array, (sum(each),))
        self._run("all_gather", array, target, _dtype(array), counts=each, group=tuple(group))
        return target

    def reduce_scatter(
        self,
        array: Any,
        counts: Sequence[int],
        reduction: str = "sum",
        *,
        group: Sequence[int] = (),
    ) -> Any:
        """The piece of this member, flat, of what all have, reduced; ``counts``: of each piece."""
        own, _ = self._place(group)
        target = _like(array, (counts[own],))
        self._run(
            *("reduce_scatter", array, target, _dtype(array)),
            counts=tuple(counts),
            reduction=reduction,
            group=tuple(group),
        )
        return target

    def all_to_all(
        self,
        array: Any,
        counts: Sequence[int],
        received: Sequence[int],
        *,
        group: Sequence[int] = (),
    ) -> Any:
        """What all others have for this member, flat; ``counts`` go to each, ``received`` come."""
        target = _like(array, (sum(received),))
        self._run(
            *("all_to_all", array, target, _dtype(array)),
            counts=tuple(counts),
            received=tuple(received),
            group=tuple(group),
        )
        return target

    def broadcast(self, array: Any, root: int = 0, *, group: Sequence[int] = ()) -> Any:
        """What the root has; ``array`` says its shape and type everywhere."""
        own, _ = self._place(group)
        target = None if own == root else _like(array, array.shape)
        self._run(
            *("broadcast", array if own == root else None, target, _dtype(array)),
            counts=counts_of([array]),
            root=root,
            group=tuple(group),
        )
        return array if target is None else target

    def barrier(self, *, group: Sequence[int] = ()) -> None:
        """Until all are here."""
        self._run("barrier", None, None, dtypes.by_name("uint8"), group=tuple(group))

    def _place(self, group: Sequence[int]) -> tuple[int, int]:
        return group_of(CollectiveSpec("barrier", group=tuple(group)), self.rank, self.size)


def _dtype(array: Any) -> DType:
    return (
        dtypes.of_numpy(array.dtype)
        if isinstance(array, np.ndarray)
        else dtypes.of_torch(array.dtype)
    )


def _like(array: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    return array.new_empty(shape)
