"""Small output buffers that the calls of a plan use by turns, with what becomes of them ready made.

To take a buffer of the arena, to make arrays over it and to give it back takes longer than the
rest of a small call. So a :class:`Room` stays with its plan once a result has come in it: arrays
over it, of which callers get views, or nothing, where results are plain values that are read out of
it. Owns the question whether somebody still uses one. Never sends.

NumPy makes every view of a view hold the array that was first viewed, and a tensor over a view
holds that: so the reference counts of a room's own arrays tell whether any result in it is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from shmgpu.child.promise import Promise

MAX_ROOMS = 8  # of one plan: results that are kept, and threads that call at once
TRIES = 3  # rooms that are looked at: the last result lives, and perhaps one that is kept


def _references(arrays: Sequence[Any]) -> int:
    """How many the first has, as :meth:`Room.is_free` counts them."""
    for array in arrays:
        return getrefcount(array)
    return 0


def arrays_over(promise: Promise, buffer: Any) -> list[np.ndarray[Any, Any]]:
    """Those that a result which was promised is made of, where a helper writes them."""
    hint = promise.hint
    if hint is None:
        return []
    return [
        np.ndarray(spec.shape, spec.dtype.numpy, buffer, offset)
        for spec, offset in zip(hint.specs, hint.offsets, strict=True)
    ]


# Of an array that nobody else refers to: interpreters count those on their own stack differently.
_UNHELD = _references([object()])


class Room:
    """One output buffer.

    Attributes:
        promise: what its blocks say of the result.
        buffer, address: of it.
        kept_bytes: its size.
        is_new: whether it was never kept.
        arrays: over it, one for each that was promised.
    """

    __slots__ = ("address", "arrays", "buffer", "is_new", "kept_bytes", "promise")

    def __init__(self, promise: Promise, buffer: Any, address: int, size: int) -> None:
        self.promise = promise
        self.buffer = buffer
        self.address = address
        self.kept_bytes = size
        self.is_new = True
        self.arrays = arrays_over(promise, buffer)

    def is_free(self) -> bool:
        """Whether no result in it is alive."""
        for array in self.arrays:
            if getrefcount(array) != _UNHELD:
                return False
        return True

    def result(self) -> Any:
        """What the caller gets of the arrays that a helper has written here."""
        promise = self.promise
        make = promise.make
        if promise.is_one_array:
            view = self.arrays[0].view()
            return view if make is None else make(view)
        views: list[Any] = [array.view() for array in self.arrays]
        if make is not None:
            views = [make(view) for view in views]
        assert promise.hint is not None
        return promise.hint.tree.build(views, ())


class Rooms(deque[Room]):
    """Those of one plan; the longest unused is next."""

    def take(self, promise: Promise, size_bytes: int) -> Room | None:
        """One that nobody uses, with so many bytes; None where there is none at hand."""
        for _ in range(min(len(self), TRIES)):
            try:
                room = self.popleft()
            except IndexError:  # another thread took it
                return None
            if room.promise is not promise or room.kept_bytes < size_bytes:
                continue  # results have changed: it serves no more
            if room.is_free():
                return room
            self.append(room)
        return None

    def keep(self, room: Room) -> bool:
        """It serves again; False where it was one of those already, or there are enough."""
        if len(self) >= MAX_ROOMS:
            return False
        self.append(room)
        is_new, room.is_new = room.is_new, False
        return is_new
