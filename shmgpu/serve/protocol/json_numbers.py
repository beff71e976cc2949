"""Flat arrays of numbers between JSON and memory, in C where it was built.

Owns what :mod:`shmgpu._json` is asked, and for which element types: 256 numbers are read in 3 us
instead of 11 and written in 3.4 instead of 4.4, and of many the interpreter is let go meanwhile.
Never says what is wrong with a text: whoever asks reads it once more in Python, which does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

native: Any = None
if not TYPE_CHECKING:
    try:
        import shmgpu._json as native
    except ImportError:  # a tree that was not built
        pass

Buffer = bytes | bytearray | memoryview

_READ = {} if native is None else {
    np.dtype(name): getattr(native, name.upper())
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64"),
    )
}  # fmt: skip
_WRITTEN = {dtype: kind for dtype, kind in _READ.items() if dtype.kind == "f"}


def kind_of(dtype: np.dtype[Any]) -> int | None:
    """What :func:`read_into` calls such elements; None: it cannot read them."""
    return _READ.get(dtype)


def read_into(kind: int, text: Buffer, start: int, stop: int, into: Any) -> bool:
    """Whether a part of the text, brackets included, was an array of as many numbers as ``into``.

    False where Python might take it all the same, as NaN. ``into``: writable bytes, of which some
    may have changed then.
    """
    return native.read(kind, text, start, stop, into)  # type: ignore[no-any-return]


def read(
    dtype: np.dtype[Any], count: int, text: Buffer, start: int, stop: int
) -> np.ndarray[Any, Any] | None:
    """The array of so many numbers that a part of the text is; None: it is none, or not sure."""
    kind = kind_of(dtype)
    if kind is None or not 0 < count <= (stop - start) // 2:  # a digit and what follows it
        return None
    array = np.empty(count, dtype)
    return array if read_into(kind, text, start, stop, array) else None


def writer(dtype: np.dtype[Any]) -> Callable[[Any], bytes] | None:
    """What makes a JSON array of the contiguous memory of such elements; None: nothing does.

    Of floats of 32 and 64 bits, with NaN and Infinity for those that are not finite.
    """
    kind = _WRITTEN.get(dtype)
    return None if kind is None else functools.partial(native.write, kind)
