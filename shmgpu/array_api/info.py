"""What ``__array_namespace_info__`` returns: types, devices, and which features there are.

Owns these answers. Never starts a broker to give one.
"""

from __future__ import annotations

from typing import Any

from shmgpu.array_api import types
from shmgpu.codec.dtypes import DType
from shmgpu.ops.promotion import float32, int64
from shmgpu.tensors import devices


class Info:
    """The answers of :func:`__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Masks index, shapes may depend on elements, and tensors have at most 64 axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> devices.device:
        """Where tensors live."""
        return devices.here()

    def devices(self) -> list[devices.device]:
        """Where tensors live: helpers have one device, as far as a program is concerned."""
        return [devices.here()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """float32, and int64 of integers and places. There are no complex numbers."""
        devices.accepted(device)
        return {"real floating": float32, "integral": int64, "indexing": int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The types, by their names; of one kind, or of several, where that is asked for."""
        devices.accepted(device)
        return {
            one.name: one for one in types.ALL if kind is None or types.isdtype(one, _kinds(kind))
        }


def _kinds(kind: Any) -> Any:
    return tuple(kind) if isinstance(kind, (list, tuple)) else kind


def __array_namespace_info__() -> Info:
    """Types, devices, and what else differs among libraries."""
    return Info()
