"""Collectives as programs ask for them (:class:`shmgpu.ops.gang.Gang`).

Owns what is prepared for them, which lasts from one call to the next, because the same programs
come again and again. Never looks into a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu.codec.dtypes import of_any
from shmgpu.collectives.operations import Collectives, CollectiveSpec, Prepared

MAX_PREPARED = 4096
_REDUCTIONS = {"avg": "mean"}

Finish = Callable[[], None]


class ProgramCollectives:
    """The members that run one program's parts, as one of them sees them.

    Programs number their collectives from 0. The end of one that was started has a number as well,
    behind the last collective's, so that of whatever follows is higher by one.

    Args:
        backend: who carries them out.
        rank, size: of this member, and of the gang.
    """

    def __init__(self, backend: Collectives, rank: int, size: int) -> None:
        self.rank = rank
        self._size = size
        self._backend = backend
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._last = self._ends = 0

    def begin(self) -> None:
        """A call of the gang begins."""
        self._last = self._ends = 0

    def all_reduce(
        self,
        number: int,
        members: tuple[int, ...],
        op: str,
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: the reduction of everybody's arrays, in the order of ranks."""
        counts = tuple(out.shape)  # of its one axis
        return self._run(number, ("all_reduce", members, counts, (), op), arrays, out, wait)

    def all_gather(
        self,
        number: int,
        members: tuple[int, ...],
        counts: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: everybody's arrays in the order of members, so many elements of each."""
        return self._run(number, ("all_gather", members, counts, (), "sum"), arrays, out, wait)

    def reduce_scatter(
        self,
        number: int,
        members: tuple[int, ...],
        op: str,
        counts: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: the member's own part of the reduction; each member has so many elements."""
        return self._run(number, ("reduce_scatter", members, counts, (), op), arrays, out, wait)

    def all_to_all(
        self,
        number: int,
        members: tuple[int, ...],
        sent: tuple[int, ...],
        received: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``arrays``: elements for each member in order; ``out``: what each has for this one."""
        return self._run(number, ("all_to_all", members, sent, received, "sum"), arrays, out, wait)

    def _run(
        self, number: int, what: tuple[Any, ...], arrays: Sequence[Any], out: Any, wait: bool
    ) -> Finish | None:
        prepared = self._prepared.get((*what, out.dtype)) or self._prepare(what, out)
        source = arrays[0] if len(arrays) == 1 else _joined(arrays)
        self._last = number
        number += self._ends + 1
        if wait:
            prepared.run(number, source, out)
            return None
        started = prepared.start(number, source, out)

        def finish() -> None:
            self._ends += 1
            prepared.wait(self._last + self._ends + 1, started)

        return finish

    def _prepare(self, what: tuple[Any, ...], out: Any) -> Prepared:
        kind, members, counts, received, op = what
        op, _, algorithm = op.partition("/")
        reduction = _REDUCTIONS.get(op, op)
        spec = CollectiveSpec(
            kind,
            of_any(out.dtype),
            counts,
            received,
            reduction,
            algorithm=algorithm or "auto",
            group=members,
        )
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        made = self._backend.prepare(spec, self.rank, self._size)
        self._prepared[(*what, out.dtype)] = made
        return made


def _joined(arrays: Sequence[Any]) -> Any:
    if type(arrays[0]) is np.ndarray:
        return np.concatenate(arrays)
    import torch

    return torch.cat(list(arrays))
