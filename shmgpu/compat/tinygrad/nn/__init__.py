"""tinygrad's layers: those of :mod:`shmgpu.nn`, and batch norms that follow ``Tensor.training``.

Owns the names. Never defines a layer but for that.
"""

from __future__ import annotations

from typing import Any

from shmgpu.compat.tinygrad.nn import optim as optim
from shmgpu.compat.tinygrad.nn import state as state
from shmgpu.compat.tinygrad.tensor import Tensor as Facade
from shmgpu.nn import Conv2d as Conv2d
from shmgpu.nn import ConvTranspose2d as ConvTranspose2d
from shmgpu.nn import Embedding as Embedding
from shmgpu.nn import GroupNorm as GroupNorm
from shmgpu.nn import LayerNorm as LayerNorm
from shmgpu.nn import Linear as Linear
from shmgpu.nn import RMSNorm as RMSNorm
from shmgpu.nn.normalisation import _BatchNorm
from shmgpu.tensors.tensor import Tensor


class BatchNorm(_BatchNorm):
    """Each channel to mean 0 and variance 1: over the batch in ``Tensor.train()``, else as tracked.

    Over a batch that is cut, the statistics are those of all of it.

    Args:
        sz: channels of the input, (N, sz, ...).
        eps: added to the variance.
        affine: whether there are weight (ones at first) and bias (zeros).
        track_running_stats: whether statistics of training are kept for evaluation.
        momentum: how far a batch's statistics move the running ones.
    """

    axes = (2, 3, 4, 5)

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(sz, eps, momentum, affine, track_running_stats)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        self.training = Facade.training
        return super().forward(x)


BatchNorm2d = BatchNorm3d = BatchNorm

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv2d",
    "ConvTranspose2d",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "optim",
    "state",
]
