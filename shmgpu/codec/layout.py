"""The parameter block and the result, byte by byte.

A parameter block, little endian, lies in the caller's arena::

    0   u32  bytes of the whole block      24        u64  address of each array
    4   u16  version                       24 + 8n   u32  bytes of the signature part
    6   u16  n, how many arrays            28 + 8n   u32  bytes of the values part
    8   u64  address of the output buffer  32 + 8n   signature: flags, arguments' layout,
    16  u64  bytes of the output buffer              and perhaps the result's
                                           ...       plain values

The signature part is the same for all calls of one signature, so a helper reads it once.
A *layout* is a tree's structure and the specs of its arrays. A result that has exactly the
layout that the block promised is just its arrays, each at the next multiple of 64; any other
is preceded by a description of itself. In a *raw call* the two parts are what caller and function
have agreed on, and the result is arrays that both know. Where the two have agreed on it, the last
WORD_BYTES before the output buffer begin with a word in which the helper says that they are there.

Owns reading and writing those bytes, and checks everything that can be checked without knowing an
arena. Never follows an address: that is the business of whoever knows the arena.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu import core
from shmgpu.codec.arrays import ArraySpec, aligned
from shmgpu.codec.pytree import (
    LONE_VALUE,
    NUMBERS,
    PICKLED,
    SINGLETONS,
    TreeDef,
    ValueReader,
    decode_values,
)
from shmgpu.errors import BadParams

VERSION = 1
RESULT_AT = core.BLOCK_RESULT  # where a block describes its output buffer, followed by its arrays
_HEAD = struct.Struct(core.BLOCK_FORMAT)
_TAIL = struct.Struct("<II")
RESULT_HEAD = struct.Struct("<IIII")  # bytes of description, structure, values; arrays
WORD_BYTES = 64
MAX_ARRAYS = 4096
MOST_PLAIN = 1024  # bytes of a structure of plain values that is worth remembering

HAS_HINT = 1  # the result's layout is given
DECLARED = 2  # ... by the user: the function gets those arrays as helper.out


def check_count(count: int) -> None:
    """Refuse more arrays than a call or a result may have."""
    if count > MAX_ARRAYS:
        raise BadParams(f"a call can carry {MAX_ARRAYS} arrays, not {count}: stack some of them")


class TreeLayout:
    """A tree's structure and the specs of its arrays, with where each array lies.

    Attributes:
        tree: the structure, ready to be put together.
        specs: one for each array.
        offsets: where each begins when they follow one another from a multiple of 64.
        nbytes: bytes of all that.
        encoded: its bytes on the wire.
    """

    __slots__ = ("encoded", "nbytes", "offsets", "specs", "tree")

    def __init__(self, structure: bytes, specs: Sequence[ArraySpec]) -> None:
        check_count(len(specs))
        self.tree = TreeDef(structure)
        self.specs = tuple(specs)
        if self.tree.array_count != len(self.specs):
            raise BadParams("the parameter block's structure and its arrays do not agree")
        offset = 0
        offsets = []
        for spec in self.specs:
            offsets.append(offset)
            offset = aligned(offset + spec.nbytes)
        self.offsets = tuple(offsets)
        self.nbytes = (self.offsets[-1] + self.specs[-1].nbytes) if self.specs else 0
        self.encoded = b"".join(
            (
                len(structure).to_bytes(4, "little"),
                structure,
                len(self.specs).to_bytes(2, "little"),
                *[spec.encode() for spec in self.specs],
            )
        )

    @classmethod
    def read(cls, reader: ValueReader) -> TreeLayout:
        """The layout at the cursor, or BadParams."""
        structure = reader.take(reader.u32())
        count = int.from_bytes(reader.take(2), "little")
        check_count(count)
        return cls(structure, [ArraySpec.read(reader) for _ in range(count)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeLayout) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)


class Signature:
    """What is the same for all calls of one signature.

    Attributes:
        arguments: layout of (args, kwargs).
        hint: layout that the result is expected to have, or None.
        declared: whether the user declared it.
    """

    __slots__ = ("arguments", "declared", "encoded", "hint")

    def __init__(self, arguments: TreeLayout, hint: TreeLayout | None, declared: bool) -> None:
        self.arguments = arguments
        self.hint = hint
        self.declared = declared and hint is not None
        flags = (HAS_HINT if hint is not None else 0) | (DECLARED if self.declared else 0)
        self.encoded = bytes((flags,)) + arguments.encoded + (hint.encoded if hint else b"")

    @classmethod
    def read(cls, data: bytes) -> Signature:
        """The signature whose bytes these are, or BadParams."""
        reader = ValueReader(data, 0, len(data))
        flags = reader.u8()
        if flags & ~(HAS_HINT | DECLARED):
            raise BadParams("the parameter block's signature has unknown flags")
        arguments = TreeLayout.read(reader)
        if not arguments.tree.is_arguments:
            raise BadParams("the parameter block's structure is not an argument list")
        hint = TreeLayout.read(reader) if flags & HAS_HINT else None
        if reader.offset != reader.end:
            raise BadParams("the parameter block's signature has bytes left over")
        if hint is not None and hint.tree.value_count:
            raise BadParams("a result's layout can hold arrays only")
        return cls(arguments, hint, bool(flags & DECLARED))


def block_bytes(signature: Signature, values: bytes) -> int:
    """Bytes of a parameter block."""
    count = len(signature.arguments.specs)
    return parts_at(count) + len(signature.encoded) + len(values)


def parts_at(arity: int) -> int:
    """Where the part of a block begins that follows its addresses and the two lengths."""
    return _HEAD.size + 8 * arity + _TAIL.size


def constant_at(arity: int) -> int:
    """Where the bytes begin in which blocks differ only if the calls differ in more than memory."""
    return _HEAD.size + 8 * arity


def address_writer(arity: int, shift: int) -> Callable[..., None]:
    """Writes (output buffer's address, its bytes, arrays' addresses) into a block, at RESULT_AT.

    Args:
        arity: how many arrays.
        shift: what is added to an address so that it is the broker's; see :func:`core.arena_shift`.
    """
    pack = struct.Struct(f"<QQ{arity}Q").pack_into
    if not shift:
        return pack

    def pack_shifted(block: Any, offset: int, output: int, size: int, *addresses: int) -> None:
        pack(block, offset, output + shift if output else 0, size, *(a + shift for a in addresses))

    return pack_shifted


@functools.lru_cache(maxsize=256)
def block_writer(arity: int) -> Callable[..., None]:
    """Writes all that precedes the two parts of a block, which the caller writes himself.

    It takes the buffer, an offset, bytes of the whole block, VERSION, ``arity``, address and bytes
    of the output buffer, ``arity`` addresses, and the bytes of the two parts.
    """
    return struct.Struct(f"{_HEAD.format}{arity}Q{_TAIL.format[1:]}").pack_into


def write_constant(buffer: Any, signature: Signature, values: bytes) -> None:
    """Write into a block all but the addresses."""
    count = len(signature.arguments.specs)
    _HEAD.pack_into(buffer, 0, block_bytes(signature, values), VERSION, count, 0, 0)
    offset = _HEAD.size + 8 * count
    _TAIL.pack_into(buffer, offset, len(signature.encoded), len(values))
    offset += _TAIL.size
    end = offset + len(signature.encoded)
    buffer[offset:end] = signature.encoded
    if values:
        buffer[end : end + len(values)] = values


@functools.cache
def _places(count: int) -> struct.Struct:
    """What stands between a block's head and its signature."""
    return struct.Struct(f"<{count}QII")


class ParameterBlock:
    """A parameter block read from a private copy: addresses not yet checked against an arena."""

    __slots__ = ("addresses", "result_address", "result_bytes", "signature", "values_at")

    addresses: list[int]

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size:
            raise BadParams("the parameter block is shorter than its head")
        length, version, count, self.result_address, self.result_bytes = _HEAD.unpack_from(data)
        if length != len(data) or version != VERSION:
            raise BadParams("the parameter block's head is damaged")
        offset = _HEAD.size + 8 * count
        if count > MAX_ARRAYS or offset + _TAIL.size > length:
            raise BadParams("the parameter block ends before its arrays do")
        *self.addresses, signature_bytes, values_bytes = _places(count).unpack_from(
            data, _HEAD.size
        )
        offset += _TAIL.size
        if offset + signature_bytes + values_bytes != length:
            raise BadParams("the parameter block's parts do not add up to its length")
        self.signature = data[offset : offset + signature_bytes]
        self.values_at = offset + signature_bytes


# ---- results -------------------------------------------------------------------------------


def describe_result(layout: TreeLayout, values: bytes) -> bytes:
    """What precedes a result that describes itself; its arrays begin at the next 64."""
    structure = layout.tree.structure
    specs = b"".join(spec.encode() for spec in layout.specs)
    total = RESULT_HEAD.size + len(structure) + len(specs) + len(values)
    head = RESULT_HEAD.pack(total, len(structure), len(values), len(layout.specs))
    return b"".join((head, structure, specs, values))


def result_bytes(description: bytes, layout: TreeLayout) -> int:
    """Bytes of a result that describes itself, arrays included."""
    if not layout.specs:
        return len(description)
    return aligned(len(description)) + layout.nbytes


# One plain value by itself: head, its place, its kind.
_LONE_VALUE = struct.Struct("<IIIIBB")
_LONE_VALUE_AT = RESULT_HEAD.size + len(LONE_VALUE)
NO_LONE_VALUE = object()


def read_lone_value(buffer: Any, size_bytes: int) -> Any:
    """A result that is one plain value; NO_LONE_VALUE for any other: see :func:`read_result`."""
    if not _LONE_VALUE.size <= size_bytes <= len(buffer):
        return NO_LONE_VALUE
    data = bytes(buffer[:size_bytes])
    total, structure, values, arrays, place, kind = _LONE_VALUE.unpack_from(data)
    if structure != 1 or arrays or place != LONE_VALUE[0] or kind == PICKLED:
        return NO_LONE_VALUE
    if not total == size_bytes == _LONE_VALUE_AT + values:
        return NO_LONE_VALUE
    read = NUMBERS.get(kind)
    if read is not None and values == 9:
        return read(data, _LONE_VALUE_AT + 1)[0]
    if values == 1 and kind in SINGLETONS:
        return SINGLETONS[kind]
    return decode_values(data, 1, _LONE_VALUE_AT)[0]


@functools.lru_cache(maxsize=256)
def plain_layout(structure: bytes) -> TreeLayout:
    """A layout of plain values alone: those of one function's results are alike."""
    return TreeLayout(structure, ())


def read_result(
    buffer: Any, size_bytes: int, allow_pickle: bool
) -> tuple[TreeLayout, list[Any], int]:
    """Read a result that describes itself: (layout, plain values, where its arrays begin).

    ``buffer`` must hold at least ``size_bytes``; raises BadParams when the bytes are no result.
    """
    if size_bytes < RESULT_HEAD.size or size_bytes > len(buffer):
        raise BadParams("the helper's result is shorter than its head")
    head = bytes(buffer[: RESULT_HEAD.size])
    total, structure_bytes, values_bytes, count = RESULT_HEAD.unpack(head)
    if total > size_bytes or structure_bytes + values_bytes > total or count > MAX_ARRAYS:
        raise BadParams("the helper's result is damaged")
    data = bytes(buffer[:total])
    reader = ValueReader(data, RESULT_HEAD.size, total)
    structure = reader.take(structure_bytes)
    if count == 0 and structure_bytes <= MOST_PLAIN:
        layout = plain_layout(structure)
    else:
        layout = TreeLayout(structure, [ArraySpec.read(reader) for _ in range(count)])
    if reader.end - reader.offset != values_bytes:
        raise BadParams("the helper's result is damaged")
    values = decode_values(data, layout.tree.value_count, reader.offset, reader.end, allow_pickle)
    if result_bytes(data, layout) > size_bytes:
        raise BadParams("the helper's result is shorter than its arrays")
    return layout, values, aligned(total)
