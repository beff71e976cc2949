"""Norms, inverses, determinants and linear equations, under the names of ``torch.linalg``.

Owns how ``ord`` and ``dim`` are read; functions of the table are what is recorded. Decompositions
are left out: use those of NumPy or PyTorch on the elements. Never computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shmgpu.ops import solving
from shmgpu.tensors.operations import recording
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

__all__ = ["det", "inv", "matrix_norm", "norm", "solve", "vector_norm"]

Dims = int | Sequence[int] | None


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'shmgpu.linalg' has no attribute {name!r}: it has norms, inv, det and "
        "solve; compute decompositions on the elements, numpy.linalg.svd(t.numpy())"
    )


def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """``sum(abs(x) ** ord) ** (1 / ord)`` over an axis, several, or all of them.

    Args:
        x: a tensor of floats.
        ord: a number; ``inf`` and ``-inf`` are the largest and least of the absolute values, 0
            counts those that are not 0.
        dim: the axis, or several; all of them by default.
        keepdim: keep those axes, with length 1.
        dtype: the float type to compute in.

    Raises:
        TypeError: the tensor is not of floats.
    """
    found: Tensor = FUNCTIONS["norm"](_in(x, dtype), ord, dim, keepdim)
    return found


def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """The norm of matrices in two axes.

    Args:
        A: a tensor of floats.
        ord: "fro", the root of the sum of squares; ``1`` and ``-1``, the greatest and least sum of
            a column's absolute values; ``inf`` and ``-inf``, of a row's.
        dim: the axes of rows and columns.
        keepdim: keep them, with length 1.
        dtype: the float type to compute in.

    Raises:
        TypeError: the tensor is not of floats.
        ValueError: another order, which would need singular values; not two axes; the least of no
            sums.
    """
    A = _in(A, dtype)
    if len(dim) != 2:
        raise ValueError(f"matrix_norm: dim={tuple(dim)} must be two axes")
    if ord == "fro":
        found: Tensor = FUNCTIONS["norm"](A, 2, tuple(dim), keepdim)
        return found
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(
            f"matrix_norm: ord={ord!r} must be 'fro', 1, -1, inf or -inf: for others take "
            "numpy.linalg.norm(t.numpy(), ...)"
        )
    rows, columns = (one % A.ndim for one in dim)
    along, across = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = FUNCTIONS["norm"](A, 1, along, True)
    # The greatest of no sums is 0, and a least there is none.
    pick = "amin" if ord < 0 else "amax" if A.shape[across] else "sum"
    found = FUNCTIONS[pick](sums, across, True)
    return found if keepdim else found.squeeze((rows, columns))


def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """The norm of a vector, of matrices, or of all elements.

    Args:
        A: a tensor of floats.
        ord: as for :func:`vector_norm` of one axis, and for :func:`matrix_norm` of two; None is
            the root of the sum of squares over any axes.
        dim: one axis, or two; by default all, at most two if ``ord`` is given.
        keepdim: keep those axes, with length 1.
        dtype: the float type to compute in.

    Raises:
        TypeError: the tensor is not of floats.
        ValueError: the order is not one of these, or the axes are too many for it.
    """
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    axes = tuple(range(A.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if len(axes) == 2:
        return matrix_norm(A, ord, axes, keepdim, dtype=dtype)
    if len(axes) != 1 or isinstance(ord, str):
        raise ValueError(f"norm: ord={ord!r} over the axes {axes}: it takes one axis, or two")
    return vector_norm(A, ord, axes, keepdim, dtype=dtype)


det, inv, solve = FUNCTIONS["det"], FUNCTIONS["inverse"], recording(solving.solve)


def _in(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else x.to(dtype)
