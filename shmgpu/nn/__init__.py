"""Layers and losses over tensors, in PyTorch's spelling."""

from __future__ import annotations

from typing import Any

from shmgpu.nn.layers import (
    Linear,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
)
from shmgpu.nn.losses import BCELoss, MSELoss
from shmgpu.nn.module import Module, Parameter
from shmgpu.optim import SGD, Adam, AdamW
from shmgpu.tensors import FUNCTIONS

mse_loss = FUNCTIONS["mse_loss"]
relu = FUNCTIONS["relu"]
sigmoid = FUNCTIONS["sigmoid"]
tanh = FUNCTIONS["tanh"]

_ALSO = {"cross_entropy_loss": "cross_entropy"}  # GT's names of what PyTorch calls otherwise


def __getattr__(name: str) -> Any:
    """Operations are functions of this room, too: nn.softmax is shmgpu.softmax."""
    found = FUNCTIONS.get(_ALSO.get(name, name))
    if found is None:
        raise AttributeError(f"module 'shmgpu.nn' has no attribute {name!r}")
    return found


__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "BCELoss",
    "Linear",
    "MSELoss",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
    "mse_loss",
    "relu",
    "sigmoid",
    "tanh",
]
