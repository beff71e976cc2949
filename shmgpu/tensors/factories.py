"""Tensors made by rule, or like another: ``arange``, ``eye``, ``linspace``, ``zeros_like`` and kin.

Owns these functions; what they record, :mod:`shmgpu.ops.creation` says. Nothing is sent: a helper
makes the elements when they are needed.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.ops import creation
from shmgpu.ops.promotion import OF_NUMBER, category_of_number, float32, is_float
from shmgpu.tensors.tensor import Tensor, full, ones, rand, randn, zeros

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full_like",
    "linspace",
    "ones_like",
    "rand_like",
    "randn_like",
    "zeros_like",
]


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from ``start`` (0 where only one is given) up to ``end``, not included.

    Args:
        start: the first one; the end, where it is the only argument.
        end: none of the numbers reaches it.
        step: from one to the next; negative to go down.
        dtype: int64 unless given, and float32 where one of the numbers is a float.
        requires_grad: collect gradients.

    Raises:
        ValueError: the step leads away from the end, or is 0.
    """
    if end is None:
        start, end = 0, start
    given = (start, end, step)
    if dtype is None:
        kind = OF_NUMBER[max(map(category_of_number, given))]
        kind = dtypes.by_name("int64") if kind.name == "bool" else kind
    else:
        kind = dtypes.of_any(dtype)
    if step == 0 or not all(map(math.isfinite, given)) or (end - start) / step < 0:
        raise ValueError(f"arange: from {start} one does not come to {end} in steps of {step}")
    made = Tensor(creation.arange(start, step, math.ceil((end - start) / step), kind))
    return made.requires_grad_() if requires_grad else made


def linspace(
    start: float, end: float, steps: int, *, dtype: Any = float32, requires_grad: bool = False
) -> Tensor:
    """``steps`` numbers from ``start`` to ``end``, both among them, evenly apart.

    Raises:
        ValueError: ``steps`` is negative, or the dtype is not a float type.
    """
    kind = dtypes.of_any(dtype)
    if steps < 0 or not is_float(kind):
        raise ValueError(f"linspace: steps={steps} of {kind.name}: give 0 or more, of a float type")
    made = Tensor(creation.linspace(float(start), float(end), steps, kind))
    return made.requires_grad_() if requires_grad else made


def eye(
    n: int, m: int | None = None, *, dtype: Any = float32, requires_grad: bool = False
) -> Tensor:
    """A matrix with ones on its diagonal and zeros elsewhere.

    Raises:
        ValueError: a length is negative.
    """
    columns = n if m is None else m
    if n < 0 or columns < 0:
        raise ValueError(f"eye: ({n}, {columns}) must be 0 or more")
    made = Tensor(creation.eye(n, columns, dtypes.of_any(dtype)))
    return made.requires_grad_() if requires_grad else made


def empty(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor whose elements do not matter: they are zeros."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad)


def _like(make: Any, name: str, what: str) -> Any:
    def like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        kind = input.dtype if dtype is None else dtype
        made: Tensor = make(input.shape, dtype=kind, requires_grad=requires_grad)
        return made

    like.__name__ = like.__qualname__ = name
    like.__doc__ = f"A tensor of {what}, of the input's shape and type."
    return like


zeros_like = _like(zeros, "zeros_like", "zeros")
ones_like = _like(ones, "ones_like", "ones")
empty_like = _like(empty, "empty_like", "elements that do not matter")
rand_like = _like(rand, "rand_like", "numbers drawn evenly from 0 to 1")
randn_like = _like(randn, "randn_like", "numbers drawn from the normal distribution")


def full_like(
    input: Tensor, fill_value: complex, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value, of the input's shape and type."""
    kind = input.dtype if dtype is None else dtype
    return full(input.shape, fill_value, dtype=kind, requires_grad=requires_grad)
