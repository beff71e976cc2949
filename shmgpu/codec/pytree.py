"""Containers and plain values as bytes: everything of a call but its arrays.

A tree of containers (tuples, lists, dicts, named tuples, dataclasses) is flattened into its
*structure* (bytes that do not change between the calls of one signature), its arrays, and its plain
values in order. Owns flattening and unflattening. Never knows arenas or addresses; the caller says
what counts as an array. Any bytes decode to something or raise BadParams: decoding runs no code of
the caller's, and never unpickles unless that is allowed.
"""

from __future__ import annotations

import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shmgpu.codec import dtypes, records
from shmgpu.common.wording import kind_of
from shmgpu.errors import BadParams

MAX_DEPTH = 64
MAX_STRUCTURE = 1 << 22  # bytes; a node takes at least one
MOST_ALIKE = 256  # keys of one dict that may have one hash

_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_C128 = struct.Struct("<dd")

_ARRAY, _VALUE, _TUPLE, _LIST, _DICT = 0x41, 0x56, 0x74, 0x6C, 0x64  # A V t l d
_ORDERED, _RECORD = 0x6F, 0x52  # o R

LONE_VALUE = bytes((_VALUE,))  # the structure of a tree that is one plain value
PICKLED = 0x50  # P, the kind of a value that was pickled
SINGLETONS = {0x4E: None, 0x54: True, 0x46: False}  # N T F, the kinds of values without bytes
# The kinds of values that are always eight bytes, and what reads them: (bytes, offset) to a tuple.
NUMBERS: dict[int, Callable[[bytes, int], tuple[Any]]] = {
    0x69: _I64.unpack_from,  # i
    0x66: _F64.unpack_from,  # f
}

PLAIN_TYPES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(Ellipsis)}
)
CHEAP_TYPES = PLAIN_TYPES - {slice, range, bytearray}  # never change, and are bytes at once


# ---- plain values --------------------------------------------------------------------------


def _with_length(tag: bytes, data: bytes) -> bytes:
    if len(data) > 0xFFFFFFFF:
        raise BadParams("a value of more than 4 GiB cannot be carried: put it into an array")
    return tag + _U32.pack(len(data)) + data


def _encode_int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return b"i" + _I64.pack(value)
    return _with_length(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _encode_range(value: range) -> bytes:
    return b"r" + _encode_int(value.start) + _encode_int(value.stop) + _encode_int(value.step)


def _encode_slice(value: slice) -> bytes:
    parts = (value.start, value.stop, value.step)
    for part in parts:
        if part is not None and type(part) is not int:
            raise BadParams(f"the slice {value!r} cannot be carried: use whole numbers in it")
    return b"S" + b"".join(encode_value(part) for part in parts)


def _encode_scalar(value: np.generic) -> bytes:
    dtype = value.dtype
    if dtype.kind in "SUV" and dtype.itemsize == 0:
        return encode_value(value.item())
    name = dtypes.of_numpy(dtype).name.encode()
    raw = np.asarray(value, dtype=dtype.newbyteorder("=")).tobytes()
    return b"n" + bytes((len(name),)) + name + raw


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _encode_int,
    float: lambda value: b"f" + _F64.pack(value),
    complex: lambda value: b"c" + _C128.pack(value.real, value.imag),
    str: lambda value: _with_length(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _with_length(b"b", value),
    bytearray: lambda value: _with_length(b"B", bytes(value)),
    range: _encode_range,
    slice: _encode_slice,
    type(Ellipsis): lambda value: b".",
}


def encode_value(value: Any, allow_pickle: bool = False) -> bytes:
    """Bytes of one plain value; raises BadParams for what is none."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if isinstance(value, np.generic):
        return _encode_scalar(value)
    if allow_pickle:
        try:
            return _with_length(b"P", pickle.dumps(value, protocol=5))
        except BadParams:
            raise
        except Exception as error:
            raise BadParams(
                f"{kind_of(value)} could not be pickled ({error}): pass plain values"
            ) from error
    raise BadParams(
        f"{kind_of(value)} cannot be carried between a caller and a helper: use arrays, numbers, "
        "text, bytes, tuples, lists and dicts, or decorate the function with pickle=True"
    )


class ValueReader:
    """A cursor over bytes that never leaves them."""

    __slots__ = ("data", "end", "offset")

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data = data
        self.offset = offset
        self.end = end

    def take(self, count: int) -> bytes:
        start = self.offset
        stop = start + count
        if count < 0 or stop > self.end:
            raise BadParams("the parameter block ends in the middle of a value")
        self.offset = stop
        return self.data[start:stop]

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")


def _decode(reader: ValueReader, allow_pickle: bool) -> Any:
    tag = reader.u8()
    decoder = _DECODERS.get(tag)
    if decoder is not None:
        return decoder(reader)
    if tag == PICKLED:
        data = reader.take(reader.u32())
        if not allow_pickle:
            raise BadParams(
                "the parameter block holds a pickled object, which this function does not "
                "accept: decorate it with pickle=True"
            )
        return pickle.loads(data)
    raise BadParams("the parameter block holds a value of no known kind")


def _decode_typed(reader: ValueReader, kinds: str) -> Any:
    if reader.offset >= reader.end or chr(reader.data[reader.offset]) not in kinds:
        raise BadParams("the parameter block holds a value of the wrong kind")
    return _DECODERS[reader.u8()](reader)


def _decode_range(reader: ValueReader) -> range:
    start, stop, step = (_decode_typed(reader, "iI") for _ in range(3))
    return range(start, stop, step)


def _decode_slice(reader: ValueReader) -> slice:
    start, stop, step = (_decode_typed(reader, "iIN") for _ in range(3))
    return slice(start, stop, step)


def _decode_scalar(reader: ValueReader) -> Any:
    dtype = dtypes.by_name(reader.take(reader.u8()).decode("ascii"))
    return np.frombuffer(reader.take(dtype.itemsize), dtype.numpy)[0]


def _always(value: bool | None) -> Callable[[ValueReader], Any]:
    return lambda reader: value


def _number(read: Callable[[bytes, int], tuple[Any]]) -> Callable[[ValueReader], Any]:
    return lambda reader: read(reader.take(8), 0)[0]


_DECODERS: dict[int, Callable[[ValueReader], Any]] = {
    **{kind: _always(value) for kind, value in SINGLETONS.items()},
    **{kind: _number(read) for kind, read in NUMBERS.items()},
    0x49: lambda reader: int.from_bytes(reader.take(reader.u32()), "little", signed=True),
    0x63: lambda reader: complex(*_C128.unpack(reader.take(16))),
    0x73: lambda reader: reader.take(reader.u32()).decode("utf-8", "surrogatepass"),
    0x62: lambda reader: reader.take(reader.u32()),
    0x42: lambda reader: bytearray(reader.take(reader.u32())),
    0x72: _decode_range,
    0x53: _decode_slice,
    0x2E: lambda reader: Ellipsis,
    0x6E: _decode_scalar,
}


def encode_values(values: Sequence[Any], allow_pickle: bool = False) -> bytes:
    """Bytes of several plain values, one after the other."""
    return b"".join([encode_value(value, allow_pickle) for value in values])


def decode_values(
    data: bytes, count: int, offset: int = 0, end: int | None = None, allow_pickle: bool = False
) -> list[Any]:
    """The values that lie at data[offset:end]; exactly ``count`` of them, or BadParams."""
    reader = ValueReader(data, offset, len(data) if end is None else end)
    try:
        values = [_decode(reader, allow_pickle) for _ in range(count)]
    except BadParams:
        raise
    except Exception as error:
        raise BadParams(
            f"the parameter block holds a damaged value ({type(error).__name__})"
        ) from error
    if reader.offset != reader.end:
        raise BadParams("the parameter block holds bytes that no value accounts for")
    return values


# ---- trees ---------------------------------------------------------------------------------


class Flat:
    """A tree taken apart: structure bytes, arrays and plain values in order."""

    __slots__ = ("arrays", "structure", "values")

    def __init__(self) -> None:
        self.structure = bytearray()
        self.arrays: list[Any] = []
        self.values: list[Any] = []


def flatten(tree: Any, is_array: Callable[[Any], bool], allow_pickle: bool = False) -> Flat:
    """Take a tree apart; raises BadParams for what is neither container, array nor value.

    Args:
        tree: tuples, lists and dicts, nested at most 64 deep, of arrays and plain values.
        is_array: says whether a leaf is an array.
        allow_pickle: leave leaves of other types to the value codec's pickle.
    """
    flat = Flat()
    _flatten(tree, flat, is_array, allow_pickle, 0)
    if len(flat.structure) > MAX_STRUCTURE:
        raise BadParams(
            f"the containers hold more than {MAX_STRUCTURE:,} things: put numbers into an array"
        )
    return flat


def _flatten(
    node: Any, flat: Flat, is_array: Callable[[Any], bool], allow_pickle: bool, depth: int
) -> None:
    kind = type(node)
    if kind in PLAIN_TYPES:
        flat.structure.append(_VALUE)
        flat.values.append(node)
        return
    if depth > MAX_DEPTH:
        raise BadParams(
            f"the containers are nested more than {MAX_DEPTH} deep: pass something flatter"
        )
    if kind is tuple or kind is list:
        flat.structure.append(_TUPLE if kind is tuple else _LIST)
        items = tuple(node)  # another thread may change a list meanwhile
        flat.structure += _U32.pack(len(items))
        for item in items:
            _flatten(item, flat, is_array, allow_pickle, depth + 1)
    elif kind is dict or (kind is OrderedDict and not allow_pickle):
        flat.structure.append(_DICT if kind is dict else _ORDERED)
        pairs = tuple(node.items())
        flat.structure += _U32.pack(len(pairs))
        for key, item in pairs:
            if type(key) not in _KEY_TYPES:
                raise BadParams(
                    f"the dict key {key!r} cannot be carried: use text, numbers, bytes or None"
                )
            flat.structure += encode_value(key)
            _flatten(item, flat, is_array, allow_pickle, depth + 1)
    elif is_array(node):
        flat.structure.append(_ARRAY)
        flat.arrays.append(node)
    elif not allow_pickle and (fields := records.fields_of(node)) is not None:
        flat.structure.append(_RECORD)
        flat.structure += _U32.pack(len(fields[0]))
        flat.structure += encode_value(records.name_of(node))
        for name, item in zip(*fields, strict=True):
            flat.structure += encode_value(name)
            _flatten(item, flat, is_array, allow_pickle, depth + 1)
    else:
        if not allow_pickle and not isinstance(node, np.generic):
            if isinstance(node, (tuple, list, dict)):
                raise BadParams(
                    f"{kind_of(node)} would lose its type on the way: use a plain tuple, "
                    "list or dict, or decorate the function with pickle=True"
                )
            encode_value(node)  # raises, in the words for a value
        flat.structure.append(_VALUE)
        flat.values.append(node)


_KEY_TYPES = frozenset({type(None), bool, int, float, str, bytes})

# One node each for all leaves: a structure of a few bytes must not become hundreds.
_ARRAY_NODE = (_ARRAY, None, None)
_VALUE_NODE = (_VALUE, None, None)


def _check_hashes(keys: list[Any]) -> None:
    """Each key of a dict is compared with all before it that have its hash.

    Python salts the hashes of text and bytes; those of large whole numbers can be made equal, and
    4 MiB of such keys would occupy a helper for half an hour.
    """
    if len(keys) > MOST_ALIKE and max(Counter(map(hash, keys)).values()) > MOST_ALIKE:
        raise BadParams(
            f"more than {MOST_ALIKE} keys of one dict have the same hash, which makes it too slow: "
            "pass their numbers as text, or in an array"
        )


class TreeDef:
    """A structure read back: how many arrays and values it holds, and how to put it together.

    Attributes:
        structure: the bytes it was read from.
        array_count, value_count: leaves of each kind.
    """

    __slots__ = ("_node", "array_count", "structure", "value_count")

    def __init__(self, structure: bytes) -> None:
        self.structure = structure
        self.array_count = 0
        self.value_count = 0
        reader = ValueReader(structure, 0, len(structure))
        if len(structure) > MAX_STRUCTURE:
            raise BadParams("the parameter block's structure is larger than any call's")
        try:
            self._node = self._read(reader, 0)
        except BadParams:
            raise
        except Exception as error:
            raise BadParams(
                f"the parameter block's structure is damaged ({type(error).__name__})"
            ) from error
        if reader.offset != reader.end:
            raise BadParams("the parameter block's structure has bytes left over")

    def _read(self, reader: ValueReader, depth: int) -> tuple[int, Any, Any]:
        if depth > MAX_DEPTH + 1:
            raise BadParams("the parameter block's structure is nested too deep")
        tag = reader.u8()
        if tag == _ARRAY:
            self.array_count += 1
            return _ARRAY_NODE
        if tag == _VALUE:
            self.value_count += 1
            return _VALUE_NODE
        if tag not in (_TUPLE, _LIST, _DICT, _ORDERED, _RECORD):
            raise BadParams("the parameter block's structure holds no known kind of container")
        count = reader.u32()
        if count > reader.end - reader.offset:
            raise BadParams("the parameter block's structure promises more than it holds")
        if tag == _TUPLE or tag == _LIST:
            return (tag, None, [self._read(reader, depth + 1) for _ in range(count)])
        keys = [_decode_typed(reader, "s")] if tag == _RECORD else []  # the name of its class
        items = []
        for _ in range(count):
            keys.append(_decode_typed(reader, "NTFiIfsb" if tag != _RECORD else "s"))
            items.append(self._read(reader, depth + 1))
        names = keys[1:] if tag == _RECORD else keys
        _check_hashes(names)
        if len(set(names)) != len(names):  # what is built would have fewer leaves than are counted
            raise BadParams("the parameter block's structure has a key twice")
        return (tag, keys, items)

    def build(self, arrays: Sequence[Any], values: Sequence[Any]) -> Any:
        """Put the tree together from its leaves, in their order."""
        return _build(self._node, iter(arrays), iter(values))

    def take_arrays(self, tree: Any) -> list[Any] | None:
        """What a tree has where this one has arrays, in order; None where they differ otherwise.

        Only of a structure without plain values, and only by what is quickly seen: a tree may be
        alike though this says None.
        """
        found: list[Any] = []
        return found if _take_arrays(self._node, tree, found) else None

    def flat_arguments(self) -> list[int] | None:
        """Which of a call's positional arguments are arrays, where those and plain values are all.

        None where a call passes anything else: the hot path is not for it.
        """
        tag, _, items = self._node
        if tag != _TUPLE or len(items) != 2:
            return None
        args, kwargs = items
        if args[0] != _TUPLE or kwargs[0] != _DICT or kwargs[2]:
            return None
        kinds = [item[0] for item in args[2]]
        if not {_ARRAY, _VALUE}.issuperset(kinds):
            return None
        return [index for index, kind in enumerate(kinds) if kind == _ARRAY]

    @property
    def is_plain(self) -> bool:
        """Whether its containers are tuples, lists, and dicts whose keys are text."""
        return _is_plain(self._node)

    @property
    def is_one_array(self) -> bool:
        """Whether the whole tree is a single array."""
        return bool(self._node[0] == _ARRAY)

    @property
    def is_arguments(self) -> bool:
        """Whether it is a pair of a tuple and a dict with text keys: what a call passes."""
        tag, _, items = self._node
        return (
            tag == _TUPLE
            and len(items) == 2
            and items[0][0] == _TUPLE
            and items[1][0] == _DICT
            and all(type(key) is str for key in items[1][1])
        )


def _is_plain(node: tuple[int, Any, Any]) -> bool:
    tag, keys, items = node
    if tag == _ARRAY or tag == _VALUE:
        return True
    if tag == _DICT and not all(type(key) is str for key in keys):
        return False
    return tag in (_TUPLE, _LIST, _DICT) and all(map(_is_plain, items))


def _take_arrays(node: tuple[int, Any, Any], tree: Any, found: list[Any]) -> bool:
    tag, keys, items = node
    if tag == _ARRAY:
        found.append(tree)
        return True
    kind = type(tree)
    if tag == _TUPLE or tag == _LIST:
        if kind is not (tuple if tag == _TUPLE else list) or len(tree) != len(items):
            return False
    elif tag == _DICT and kind is dict and len(tree) == len(items):
        for key, name in zip(keys, tree, strict=True):
            if type(name) is not str or key != name:
                return False
        tree = tree.values()
    else:
        return False
    for item, one in zip(items, tree, strict=True):
        if item[0] == _ARRAY:
            found.append(one)
        elif not _take_arrays(item, one, found):
            return False
    return True


def _build(node: tuple[int, Any, Any], arrays: Iterator[Any], values: Iterator[Any]) -> Any:
    tag, keys, items = node
    if tag == _ARRAY:
        return next(arrays)
    if tag == _VALUE:
        return next(values)
    if tag == _TUPLE:
        return tuple([_build(item, arrays, values) for item in items])
    if tag == _LIST:
        return [_build(item, arrays, values) for item in items]
    if tag == _RECORD:
        held = [_build(item, arrays, values) for item in items]
        return records.make(keys[0], keys[1:], held)
    made = {key: _build(item, arrays, values) for key, item in zip(keys, items, strict=True)}
    return made if tag == _DICT else OrderedDict(made)
