"""Fuzz target: any bytes as plain values, a structure or a result are decoded, or BadParams.

The first byte says as what the others are read, and how many values they are. What can be decoded
is encoded to something that decodes to the same. Nothing is evaluated or unpickled. Run by ``make
fuzz`` (atheris, libFuzzer for Python) and, on the corpus, by ``make test``.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from shmgpu.codec import layout
from shmgpu.codec.pytree import TreeDef, decode_values, encode_values, flatten
from shmgpu.errors import BadParams


class Unpickled(BaseException):
    """Bytes of a stranger were unpickled. No Exception: those end as BadParams."""


def never(*_: Any) -> Any:
    raise Unpickled


class Array:
    """Stands for the arrays of a tree."""


def use(value: Any) -> None:
    """What a function may do with a value: nothing of it may end the process."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        try:
            value.astype(f"{value.dtype.kind}8[ns]")
        except (TypeError, ValueError, OverflowError):
            pass


def decode(data: bytes) -> None:
    values = decode_values(data[1:], data[0] >> 2)
    for value in values:
        use(value)
    encoded = encode_values(values)
    again = decode_values(encoded, len(values))
    assert encode_values(again) == encoded
    assert all(type(a) is type(b) or a in ("", b"") for a, b in zip(again, values, strict=True))


def structure(data: bytes) -> None:
    tree = TreeDef(data[1:])
    arrays = [Array() for _ in range(tree.array_count)]
    values = list(range(tree.value_count))
    flat = flatten(tree.build(arrays, values), lambda leaf: isinstance(leaf, Array))
    # A key that stands twice is one key: then leaves are lost, and only then.
    if len(flat.arrays) == len(arrays) and len(flat.values) == len(values):
        assert flat.arrays == arrays and flat.values == values
        assert TreeDef(bytes(flat.structure)).array_count == tree.array_count


def result(data: bytes) -> None:
    body = np.frombuffer(data, np.uint8, offset=1)
    found, values, start = layout.read_result(memoryview(body).cast("B"), len(body), False)
    assert start % 64 == 0
    if found.specs:
        assert start + found.nbytes <= len(body)
    described = layout.describe_result(found, encode_values(values))
    again, back, _ = layout.read_result(
        memoryview(described.ljust(layout.result_bytes(described, found), b"\0")),
        layout.result_bytes(described, found),
        False,
    )
    assert again == found and len(back) == len(values)


READERS = [decode, structure, result, decode]


def one_input(data: bytes) -> None:
    if not data:
        return
    loads, pickle.loads = pickle.loads, never
    try:
        READERS[data[0] & 3](data)
    except BadParams:
        pass
    finally:
        pickle.loads = loads


def set_up() -> None:
    """Nothing is needed."""
