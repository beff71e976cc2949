"""The parameter block: what is written is read, and damage is an error at worst."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec, is_array
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import ParameterBlock, Signature, TreeLayout
from shmgpu.codec.pytree import ValueReader, encode_values, flatten
from shmgpu.errors import BadParams

NAMES = ["float32", "bool", "complex128", "bfloat16", "datetime64[ns]", "U5", "float8_e5m2"]


def block_of(args, hint=None, declared=False):
    flat = flatten((args, {}), is_array)
    specs = [ArraySpec(by_name(str(a.dtype)), a.shape) for a in flat.arrays]
    signature = Signature(TreeLayout(bytes(flat.structure), specs), hint, declared)
    values = encode_values(flat.values)
    buffer = bytearray(layout.block_bytes(signature, values))
    layout.write_constant(buffer, signature, values)
    return signature, buffer


def test_a_block_says_what_was_written():
    hint = TreeLayout(b"A", [ArraySpec(by_name("int64"), (2, 3))])
    signature, buffer = block_of((np.ones((3, 4), "f4"), 7, "x"), hint)
    struct.pack_into("<QQ", buffer, 8, 4096, 48)
    block = ParameterBlock(bytes(buffer))
    read = Signature.read(block.signature)
    assert read.arguments == signature.arguments and read.hint == hint and not read.declared
    assert (block.result_address, block.result_bytes) == (4096, 48)
    assert read.arguments.specs[0].shape == (3, 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (1,) * 64])
def test_specs_of_every_type_and_shape_are_read_back(name, shape):
    made = TreeLayout(b"A", [ArraySpec(by_name(name), shape)])
    from shmgpu.codec.pytree import ValueReader

    assert TreeLayout.read(ValueReader(made.encoded, 0, len(made.encoded))) == made


def test_arrays_of_a_result_begin_at_multiples_of_64():
    specs = [ArraySpec(by_name("int8"), (n,)) for n in (1, 64, 65, 0, 3)]
    made = TreeLayout(b"t\x05\x00\x00\x00AAAAA", specs)
    assert made.offsets == (0, 64, 128, 256, 256)
    assert made.nbytes == 259


def test_a_described_result_is_read_back():
    found = TreeLayout(b"t\x02\x00\x00\x00AV", [ArraySpec(by_name("float32"), (5,))])
    description = layout.describe_result(found, encode_values(["text"]))
    size = layout.result_bytes(description, found)
    buffer = bytearray(size)
    buffer[: len(description)] = description
    back, values, start = layout.read_result(buffer, size, False)
    assert back == found and values == ["text"] and start % 64 == 0
    with pytest.raises(BadParams):
        layout.read_result(buffer, size - 1, False)


@settings(max_examples=examples(500))
@given(st.binary(max_size=400))
def test_random_bytes_as_a_block_are_an_error_at_worst(data):
    try:
        Signature.read(ParameterBlock(data).signature)
    except BadParams:
        pass


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_a_damaged_block_is_an_error_at_worst(data):
    hint = TreeLayout(b"A", [ArraySpec(by_name("int64"), (2, 3))])
    _, buffer = block_of((np.ones((3, 4), "f4"), [np.ones(2, "i8"), "x"]), hint)
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    try:
        Signature.read(ParameterBlock(bytes(buffer)).signature)
    except BadParams:
        pass


@given(st.binary(max_size=300))
def test_random_bytes_as_a_result_are_an_error_at_worst(data):
    try:
        layout.read_result(data, len(data), False)
    except BadParams:
        pass


@pytest.mark.parametrize(("axes", "is_read"), [(64, True), (65, False)])
def test_an_array_has_64_axes_at_most(axes, is_read):
    spec = ArraySpec(by_name("float32"), (1,) * axes)
    data = spec.encode()
    with contextlib.nullcontext() if is_read else pytest.raises(BadParams, match="64 axes"):
        assert ArraySpec.read(ValueReader(data, 0, len(data))) == spec


@pytest.mark.parametrize("shape", [(1 << 48,), (1 << 40, 1 << 40), (2**64 - 1, 0)])
def test_a_shape_that_overflows_is_refused(shape):
    with pytest.raises(BadParams):
        ArraySpec(by_name("float64"), shape)


@pytest.mark.parametrize(
    "name", ["object", "O", "float33", "S", "S9999999", "datetime64[xx]", "float32,float32", ""]
)
def test_a_name_that_is_no_element_type_is_refused(name):
    with pytest.raises(BadParams):
        by_name(name)
