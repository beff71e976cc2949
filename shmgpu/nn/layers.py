"""Layers that learn. Their parameters begin as PyTorch's do, though not with the same numbers.

Each says which of PyTorch's rules its first values follow; sources are the ``reset_parameters`` of
PyTorch's layers of the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, ones, rand, randn, zeros


def uniform(bound: float, *size: int) -> Tensor:
    """A parameter drawn evenly from -bound to bound."""
    return Parameter(rand(*size) * (2 * bound) - bound)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    height, width = value
    return int(height), int(width)


class Linear(Module):
    """``x @ weight.T + bias``: (..., in_features) -> (..., out_features).

    Weight and bias begin evenly within 1/sqrt(in_features) of 0.

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


class Conv2d(Module):
    """Filters over pictures: (count, in_channels, height, width) -> (count, out_channels, ...).

    Weight and bias begin evenly within 1/sqrt(the inputs of one output) of 0.

    Args:
        in_channels: channels of the input.
        out_channels: filters.
        kernel_size: height and width of a filter; one number for both, here and below.
        stride: steps from one place of a filter to the next.
        padding: zeros around the input; ``"same"`` and ``"valid"`` as in PyTorch.
        dilation: steps from one element of a filter to the next.
        groups: parts that channels fall into, each with filters of its own.
        bias: whether there is one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"Conv2d: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        height, width = _pair(kernel_size)
        self.sizes = (in_channels, out_channels, (height, width))
        self.options = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        bound = 1 / math.sqrt(in_channels // groups * height * width)
        self.weight = uniform(bound, out_channels, in_channels // groups, height, width)
        self.bias = uniform(bound, out_channels) if bias else None

    def forward(self, x: Tensor) -> Any:
        """Each filter's answer at each place."""
        return FUNCTIONS["conv2d"](x, self.weight, self.bias, **self.options)

    def extra_repr(self) -> str:
        """Its sizes."""
        return ", ".join(map(str, self.sizes))


class Embedding(Module):
    """Rows of a table: whole numbers (...) -> (..., embedding_dim).

    The table begins drawn from the normal distribution.

    Args:
        num_embeddings: rows.
        embedding_dim: length of a row.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.weight = Parameter(randn(num_embeddings, embedding_dim))

    def forward(self, indices: Any) -> Any:
        """The rows of these numbers."""
        return FUNCTIONS["embedding"](indices, self.weight)

    def extra_repr(self) -> str:
        """Its sizes."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then times weight plus bias (Ba et al., 2016).

    Args:
        normalized_shape: lengths of these axes.
        eps: added to the variance.
        elementwise_affine: whether there are weight (ones at first) and bias (zeros).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.normalized_shape = shape
        self.eps = eps
        self.weight = Parameter(ones(*shape)) if elementwise_affine else None
        self.bias = Parameter(zeros(*shape)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        return FUNCTIONS["layer_norm"](x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Its sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"
