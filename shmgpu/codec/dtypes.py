"""Element types under one name for NumPy, torch and the wire.

Owns the table of names. A name is NumPy's (``float32``, ``datetime64[ns]``, ``U5``), or
ml_dtypes' for the types NumPy lacks (``bfloat16``, ``float8_e4m3fn``, ...). Reading a name
never evaluates anything: it is in the table, or matches one of two patterns, or is refused.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from shmgpu.errors import BadParams


class DType:
    """One element type.

    Attributes:
        name: its name on the wire.
        itemsize: bytes of one element.
        storage: a NumPy dtype of the same size that NumPy always has.
    """

    __slots__ = ("_numpy", "_torch", "itemsize", "name", "storage")

    def __init__(self, name: str, itemsize: int, numpy_dtype: Any, torch_name: str | None) -> None:
        self._numpy: Any = numpy_dtype
        self.name = name
        self.itemsize = itemsize
        self._torch = torch_name
        self.storage: np.dtype[Any] = (
            numpy_dtype
            if numpy_dtype is not None and name not in EXTENSIONS
            else np.dtype({1: "u1", 2: "i2"}[itemsize])
        )

    @property
    def numpy(self) -> Any:
        """The NumPy dtype; raises BadParams when it needs ml_dtypes, which is not installed."""
        if self._numpy is None:
            self._numpy = _extension_dtype(self.name)
        return self._numpy

    @property
    def has_numpy(self) -> bool:
        """Whether NumPy can show such elements here."""
        return self._numpy is not None

    @property
    def has_torch(self) -> bool:
        """Whether torch has such elements."""
        return self._torch is not None

    @property
    def torch(self) -> Any:
        """The torch dtype; raises BadParams when torch has none."""
        import torch

        dtype = getattr(torch, self._torch, None) if self._torch else None
        if dtype is None:
            raise BadParams(
                f"torch has no dtype for {self.name} arrays: convert the array, "
                'or decorate the function with arrays="numpy"'
            )
        return dtype

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __reduce__(self) -> Any:
        """By name: a copy is the same object."""
        return by_name, (self.name,)


def _extension_dtype(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise BadParams(
            f"NumPy knows {name} only with the package ml_dtypes: install it, or use torch tensors"
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


_NUMPY_TO_TORCH = {
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "complex64": "complex64",
    "complex128": "complex128",
    "float96": None,
    "float128": None,
    "complex192": None,
    "complex256": None,
}
EXTENSIONS = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
EXTENSION_STORAGE = {1: "uint8", 2: "int16"}  # torch dtypes to read their bytes through
# A unit counts from 1: NumPy divides by it, and a division by 0 ends the process.
_TIME = re.compile(
    r"(?:datetime64|timedelta64)(?:\[(?:[1-9]\d{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?\Z"
)
_SIZED = re.compile(r"[SUV][1-9]\d{0,5}\Z")


@lru_cache(maxsize=1024)
def by_name(name: str) -> DType:
    """The type of that name; raises BadParams for any other text."""
    if name in _NUMPY_TO_TORCH:
        try:
            dtype = np.dtype(name)
        except TypeError:
            raise BadParams(f"this machine has no {name} arrays: convert the array") from None
        return DType(name, dtype.itemsize, dtype, _NUMPY_TO_TORCH[name])
    if name in EXTENSIONS:
        try:
            extension: Any = _extension_dtype(name)
        except BadParams:
            extension = None
        return DType(name, EXTENSIONS[name], extension, name)
    if _TIME.match(name) or _SIZED.match(name):
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError, OverflowError):
            raise BadParams(f"{name!r} is not an element type") from None
        return DType(name, dtype.itemsize, dtype, None)
    raise BadParams(f"{name[:40]!r} is not an element type that an array can have here")


@lru_cache(maxsize=1024)
def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The type of a NumPy dtype in native byte order; raises BadParams for the rest."""
    if dtype.hasobject:
        raise BadParams(
            "an array of Python objects cannot lie in an arena: convert it to numbers, "
            "or pass the objects as a list to a function decorated with pickle=True"
        )
    if dtype.fields is not None or dtype.subdtype is not None:
        raise BadParams(
            f"arrays of the structured dtype {dtype} are not carried: pass its fields as arrays"
        )
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    if native.kind in "SUV" and native.name not in EXTENSIONS:
        if native.itemsize == 0:
            raise BadParams(f"elements of {dtype} have no bytes: give the text type a length")
        length = native.itemsize // 4 if native.kind == "U" else native.itemsize
        return by_name(f"{native.kind}{length}")
    return by_name(native.name)


@lru_cache(maxsize=256)
def of_torch(dtype: Any) -> DType:
    """The type of a torch dtype; raises BadParams for those that only torch has."""
    name = str(dtype).removeprefix("torch.")
    if name in EXTENSIONS or _NUMPY_TO_TORCH.get(name):
        return by_name(name)
    raise BadParams(
        f"tensors of {dtype} are not carried: convert the tensor (quantized, complex32 and "
        "sub-byte types live in torch only)"
    )


def of_any(dtype: Any) -> DType:
    """The type that a user meant: a DType, a name, a NumPy or a torch dtype."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in EXTENSIONS:
        return by_name(dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, getattr(torch, "dtype", ())):
        return of_torch(dtype)
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError):  # also of a dictionary, or of text that cannot be encoded
        raise BadParams(f"{dtype!r} is not a dtype: use a name such as 'float32'") from None
    if found.hasobject:
        raise BadParams(
            f"elements of dtype {found} are Python objects, which cannot lie in an arena: use a "
            "type of numbers, such as 'float32'"
        )
    return of_numpy(found)
