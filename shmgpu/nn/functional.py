"""Layers as functions, in PyTorch's signatures: ``import shmgpu.nn.functional as F``.

Operations of :mod:`shmgpu` with other parameters than torch's functions of the same names are given
theirs here; the others are the same functions. Never computes: all of them record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmgpu.ops import (
    batch_normalising,
    distances,
    nonlinearities,
    promotion,
    resampling,
    rules,
    signals,
    updates,
)
from shmgpu.ops.casting import cast
from shmgpu.ops.promotion import is_float
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, ones, rand, recording

FOUND: dict[str, Callable[..., Any]] = {
    name: recording(getattr(family, name))
    for family, names in (
        (nonlinearities, "elu celu selu mish logsigmoid softsign tanhshrink softshrink hardshrink"),
        (nonlinearities, "hardtanh relu6 hardsigmoid hardswish threshold softmin prelu glu"),
        (batch_normalising, "group_norm rms_norm normalize"),
        (signals, "conv1d conv_transpose1d conv_transpose2d max_pool1d avg_pool1d"),
        (resampling, "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d"),
        (resampling, "adaptive_max_pool2d interpolate pixel_shuffle pixel_unshuffle"),
        (distances, "cosine_embedding_loss margin_ranking_loss"),
        (distances, "hinge_embedding_loss soft_margin_loss pairwise_distance poisson_nll_loss"),
        (distances, "triplet_margin_loss gaussian_nll_loss kl_div smooth_l1_loss huber_loss"),
    )
    for name in names.split()
}
# Functions of shmgpu whose parameters are torch's already.
FOUND |= {
    name: FUNCTIONS[name]
    for name in (
        "relu sigmoid tanh softmax log_softmax gelu silu leaky_relu softplus layer_norm linear "
        "conv2d max_pool2d avg_pool2d scaled_dot_product_attention mse_loss l1_loss pad "
        "cosine_similarity"
    ).split()
}
_IN_PLACE = (
    "relu elu celu selu silu mish leaky_relu hardtanh relu6 hardsigmoid hardswish threshold"
).split()


def _in_place_too(name: str) -> Callable[..., Any]:
    """The function with ``inplace``, which stands last."""
    call = FOUND[name]
    count = len(inspect.signature(call).parameters) - 1

    def activate(input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Tensor:
        if len(args) > count:
            *args, inplace = args  # type: ignore[assignment]
        out: Tensor = call(input, *args, **kwargs)
        return input._updated(out._node) if inplace else out

    activate.__name__ = activate.__qualname__ = name
    activate.__dict__["records_as"] = call  # without ``inplace``
    activate.__doc__ = f"{inspect.getdoc(call)}\n\nWith ``inplace`` the input becomes the result."
    return activate


FOUND |= {name: _in_place_too(name) for name in _IN_PLACE}


# ---- dropout -------------------------------------------------------------------------------------


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element is set to 0 with probability ``p``; the others are divided by 1 - p.

    Raises:
        ValueError: ``p`` is no probability.
        TypeError: the tensor is not of floats.
    """
    out: Tensor = FUNCTIONS["dropout"](input, p, training)
    return input._updated(out._node) if inplace else out


def _of_channels(name: str, places: tuple[int, ...]) -> Callable[..., Tensor]:
    """Dropout of whole channels: one number is drawn for each."""

    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if input.ndim not in places:
            raise ValueError(f"{name}: the input {input.shape} must have {places} axes")
        if not is_float(input.dtype):
            raise TypeError(f"{name}: the tensor is {input.dtype.name}, and must be of floats")
        if not 0 <= p <= 1:
            raise ValueError(f"{name}: p={p} must be a probability, 0 to 1")
        if not training or p == 0:
            return input
        channels = places[-1] - 2  # axes of places
        shape = (*input.shape[: input.ndim - channels], *[1] * channels)
        out = input * dropout(ones(shape, dtype=input.dtype), p)
        return input._updated(out._node) if inplace else out

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = "Whole channels are set to 0 with probability ``p``; see :func:`dropout`."
    return drop


FOUND["dropout1d"] = _of_channels("dropout1d", (2, 3))
FOUND["dropout2d"] = _of_channels("dropout2d", (3, 4))


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Dropout that keeps mean and variance after SELU (Klambauer et al., 2017)."""
    if not 0 <= p <= 1:
        raise ValueError(f"alpha_dropout: p={p} must be a probability, 0 to 1")
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0.0
    low = -nonlinearities.SELU_ALPHA * nonlinearities.SELU_SCALE
    a = ((1 - p) * (1 + p * low * low)) ** -0.5
    kept = FUNCTIONS["ge"](rand(input.shape, dtype=input.dtype), p)
    out: Tensor = FUNCTIONS["where"](kept, input, low) * a - a * low * p
    return out


# ---- normalising ---------------------------------------------------------------------------------

_in_training = recording(batch_normalising.batch_norm_in_training)
_by = recording(batch_normalising.batch_norm_by)
_instance_norm = recording(batch_normalising.instance_norm)


def _follow(running: Tensor | None, value: Tensor, share: Any) -> None:
    """A running statistic goes that share of the way to the batch's."""
    if running is None:
        return
    with no_grad():
        if isinstance(share, Tensor):
            running.copy_(running * (1 - share) + value * share)
            return
        before, dtype = running._node, running.dtype
        rest, part = promotion.number(1 - share, dtype), promotion.number(share, dtype)
        made = updates.running_mean(before, cast(value._node, dtype), rest, part)
        running._updated(running._where_it_is(made))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises each channel to mean 0 and variance 1; then times weight plus bias.

    Args:
        input: (N, channels, ...) of floats.
        running_mean: (channels,), updated in training with the batch's means.
        running_var: (channels,), updated in training with the batch's unbiased variances.
        weight: (channels,); ones by default.
        bias: (channels,); zeros by default.
        training: normalise by the batch's statistics instead of the running ones.
        momentum: weight of new statistics in the running ones.
        eps: added to the variance.

    Raises:
        ValueError: there are no channels, no running statistics where they are needed, or in
            training one value of each channel only.
        TypeError: the tensor is not of floats.
    """
    if training:
        out, mean, var = _in_training(input, weight, bias, eps)
        _follow(running_mean, mean, momentum)
        _follow(running_var, var, momentum)
        return out  # type: ignore[no-any-return]
    if running_mean is None or running_var is None:
        raise ValueError("batch_norm: give running_mean and running_var, or training=True")
    found: Tensor = _by(input, running_mean, running_var, weight, bias, eps)
    return found


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises each channel of each example; then times weight plus bias.

    Args:
        input: (N, channels, places...) of floats.
        running_mean: (channels,), updated with the mean of the examples' means.
        running_var: (channels,), updated with the mean of their unbiased variances.
        weight: (channels,); ones by default.
        bias: (channels,); zeros by default.
        use_input_stats: normalise by the input's statistics instead of the running ones.
        momentum: weight of new statistics in the running ones.
        eps: added to the variance.

    Raises:
        ValueError: a channel has one value only, or there are no running statistics to use.
        TypeError: the tensor is not of floats.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    if momentum is not None and (running_mean is not None or running_var is not None):
        with no_grad():
            places = tuple(range(2, input.ndim))
            _follow(running_mean, input.mean(places).mean(0), momentum)
            _follow(running_var, input.var(places).mean(0), momentum)
    found: Tensor = _instance_norm(input, weight, bias, eps)
    return found


# ---- losses --------------------------------------------------------------------------------------


def cross_entropy(
    input: Tensor,
    target: Any,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """As :func:`shmgpu.cross_entropy`."""
    out: Tensor = FUNCTIONS["cross_entropy"](
        input, target, reduction, ignore_index, label_smoothing, weight
    )
    return out


def nll_loss(
    input: Tensor,
    target: Any,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """As :func:`shmgpu.nll_loss`."""
    out: Tensor = FUNCTIONS["nll_loss"](input, target, reduction, ignore_index, weight)
    return out


def binary_cross_entropy(
    input: Tensor, target: Any, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """As :func:`shmgpu.binary_cross_entropy`."""
    out: Tensor = FUNCTIONS["binary_cross_entropy"](input, target, reduction, weight)
    return out


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Any,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """As :func:`shmgpu.binary_cross_entropy_with_logits`."""
    call = FUNCTIONS["binary_cross_entropy_with_logits"]
    out: Tensor = call(input, target, reduction, weight, pos_weight)
    return out


# ---- what else has other parameters ------------------------------------------------------------


NORMS = "limit the norms yourself after a step, with weight.copy_() under no_grad()"
FREQUENT = "gradients are not divided by how often a row is read: do it in a hook of the weight's"
DENSE = "gradients are dense, and optimisers take them so"


def embedding(
    input: Any,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """As :func:`shmgpu.embedding`.

    The settings from ``max_norm`` on have no other value than their defaults: ValueError.
    """
    rules.only(
        "embedding",
        max_norm=(max_norm, None, NORMS),
        norm_type=(norm_type, 2.0, NORMS),
        scale_grad_by_freq=(scale_grad_by_freq, False, FREQUENT),
        sparse=(sparse, False, DENSE),
    )
    out: Tensor = FUNCTIONS["embedding"](input, weight, padding_idx)
    return out


def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """As :func:`shmgpu.one_hot`; unless given the classes are counted, which waits for values."""
    if num_classes == -1:
        num_classes = int(tensor.amax().item()) + 1 if tensor.numel() else 0
    out: Tensor = FUNCTIONS["one_hot"](tensor, num_classes)
    return out


def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A differentiable sample from a categorical distribution (Jang et al., 2017).

    With ``hard``, the result is one-hot, with the gradient of the soft sample. ``eps`` is accepted,
    and changes nothing, as in PyTorch.
    """
    drawn = -(-(rand(logits.shape, dtype=logits.dtype) + 1e-20).log()).log()
    soft: Tensor = FUNCTIONS["softmax"]((logits + drawn) / tau, dim)
    if not hard:
        return soft
    top = FUNCTIONS["eq"](soft, soft.amax(dim, True)).to(soft.dtype).detach()
    straight: Tensor = top - soft.detach() + soft
    return straight


FOUND |= {
    one.__name__: one
    for one in (
        alpha_dropout, batch_norm, binary_cross_entropy, binary_cross_entropy_with_logits,
        cross_entropy, dropout, embedding, gumbel_softmax, instance_norm, nll_loss, one_hot,
    )
}  # fmt: skip

__all__ = sorted(FOUND)


if TYPE_CHECKING:
    from shmgpu.nn.typed_functional import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        found = FOUND.get(name)
        if found is None:
            raise AttributeError(f"module 'shmgpu.nn.functional' has no attribute {name!r}")
        return found


def __dir__() -> list[str]:
    return __all__
