"""tinygrad's ``Tensor`` as programs name it: it makes tensors, and says whether one is training.

Owns how tensors are made in tinygrad's spelling, where a shape is given as numbers. What it makes
are the package's tensors, and all of these are instances of it. Never adds a method to them; that
does :mod:`shmgpu.compat.tinygrad.methods`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import shmgpu
from shmgpu.compat.tinygrad.device import mesh_of_names, number_of
from shmgpu.distributed.placements import Replicate
from shmgpu.parallel.tensors import put
from shmgpu.tensors import tensor as tensors
from shmgpu.tensors import whole
from shmgpu.tensors.tensor import DTYPES

dtypes = SimpleNamespace(**DTYPES, default_float=DTYPES["float32"], default_int=DTYPES["int32"])


def placed(made: tensors.Tensor, device: Any) -> tensors.Tensor:
    """A tensor on the devices that are named, in place: on a mesh if there are several.

    Raises:
        ValueError: a name is no helper's.
    """
    if isinstance(device, (tuple, list)) and len(device) > 1:
        put(made, mesh_of_names(device), [Replicate()])
    elif device is not None:
        number_of(device if isinstance(device, str) else device[0])
    return made


class _Facade(type):
    """``Tensor(data)`` makes a tensor, and all tensors are instances."""

    def __call__(
        cls, data: Any = None, device: Any = None, dtype: Any = None, requires_grad: Any = None
    ) -> tensors.Tensor:
        made = tensors.tensor([] if data is None else data, dtype=dtype)
        placed(made, device)
        return made.requires_grad_() if requires_grad else made

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, tensors.Tensor)


class _Training(contextlib.ContextDecorator):
    """``with Tensor.train():``, also as a decorator; ``mode`` holds inside."""

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> _Training:
        self._before.append(Tensor.training)
        Tensor.training = self._mode
        return self

    def __exit__(self, *error: object) -> None:
        Tensor.training = self._before.pop()


def _of_shape(make: Callable[..., Any]) -> Any:
    """A maker that takes a shape as numbers or as one tuple, and a device."""

    def made(*shape: Any, device: Any = None, dtype: Any = None, **options: Any) -> Any:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if dtype is not None:
            options["dtype"] = dtype
        return placed(make(tuple(sizes), **options), device)

    made.__doc__ = make.__doc__
    return staticmethod(made)


def _uniform(shape: tuple[int, ...], low: float = 0.0, high: float = 1.0, **options: Any) -> Any:
    """Uniform numbers of ``[low, high)``."""
    return tensors.rand(*shape, **options) * (high - low) + low


def _integers(shape: tuple[int, ...], low: int = 0, high: int = 10, **options: Any) -> Any:
    """Integers of ``[low, high)``."""
    return whole.randint(low, high, shape, **options)


def _fan(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


class Tensor(tensors.Tensor, metaclass=_Facade):
    """The package's tensors, under tinygrad's name; see the head of this file.

    Attributes:
        training: whether layers use a batch's statistics, drop elements, and may be stepped.
    """

    __slots__ = ()

    training: ClassVar[bool] = False
    train = _Training

    randn = _of_shape(lambda shape, **options: tensors.randn(*shape, **options))
    rand = _of_shape(lambda shape, **options: tensors.rand(*shape, **options))
    zeros = _of_shape(lambda shape, **options: tensors.zeros(*shape, **options))
    ones = _of_shape(lambda shape, **options: tensors.ones(*shape, **options))
    empty = _of_shape(lambda shape, **options: tensors.zeros(*shape, **options))
    uniform = _of_shape(_uniform)
    randint = _of_shape(_integers)
    scaled_uniform = _of_shape(
        lambda shape, **options: _uniform(shape, -1, 1, **options) * math.prod(shape) ** -0.5
    )
    kaiming_uniform = _of_shape(
        lambda shape, a=0.01, **options: (
            _uniform(shape, -1, 1, **options) * math.sqrt(6 / (1 + a**2) / _fan(shape))
        )
    )
    glorot_uniform = _of_shape(
        lambda shape, **options: (
            _uniform(shape, -1, 1, **options) * math.sqrt(6 / (shape[0] + _fan(shape)))
        )
    )
    arange = staticmethod(shmgpu.arange)
    eye = staticmethod(shmgpu.eye)
    linspace = staticmethod(shmgpu.linspace)
    randperm = staticmethod(shmgpu.randperm)
    manual_seed = staticmethod(tensors.manual_seed)

    @staticmethod
    def full(shape: Any, fill_value: float, device: Any = None, **options: Any) -> Any:
        """One number everywhere."""
        return placed(tensors.full(shape, fill_value, **options), device)
