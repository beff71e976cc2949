"""Layers and losses over tensors, in PyTorch's spelling.

A module finds its parameters by their names; its ``state_dict`` is that of PyTorch's module of the
same layers. Never computes: a layer records operations, like any code that uses tensors.
"""

from __future__ import annotations

from typing import Any

from shmgpu.nn.containers import ModuleList, Sequential
from shmgpu.nn.layers import Conv2d, Embedding, LayerNorm, Linear
from shmgpu.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
)
from shmgpu.nn.module import Module, Parameter, state_arrays, state_tensors
from shmgpu.nn.simple import (
    GELU,
    AvgPool2d,
    Dropout,
    Flatten,
    LeakyReLU,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from shmgpu.optim import SGD, Adam, AdamW
from shmgpu.tensors.tensor import FUNCTIONS

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
    "GELU",
    "SGD",
    "Adam",
    "AdamW",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "mse_loss",
    "relu",
    "sigmoid",
    "state_arrays",
    "state_tensors",
    "tanh",
]


def __dir__() -> list[str]:
    return __all__
