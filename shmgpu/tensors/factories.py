"""Tensors made by rule: ``zeros``, ``arange``, ``rand``, ``zeros_like`` and kin.

Owns these functions and the methods that make tensors; what they record,
:mod:`shmgpu.ops.creation` says. Never sends anything: a helper makes the elements when they are
needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.common import seeding
from shmgpu.ops import creation
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import OF_NUMBER, category_of_number, float32, is_float
from shmgpu.tensors import current
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.conversion import tensor
from shmgpu.tensors.devices import accepted
from shmgpu.tensors.generators import Generator, default_generator, seeds_of

Sizes = SupportsIndex | Sequence[SupportsIndex]  # one length, or all of them


class _Like(Protocol):
    """A function that makes a tensor of another one's shape and type."""

    def __call__(
        self,
        input: Tensor,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        memory_format: Any = None,
    ) -> Tensor: ...


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    for n in sizes:
        if not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"the shape {sizes} must consist of whole numbers, 0 or more")
    return tuple([int(n) for n in sizes])


def _kind(dtype: Any) -> DType:
    return float32 if dtype is None or dtype is float32 else dtypes.of_any(dtype)


def _made(node: Node, requires_grad: bool, device: Any = None) -> Tensor:
    accepted(device)
    made = Tensor(node)
    return made.requires_grad_() if requires_grad else made


def full(
    size: Sequence[int],
    fill_value: complex,
    dtype: Any = None,
    requires_grad: bool = False,
    *,
    device: Any = None,
) -> Tensor:
    """A tensor of one value, in its type unless another is given: int64, float32 or bool."""
    kind = OF_NUMBER[category_of_number(fill_value)] if dtype is None else dtypes.of_any(dtype)
    return _made(creation.full(_shape(tuple(size)), fill_value, kind), requires_grad, device)


def get_default_dtype() -> DType:
    """The type of tensors of Python's floats: float32, always."""
    return float32


def zeros(
    *size: Sizes, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of zeros, float32 unless another type is given."""
    return _made(creation.full(_shape(size), 0, _kind(dtype)), requires_grad, device)


def ones(
    *size: Sizes, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ones, float32 unless another type is given."""
    return _made(creation.full(_shape(size), 1, _kind(dtype)), requires_grad, device)


def manual_seed(seed: int) -> Generator:
    """Seed the random numbers drawn from now on; overrides ``launch(seed=)``.

    Returns:
        The default generator.
    """
    seeding.seed_by_user(seed)
    return default_generator


def randn(
    *size: Sizes,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """A tensor of random numbers from the normal distribution with mean 0 and variance 1.

    Args:
        size: lengths of the axes, or one sequence of them.
        dtype: a float type; float32 by default.
        device: accepted, and changes nothing: tensors live where helpers compute.
        requires_grad: collect gradients.
        generator: source of random numbers; the default one, see :func:`manual_seed`, if None.
    """
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RANDN, _shape(size), _kind(dtype), seeds_of(generator))
    return _made(node, requires_grad, device)


def rand(
    *size: Sizes,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """A tensor of random numbers, uniformly distributed from 0 (included) to 1 (excluded).

    Arguments as for :func:`randn`.
    """
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RAND, _shape(size), _kind(dtype), seeds_of(generator))
    return _made(node, requires_grad, device)


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from ``start`` (0 if only one is given) up to ``end``, not included.

    Args:
        start: the first number; the end, if it is the only argument.
        end: not included.
        step: difference between neighbours; may be negative.
        dtype: int64 by default, and float32 where one of the numbers is a float.
        device: accepted, and changes nothing: tensors live where helpers compute.
        requires_grad: collect gradients.

    Raises:
        ValueError: the step is 0 or leads away from the end.
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
    node = creation.arange(start, step, math.ceil((end - start) / step), kind)
    return _made(node, requires_grad, device)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included.

    Raises:
        ValueError: ``steps`` is negative, or the dtype is not a float type.
    """
    kind = _kind(dtype)
    if steps < 0 or not is_float(kind):
        raise ValueError(f"linspace: steps={steps} of {kind.name}: give 0 or more, of a float type")
    node = creation.linspace(float(start), float(end), steps, kind)
    return _made(node, requires_grad, device)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``base`` to the power of ``steps`` evenly spaced numbers from ``start`` to ``end``.

    Raises:
        ValueError: ``steps`` is negative.
    """
    powers: Tensor = base ** linspace(start, end, steps, dtype="float64", device=device)
    found = powers.to(_kind(dtype))
    return found.requires_grad_() if requires_grad else found


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A matrix with ones on its diagonal and zeros elsewhere.

    Raises:
        ValueError: a length is negative.
    """
    columns = n if m is None else m
    if n < 0 or columns < 0:
        raise ValueError(f"eye: ({n}, {columns}) must be 0 or more")
    return _made(creation.eye(n, columns, _kind(dtype)), requires_grad, device)


def empty(
    *size: Sizes, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor whose elements are arbitrary (in fact, zeros)."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(make: Any, name: str, what: str) -> _Like:
    def like(
        input: Tensor,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        memory_format: Any = None,
    ) -> Tensor:
        accepted(device)
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
    input: Tensor,
    fill_value: complex,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of one value, of the input's shape and type."""
    accepted(device)
    kind = input.dtype if dtype is None else dtype
    return full(input.shape, fill_value, dtype=kind, requires_grad=requires_grad)


# ---- methods -------------------------------------------------------------------------------------


def new_tensor(
    self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of the data, of this one's element type unless given."""
    accepted(device)
    kind = self.dtype if dtype is None else dtype
    return tensor(data, dtype=kind, requires_grad=requires_grad)


def _new(make: Any, name: str, what: str) -> Any:
    def new(
        self: Tensor,
        *size: Sizes,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        kind = self.dtype if dtype is None else dtype
        made: Tensor = make(*size, dtype=kind, device=device, requires_grad=requires_grad)
        return made

    new.__name__ = new.__qualname__ = name
    new.__doc__ = f"{what} of this tensor's element type unless another is given."
    return new


new_zeros = _new(zeros, "new_zeros", "Zeros")
new_ones = _new(ones, "new_ones", "Ones")
new_empty = _new(empty, "new_empty", "Elements that do not matter,")


def new_full(
    self: Tensor,
    size: Sequence[int],
    fill_value: complex,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """One value, of this tensor's element type unless another is given."""
    kind = self.dtype if dtype is None else dtype
    return full(size, fill_value, dtype=kind, device=device, requires_grad=requires_grad)


def uniform_(
    self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Draw all elements anew, uniformly from ``low`` (included) to ``high`` (excluded)."""
    drawn = rand(*self.shape, dtype=self.dtype, generator=generator) * (high - low) + low
    return self._updated(drawn._node)


def normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Draw all elements anew, from a normal distribution."""
    drawn = randn(*self.shape, dtype=self.dtype, generator=generator) * std + mean
    return self._updated(drawn._node)


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Draw all elements anew, from an exponential distribution of that rate."""
    drawn = (1 - rand(*self.shape, dtype=self.dtype, generator=generator)).log() / -lambd
    return self._updated(drawn._node)


for _method in (
    new_tensor, new_zeros, new_ones, new_empty, new_full, uniform_, normal_, exponential_
):  # fmt: skip
    setattr(Tensor, _method.__name__, _method)
