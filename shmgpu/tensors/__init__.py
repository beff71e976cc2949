"""Tensors in a child: what a program does with them is recorded here, and computed by helpers.

Owns the recorder, gradients, and which helper holds what. Never runs a kernel.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """What pickles of earlier releases name here, from where it lives."""
    if name not in ("Data", "Tensor", "_unpickled"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmgpu.tensors import tensor

    return getattr(tensor, name)
