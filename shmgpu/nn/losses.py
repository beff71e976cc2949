"""Losses as layers."""

from __future__ import annotations

from typing import Any

from shmgpu.nn.module import Module
from shmgpu.tensors import FUNCTIONS, Tensor


class _Loss(Module):
    """A loss of a prediction and a target.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """

    function: str

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Any:
        """The loss."""
        return FUNCTIONS[self.function](input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """The squared difference."""

    function = "mse_loss"


class BCELoss(_Loss):
    """The cross entropy of probabilities of two classes."""

    function = "binary_cross_entropy"
