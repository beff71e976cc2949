"""Operations on windows of an image: convolution and pooling.

Owns their rows. Images are (N, C, H, W): images, channels, rows, columns. NumPy lays all windows
side by side and multiplies matrices (im2col; Chellapilla, Puri and Simard, 2006); torch has kernels
of its own. The gradients of a convolution are rows, whose gradients are rows of this file, too.
Never accepts another layout of axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shmgpu.ops import graph, rules
from shmgpu.ops.casting import cast
from shmgpu.ops.creation import arange
from shmgpu.ops.elementwise import add, clamp, div, mul, sub
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.indexing import gather
from shmgpu.ops.promotion import as_node, int64, is_float, promote
from shmgpu.ops.rearranging import pad
from shmgpu.ops.shaping import flatten, reshape, squeeze, unsqueeze
from shmgpu.ops.stretching import sum

Specs = tuple[Spec, ...]
Pair = tuple[int, int]


def pair(value: Any, name: str, least: int) -> Pair:
    """One number for rows and columns, or one for each; ValueError below ``least``."""
    both = (value, value) if isinstance(value, int) else value
    if not isinstance(both, Sequence):  # to be refused
        both = ()
    both = tuple(both)
    if len(both) != 2 or not all(isinstance(n, int) and n >= least for n in both):
        raise ValueError(f"{name}={value!r} must be a whole number or two of them, from {least}")
    return both


def _reach(lengths: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """How many windows there are along each axis."""
    return tuple(
        [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(lengths, kernel, stride, padding, dilation, strict=True)
        ]
    )


def _padded(np: Any, x: Any, padding: Pair, value: float = 0) -> Any:
    if padding == (0, 0):
        return x
    return np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=value)


def _windows(np: Any, x: Any, kernel: tuple[int, ...], stride: Pair, dilation: Pair) -> Any:
    """Views on all windows of a padded image: (N, C, windows..., kernel...)."""
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, span, (2, 3))
    return seen[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


# ---- convolution ---------------------------------------------------------------------------------


def _conv_shape(specs: Specs, params: Params) -> Spec:
    x, w = specs[:2]
    stride, padding, dilation, groups = params
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise ValueError(
            f"conv2d: the input {x.shape} must be (N, C, H, W) or (C, H, W), and the weight "
            f"{w.shape} (out, C / groups, rows, columns)"
        )
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError(
            f"conv2d: the weight {w.shape} with groups={groups} is for {w.shape[1] * groups} "
            f"channels, and the input {x.shape} has {x.shape[1]}; the {w.shape[0]} outputs must "
            "be shared evenly by the groups"
        )
    if len(specs) > 2 and specs[2].shape != w.shape[:1]:
        raise ValueError(f"conv2d: the bias {specs[2].shape} must be {w.shape[:1]}")
    size = _reach(x.shape[2:], w.shape[2:], stride, padding, dilation)
    if min(size) < 1:
        raise ValueError(
            f"conv2d: the kernel {w.shape[2:]} (dilation {dilation}) is greater than the image "
            f"{x.shape[2:]} with its padding {padding}"
        )
    return spec_of(x.dtype, (x.shape[0], w.shape[0], *size))


def _columns(np: Any, x: Any, params: Params, kernel: tuple[int, ...]) -> Any:
    """(N, groups, windows, elements of a window)."""
    stride, padding, dilation, groups = params
    seen = _windows(np, _padded(np, x, padding), kernel, stride, dilation)
    n, c, rows, columns = seen.shape[:4]
    seen = seen.reshape(n, groups, c // groups, rows, columns, *kernel)
    return seen.transpose(0, 1, 3, 4, 2, 5, 6).reshape(
        n, groups, rows * columns, c // groups * math.prod(kernel)
    )


def _numpy_conv2d(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    w = specs[1]
    kernel, groups = w.shape[2:], params[3]
    filters = (groups, w.shape[0] // groups, math.prod(w.shape[1:]))

    def conv2d(x: Any, w: Any, *bias: Any) -> Any:
        y = _columns(np, x, params, kernel) @ w.reshape(filters).transpose(0, 2, 1)
        y = y.transpose(0, 1, 3, 2).reshape(out.shape)
        for b in bias:
            y = y + b.reshape(-1, 1, 1)
        return y

    return conv2d


def _numpy_conv2d_input(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    stride, padding, dilation, groups = params[1:]
    g, w = specs
    n, c, height, width = out.shape
    rows, columns = g.shape[2:]
    kernel = w.shape[2:]

    def conv2d_input(g: Any, w: Any) -> Any:
        g = g.reshape(n, groups, w.shape[0] // groups, rows * columns).transpose(0, 1, 3, 2)
        parts = g @ w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))
        parts = parts.reshape(n, groups, rows, columns, c // groups, *kernel)
        parts = parts.transpose(0, 1, 4, 2, 3, 5, 6).reshape(n, c, rows, columns, *kernel)
        whole = np.zeros((n, c, height + 2 * padding[0], width + 2 * padding[1]), parts.dtype)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                top, left = i * dilation[0], j * dilation[1]
                whole[
                    :,
                    :,
                    top : top + rows * stride[0] : stride[0],
                    left : left + columns * stride[1] : stride[1],
                ] += parts[..., i, j]
        return whole[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]

    return conv2d_input


def _numpy_conv2d_weight(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    groups = params[4]
    kernel = out.shape[2:]

    def conv2d_weight(g: Any, x: Any) -> Any:
        cols = _columns(np, x, params[1:], kernel)
        g = g.reshape(g.shape[0], groups, g.shape[1] // groups, math.prod(g.shape[2:]))
        return (g @ cols).sum(0).reshape(out.shape)

    return conv2d_weight


def _torch_conv2d(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    conv2d = torch.conv2d
    return lambda x, w, b=None: conv2d(x, w, b, *params)


def _torch_conv2d_input(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, *rest = params
    return lambda g, w: torch.nn.grad.conv2d_input(shape, w, g, *rest)


def _torch_conv2d_weight(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, *rest = params
    return lambda g, x: torch.nn.grad.conv2d_weight(x, shape, g, *rest)


def _to_first(specs: Specs, params: Params) -> Spec:
    """A gradient's rule: the shape is the first param, and stands for what the output came from."""
    return spec_of(specs[0].dtype, params[0])


def _conv_input(g: Node, n: Node) -> Node:
    x, w = n.inputs[:2]
    return apply(CONV2D_INPUT, (g, w), (x.spec.shape, *n.params))


def _conv_weight(g: Node, n: Node) -> Node:
    x, w = n.inputs[:2]
    return apply(CONV2D_WEIGHT, (g, x), (w.spec.shape, *n.params))


CONV2D = Op(
    "conv2d",
    _conv_shape,
    numpy=_numpy_conv2d,
    torch=_torch_conv2d,
    gradients=(_conv_input, _conv_weight, lambda g, n: sum(g, (0, 2, 3))),
    saves="i",
)
CONV2D_INPUT = Op(
    "conv2d_input",
    _to_first,
    numpy=_numpy_conv2d_input,
    torch=_torch_conv2d_input,
    gradients=(
        lambda g, n: apply(CONV2D, (g, n.inputs[1]), n.params[1:]),
        lambda g, n: apply(
            CONV2D_WEIGHT, (n.inputs[0], g), (n.inputs[1].spec.shape, *n.params[1:])
        ),
    ),
    saves="i",
)
CONV2D_WEIGHT: Op = Op(
    "conv2d_weight",
    _to_first,
    numpy=_numpy_conv2d_weight,
    torch=_torch_conv2d_weight,
    gradients=(
        lambda g, n: apply(CONV2D, (n.inputs[1], g), n.params[1:]),
        lambda g, n: apply(CONV2D_INPUT, (n.inputs[0], g), (n.inputs[1].spec.shape, *n.params[1:])),
    ),
    saves="i",
)


def conv2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """A 2-D convolution (cross-correlation) of floats.

    Args:
        input: (N, channels, H, W) or (channels, H, W).
        weight: (out channels, channels / groups, height, width).
        bias: (out channels,).
        stride: of the filter, one number or (down, across), as the next two.
        padding: zeros around; or ``"same"`` (with stride 1 only), or ``"valid"`` for none.
        dilation: distance between the elements that a filter reads.
        groups: into which the channels are divided, each with its own filters.

    Returns:
        (N, out channels, H', W'), where H' is
        (H + 2 padding - dilation (height - 1) - 1) // stride + 1.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the tensors are not of floats.
    """
    steps = pair(stride, "conv2d: stride", 1)
    spread = pair(dilation, "conv2d: dilation", 1)
    dtype = promote(input.spec.dtype, weight.spec.dtype)
    if not is_float(dtype):
        raise TypeError(f"conv2d: the tensors are {dtype.name}, and must be of floats")
    nodes = [as_node(one, dtype) for one in (input, weight, bias) if one is not None]
    single = len(input.spec.shape) == 3
    if single:
        nodes[0] = unsqueeze(nodes[0], 0)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if steps != (1, 1):
            raise ValueError(f"conv2d: padding='same' is for stride 1, not {stride}")
        total = [d * (k - 1) for d, k in zip(spread, weight.spec.shape[2:], strict=True)]
        before, after = [n // 2 for n in total], [n - n // 2 for n in total]
        if before == after:
            padding = (before[0], before[1])
        else:
            nodes[0] = pad(nodes[0], (before[1], after[1], before[0], after[0]))
            padding = 0
    margins = pair(padding, "conv2d: padding", 0)
    out = apply(CONV2D, tuple(nodes), (steps, margins, spread, groups))
    return squeeze(out, 0) if single else out


# ---- pooling -------------------------------------------------------------------------------------


def _pool_shape(specs: Specs, params: Params) -> tuple[int, ...]:
    (x,) = specs
    kernel, stride, padding, dilation = params
    if len(x.shape) != 4:
        raise ValueError(f"pooling: the input {x.shape} must be (N, C, H, W) or (C, H, W)")
    size = _reach(x.shape[2:], kernel, stride, padding, dilation)
    if min(size) < 1 or any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ValueError(
            f"pooling: windows of {kernel} with padding {padding} and dilation {dilation} do not "
            f"fit into {x.shape[2:]}; the padding is at most half a window"
        )
    return (*x.shape[:2], *size)


def _numpy_max_pool2d(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    kernel, stride, padding, dilation = params

    def max_pool2d(x: Any) -> Any:
        return _windows(np, _padded(np, x, padding, -np.inf), kernel, stride, dilation).max((4, 5))

    return max_pool2d


def _numpy_max_pool2d_indices(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    kernel, stride, padding, dilation = params
    width = specs[0].shape[3]
    rows = np.arange(out.shape[2]).reshape(-1, 1) * stride[0] - padding[0]
    columns = np.arange(out.shape[3]) * stride[1] - padding[1]

    def indices(x: Any) -> Any:
        seen = _windows(np, _padded(np, x, padding, -np.inf), kernel, stride, dilation)
        seen = seen.reshape(*out.shape, math.prod(kernel))
        best = seen.argmax(-1)
        strange = np.isnan(seen)
        if strange.any():  # as in torch, the last one of a window
            last = seen.shape[-1] - 1 - strange[..., ::-1].argmax(-1)
            best = np.where(strange.any(-1), last, best)
        down, across = best // kernel[1], best % kernel[1]
        return (rows + down * dilation[0]) * width + columns + across * dilation[1]

    return indices


MIN_CHANNELS = 8  # of which a host's kernel does several at a time, if they lie side by side


def _side_by_side(torch: Any, kernel: Any, spec: Spec) -> Any:
    """That kernel, on a host over channels that lie side by side.

    The same comes out: of 64 images of 16 channels and 8 by 8 in 61 us instead of 217, of 8 of 64
    channels and 56 by 56 in 1.4 ms instead of 6.3, both ways included; of 3 channels it would take
    longer (PyTorch 2.13).
    """
    if spec.shape[1] < MIN_CHANNELS:
        return kernel
    last = torch.channels_last

    def turned(x: Any) -> Any:
        if x.device.type != "cpu":
            return kernel(x)
        return kernel(x.contiguous(memory_format=last)).contiguous()

    return turned


def _torch_max_pool2d(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return _side_by_side(torch, lambda x: torch.max_pool2d(x, *params), specs[0])


def _torch_max_pool2d_indices(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    both = torch.ops.aten.max_pool2d_with_indices.default
    return _side_by_side(torch, lambda x: both(x, *params)[1], specs[0])


MAX_POOL2D = Op(
    "max_pool2d",
    lambda specs, params: spec_of(specs[0].dtype, _pool_shape(specs, params)),
    numpy=_numpy_max_pool2d,
    torch=_torch_max_pool2d,
)
MAX_POOL2D_INDICES = Op(
    "max_pool2d_indices",
    lambda specs, params: spec_of(int64, _pool_shape(specs, params)),
    numpy=_numpy_max_pool2d_indices,
    torch=_torch_max_pool2d_indices,
)


NO_INDICES = "where the largest ones were is not told; argmax of windows that you cut tells it"


def _four(input: Node, name: str) -> tuple[Node, bool]:
    if not is_float(input.spec.dtype):
        raise TypeError(f"{name}: the tensor is {input.spec.dtype.name}, and must be of floats")
    single = len(input.spec.shape) == 3
    return (unsqueeze(input, 0) if single else input), single


def _over_the_edge(x: Node, params: tuple[Pair, ...], value: float) -> Node:
    """With what ``ceil_mode`` needs behind each axis: room for one more window.

    A window that would begin behind the last element is none, as in torch.
    """
    kernel, stride, padding, dilation = params
    more: list[int] = []
    for n, k, s, p, d in zip(x.spec.shape[2:], kernel, stride, padding, dilation, strict=True):
        span = d * (k - 1) + 1
        last = -(-(n + 2 * p - span) // s)
        last -= last * s >= n + p
        more = [0, max(last * s + span - n - 2 * p, 0), *more]
    return pad(x, more, value=value)


def max_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node:
    """The largest element of each window: (N, C, H, W) or (C, H, W) of floats; H and W shrink.

    Sizes are one number or (down, across); ``stride`` is the window's size by default. Elements
    added by ``padding`` are never the largest; at most half a window may be added. With
    ``ceil_mode`` a window may reach beyond the last element. ``return_indices`` must be False.

    Raises:
        ValueError: other axes, or windows that do not fit; or indices are to be returned.
        TypeError: the tensor is not of floats.
    """
    rules.only("max_pool2d", return_indices=(return_indices, False, NO_INDICES))
    kernel = pair(kernel_size, "max_pool2d: kernel_size", 1)
    params = (
        kernel,
        kernel if stride is None else pair(stride, "max_pool2d: stride", 1),
        pair(padding, "max_pool2d: padding", 0),
        pair(dilation, "max_pool2d: dilation", 1),
    )
    x, single = _four(input, "max_pool2d")
    if ceil_mode and len(x.spec.shape) == 4:
        x = _over_the_edge(x, params, -math.inf)
    if x.needs_grad and graph.grad_mode.enabled:
        # Where the greatest ones lie is known, so the gradient is that of gathering them.
        indices = apply(MAX_POOL2D_INDICES, (x,), params)
        found = gather(flatten(x, 2), 2, flatten(indices, 2))
        out = reshape(found, indices.spec.shape)
    else:
        out = apply(MAX_POOL2D, (x,), params)
    return squeeze(out, 0) if single else out


def _numpy_avg_pool2d(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    kernel, stride, padding = params
    return lambda x: _windows(np, _padded(np, x, padding), kernel, stride, (1, 1)).mean((4, 5))


def _numpy_avg_pool2d_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, kernel, stride, padding = params
    n, c, height, width = shape
    rows, columns = specs[0].shape[2:]

    def backward(g: Any) -> Any:
        g = g / math.prod(kernel)
        whole = np.zeros((n, c, height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                whole[
                    :,
                    :,
                    i : i + rows * stride[0] : stride[0],
                    j : j + columns * stride[1] : stride[1],
                ] += g
        return whole[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]

    return backward


def _torch_avg_pool2d_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, *rest = params
    backward = torch.ops.aten.avg_pool2d_backward.default

    def kernel(g: Any) -> Any:
        # Of the input only its shape matters: memory that nobody writes to costs nothing.
        return backward(g, g.new_empty(shape), *rest, False, True, None)

    return kernel


AVG_POOL2D = Op(
    "avg_pool2d",
    lambda specs, params: spec_of(specs[0].dtype, _pool_shape(specs, (*params, (1, 1)))),
    numpy=_numpy_avg_pool2d,
    torch=lambda torch, specs, params, out: lambda x: torch.nn.functional.avg_pool2d(x, *params),
    gradients=(lambda g, n: apply(AVG_POOL2D_BACKWARD, (g,), (n.inputs[0].spec.shape, *n.params)),),
)
AVG_POOL2D_BACKWARD: Op = Op(
    "avg_pool2d_backward",
    _to_first,
    numpy=_numpy_avg_pool2d_backward,
    torch=_torch_avg_pool2d_backward,
    gradients=(lambda g, n: apply(AVG_POOL2D, (g,), n.params[1:]),),
)


def _elements(length: int, size: int, params: tuple[int, ...], counts_padding: bool) -> Node:
    """How many elements each window along an axis has, of the input and its padding, or without."""
    kernel, stride, margin = params
    first = sub(mul(arange(0, 1, size, int64), stride), margin)
    end = clamp(add(first, kernel), None, length + margin * counts_padding)
    return sub(end, first if counts_padding else clamp(first, 0))


def avg_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The mean of each window: (N, C, H, W) or (C, H, W) of floats; H and W shrink.

    Sizes as for :func:`max_pool2d`; the zeros of ``padding`` count unless ``count_include_pad`` is
    False. With ``ceil_mode`` a window may reach beyond the last element, and what is there does not
    count. ``divisor_override`` divides each sum, instead of the number of elements.

    Raises:
        ValueError: other axes, windows that do not fit, or a divisor of 0.
        TypeError: the tensor is not of floats.
    """
    kernel = pair(kernel_size, "avg_pool2d: kernel_size", 1)
    x, single = _four(input, "avg_pool2d")
    params = (
        kernel,
        kernel if stride is None else pair(stride, "avg_pool2d: stride", 1),
        pair(padding, "avg_pool2d: padding", 0),
    )
    if divisor_override == 0:
        raise ValueError("avg_pool2d: divisor_override=0 divides by 0: give another, or None")
    lengths = x.spec.shape[2:]
    if ceil_mode and len(lengths) == 2:
        x = _over_the_edge(x, (*params, (1, 1)), 0.0)
    out = apply(AVG_POOL2D, (x,), params)
    area = math.prod(kernel)
    if divisor_override is not None:
        out = mul(out, area / divisor_override)
    elif x.spec.shape[2:] != lengths or (any(params[2]) and not count_include_pad):
        rows, columns = (
            _elements(n, size, of_axis, count_include_pad)
            for n, size, of_axis in zip(
                lengths, out.spec.shape[2:], zip(*params, strict=True), strict=True
            )
        )
        share = div(float(area), mul(unsqueeze(rows, 1), columns))
        out = mul(out, cast(share, out.spec.dtype))
    return squeeze(out, 0) if single else out
