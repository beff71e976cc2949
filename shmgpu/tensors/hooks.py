"""Hooks: functions that a program has called at some place, until it removes them.

Owns the handle that removes one. Never calls a hook: who keeps them does.
"""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count()


class RemovableHandle:
    """A hook that was registered; also a context that ends with the hook removed."""

    def __init__(self, hooks: dict[int, Any], number: int) -> None:
        self._hooks = hooks
        self._number = number

    def remove(self) -> None:
        """Do not call the hook any more."""
        self._hooks.pop(self._number, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def registered(hooks: dict[int, Any], hook: Any, prepend: bool = False) -> RemovableHandle:
    """Enter a hook behind those that are there, or before them."""
    number = next(_numbers)
    before = list(hooks.items()) if prepend else []
    if prepend:
        hooks.clear()
    hooks[number] = hook
    hooks.update(before)
    return RemovableHandle(hooks, number)
