"""Activations and dropout: softmax, GELU, SiLU, leaky ReLU, softplus.

Owns their rows and the functions that record them. The gradient of a softmax or a gelu is a row of
its own, which torch computes in one pass. Where it is to be differentiated again
(``create_graph=True``), it is recorded in parts instead. Never draws dropout's mask in a child.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.ops import creation, graph, rules
from shmgpu.ops.casting import cast
from shmgpu.ops.elementwise import (
    abs,
    add,
    erf,
    exp,
    ge,
    gt,
    log1p,
    maximum,
    mul,
    neg,
    sigmoid,
    sub,
    tanh,
    where,
)
from shmgpu.ops.graph import Node, Op, Params, Spec, apply
from shmgpu.ops.kernels import numpy_erf
from shmgpu.ops.promotion import floats, is_float
from shmgpu.ops.stretching import sum

Specs = tuple[Spec, ...]


def same_shape(specs: Specs, params: Params) -> Spec:
    """A rule: as the first input. The other inputs are of its shape."""
    first = specs[0]
    for spec in specs[1:]:
        if spec is not first:
            raise ValueError(f"{spec} is given where {first} is needed")
    return first


# ---- softmax ---------------------------------------------------------------------------------


def _along(specs: Specs, params: Params) -> Spec:
    (axis,) = params
    rules.axis_of(axis, len(specs[0].shape), "softmax")
    return same_shape(specs, params)


def _numpy_softmax(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis = params[0] if out.shape else None

    def softmax(x: Any) -> Any:
        if x.size == 0:
            return x.copy()
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        e /= e.sum(axis=axis, keepdims=True)
        return e

    return softmax


def _numpy_log_softmax(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis = params[0] if out.shape else None

    def log_softmax(x: Any) -> Any:
        if x.size == 0:
            return x.copy()
        moved = x - x.max(axis=axis, keepdims=True)
        return moved - np.log(np.exp(moved).sum(axis=axis, keepdims=True))

    return log_softmax


def _numpy_softmax_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis = params[0] if out.shape else None
    return lambda g, y: y * (g - (g * y).sum(axis=axis, keepdims=True))


def _numpy_log_softmax_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axis = params[0] if out.shape else None
    return lambda g, y: g - np.exp(y) * g.sum(axis=axis, keepdims=True)


def _torch_backward(name: str) -> Any:
    def bind(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
        backward = getattr(torch, name)
        axis, dtype = params[0], out.dtype.torch
        return lambda g, y: backward(g, y, axis, dtype)

    return bind


SOFTMAX_BACKWARD = Op(
    "softmax_backward",
    _along,
    numpy=_numpy_softmax_backward,
    torch=_torch_backward("_softmax_backward_data"),
)
LOG_SOFTMAX_BACKWARD = Op(
    "log_softmax_backward",
    _along,
    numpy=_numpy_log_softmax_backward,
    torch=_torch_backward("_log_softmax_backward_data"),
)


def _softmax_gradient(g: Node, n: Node) -> Node:
    if graph.grad_mode.enabled:
        return mul(n, sub(g, sum(mul(g, n), n.params, True)))
    return apply(SOFTMAX_BACKWARD, (g, n), n.params)


def _log_softmax_gradient(g: Node, n: Node) -> Node:
    if graph.grad_mode.enabled:
        return sub(g, mul(exp(n), sum(g, n.params, True)))
    return apply(LOG_SOFTMAX_BACKWARD, (g, n), n.params)


SOFTMAX = Op(
    "softmax",
    _along,
    numpy=_numpy_softmax,
    torch=lambda torch, specs, params, out: lambda x: torch.softmax(x, params[0]),
    gradients=(_softmax_gradient,),
    saves="o",
)
LOG_SOFTMAX = Op(
    "log_softmax",
    _along,
    numpy=_numpy_log_softmax,
    torch=lambda torch, specs, params, out: lambda x: torch.log_softmax(x, params[0]),
    gradients=(_log_softmax_gradient,),
    saves="o",
)


def _over(op: Op, x: Node, dim: int, dtype: Any) -> Node:
    if dtype is not None:
        x = cast(x, dtypes.of_any(dtype))
    if not is_float(x.spec.dtype):
        raise TypeError(
            f"{op.name}: the tensor is {x.spec.dtype.name}, and must be of floats: "
            "x.to('float32'), or dtype='float32'"
        )
    return apply(op, (x,), (rules.axis_of(dim, len(x.spec.shape), op.name),))


def softmax(x: Node, dim: int, dtype: Any = None) -> Node:
    """The exponentials along an axis, divided by their sum.

    Raises:
        TypeError: the tensor is not of floats, and no ``dtype`` of floats is given.
    """
    return _over(SOFTMAX, x, dim, dtype)


def log_softmax(x: Node, dim: int, dtype: Any = None) -> Node:
    """The logarithm of :func:`softmax`, without its overflow.

    Raises:
        TypeError: the tensor is not of floats, and no ``dtype`` of floats is given.
    """
    return _over(LOG_SOFTMAX, x, dim, dtype)


# ---- bent lines ----------------------------------------------------------------------------------

SQRT_2 = math.sqrt(2.0)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)  # the normal distribution's, at 0
_SCALE, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715  # Hendrycks & Gimpel (2016)


def _gelu_slope(x: Node, approximate: str) -> Node:
    """The derivative, in parts."""
    if approximate == "none":
        inside = mul(add(erf(mul(x, 1 / SQRT_2)), 1.0), 0.5)
        return add(inside, mul(x, mul(exp(mul(mul(x, x), -0.5)), _DENSITY)))
    square = mul(x, x)
    t = tanh(mul(mul(x, add(mul(square, _CUBIC), 1.0)), _SCALE))
    bend = mul(add(mul(square, 3 * _CUBIC), 1.0), _SCALE)
    return add(mul(add(t, 1.0), 0.5), mul(mul(mul(x, 0.5), sub(1.0, mul(t, t))), bend))


def _gelu_gradient(g: Node, n: Node) -> Node:
    (x,) = n.inputs
    if graph.grad_mode.enabled:
        return mul(g, _gelu_slope(x, n.params[0]))
    return apply(GELU_BACKWARD, (g, x), n.params)


def _numpy_gelu(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    if params[0] == "tanh":
        return lambda x: 0.5 * x * (1 + np.tanh(_SCALE * (x + _CUBIC * x * x * x)))
    dtype, each = out.dtype.numpy, numpy_erf(np)
    return lambda x: (0.5 * x * (1 + each(x * (1 / SQRT_2)))).astype(dtype)


def _numpy_gelu_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    if params[0] == "tanh":

        def backward(g: Any, x: Any) -> Any:
            t = np.tanh(_SCALE * (x + _CUBIC * x * x * x))
            bend = _SCALE * (1 + 3 * _CUBIC * x * x)
            return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * bend)

        return backward
    dtype, each = out.dtype.numpy, numpy_erf(np)
    return lambda g, x: (
        g * (0.5 * (1 + each(x * (1 / SQRT_2))) + x * np.exp(-0.5 * x * x) * _DENSITY)
    ).astype(dtype)


def _torch_gelu(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    gelu, approximate = torch.nn.functional.gelu, params[0]
    return lambda x: gelu(x, approximate=approximate)


def _torch_gelu_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    backward, approximate = torch.ops.aten.gelu_backward.default, params[0]
    return lambda g, x: backward(g, x, approximate=approximate)


GELU_BACKWARD = Op(
    "gelu_backward", same_shape, numpy=_numpy_gelu_backward, torch=_torch_gelu_backward
)
GELU = Op(
    "gelu",
    same_shape,
    numpy=_numpy_gelu,
    torch=_torch_gelu,
    gradients=(_gelu_gradient,),
    saves="i",
)


def gelu(x: Node, approximate: str = "none") -> Node:
    """``x * Phi(x)``, Phi the normal distribution function (Hendrycks and Gimpel, 2016).

    ``approximate="tanh"`` is their approximation; ValueError for a word but that and ``"none"``.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")
    return apply(GELU, floats(x), (approximate,))


def _silu_gradient(g: Node, n: Node) -> Node:
    (x,) = n.inputs
    if graph.grad_mode.enabled:
        s = sigmoid(x)
        return mul(g, mul(s, add(mul(x, sub(1.0, s)), 1.0)))
    return apply(SILU_BACKWARD, (g, x))


def _numpy_silu_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    def backward(g: Any, x: Any) -> Any:
        s = 1 / (1 + np.exp(-x))
        return g * s * (1 + x * (1 - s))

    return backward


SILU_BACKWARD = Op(
    "silu_backward",
    same_shape,
    numpy=_numpy_silu_backward,
    torch=lambda torch, *_: torch.ops.aten.silu_backward.default,
)
SILU = Op(
    "silu",
    same_shape,
    numpy=lambda np, *_: lambda x: x / (1 + np.exp(-x)),
    torch=lambda torch, *_: torch.nn.functional.silu,
    gradients=(_silu_gradient,),
    saves="i",
)


def silu(x: Node) -> Node:
    """Each element times its :func:`sigmoid`; floats for integers."""
    return apply(SILU, floats(x))


def _numpy_leaky_relu(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    slope = out.dtype.numpy.type(params[0])
    return lambda x: np.where(x > 0, x, x * slope)


def _torch_leaky_relu(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    leaky_relu, slope = torch.nn.functional.leaky_relu, params[0]
    return lambda x: leaky_relu(x, slope)


LEAKY_RELU = Op(
    "leaky_relu",
    same_shape,
    numpy=_numpy_leaky_relu,
    torch=_torch_leaky_relu,
    gradients=(lambda g, n: where(gt(n.inputs[0], 0), g, mul(g, n.params[0])),),
    saves="i",
)


def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """``x`` where positive, ``negative_slope * x`` elsewhere."""
    return apply(LEAKY_RELU, floats(x), (float(negative_slope),))


def softplus(x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + exp(beta x)) / beta, without overflow; x where beta x is above ``threshold``."""
    if beta == 1:
        bent = add(maximum(x, 0.0), log1p(exp(neg(abs(x)))))
        return bent if threshold >= 20 else where(gt(x, threshold), x, bent)
    scaled = mul(x, beta)
    return where(gt(scaled, threshold), x, mul(softplus(scaled), 1 / beta))


# ---- dropout -------------------------------------------------------------------------------------


def dropout(x: Node, p: float = 0.5, training: bool = True) -> Node:
    """Each element is set to 0 with probability ``p``; the others are divided by 1 - p.

    Unless ``training``, the tensor is returned unchanged. Each call draws a new mask.

    Raises:
        ValueError: ``p`` is no probability.
        TypeError: the tensor is not of floats.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p={p} must be a probability, 0 to 1")
    if not is_float(x.spec.dtype):
        raise TypeError(f"dropout: the tensor is {x.spec.dtype.name}, and must be of floats")
    if not training or p == 0:
        return x
    if p == 1:
        return mul(x, 0.0)
    drawn = creation.random(creation.RAND, x.spec.shape, x.spec.dtype)
    return mul(x, mul(cast(ge(drawn, p), x.spec.dtype), 1.0 / (1.0 - p)))
