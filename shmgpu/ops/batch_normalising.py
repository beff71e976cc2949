"""Normalising over examples, groups of channels, or by the root of the mean square.

Compositions. Groups and single channels are normalised by the row of :func:`layer_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shmgpu.ops.elementwise import abs, add, div, maximum, mul, pow, rsqrt, sqrt, sub
from shmgpu.ops.graph import Node
from shmgpu.ops.normalising import layer_norm
from shmgpu.ops.promotion import is_float
from shmgpu.ops.reductions import mean
from shmgpu.ops.shaping import reshape
from shmgpu.ops.stretching import sum


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


def batch_norm_in_training(
    x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Normalised:
    """Each channel to mean 0 and variance 1 over the batch, times weight plus bias.

    Ioffe and Szegedy, Batch Normalization, 2015.

    Args:
        x: (N, channels, ...) of floats.
        weight: (channels,); ones unless given.
        bias: (channels,); zeros unless given.
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
    axes = (0, *range(2, len(shape)))
    middle = mean(x, axes, True)
    centred = sub(x, middle)
    spread = mean(mul(centred, centred), axes, True)
    scale = rsqrt(add(spread, eps))
    if weight is not None:
        scale = mul(scale, _along_channels(x, weight))
    out = mul(centred, scale)
    if bias is not None:
        out = add(out, _along_channels(x, bias))
    channels = (shape[1],)
    unbiased = mul(spread, count / max(count - 1, 1))
    return Normalised(out, reshape(middle, channels), reshape(unbiased, channels))


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
        weight: (channels,); ones unless given.
        bias: (channels,); zeros unless given.
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
    """Each group of an example's channels to mean 0 and variance 1, times weight plus bias.

    Wu and He, Group Normalization, 2018.

    Args:
        x: (N, channels, ...) of floats.
        num_groups: into which the channels fall evenly.
        weight: (channels,); ones unless given.
        bias: (channels,); zeros unless given.
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
    """Each channel of each example to mean 0 and variance 1, times weight plus bias.

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
    """By the root of the mean square over the last axes, times weight (Zhang and Sennrich, 2019).

    Args:
        x: floats, (..., *normalized_shape).
        normalized_shape: the lengths of these axes, or that of the one.
        weight: of these axes; ones unless given.
        eps: added to the mean square; the type's epsilon unless given.

    Raises:
        ValueError: the shape does not end like that.
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
    """Vectors along an axis divided by their p-norms, or by ``eps`` where these are less."""
    if p == 2:
        norm = sqrt(sum(mul(x, x), dim, True))
    else:
        norm = pow(sum(pow(abs(x), p), dim, True), 1 / p)
    return div(x, maximum(norm, eps))
