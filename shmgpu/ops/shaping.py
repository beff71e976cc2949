"""Operations that move elements and compute nothing.

Owns their rows and the functions that record them. Most are views: the output's elements lie where
the input's do. Never copies before something needs the elements in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.kernels import given
from shmgpu.ops.promotion import as_node, result_type

Shape = tuple[int, ...]
Specs = tuple[Spec, ...]


def _to_shape(specs: Specs, params: Params) -> Spec:
    return spec_of(specs[0].dtype, params[0])


def _same_type(shape_of: Any) -> Any:
    """A rule from (input's shape, params) to the output's shape."""
    return lambda specs, params: spec_of(specs[0].dtype, shape_of(specs[0].shape, *params))


# ---- reshape, permute ---------------------------------------------------------------------

RESHAPE = Op(
    "reshape",
    _to_shape,
    numpy=given(lambda params: lambda x: x.reshape(params[0])),
    torch=given(lambda params: lambda x: x.reshape(params[0])),
    gradients=(lambda g, n: reshape(g, n.inputs[0].spec.shape),),
    is_view=True,
)


def reshape(x: Node, shape: Shape) -> Node:
    """The same elements in another shape; one length may be -1: whatever is left.

    Raises:
        ValueError: they do not make that shape.
    """
    have = x.spec.shape
    if shape == have:
        return x
    total = math.prod(have)
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if shape.count(-1) > 1 or known == 0 or total % known:
            raise ValueError(f"reshape: {have} has {total} elements, which do not make {shape}")
        shape = tuple([total // known if n == -1 else n for n in shape])
    if math.prod(shape) != total or any(n < 0 for n in shape):
        raise ValueError(f"reshape: {have} has {total} elements, which do not make {shape}")
    return apply(RESHAPE, (x,), (shape,))


PERMUTE = Op(
    "permute",
    _same_type(lambda shape, axes: tuple([shape[axis] for axis in axes])),
    numpy=given(lambda params: lambda x: x.transpose(params[0])),
    torch=given(lambda params: lambda x: x.permute(params[0])),
    gradients=(
        lambda g, n: permute(
            g, tuple(sorted(range(len(n.params[0])), key=n.params[0].__getitem__))
        ),
    ),
    is_view=True,
)


def permute(x: Node, dims: Shape) -> Node:
    """The axes in another order: ``dims`` names each of them once, else ValueError."""
    ndim = len(x.spec.shape)
    axes = tuple([rules.axis_of(dim, ndim, "permute") for dim in dims])
    if sorted(axes) != list(range(ndim)):
        raise ValueError(f"permute: dims={dims} must name each of the {ndim} axes once")
    return x if axes == tuple(range(ndim)) else apply(PERMUTE, (x,), (axes,))


def transpose(x: Node, dim0: int = -2, dim1: int = -1) -> Node:
    """With two axes exchanged, the last two by default."""
    axes = _swapped(len(x.spec.shape), dim0, dim1)
    return x if axes is None else apply(PERMUTE, (x,), (axes,))


@lru_cache(maxsize=256)
def _swapped(ndim: int, dim0: int, dim1: int) -> Shape | None:
    """The order of axes with two changed for one another; None where nothing is."""
    axes = list(range(ndim))
    a, b = rules.axis_of(dim0, ndim, "transpose"), rules.axis_of(dim1, ndim, "transpose")
    if a == b:
        return None
    axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)


def unsqueeze(x: Node, dim: int) -> Node:
    """With a new axis of length 1 at position ``dim``; -1: after the last."""
    axis = rules.axis_of(dim, len(x.spec.shape) + 1, "unsqueeze")
    return reshape(x, (*x.spec.shape[:axis], 1, *x.spec.shape[axis:]))


def squeeze(x: Node, dim: int | Sequence[int] | None = None) -> Node:
    """With axes of length 1 removed: all of them, or those of ``dim``."""
    shape = x.spec.shape
    axes = rules.axes_of(dim, len(shape), "squeeze")
    return reshape(x, tuple([n for axis, n in enumerate(shape) if axis not in axes or n != 1]))


def flatten(x: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    """Adjacent axes merged into one, all of them by default."""
    shape = x.spec.shape
    first = rules.axis_of(start_dim, len(shape), "flatten")
    last = rules.axis_of(end_dim, len(shape), "flatten")
    if first > last:
        raise ValueError(f"flatten: start_dim={start_dim} lies behind end_dim={end_dim}")
    return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


# ---- a part, and parts put together ------------------------------------------------------------


def _sliced(shape: Shape, starts: Shape, stops: Shape, steps: Shape) -> Shape:
    return tuple(
        [
            len(range(start, stop, step))
            for start, stop, step in zip(starts, stops, steps, strict=True)
        ]
    )


def _slices(params: Params) -> Any:
    """Params: starts, stops, steps by axis; a stop of -1 with a step back is the beginning."""
    parts = tuple(
        [
            slice(start, None if stop < 0 else stop, step)
            for start, stop, step in zip(*params, strict=True)
        ]
    )
    return lambda x: x[parts]


def _flipped(params: Params) -> Any:
    """Torch has no slices that step back: it flips and slices forward."""
    starts, stops, steps = params
    axes = tuple([axis for axis, step in enumerate(steps) if step < 0])
    if not axes:
        return _slices(params)

    def kernel(x: Any) -> Any:
        parts = []
        for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
            last = x.shape[axis] - 1
            parts.append(
                slice(start, stop, step) if step > 0 else slice(last - start, last - stop, -step)
            )
        return x.flip(axes)[tuple(parts)]

    return kernel


SLICE = Op(
    "slice",
    _same_type(_sliced),
    numpy=given(_slices),
    torch=given(_flipped),
    gradients=(lambda g, n: slice_backward(g, n.inputs[0].spec.shape, n.params),),
    is_view=True,
)


def _numpy_slice_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, *parts = params
    part = _slices(tuple(parts))
    dtype = out.dtype.numpy

    def kernel(g: Any) -> Any:
        whole = np.zeros(shape, dtype)
        part(whole)[...] = g
        return whole

    return kernel


def _forward(params: Params) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """The same elements in slices that step forward, and the axes along which these are flipped."""
    starts, stops, steps = params
    back = tuple([axis for axis, step in enumerate(steps) if step < 0])
    forward = tuple(
        [
            slice(start, stop, step)
            if step > 0
            else slice(start + step * (len(range(start, stop, step)) - 1), start + 1, -step)
            for start, stop, step in zip(starts, stops, steps, strict=True)
        ]
    )
    return forward, back


def _torch_slice_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, *parts = params
    forward, back = _forward(tuple(parts))

    def kernel(g: Any) -> Any:
        whole = g.new_zeros(shape)
        whole[forward] = g.flip(back) if back else g
        return whole

    return kernel


SLICE_BACKWARD = Op(
    "slice_backward",
    _to_shape,
    numpy=_numpy_slice_backward,
    torch=_torch_slice_backward,
    gradients=(lambda g, n: apply(SLICE, (g,), n.params[1:]),),
)


def slice_backward(g: Node, shape: Shape, parts: Params) -> Node:
    """Zeros of that shape with ``g`` where the slice was taken from."""
    return apply(SLICE_BACKWARD, (g,), (shape, *parts))


def _added(specs: Specs, params: Params) -> Spec:
    whole, part = specs
    if part.dtype is not whole.dtype or part.shape != _sliced(whole.shape, *params[1:]):
        raise ValueError(f"slice_add: {part.shape} is not of the slice of {whole.shape}")
    return whole


def _numpy_slice_add(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    part = _slices(params[1:])

    def kernel(whole: Any, g: Any, out: Any = None) -> Any:
        if out is g:
            g = g.copy()
        if out is None:
            out = whole.copy()
        elif out is not whole:
            out[...] = whole
        place = part(out)
        np.add(place, g, out=place)
        return out

    return kernel


def _torch_slice_add(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    forward, back = _forward(params[1:])

    def kernel(whole: Any, g: Any, out: Any = None) -> Any:
        if back or out is g:
            g = g.flip(back)
        if out is None:
            out = whole.clone(memory_format=torch.contiguous_format)
        elif out is not whole:
            out.copy_(whole)
        out[forward].add_(g)
        return out

    return kernel


SLICE_ADD = Op(
    "slice_add",
    _added,
    numpy=_numpy_slice_add,
    torch=_torch_slice_add,
    gradients=(lambda g, n: g, lambda g, n: apply(SLICE, (g,), n.params[1:])),
    in_place=True,
)


def slice_add(whole: Node, g: Node, parts: Params) -> Node:
    """``whole`` with ``g`` added where the slice was taken from."""
    return apply(SLICE_ADD, (whole, g), (whole.spec.shape, *parts))


def take_slices(x: Node, slices: Sequence[slice]) -> Node:
    """A slice for each axis."""
    ranges = [range(*one.indices(n)) for one, n in zip(slices, x.spec.shape, strict=True)]
    if all(r == range(n) for r, n in zip(ranges, x.spec.shape, strict=True)):
        return x
    empty = [range(0) if len(r) == 0 else r for r in ranges]
    params = (
        tuple([r.start for r in empty]),
        tuple([r.stop for r in empty]),
        tuple([r.step for r in empty]),
    )
    return apply(SLICE, (x,), params)


def flip(x: Node, dims: int | Sequence[int]) -> Node:
    """With the elements along these axes in the opposite order."""
    slices = [slice(None)] * len(x.spec.shape)
    for axis in rules.axes_of(dims, len(x.spec.shape), "flip") if dims != () else ():
        slices[axis] = slice(None, None, -1)
    return take_slices(x, slices)


def movedim(x: Node, source: int | Sequence[int], destination: int | Sequence[int]) -> Node:
    """With an axis, or several, moved to other positions; the others keep their order.

    Raises:
        ValueError: an axis or a position is named twice, or there is not one for each.
    """
    ndim = len(x.spec.shape)
    moved, places = (
        [
            rules.axis_of(one, ndim, "movedim")
            for one in (dim if isinstance(dim, Sequence) else [dim])
        ]
        for dim in (source, destination)
    )
    if len(moved) != len(places) or len({*moved}) < len(moved) or len({*places}) < len(places):
        raise ValueError(
            f"movedim: source={source} and destination={destination} must name as many axes, each "
            "once"
        )
    axes = [axis for axis in range(ndim) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        axes.insert(place, axis)
    return permute(x, tuple(axes)) if ndim else x


def unbind(x: Node, dim: int = 0) -> tuple[Node, ...]:
    """The slices along an axis, which is removed."""
    if not x.spec.shape:
        raise ValueError("unbind: a tensor without axes has no parts")
    axis = rules.axis_of(dim, len(x.spec.shape), "unbind")
    return tuple([squeeze(narrow(x, axis, at, 1), axis) for at in range(x.spec.shape[axis])])


def _joined(specs: Specs, params: Params) -> Spec:
    (axis,) = params
    first = specs[0]
    for spec in specs[1:]:
        if len(spec.shape) != len(first.shape) or any(
            a != b
            for at, (a, b) in enumerate(zip(first.shape, spec.shape, strict=True))
            if at != axis
        ):
            raise ValueError(
                f"cat: the shapes {', '.join(str(s.shape) for s in specs)} may differ in axis "
                f"{axis} only"
            )
    length = 0
    for spec in specs:
        length += spec.shape[axis]
    return spec_of(first.dtype, (*first.shape[:axis], length, *first.shape[axis + 1 :]))


class _PartOf:
    """The gradients of as many inputs as there are."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        def gradient(g: Node, n: Node) -> Node:
            (axis,) = n.params
            start = 0
            for one in n.inputs[:index]:
                start += one.spec.shape[axis]
            return narrow(g, axis, start, n.inputs[index].spec.shape[axis])

        return gradient


CAT = Op(
    "cat",
    _joined,
    numpy=lambda np, specs, params, out: lambda *xs: np.concatenate(xs, params[0]),
    torch=lambda torch, specs, params, out: lambda *xs: torch.cat(xs, params[0]),
    gradients=_PartOf(),  # type: ignore[arg-type]
)


def cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Tensors joined along an axis, in which alone their shapes may differ.

    Raises:
        ValueError: lengths of other axes differ, there are no tensors, or one has no axes.
    """
    if not tensors:
        raise ValueError("cat: give one tensor or more")
    dtype = result_type(list(tensors))
    nodes = tuple([as_node(one, dtype) for one in tensors])
    axis = rules.axis_of(dim, len(nodes[0].spec.shape), "cat")
    if not nodes[0].spec.shape:
        raise ValueError("cat: a tensor without axes cannot be joined: use stack")
    return nodes[0] if len(nodes) == 1 else apply(CAT, nodes, (axis,))


def stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Tensors of one shape, joined along a new axis.

    Raises:
        ValueError: their shapes differ, or there are none.
    """
    if not tensors:
        raise ValueError("stack: give one tensor or more")
    shapes = {one.spec.shape for one in tensors}
    if len(shapes) > 1:
        raise ValueError(f"stack: the shapes {', '.join(map(str, shapes))} must be equal")
    return cat([unsqueeze(one, dim) for one in tensors], dim)


def narrow(x: Node, dim: int, start: int, length: int) -> Node:
    """``length`` elements of an axis from ``start`` on; ValueError if there are fewer."""
    axis = rules.axis_of(dim, len(x.spec.shape), "narrow")
    have = x.spec.shape[axis] if x.spec.shape else 0
    if start < 0:
        start += have
    if not 0 <= start <= start + length <= have:
        raise ValueError(
            f"narrow: {start} to {start + length} lies not within the {have} of axis {axis}"
        )
    slices = [slice(None)] * len(x.spec.shape)
    slices[axis] = slice(start, start + length)
    return take_slices(x, slices)


def split(x: Node, split_size: int | Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    """Parts along an axis, each of ``split_size`` (the last may be smaller), or of these sizes.

    Raises:
        ValueError: the sizes do not add up to the axis, or are not positive.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "split")
    length = x.spec.shape[axis]
    if isinstance(split_size, int):
        if split_size < 0 or (split_size == 0 and length):
            raise ValueError(f"split: split_size={split_size} must be 1 or more")
        sizes = [min(split_size, length - at) for at in range(0, length, split_size or 1)] or [0]
    else:
        sizes = list(split_size)
    if math.fsum(sizes) != length or any(n < 0 for n in sizes):
        raise ValueError(f"split: the parts {sizes} do not make the {length} of axis {axis}")
    parts = []
    start = 0
    for size in sizes:
        parts.append(narrow(x, axis, start, size))
        start += size
    return tuple(parts)


def chunk(x: Node, chunks: int, dim: int = 0) -> tuple[Node, ...]:
    """At most so many parts along an axis, of equal length (the last may be smaller).

    Of an axis without elements there are as many parts as that, all empty.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "chunk")
    if chunks <= 0:
        raise ValueError(f"chunk: chunks={chunks} must be 1 or more")
    length = x.spec.shape[axis]
    return split(x, -(-length // chunks) if length else [0] * chunks, axis)
