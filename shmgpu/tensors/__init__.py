"""Tensors in a child: recorded here, computed elsewhere; never runs a kernel."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """What pickles of earlier releases name here, from where it lives."""
    if name not in ("Data", "Tensor", "_unpickled"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmgpu.tensors import tensor

    return getattr(tensor, name)
