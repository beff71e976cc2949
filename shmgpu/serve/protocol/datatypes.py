"""Element types of the Open Inference Protocol, and their two encodings.

Owns the table of datatypes and the bytes of a tensor: what clients send and get in the binary
tensor extension (little-endian, row-major; BYTES as a 4-byte length before each element), and the
values that JSON has for them. Knows nothing of requests. Never imports torch.

Source: the protocol's own page of tensor data (KServe, "Open Inference Protocol", tensor data
types) and Triton's binary tensor extension. BF16 is Triton's addition.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from shmgpu.codec import dtypes
from shmgpu.serve.protocol import json_numbers

Buffer = bytes | bytearray | memoryview

_COMMA = ord(",")
_DOUBLE = np.dtype(np.float64)
# What begins everything but a number: text, arrays, objects, true, false, null; and ends NaN.
_NO_NUMBERS = (b'"', b"[", b"{", b"t", b"f", b"n", b"N")
MOST_LAX_BYTES = 4 << 20  # of JSON with NaN and Infinity, read by a slow parser at once
STEP = 1 << 16  # bytes of JSON numbers that are parsed at once
AT_ONCE = 1 << 16  # elements that are written as JSON at once


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row of the table.

    Attributes:
        name: the protocol's name.
        kind: ``bool``, ``int``, ``float`` or ``bytes``: what its elements are in JSON.
        itemsize: bytes of an element; 0 where elements differ in length (BYTES).
        storage: the NumPy dtype of arrays that hold it, which NumPy has without any other
            package: int16 for BF16, object (of ``bytes``) for BYTES.
        dtype: its name in shmgpu, ``shmgpu.codec.dtypes.by_name``; empty for BYTES.
        config: its name in a model's configuration.
    """

    name: str
    kind: str
    itemsize: int
    storage: np.dtype[Any]
    dtype: str
    config: str


def _row(name: str, kind: str, dtype: str, config: str = "") -> Datatype:
    if kind == "bytes":
        return Datatype(name, kind, 0, np.dtype(object), "", "TYPE_STRING")
    found = dtypes.by_name(dtype)
    return Datatype(name, kind, found.itemsize, found.storage, dtype, f"TYPE_{name}")


DATATYPES = {
    row.name: row
    for row in (
        _row("BOOL", "bool", "bool"),
        _row("UINT8", "int", "uint8"),
        _row("UINT16", "int", "uint16"),
        _row("UINT32", "int", "uint32"),
        _row("UINT64", "int", "uint64"),
        _row("INT8", "int", "int8"),
        _row("INT16", "int", "int16"),
        _row("INT32", "int", "int32"),
        _row("INT64", "int", "int64"),
        _row("FP16", "float", "float16"),
        _row("FP32", "float", "float32"),
        _row("FP64", "float", "float64"),
        _row("BF16", "float", "bfloat16"),
        _row("BYTES", "bytes", ""),
    )
}
_BY_DTYPE = {row.dtype: row for row in DATATYPES.values() if row.dtype}
_LENGTH = struct.Struct("<I")


def of_dtype(dtype: Any) -> Datatype:
    """The datatype of an array's elements.

    Args:
        dtype: a NumPy or torch dtype, or a name such as ``float32``; text, bytes and objects
            are BYTES.

    Raises:
        ValueError: the protocol has no such elements (complex numbers, dates).
        BadParams: that is not a dtype at all.
    """
    if isinstance(dtype, np.dtype) and dtype.kind in "OSU":
        return DATATYPES["BYTES"]
    name = dtypes.of_any(dtype).name
    row = _BY_DTYPE.get(name)
    if row is None:
        raise ValueError(
            f"the protocol has no datatype for {name} arrays: convert the output to one of "
            f"{', '.join(DATATYPES)}"
        )
    return row


def count(shape: Sequence[int]) -> int:
    """Elements of a tensor of that shape."""
    return math.prod(shape)


def decode(datatype: Datatype, shape: Sequence[int], data: Buffer) -> np.ndarray[Any, Any]:
    """The array of that shape in a binary tensor's bytes.

    Nothing is copied, but for BYTES: the array is a view of ``data``. BF16 gives an int16 array
    of the elements' bit patterns.

    Raises:
        ValueError: the bytes are not a tensor of that datatype and shape; a clause that says
            why, to follow the tensor's name.
    """
    if datatype.kind == "bytes":
        array = np.empty(count(shape), dtype=object)
        array[:] = split(data, count(shape))
        return array.reshape(tuple(shape))
    needed = count(shape) * datatype.itemsize
    if len(data) != needed:
        raise ValueError(_sizes(len(data), needed, datatype, shape))
    if needed == 0:
        return np.empty(tuple(shape), dtype=datatype.storage)
    return np.frombuffer(data, dtype=datatype.storage).reshape(tuple(shape))


def check(datatype: Datatype, shape: Sequence[int], data: Buffer) -> None:
    """Raises ValueError, as `decode` does, when the bytes are no such tensor; builds nothing."""
    elements = count(shape)
    if datatype.kind == "bytes":
        _walk(data, elements)
        return
    if len(data) != elements * datatype.itemsize:
        raise ValueError(_sizes(len(data), elements * datatype.itemsize, datatype, shape))
    if datatype.kind == "bool" and elements and np.frombuffer(data, dtype="u1").max() > 1:
        raise ValueError("has a byte that is neither 0 nor 1, and a BOOL element is one of them")


def encode(datatype: Datatype, array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a binary tensor: a view of the array where it is contiguous already.

    Args:
        datatype: what its elements are to be; the array's own dtype must have that size.
        array: of ``datatype.storage``, or any dtype of the same meaning (ml_dtypes' bfloat16);
            for BYTES, of objects (``bytes`` or ``str``), of NumPy's text or bytes.

    Raises:
        ValueError: the array holds something else; a clause to follow the tensor's name.
    """
    if datatype.kind == "bytes":
        return memoryview(join(array.reshape(-1).tolist()))
    if array.dtype.itemsize != datatype.itemsize or array.dtype.hasobject:
        raise ValueError(f"is an array of {array.dtype}, which is not {datatype.name}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view("u1").data


def join(elements: Sequence[Any]) -> bytes:
    """BYTES elements (``bytes`` or ``str``) one after the other, each after its length."""
    parts: list[bytes] = []
    for element in elements:
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes):
            raise ValueError(
                f"has an element of type {type(element).__name__}, "
                "and BYTES elements are bytes or text"
            )
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def split(data: Buffer, elements: int) -> list[bytes]:
    """The BYTES elements that `join` wrote; raises ValueError unless they are that many."""
    starts = _walk(data, elements)
    view = memoryview(data)
    ends = [start - _LENGTH.size for start in starts[1:]]
    ends.append(len(data))
    return [bytes(view[start:end]) for start, end in zip(starts, ends, strict=False)]


def _walk(data: Buffer, elements: int) -> list[int]:
    """Where each BYTES element begins, behind its length."""
    starts: list[int] = []
    at, end = 0, len(data)
    if elements * _LENGTH.size > end:
        raise ValueError(
            f"has {end} bytes, too few for the lengths alone of the {elements} elements of its "
            "shape: send a 4-byte little-endian length before each element"
        )
    unpack = _LENGTH.unpack_from
    for _ in range(elements):
        if at + 4 > end:
            raise ValueError(f"ends after {len(starts)} of the {elements} elements of its shape")
        (length,) = unpack(data, at)
        at += 4
        starts.append(at)
        at += length
        if at > end:
            raise ValueError(
                f"has an element of {length} bytes, of which only {end - starts[-1]} follow: "
                "send a 4-byte little-endian length before each element"
            )
    if at != end:
        raise ValueError(
            f"has {end - at} bytes more than the {elements} elements of its shape take"
        )
    return starts


def _sizes(got: int, needed: int, datatype: Datatype, shape: Sequence[int]) -> str:
    return (
        f"has an input byte size mismatch for {datatype.name} elements in the shape {list(shape)}. "
        f"Expected {needed}, got {got}: correct the size or the shape"
    )


# JSON


class NumberText:
    """A JSON array that has not been parsed: what is between its brackets.

    Args:
        text: that it is a part of.
        start, end: where it begins, behind its bracket, and where it ends.
        depth: how many arrays begin there; but for ``parsed`` it is flat.
    """

    __slots__ = ("depth", "end", "start", "text")

    def __init__(self, text: bytes, start: int, end: int, depth: int = 1) -> None:
        self.depth = depth
        self.text = text
        self.start = start
        self.end = end

    def count(self) -> int:
        """How many elements there are, if it is well formed."""
        octets = np.frombuffer(self.text, np.uint8)[self.start : self.end]
        commas = int(np.count_nonzero(octets == _COMMA))  # quicker than bytes' own count of many
        return 1 + commas if commas or self.text[self.start : self.end].strip() else 0

    def has_numbers_only(self) -> bool:
        """Whether nothing in it can be anything else, if it is well formed."""
        return all(self.text.find(sign, self.start, self.end) < 0 for sign in _NO_NUMBERS)

    def parsed(self) -> list[Any]:
        """Its elements, nested as they are.

        Raises:
            ValueError: it is no JSON.
        """
        with json_numbers.uncollected:
            return _parsed(self.text[self.start : self.end])

    def lists(self) -> Iterator[list[Any]]:
        """Its elements in pieces, so that the interpreter is held for no longer than one takes.

        Raises:
            ValueError: it is no JSON.
        """
        at = self.start
        while True:
            comma = self.text.find(b",", min(at + STEP, self.end), self.end)
            piece = self.text[at : comma if comma >= 0 else self.end]
            yield _parsed(piece)
            if comma < 0:
                return
            at = comma + 1


def _parsed(piece: bytes) -> list[Any]:
    """The elements of a part of an array."""
    text = b"[%s]" % piece
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        # As Triton's clients write numbers that are not finite.
        is_lax = len(piece) <= MOST_LAX_BYTES and (b"N" in piece or b"I" in piece)
        try:
            found = json.loads(text) if is_lax else None
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, list) or not found:
        raise ValueError("has 'data' that is not JSON: correct it")
    return found


def from_json(datatype: Datatype, shape: Sequence[int], data: Any) -> np.ndarray[Any, Any]:
    """The array of that shape in a JSON tensor, flat or nested as the shape is.

    Args:
        datatype: of its elements.
        shape: of the tensor.
        data: a list, maybe of lists; or a :class:`NumberText`.

    Raises:
        ValueError: a count, a type or a range is wrong; a clause to follow the tensor's name.
    """
    if isinstance(data, NumberText):
        return _in_steps(datatype, shape, data)
    if not isinstance(data, list):
        raise ValueError("has 'data' that is not an array: give a list of its elements")
    return _checked(datatype, _flatten(data, shape)).reshape(tuple(shape))


def from_text(
    datatype: Datatype, shape: Sequence[int], text: Buffer, start: int, stop: int
) -> np.ndarray[Any, Any]:
    """The same of a JSON array that is not parsed yet, and not long: a part of a text.

    Raises:
        ValueError: as :func:`from_json`, or it is no JSON.
    """
    read = json_numbers.read(_read_as(datatype), (count(shape),), text, start, stop)
    if read is not None:
        return _narrowed(datatype, read).reshape(tuple(shape))
    return from_json(datatype, shape, orjson.loads(bytes(text[start:stop])))


def reader(datatype: Datatype) -> json_numbers.Reader | None:
    """What reads arrays straight into a tensor's memory; None: :func:`from_text` must."""
    read_as = _read_as(datatype)
    return json_numbers.reader(read_as) if read_as == datatype.storage else None


def _read_as(datatype: Datatype) -> np.dtype[Any]:
    """The type that numbers are read as first."""
    return _DOUBLE if datatype.name in ("FP16", "BF16") else datatype.storage


def _in_steps(datatype: Datatype, shape: Sequence[int], data: NumberText) -> np.ndarray[Any, Any]:
    if data.depth in (1, len(shape)):
        nested = (count(shape),) if data.depth == 1 else tuple(shape)
        read = json_numbers.read(
            _read_as(datatype), nested, data.text, data.start - 1, data.end + 1
        )
        if read is not None:
            return _narrowed(datatype, read).reshape(tuple(shape))
    if data.depth > 1:
        return from_json(datatype, shape, data.parsed())
    elements = data.count()
    if elements != count(shape):
        raise ValueError(_elements(elements, shape))
    if not elements:
        return _checked(datatype, []).reshape(tuple(shape))
    # Looking at each element's type takes longer than making its number.
    make = _floats if datatype.kind == "float" and data.has_numbers_only() else _checked
    parts = [make(datatype, flat) for flat in data.lists()]
    return np.concatenate(parts).reshape(tuple(shape))


def _checked(datatype: Datatype, flat: list[Any]) -> np.ndarray[Any, Any]:
    """The array of elements that JSON gave."""
    kinds = set(map(type, flat))
    if not kinds <= _JSON_TYPES[datatype.kind]:
        strange = sorted(
            _JSON_NAMES.get(kind, "values") for kind in kinds - _JSON_TYPES[datatype.kind]
        )
        raise ValueError(
            f"has {' and '.join(strange)} in 'data', and {datatype.name} elements are "
            f"{_JSON_WORDS[datatype.kind]}"
        )
    return _FROM_JSON[datatype.kind](datatype, flat)


def from_numbers(datatype: Datatype, values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The array, of one dimension, of numbers or booleans that Python holds.

    Raises:
        ValueError: one is out of range; a clause to follow the tensor's name.
    """
    return _FROM_JSON[datatype.kind](datatype, values)


def _flatten(data: list[Any], shape: Sequence[int]) -> list[Any]:
    elements = count(shape)
    level = data
    if data and type(data[0]) is list:
        for depth, extent in enumerate(shape):
            wanted = extent if depth == 0 else None
            if wanted is not None and len(level) != wanted:
                raise ValueError(_counts(len(level), wanted, depth, shape))
            if depth == len(shape) - 1:
                break
            if set(map(type, level)) - {list}:
                raise ValueError(
                    f"has 'data' that is not nested as its shape {list(shape)} is: nest it so, "
                    "or send it flat"
                )
            for length in set(map(len, level)):
                if length != shape[depth + 1]:
                    raise ValueError(_counts(length, shape[depth + 1], depth + 1, shape))
            level = list(itertools.chain.from_iterable(level))
    if len(level) != elements:
        raise ValueError(_elements(len(level), shape))
    return level


def _elements(got: int, shape: Sequence[int]) -> str:
    return (
        f"has {got} elements in 'data', and its shape {list(shape)} has {count(shape)}: "
        "correct the shape or the data"
    )


def _counts(got: int, wanted: int, depth: int, shape: Sequence[int]) -> str:
    return (
        f"has a list of {got} where its shape {list(shape)} has {wanted} (dimension {depth}): "
        "correct the shape or the data"
    )


def _bools(datatype: Datatype, flat: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.array(flat, dtype=np.bool_)


def _ints(datatype: Datatype, flat: Sequence[Any]) -> np.ndarray[Any, Any]:
    info = np.iinfo(datatype.storage)
    wide = np.uint64 if datatype.storage == np.uint64 else np.int64
    try:
        array = np.fromiter(flat, dtype=wide, count=len(flat))
        if not len(flat) or (array.min() >= info.min and array.max() <= info.max):
            return array.astype(datatype.storage, copy=False)
    except OverflowError:
        pass
    raise ValueError(
        f"has a number outside {datatype.name}, which goes from {info.min} to {info.max}"
    )


def _floats(datatype: Datatype, flat: Sequence[Any]) -> np.ndarray[Any, Any]:
    try:
        wide = np.fromiter(flat, dtype=np.float64, count=len(flat))
    except OverflowError:
        raise ValueError(f"has a number too large for {datatype.name}") from None
    return _narrowed(datatype, wide)


def _narrowed(datatype: Datatype, wide: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of that datatype that are next to these; themselves where they have its type."""
    if wide.dtype == datatype.storage:
        return wide
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32 if datatype.name == "BF16" else datatype.storage)
    values = narrow
    if datatype.name == "BF16":
        narrow = round_bf16(narrow)
        values = widen_bf16(narrow)
    finite = np.isfinite(values)
    if not finite.all() and (lost := ~finite & np.isfinite(wide)).any():
        raise ValueError(
            f"has the number {wide[lost][0]!s}, which is too large for {datatype.name}"
        )
    return narrow


def _texts(datatype: Datatype, flat: Sequence[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(flat), dtype=object)
    try:
        array[:] = [text.encode() for text in flat]
    except UnicodeEncodeError:
        raise ValueError("has text that is not Unicode: send it as binary data") from None
    return array


def round_bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 -> the int16 bit patterns of the nearest bfloat16, ties to even."""
    bits = array.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    # Rounding up would carry a NaN's pattern into infinity, or past the sign.
    rounded = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
    return rounded.astype(np.uint16).view(np.int16)


def widen_bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The int16 bit patterns of bfloat16 -> float32, exactly."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_JSON_TYPES: dict[str, set[type]] = {
    "bool": {bool},
    "int": {int},
    "float": {int, float},
    "bytes": {str},
}
_JSON_WORDS = {
    "bool": "true or false",
    "int": "whole numbers of at most 64 bits without a point",
    "float": "numbers",
    "bytes": "strings",
}
_JSON_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "whole numbers",
    float: "numbers with a point or of more than 64 bits",
    str: "strings",
    type(None): "null",
    list: "arrays nested deeper than its shape",
    dict: "objects",
}
_FROM_JSON = {"bool": _bools, "int": _ints, "float": _floats, "bytes": _texts}


def to_json(datatype: Datatype, array: np.ndarray[Any, Any]) -> bytes:
    """The flat JSON array of a tensor's elements.

    Numbers that are not finite are written ``NaN``, ``Infinity`` and ``-Infinity``, which is no
    strict JSON but what Triton writes and its clients read.

    Raises:
        ValueError: the elements are not what ``datatype`` says, or are bytes that are no text; a
            clause to follow the tensor's name.
    """
    if datatype.kind == "bytes":
        texts: list[str] = []
        for element in array.reshape(-1).tolist():
            if isinstance(element, bytes):
                try:
                    element = element.decode()
                except UnicodeDecodeError:
                    raise ValueError(
                        "holds bytes that are not UTF-8 text, which JSON cannot carry: ask for it "
                        "with binary_data"
                    ) from None
            elif not isinstance(element, str):
                raise ValueError(
                    f"has an element of type {type(element).__name__}, "
                    "and BYTES elements are bytes or text"
                )
            texts.append(element)
        return orjson.dumps(texts)
    if array.dtype.itemsize != datatype.itemsize or array.dtype.hasobject:
        raise ValueError(f"is an array of {array.dtype}, which is not {datatype.name}")
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size <= AT_ONCE:
        return _numbers(datatype, flat)
    parts: list[bytes | memoryview] = []
    for at in range(0, flat.size, AT_ONCE):
        parts += [b",", memoryview(_numbers(datatype, flat[at : at + AT_ONCE]))[1:-1]]
    parts[0] = b"["
    parts.append(b"]")
    return b"".join(parts)


def writer(datatype: Datatype) -> Callable[[memoryview], bytes]:
    """What makes a flat JSON array of the bytes of a few numbers, as :func:`to_json` does."""
    return json_numbers.writer(datatype.storage) or (
        lambda data: to_json(datatype, np.frombuffer(data, datatype.storage))
    )


def _numbers(datatype: Datatype, flat: np.ndarray[Any, Any]) -> bytes:
    """A JSON array of numbers."""
    if datatype.name == "BF16":
        flat = widen_bf16(flat.view(np.int16))
    write = json_numbers.writer(flat.dtype)
    if write is not None:
        return write(flat)
    if flat.dtype in _ORJSON_DTYPES:
        written = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    else:
        written = orjson.dumps(flat.tolist())
    if datatype.kind == "float" and written.find(b"n") >= 0:  # null: it is not finite
        return json.dumps(flat.tolist(), separators=(",", ":")).encode()
    return written


# What orjson writes straight from an array's memory, in this machine's order of bytes.
_ORJSON_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))
