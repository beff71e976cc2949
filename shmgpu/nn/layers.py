"""Layers that multiply by a matrix, or look rows up. Their parameters begin as PyTorch's do.

Owns these parameters. Each layer says which of PyTorch's rules its first values follow, though the
numbers differ. Never computes.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.former import moved_from
from shmgpu.nn import functional as F
from shmgpu.nn.module import Module, Parameter
from shmgpu.ops import rules
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor, rand, randn, tensor

__getattr__ = moved_from(__name__)


def uniform(bound: float, *size: int, dtype: Any = None) -> Tensor:
    """A parameter drawn uniformly from -bound to bound; float32 unless another type is given."""
    return Parameter(rand(*size, dtype=dtype or "float32") * (2 * bound) - bound)


class Linear(Module):
    """``x @ weight.T + bias``: (..., in_features) -> (..., out_features).

    Weight and bias are initialised uniformly within 1/sqrt(in_features) of 0.

    Args:
        in_features: length of the input's last axis.
        out_features: that of the output's.
        bias: whether there is one.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"Linear: in_features={in_features} and out_features={out_features} must be 1 or "
                "more"
            )
        self.in_features = in_features
        self.out_features = out_features
        bound = 1 / math.sqrt(in_features)
        self.weight = uniform(bound, out_features, in_features, dtype=dtype)
        self.register_parameter("bias", uniform(bound, out_features, dtype=dtype) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        out: Tensor = F.linear(x, self.weight, self.bias)
        return out

    def extra_repr(self) -> str:
        """Its sizes."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of a table: integers (...) -> (..., embedding_dim).

    The table is initialised from the normal distribution, the row ``padding_idx`` with zeros.

    Args:
        num_embeddings: rows.
        embedding_dim: length of a row.
        padding_idx: a row that is not trained; negative numbers count from the end.
        max_norm: must be None, as PyTorch has it by default; of the next three likewise,
        norm_type: 2.0,
        scale_grad_by_freq: False,
        sparse: False: ValueError for others.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        rules.only(
            "Embedding",
            max_norm=(max_norm, None, F.NORMS),
            norm_type=(norm_type, 2.0, F.NORMS),
            scale_grad_by_freq=(scale_grad_by_freq, False, F.FREQUENT),
            sparse=(sparse, False, F.DENSE),
        )
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"Embedding: padding_idx={padding_idx} is none of the {num_embeddings} rows"
                )
            padding_idx %= num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.weight = Parameter(randn(num_embeddings, embedding_dim, dtype=dtype or "float32"))
        if padding_idx is not None:
            with no_grad():
                self.weight[padding_idx] = 0

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A table of these rows, (rows, length); not learned if ``freeze``."""
        table = embeddings if isinstance(embeddings, Tensor) else tensor(embeddings)
        rows, length = table.shape
        made = cls(rows, length, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        made.weight = Parameter(table)
        made.weight.requires_grad_(not freeze)
        return made

    def forward(self, indices: Any) -> Any:
        """Integers (...) -> rows (..., embedding_dim)."""
        return F.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Its sizes."""
        sizes = f"{self.num_embeddings}, {self.embedding_dim}"
        return sizes if self.padding_idx is None else f"{sizes}, padding_idx={self.padding_idx}"


class Bilinear(Module):
    """``x1 @ weight @ x2 + bias``: (..., in1), (..., in2) -> (..., out_features).

    Weight and bias are initialised uniformly within 1/sqrt(in1_features) of 0.

    Args:
        in1_features: length of the first input's last axis.
        in2_features: that of the second's.
        out_features: that of the output's.
        bias: whether there is one.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        bound = 1 / math.sqrt(in1_features)
        self.weight = uniform(bound, out_features, in1_features, in2_features, dtype=dtype)
        self.register_parameter("bias", uniform(bound, out_features, dtype=dtype) if bias else None)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """The same leading axes."""
        first = input1.reshape(-1, 1, 1, self.in1_features) @ self.weight  # (N, out, 1, in2)
        second = input2.reshape(-1, 1, 1, self.in2_features)
        out = (first * second).sum((-2, -1))
        if self.bias is not None:
            out = out + self.bias
        found: Tensor = out.reshape(*input1.shape[:-1], self.out_features)
        return found

    def extra_repr(self) -> str:
        """Its sizes."""
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self.bias is not None}"
