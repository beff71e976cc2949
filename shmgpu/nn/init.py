"""How parameters begin: functions that fill a tensor in place and return it, as torch.nn.init.

Owns the formulas for ranges and deviations. Random numbers follow :func:`shmgpu.manual_seed`.
``orthogonal_`` and ``trunc_normal_`` draw in the calling process, because tensors have no
decomposition and no rejection sampling. Never records for gradients.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shmgpu.common import seeding
from shmgpu.tensors.factories import eye
from shmgpu.tensors.generators import Generator, seeds_of
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor, rand, randn
from shmgpu.tensors.tensor import tensor as tensor_of

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def __dir__() -> list[str]:
    return __all__


# By how much a layer's weights must be greater, for each function that follows it, to keep the
# variance.
GAINS = {
    **dict.fromkeys(("linear", "sigmoid", "conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which initial weights keep the variance through a nonlinearity.

    Args:
        nonlinearity: ``"linear"``, ``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"sigmoid"``,
            ``"selu"``, or a convolution's name.
        param: the slope of a leaky ReLU, 0.01 by default.

    Raises:
        ValueError: another word.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        known = ", ".join([*GAINS, "leaky_relu"])
        raise ValueError(f"calculate_gain: nonlinearity={nonlinearity!r} must be one of {known}")
    return GAINS[nonlinearity]


def _filled(tensor: Tensor, value: Any) -> Tensor:
    with no_grad():
        tensor.copy_(value)
    return tensor


def constant_(tensor: Tensor, val: float) -> Tensor:
    """All of one value."""
    with no_grad():
        tensor.fill_(val)
    return tensor


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


Source = Generator | None  # what decides which numbers are drawn


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Source = None) -> Tensor:
    """Drawn uniformly from ``a`` to ``b``."""
    drawn = rand(tensor.shape, dtype=tensor.dtype, generator=generator)
    return _filled(tensor, drawn * (b - a) + a)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Source = None
) -> Tensor:
    """Drawn from a normal distribution."""
    drawn = randn(tensor.shape, dtype=tensor.dtype, generator=generator)
    return _filled(tensor, drawn * std + mean)


def _here(generator: Source) -> np.random.Generator:
    """Draws in this process, and follows a seed of tensors, as each draw of theirs does."""
    return np.random.Generator(np.random.Philox(seeding.mixed(seeds_of(generator).next())))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Source = None,
) -> Tensor:
    """Drawn from a normal distribution truncated to the range from ``a`` to ``b``.

    Raises:
        ValueError: ``a`` is not below ``b``, or both lie more than four deviations to one side.
    """
    low, high = (a - mean) / std, (b - mean) / std
    if not low < high or low > 4 or high < -4:
        raise ValueError(
            f"trunc_normal_: of mean {mean} and std {std} next to none lies in {a} to {b}"
        )
    here = _here(generator)
    drawn = here.standard_normal(tensor.numel())
    while True:
        (outside,) = ((drawn < low) | (drawn > high)).nonzero()
        if not len(outside):
            break
        drawn[outside] = here.standard_normal(len(outside))
    return _filled(tensor, tensor_of(drawn.reshape(tensor.shape) * std + mean))


def eye_(tensor: Tensor) -> Tensor:
    """A matrix with ones on its diagonal; ValueError for what is no matrix."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: the tensor {tensor.shape} must have two axes")
    return _filled(tensor, eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Filters of a convolution that pass on as many channels as possible unchanged.

    Raises:
        ValueError: the tensor has not three to five axes, or the groups do not divide the first.
    """
    shape = tensor.shape
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ValueError(f"dirac_: {shape} must have 3 to 5 axes, the first divided by {groups}")
    filters = np.zeros(shape, "float32")
    middle = tuple([n // 2 for n in shape[2:]])
    each = shape[0] // groups
    for group in range(groups):
        for place in range(min(each, shape[1])):
            filters[(group * each + place, place, *middle)] = 1
    return _filled(tensor, tensor_of(filters))


def _fans(tensor: Tensor, name: str) -> tuple[int, int]:
    """Inputs of one output, and outputs of one input."""
    shape = tensor.shape
    if len(shape) < 2:
        raise ValueError(f"{name}: the tensor {shape} must have two axes or more")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Uniformly within gain * sqrt(6 / (fan_in + fan_out)) of 0 (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor, "xavier_uniform_")))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Normal, with a deviation of gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    std = gain * math.sqrt(2 / sum(_fans(tensor, "xavier_normal_")))
    return normal_(tensor, 0.0, std, generator)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str, name: str) -> float:
    """The deviation of He et al., Delving Deep into Rectifiers, 2015."""
    modes = ("fan_in", "fan_out")
    if mode not in modes:
        raise ValueError(f"{name}: mode={mode!r} must be 'fan_in' or 'fan_out'")
    fan = _fans(tensor, name)[modes.index(mode)]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Source = None,
) -> Tensor:
    """Uniformly within gain * sqrt(3 / fan) of 0 (He et al., 2015).

    Args:
        tensor: what is filled.
        a: the slope of a leaky ReLU that follows.
        mode: keep the variance in the forward pass, ``"fan_in"``, or backward, ``"fan_out"``.
        nonlinearity: what follows; see :func:`calculate_gain`.
        generator: source of random numbers.
    """
    bound = math.sqrt(3) * _kaiming(tensor, a, mode, nonlinearity, "kaiming_uniform_")
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Source = None,
) -> Tensor:
    """Normal, with a deviation of gain / sqrt(fan); arguments as :func:`kaiming_uniform_`."""
    std = _kaiming(tensor, a, mode, nonlinearity, "kaiming_normal_")
    return normal_(tensor, 0.0, std, generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """A matrix whose rows or columns are orthogonal and of length ``gain`` (Saxe et al., 2013).

    The axes after the first count as one. ValueError for a tensor of fewer than two axes.
    """
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: the tensor {tensor.shape} must have two axes or more")
    rows = tensor.shape[0]
    drawn = _here(generator).standard_normal((rows, tensor.numel() // max(rows, 1)))
    wide = drawn.shape[0] < drawn.shape[1]
    q, r = np.linalg.qr(drawn.T if wide else drawn)
    q = q * np.sign(np.diag(r))  # evenly among all such matrices
    return _filled(tensor, tensor_of(gain * (q.T if wide else q).reshape(tensor.shape)))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Source = None) -> Tensor:
    """Normal, with a fraction ``sparsity`` of each column set to 0 (Martens, 2010)."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_: the tensor {tensor.shape} must have two axes")
    here = _here(generator)
    drawn = here.standard_normal(tensor.shape) * std
    zeros = math.ceil(sparsity * tensor.shape[0])
    for column in range(tensor.shape[1]):
        drawn[here.permutation(tensor.shape[0])[:zeros], column] = 0
    return _filled(tensor, tensor_of(drawn))
