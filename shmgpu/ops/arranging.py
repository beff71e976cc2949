"""Elements repeated, put beside each other, or picked by position, under torch's names.

Each is recorded as moves, joins and picks that have rows. Never has a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shmgpu.ops import rules
from shmgpu.ops.brackets import getitem, setitem
from shmgpu.ops.creation import arange, full
from shmgpu.ops.elementwise import eq, mul, ne, sub, where
from shmgpu.ops.graph import Node
from shmgpu.ops.indexing import gather, scatter_add
from shmgpu.ops.promotion import bool_, int64
from shmgpu.ops.shaping import (
    cat,
    flip,
    movedim,
    narrow,
    permute,
    reshape,
    split,
    squeeze,
    take_slices,
    transpose,
    unsqueeze,
)
from shmgpu.ops.stretching import expand

Shape = tuple[int, ...]


def ravel(x: Node) -> Node:
    """All elements along one axis."""
    return reshape(x, (-1,)) if x.spec.shape != () else reshape(x, (1,))


def unflatten(x: Node, dim: int, sizes: Sequence[int]) -> Node:
    """One axis as several, of these lengths; one of them may be -1."""
    axis = rules.axis_of(dim, len(x.spec.shape), "unflatten")
    shape = x.spec.shape
    length, known = shape[axis], math.prod(n for n in sizes if n != -1)
    inner = [length // known if n == -1 and known else n for n in sizes]
    if math.prod(inner) != length or any(n < 0 for n in inner):
        raise ValueError(f"unflatten: {tuple(sizes)} do not make the {length} of axis {axis}")
    return reshape(x, (*shape[:axis], *inner, *shape[axis + 1 :]))


def select(x: Node, dim: int, index: int) -> Node:
    """One slice along an axis, which is removed; IndexError if there is none."""
    axis = rules.axis_of(dim, len(x.spec.shape), "select")
    have = x.spec.shape[axis]
    if not -have <= index < have:
        raise IndexError(f"select: {index} lies not within the {have} of axis {axis}")
    return squeeze(narrow(x, axis, index % have, 1), axis)


def swapaxes(x: Node, axis0: int, axis1: int) -> Node:
    """With two axes exchanged."""
    return transpose(x, axis0, axis1)


def broadcast_to(x: Node, size: Sequence[int]) -> Node:
    """Broadcast to a shape."""
    return expand(x, tuple(size))


def tile(x: Node, dims: Sequence[int]) -> Node:
    """Repeated so many times along each axis; missing counts are 1."""
    counts = [1] * (len(x.spec.shape) - len(dims)) + [*dims]
    if any(n < 0 for n in counts):
        raise ValueError(f"tile: {tuple(dims)} must be 0 or more")
    shape = (1,) * (len(counts) - len(x.spec.shape)) + x.spec.shape
    apart = reshape(x, tuple(n for length in shape for n in (1, length)))
    wide = expand(apart, tuple(n for pair in zip(counts, shape, strict=True) for n in pair))
    return reshape(wide, tuple(n * m for n, m in zip(counts, shape, strict=True)))


def repeat_interleave(x: Node, repeats: int, dim: int | None = None) -> Node:
    """Each element, or slice along an axis, repeated so many times."""
    if dim is None:
        x, dim = ravel(x), 0
    axis = rules.axis_of(dim, len(x.spec.shape), "repeat_interleave")
    if rules.whole(repeats, "repeat_interleave", "repeats") < 0:
        raise ValueError(f"repeat_interleave: repeats={repeats} must be 0 or more")
    shape = x.spec.shape
    apart = reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = expand(apart, (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return reshape(wide, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


def _rows(tensors: Sequence[Node]) -> list[Node]:
    return [one if one.spec.shape else reshape(one, (1,)) for one in tensors]


def concat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """As :func:`shmgpu.cat`."""
    return cat(tensors, dim)


def vstack(tensors: Sequence[Node]) -> Node:
    """Tensors joined along the first axis; vectors count as rows."""
    return cat([unsqueeze(x, 0) if len(x.spec.shape) == 1 else x for x in _rows(tensors)], 0)


def hstack(tensors: Sequence[Node]) -> Node:
    """Tensors joined along the second axis; vectors end to end."""
    listed = _rows(tensors)
    return cat(listed, 0 if len(listed[0].spec.shape) == 1 else 1)


def diagonal(x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonal of matrices in two axes, ``offset`` elements to the right, as the last axis."""
    ndim = len(x.spec.shape)
    one, two = rules.axis_of(dim1, ndim, "diagonal"), rules.axis_of(dim2, ndim, "diagonal")
    if one == two:
        raise ValueError("diagonal: dim1 and dim2 must be two axes")
    rest = [axis for axis in range(ndim) if axis not in (one, two)]
    rows, columns = x.spec.shape[one], x.spec.shape[two]
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(rows - down, columns - right), 0)
    lead = tuple(x.spec.shape[axis] for axis in rest)
    flat = reshape(permute(x, (*rest, one, two)), (*lead, rows * columns))
    # By slices, which make views: a change of the diagonal in place is one of the matrix.
    start = down * columns + right if length else 0
    stop = start + (length - 1) * (columns + 1) + 1 if length else 0
    return take_slices(flat, [*[slice(None)] * len(rest), slice(start, stop, columns + 1)])


def diag(x: Node, diagonal: int = 0) -> Node:
    """For a vector, the matrix with it on a diagonal; for a matrix, that diagonal."""
    if len(x.spec.shape) == 2:
        return _diagonal(x, diagonal)
    if len(x.spec.shape) != 1:
        raise ValueError(f"diag: takes a vector or a matrix, not {x.spec.shape}")
    n = x.spec.shape[0]
    size = n + abs(diagonal)
    down, right = max(-diagonal, 0), max(diagonal, 0)
    places = arange(down * size + right, size + 1, n, int64)
    flat = scatter_add(full((size * size,), 0, x.spec.dtype), 0, places, x)
    return reshape(flat, (size, size))


_diagonal = diagonal  # one of diag's arguments has that name


def take_along_dim(x: Node, indices: Node, dim: int) -> Node:
    """As :func:`shmgpu.gather`, with shapes broadcast except along the axis."""
    axis = rules.axis_of(dim, len(x.spec.shape), "take_along_dim")
    shapes = [(*one.spec.shape[:axis], 1, *one.spec.shape[axis + 1 :]) for one in (x, indices)]
    lead = rules.broadcast(shapes, "take_along_dim")
    x = expand(x, (*lead[:axis], x.spec.shape[axis], *lead[axis + 1 :]))
    indices = expand(indices, (*lead[:axis], indices.spec.shape[axis], *lead[axis + 1 :]))
    return gather(x, axis, indices)


def index_add(x: Node, dim: int, index: Node, source: Node, *, alpha: float = 1) -> Node:
    """With slices of ``source`` added at ``index`` along an axis; repeated indices add up."""
    axis = rules.axis_of(dim, len(x.spec.shape), "index_add")
    shape = source.spec.shape
    wide = reshape(index, (1,) * axis + (-1,) + (1,) * (len(shape) - axis - 1))
    part = source if alpha == 1 else mul(source, alpha)
    return scatter_add(x, axis, expand(wide, shape), part)


def index_copy(x: Node, dim: int, index: Node, source: Node) -> Node:
    """With slices of ``source`` written at ``index`` along an axis."""
    axis = rules.axis_of(dim, len(x.spec.shape), "index_copy")
    return setitem(x, (*[slice(None)] * axis, index), source)


def index_fill(x: Node, dim: int, index: Node, value: float) -> Node:
    """With a number written at ``index`` along an axis."""
    axis = rules.axis_of(dim, len(x.spec.shape), "index_fill")
    return setitem(x, (*[slice(None)] * axis, index), value)


def scatter(x: Node, dim: int, index: Node, src: Node | float) -> Node:
    """``x`` with ``src`` (elements, or a number) written at ``index`` along an axis.

    If several elements are written to one position, any of them is kept.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "scatter")
    shape = index.spec.shape
    if isinstance(src, Node):
        src = getitem(src, tuple(slice(n) for n in shape))
    places = []
    for number, length in enumerate(shape):
        if number == axis:
            places.append(index)
        else:
            line = arange(0, 1, length, int64)
            at = reshape(line, (1,) * number + (length,) + (1,) * (len(shape) - number - 1))
            places.append(expand(at, shape))
    return setitem(x, tuple(places), src)


def diff(
    x: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None
) -> Node:
    """Each element minus the one before it, ``n`` times over; for bools, whether they differ.

    ``prepend`` and ``append`` are joined before and after it along the axis first.
    """
    axis = rules.axis_of(dim, len(x.spec.shape), "diff")
    parts = [one for one in (prepend, x, append) if one is not None]
    x = cat(parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        have = x.spec.shape[axis]
        ahead = narrow(x, axis, min(1, have), max(have - 1, 0))
        behind = narrow(x, axis, 0, max(have - 1, 0))
        x = ne(ahead, behind) if x.spec.dtype is bool_ else sub(ahead, behind)
    return x


def split_with_sizes(x: Node, split_sizes: Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    """As :func:`shmgpu.split`, into parts of these sizes."""
    return split(x, tuple(split_sizes), dim)


def tensor_split(
    x: Node, indices_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Node, ...]:
    """So many parts along an axis, lengths differing by 1 at most; or parted before these places.

    Raises:
        ValueError: the tensor has no axes, or there is to be no part.
    """
    if not x.spec.shape:
        raise ValueError("tensor_split: a tensor without axes has no parts")
    axis = rules.axis_of(dim, len(x.spec.shape), "tensor_split")
    length = x.spec.shape[axis]
    if isinstance(indices_or_sections, Sequence):
        ends = [slice(end).indices(length)[1] for end in indices_or_sections]
    else:
        count = indices_or_sections
        if count < 1:
            raise ValueError(f"tensor_split: {count} parts: give 1 or more")
        ends = [at * (length // count) + min(at, length % count) for at in range(1, count)]
    starts, ends = [0, *ends], [*ends, length]
    return tuple([narrow(x, axis, a, max(b - a, 0)) for a, b in zip(starts, ends, strict=True)])


def _cut(name: str, x: Node, parts: int | Sequence[int], axis: int) -> tuple[Node, ...]:
    if len(x.spec.shape) <= axis:
        raise ValueError(f"{name}: {x.spec.shape} has no axis {axis}")
    if isinstance(parts, int) and (parts < 1 or x.spec.shape[axis] % parts):
        raise ValueError(f"{name}: {x.spec.shape[axis]} of axis {axis} are not {parts} equal parts")
    return tensor_split(x, parts, axis)


def hsplit(x: Node, indices_or_sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Equal parts along the second axis (of a vector, the first), or parted before these places."""
    return _cut("hsplit", x, indices_or_sections, 0 if len(x.spec.shape) == 1 else 1)


def vsplit(x: Node, indices_or_sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Equal parts along the first of two axes or more, or parted before these places."""
    if len(x.spec.shape) < 2:
        raise ValueError(f"vsplit: {x.spec.shape} must have two axes")
    return _cut("vsplit", x, indices_or_sections, 0)


def flipud(x: Node) -> Node:
    """With the order of the first axis turned round."""
    return flip(x, (0,))


def fliplr(x: Node) -> Node:
    """With the order of the second axis turned round."""
    return flip(x, (1,))


def rot90(x: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    """Turned by ``k`` quarters, from the first of two axes towards the second."""
    one, two = dims
    turned = {0: (), 1: (two,), 2: (one, two), 3: (one,)}[k % 4]
    x = flip(x, turned)
    return transpose(x, one, two) if k % 2 else x


def diag_embed(x: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """Matrices in two new axes with the last axis on their diagonal, zeros elsewhere."""
    *rest, length = x.spec.shape
    size = length + abs(offset)
    ends = [full((*rest, abs(offset)), 0, x.spec.dtype)] if offset else []
    values = cat([x, *ends], -1)  # each stands in the row, or the column, of its number
    values = unsqueeze(values, -1 if offset >= 0 else -2)
    rows, columns = (reshape(arange(0, 1, size, int64), at) for at in ((size, 1), (1, size)))
    made = where(eq(sub(columns, rows), offset), values, full((), 0, x.spec.dtype))
    return movedim(made, (-2, -1), (dim1, dim2))


def select_scatter(x: Node, src: Node, dim: int, index: int) -> Node:
    """X with ``src`` in place of what :func:`shmgpu.select` gives."""
    axis = rules.axis_of(dim, len(x.spec.shape), "select_scatter")
    places: list[int | slice] = [slice(None)] * axis
    return setitem(x, (*places, index), src)


def slice_scatter(
    x: Node,
    src: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    """X with ``src`` in place of a slice along an axis."""
    axis = rules.axis_of(dim, len(x.spec.shape), "slice_scatter")
    return setitem(x, (*[slice(None)] * axis, slice(start, end, step)), src)
