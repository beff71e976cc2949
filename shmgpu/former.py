"""Where pickles of earlier releases find what they name: modules that have moved since.

Owns the table from a module's former path to where its public names live. Must never be named by
code: what is written today names today's modules.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# Former path: the names that a pickle may hold of it, by where they live.
MOVED: dict[str, dict[str, tuple[str, ...]]] = {
    "shmgpu.arguments": {"shmgpu.child.arguments": ("Declared",)},
    "shmgpu.dtypes": {"shmgpu.codec.dtypes": ("DType",)},
    "shmgpu.entries": {"shmgpu.helper.decoded": ("Helper",)},
    "shmgpu.futures": {"shmgpu.child.futures": ("CallFuture",)},
    "shmgpu.launch": {
        "shmgpu.broker.launch": ("Session", "init", "is_running", "launch", "rank", "shutdown"),
    },
    "shmgpu.stats": {"shmgpu.watch.stats": ("stats",)},
    "shmgpu.talk": {
        "shmgpu.messages": ("shm_get_child_id", "shm_read_msg", "shm_send_msg"),
        "shmgpu.helper.number": ("shm_get_helper_id",),
    },
    "shmgpu.trace": {"shmgpu.watch.trace": ("read", "write")},
}


class Former(ModuleType):
    """Stands for a module that has moved; knows the public names alone."""

    def __getattr__(self, name: str) -> Any:
        for module, names in MOVED[self.__name__].items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def answer() -> None:
    """Let imports by name, such as unpickling, find the former paths."""
    for path in MOVED:
        sys.modules.setdefault(path, Former(path))
