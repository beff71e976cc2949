"""In debug mode: whether a function wrote to tensors that it was given to read.

NumPy arrays can be read-only, torch tensors cannot. But torch counts how often a tensor's elements
were written to, so the counts before and after a call tell. Owns the comparison and its sentence.
Never sees a write that bypasses torch's count (``x.numpy()[...] = 0``).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol


class NamedFunction(Protocol):
    """What the words need to know of a function."""

    name: str
    body: Any


class MutationCheck:
    """The tensors of one call, as they are before it.

    Args:
        leaves: what the function gets; arrays are left out, which guard themselves.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self._versions = [_version(leaf) for leaf in leaves]

    def refuse_writes(self, target: NamedFunction) -> None:
        """Raise ValueError, as NumPy does, if the function has written to one of them."""
        for index, (leaf, before) in enumerate(zip(self._leaves, self._versions, strict=True)):
            if _version(leaf) != before:
                raise ValueError(
                    f"{target.name} wrote to {self._which(target, index)}, which it may only read: "
                    "have it write to a copy (x = x.clone()), or decorate it with mutates=True"
                )

    def _which(self, target: NamedFunction, index: int) -> str:
        if len(self._leaves) == 1:
            return "its array in place"
        try:
            names = list(inspect.signature(target.body).parameters)[1:]
        except (TypeError, ValueError):
            names = []
        if len(names) == len(self._leaves):
            return f"its argument {names[index]!r} in place"
        return f"array {index + 1} of its {len(self._leaves)} in place"


def _version(leaf: Any) -> int:
    """How often a tensor was written to; 0 for what does not count that."""
    try:
        return int(leaf._version)
    except (AttributeError, RuntimeError):  # an array; a tensor made under inference_mode
        return 0
