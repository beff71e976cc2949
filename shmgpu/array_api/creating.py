"""Creation functions of the array API, and ``astype``.

Owns their arguments, as the standard has them. Never computes: helpers make the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.array_api.arguments import F, of_type, tensor_of
from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops import creation
from shmgpu.ops.promotion import float32, int64
from shmgpu.tensors import factories, whole
from shmgpu.tensors.devices import accepted
from shmgpu.tensors.tensor import Tensor
from shmgpu.tensors.tensor import tensor as tensor_with

Shape = int | Sequence[int]


def _shape(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: Any = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor of a number, nested sequences, an array, or a tensor.

    Args:
        obj: what it is made of.
        dtype: element type; by default that of the data.
        device: accepted, and changes nothing: tensors live where helpers compute.
        copy: True for a tensor of its own in any case, False for an error where one would have to
            be made. Anything but a tensor is always copied.

    Raises:
        ValueError: a copy is needed, and forbidden.
    """
    accepted(device)
    kind = None if dtype is None else dtypes.of_any(dtype)
    if isinstance(obj, Tensor):
        changes = kind is not None and kind is not obj.dtype
        if copy is False and changes:
            raise ValueError("asarray: another type needs a copy, and copy=False forbids one")
        made = of_type(obj, kind) if kind is not None else obj
        return made.clone() if copy and not changes else made
    if copy is False:
        raise ValueError(f"asarray: copy=False, and {type(obj).__name__} is no tensor")
    if isinstance(obj, (list, tuple)) and _holds_tensors(obj):
        obj = _read(obj)
    return tensor_with(obj, dtype=kind)


def _holds_tensors(obj: Any) -> bool:
    if isinstance(obj, (list, tuple)):
        return any(map(_holds_tensors, obj))
    return isinstance(obj, Tensor)


def _read(obj: Any) -> Any:
    """Nested sequences with the elements of the tensors in them."""
    if isinstance(obj, (list, tuple)):
        return [_read(one) for one in obj]
    return obj.numpy() if isinstance(obj, Tensor) else obj


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of another library's array, copied.

    Raises:
        ValueError: ``copy=False``: its memory is not the arena's.
    """
    accepted(device)
    if isinstance(x, Tensor):
        return x.clone() if copy else x
    if copy is False:
        raise ValueError("from_dlpack: copy=False, and elements must be copied into the arena")
    return tensor_with(np.from_dlpack(x))


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """Numbers from ``start`` (0 if only one is given) to ``stop``, not included; possibly none.

    Raises:
        ValueError: the step is 0.
    """
    accepted(device)
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: step=0 leads nowhere")
    whole_numbers = all(isinstance(one, int) for one in (start, stop, step))
    kind = (int64 if whole_numbers else float32) if dtype is None else dtypes.of_any(dtype)
    count = max(math.ceil((stop - start) / step), 0)
    return Tensor(creation.arange(start, step, count, kind))


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """``num`` evenly spaced numbers from ``start`` to ``stop``, included with ``endpoint``.

    Raises:
        ValueError: ``num`` is negative, or the type is not of floats.
    """
    if not endpoint and num:
        stop = start + (stop - start) * (num - 1) / num
    return factories.linspace(start, stop, num, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """A matrix with ones on its ``k``-th diagonal and zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    kind = float32 if dtype is None else dtypes.of_any(dtype)
    if k == 0:
        return factories.eye(n_rows, columns, dtype=kind, device=device)
    accepted(device)
    rows = factories.arange(n_rows).unsqueeze(1) + k
    made: Tensor = (rows == factories.arange(columns)).to(kind)
    return made


def full(
    shape: Shape,
    fill_value: complex,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """A tensor of one value, in its type unless another is given."""
    return factories.full(_shape(shape), fill_value, dtype=dtype, device=device)


def zeros(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of zeros, float32 unless another type is given."""
    return factories.zeros(_shape(shape), dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of ones, float32 unless another type is given."""
    return factories.ones(_shape(shape), dtype=dtype, device=device)


def empty(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor whose elements are arbitrary (in fact, zeros)."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: complex, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """A tensor of one value, of x's shape, and of its type unless another is given."""
    return factories.full_like(x, fill_value, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of zeros, of x's shape, and of its type unless another is given."""
    made: Tensor = factories.zeros_like(x, dtype=dtype, device=device)
    return made


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of ones, of x's shape, and of its type unless another is given."""
    made: Tensor = factories.ones_like(x, dtype=dtype, device=device)
    return made


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of arbitrary elements, of x's shape, and of its type unless one is given."""
    return zeros_like(x, dtype=dtype, device=device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of a grid: each vector along its own axis, broadcast along the others."""
    return list(whole.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Zeros above the ``k``-th diagonal of the last two axes."""
    made: Tensor = F["tril"](x, k)
    return made


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Zeros below the ``k``-th diagonal of the last two axes."""
    made: Tensor = F["triu"](x, k)
    return made


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """In another element type; a copy, unless ``copy=False`` and it has the type."""
    accepted(device)
    kind = dtypes.of_any(dtype)
    if tensor_of(x, "astype").dtype is not kind:
        return of_type(x, kind)
    return x.clone() if copy else x
