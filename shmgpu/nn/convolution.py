"""Filters over images and signals. Weights and biases begin as PyTorch's do.

Owns their parameters. Never computes: :mod:`shmgpu.nn.functional` records the operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shmgpu.nn import functional as F
from shmgpu.nn.layers import uniform
from shmgpu.nn.module import Module
from shmgpu.tensors.tensor import Tensor

Sizes = int | Sequence[int]
MODES = ("zeros", "reflect", "replicate", "circular")  # of what is around the input


class _Convolution(Module):
    """What convolutions share. Attributes are named as the arguments.

    Weight and bias are initialised uniformly within 1/sqrt(the inputs of one output) of 0.

    Args:
        in_channels: channels of the input.
        out_channels: filters.
        kernel_size: lengths of a filter's axes; one number for all of them, here and below.
        stride: distance between positions of the filter.
        padding: zeros around the input; ``"same"`` and ``"valid"`` as in PyTorch.
        dilation: distance between the elements that a filter reads.
        groups: into which channels are divided, each with its own filters.
        bias: whether there is one.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    function: str
    places: int  # axes that the filter moves along
    transposed = False
    padding_mode = "zeros"  # of those, too, that an earlier version pickled

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        modes = MODES[:1] if self.transposed else MODES
        if padding_mode not in modes:
            raise ValueError(
                f"{name}: padding_mode={padding_mode!r} must be {' or '.join(map(repr, modes))}"
            )
        self.padding_mode = padding_mode
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = self._each(kernel_size, "kernel_size")
        self.stride = self._each(stride, "stride")
        self.padding = padding if isinstance(padding, str) else self._each(padding, "padding")
        self.dilation = self._each(dilation, "dilation")
        first, second = out_channels, in_channels // groups
        if self.transposed:
            first, second = in_channels, out_channels // groups
        bound = 1 / math.sqrt(second * math.prod(self.kernel_size))
        self.weight = uniform(bound, first, second, *self.kernel_size, dtype=dtype)
        self.register_parameter("bias", uniform(bound, out_channels, dtype=dtype) if bias else None)

    def _each(self, value: Sizes, word: str) -> tuple[int, ...]:
        """One number for each axis of places."""
        each = (value,) * self.places if isinstance(value, int) else tuple(map(int, value))
        if len(each) != self.places:
            raise ValueError(
                f"{type(self).__name__}: {word}={value!r} must be a number, or {self.places}"
            )
        return each

    def _margins(self) -> list[int]:
        """(before, after) of each axis, the last axis first."""
        if self.padding == "valid":
            return []
        if not isinstance(self.padding, str):
            return [n for n in reversed(self.padding) for _ in range(2)]
        spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [n for span in reversed(spans) for n in (span // 2, span - span // 2)]

    def forward(self, x: Tensor) -> Any:
        """Each filter's answer at each place."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._margins(), mode=self.padding_mode), 0
        return getattr(F, self.function)(
            x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """Its sizes, and the settings that are not the usual ones."""
        told = [str(self.in_channels), str(self.out_channels)]
        told += [f"kernel_size={self.kernel_size}", f"stride={self.stride}"]
        usual = {"padding": 0, "dilation": 1, "output_padding": 0}
        for word, number in usual.items():
            value = getattr(self, word, None)
            if value is not None and value != (number,) * self.places:
                told.append(f"{word}={value}")
        if self.groups != 1:
            told.append(f"groups={self.groups}")
        if self.bias is None:
            told.append("bias=False")
        if self.padding_mode != "zeros":
            told.append(f"padding_mode={self.padding_mode}")
        return ", ".join(told)


class Conv1d(_Convolution):
    """A convolution over signals: (N, in_channels, L) -> (N, out_channels, L').

    Weight and bias are initialised uniformly within 1/sqrt(the inputs of one output) of 0. The
    arguments are those of :class:`Conv2d`, each size one number.
    """

    function, places = "conv1d", 1


class Conv2d(_Convolution):
    """A convolution over images: (N, in_channels, H, W) -> (N, out_channels, H', W').

    Weight and bias are initialised uniformly within 1/sqrt(the inputs of one output) of 0.

    Args:
        in_channels: channels of the input.
        out_channels: filters.
        kernel_size: height and width of a filter; one number for both, here and below.
        stride: distance between positions of the filter.
        padding: zeros around the input; ``"same"`` and ``"valid"`` as in PyTorch.
        dilation: distance between the elements that a filter reads.
        groups: into which channels are divided, each with its own filters.
        bias: whether there is one.
        padding_mode: ``"zeros"``; or ``"reflect"``, ``"replicate"``, ``"circular"``, as for
            :func:`shmgpu.pad`.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    function, places = "conv2d", 2


class _Transposed(_Convolution):
    """What transposed convolutions share: other arguments, and in another order."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.output_padding = self._each(output_padding, "output_padding")

    def forward(self, x: Tensor) -> Any:
        """Each element spread by the filters."""
        return getattr(F, self.function)(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_Transposed):
    """A transposed convolution over signals: (N, in_channels, L) -> (N, out_channels, L').

    The arguments are those of :class:`ConvTranspose2d`, each size one number.
    """

    function, places = "conv_transpose1d", 1


class ConvTranspose2d(_Transposed):
    """A transposed convolution over images.

    (N, in_channels, H, W) -> (N, out_channels, H', W'), where H' is
    (H - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1. Weight and bias
    are initialised uniformly within 1/sqrt(out_channels / groups * height * width) of 0.

    Args:
        in_channels: channels of the input.
        out_channels: those of the output.
        kernel_size: height and width of a filter; one number for both, here and below.
        stride: elements of the output between one of the input and the next.
        padding: rows and columns that are cut off around the output.
        output_padding: more rows and columns at the end.
        groups: into which channels are divided, each with its own filters.
        bias: whether there is one.
        dilation: distance between the elements that a filter writes.
        padding_mode: ``"zeros"``, the only one there is.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    function, places = "conv_transpose2d", 2
