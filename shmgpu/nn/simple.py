"""Layers without parameters: each is one operation, so that it can be part of a Sequential.

The one exception is PReLU, whose operation has a weight. Owns their options. Never computes.
"""

from __future__ import annotations

from typing import Any

from shmgpu.nn import functional as F
from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, full


class _Operation(Module):
    """One operation with settings, which are the layer's arguments and its attributes."""

    operation: str
    defaults: tuple[tuple[str, Any], ...] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        names = [name for name, _ in self.defaults]
        if len(given) > len(names) or not set(named) <= set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no arguments'}")
        settings = {**dict(self.defaults), **dict(zip(names, given, strict=False)), **named}
        for name, value in settings.items():
            setattr(self, name, value)

    @property
    def settings(self) -> dict[str, Any]:
        """The operation's arguments besides the tensor."""
        return {name: getattr(self, name) for name, _ in self.defaults}

    def forward(self, x: Tensor) -> Any:
        """The operation."""
        call = getattr(F, self.operation, None) or FUNCTIONS[self.operation]
        return call(x, **self.settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return ", ".join(
            f"{name}={value!r}"
            for name, value in self.settings.items()
            if name != "inplace" or value
        )


_INPLACE = ("inplace", False)


class Identity(Module):
    """Returns its input. All arguments of the constructor are ignored."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """The same."""
        return x


# ---- activations ---------------------------------------------------------------------------------


class ReLU(_Operation):
    """Negative elements become 0."""

    operation = "relu"
    defaults = (_INPLACE,)


class ReLU6(_Operation):
    """Elements limited to the range from 0 to 6."""

    operation = "relu6"
    defaults = (_INPLACE,)


class LeakyReLU(_Operation):
    """Negative elements are multiplied by ``negative_slope`` (0.01)."""

    operation = "leaky_relu"
    defaults = (("negative_slope", 0.01), _INPLACE)


class PReLU(Module):
    """Negative elements are multiplied by a learned weight (He et al., 2015).

    Args:
        num_parameters: one for all, or one for each channel of (N, channels, ...).
        init: what the weights begin with.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the weights, float32 by default.
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype or "float32"))

    def forward(self, x: Tensor) -> Any:
        """The same shape."""
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """Its size."""
        return f"num_parameters={self.num_parameters}"


class ELU(_Operation):
    """Negative elements become ``alpha * (exp(x) - 1)``."""

    operation = "elu"
    defaults = (("alpha", 1.0), _INPLACE)


class CELU(_Operation):
    """Negative elements become ``alpha * (exp(x / alpha) - 1)``."""

    operation = "celu"
    defaults = (("alpha", 1.0), _INPLACE)


class SELU(_Operation):
    """ELU, scaled so that mean 0 and variance 1 are kept (Klambauer et al., 2017)."""

    operation = "selu"
    defaults = (_INPLACE,)


class GELU(_Operation):
    """``x * Phi(x)``, Phi the normal distribution function; ``approximate="tanh"`` costs less."""

    operation = "gelu"
    defaults = (("approximate", "none"),)


class SiLU(_Operation):
    """x times its sigmoid."""

    operation = "silu"
    defaults = (_INPLACE,)


class Mish(_Operation):
    """``x * tanh(softplus(x))`` (Misra, 2019)."""

    operation = "mish"
    defaults = (_INPLACE,)


class Hardswish(_Operation):
    """x times its hard sigmoid (Howard et al., 2019)."""

    operation = "hardswish"
    defaults = (_INPLACE,)


class Sigmoid(_Operation):
    """1 / (1 + exp(-x))."""

    operation = "sigmoid"


class LogSigmoid(_Operation):
    """The logarithm of the sigmoid."""

    operation = "logsigmoid"


class Hardsigmoid(_Operation):
    """A piecewise linear sigmoid: 0 below -3, 1 above 3."""

    operation = "hardsigmoid"
    defaults = (_INPLACE,)


class Tanh(_Operation):
    """The hyperbolic tangent."""

    operation = "tanh"


class Hardtanh(_Operation):
    """Elements limited to the range from ``min_val`` to ``max_val``."""

    operation = "hardtanh"
    defaults = (("min_val", -1.0), ("max_val", 1.0), _INPLACE)


class Softplus(_Operation):
    """log(1 + exp(beta x)) / beta; x where ``beta * x`` is above ``threshold``."""

    operation = "softplus"
    defaults = (("beta", 1.0), ("threshold", 20.0))


class Softsign(_Operation):
    """``x / (1 + abs(x))``."""

    operation = "softsign"


class Tanhshrink(_Operation):
    """``x - tanh(x)``."""

    operation = "tanhshrink"


class Softshrink(_Operation):
    """Nearer to 0 by ``lambd``; 0 within it."""

    operation = "softshrink"
    defaults = (("lambd", 0.5),)

    def extra_repr(self) -> str:
        """The limit."""
        return str(self.lambd)


class Hardshrink(Softshrink):
    """x itself; 0 within ``lambd`` of 0."""

    operation = "hardshrink"


class GLU(_Operation):
    """The first half of an axis times the sigmoid of the second (Dauphin et al., 2017)."""

    operation = "glu"
    defaults = (("dim", -1),)


class Softmax(_Operation):
    """Exponentials along ``dim``, divided by their sum."""

    operation = "softmax"
    defaults = (("dim", -1),)


class Softmin(_Operation):
    """The softmax of the negated input along ``dim``."""

    operation = "softmin"
    defaults = (("dim", -1),)


class LogSoftmax(_Operation):
    """Logarithms of the softmax along ``dim``."""

    operation = "log_softmax"
    defaults = (("dim", -1),)


# ---- shapes --------------------------------------------------------------------------------------


class Flatten(_Operation):
    """Axes ``start_dim`` to ``end_dim`` merged into one."""

    operation = "flatten"
    defaults = (("start_dim", 1), ("end_dim", -1))


class Unflatten(Module):
    """One axis as several.

    Args:
        dim: the axis.
        unflattened_size: the lengths of those that it becomes; one may be -1.
    """

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Any:
        """More axes, the same elements."""
        if not -x.ndim <= self.dim < x.ndim:
            raise IndexError(f"Unflatten: dim={self.dim} is out of range for {x.ndim} axes")
        axis = self.dim % x.ndim
        return x.reshape(*x.shape[:axis], *self.unflattened_size, *x.shape[axis + 1 :])

    def extra_repr(self) -> str:
        """Its settings."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


# ---- windows -------------------------------------------------------------------------------------


class _Pool(_Operation):
    """A pool, whose stride is its window by default."""

    kernel_size: Any
    stride: Any

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.stride is None:
            self.stride = self.kernel_size


class _MaxPool(_Pool):
    """The largest of each window; with ``ceil_mode`` one may reach beyond the last element."""

    defaults = (
        ("kernel_size", 2),
        ("stride", None),
        ("padding", 0),
        ("dilation", 1),
        ("return_indices", False),
        ("ceil_mode", False),
    )

    def extra_repr(self) -> str:
        """Its settings, as PyTorch tells them."""
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class MaxPool1d(_MaxPool):
    """The largest element of each window of a signal, (N, C, L)."""

    operation = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest element of each window."""

    operation = "max_pool2d"


_MEAN = (("kernel_size", 2), ("stride", None), ("padding", 0))
_EDGES = (("ceil_mode", False), ("count_include_pad", True))


class _AvgPool(_Pool):
    """The mean of each window; what counts at the edges is as for :func:`shmgpu.avg_pool2d`."""

    def extra_repr(self) -> str:
        """Its sizes, as PyTorch tells them."""
        return ", ".join(f"{name}={getattr(self, name)}" for name, _ in _MEAN)


class AvgPool1d(_AvgPool):
    """The mean of each window of a signal, (N, C, L)."""

    operation = "avg_pool1d"
    defaults = (*_MEAN, *_EDGES)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for name, _ in _MEAN:  # one of each axis, as PyTorch has them
            value = getattr(self, name)
            setattr(self, name, (value,) if isinstance(value, int) else tuple(value))


class AvgPool2d(_AvgPool):
    """The mean of each window."""

    operation = "avg_pool2d"
    defaults = (*_MEAN, *_EDGES, ("divisor_override", None))


class AdaptiveAvgPool1d(_Operation):
    """The means of ``output_size`` windows of a signal, (N, C, L)."""

    operation = "adaptive_avg_pool1d"
    defaults = (("output_size", 1),)


class AdaptiveAvgPool2d(_Operation):
    """The means of as many windows as ``output_size`` says: one number, or rows and columns."""

    operation = "adaptive_avg_pool2d"
    defaults = (("output_size", 1),)


class AdaptiveMaxPool1d(_Operation):
    """The largest elements of ``output_size`` windows of a signal, (N, C, L)."""

    operation = "adaptive_max_pool1d"
    defaults = (("output_size", 1), ("return_indices", False))

    def extra_repr(self) -> str:
        """The size."""
        return f"output_size={self.output_size!r}"


class AdaptiveMaxPool2d(AdaptiveMaxPool1d):
    """The largest elements of as many windows as ``output_size`` says."""

    operation = "adaptive_max_pool2d"


class Upsample(_Operation):
    """Resizes images, (N, C, ...), to ``size``, or by ``scale_factor``."""

    operation = "interpolate"
    defaults = (
        ("size", None),
        ("scale_factor", None),
        ("mode", "nearest"),
        ("align_corners", None),
        ("recompute_scale_factor", None),
    )

    def extra_repr(self) -> str:
        """The setting that was given."""
        by = self.size is None
        given = f"scale_factor={self.scale_factor!r}" if by else f"size={self.size!r}"
        return f"{given}, mode={self.mode!r}"


class PixelShuffle(_Operation):
    """Channels as finer pixels: (..., C r r, H, W) -> (..., C, H r, W r) (Shi et al., 2016)."""

    operation = "pixel_shuffle"
    defaults = (("upscale_factor", 2),)


class PixelUnshuffle(_Operation):
    """Pixels as channels: (..., C, H r, W r) -> (..., C r r, H, W), where r is the factor."""

    operation = "pixel_unshuffle"
    defaults = (("downscale_factor", 2),)


# ---- dropout -------------------------------------------------------------------------------------


class Dropout(_Operation):
    """In training, elements become 0 with probability ``p``; the others are divided by 1 - p."""

    operation = "dropout"
    defaults = (("p", 0.5), _INPLACE)

    def forward(self, x: Tensor) -> Any:
        """The input in evaluation; in training, with elements dropped."""
        return getattr(F, self.operation)(x, training=self.training, **self.settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """In training each channel of a signal is 0 with probability ``p``."""

    operation = "dropout1d"


class Dropout2d(Dropout):
    """In training each channel of an image is 0 with probability ``p`` (Tompson et al., 2015)."""

    operation = "dropout2d"


class PairwiseDistance(Module):
    """The p-norm of the difference of vectors along the last axis, to which ``eps`` is added."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Any:
        """Without the last axis, or with one of length 1."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along ``dim``; norms are at least ``eps``."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Any:
        """Without that axis."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)
