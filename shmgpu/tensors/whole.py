"""Functions over whole tensors: random choices, and what must look at elements to know its shape.

Random numbers are recorded from uniform or normal ones, which helpers draw when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, rand, randn, tensor

_INT64 = dtypes.by_name("int64")


def randint(
    low: int, high: Any = None, size: Sequence[int] | None = None, *, dtype: Any = _INT64
) -> Tensor:
    """Whole numbers from ``low`` (0 where only one is given) up to ``high``, not included.

    Args:
        low: the least; the end, where it is the only number.
        high: none reaches it; or the size, where ``low`` is the end.
        size: the shape.
        dtype: of the outcome.

    Raises:
        ValueError: there is no whole number between the two.
    """
    if size is None:
        low, high, size = 0, low, high
    if size is None or high <= low:
        raise ValueError(f"randint: from {low} to {high} of the shape {size}: give low < high")
    drawn = rand(*size, dtype="float64") * (high - low)
    found: Tensor = (drawn.floor() + low).to(dtype)
    return found


def randperm(n: int, *, dtype: Any = _INT64) -> Tensor:
    """The whole numbers from 0 up to ``n``, not included, in random order."""
    found: Tensor = rand(n, dtype="float64").argsort().to(dtype)
    return found


def normal(mean: Any = 0.0, std: Any = 1.0, size: Sequence[int] | None = None) -> Tensor:
    """Normally distributed numbers.

    Args:
        mean: of each, a tensor or a number.
        std: the deviation of each, likewise.
        size: the shape, where both are numbers.
    """
    if size is None:
        both = mean + std
        if not isinstance(both, Tensor):
            raise TypeError("normal: give size=, or a tensor for mean or std")
        size = both.shape
    drawn: Tensor = randn(*size) * std + mean
    return drawn


def bernoulli(input: Tensor, p: float | None = None) -> Tensor:
    """1 with the probability that the element is (or with ``p``), else 0; of the same type."""
    chance = rand(*input.shape, dtype="float64")
    found: Tensor = (chance < (input if p is None else p)).to(input.dtype)
    return found


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Places of a row's elements, drawn with these as weights; int64.

    Args:
        input: weights, 0 or more: (k,) or (rows, k).
        num_samples: how many are drawn of each row.
        replacement: whether one may be drawn again.

    Raises:
        ValueError: more are to be drawn than there are, or the shape is another.
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
        keys = FUNCTIONS["log"](1 - rand(*lead, count, dtype="float64")) / weights
        keys = FUNCTIONS["where"](weights > 0, keys, -math.inf)
        chosen: Tensor = keys.topk(num_samples, -1)[1]
        return chosen
    until = weights.cumsum(-1)
    aim = rand(*lead, num_samples, dtype="float64") * until[..., -1:]
    found: Tensor = (aim.unsqueeze(-1) >= until.unsqueeze(-2)).sum(-1)
    return found


def as_tensor(data: Any, dtype: Any = None) -> Tensor:
    """The tensor itself where it is one of that type; else as :func:`shmgpu.tensor`."""
    if isinstance(data, Tensor) and dtype is None:
        return data
    if isinstance(data, Tensor):
        made: Tensor = data.to(dtype)
        return made
    return tensor(data, dtype=dtype)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid: each vector along an axis of its own, stretched along the others.

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
    """Where elements are not 0, int64: (how many, axes), or with ``as_tuple`` a tensor an axis.

    The shape follows from the elements, so they are computed now, which costs one message.
    """
    places = input.data.numpy().nonzero()
    if as_tuple:
        return tuple(tensor(one) for one in places)
    return tensor(_columns(places, len(input.shape)))


def _columns(places: Any, axes: int) -> Any:
    return np.stack(places, 1) if axes else np.zeros((len(places[0]), 0), np.int64)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask of bools, stretched to the shape, holds: one axis.

    The mask is computed now, which costs one message; gradients flow to the input.
    """
    shape = FUNCTIONS["where"](mask, input, input).shape
    found: Tensor = input.broadcast_to(shape)[mask.broadcast_to(shape)]
    return found


def unique(input: Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The different elements in order; computed now, which costs one message.

    Args:
        input: any tensor.
        return_inverse: also where each element is among them, in the input's shape.
        return_counts: also how often each is there.
    """
    found = np.unique(
        input.data.numpy().reshape(-1), return_inverse=True, return_counts=True, equal_nan=False
    )
    values, inverse, counts = found
    out = [tensor(values)]
    if return_inverse:
        out.append(tensor(inverse.reshape(input.shape).astype(np.int64)))
    if return_counts:
        out.append(tensor(counts.astype(np.int64)))
    return out[0] if len(out) == 1 else tuple(out)


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are near each other, as :func:`shmgpu.isclose` says; looks at them."""
    return bool(FUNCTIONS["isclose"](input, other, rtol, atol, equal_nan).all().item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have the same shape and elements; looks at them."""
    return input.shape == other.shape and bool(FUNCTIONS["eq"](input, other).all().item())


def is_tensor(obj: Any) -> bool:
    """Whether it is one of this library's tensors."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()
