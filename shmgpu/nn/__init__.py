"""Layers and losses over tensors, in PyTorch's spelling."""

from __future__ import annotations

from shmgpu.nn.layers import (
    Linear,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
)
from shmgpu.nn.losses import BCELoss, MSELoss
from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors import FUNCTIONS

mse_loss = FUNCTIONS["mse_loss"]
relu = FUNCTIONS["relu"]
sigmoid = FUNCTIONS["sigmoid"]
tanh = FUNCTIONS["tanh"]

__all__ = [
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
