"""Normalising over examples, groups of channels, or by the root of the mean square.

Owns rows for normalising over examples: mean and variance are computed by one row, since the
output, its gradients and the running statistics all need them. The others are compositions; groups
and single channels are normalised by the row of :func:`layer_norm`. Never keeps running statistics:
layers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from shmgpu.ops import graph
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import full
from shmgpu.ops.elementwise import add, clamp, div, mul, rsqrt, sub
from shmgpu.ops.formulas import norm
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.normalising import layer_norm
from shmgpu.ops.promotion import as_node, float32, is_float
from shmgpu.ops.reductions import mean
from shmgpu.ops.shaping import SLICE, reshape
from shmgpu.ops.stretching import sum

Specs = tuple[Spec, ...]


class Normalised(NamedTuple):
    """What a batch became, and the mean and the unbiased variance of each of its channels."""

    output: Node
    mean: Node
    var: Node


def _along_channels(x: Node, values: Node) -> Node:
    """(channels,) so that it stretches over (N, channels, ...)."""
    return reshape(values, (x.spec.shape[1], *[1] * (len(x.spec.shape) - 2)))


def _affine(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """Times weight plus bias, each (channels,)."""
    if weight is not None:
        x = mul(x, _along_channels(x, weight))
    return x if bias is None else add(x, _along_channels(x, bias))


def _check(x: Node, name: str, least: int) -> None:
    if len(x.spec.shape) < least:
        raise ValueError(f"{name}: the input {x.spec.shape} must be (N, channels, ...)")
    if not is_float(x.spec.dtype):
        raise TypeError(f"{name}: the tensor is {x.spec.dtype.name}, and must be of floats")


# ---- rows of the batch's own ----------------------------------------------------------------


def _axes(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def _row(pair: Node, place: int) -> Node:
    """(channels,) of (2, channels)."""
    (_, channels), step = pair.spec.shape, (1, 1)
    row = apply(SLICE, (pair,), ((place, 0), (place + 1, channels), step))
    return reshape(row, (channels,))


def _pair(specs: Specs, params: Params) -> Spec:
    """(2, channels), of halves in float32."""
    x = specs[0]
    return spec_of(float32 if x.dtype.itemsize == 2 else x.dtype, (2, x.shape[1]))


def _numpy_moments(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes, dtype = _axes(len(specs[0].shape)), out.dtype.numpy

    def moments(x: Any) -> Any:
        x = x.astype(dtype, copy=False)
        return np.stack([x.mean(axes), x.var(axes)])

    return moments


def _torch_moments(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    """Moments in two passes; on a host by the quickest kernels for that.

    Of (64, 16, 8, 8) ``var_mean`` takes 296 us, ``batch_norm_update_stats`` 73, and these steps 26,
    with an error of 2e-7 instead of 6e-8; of (128, 64) 3 and 10 us (PyTorch 2.13, float32).
    """
    dtype = out.dtype.torch
    ndim = len(specs[0].shape)
    axes = _axes(ndim)

    def moments(x: Any) -> Any:
        x = x.to(dtype)
        if x.device.type != "cpu":
            spread, middle = torch.var_mean(x, axes, correction=0)
        elif ndim == 2:
            middle, spread = torch.batch_norm_update_stats(x, None, None, 0.0)
        else:
            middle = x.mean(axes)
            off = x - _stretched(middle, ndim)
            spread = off.mul_(off).mean(axes)
        return torch.stack((middle, spread))

    return moments


def _stretched(values: Any, ndim: int) -> Any:
    return values.reshape(-1, *[1] * (ndim - 2))


def _numpy_batch_norm(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    ndim, (eps,) = len(out.shape), params

    def kernel(x: Any, w: Any, b: Any, moments: Any) -> Any:
        middle, spread = moments
        h = (x - _stretched(middle, ndim)) / _stretched(np.sqrt(spread + eps), ndim)
        return (h * _stretched(w, ndim) + _stretched(b, ndim)).astype(out.dtype.numpy, copy=False)

    return kernel


def _torch_batch_norm(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (eps,) = params
    dtype = specs[3].dtype.torch  # torch wants weights and moments of one type

    def kernel(x: Any, w: Any, b: Any, moments: Any) -> Any:
        middle, spread = moments
        return torch.batch_norm(x, w.to(dtype), b.to(dtype), middle, spread, False, 0.0, eps, False)

    return kernel


def _numpy_sums(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    ndim, (eps,), dtype = len(specs[0].shape), params, out.dtype.numpy
    axes = _axes(ndim)

    def kernel(g: Any, x: Any, moments: Any) -> Any:
        middle, spread = moments
        g = g.astype(dtype, copy=False)
        centred = x - _stretched(middle, ndim)
        return np.stack([(g * centred).sum(axes) / np.sqrt(spread + eps), g.sum(axes)])

    return kernel


def _torch_sums(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (eps,), dtype = params, out.dtype.torch
    backward = torch.ops.aten.native_batch_norm_backward.default
    mask = [False, True, True]

    def kernel(g: Any, x: Any, moments: Any) -> Any:
        middle, spread = moments
        scale = torch.rsqrt(spread + eps)
        _, to_weight, to_bias = backward(
            g, x, torch.ones_like(scale), None, None, middle, scale, True, eps, mask
        )
        return torch.stack((to_weight, to_bias)).to(dtype)

    return kernel


def _numpy_input(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    ndim, (eps,) = len(out.shape), params
    axes = _axes(ndim)

    def kernel(g: Any, x: Any, w: Any, moments: Any) -> Any:
        middle, spread = moments
        scale = _stretched(1 / np.sqrt(spread + eps), ndim)
        h = (x - _stretched(middle, ndim)) * scale
        rest = g.mean(axes, keepdims=True) + h * (g * h).mean(axes, keepdims=True)
        made = (g - rest) * scale * _stretched(w, ndim)
        return made.astype(out.dtype.numpy, copy=False)

    return kernel


def _torch_input(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (eps,), dtype = params, specs[3].dtype.torch
    backward = torch.ops.aten.native_batch_norm_backward.default
    mask = [True, False, False]

    def kernel(g: Any, x: Any, w: Any, moments: Any) -> Any:
        middle, spread = moments
        scale = torch.rsqrt(spread + eps)
        return backward(g, x, w.to(dtype), None, None, middle, scale, True, eps, mask)[0]

    return kernel


BATCH_MOMENTS = Op("batch_norm_moments", _pair, numpy=_numpy_moments, torch=_torch_moments)
BATCH_NORM_SUMS = Op("batch_norm_sums", _pair, numpy=_numpy_sums, torch=_torch_sums)
BATCH_NORM_INPUT = Op(
    "batch_norm_input", lambda specs, params: specs[1], numpy=_numpy_input, torch=_torch_input
)


def _normal(n: Node) -> tuple[Node, Node, tuple[int, ...]]:
    """The input normalised, one over its deviation, and the axes: in parts."""
    x = n.inputs[0]
    axes = _axes(len(x.spec.shape))
    centred = sub(x, mean(x, axes, True))
    scale = rsqrt(add(mean(mul(centred, centred), axes, True), n.params[0]))
    return mul(centred, scale), scale, axes


def _to_input(g: Node, n: Node) -> Node:
    x, w, _, moments = n.inputs
    if graph.grad_mode.enabled:
        h, scale, axes = _normal(n)
        g = mul(g, _along_channels(x, w))
        rest = add(mean(g, axes, True), mul(h, mean(mul(g, h), axes, True)))
        return mul(sub(g, rest), scale)
    return apply(BATCH_NORM_INPUT, (g, x, w, moments), n.params)


def _to_parameter(place: int) -> Any:
    def gradient(g: Node, n: Node) -> Node:
        x, w, _, moments = n.inputs
        if graph.grad_mode.enabled:
            h, _, axes = _normal(n)
            return sum(g if place else mul(g, h), axes)
        return cast(_row(apply(BATCH_NORM_SUMS, (g, x, moments), n.params), place), w.spec.dtype)

    return gradient


BATCH_NORM = Op(
    "batch_norm",
    lambda specs, params: specs[0],
    numpy=_numpy_batch_norm,
    torch=_torch_batch_norm,
    gradients=(_to_input, _to_parameter(0), _to_parameter(1), None),
    saves="i",
)


def batch_norm_in_training(
    x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Normalised:
    """Each channel to mean 0 and variance 1 over the batch, times weight plus bias.

    Ioffe and Szegedy, Batch Normalization, 2015.

    Args:
        x: (N, channels, ...) of floats.
        weight: (channels,); ones by default.
        bias: (channels,); zeros by default.
        eps: added to the variance.

    Raises:
        ValueError: there are no channels, or one value of each only.
        TypeError: the tensor is not of floats.
    """
    _check(x, "batch_norm", 2)
    shape = x.spec.shape
    count = math.prod(shape) // max(shape[1], 1)
    if count == 1:
        raise ValueError(
            f"batch_norm: in training it needs more than one value of each channel, and {shape} "
            "has one: give more examples, or call eval()"
        )
    channels = (shape[1],)
    dtype = x.spec.dtype
    moments = apply(BATCH_MOMENTS, (x,), ())
    if count:
        w = full(channels, 1, dtype) if weight is None else as_node(weight, dtype)
        b = full(channels, 0, dtype) if bias is None else as_node(bias, dtype)
        out = apply(BATCH_NORM, (x, w, b, moments), (float(eps),))
    else:
        out = x
    unbiased = mul(_row(moments, 1), count / max(count - 1, 1))
    return Normalised(out, _row(moments, 0), unbiased)


def batch_norm_by(
    x: Node,
    running_mean: Node,
    running_var: Node,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """Each channel less this mean, by the root of this variance, times weight plus bias.

    Args:
        x: (N, channels, ...) of floats.
        running_mean: (channels,).
        running_var: (channels,).
        weight: (channels,); ones by default.
        bias: (channels,); zeros by default.
        eps: added to the variance.

    Raises:
        ValueError: there are no channels.
        TypeError: the tensor is not of floats.
    """
    _check(x, "batch_norm", 2)
    scale = rsqrt(add(running_var, eps))
    if weight is not None:
        scale = mul(scale, weight)
    out = mul(sub(x, _along_channels(x, running_mean)), _along_channels(x, scale))
    return out if bias is None else add(out, _along_channels(x, bias))


def group_norm(
    x: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """Normalises groups of channels of each example; then times weight plus bias.

    Wu and He, Group Normalization, 2018.

    Args:
        x: (N, channels, ...) of floats.
        num_groups: into which the channels are divided evenly.
        weight: (channels,); ones by default.
        bias: (channels,); zeros by default.
        eps: added to the variance.

    Raises:
        ValueError: the groups do not divide the channels.
        TypeError: the tensor is not of floats.
    """
    _check(x, "group_norm", 2)
    shape = x.spec.shape
    if num_groups < 1 or shape[1] % num_groups:
        raise ValueError(f"group_norm: num_groups={num_groups} must divide {shape[1]} channels")
    if math.prod(shape) == 0:
        return x
    length = math.prod(shape[1:]) // num_groups
    grouped = reshape(x, (shape[0], num_groups, length))
    return _affine(reshape(layer_norm(grouped, length, eps=eps), shape), weight, bias)


def instance_norm(
    x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """Normalises each channel of each example; then times weight plus bias.

    Ulyanov et al., Instance Normalization, 2016. The input is (N, channels, places...) of floats.

    Raises:
        ValueError: a channel has one value only, or none.
        TypeError: the tensor is not of floats.
    """
    _check(x, "instance_norm", 3)
    shape = x.spec.shape
    if math.prod(shape[2:]) < 2:
        raise ValueError(f"instance_norm: each channel of {shape} needs more than one value")
    return group_norm(x, shape[1], weight, bias, eps)


def rms_norm(
    x: Node,
    normalized_shape: int | Sequence[int],
    weight: Node | None = None,
    eps: float | None = None,
) -> Node:
    """Divides by the root mean square over the last axes, then times weight.

    Args:
        x: floats, (..., *normalized_shape).
        normalized_shape: the lengths of these axes, or of the only one.
        weight: of these axes; ones by default.
        eps: added to the mean square; the type's epsilon by default.

    Raises:
        ValueError: the input's shape does not end with these lengths.
        TypeError: the tensor is not of floats.
    """
    _check(x, "rms_norm", 0)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    have = x.spec.shape
    if not shape or have[len(have) - len(shape) :] != shape:
        raise ValueError(f"rms_norm: normalized_shape={shape} is not a suffix of {have}")
    eps = EPSILON[x.spec.dtype.name] if eps is None else eps
    axes = tuple(range(len(have) - len(shape), len(have)))
    out = mul(x, rsqrt(add(mean(mul(x, x), axes, True), eps)))
    return out if weight is None else mul(out, weight)


# The distance from 1 to the next greater number.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def normalize(x: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Node:
    """Vectors along an axis divided by their p-norms, which count as ``eps`` at least.

    ``p`` is as for :func:`shmgpu.norm`: a number, or infinity.

    Raises:
        TypeError: the tensor is not of floats.
    """
    return div(x, clamp(norm(x, p, dim, True), eps))
