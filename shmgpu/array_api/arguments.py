"""What functions of the array API have in common: arguments that are brought to one type.

Owns that conversion, which depends on types alone and not on shapes, as for operators. Never looks
at an element.
"""

from __future__ import annotations

from typing import Any

from shmgpu.array_api import types
from shmgpu.codec.dtypes import DType
from shmgpu.ops.casting import cast
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

F = FUNCTIONS


def tensor_of(value: Any, name: str) -> Tensor:
    """The tensor; TypeError for anything else."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: takes tensors, not {type(value).__name__}: use asarray()")
    return value


def of_type(x: Tensor, dtype: DType) -> Tensor:
    """The tensor in that type; itself where it is of it."""
    return x if x.dtype is dtype else Tensor(cast(x._node, dtype))


def together(name: str, *values: Any) -> list[Any]:
    """Tensors of one type, and numbers as they are.

    Raises:
        TypeError: none of them is a tensor.
    """
    if not any(isinstance(one, Tensor) for one in values):
        raise TypeError(f"{name}: one of the arguments must be a tensor: use asarray()")
    dtype = types.result_type(*values)
    return [of_type(one, dtype) if isinstance(one, Tensor) else one for one in values]


def floats(name: str, x: Tensor) -> Tensor:
    """The tensor.

    Raises:
        TypeError: it is not of floats.
    """
    if not types.isdtype(tensor_of(x, name).dtype, "real floating"):
        raise TypeError(f"{name}: the tensor is {x.dtype.name}, and must be of floats")
    return x


def over(x: Tensor, axis: Any, keepdims: bool) -> tuple[Tensor, Any, bool]:
    """What PyTorch's reductions take: there no axes, (), are all of them, and not none."""
    if axis is None:
        return x, tuple(range(x.ndim)), keepdims
    if axis == ():
        return x.unsqueeze(0), 0, False
    return x, axis, keepdims
