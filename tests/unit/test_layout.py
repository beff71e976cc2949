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


# ---- one byte more or less --------------------------------------------------------------------


ARRAY = ArraySpec(by_name("float32"), (3,))


def bytes_of(layout_):
    return bytes(layout_.encoded)


def signature_of(*parts, flags=0):
    return bytes((flags,)) + b"".join(map(bytes_of, parts))


ARGUMENTS = block_of((np.ones(3, "f4"),))[0].arguments
RESULT = TreeLayout(b"A", [ARRAY])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (signature_of(ARGUMENTS), ""),
        (signature_of(ARGUMENTS, RESULT, flags=layout.HAS_HINT), ""),
        (signature_of(ARGUMENTS, RESULT, flags=layout.HAS_HINT | layout.DECLARED), ""),
        (signature_of(ARGUMENTS, flags=layout.DECLARED), ""),
        (signature_of(ARGUMENTS, flags=4), "has unknown flags"),
        (signature_of(RESULT), "is not an argument list"),
        (signature_of(ARGUMENTS) + b"\0", "has bytes left over"),
        (signature_of(ARGUMENTS)[:-1], "BadParams|ends|short"),
        (
            signature_of(ARGUMENTS, TreeLayout(b"V", ()), flags=layout.HAS_HINT),
            "a result's layout can hold arrays only",
        ),
        (b"\0\1\0\0\0A\0\0", "its arrays do not agree"),
        (
            b"\0"
            + (1).to_bytes(4, "little")
            + b"A"
            + (layout.MAX_ARRAYS + 1).to_bytes(2, "little"),
            f"can carry {layout.MAX_ARRAYS} arrays",
        ),
    ],
)
def test_a_signature_is_read_to_its_last_byte(data, words):
    with pytest.raises(BadParams, match=words) if words else contextlib.nullcontext():
        read = Signature.read(data)
        assert read.arguments == ARGUMENTS
        assert read.hint in (None, RESULT)
        assert read.declared == (data[0] == layout.HAS_HINT | layout.DECLARED)


def test_layouts_that_are_equal_are_one_key():
    again = TreeLayout(b"A", [ArraySpec(by_name("float32"), (3,))])
    assert {RESULT: 1}[again] == 1 and RESULT != ARGUMENTS and RESULT != "A"


def damaged(at, form, value):
    buffer = block_of((np.ones(3, "f4"), 7))[1]
    struct.pack_into(form, buffer, at, value)
    return bytes(buffer)


WHOLE = bytes(block_of((np.ones(3, "f4"), 7))[1])
HEAD = struct.calcsize(layout.core.BLOCK_FORMAT)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (WHOLE[: HEAD - 1], "is shorter than its head"),
        (WHOLE[:HEAD], "head is damaged"),
        (WHOLE[:-1], "head is damaged"),
        (WHOLE + b"\0", "head is damaged"),
        (damaged(4, "<H", layout.VERSION + 1), "head is damaged"),
        (damaged(4, "<H", layout.VERSION - 1), "head is damaged"),
        (damaged(6, "<H", layout.MAX_ARRAYS + 1), "ends before its arrays do"),
        (damaged(6, "<H", len(WHOLE)), "ends before its arrays do"),
        (damaged(HEAD + 8, "<I", 0), "parts do not add up to its length"),
        (damaged(HEAD + 12, "<I", 99), "parts do not add up to its length"),
    ],
)
def test_a_block_is_as_long_as_it_says(data, words):
    with pytest.raises(BadParams, match=words):
        ParameterBlock(data)


def test_a_block_of_nothing_ends_with_its_head():
    data = struct.pack(layout.core.BLOCK_FORMAT, HEAD + 8, layout.VERSION, 0, 0, 0) + bytes(8)
    block = ParameterBlock(data)
    assert block.addresses == [] and block.signature == b"" and block.values_at == len(data)


@pytest.mark.parametrize("shift", [0, 4096])
def test_addresses_are_written_as_the_broker_has_them_and_no_output_stays_none(shift):
    buffer = bytearray(8 + 16 + 16)
    write = layout.address_writer(2, shift)
    write(buffer, 8, 64, 5, 128, 192)
    assert struct.unpack_from("<QQQQ", buffer, 8) == (64 + shift, 5, 128 + shift, 192 + shift)
    write(buffer, 8, 0, 0, 128, 192)
    assert struct.unpack_from("<QQQQ", buffer, 8) == (0, 0, 128 + shift, 192 + shift)


VALUES = [7, -1, 2.5, True, False, None, "text", b"bytes", 1 << 70, 3j]


def described(tree, pickles=False):
    flat = flatten(tree, is_array, pickles)
    specs = [ArraySpec(by_name(str(a.dtype)), a.shape) for a in flat.arrays]
    made = TreeLayout(bytes(flat.structure), specs)
    return layout.describe_result(made, encode_values(flat.values, pickles)), made


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_one_plain_value_is_read_at_once_and_as_ever(value):
    data, _ = described(value)
    for buffer in (data, data + bytes(9)):
        found = layout.read_lone_value(buffer, len(data))
        assert found == value and type(found) is type(value)
        made, values, _ = layout.read_result(buffer, len(data), False)
        assert values == [value] and not made.specs
    assert layout.read_lone_value(data, len(data) + 1) is layout.NO_LONE_VALUE
    assert layout.read_lone_value(data + b"\0", len(data) + 1) is layout.NO_LONE_VALUE
    assert layout.read_lone_value(data, len(data) - 1) is layout.NO_LONE_VALUE


@pytest.mark.parametrize("tree", [(7,), [7], {"a": 7}, (7, 8), np.ones(3, "f4"), (), {1, 2}])
def test_what_is_no_lone_value_is_read_as_ever(tree):
    pickles = isinstance(tree, set)
    data, made = described(tree, pickles)
    size = layout.result_bytes(data, made)
    assert layout.read_lone_value(data + bytes(size), size) is layout.NO_LONE_VALUE


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_result_that_describes_itself_ends_with_its_last_array(count):
    data, made = described(tuple(np.ones(3, "f4") for _ in range(count)))
    size = layout.result_bytes(data, made)
    buffer = data + bytes(4096)
    read, values, begin = layout.read_result(buffer, size, False)
    assert read == made and values == []
    if count:
        assert begin % 64 == 0 and begin + made.nbytes == size and begin - len(data) < 64
        with pytest.raises(BadParams, match="shorter than its arrays"):
            layout.read_result(buffer, size - 1, False)
    else:
        assert size == len(data)


RESULT_DATA, _ = described((7, np.ones(3, "f4")))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, len(RESULT_DATA) + 4096), (4, 9999), (8, 9999), (12, layout.MAX_ARRAYS + 1), (8, 0)],
)
def test_a_damaged_description_is_refused(at, value):
    data = bytearray(RESULT_DATA + bytes(4096))
    struct.pack_into("<I" if at < 12 else "<H", data, at, value)
    with pytest.raises(BadParams, match=r"damaged|parameter block"):
        layout.read_result(data, len(RESULT_DATA) + 256, False)


def test_a_result_has_a_head_and_lies_within_its_buffer():
    head = layout.RESULT_HEAD.size
    for data, size in ((RESULT_DATA, head - 1), (RESULT_DATA, len(RESULT_DATA) + 1)):
        with pytest.raises(BadParams, match="shorter than its head"):
            layout.read_result(data, size, False)
