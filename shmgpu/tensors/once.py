"""What several threads would make, or change, at the same time: one of them does, and all have it.

Owns the lock for that. It is held for a look and an assignment or two, and never while anything is
recorded, sent or computed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

lock = threading.RLock()  # a finalizer may want it, in the thread that holds it


def made_once(owner: object, name: str, make: Callable[[], T]) -> T:
    """An attribute that its first user makes."""
    found: T | None = getattr(owner, name, None)
    if found is not None:
        return found
    with lock:
        found = getattr(owner, name, None)
        if found is None:
            found = make()
            setattr(owner, name, found)
        return found


def _after_fork_in_child() -> None:
    global lock
    lock = threading.RLock()  # whoever held it was not forked


os.register_at_fork(after_in_child=_after_fork_in_child)
