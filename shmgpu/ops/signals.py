"""Windows of a signal, which has one spatial axis, and transposed convolutions.

A signal (N, C, L) is an image of one row: the rows of :mod:`shmgpu.ops.windows` compute it. A
transposed convolution is the gradient of a convolution for its input, and so it is that row. Owns
the functions that record both. Never computes a signal in another way than an image.
"""

from __future__ import annotations

from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.elementwise import add
from shmgpu.ops.graph import Node, apply
from shmgpu.ops.promotion import as_node, is_float, promote
from shmgpu.ops.rearranging import pad
from shmgpu.ops.shaping import reshape, squeeze, take_slices, unsqueeze
from shmgpu.ops.windows import CONV2D_INPUT, NO_INDICES, avg_pool2d, conv2d, max_pool2d, pair


def _one(value: Any, name: str) -> int:
    """A setting of one axis: an integer, alone or in a sequence."""
    if isinstance(value, (tuple, list)) and len(value) == 1:
        (value,) = value
    if not isinstance(value, int):
        raise ValueError(f"{name}={value!r} must be a whole number")
    return value


def _from(first: int, count: int) -> slice:
    return slice(first, first + count)


def _row(x: Node, name: str) -> Node:
    """The signal as an image of one row."""
    if len(x.spec.shape) not in (2, 3):
        raise ValueError(f"{name}: the input {x.spec.shape} must be (N, C, L) or (C, L)")
    return unsqueeze(x, -2)


def _weight(weight: Node, name: str) -> Node:
    if len(weight.spec.shape) != 3:
        raise ValueError(
            f"{name}: the weight {weight.spec.shape} must have three axes, of which the last is "
            "the kernel's"
        )
    return unsqueeze(weight, -2)


def conv1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """:func:`conv2d` along one axis: (N, channels, L) -> (N, out channels, L').

    The weight is (out channels, channels / groups, kernel); the other settings are numbers.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the tensors are not of floats.
    """
    margin = padding if isinstance(padding, str) else (0, _one(padding, "conv1d: padding"))
    steps = (1, _one(stride, "conv1d: stride"))
    spread = (1, _one(dilation, "conv1d: dilation"))
    x, w = _row(input, "conv1d"), _weight(weight, "conv1d")
    return squeeze(conv2d(x, w, bias, steps, margin, spread, groups), -2)


def max_pool1d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node:
    """:func:`max_pool2d` along one axis: (N, C, L) -> (N, C, L')."""
    rules.only("max_pool1d", return_indices=(return_indices, False, NO_INDICES))
    size = _one(kernel_size, "max_pool1d: kernel_size")
    step = size if stride is None else _one(stride, "max_pool1d: stride")
    margin = (0, _one(padding, "max_pool1d: padding"))
    spread = (1, _one(dilation, "max_pool1d: dilation"))
    x = _row(input, "max_pool1d")
    out = max_pool2d(x, (1, size), (1, step), margin, spread, ceil_mode)
    return squeeze(out, -2)


def avg_pool1d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """:func:`avg_pool2d` along one axis: (N, C, L) -> (N, C, L')."""
    size = _one(kernel_size, "avg_pool1d: kernel_size")
    step = size if stride is None else _one(stride, "avg_pool1d: stride")
    margin = (0, _one(padding, "avg_pool1d: padding"))
    x = _row(input, "avg_pool1d")
    out = avg_pool2d(x, (1, size), (1, step), margin, ceil_mode, count_include_pad)
    return squeeze(out, -2)


def conv_transpose2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """A transposed 2-D convolution: the gradient of a convolution for its input.

    Args:
        input: (N, channels, H, W) or (channels, H, W), of floats.
        weight: (channels, out channels / groups, height, width).
        bias: (out channels,).
        stride: elements of the output between one of the input and the next; one number or (down,
            across), and so are the other sizes.
        padding: rows and columns that are cut off around the output.
        output_padding: more rows and columns at the end, fewer than the stride or the dilation.
        groups: into which the channels are divided, each with its own filters.
        dilation: distance between the elements that a filter writes.

    Returns:
        (N, out channels, H', W'), where H' is
        (H - 1) stride - 2 padding + dilation (height - 1) + output_padding + 1.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the tensors are not of floats.
    """
    name = "conv_transpose2d"
    steps = pair(stride, f"{name}: stride", 1)
    margins = pair(padding, f"{name}: padding", 0)
    more = pair(output_padding, f"{name}: output_padding", 0)
    spread = pair(dilation, f"{name}: dilation", 1)
    dtype = promote(input.spec.dtype, weight.spec.dtype)
    if not is_float(dtype):
        raise TypeError(f"{name}: the tensors are {dtype.name}, and must be of floats")
    single = len(input.spec.shape) == 3
    x, w = as_node(unsqueeze(input, 0) if single else input, dtype), as_node(weight, dtype)
    have, filters = x.spec.shape, w.spec.shape
    if len(have) != 4 or len(filters) != 4:
        raise ValueError(
            f"{name}: the input {input.spec.shape} must be (N, C, H, W) or (C, H, W), and the "
            f"weight {filters} (C, out / groups, rows, columns)"
        )
    if groups < 1 or have[1] != filters[0] or filters[0] % groups:
        raise ValueError(
            f"{name}: the weight {filters} with groups={groups} is for {filters[0]} channels, "
            f"shared evenly by the groups, and the input {have} has {have[1]}"
        )
    if any(n >= max(s, d) for n, s, d in zip(more, steps, spread, strict=True)):
        raise ValueError(
            f"{name}: output_padding={more} must be less than stride={steps} or dilation={spread}"
        )
    out = filters[1] * groups
    size = tuple(
        [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(
                have[2:], filters[2:], steps, margins, spread, more, strict=True
            )
        ]
    )
    if min(size) < 1:
        raise ValueError(f"{name}: with padding {margins} nothing is left of the output: {size}")
    if bias is not None and bias.spec.shape != (out,):
        raise ValueError(f"{name}: the bias {bias.spec.shape} must be {(out,)}")
    if any(e >= s for e, s in zip(more, steps, strict=True)):
        # No convolution leaves so many rows over: of all that kernels reach, and zeros, a part.
        full = [
            (n - 1) * s + d * (k - 1) + 1
            for n, k, s, d in zip(have[2:], filters[2:], steps, spread, strict=True)
        ]
        shape = (have[0], out, *full)
        y = apply(CONV2D_INPUT, (x, w), (shape, steps, (0, 0), spread, groups))
        y = pad(y, (0, more[1], 0, more[0]))
        y = take_slices(y, [slice(None), slice(None), *map(_from, margins, size)])
    else:
        shape = (have[0], out, *size)
        y = apply(CONV2D_INPUT, (x, w), (shape, steps, margins, spread, groups))
    if bias is not None:
        y = add(y, reshape(as_node(bias, dtype), (out, 1, 1)))
    return squeeze(y, 0) if single else y


def conv_transpose1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """:func:`conv_transpose2d` along one axis: (N, channels, L) -> (N, out channels, L').

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the tensors are not of floats.
    """
    name = "conv_transpose1d"
    out = conv_transpose2d(
        _row(input, name),
        _weight(weight, name),
        bias,
        (1, _one(stride, f"{name}: stride")),
        (0, _one(padding, f"{name}: padding")),
        (0, _one(output_padding, f"{name}: output_padding")),
        groups,
        (1, _one(dilation, f"{name}: dilation")),
    )
    return squeeze(out, -2)
