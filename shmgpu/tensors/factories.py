"""Tensors made by rule: ``zeros``, ``arange``, ``rand``, ``zeros_like`` and kin.

Owns these functions and the methods that make tensors; what they record,
:mod:`shmgpu.ops.creation` says. Nothing is sent: a helper makes the elements when they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.common import seeding as seeds
from shmgpu.ops import creation
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import OF_NUMBER, category_of_number, float32, is_float
from shmgpu.tensors import current
from shmgpu.tensors.base import Tensor, tensor


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    for n in sizes:
        if not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"the shape {sizes} must consist of whole numbers, 0 or more")
    return tuple([int(n) for n in sizes])


def _made(node: Node, requires_grad: bool) -> Tensor:
    made = Tensor(node)
    return made.requires_grad_() if requires_grad else made


def full(
    size: Sequence[int], fill_value: complex, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value."""
    kind = OF_NUMBER[category_of_number(fill_value)] if dtype is None else dtypes.of_any(dtype)
    return _made(creation.full(_shape(tuple(size)), fill_value, kind), requires_grad)


def zeros(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _made(creation.full(_shape(size), 0, dtypes.of_any(dtype)), requires_grad)


def ones(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _made(creation.full(_shape(size), 1, dtypes.of_any(dtype)), requires_grad)


def manual_seed(seed: int) -> None:
    """Seed the random numbers drawn from now on; takes precedence over ``launch(seed=)``."""
    seeds.seed_by_user(seed)


def randn(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of random numbers from the normal distribution with mean 0 and variance 1."""
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RANDN, _shape(size), dtypes.of_any(dtype))
    return _made(node, requires_grad)


def rand(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of random numbers, uniformly distributed from 0 (included) to 1 (excluded)."""
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RAND, _shape(size), dtypes.of_any(dtype))
    return _made(node, requires_grad)


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


# ---- methods -------------------------------------------------------------------------------------


def new_tensor(self: Tensor, data: Any, dtype: Any = None) -> Tensor:
    """A tensor with a copy of the data, of this one's element type unless given."""
    return tensor(data, dtype=self.dtype if dtype is None else dtype)


def new_zeros(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Zeros of this tensor's element type unless another is given."""
    return zeros(*size, dtype=self.dtype if dtype is None else dtype)


def new_ones(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Ones of this tensor's element type unless another is given."""
    return ones(*size, dtype=self.dtype if dtype is None else dtype)


def new_full(self: Tensor, size: Sequence[int], fill_value: complex, dtype: Any = None) -> Tensor:
    """One value, of this tensor's element type unless another is given."""
    return full(size, fill_value, dtype=self.dtype if dtype is None else dtype)


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Draw all elements anew, uniformly from ``low`` (included) to ``high`` (excluded)."""
    drawn = rand(*self.shape, dtype=self.dtype) * (high - low) + low
    return self._updated(drawn._node)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Draw all elements anew, from a normal distribution."""
    drawn = randn(*self.shape, dtype=self.dtype) * std + mean
    return self._updated(drawn._node)


for _method in (new_tensor, new_zeros, new_ones, new_full, uniform_, normal_):
    setattr(Tensor, _method.__name__, _method)
