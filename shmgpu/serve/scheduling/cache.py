"""In workers: results of models whose answer depends on their input alone, by the input's hash.

Owns one worker's results in private memory of a bounded size; the least recently used are dropped
first. Workers do not share them: that would need a lock and one more copy, and without it a request
that one worker knows costs each of the others one execution at most.

A result's key is the model's number, which a reload changes, and the hash of the inputs' shapes and
bytes and of those parameters of the request that the model sees; it never holds a client's memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

OVERHEAD_BYTES = 512  # of an entry, besides its arrays

Digest = bytes


def digest(args: Sequence[Any]) -> Digest:
    """Of what a call carries: the model's number, maybe with parameters, then its inputs in order.

    These are arrays, (shape, bytes) of BYTES, or None.
    """
    first, *inputs = args
    made = hashlib.blake2b(digest_size=32)
    if not isinstance(first, int):
        made.update(repr(first[1]).encode())
    for one in inputs:
        shape, data = one if isinstance(one, tuple) else (getattr(one, "shape", None), one)
        made.update(repr(shape).encode())
        if data is not None:
            array = np.ascontiguousarray(data).reshape(-1)
            made.update(array.view(np.uint8).data if array.size else b"")
    return made.digest()


class Cache:
    """Results of one worker.

    Args:
        most_bytes: that all of them may take.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._kept: OrderedDict[tuple[int, Digest], tuple[Any, int]] = OrderedDict()

    def get(self, number: int, key: Digest) -> Any:
        """A model's result, as its helper gave it; None: it is not here."""
        found = self._kept.get((number, key))
        if found is None:
            return None
        self._kept.move_to_end((number, key))
        return found[0]

    def put(self, number: int, key: Digest, result: Any) -> None:
        """Keep a copy of a result, unless it alone is too large."""
        nbytes = _nbytes(result) + OVERHEAD_BYTES
        if nbytes > self.most_bytes or (number, key) in self._kept:
            return
        while self.used_bytes + nbytes > self.most_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.used_bytes -= freed
        self._kept[number, key] = _copy(result), nbytes
        self.used_bytes += nbytes

    def __len__(self) -> int:
        return len(self._kept)


def _nbytes(result: Any) -> int:
    if isinstance(result, dict):
        return sum(map(_nbytes, result.values()))
    if isinstance(result, (tuple, list)):
        return sum(map(_nbytes, result))
    return int(getattr(result, "nbytes", 8))


def _copy(result: Any) -> Any:
    """The same in memory of its own; a result lies in the arena, which is wanted back."""
    if isinstance(result, dict):
        return {key: _copy(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return tuple(map(_copy, result))
    return result.copy() if isinstance(result, np.ndarray) else result
