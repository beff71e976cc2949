"""What a collective is, whoever carries it out: its kind, group, element counts.

Owns the description, the interface of backends, and the calls that make descriptions as they go. A
backend *prepares* a description once, for instance when a program is planned, and the prepared
collective is run, or started and waited for, again and again. Never moves a byte itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shmgpu import core
from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.errors import BadParams

REDUCING = ("all_reduce", "reduce_scatter")
FLOAT32 = dtypes.by_name("float32")
_AS_IT_IS = {"bool": "uint8"}  # whose elements compare as those of another type


@dataclass(frozen=True)
class CollectiveSpec:
    """One collective of a gang, as one member takes part in it.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
            ``scatter``, ``gather``, ``send``, ``recv`` or ``barrier``.
        dtype: of the elements.
        counts: elements. Of an all_reduce, a broadcast, a send or a recv one number; of an
            all_gather or gather what each rank of the group gives; of a reduce_scatter or scatter
            what each gets; of an all_to_all what this member sends to each.
        received: of an all_to_all: what this member gets of each.
        reduction: ``sum``, ``mean`` (floats only), ``max``, ``min`` or ``prod``.
        algorithm: of an all_reduce: ``auto``, ``naive``, ``ring`` or ``all_to_all``. The result is
            the same bit for bit.
        root: rank in the group of whoever gives or gets all; of a send and recv, who sends.
        group: ranks in the gang of those who take part, in the order of their ranks in the group;
            empty: all members. A send's are its two ends.
    """

    kind: str
    dtype: DType = FLOAT32
    counts: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    reduction: str = "sum"
    algorithm: str = "auto"
    root: int = 0
    group: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in core.COLLECTIVES:
            raise BadParams(
                f"{self.kind!r} is no collective: use one of {sorted(core.COLLECTIVES)}"
            )
        if self.reduction not in core.REDUCTIONS:
            raise BadParams(
                f"{self.reduction!r} is no reduction: use one of {sorted(core.REDUCTIONS)}"
            )
        if self.algorithm not in core.ALGORITHMS:
            raise BadParams(
                f"{self.algorithm!r} is no algorithm: use one of {sorted(core.ALGORITHMS)}"
            )
        if any(count < 0 for count in (*self.counts, *self.received)):
            raise BadParams(f"a collective moves 0 elements or more, not {min(self.counts)}")
        if self.kind in REDUCING:
            self._check_reduction()

    def _check_reduction(self) -> None:
        name = _AS_IT_IS.get(self.dtype.name, self.dtype.name)
        is_compared = self.reduction in ("max", "min")
        if name not in core.COLLECTIVE_DTYPES or (self.dtype.name == "bool" and not is_compared):
            raise BadParams(f"elements of {self.dtype.name} have no {self.reduction}: convert them")
        if self.reduction == "mean" and "float" not in name:
            raise BadParams(
                f"a mean of {self.dtype.name} would be rounded: convert to floats, or use sum"
            )

    @property
    def element(self) -> tuple[str, int]:
        """What its elements are to whoever moves them: a name, and how many of those make one."""
        name = _AS_IT_IS.get(self.dtype.name, self.dtype.name)
        return (name, 1) if name in core.COLLECTIVE_DTYPES else ("bytes", self.dtype.itemsize)

    def elements(self, rank: int, size: int) -> tuple[int, int]:
        """How many elements a member of that rank in the group of that size gives, and gets."""
        counts, is_root = self.counts, rank == self.root
        if self.kind == "barrier":
            return 0, 0
        if self.kind in ("all_reduce", "broadcast", "send", "recv"):
            one = counts[0]
            if self.kind == "all_reduce":
                return one, one
            return (one, 0) if is_root else (0, one)
        if self.kind == "all_to_all":
            return sum(counts), sum(self.received)
        mine, all_of_them = counts[rank], sum(counts[:size])
        if self.kind == "all_gather":
            return mine, all_of_them
        if self.kind == "reduce_scatter":
            return all_of_them, mine
        if self.kind == "gather":
            return mine, all_of_them if is_root else 0
        return all_of_them if is_root else 0, mine  # scatter


class Prepared(Protocol):
    """A collective that a backend has made ready; its arrays are contiguous and of its dtype.

    Each time that it is run it has a number, from 1 to 65535. Numbers rise in the course of a call,
    and all who take part call it the same.
    """

    collective: CollectiveSpec

    def run(self, number: int, source: Any, target: Any) -> None:
        """Take part in it.

        Args:
            number: of this time.
            source: an array of what this member gives, flat or not; None where it gives nothing.
            target: an array for what it gets; may be the source in an all_reduce.

        Raises:
            GangAborted: the call is given up, and the target means nothing.
            BadParams: members disagree about the collective; the sentence says in what.
        """

    def start(self, number: int, source: Any, target: Any) -> Any:
        """The first half of it: what can be given at once. Arrays stay as they are until waited."""

    def wait(self, number: int, started: Any) -> None:
        """The rest, under a number of its own; others may lie in between."""


class Collectives(Protocol):
    """A backend: how members of a gang exchange arrays."""

    name: str

    def prepare(self, collective: CollectiveSpec, rank: int, size: int) -> Prepared:
        """Make one ready, for the member of that rank in a gang of that size."""

    def finish(self) -> None:
        """Wait until what was enqueued has been done, or raise GangAborted."""


def group_of(collective: CollectiveSpec, rank: int, size: int) -> tuple[int, int]:
    """(rank in the group, members of it) of a member of the gang.

    Raises:
        BadParams: it takes no part.
    """
    if not collective.group:
        return rank, size
    if rank not in collective.group:
        raise BadParams(f"rank {rank} takes no part in this {collective.kind}")
    return collective.group.index(rank), len(collective.group)


def check_array(collective: CollectiveSpec, array: Any, elements: int, what: str) -> None:
    """Raise BadParams unless an array is what a collective needs there."""
    if array is None:
        if elements:
            raise BadParams(f"a {collective.kind} needs an array for what it {what}")
        return
    found = array.size if type(array) is np.ndarray else array.numel()
    if found != elements:
        raise BadParams(
            f"this {collective.kind} {what} {elements} elements here, and its array has {found}"
        )


def counts_of(parts: Sequence[Any]) -> tuple[int, ...]:
    """Elements of each of several arrays."""
    return tuple(int(part.numel() if hasattr(part, "numel") else part.size) for part in parts)
