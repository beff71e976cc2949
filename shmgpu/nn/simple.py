"""Layers without parameters: an operation each, so that it can stand in a Sequential."""

from __future__ import annotations

from typing import Any

from shmgpu.nn.module import Module
from shmgpu.tensors.tensor import FUNCTIONS, Tensor


class _Operation(Module):
    """One operation with settings; the settings are the layer's arguments."""

    operation: str
    defaults: tuple[tuple[str, Any], ...] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        names = [name for name, _ in self.defaults]
        if len(given) > len(names) or not set(named) <= set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no arguments'}")
        self.settings = {**dict(self.defaults), **dict(zip(names, given, strict=False)), **named}

    def forward(self, x: Tensor) -> Any:
        """The operation."""
        return FUNCTIONS[self.operation](x, **self.settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


class ReLU(_Operation):
    """Negative elements become 0."""

    operation = "relu"


class LeakyReLU(_Operation):
    """Negative elements become a hundredth, or ``negative_slope``, of what they were."""

    operation = "leaky_relu"
    defaults = (("negative_slope", 0.01),)


class GELU(_Operation):
    """x times the normal distribution's share below x; ``approximate="tanh"`` for less work."""

    operation = "gelu"
    defaults = (("approximate", "none"),)


class SiLU(_Operation):
    """x times its sigmoid."""

    operation = "silu"


class Sigmoid(_Operation):
    """1 / (1 + exp(-x))."""

    operation = "sigmoid"


class Tanh(_Operation):
    """The hyperbolic tangent."""

    operation = "tanh"


class Softmax(_Operation):
    """Shares that sum to 1 along ``dim``."""

    operation = "softmax"
    defaults = (("dim", -1),)


class LogSoftmax(_Operation):
    """Their logarithms."""

    operation = "log_softmax"
    defaults = (("dim", -1),)


class Flatten(_Operation):
    """Axes ``start_dim`` to ``end_dim`` as one."""

    operation = "flatten"
    defaults = (("start_dim", 1), ("end_dim", -1))


class MaxPool2d(_Operation):
    """The greatest element of each window."""

    operation = "max_pool2d"
    defaults = (("kernel_size", 2), ("stride", None), ("padding", 0), ("dilation", 1))


class AvgPool2d(_Operation):
    """The mean of each window."""

    operation = "avg_pool2d"
    defaults = (("kernel_size", 2), ("stride", None), ("padding", 0))


class Dropout(_Operation):
    """In training each element is 0 with probability ``p``, and the others are greater for it."""

    operation = "dropout"
    defaults = (("p", 0.5),)

    def forward(self, x: Tensor) -> Any:
        """As it is, unless in training."""
        return FUNCTIONS["dropout"](x, training=self.training, **self.settings)
