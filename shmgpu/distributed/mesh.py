"""A mesh: members along one, two or three axes, which may have names.

Owns which member is at which position, and which members meet along an axis. Ranks count the
members in the mesh's order, last axis fastest; ``helpers`` says which helper has which rank. Never
knows a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

MAX_AXES = 3


class Mesh:
    """Interned: equal meshes are one object.

    Attributes:
        helpers: numbers of the helpers, by rank.
        shape: lengths of the axes.
        names: of the axes; () where they have none.
        size: how many members there are.
        places: by rank, of each member among all by the helpers' numbers: its rank in a gang.
    """

    __slots__ = ("_groups", "coordinates", "helpers", "names", "places", "shape", "size")

    helpers: tuple[int, ...]
    shape: tuple[int, ...]
    names: tuple[str, ...]
    size: int
    places: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    _groups: dict[tuple[int, ...], tuple[tuple[int, ...], ...]]
    _known: ClassVar[dict[Any, Mesh]] = {}

    def __new__(
        cls, helpers: Sequence[int], shape: Sequence[int], names: Sequence[str] = ()
    ) -> Mesh:
        """The mesh of these helpers.

        Raises:
            ValueError: lengths do not make the number of helpers, a helper stands twice, or names
                are not as many as axes, or not different.
        """
        key = (tuple(helpers), tuple(shape), tuple(names))
        known = cls._known.get(key)
        if known is None:
            _check(*key)
            known = cls._known[key] = object.__new__(cls)
            known.helpers, known.shape, known.names = key
            known.size = len(known.helpers)
            in_order = sorted(known.helpers)
            known.places = tuple([in_order.index(helper) for helper in known.helpers])
            known.coordinates = tuple(product(*map(range, known.shape)))
            known._groups = {}
        return known

    def __reduce__(self) -> Any:
        return Mesh, (self.helpers, self.shape, self.names)

    def __repr__(self) -> str:
        names = f", {self.names}" if self.names else ""
        return f"Mesh({self.helpers}, {self.shape}{names})"

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def axis(self, name: str | int) -> int:
        """The number of an axis, by its name or number.

        Raises:
            KeyError: there is none of that name.
        """
        if isinstance(name, int):
            if not -self.ndim <= name < self.ndim:
                raise KeyError(f"the mesh has {self.ndim} axes, and none of the number {name}")
            return name % self.ndim
        if name not in self.names:
            known = ", ".join(map(repr, self.names)) or "no names"
            raise KeyError(f"the mesh has no axis {name!r}: it has {known}")
        return self.names.index(name)

    def groups(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """For each rank the members that differ from it in these axes alone, in order."""
        found = self._groups.get(axes)
        if found is None:
            by_rest: dict[tuple[int, ...], list[int]] = {}
            rests = []
            for rank, place in enumerate(self.coordinates):
                rest = tuple([n for axis, n in enumerate(place) if axis not in axes])
                rests.append(rest)
                by_rest.setdefault(rest, []).append(rank)
            whole = {rest: tuple(ranks) for rest, ranks in by_rest.items()}
            found = self._groups[axes] = tuple([whole[rest] for rest in rests])
        return found

    def count(self, axes: Sequence[int]) -> int:
        """How many members meet along these axes."""
        return math.prod(self.shape[axis] for axis in axes)

    def is_first(self, rank: int, axes: Sequence[int]) -> bool:
        """Whether the rank is the first one along each of these axes."""
        return not any(self.coordinates[rank][axis] for axis in axes)


def _check(helpers: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    if not 1 <= len(shape) <= MAX_AXES or any(n < 1 for n in shape):
        raise ValueError(f"a mesh has one to {MAX_AXES} axes of one or more: not {shape}")
    if math.prod(shape) != len(helpers):
        raise ValueError(
            f"a mesh of {shape} has {math.prod(shape)} members, and {len(helpers)} helpers are "
            "given"
        )
    if len(set(helpers)) != len(helpers):
        raise ValueError(f"a helper stands in a mesh once: {helpers}")
    if names and (len(names) != len(shape) or len(set(names)) != len(names)):
        raise ValueError(f"the names {names} must be different, one for each axis of {shape}")
