"""Functions of the array API over axes: statistics, searching, sorting, sets, all and any.

Owns what the standard asks of them beyond PyTorch's functions. Never computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shmgpu.array_api.arguments import F, floats, of_type, over, tensor_of, together
from shmgpu.array_api.elementwise import checked
from shmgpu.codec.dtypes import DType
from shmgpu.ops.promotion import int64
from shmgpu.tensors import whole
from shmgpu.tensors.tensor import Tensor

Axis = int | tuple[int, ...] | None


def _counting(name: str, does: str, kind: Any, call: Callable[..., Any]) -> Callable[..., Tensor]:
    def function(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
        checked(name, kind, x)
        made: Tensor = call(*over(x, axis, keepdims))
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does} over an axis, several, or all of them."
    return function


def _yes(name: str) -> Callable[..., Any]:
    # Of bytes PyTorch's give bytes.
    return lambda x, axes, keep: F[name](x != 0 if x.dtype.name != "bool" else x, axes, keep)


all = _counting("all", "Whether all elements are true (not 0),", None, _yes("all"))
any = _counting("any", "Whether any element is true (not 0),", None, _yes("any"))
max = _counting("max", "The largest element", "numeric", F["amax"])
min = _counting("min", "The smallest element", "numeric", F["amin"])
mean = _counting("mean", "The mean", "real floating", F["mean"])
count_nonzero = _counting(
    "count_nonzero",
    "How many elements are not 0,",
    None,
    lambda x, axes, keep: F["sum"](x != 0, axes, keep),
)


def sum(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The sum over an axis, several, or all of them; int64 for integers."""
    checked("sum", "numeric", x)
    made: Tensor = F["sum"](*over(x, axis, keepdims), dtype=dtype)
    return made


def prod(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The product over an axis, several, or all of them; int64 for integers."""
    checked("prod", "numeric", x)
    made: Tensor = F["prod"](*over(x, axis, keepdims), dtype=dtype)
    return made


def var(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance: the sum of squares divided by the number of elements minus ``correction``."""
    floats("var", x)
    x, axis, keepdims = over(x, axis, keepdims)
    made: Tensor = F["var"](x, axis, keepdim=keepdims, correction=correction)
    return made


def std(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of the variance."""
    floats("std", x)
    x, axis, keepdims = over(x, axis, keepdims)
    made: Tensor = F["std"](x, axis, keepdim=keepdims, correction=correction)
    return made


def _cumulative(name: str, called: str, first: int, does: str) -> Callable[..., Tensor]:
    def function(
        x: Tensor,
        /,
        *,
        axis: int | None = None,
        dtype: DType | None = None,
        include_initial: bool = False,
    ) -> Tensor:
        checked(name, "numeric", x)
        if axis is None:
            if x.ndim != 1:
                raise ValueError(f"{name}: give axis= for a tensor of {x.ndim} axes")
            axis = 0
        made: Tensor = F[called](x, axis, dtype)
        if include_initial:
            shape = [1 if place == axis % x.ndim else n for place, n in enumerate(x.shape)]
            made = F["concat"]([made.new_full(shape, first), made], axis)
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = does
    return function


cumulative_sum = _cumulative(
    "cumulative_sum",
    "cumsum",
    0,
    "Running sums; with ``include_initial`` preceded by 0.",
)
cumulative_prod = _cumulative(
    "cumulative_prod",
    "cumprod",
    1,
    "Running products; with ``include_initial`` preceded by 1.",
)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each element minus the one before it, ``n`` times over."""
    checked("diff", "numeric", x)
    made: Tensor = F["diff"](x, n, axis, prepend, append)
    return made


# ---- where ---------------------------------------------------------------------------------------


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Indices of the largest element, along an axis or among all."""
    return _place("argmax", x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Indices of the smallest element, along an axis or among all."""
    return _place("argmin", x, axis, keepdims)


def _place(name: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    checked(name, "numeric", x)
    found: Tensor = F[name](x, axis, keepdims if axis is not None else False)
    if axis is None and keepdims:
        found = found.reshape([1] * x.ndim)
    return found


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Indices of elements that are not 0, one tensor per axis; computed now, by one message."""
    if not tensor_of(x, "nonzero").ndim:
        raise ValueError("nonzero: the tensor must have an axis at least")
    found: tuple[Tensor, ...] = whole.nonzero(x, as_tuple=True)
    return found


def searchsorted(
    x1: Tensor,
    x2: Any,
    /,
    *,
    side: str = "left",
    sorter: Tensor | None = None,
) -> Tensor:
    """Where elements of ``x2`` would be inserted into ``x1``, a vector, to keep its order.

    Args:
        x1: in ascending order, or sorted by ``sorter``.
        x2: the elements to insert.
        side: "left": before equal elements; "right": after them.
        sorter: the indices that sort ``x1``.
    """
    if sorter is not None:
        x1 = F["index_select"](x1, 0, sorter)
    made: Tensor = F["searchsorted"](x1, x2, side=side)
    return made


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """Elements of x1 where the condition holds, of x2 elsewhere."""
    if isinstance(x1, Tensor) or isinstance(x2, Tensor):
        x1, x2 = together("where", x1, x2)
    made: Tensor = F["where"](condition, x1, x2)
    return made


# ---- order ---------------------------------------------------------------------------------------


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis; the sort is always stable."""
    checked("sort", "numeric", x)
    made: Tensor = F["sort"](x, axis, descending)[0]
    return made


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices that sort the elements along an axis."""
    checked("argsort", "numeric", x)
    made: Tensor = F["argsort"](x, axis, descending)
    return made


class unique_all_result(NamedTuple):
    """What :func:`unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class unique_counts_result(NamedTuple):
    """What :func:`unique_counts` returns."""

    values: Tensor
    counts: Tensor


class unique_inverse_result(NamedTuple):
    """What :func:`unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> unique_all_result:
    """Distinct elements, their first indices, the inverse indices, and counts.

    They are computed now, at a message's cost; so are those of the other three.
    """
    values, inverse, counts = whole.unique(x, True, True, True)
    places = F["argsort"](of_type(inverse, int64).ravel(), 0, False)
    first = F["cumsum"](counts, 0) - counts
    return unique_all_result(values, F["index_select"](places, 0, first), inverse, counts)


def unique_counts(x: Tensor, /) -> unique_counts_result:
    """The distinct elements, and the count of each."""
    return unique_counts_result(*whole.unique(x, True, False, True))


def unique_inverse(x: Tensor, /) -> unique_inverse_result:
    """The distinct elements, and the index among them of each element."""
    return unique_inverse_result(*whole.unique(x, True, True))


def unique_values(x: Tensor, /) -> Tensor:
    """The distinct elements in order."""
    found: Tensor = whole.unique(x)
    return found
