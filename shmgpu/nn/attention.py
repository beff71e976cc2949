"""Attention with several heads, and encoders made of it (Vaswani et al., 2017).

Parameters are named and laid out as PyTorch's, and begin as they do.

Owns how heads and encoder layers are put together. Never computes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from shmgpu.nn import functional as F
from shmgpu.nn.containers import ModuleList
from shmgpu.nn.layers import Linear, uniform
from shmgpu.nn.module import Module, Parameter
from shmgpu.nn.normalisation import LayerNorm
from shmgpu.nn.simple import Dropout
from shmgpu.ops import rules
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, full, zeros

ACTIVATIONS = ("relu", "gelu")


def _added(mask: Tensor | None, dtype: Any) -> Tensor | None:
    """A mask as what is added to the scores: bools say where not to look."""
    if mask is None or mask.dtype.name != "bool":
        return mask
    found: Tensor = FUNCTIONS["where"](mask, full((), -math.inf, dtype=dtype), 0.0)
    return found


class MultiheadAttention(Module):
    """Attention with several heads, each on its part of the features (Vaswani et al., 2017).

    Args:
        embed_dim: features of queries and outputs.
        num_heads: number of heads; it divides ``embed_dim``.
        dropout: probability with which a weight is dropped, in training.
        bias: whether the projections have one.
        add_bias_kv: must be False: ValueError; and so must
        add_zero_attn.
        kdim: features of keys, as the queries' by default.
        vdim: features of values, as the queries' by default.
        batch_first: tensors are (N, L, features), not (L, N, features).
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        instead = "put what all may look at, beside the sequence, into key and value"
        rules.only(
            "MultiheadAttention",
            add_bias_kv=(add_bias_kv, False, instead),
            add_zero_attn=(add_zero_attn, False, instead),
        )
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        if self.kdim == self.vdim == embed_dim:
            bound = math.sqrt(6 / (4 * embed_dim))  # Xavier's, of all three at once
            self.in_proj_weight = uniform(bound, 3 * embed_dim, embed_dim, dtype=dtype)
        else:
            self.register_parameter("in_proj_weight", None)
            for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
                bound = math.sqrt(6 / (embed_dim + width))
                setattr(self, f"{name}_proj_weight", uniform(bound, embed_dim, width, dtype=dtype))
        kind = dtype or "float32"
        begin = Parameter(zeros(3 * embed_dim, dtype=kind)) if bias else None
        self.register_parameter("in_proj_bias", begin)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        if bias:
            self.out_proj.bias = Parameter(zeros(embed_dim, dtype=kind))

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values, (N, heads, places, features of a head)."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3, 0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        none = (None, None, None)
        biases = none if self.in_proj_bias is None else self.in_proj_bias.chunk(3, 0)
        found = []
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
            y = F.linear(x, weight, bias)
            y = y.reshape(*y.shape[:2], self.num_heads, self.head_dim)
            found.append(y.transpose(1, 2))
        return found

    def _mask(
        self, attn_mask: Tensor | None, padding: Tensor | None, dtype: Any, shape: tuple[int, ...]
    ) -> Tensor | None:
        """Both masks as one that is added, broadcast to (N, heads, L, S)."""
        mask, padded = _added(attn_mask, dtype), _added(padding, dtype)
        count, length, places = shape
        if mask is not None:
            if mask.shape == (count * self.num_heads, length, places):
                mask = mask.reshape(count, self.num_heads, length, places)
            elif mask.shape != (length, places):
                raise ValueError(
                    f"MultiheadAttention: attn_mask {mask.shape} must be {(length, places)} or "
                    f"{(count * self.num_heads, length, places)}"
                )
        if padded is not None:
            if padded.shape != (count, places):
                raise ValueError(
                    f"MultiheadAttention: key_padding_mask {padded.shape} must be {(count, places)}"
                )
            padded = padded.reshape(count, 1, 1, places)
            mask = padded if mask is None else mask + padded
        return mask

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The weighted sum of values for each query.

        Args:
            query: (L, N, embed_dim), (N, L, embed_dim) with ``batch_first``, or (L, embed_dim).
            key: likewise, of S positions and ``kdim`` features.
            value: likewise, of S positions and ``vdim`` features.
            key_padding_mask: (N, S), or (S,): True for keys to ignore; floats are added to the
                scores.
            need_weights: return the weights, too; without them, gradients need less memory.
            attn_mask: (L, S) or (N * heads, L, S): True for pairs to ignore; floats are added.
            average_attn_weights: return the mean of the heads' weights, not those of each.
            is_causal: no position attends to a later one; ``attn_mask``, if given, already says so.

        Returns:
            (the outputs, as ``query``; the weights, (N, L, S) or (N, heads, L, S), or None).

        Raises:
            ValueError: a shape does not fit.
        """
        single = query.ndim == 2
        given = [one.unsqueeze(0) if single else one for one in (query, key, value)]
        if not single and not self.batch_first:
            given = [one.transpose(0, 1) for one in given]
        if single and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        q, k, v = self._projected(*given)
        shape = (q.shape[0], q.shape[2], k.shape[2])
        if is_causal and attn_mask is None:
            attn_mask = FUNCTIONS["triu"](full(shape[1:], -math.inf, dtype=q.dtype), 1)
        mask = self._mask(attn_mask, key_padding_mask, q.dtype, shape)
        drop = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * (1 / math.sqrt(self.head_dim))) @ k.transpose(-2, -1)
            shares = F.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(shares, drop)
            found = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            found = F.scaled_dot_product_attention(q, k, v, mask, drop)
        found = found.transpose(1, 2)
        out = self.out_proj(found.reshape(*found.shape[:2], self.embed_dim))
        if single:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights


class TransformerEncoderLayer(Module):
    """Attention and two linear layers, each with a residual connection and normalised.

    Args:
        d_model: features.
        nhead: heads of the attention.
        dim_feedforward: features between the linear layers.
        dropout: probability with which elements are dropped, in training.
        activation: between the linear layers: ``"relu"``, ``"gelu"``, or a function.
        layer_norm_eps: added to the variance, for stability.
        batch_first: tensors are (N, L, features), not (L, N, features).
        norm_first: normalise before attention and linear layers, not after (Xiong et al., 2020).
        bias: whether linear layers and norms have one.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        if isinstance(activation, str):
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"TransformerEncoderLayer: activation={activation!r} must be one of "
                    f"{', '.join(ACTIVATIONS)}, or a function"
                )
        named = isinstance(activation, str)
        self.activation: Any = getattr(F, str(activation)) if named else activation

    def _attend(self, x: Tensor, mask: Any, padding: Any, is_causal: bool) -> Any:
        found, _ = self.self_attn(
            x, x, x, padding, need_weights=False, attn_mask=mask, is_causal=is_causal
        )
        return self.dropout1(found)

    def _feed(self, x: Tensor) -> Any:
        between = self.dropout(self.activation(self.linear1(x)))
        return self.dropout2(self.linear2(between))

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The same shape; masks as for :class:`MultiheadAttention`."""
        masks = (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            x = src + self._attend(self.norm1(src), *masks)
            found: Tensor = x + self._feed(self.norm2(x))
        else:
            x = self.norm1(src + self._attend(src, *masks))
            found = self.norm2(x + self._feed(x))
        return found


class TransformerEncoder(Module):
    """A stack of copies of a layer.

    Args:
        encoder_layer: the layer, which is copied with its values.
        num_layers: how many.
        norm: normalises the output, unless None.
        enable_nested_tensor: accepted, and changes nothing: there are no nested tensors.
        mask_check: likewise.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.add_module("norm", norm)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Any:
        """The same shape; masks as for :class:`MultiheadAttention`."""
        x: Any = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, bool(is_causal))
        return x if self.norm is None else self.norm(x)
