"""Attention (Vaswani et al., 2017): a composition.

Owns that composition. Never has a row of its own.
"""

from __future__ import annotations

import math

from shmgpu.ops.activations import dropout, softmax
from shmgpu.ops.creation import full
from shmgpu.ops.elementwise import add, eq, mul, where
from shmgpu.ops.graph import Node
from shmgpu.ops.linear import matmul
from shmgpu.ops.promotion import bool_
from shmgpu.ops.rearranging import triu
from shmgpu.ops.reductions import amax
from shmgpu.ops.shaping import reshape, transpose, unsqueeze
from shmgpu.ops.stretching import expand


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(query @ key.T * scale) @ value over the last two axes.

    Vaswani et al., Attention Is All You Need, 2017.

    Args:
        query: (..., L, E).
        key: (..., S, E).
        value: (..., S, V).
        attn_mask: broadcast to (..., L, S): True for pairs to attend to, or floats that are added
            before the softmax. A row of False or of minus infinities gives zeros.
        dropout_p: probability with which a weight is dropped.
        is_causal: no position attends to a later one.
        scale: 1 / sqrt(E) by default.
        enable_gqa: key and value have fewer heads (the last axis but two) than the query, each of
            which several of the query's share (Ainslie et al., 2023).

    Returns:
        (..., L, V).

    Raises:
        ValueError: the shapes do not fit, or there are both a mask and ``is_causal``.
    """
    shapes = [one.spec.shape for one in (query, key, value)]
    q, k, v = shapes
    if any(len(one) < 2 for one in shapes) or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ValueError(
            f"scaled_dot_product_attention: query {q} and key {k} must have equally many features "
            f"(the last axis), and key and value {v} equally many places (the last but one)"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if enable_gqa:
        key, value = _shared(key, q), _shared(value, q)
    factor = 1.0 / math.sqrt(max(q[-1], 1)) if scale is None else scale
    scores = matmul(mul(query, factor), transpose(key, -1, -2))
    if is_causal:
        # The mask is added, so the gradient needs no mask: the softmax's gradient is 0 there
        # already.
        attn_mask = triu(full((q[-2], k[-2]), -math.inf, scores.spec.dtype), 1)
    if attn_mask is None:
        weights = softmax(scores, -1)
    elif attn_mask.spec.dtype is bool_:
        # A row that may look nowhere gets nothing.
        weights = softmax(where(attn_mask, scores, -math.inf), -1)
        weights = where(attn_mask, weights, 0.0)
    elif not k[-2]:
        weights = softmax(add(scores, attn_mask), -1)
    else:
        # So does one whose mask is minus infinity everywhere; its softmax would be NaN.
        is_lost = eq(amax(attn_mask, -1, True), -math.inf)
        weights = softmax(add(scores, where(is_lost, 0.0, attn_mask)), -1)
        found = matmul(dropout(weights, dropout_p), value)
        return where(is_lost, 0.0, found)
    return matmul(dropout(weights, dropout_p), value)


def _shared(x: Node, query: tuple[int, ...]) -> Node:
    """Each head as often as heads of the query share it."""
    shape = x.spec.shape
    if len(shape) < 3 or len(query) < 3 or shape[-3] == 0 or query[-3] % shape[-3]:
        raise ValueError(
            f"scaled_dot_product_attention: the heads of {shape} (the last axis but two) must "
            f"divide those of the query {query}"
        )
    times = query[-3] // shape[-3]
    each = expand(unsqueeze(x, -3), (*shape[:-2], times, *shape[-2:]))
    return reshape(each, (*shape[:-3], query[-3], *shape[-2:]))
