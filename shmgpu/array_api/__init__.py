"""The Python array API standard, version 2024.12, over tensors.

``x.__array_namespace__()`` of a tensor is this module, so code that is written for the standard
computes with tensors. Where the standard and PyTorch mean different things by one name (``sort``,
``std``, types of mixed shapes, ...), functions here do as the standard says; those of
:mod:`shmgpu`, methods and operators, as PyTorch. What is left out, its page says, and why.
Never computes: all of it is recorded, as anything else.
"""

from __future__ import annotations

import sys
from typing import Any

from shmgpu.array_api import arranging, creating, elementwise, reducing, types
from shmgpu.array_api.info import __array_namespace_info__ as __array_namespace_info__

__array_api_version__ = "2024.12"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

_FOUND: dict[str, Any] = {
    "e": 2.718281828459045,
    "inf": float("inf"),
    "nan": float("nan"),
    "newaxis": None,
    "pi": 3.141592653589793,
    **{one.name: one for one in types.ALL},
    **elementwise.MADE,
    **{name: getattr(types, name) for name in "can_cast finfo iinfo isdtype result_type".split()},
    **{
        name: getattr(creating, name)
        for name in (
            "arange asarray astype empty empty_like eye from_dlpack full full_like linspace "
            "meshgrid ones ones_like tril triu zeros zeros_like"
        ).split()
    },
    **{
        name: getattr(reducing, name)
        for name in (
            "all any argmax argmin argsort count_nonzero cumulative_prod cumulative_sum diff max "
            "mean min nonzero prod searchsorted sort std sum unique_all unique_counts "
            "unique_inverse unique_values var where"
        ).split()
    },
    **{
        name: getattr(arranging, name)
        for name in (
            "broadcast_arrays broadcast_to concat expand_dims flip matmul matrix_transpose "
            "moveaxis permute_dims repeat reshape roll squeeze stack take take_along_axis "
            "tensordot tile unstack vecdot"
        ).split()
    },
}
globals().update(_FOUND)

__all__ = sorted([*_FOUND, "__array_api_version__", "__array_namespace_info__"])


def __dir__() -> list[str]:
    return sorted(_FOUND)


def of_version(version: str | None) -> Any:
    """This module.

    Raises:
        ValueError: the program asks for a version of the standard that it is not of.
    """
    if version not in (None, *VERSIONS):
        raise ValueError(f"api_version={version!r}: there are {', '.join(VERSIONS)}")
    return sys.modules[__name__]
