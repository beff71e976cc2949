"""Functions over whole tensors: random choices, and those whose shape depends on elements.

Owns both. Random choices are recorded from uniform or normal numbers. Never draws them here:
helpers do, when the values are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.conversion import tensor
from shmgpu.tensors.devices import accepted
from shmgpu.tensors.factories import rand, randn
from shmgpu.tensors.generators import Generator
from shmgpu.tensors.operations import FUNCTIONS

_INT64 = dtypes.by_name("int64")


def randint(
    low: int,
    high: Any = None,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: Any = _INT64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from ``low`` (0 if only one is given) up to ``high``, not included.

    Args:
        low: the smallest; or the end, if it is the only number.
        high: the end, not included; or the size, if ``low`` is the end.
        size: the shape.
        generator: source of random numbers.
        dtype: of the result.
        device: accepted, and changes nothing: tensors live where helpers compute.
        requires_grad: collect gradients.

    Raises:
        ValueError: there is no integer between the two.
    """
    if size is None:
        low, high, size = 0, low, high
    if size is None or high <= low:
        raise ValueError(f"randint: from {low} to {high} of the shape {size}: give low < high")
    drawn = rand(*size, dtype="float64", device=device, generator=generator) * (high - low)
    found: Tensor = (drawn.floor() + low).to(dtype)
    return found.requires_grad_() if requires_grad else found


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = _INT64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The integers from 0 up to ``n``, not included, in random order."""
    drawn = rand(n, dtype="float64", device=device, generator=generator)
    found: Tensor = drawn.argsort().to(dtype)
    return found.requires_grad_() if requires_grad else found


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normally distributed numbers.

    Args:
        mean: of each, a tensor or a number.
        std: the deviation of each, likewise.
        size: the shape, where both are numbers.
        generator: source of random numbers.
        dtype: a float type; float32 by default.
        device: accepted, and changes nothing: tensors live where helpers compute.
        requires_grad: collect gradients.
    """
    if size is None:
        both = mean + std
        if not isinstance(both, Tensor):
            raise TypeError("normal: give size=, or a tensor for mean or std")
        size = both.shape
    drawn: Tensor = randn(*size, dtype=dtype, device=device, generator=generator) * std + mean
    return drawn.requires_grad_() if requires_grad else drawn


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """1 with the element (or ``p``) as probability, else 0; of the same type."""
    chance = rand(*input.shape, dtype="float64", generator=generator)
    found: Tensor = (chance < (input if p is None else p)).to(input.dtype)
    return found


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Indices of a row's elements, drawn with the elements as weights; int64.

    Args:
        input: weights, 0 or more: (k,) or (rows, k).
        num_samples: how many are drawn of each row.
        replacement: whether one may be drawn again.
        generator: source of random numbers.

    Raises:
        ValueError: more would be drawn than there are, or the shape is neither of these.
    """
    if len(input.shape) not in (1, 2):
        raise ValueError(f"multinomial: takes (k,) or (rows, k) of weights, not {input.shape}")
    count = input.shape[-1]
    if num_samples < 1 or (not replacement and num_samples > count):
        raise ValueError(f"multinomial: {num_samples} of {count} cannot be drawn: see replacement=")
    weights = input.to("float64")
    lead = input.shape[:-1]
    if not replacement:
        # Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
        drawn = rand(*lead, count, dtype="float64", generator=generator)
        keys = FUNCTIONS["log"](1 - drawn) / weights
        keys = FUNCTIONS["where"](weights > 0, keys, -math.inf)
        chosen: Tensor = keys.topk(num_samples, -1)[1]
        return chosen
    until = weights.cumsum(-1)
    aim = rand(*lead, num_samples, dtype="float64", generator=generator) * until[..., -1:]
    found: Tensor = (aim.unsqueeze(-1) >= until.unsqueeze(-2)).sum(-1)
    return found


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The tensor itself, if it is one of that type; else as :func:`shmgpu.tensor`."""
    accepted(device)
    if isinstance(data, Tensor) and dtype is None:
        return data
    if isinstance(data, Tensor):
        made: Tensor = data.to(dtype)
        return made
    return tensor(data, dtype=dtype)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid: each vector along its own axis, broadcast along the others.

    Args:
        tensors: vectors, or one sequence of them.
        indexing: "ij", or "xy", which exchanges the first two axes.
    """
    is_listed = len(tensors) == 1 and not isinstance(tensors[0], Tensor)
    listed = list(tensors[0] if is_listed else tensors)
    if indexing not in ("ij", "xy"):
        raise ValueError(f'meshgrid: indexing={indexing!r} must be "ij" or "xy"')
    swaps = indexing == "xy" and len(listed) > 1
    if swaps:
        listed[:2] = listed[1::-1]
    shape = [one.numel() for one in listed]
    grids = []
    for axis, one in enumerate(listed):
        place = [1] * len(listed)
        place[axis] = shape[axis]
        grid = one.reshape(place).expand(shape)
        grids.append(grid)
    if swaps:
        grids[:2] = grids[1::-1]
    return tuple(grids)


# ---- what must be looked at: each costs a message ------------------------------------------------


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of elements that are not 0, int64: (count, axes); ``as_tuple`` one tensor per axis.

    The shape follows from the elements, so they are computed now, which costs one message.
    """
    places = np.atleast_1d(input.data.numpy()).nonzero()
    if as_tuple:
        return tuple(tensor(one) for one in places)
    return tensor(_columns(places, len(input.shape)))


def _columns(places: Any, axes: int) -> Any:
    return np.stack(places, 1) if axes else np.zeros((len(places[0]), 0), np.int64)


_where = FUNCTIONS["where"]


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """The first where the condition holds, else the second; both may be numbers.

    Types and shapes as for :func:`shmgpu.add`. Without both, as :func:`nonzero`, one tensor per
    axis: the condition is computed now, which costs one message.

    Raises:
        TypeError: the condition is not bool, or one of the two is missing.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise TypeError("where: give what is taken where the condition holds, and what elsewhere")
    return _where(condition, input, other)


FUNCTIONS["where"] = where  # what is recorded, and what is looked at


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each whole number from 0 on is there; int64, (greatest + 1,) or longer.

    The elements are computed now, which costs one message.

    Args:
        input: whole numbers, 0 or more, in one axis.
        weights: what each counts instead of 1; the sums are of their type, else float64.
        minlength: the least length of the result.

    Raises:
        TypeError: the elements are not whole numbers.
        ValueError: one is negative, the shapes differ, or ``minlength`` is negative.
    """
    found = input.data.numpy()
    if found.dtype.kind not in "iu":
        raise TypeError(f"bincount: the tensor is {input.dtype.name}, and must be of integers")
    if found.ndim != 1 or (found.size and found.min() < 0) or minlength < 0:
        raise ValueError(
            f"bincount: takes numbers from 0 on, in one axis: the shape is {input.shape}, and "
            f"minlength={minlength}"
        )
    if weights is not None and weights.shape != input.shape:
        raise ValueError(f"bincount: the weights {weights.shape} are not for {input.shape}")
    if weights is None or not found.size:  # of nothing PyTorch counts as if there were no weights
        return tensor(np.bincount(found, minlength=minlength).astype(np.int64))
    sums = np.bincount(found, weights.to("float64").data.numpy(), minlength)
    return tensor(sums, dtype="float32" if weights.dtype.name == "float32" else "float64")


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask of bools, broadcast to the shape, is True: (count,).

    The mask is computed now, which costs one message; gradients flow to the input.
    """
    shape = FUNCTIONS["where"](mask, input, input).shape
    found: Tensor = input.broadcast_to(shape)[mask.broadcast_to(shape)]
    return found


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements; computed now, which costs one message.

    Args:
        input: any tensor.
        sorted: accepted: they are always in order.
        return_inverse: also where each element is among them, in the input's shape.
        return_counts: also how often each is there.
        dim: distinct slices along that axis, instead of elements.
    """
    found = np.unique(
        input.data.numpy(), return_inverse=True, return_counts=True, axis=dim,
        equal_nan=False,
    )  # fmt: skip
    values, inverse, counts = found
    out = [tensor(values)]
    if return_inverse:
        shape = input.shape if dim is None else (-1,)
        out.append(tensor(inverse.reshape(shape).astype(np.int64)))
    if return_counts:
        out.append(tensor(counts.astype(np.int64)))
    return out[0] if len(out) == 1 else tuple(out)


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, as :func:`shmgpu.isclose` defines it; computed now."""
    return bool(FUNCTIONS["isclose"](input, other, rtol, atol, equal_nan).all().item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have the same shape and elements; computed now."""
    return input.shape == other.shape and bool(FUNCTIONS["eq"](input, other).all().item())


def is_tensor(obj: Any) -> bool:
    """Whether it is a tensor of this library."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Whether the elements are floats."""
    return input.is_floating_point()


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A separate tensor with the same elements; ``memory_format`` is accepted."""
    return input.clone()


def detach(input: Tensor) -> Tensor:
    """As :meth:`Tensor.detach`."""
    return input.detach()


def t(input: Tensor) -> Tensor:
    """A matrix transposed, as :meth:`Tensor.t`."""
    return input.t()


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = _INT64, device: Any = None
) -> Tensor:
    """Rows and columns of a matrix's lower triangle, row after row: (2, count).

    Args:
        row: how many rows the matrix has.
        col: how many columns.
        offset: the diagonal to which it reaches; above 0 one above the main one.
        dtype: of the result.
        device: accepted, and changes nothing: tensors live where helpers compute.

    Raises:
        ValueError: a number is negative.
    """
    return _triangle("tril_indices", (row, col), offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = _INT64, device: Any = None
) -> Tensor:
    """Rows and columns of a matrix's upper triangle; arguments as for :func:`tril_indices`."""
    return _triangle("triu_indices", (row, col), offset, dtype, device)


def _triangle(name: str, size: tuple[int, int], offset: int, dtype: Any, device: Any) -> Tensor:
    accepted(device)
    if min(size) < 0:
        raise ValueError(f"{name}: a matrix has no {size} rows and columns: give 0 or more")
    places = getattr(np, name)(size[0], offset, size[1])
    return tensor(np.stack(places).astype(np.int64), dtype=dtype)


# ---- methods -------------------------------------------------------------------------------------


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Draw all elements anew: 1 with that probability (a number, or one for each), else 0."""
    chance = rand(*self.shape, dtype="float64", generator=generator)
    return self._updated((chance < p).to(self.dtype)._node)


def random_(
    self: Tensor,
    from_: int = 0,
    to: int | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw all elements anew: integers from the first up to the second, not included.

    One number alone is the second. Without any, up to what the element type holds exactly.
    """
    if to is None:
        from_, to = 0, from_ or _MOST[self.dtype.name]
    drawn = randint(from_, to, self.shape, generator=generator, dtype=self.dtype)
    return self._updated(drawn._node)


_MOST = {
    "bool": 2, "uint8": 1 << 8, "int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31,
    "int64": 1 << 53, "float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24,
    "float64": 1 << 53,
}  # fmt: skip

for _method in (bernoulli_, random_):
    setattr(Tensor, _method.__name__, _method)
