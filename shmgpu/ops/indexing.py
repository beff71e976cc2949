"""Elements found by number: gather, scatter and embedding, and parts that are written.

Owns their rows and the functions that record them. What stands in square brackets is read by
:mod:`shmgpu.ops.brackets`. Never gives a shape that is not known while recording.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.casting import alias, cast
from shmgpu.ops.creation import full, zeros_like
from shmgpu.ops.elementwise import Operand, ne, where
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, grad_mode, spec_of
from shmgpu.ops.promotion import CATEGORY, WHOLE, as_node, bool_, int64
from shmgpu.ops.shaping import flip, reshape, take_slices
from shmgpu.ops.stretching import expand, sum_to

Specs = tuple[Spec, ...]
Shape = tuple[int, ...]


def whole(index: Node, name: str) -> Node:
    """The index as int64; TypeError where it is not of integers."""
    if CATEGORY[index.spec.dtype] != WHOLE:
        hint = (
            ": a mask gives a shape that depends on its elements, so use where(mask, x, y), or "
            "x[mask], which looks at it"
        )
        raise TypeError(
            f"{name}: the index is {index.spec.dtype.name}, and must be of integers"
            f"{hint if index.spec.dtype is bool_ else ''}"
        )
    return cast(index, int64)


def within(np: Any, index: Any, length: int, name: str) -> Any:
    """The index itself; IndexError where it leads nowhere. torch's kernels look for themselves."""
    if index.size and not (0 <= index.min() and index.max() < length):
        raise IndexError(f"{name}: an index lies not within the {length} of the axis")
    return index


# ---- gather, and back ----------------------------------------------------------------------------


def _gathered(specs: Specs, params: Params) -> Spec:
    x, index = specs
    (axis,) = params
    fits = len(x.shape) == len(index.shape) and all(
        n <= have
        for at, (n, have) in enumerate(zip(index.shape, x.shape, strict=True))
        if at != axis
    )
    if not fits and (len(x.shape) != len(index.shape) or 0 not in index.shape):
        raise ValueError(
            f"gather: the index {index.shape} must have as many axes as {x.shape}, and none longer "
            f"but axis {axis}"
        )
    return spec_of(x.dtype, index.shape)


def _corner(shape: Shape, axis: int) -> Any:
    """The part of an array that an index of this shape is about."""
    return tuple([slice(None) if at == axis else slice(n) for at, n in enumerate(shape)])


def _numpy_gather(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (axis,) = params
    corner = _corner(specs[1].shape, axis)
    length = specs[0].shape[axis] if specs[0].shape else 1

    def gather(x: Any, index: Any) -> Any:
        within(np, index, length, "gather")
        if not index.size:
            return np.zeros(out.shape, out.dtype.numpy)
        return np.take_along_axis(x[corner], index, axis) if out.shape else np.array(x)

    return gather


def _torch_gather(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (axis,) = params
    return lambda x, index: torch.gather(x, axis, index)


def _numpy_scatter_add(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (axis,) = params
    length = specs[0].shape[axis] if specs[0].shape else 1

    def scatter_add(x: Any, index: Any, source: Any) -> Any:
        within(np, index, length, "scatter_add")
        y = np.array(x)
        if not y.shape:
            return y + source
        places = list(np.ogrid[tuple(slice(n) for n in index.shape)])
        places[axis] = index
        np.add.at(y, tuple(places), source[tuple(slice(n) for n in index.shape)])
        return y

    return scatter_add


def _torch_scatter_add(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (axis,) = params
    return lambda x, index, source: torch.scatter_add(x, axis, index, source)


def _scattered(specs: Specs, params: Params) -> Spec:
    x, index, source = specs
    _gathered((x, index), params)
    if source.dtype is not x.dtype:
        raise TypeError(f"scatter_add: {source.dtype.name} is added to {x.dtype.name}: convert one")
    if len(source.shape) != len(index.shape) or any(
        n > have for n, have in zip(index.shape, source.shape, strict=True)
    ):
        raise ValueError(
            f"scatter_add: the index {index.shape} reaches beyond the source {source.shape}"
        )
    return x


def _source_gradient(g: Node, n: Node) -> Node:
    """What lies beyond the index had no influence."""
    _, index, source = n.inputs
    found = apply(GATHER, (g, index), n.params)
    if found.spec.shape == source.spec.shape:
        return found
    slices = [slice(n) for n in index.spec.shape]
    return put_slices(zeros_like(source), slices, found)


GATHER = Op(
    "gather",
    _gathered,
    may_fail=True,
    numpy=_numpy_gather,
    torch=_torch_gather,
    gradients=(
        lambda g, n: apply(SCATTER_ADD, (zeros_like(n.inputs[0]), n.inputs[1], g), n.params),
        None,
    ),
    saves="i",
)
SCATTER_ADD: Op = Op(
    "scatter_add",
    _scattered,
    may_fail=True,
    numpy=_numpy_scatter_add,
    torch=_torch_scatter_add,
    gradients=(lambda g, n: g, None, _source_gradient),
    saves="i",
)


def gather(x: Node, dim: int, index: Node) -> Node:
    """``out[i][j] = x[index[i][j]][j]`` for axis 0, and likewise for the others.

    Raises:
        ValueError: the index has another number of axes than x, or one that is longer.
        TypeError: the index is not of integers.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "gather")
    return apply(GATHER, (x, whole(index, "gather")), (axis,))


def scatter_add(x: Node, dim: int, index: Node, src: Node) -> Node:
    """Adds ``src[i][j]`` at ``[index[i][j]][j]`` for axis 0, and likewise for the others.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the index is not of integers.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "scatter_add")
    return apply(SCATTER_ADD, (x, whole(index, "scatter_add"), src), (axis,))


# ---- rows of a table -----------------------------------------------------------------------------


def _embedded(specs: Specs, params: Params) -> Spec:
    index, table = specs
    if len(table.shape) != 2:
        raise ValueError(f"embedding: the weight {table.shape} must be (how many, how long)")
    return spec_of(table.dtype, (*index.shape, table.shape[1]))


def _numpy_embedding(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    length = specs[1].shape[0]
    return lambda index, table: table[within(np, index, length, "embedding")]


def _numpy_embedding_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    def backward(g: Any, index: Any) -> Any:
        table = np.zeros(out.shape, out.dtype.numpy)
        np.add.at(table, index.reshape(-1), g.reshape(index.size, out.shape[1]))
        return table

    return backward


def _torch_embedding_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    backward = torch.ops.aten.embedding_dense_backward.default
    rows = out.shape[0]
    return lambda g, index: backward(g.contiguous(), index, rows, -1, False)


EMBEDDING = Op(
    "embedding",
    _embedded,
    may_fail=True,
    numpy=_numpy_embedding,
    torch=lambda torch, *_: lambda index, table: torch.embedding(table, index),
    gradients=(
        None,
        lambda g, n: apply(EMBEDDING_BACKWARD, (g, n.inputs[0]), (n.inputs[1].spec.shape[0],)),
    ),
    saves="i",
)
EMBEDDING_BACKWARD: Op = Op(
    "embedding_backward",
    lambda specs, params: spec_of(specs[0].dtype, (params[0], specs[0].shape[-1])),
    numpy=_numpy_embedding_backward,
    torch=_torch_embedding_backward,
    gradients=(lambda g, n: apply(EMBEDDING, (n.inputs[1], g)), None),
    saves="i",
)


def embedding(input: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """The rows of ``weight`` at the indices ``input``.

    (...) with a weight of (how many, how long) -> (..., how long). No gradient flows to the row
    ``padding_idx``; negative numbers count from the end.

    Raises:
        TypeError: ``input`` is not of integers.
        ValueError: there is no row ``padding_idx``.
    """
    numbers = whole(input, "embedding")
    out = apply(EMBEDDING, (numbers, weight))
    if padding_idx is None:
        return out
    rows = weight.spec.shape[0]
    if not -rows <= padding_idx < rows:
        raise ValueError(f"embedding: padding_idx={padding_idx} is none of the {rows} rows")
    learns = ne(numbers, padding_idx % rows)
    return where(reshape(learns, (*numbers.spec.shape, 1)), out, alias(out))


# ---- tensors of whole numbers in square brackets -------------------------------------------------


def indexed_shape(shape: Shape, indices: list[Shape], axes: Shape) -> Shape:
    """Where the indexed axes are neighbours the result stands in their place, else first."""
    found = rules.broadcast(indices, "indexing")
    rest = [n for axis, n in enumerate(shape) if axis not in axes]
    at = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    return (*rest[:at], *found, *rest[at:])


def _indexed(specs: Specs, params: Params) -> Spec:
    x, *indices = specs
    (axes,) = params
    return spec_of(x.dtype, indexed_shape(x.shape, [one.shape for one in indices], axes))


def _keys(ndim: int, axes: Shape) -> Any:
    """What makes of index arrays the tuple that goes into square brackets."""
    places = [axes.index(axis) if axis in axes else None for axis in range(ndim)]

    def keys(indices: Any) -> Any:
        return tuple([slice(None) if at is None else indices[at] for at in places])

    return keys


def _index_kernel(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    keys = _keys(len(specs[0].shape), params[0])
    return lambda x, *indices: x[keys(indices)]


def _numpy_index_put(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes, accumulate = params
    keys = _keys(len(out.shape), axes)

    def index_put(x: Any, value: Any, *indices: Any) -> Any:
        y = np.array(x)
        if accumulate:
            np.add.at(y, keys(indices), value)
        else:
            y[keys(indices)] = value
        return y

    return index_put


def _torch_index_put(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    axes, accumulate = params
    places = [axes.index(axis) if axis in axes else None for axis in range(len(out.shape))]

    def index_put(x: Any, value: Any, *indices: Any) -> Any:
        found = [None if at is None else indices[at] for at in places]
        return torch.ops.aten.index_put(x, found, value, accumulate)

    return index_put


def _put(specs: Specs, params: Params) -> Spec:
    x, value, *indices = specs
    target = indexed_shape(x.shape, [one.shape for one in indices], params[0])
    if rules.broadcast([target, value.shape], "index_put") != target:
        raise ValueError(f"index_put: {value.shape} does not fit into {target}")
    if value.dtype is not x.dtype:
        raise TypeError(f"index_put: {value.dtype.name} is put into {x.dtype.name}: convert it")
    return x


def _put_gradient(g: Node, n: Node) -> Node:
    _, value, *indices = n.inputs
    axes, accumulate = n.params
    if accumulate:
        return g
    zero = full(value.spec.shape, 0, g.spec.dtype)
    return apply(INDEX_PUT, (g, zero, *indices), (axes, False))


def _value_gradient(g: Node, n: Node) -> Node:
    _, value, *indices = n.inputs
    return sum_to(apply(INDEX, (g, *indices), n.params[:1]), value.spec.shape)


def _index_gradient(g: Node, n: Node) -> Node:
    x, *indices = n.inputs
    return apply(INDEX_PUT, (zeros_like(x), g, *indices), (n.params[0], True))


class _First:
    """Gradients of the first inputs; the indices behind them have none."""

    def __init__(self, *rules: Any) -> None:
        self._rules = rules

    def __len__(self) -> int:
        return len(self._rules)

    def __getitem__(self, index: int) -> Any:
        return self._rules[index] if index < len(self._rules) else None


INDEX = Op(
    "index",
    _indexed,
    may_fail=True,
    numpy=_index_kernel,
    torch=_index_kernel,
    gradients=_First(_index_gradient),  # type: ignore[arg-type]
    saves="i",
)
INDEX_PUT = Op(
    "index_put",
    _put,
    may_fail=True,
    numpy=_numpy_index_put,
    torch=_torch_index_put,
    gradients=_First(_put_gradient, _value_gradient),  # type: ignore[arg-type]
    saves="i",
)


def index_select(x: Node, dim: int, index: Node) -> Node:
    """The slices along one axis at ``index``, a vector."""
    if len(index.spec.shape) > 1:
        raise ValueError(f"index_select: the index {index.spec.shape} must have one axis")
    if not x.spec.shape:
        raise ValueError("index_select: a tensor without axes has no parts to number")
    axis = rules.axis_of(dim, len(x.spec.shape), "index_select")
    return apply(INDEX, (x, reshape(whole(index, "index_select"), (-1,))), ((axis,),))


def take(x: Node, index: Node) -> Node:
    """The elements at ``index`` of x, read as if it had one axis."""
    return apply(INDEX, (reshape(x, (math.prod(x.spec.shape),)), whole(index, "take")), ((0,),))


# ---- a part that is written ----------------------------------------------------------------------


def _slice_scatter(specs: Specs, params: Params) -> Spec:
    x, value = specs
    part = tuple([len(range(*one)) for one in zip(*params, strict=True)])
    if value.shape != part or value.dtype is not x.dtype:
        raise ValueError(f"slice_scatter: {value} does not fit into the part {part} of {x}")
    return x


def _part(params: Params) -> Any:
    return tuple([slice(*one) for one in zip(*params, strict=True)])


def _numpy_slice_scatter(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    part = _part(params)

    def kernel(x: Any, value: Any, out: Any = None) -> Any:
        if out is value:
            value = value.copy()
        if out is None:
            out = np.array(x)
        elif out is not x:
            out[...] = x
        out[part] = value
        return out

    return kernel


def _torch_slice_scatter(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    part = _part(params)

    def kernel(x: Any, value: Any, out: Any = None) -> Any:
        if out is value:
            value = value.clone()
        if out is None:
            out = x.clone(memory_format=torch.contiguous_format)
        elif out is not x:
            out.copy_(x)
        out[part] = value
        return out

    return kernel


def _slices_of(params: Params) -> list[slice]:
    return [slice(*one) for one in zip(*params, strict=True)]


SLICE_SCATTER: Op = Op(
    "slice_scatter",
    _slice_scatter,
    numpy=_numpy_slice_scatter,
    torch=_torch_slice_scatter,
    gradients=(
        lambda g, n: apply(SLICE_SCATTER, (g, zeros_like(n.inputs[1])), n.params),
        lambda g, n: take_slices(g, _slices_of(n.params)),
    ),
    in_place=True,
)


def put_slices(x: Node, slices: list[slice], value: Node) -> Node:
    """The input with ``value`` where a slice for each axis says.

    Where that is everywhere it is the value itself, unless gradients flow to the input: then they
    are zeros.
    """
    ranges = [range(*one.indices(n)) for one, n in zip(slices, x.spec.shape, strict=True)]
    back = tuple([axis for axis, r in enumerate(ranges) if r.step < 0])
    if back:
        value = flip(value, back)
        ranges = [r[::-1] if r.step < 0 else r for r in ranges]
    if value.spec.shape == x.spec.shape and not (x.needs_grad and grad_mode.enabled):
        return value
    if math.prod(value.spec.shape) == 0:
        return x
    params = (
        tuple([r.start for r in ranges]),
        tuple([r.stop for r in ranges]),
        tuple([r.step for r in ranges]),
    )
    return apply(SLICE_SCATTER, (x, value), params)


# ---- where a mask is true ------------------------------------------------------------------------


def masked_fill(x: Node, mask: Node, value: Operand) -> Node:
    """``value``, a number or a 0-d tensor, where the mask is True, x elsewhere, in x's type.

    Raises:
        TypeError: the mask is not of bools.
        ValueError: the mask cannot be broadcast to x's shape, or the value has axes.
    """
    if mask.spec.dtype is not bool_:
        raise TypeError(f"masked_fill: the mask is {mask.spec.dtype.name}, and must be of bools")
    value = as_node(value, x.spec.dtype)
    if value.spec.shape:
        raise ValueError(f"masked_fill: the value must be one number, and has {value.spec.shape}")
    return where(expand(mask, x.spec.shape), value, x)
