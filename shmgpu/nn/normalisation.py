"""Layers that normalise: over features, over the batch, over groups and single channels.

Owns the running statistics: buffers that are updated in training. Never updates them in evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.nn import functional as F
from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor, ones, tensor, zeros


class _Affine(Module):
    """A weight of ones and a bias of zeros, or None in their places."""

    def _begin(self, shape: tuple[int, ...], weight: bool, bias: bool, dtype: Any) -> None:
        kind = dtype or "float32"
        self.register_parameter("weight", Parameter(ones(shape, dtype=kind)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(shape, dtype=kind)) if bias else None)


class LayerNorm(_Affine):
    """Normalises to mean 0 and variance 1 over the last axes, then times weight plus bias.

    Args:
        normalized_shape: lengths of these axes.
        eps: added to the variance.
        elementwise_affine: whether there are weight (ones at first) and bias (zeros).
        bias: whether there is a bias, if there is a weight.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        has_bias = elementwise_affine and bias
        self._begin(self.normalized_shape, elementwise_affine, has_bias, dtype)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Its sizes."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


def _shape(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class RMSNorm(_Affine):
    """Divides by the root mean square over the last axes, then times weight.

    Args:
        normalized_shape: lengths of these axes.
        eps: added to the mean square; the type's epsilon by default.
        elementwise_affine: whether there is a weight (ones at first).
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._begin(self.normalized_shape, elementwise_affine, False, dtype)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Its sizes."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(_Affine):
    """Normalises groups of channels of each example to mean 0 and variance 1 (Wu and He, 2018).

    Args:
        num_groups: into which the channels are divided evenly.
        num_channels: channels of the input, (N, num_channels, ...).
        eps: added to the variance.
        affine: whether there are weight (ones at first) and bias (zeros).
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
        bias: whether there is a bias, if there is a weight.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}"
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine = affine
        self._begin((num_channels,), affine, affine and bias, dtype)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Its sizes."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _RunningStatistics(_Affine):
    """Statistics of what came by in training, as buffers of PyTorch's names."""

    axes: tuple[int, ...]  # how many the input may have

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._begin((num_features,), affine, affine and bias, dtype)
        self.register_buffer("running_mean", None)
        self.register_buffer("running_var", None)
        self.register_buffer("num_batches_tracked", None)
        if track_running_stats:
            kind = dtype or "float32"
            self.running_mean = zeros(num_features, dtype=kind)
            self.running_var = ones(num_features, dtype=kind)
            self.num_batches_tracked = tensor(np.array(0))

    def reset_running_stats(self) -> None:
        """As if nothing had come by."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def _check(self, x: Tensor) -> None:
        if x.ndim not in self.axes:
            raise ValueError(
                f"{type(self).__name__}: the input {x.shape} must have "
                f"{' or '.join(map(str, self.axes))} axes"
            )

    def _share(self) -> Any:
        """How far the running statistics go, in training; the batches are counted."""
        if not self.training or self.num_batches_tracked is None:
            return None  # they stay as they are
        with no_grad():
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean of all batches
                return 1.0 / self.num_batches_tracked.to("float32")
        return self.momentum

    def extra_repr(self) -> str:
        """Its sizes."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningStatistics):
    """Each channel to mean 0 and variance 1: over the batch in training, else as tracked."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype, bias)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        self._check(x)
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self._share(),
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Normalises each feature to mean 0 and variance 1 over the batch (Ioffe and Szegedy, 2015).

    In training the batch's statistics are used, and the running statistics are updated; in
    evaluation the running statistics are used.

    Args:
        num_features: channels of the input, (N, num_features) or (N, num_features, L).
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for the mean of all batches.
        affine: whether there are weight (ones at first) and bias (zeros).
        track_running_stats: whether there are running statistics; without, the batch's are used
            in evaluation, too.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of parameters and statistics, float32 by default.
        bias: whether there is a bias, if there is a weight.
    """

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalises each channel of images to mean 0 and variance 1 over the batch.

    The input is (N, num_features, H, W); the arguments are those of :class:`BatchNorm1d`.
    """

    axes = (4,)


class _InstanceNorm(_RunningStatistics):
    """Each channel of each example to mean 0 and variance 1."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype, bias)

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        self._check(x)
        single = x.ndim < max(self.axes)
        out = F.instance_norm(
            x.unsqueeze(0) if single else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum,
            self.eps,
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """Normalises each channel of each signal, (N, num_features, L), to mean 0 and variance 1.

    The arguments are those of :class:`InstanceNorm2d`.
    """

    axes = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalises each channel of each image to mean 0 and variance 1 (Ulyanov et al., 2016).

    Args:
        num_features: channels of the input, (N, num_features, H, W).
        eps: added to the variance.
        momentum: weight of a batch in the running statistics.
        affine: whether there are weight (ones at first) and bias (zeros).
        track_running_stats: whether there are running statistics, which are used in evaluation.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of parameters and statistics, float32 by default.
        bias: whether there is a bias, if there is a weight.
    """

    axes = (3, 4)
