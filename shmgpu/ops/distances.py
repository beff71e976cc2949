"""More losses: of distances, angles, rankings and distributions.

Owns these compositions. Never has a row of its own.
"""

from __future__ import annotations

import math

from shmgpu.ops.activations import softplus
from shmgpu.ops.elementwise import (
    abs,
    add,
    clamp,
    div,
    eq,
    exp,
    ge,
    gt,
    le,
    log,
    maximum,
    minimum,
    mul,
    neg,
    sqrt,
    sub,
    where,
)
from shmgpu.ops.formulas import norm
from shmgpu.ops.graph import Node
from shmgpu.ops.losses import reduced_by
from shmgpu.ops.shaping import unsqueeze
from shmgpu.ops.stretching import sum


def _from(number: float, name: str, word: str, above: bool) -> None:
    if number < 0 or (above and number == 0):
        raise ValueError(f"{name}: {word}={number} must be {'above 0' if above else '0 or more'}")


def smooth_l1_loss(input: Node, target: Node, reduction: str = "mean", beta: float = 1.0) -> Node:
    """Absolute difference minus ``beta / 2``; below ``beta``, half its square over ``beta``.

    Raises:
        ValueError: ``beta`` is negative.
    """
    _from(beta, "smooth_l1_loss", "beta", above=False)
    far = abs(sub(input, target))
    if beta:
        near = where(ge(far, beta), 0.0, far)  # no infinite slope where the line counts
        far = where(ge(far, beta), sub(far, 0.5 * beta), mul(mul(near, near), 0.5 / beta))
    return reduced_by(far, reduction)


def huber_loss(input: Node, target: Node, reduction: str = "mean", delta: float = 1.0) -> Node:
    """Half the squared difference; linear beyond ``delta`` (Huber, 1964).

    Raises:
        ValueError: ``delta`` is not above 0.
    """
    _from(delta, "huber_loss", "delta", above=True)
    far = abs(sub(input, target))
    near = where(ge(far, delta), 0.0, far)
    bent = where(ge(far, delta), mul(sub(far, 0.5 * delta), delta), mul(mul(near, near), 0.5))
    return reduced_by(bent, reduction)


def kl_div(input: Node, target: Node, reduction: str = "mean", log_target: bool = False) -> Node:
    """The Kullback-Leibler divergence of ``target`` from exp(``input``).

    Args:
        input: log-probabilities.
        target: probabilities; their logarithms with ``log_target``.
        reduction: ``"batchmean"`` is as defined: the sum, divided by the length of the first axis.
        log_target: what the target holds.
    """
    if log_target:
        loss = mul(exp(target), sub(target, input))
    else:
        # 0 log 0 is 0.
        safe = where(le(target, 0), 1.0, target)
        loss = mul(target, sub(log(safe), input))
    if reduction == "batchmean":
        return div(sum(loss), input.spec.shape[0] if input.spec.shape else 1)
    return reduced_by(loss, reduction)


def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """The cosine of the angle between vectors along an axis; norms are at least ``eps``."""

    def norm(x: Node) -> Node:
        # The root's slope at 0 is infinite, so the root is taken only of greater numbers.
        return sqrt(maximum(sum(mul(x, x), dim, True), eps * eps))

    return sum(mul(div(x1, norm(x1)), div(x2, norm(x2))), dim)


def cosine_embedding_loss(
    input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: str = "mean"
) -> Node:
    """1 minus the cosine where the target is 1; max(0, cosine - margin) where it is -1.

    Args:
        input1: (N, features) or (features,), as ``input2``.
        input2: the others.
        target: (N,) or (), of 1 and -1.
        margin: the largest cosine of unlike vectors that costs nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """
    cosine = cosine_similarity(input1, input2, -1, 1e-6)
    alike = where(eq(target, 1), sub(1.0, cosine), 0.0)
    unlike = where(eq(target, -1), clamp(sub(cosine, margin), 0.0), 0.0)
    return reduced_by(add(alike, unlike), reduction)


def margin_ranking_loss(
    input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: str = "mean"
) -> Node:
    """max(0, margin - target * (input1 - input2)), with targets 1 and -1."""
    missing = add(mul(neg(target), sub(input1, input2)), margin)
    return reduced_by(clamp(missing, 0.0), reduction)


def hinge_embedding_loss(
    input: Node, target: Node, margin: float = 1.0, reduction: str = "mean"
) -> Node:
    """The distance where the target is 1; max(0, margin - distance) where it is -1."""
    alike = where(eq(target, 1), input, 0.0)
    unlike = where(eq(target, -1), clamp(sub(margin, input), 0.0), 0.0)
    return reduced_by(add(alike, unlike), reduction)


def soft_margin_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """log(1 + exp(-target * input)), with targets 1 and -1."""
    return reduced_by(softplus(neg(mul(target, input))), reduction)


def pairwise_distance(
    x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Node:
    """The p-norm of the difference along the last axis, to which ``eps`` is added."""
    return norm(add(sub(x1, x2), eps), p, -1, keepdim)


def cdist(x1: Node, x2: Node, p: float = 2.0) -> Node:
    """The p-norm between each two vectors: (..., n, m) and (..., k, m) -> (..., n, k).

    Raises:
        TypeError: the tensors are not of floats.
        ValueError: they have fewer than two axes, or vectors of different lengths.
    """
    one, other = x1.spec.shape, x2.spec.shape
    if min(len(one), len(other)) < 2 or one[-1] != other[-1]:
        raise ValueError(f"cdist: {one} and {other} must be vectors of one length, in two axes")
    # Of vectors without elements a norm of infinity has no greatest: all their norms are 0.
    return norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p if one[-1] else 1, -1)


def triplet_margin_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Node:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the distance.

    With ``swap``, the negative's distance from the positive is used where it is smaller.
    """
    near, far = (
        pairwise_distance(anchor, positive, p, eps),
        pairwise_distance(anchor, negative, p, eps),
    )
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced_by(clamp(add(sub(near, far), margin), 0.0), reduction)


def poisson_nll_loss(
    input: Node,
    target: Node,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Node:
    """The negative log-likelihood of Poisson counts; ``input`` holds their (log-)means.

    With ``full`` Stirling's term is added where the target is above 1.
    """
    if log_input:
        loss = sub(exp(input), mul(target, input))
    else:
        loss = sub(input, mul(target, log(add(input, eps))))
    if full:
        safe = where(gt(target, 1), target, 1.0)
        stirling = add(sub(mul(target, log(safe)), target), mul(log(mul(safe, 2 * math.pi)), 0.5))
        loss = add(loss, where(gt(target, 1), stirling, 0.0))
    return reduced_by(loss, reduction)


def gaussian_nll_loss(
    input: Node,
    target: Node,
    var: Node,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Node:
    """The negative log-likelihood of normal distributions of these means and variances.

    A variance counts as ``eps`` at least; with ``full`` the constant is added.
    """
    safe = maximum(var, eps)
    apart = sub(input, target)
    loss = mul(add(log(safe), div(mul(apart, apart), safe)), 0.5)
    return reduced_by(add(loss, 0.5 * math.log(2 * math.pi)) if full else loss, reduction)
