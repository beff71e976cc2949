"""How a tensor lies along one axis of a mesh: cut, whole everywhere, or as a part of a reduction.

Owns these kinds, which are named as in ``torch.distributed.tensor``. Placements are interned, so
they are compared by identity, and they are never changed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from shmgpu.ops.collective import REDUCTIONS


class Placement:
    """One of :class:`Shard`, :class:`Replicate` and :class:`Partial`.

    Attributes:
        code: the same as a whole number: 0 for replicated, 1 + dim for a shard, less than 0 for
            the rest. A choice weighs thousands of them.
    """

    __slots__ = ("code",)

    code: int

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether the tensor is cut here, along ``dim`` if given."""
        return self.code > 0 if dim is None else self.code == 1 + dim

    def is_replicate(self) -> bool:
        """Whether each member has all of it."""
        return self.code == 0

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether members have what is yet to be reduced, by ``reduce_op`` if given."""
        op = PARTIALS.get(self.code)
        return op is not None and reduce_op in (None, op)

    def __copy__(self) -> Placement:
        return self

    def __deepcopy__(self, _: Any) -> Placement:
        return self


class Shard(Placement):
    """Cut along an axis of the tensor: each member has a piece, and pieces differ by at most one.

    Attributes:
        dim: the tensor's axis; below 0 it counts from the last.
    """

    __slots__ = ("dim",)

    dim: int
    _known: ClassVar[dict[int, Shard]] = {}

    def __new__(cls, dim: int) -> Shard:
        """The one object of that axis; TypeError where it is no whole number."""
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"Shard: dim={dim!r} must be a whole number")
        known = cls._known.get(dim)
        if known is None:
            known = cls._known[dim] = object.__new__(cls)
            known.dim = dim
            known.code = 1 + dim if dim >= 0 else FROM_THE_LAST
        return known

    def __reduce__(self) -> Any:
        return Shard, (self.dim,)

    def __repr__(self) -> str:
        return f"Shard({self.dim})"


class Replicate(Placement):
    """Whole, with each member."""

    __slots__ = ()

    _one: Replicate | None = None

    def __new__(cls) -> Replicate:
        """The one object."""
        if cls._one is None:
            cls._one = object.__new__(cls)
            cls._one.code = 0
        return cls._one

    def __reduce__(self) -> Any:
        return Replicate, ()

    def __repr__(self) -> str:
        return "Replicate()"


class Partial(Placement):
    """Each member has a tensor of the whole shape; the value is their reduction.

    Attributes:
        reduce_op: ``"sum"``, ``"avg"``, ``"max"``, ``"min"`` or ``"prod"``.
    """

    __slots__ = ("reduce_op",)

    reduce_op: str
    _known: ClassVar[dict[str, Partial]] = {}

    def __new__(cls, reduce_op: str = "sum") -> Partial:
        """The one object of that reduction; ValueError where there is no such."""
        known = cls._known.get(reduce_op)
        if known is None:
            if reduce_op not in REDUCTIONS:
                raise ValueError(
                    f"Partial: reduce_op={reduce_op!r} must be one of {', '.join(REDUCTIONS)}"
                )
            known = cls._known[reduce_op] = object.__new__(cls)
            known.reduce_op = reduce_op
            known.code = -1 - REDUCTIONS.index(reduce_op)
        return known

    def __reduce__(self) -> Any:
        return Partial, (self.reduce_op,)

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op!r})"


class Local(Placement):
    """Each member has a tensor of its own, of the tensor's shape: inside of a ``local_map``."""

    __slots__ = ()

    _one: Local | None = None

    def __new__(cls) -> Local:
        """The one object."""
        if cls._one is None:
            cls._one = object.__new__(cls)
            cls._one.code = LOCAL
        return cls._one

    def __reduce__(self) -> Any:
        return Local, ()

    def __repr__(self) -> str:
        return "Local()"


REPLICATE = 0
LOCAL = -100
FROM_THE_LAST = 1 << 30  # a shard that is of no axis until it is known how many there are
PARTIALS = {-1 - place: op for place, op in enumerate(REDUCTIONS)}
PARTIAL_CODES = {op: code for code, op in PARTIALS.items()}


def of_code(code: int) -> Placement:
    """The placement of that number."""
    if code > 0:
        return Shard(code - 1)
    if code == REPLICATE:
        return Replicate()
    return Local() if code == LOCAL else Partial(PARTIALS[code])
