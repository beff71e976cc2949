"""Layer normalisation (Ba, Kiros and Hinton, 2016), and the parts of its gradients.

Owns their rows. What the gradients need of the input (its mean, and one over its deviation) is a
row of its own: both gradients use it, and it is never computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shmgpu.ops import graph
from shmgpu.ops.creation import full
from shmgpu.ops.elementwise import add, mul, rsqrt, sub
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.promotion import as_node, float32, is_float
from shmgpu.ops.reductions import mean
from shmgpu.ops.stretching import sum

Specs = tuple[Spec, ...]


def _shape(specs: Specs, params: Params) -> Spec:
    x, *rest = specs
    count, _ = params
    tail = x.shape[len(x.shape) - count :]
    if not 0 < count <= len(x.shape) or any(one.shape != tail for one in rest):
        raise ValueError(
            f"layer_norm: weight and bias must be of {tail}, the axes that are normalised of "
            f"{x.shape}"
        )
    return x


def _axes(params: Params, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim - params[0], ndim))


def _numpy_layer_norm(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes, eps = _axes(params, len(out.shape)), params[1]

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        centred = x - x.mean(axes, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + eps) * w + b

    return layer_norm


def _torch_layer_norm(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, eps = out.shape[len(out.shape) - params[0] :], params[1]
    return lambda x, w, b: torch.layer_norm(x, shape, w, b, eps)


def _moments(specs: Specs, params: Params) -> Spec:
    (x,) = specs
    count, _ = params
    dtype = float32 if x.dtype.itemsize == 2 else x.dtype
    return spec_of(dtype, (2, *x.shape[: len(x.shape) - count], *[1] * count))


def _numpy_moments(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes, eps = _axes(params, len(specs[0].shape)), params[1]

    def moments(x: Any) -> Any:
        middle = x.mean(axes, keepdims=True)
        centred = x - middle
        return np.stack([middle, 1 / np.sqrt((centred * centred).mean(axes, keepdims=True) + eps)])

    return moments


def _torch_moments(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (spec,) = specs
    shape, eps = spec.shape[len(spec.shape) - params[0] :], params[1]
    dtype = out.dtype.torch
    one: list[Any] = []  # with a weight and a bias torch takes half the time

    def moments(x: Any) -> Any:
        if not one:
            one.extend((x.new_ones(shape), x.new_zeros(shape)))
        _, middle, scale = torch.native_layer_norm(x, shape, *one, eps)
        return torch.stack((middle.to(dtype), scale.to(dtype)))

    return moments


def _torch_backward(which: int) -> Any:
    """One of the gradients, which torch gives all at once."""

    def bind(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
        x = specs[1]
        shape = x.shape[len(x.shape) - params[0] :]
        backward = torch.ops.aten.native_layer_norm_backward.default
        mask = [place == which for place in range(3)]

        def kernel(g: Any, x: Any, w: Any, moments: Any) -> Any:
            # On the CPU torch wants them in the input's type, on CUDA in float32.
            middle, scale = moments.to(x.dtype) if x.device.type == "cpu" else moments
            return backward(g, x, shape, middle, scale, w, None, mask)[which]

        return kernel

    return bind


def _numpy_input(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes = _axes(params, len(out.shape))

    def kernel(g: Any, x: Any, w: Any, moments: Any) -> Any:
        middle, scale = moments
        h = (x - middle) * scale
        g = g * w
        both = (g * h).mean(axes, keepdims=True)
        return (g - g.mean(axes, keepdims=True) - h * both) * scale

    return kernel


def _numpy_weight(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes = tuple(range(len(specs[0].shape) - params[0]))
    return lambda g, x, w, moments: (g * (x - moments[0]) * moments[1]).sum(axes)


MOMENTS = Op("layer_norm_moments", _moments, numpy=_numpy_moments, torch=_torch_moments)
LAYER_NORM_INPUT = Op(
    "layer_norm_input",
    lambda specs, params: specs[1],
    numpy=_numpy_input,
    torch=_torch_backward(0),
)
LAYER_NORM_WEIGHT = Op(
    "layer_norm_weight",
    lambda specs, params: specs[2],
    numpy=_numpy_weight,
    torch=_torch_backward(1),
)


def _normal(x: Node, params: Params) -> tuple[Node, Node, tuple[int, ...]]:
    """The input normalised, one over its deviation, and the axes: in parts."""
    axes = _axes(params, len(x.spec.shape))
    centred = sub(x, mean(x, axes, True))
    scale = rsqrt(add(mean(mul(centred, centred), axes, True), params[1]))
    return mul(centred, scale), scale, axes


def _to_input(g: Node, n: Node) -> Node:
    x, w, _ = n.inputs
    if graph.grad_mode.enabled:
        h, scale, axes = _normal(x, n.params)
        g = mul(g, w)
        rest = add(mean(g, axes, True), mul(h, mean(mul(g, h), axes, True)))
        return mul(sub(g, rest), scale)
    return apply(LAYER_NORM_INPUT, (g, x, w, apply(MOMENTS, (x,), n.params)), n.params)


def _outer(n: Node) -> tuple[int, ...]:
    return tuple(range(len(n.spec.shape) - n.params[0]))


def _to_weight(g: Node, n: Node) -> Node:
    x, w, _ = n.inputs
    if graph.grad_mode.enabled:
        product = mul(g, _normal(x, n.params)[0])
        return sum(product, _outer(n)) if _outer(n) else product
    return apply(LAYER_NORM_WEIGHT, (g, x, w, apply(MOMENTS, (x,), n.params)), n.params)


LAYER_NORM = Op(
    "layer_norm",
    _shape,
    numpy=_numpy_layer_norm,
    torch=_torch_layer_norm,
    gradients=(_to_input, _to_weight, lambda g, n: sum(g, _outer(n)) if _outer(n) else g),
    saves="i",
)


def layer_norm(
    x: Node,
    normalized_shape: int | Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """Normalises to mean 0 and variance 1 over the last axes, then times weight plus bias.

    Args:
        x: floats, (..., *normalized_shape).
        normalized_shape: the lengths of these axes, or of the only one.
        weight: of these axes; ones by default.
        bias: of these axes; zeros by default.
        eps: added to the variance.

    Raises:
        ValueError: the input's shape does not end with these lengths.
        TypeError: the tensor is not of floats.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    have = x.spec.shape
    if not shape or have[len(have) - len(shape) :] != shape:
        raise ValueError(f"layer_norm: normalized_shape={shape} is not a suffix of {have}")
    if not is_float(x.spec.dtype):
        raise TypeError(f"layer_norm: the tensor is {x.spec.dtype.name}, and must be of floats")
    dtype = x.spec.dtype
    if math.prod(have) == 0:
        return x
    w = full(shape, 1, dtype) if weight is None else as_node(weight, dtype)
    b = full(shape, 0, dtype) if bias is None else as_node(bias, dtype)
    return apply(LAYER_NORM, (x, w, b), (len(shape), float(eps)))
