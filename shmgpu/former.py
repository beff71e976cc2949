"""Where pickles of earlier versions find what they name: modules and names that have moved since.

Owns the tables from where a public name used to live to where it lives. Must never be used to name
anything in code: what is written today names today's modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Homes = Mapping[str, tuple[str, ...]]

# Modules that are gone: the names that a pickle may refer to there, by where they live.
MOVED: dict[str, Homes] = {
    "shmgpu.arguments": {"shmgpu.child.arguments": ("Declared",)},
    "shmgpu.debug.ledger": {"shmgpu.tensors.debug.ledger": ("Unsound",)},
    "shmgpu.dtypes": {"shmgpu.codec.dtypes": ("DType",)},
    "shmgpu.entries": {"shmgpu.helper.decoded": ("Helper",)},
    "shmgpu.factories": {
        "shmgpu.tensors.factories": ("arange", "empty", "eye", "full_like", "linspace"),
    },
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

# Modules that are still there, and names that have left them. Each asks moved_from().
LEFT: dict[str, Homes] = {
    "shmgpu.nn.layers": {
        "shmgpu.nn.convolution": ("Conv2d",),
        "shmgpu.nn.normalisation": ("LayerNorm",),
    },
    "shmgpu.nn.module": {"shmgpu.nn.state": ("state_arrays", "state_tensors")},
    "shmgpu.tensors": {
        "shmgpu.tensors.base": ("Tensor", "_unpickled"),
        "shmgpu.tensors.conversion": ("from_numpy", "tensor"),
        "shmgpu.tensors.elements": ("Data",),
        "shmgpu.tensors.factories": ("full", "manual_seed", "ones", "rand", "randn", "zeros"),
        "shmgpu.tensors.grad_mode": ("no_grad",),
        "shmgpu.tensors.tensor": ("grad", "set_verbosity"),
    },
}


def _find(path: str, homes: Homes, name: str) -> Any:
    for module, names in homes.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {path!r} has no attribute {name!r}")


def moved_from(path: str) -> Callable[[str], Any]:
    """What a module that is still there takes as its ``__getattr__``."""
    return lambda name: _find(path, LEFT[path], name)


class Former(ModuleType):
    """Stands for a module that is gone; has its public names alone."""

    def __getattr__(self, name: str) -> Any:
        return _find(self.__name__, MOVED[self.__name__], name)


def answer() -> None:
    """Let imports by name, such as unpickling, find the modules that are gone."""
    for path in MOVED:
        sys.modules.setdefault(path, Former(path))
