"""Arrays of numbers between JSON and memory, in C where it was built.

Owns what :mod:`shmgpu._json` is asked, and for which element types: 256 numbers are read in 3 us
instead of 11 and written in 3.4 instead of 4.4, and of many the interpreter is let go meanwhile.
And that Python's collector rests while Python parses. Never says what is wrong with a text: whoever
asks reads it once more in Python, which does.
"""

from __future__ import annotations

import functools
import gc
import math
import threading
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
# Text, start, stop, memory, shape: whether that part of the text, brackets included, was an array
# nested so, which the memory has then. If not it may have changed, and Python might take the text.
Reader = Callable[[Buffer, int, int, Any, tuple[int, ...]], bool]

_READ = {} if native is None else {
    np.dtype(name): getattr(native, name.upper())
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64"),
    )
}  # fmt: skip
_WRITTEN = {dtype: kind for dtype, kind in _READ.items() if dtype.kind == "f"}


class _Uncollected:
    """Python's collector, off while any thread is in here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_on:
                gc.enable()


# Nothing is garbage while JSON is parsed, and looking for some takes longer than parsing.
uncollected = _Uncollected()


def reader(dtype: np.dtype[Any]) -> Reader | None:
    """What reads such elements into memory; None: nothing does."""
    kind = _READ.get(dtype)
    return None if kind is None else functools.partial(native.read, kind)


def read(
    dtype: np.dtype[Any], shape: tuple[int, ...], text: Buffer, start: int, stop: int
) -> np.ndarray[Any, Any] | None:
    """The array, nested as its shape is, that a part of the text is; None: maybe it is none."""
    read_into, count = reader(dtype), math.prod(shape)
    if read_into is None or not 0 < count <= (stop - start) // 2:  # a digit and what follows it
        return None
    array = np.empty(shape, dtype)
    return array if read_into(text, start, stop, array, shape) else None


def writer(dtype: np.dtype[Any]) -> Callable[[Any], bytes] | None:
    """What makes a JSON array of the contiguous memory of such elements; None: nothing does.

    Of floats of 32 and 64 bits, with NaN and Infinity for those that are not finite.
    """
    kind = _WRITTEN.get(dtype)
    return None if kind is None else functools.partial(native.write, kind)
