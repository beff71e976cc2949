"""Losses as layers."""

from __future__ import annotations

from typing import Any

from shmgpu.nn.module import Module
from shmgpu.tensors.tensor import FUNCTIONS, Tensor


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


class L1Loss(_Loss):
    """The difference without its sign."""

    function = "l1_loss"


class CrossEntropyLoss(_Loss):
    """Of any scores (N, classes, ...), and the right classes."""

    function = "cross_entropy"


class NLLLoss(_Loss):
    """Of logarithms of probabilities, and the right classes."""

    function = "nll_loss"


class BCELoss(_Loss):
    """Of probabilities of two classes."""

    function = "binary_cross_entropy"


class BCEWithLogitsLoss(_Loss):
    """Of what a sigmoid would make probabilities of."""

    function = "binary_cross_entropy_with_logits"
