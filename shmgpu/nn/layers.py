"""Layers. Their parameters begin as PyTorch's do, though not with the same numbers."""

from __future__ import annotations

import math
from typing import Any

from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors import FUNCTIONS, Tensor, rand


def uniform(bound: float, *size: int) -> Tensor:
    """A parameter drawn evenly from -bound to bound."""
    return Parameter(rand(*size) * (2 * bound) - bound)


class Linear(Module):
    """``x @ weight.T + bias``.

    Weight and bias are drawn evenly from within 1/sqrt(in_features) of 0, as
    ``torch.nn.Linear.reset_parameters`` does.

    Args:
        in_features: length of the input's last axis.
        out_features: that of the output's.
        bias: whether there is one.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"Linear: in_features={in_features} and out_features={out_features} must be 1 or "
                "more"
            )
        self.in_features = in_features
        self.out_features = out_features
        bound = 1 / math.sqrt(in_features)
        self.weight = uniform(bound, out_features, in_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        out: Tensor = FUNCTIONS["linear"](x, self.weight, self.bias)
        return out

    def extra_repr(self) -> str:
        """Its sizes."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class _Elementwise(Module):
    """One operation as a layer."""

    operation: str

    def forward(self, x: Tensor) -> Any:
        """The operation on each element."""
        return FUNCTIONS[self.operation](x)


class ReLU(_Elementwise):
    """Negative elements become 0."""

    operation = "relu"


class Sigmoid(_Elementwise):
    """1 / (1 + exp(-x))."""

    operation = "sigmoid"


class Tanh(_Elementwise):
    """The hyperbolic tangent."""

    operation = "tanh"


class Sequential(Module):
    """Layers one after the other."""

    def __init__(self, *layers: Module) -> None:
        super().__init__()
        for index, layer in enumerate(layers):
            self._modules[str(index)] = layer

    def forward(self, x: Any) -> Any:
        """Through all of them."""
        for layer in self._modules.values():
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Module:
        found: Module = list(self._modules.values())[index]
        return found
