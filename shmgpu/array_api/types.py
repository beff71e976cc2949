"""Element types of the array API standard: what they are, which promotes to which, their limits.

Owns these rules, which depend on types alone; PyTorch's, by which operators work, also look at
shapes. Never records an operation.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops import promotion
from shmgpu.ops.promotion import float32, float64, int8, int16, int32, int64, uint8
from shmgpu.tensors.tensor import Tensor

bool = promotion.bool_

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8,)
REAL = (float32, float64)
ALL = (bool, *SIGNED, *UNSIGNED, *REAL)
# Types of tensors that the standard does not know: they are taken, and promote as in PyTorch.
OTHERS = (promotion.float16, promotion.bfloat16)

KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": (*SIGNED, *UNSIGNED),
    "real floating": (*REAL, *OTHERS),
    "complex floating": (),
    "numeric": (*SIGNED, *UNSIGNED, *REAL, *OTHERS),
}


def isdtype(dtype: DType, kind: Any) -> builtins.bool:
    """Whether a type is of a kind.

    Args:
        dtype: the type.
        kind: another type; "bool", "signed integer", "unsigned integer", "integral",
            "real floating", "complex floating" or "numeric"; or a tuple of these.

    Raises:
        ValueError: there is no such kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in KINDS:
        raise ValueError(f"isdtype: kind={kind!r} must be one of {', '.join(KINDS)}, or a type")
    return dtype in KINDS[kind]


def can_cast(from_: Any, to: DType, /) -> builtins.bool:
    """Whether one type may be promoted to the other.

    Args:
        from_: a type, or a tensor, whose type is used.
        to: the type.
    """
    kind = from_.dtype if isinstance(from_, Tensor) else from_
    return promotion.promote(kind, to) is to and _category(kind) == _category(to)


def _category(dtype: DType) -> int:
    return promotion.CATEGORY[dtype]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type in which an operation on these is done. Shapes do not matter.

    Args:
        arrays_and_dtypes: tensors, types and Python's numbers, at least one of them not a
            number.

    Raises:
        ValueError: there are only numbers, or nothing.
    """
    kinds = [one if isinstance(one, DType) else one.dtype for one in _typed(arrays_and_dtypes)]
    if not kinds:
        raise ValueError("result_type: give one tensor or type at least")
    found = kinds[0]
    for kind in kinds[1:]:
        found = promotion.promote(found, kind)
    for one in arrays_and_dtypes:
        if not isinstance(one, (DType, Tensor)):
            category = promotion.category_of_number(one)
            if category > _category(found):
                found = promotion.OF_NUMBER[category]
    return found


def _typed(given: Sequence[Any]) -> list[Any]:
    return [one for one in given if isinstance(one, (DType, Tensor))]


class finfo_object(NamedTuple):
    """Limits of a float type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        """PyTorch's other name for the smallest normal number."""
        return self.smallest_normal

    @property
    def resolution(self) -> float:
        """One unit in the last decimal digit that is always right, of a number near 1."""
        return 10.0 ** -math.floor(-math.log10(self.eps))


class iinfo_object(NamedTuple):
    """Limits of a type of integers."""

    bits: int
    max: int
    min: int
    dtype: DType


def _kind_of(type: Any) -> DType:
    return type.dtype if isinstance(type, Tensor) else dtypes.of_any(type)


def finfo(type: Any = float32, /) -> finfo_object:
    """Limits of a float type, or of a tensor's.

    Raises:
        TypeError: the type is not of floats.
    """
    kind = _kind_of(type)
    if kind not in KINDS["real floating"]:
        raise TypeError(f"finfo: {kind.name} is not a float type: use iinfo")
    if kind is promotion.bfloat16:  # NumPy knows it only with another package
        greatest = (2 - 2.0**-7) * 2.0**127
        return finfo_object(16, 2.0**-7, greatest, -greatest, 2.0**-126, kind)
    told = np.finfo(kind.numpy)
    eps, most, least, normal = map(float, (told.eps, told.max, told.min, told.smallest_normal))
    return finfo_object(told.bits, eps, most, least, normal, kind)


def iinfo(type: Any, /) -> iinfo_object:
    """Limits of an integer type, or of a tensor's.

    Raises:
        TypeError: the type is not of integers.
    """
    kind = _kind_of(type)
    if kind not in KINDS["integral"]:
        raise TypeError(f"iinfo: {kind.name} is not an integer type")
    told = np.iinfo(kind.numpy)
    return iinfo_object(told.bits, int(told.max), int(told.min), kind)
