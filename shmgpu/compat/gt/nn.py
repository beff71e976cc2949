"""``from shmgpu.compat.gt.nn import Linear``: the layers of :mod:`shmgpu.nn`.

Owns the names. Never adds a layer of its own.
"""

from __future__ import annotations

from typing import Any

from shmgpu import nn


def __getattr__(name: str) -> Any:
    return getattr(nn, name)


def __dir__() -> list[str]:
    return dir(nn)
