"""More activations: ELU and its kin, the hard ones, mish, PReLU, GLU.

Owns these compositions. Never has a row of its own.
"""

from __future__ import annotations

from shmgpu.ops.activations import softmax, softplus
from shmgpu.ops.elementwise import (
    abs,
    add,
    clamp,
    div,
    ge,
    gt,
    le,
    lt,
    mul,
    neg,
    sigmoid,
    sub,
    tanh,
    where,
)
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import floats
from shmgpu.ops.rules import axis_of
from shmgpu.ops.shaping import reshape, split
from shmgpu.ops.transcendental import expm1

# Klambauer et al., Self-Normalizing Neural Networks, 2017.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def elu(x: Node, alpha: float = 1.0) -> Node:
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    (x,) = floats(x)
    return where(le(x, 0), mul(expm1(_below(x)), alpha), x)


def _below(x: Node) -> Node:
    """The elements that are not above 0, and 0 for the others: no infinite slope where unused."""
    return where(le(x, 0), x, 0.0)


def celu(x: Node, alpha: float = 1.0) -> Node:
    """``x`` where positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere.

    Raises:
        ValueError: ``alpha`` is 0.
    """
    if alpha == 0:
        raise ValueError("celu: alpha=0 must be another number: the input is divided by it")
    (x,) = floats(x)
    return where(le(x, 0), mul(expm1(div(_below(x), alpha)), alpha), x)


def selu(x: Node) -> Node:
    """:func:`elu`, scaled so that mean 0 and variance 1 are kept (Klambauer et al., 2017)."""
    return mul(elu(x, SELU_ALPHA), SELU_SCALE)


def mish(x: Node) -> Node:
    """``x * tanh(softplus(x))`` (Misra, 2019)."""
    (x,) = floats(x)
    return mul(x, tanh(softplus(x)))


def logsigmoid(x: Node) -> Node:
    """The logarithm of the sigmoid, without its underflow."""
    (x,) = floats(x)
    return neg(softplus(neg(x)))


def softsign(x: Node) -> Node:
    """``x / (1 + abs(x))``."""
    return div(x, add(abs(x), 1))


def tanhshrink(x: Node) -> Node:
    """``x - tanh(x)``."""
    return sub(x, tanh(x))


def softshrink(x: Node, lambd: float = 0.5) -> Node:
    """Each element moved towards 0 by ``lambd``; 0 for those within ``lambd`` of 0."""
    return sub(x, clamp(x, -lambd, lambd))


def hardshrink(x: Node, lambd: float = 0.5) -> Node:
    """Elements within ``lambd`` of 0 become 0; the others are unchanged."""
    return where(le(abs(x), lambd), mul(x, 0), x)


def hardtanh(x: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """Elements limited to the range from ``min_val`` to ``max_val``.

    Raises:
        ValueError: ``min_val`` is above ``max_val``.
    """
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val={min_val} must not be above max_val={max_val}")
    return where(le(x, min_val), min_val, where(ge(x, max_val), max_val, x))


def relu6(x: Node) -> Node:
    """Elements limited to the range from 0 to 6."""
    return hardtanh(x, 0, 6)


def hardsigmoid(x: Node) -> Node:
    """A piecewise linear sigmoid: 0 below -3, 1 above 3."""
    (x,) = floats(x)
    line = div(add(where(gt(abs(x), 3), 0.0, x), 3.0), 6.0)
    return where(le(x, -3), 0.0, where(ge(x, 3), 1.0, line))


def hardswish(x: Node) -> Node:
    """``x * hardsigmoid(x)`` (Howard et al., 2019)."""
    (x,) = floats(x)
    within = where(lt(abs(x), 3), x, 0.0)
    bent = div(mul(within, add(within, 3.0)), 6.0)
    return where(le(x, -3), 0.0, where(lt(x, 3), bent, x))


def threshold(x: Node, threshold: float, value: float) -> Node:
    """``x`` where it is above ``threshold``, ``value`` elsewhere."""
    return where(gt(x, threshold), x, value)


def softmin(x: Node, dim: int = -1) -> Node:
    """:func:`softmax` of the negated input."""
    return softmax(neg(x), dim)


def prelu(x: Node, weight: Node) -> Node:
    """``x`` where positive, ``weight * x`` elsewhere, with a learned weight.

    Args:
        x: (N, channels, ...), or any shape where the weight is one number.
        weight: (channels,), or (1,).

    Raises:
        ValueError: the weight has another length.
    """
    shape, have = weight.spec.shape, x.spec.shape
    if shape not in ((), (1,)):
        channels = have[1] if len(have) > 1 else 1
        if shape != (channels,):
            raise ValueError(f"prelu: the weight {shape} must be (1,) or ({channels},) for {have}")
        weight = reshape(weight, (channels, *[1] * (len(have) - 2)))
    return where(gt(x, 0), x, mul(weight, x))


def glu(x: Node, dim: int = -1) -> Node:
    """The first half of an axis times the sigmoid of the second (Dauphin et al., 2017).

    Raises:
        ValueError: the axis cannot be halved.
    """
    axis = axis_of(dim, len(x.spec.shape), "glu")
    if not x.spec.shape or x.spec.shape[axis] % 2:
        raise ValueError(f"glu: axis {dim} of {x.spec.shape} must have an even length")
    half = x.spec.shape[axis] // 2
    first, second = split(x, [half, half], axis)
    return mul(first, sigmoid(second))
