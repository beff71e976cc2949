"""Where pickles of earlier releases find what they name: modules that have moved since.

Owns the table from a module's former path to where its public names live. Must never be named by
code: what is written today names today's modules.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# Former path: where its names live, and which of them a pickle may hold.
MOVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "shmgpu.arguments": ("shmgpu.child.arguments", ("Declared",)),
    "shmgpu.dtypes": ("shmgpu.codec.dtypes", ("DType",)),
    "shmgpu.entries": ("shmgpu.helper.decoded", ("Helper",)),
    "shmgpu.futures": ("shmgpu.child.futures", ("CallFuture",)),
    "shmgpu.launch": (
        "shmgpu.broker.launch",
        ("Session", "init", "is_running", "launch", "rank", "shutdown"),
    ),
    "shmgpu.stats": ("shmgpu.watch.stats", ("stats",)),
    "shmgpu.talk": (
        "shmgpu.messages",
        ("shm_get_child_id", "shm_get_helper_id", "shm_read_msg", "shm_send_msg"),
    ),
    "shmgpu.trace": ("shmgpu.watch.trace", ("read", "write")),
}


class Former(ModuleType):
    """Stands for a module that has moved; knows the public names alone."""

    def __getattr__(self, name: str) -> Any:
        place, names = MOVED[self.__name__]
        if name not in names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(place), name)


def answer() -> None:
    """Let the former paths be found by who asks for them by name, as unpickling does."""
    for path in MOVED:
        sys.modules.setdefault(path, Former(path))
