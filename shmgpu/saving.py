"""Tensors on disk, in files of the safetensors format: dicts and lists of them, however nested.

Owns the file: the length of its header (8 bytes, little-endian), the header (JSON), the elements,
one tensor after the other. The nesting is described in the header's metadata, so any reader of the
format reads the tensors. Never executes or imports anything that a file names.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from shmgpu.codec import arrays, dtypes
from shmgpu.common.wording import kind_of
from shmgpu.tensors import devices
from shmgpu.tensors.tensor import Tensor, tensor

__all__ = ["load", "save"]

TREE = "shmgpu"  # the metadata's key
WORDS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
KINDS = {word: name for name, word in WORDS.items()}
LENGTH = struct.Struct("<Q")
PICKLED = (b"PK\3\4", b"\x80\2")  # what files of torch.save begin with: zip archives, and pickles
MAX_HEADER = 100 << 20  # bytes, as other readers have it
_PLAIN = (bool, int, float, str, type(None))


def save(obj: Any, path: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write tensors into a file of safetensors.

    A module's state becomes a plain file of that format. Whatever else is there between the tensors
    (an optimiser's and a schedule's state, counts, names) is in it, too. The file appears
    complete or not at all: it is written under another name beside it, and then renamed.

    Args:
        obj: a tensor, an array, a number, a string, None, or dicts, lists and tuples of these.
        path: the file, which is replaced if it is there; or one that is open for bytes, such as an
            :class:`io.BytesIO`, to which it is written as it stands.

    Raises:
        TypeError: something else is among them.
    """
    found: dict[str, Any] = {}
    tree = _planted(obj, "", found)
    header: dict[str, Any] = {}
    is_flat = isinstance(obj, Mapping) and all(isinstance(one, list) for one in tree[1:])
    if not is_flat or list(found) != [str(key) for key in obj]:
        header["__metadata__"] = {TREE: json.dumps(tree)}
    place, parts = 0, []
    for name, (dtype, array) in found.items():
        header[name] = {
            "dtype": WORDS[dtype.name],
            "shape": list(array.shape),
            "data_offsets": [place, place + array.nbytes],
        }
        place += array.nbytes
        parts.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = itertools.chain([LENGTH.pack(len(text)), text], (array.tobytes() for array in parts))
    if not isinstance(path, (str, os.PathLike)):
        _open_for_bytes("save", path, "write").writelines(whole)
        return
    target = pathlib.Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.writelines(whole)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _open_for_bytes(name: str, file: Any, need: str) -> Any:
    if not hasattr(file, need) or isinstance(file, io.TextIOBase):
        raise TypeError(
            f"{name}: {kind_of(file)} is no file: give a path, or a file that is open for bytes"
        )
    return file


def _planted(value: Any, path: str, found: dict[str, Any]) -> Any:
    """What stands for the value in the tree: itself, or a list that begins with its kind."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor) or arrays.is_array(value):
        one = value if isinstance(value, Tensor) else tensor(value)
        name = path or "tensor"
        while name in found:
            name += "_"
        found[name] = (one.dtype, np.array(one.numpy()))
        return ["#", name]
    inner = f"{path}." if path else ""
    if isinstance(value, Mapping):
        items = []
        for key, one in value.items():
            if type(key) not in _PLAIN:
                raise TypeError(
                    f"save: {path or 'the dict'} has the key {key!r}: use strings or numbers"
                )
            items.append([key, _planted(one, f"{inner}{key}", found)])
        return ["{", *items]
    if type(value) in (list, tuple):
        kind = "[" if type(value) is list else "("
        return [kind, *[_planted(one, f"{inner}{n}", found) for n, one in enumerate(value)]]
    raise TypeError(
        f"save: {path or 'the object'} is {kind_of(value)}: save tensors, numbers, "
        "strings, and dicts and lists of these, such as a state_dict()"
    )


def load(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
) -> Any:
    """Read what :func:`save` wrote; for any other safetensors file, its tensors by name.

    Args:
        path: the file, or one that is open for bytes and stands where that begins.
        map_location: the name of a device. It is accepted, and changes nothing: tensors live where
            helpers compute.
        weights_only: accepted, and changes nothing: in such a file there is no code.
        mmap: likewise: elements are copied.

    Raises:
        ValueError: the file is not one of safetensors, or is damaged.
        TypeError: ``map_location`` is a function or a dict, or ``path`` no file.
        RuntimeError: ``map_location`` names no device.
    """
    if callable(map_location) or isinstance(map_location, Mapping):
        raise TypeError(
            f"load: map_location is {kind_of(map_location)}, and tensors live where helpers "
            "compute: leave it out, or name a device"
        )
    devices.accepted(map_location)
    if isinstance(path, (str, os.PathLike)):
        with open(path, "rb") as file:
            return _parsed(file, os.fstat(file.fileno()).st_size, os.fspath(path))
    given = _open_for_bytes("load", path, "read").read()
    return _parsed(io.BytesIO(given), len(given), getattr(path, "name", kind_of(path)))


def _parsed(file: IO[bytes], size: int, name: Any) -> Any:
    try:
        first = file.read(LENGTH.size)
        if first.startswith(PICKLED):
            raise ValueError("torch.save wrote it: read it with torch.load, and save that here")
        (length,) = LENGTH.unpack(first)
        if length > min(MAX_HEADER, size - LENGTH.size):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        begin = LENGTH.size + length
        found = {name: _read(file, begin, size, **entry) for name, entry in header.items()}
        return _grown(json.loads(metadata[TREE]), found) if TREE in metadata else found
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"load: {name!r} is no whole file of safetensors: {error}") from error


def _read(
    file: Any, begin: int, size: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> Tensor:
    kind = dtypes.by_name(KINDS[dtype])
    start, end = data_offsets
    count = int(np.prod(shape, dtype=np.int64))
    if not 0 <= start <= end <= size - begin or end - start != count * kind.itemsize:
        raise ValueError(f"a tensor of {shape} does not lie at {data_offsets}")
    file.seek(begin + start)
    data = np.frombuffer(file.read(end - start), kind.numpy)
    return tensor(data.reshape(shape))


def _grown(tree: Any, found: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *parts = tree
    if kind == "#":
        return found[parts[0]]
    if kind == "{":
        return {key: _grown(one, found) for key, one in parts}
    values = [_grown(one, found) for one in parts]
    return values if kind == "[" else tuple(values)
