"""The value codec: everything comes back as it was, and any bytes are an error at worst."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from shmgpu.codec.pytree import (
    MOST_ALIKE,
    TreeDef,
    decode_values,
    encode_value,
    encode_values,
    flatten,
)
from shmgpu.errors import BadParams


class Pair(NamedTuple):
    first: object
    second: object = 2


@dataclasses.dataclass(frozen=True)
class Box:
    content: object
    label: str = dataclasses.field(default="", init=False)


@dataclasses.dataclass
class Slim:
    __slots__ = ("content",)
    content: object


made = []


@dataclasses.dataclass
class Loud:
    """Notes whenever code of its own runs."""

    content: object

    def __new__(cls, *args):
        made.append("new")
        return object.__new__(cls)

    def __init__(self, content):
        made.append("init")
        object.__setattr__(self, "content", content)

    def __post_init__(self):
        made.append("post_init")

    def __setattr__(self, name, value):
        made.append("setattr")


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.text(st.characters()),
    st.binary(),
    st.binary().map(bytearray),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9)),
    st.builds(slice, st.none() | st.integers(), st.none() | st.integers()),
    st.just(...),
)
keys = st.one_of(st.text(), st.integers(), st.none(), st.binary())
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner),
        st.builds(Slim, inner),
    ),
    max_leaves=20,
)


def never(leaf):
    return False


def there_and_back(tree, is_array=never, allow_pickle=False):
    flat = flatten(tree, is_array, allow_pickle)
    data = encode_values(flat.values, allow_pickle)
    read = TreeDef(bytes(flat.structure))
    values = decode_values(data, read.value_count, allow_pickle=allow_pickle)
    return read.build(flat.arrays, values)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@given(trees)
def test_a_tree_comes_back_with_its_values_and_types(tree):
    assert same(there_and_back(tree), tree)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_special_floats_come_back_bit_for_bit(value):
    back = there_and_back(value)
    assert np.float64(back).tobytes() == np.float64(value).tobytes()


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**1000, -(10**1000)])
def test_integers_of_any_size_come_back(value):
    assert there_and_back(value) == value


@pytest.mark.parametrize(
    "scalar",
    [
        np.float32(1.5),
        np.int8(-3),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.datetime64("2026-01-02", "ns"),
        np.timedelta64(5, "s"),
        np.str_("text"),
        np.bytes_(b"bytes"),
        np.float16(0.25),
    ],
)
def test_numpy_scalars_keep_their_dtype(scalar):
    back = there_and_back(scalar)
    assert back == scalar and back.dtype == scalar.dtype


def test_arrays_are_left_where_they_stood():
    a, b = np.ones(2), np.zeros(3)
    back = there_and_back({"a": (a, 1), "b": [b]}, lambda leaf: isinstance(leaf, np.ndarray))
    assert back["a"][0] is a and back["b"][0] is b and back["a"][1] == 1


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, lambda: 0, {(1, 2): 3}, slice(1.5), type("Sub", (dict,), {})()]
)
def test_what_cannot_be_carried_is_refused_in_a_sentence(value):
    with pytest.raises(BadParams, match=r"cannot be carried|lose its type"):
        there_and_back(value)


def test_a_record_is_filled_without_running_code_of_its_class():
    loud = Loud(1)
    made.clear()
    back = there_and_back([loud, Pair(3, 4)])
    assert made == [] and type(back[0]) is Loud and back[0].content == 1
    assert back[1] == Pair(3, 4) and type(back[1]) is Pair


def test_a_record_that_nobody_could_put_together_is_refused_in_a_sentence():
    class Inner(NamedTuple):
        value: int

    with pytest.raises(BadParams, match="at the top of a module"):
        there_and_back(Inner(1))
    box = Slim(1)
    wide = Loud(2)
    object.__setattr__(wide, "more", 3)
    with pytest.raises(BadParams, match="'more' beside the fields"):
        there_and_back(wide)
    del box.content
    with pytest.raises(BadParams, match="not all of its fields"):
        there_and_back(box)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Pair", "not known here"),
        ("os:environ", "not known here"),
        ("os:system", "not known here"),
        ("subprocess:Popen", "other fields"),
        ("pathlib:Path", "other fields"),
        (f"{__name__}:Box", "other fields"),
    ],
)
def test_a_name_that_is_no_record_with_those_fields_makes_nothing(name, sentence):
    structure = bytes(flatten(Pair(1, 2), never).structure)
    forged = structure.replace(encode_value(f"{__name__}:Pair"), encode_value(name))
    assert forged != structure
    with pytest.raises(BadParams, match=sentence):
        TreeDef(forged).build([], [1, 2])


def test_pickle_is_used_only_where_it_was_asked_for():
    assert there_and_back({1, 2}, allow_pickle=True) == {1, 2}
    data = encode_value({1, 2}, allow_pickle=True)
    with pytest.raises(BadParams, match="pickle=True"):
        decode_values(data, 1)


def test_a_container_that_holds_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(BadParams, match="nested"):
        flatten(loop, never)


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.integers(0, 5))
def test_random_bytes_as_values_are_an_error_at_worst(data, count):
    try:
        decode_values(data, count)
    except BadParams:
        pass


@settings(max_examples=examples(500))
@given(st.binary(max_size=200))
def test_random_bytes_as_a_structure_are_an_error_at_worst(data):
    try:
        tree = TreeDef(data)
    except BadParams:
        return
    assert tree.array_count + tree.value_count <= len(data)


@given(trees, st.data())
def test_a_damaged_encoding_is_an_error_at_worst(tree, data):
    flat = flatten(tree, never)
    encoded = bytearray(encode_values(flat.values))
    if not encoded:
        return
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_values(bytes(encoded), len(flat.values))
    except BadParams:
        pass


def test_a_structure_that_promises_more_than_it_holds_is_refused_at_once():
    with pytest.raises(BadParams):
        TreeDef(b"t\xff\xff\xff\xff")
    with pytest.raises(BadParams):
        TreeDef(b"t\x01\x00\x00\x00" * 100_000 + b"V")


@pytest.mark.parametrize("tag", [b"d", b"o", b"R"], ids=["dict", "OrderedDict", "record"])
def test_a_structure_with_a_key_twice_is_refused(tag):
    """What was built of it would have fewer leaves than it counts."""

    def structure(*names, of=b""):
        keys = b"".join(encode_value(name) + b"A" for name in names)
        return tag + len(names).to_bytes(4, "little") + of + keys

    of = encode_value("a") if tag == b"R" else b""  # the name of its class may be a field's, too
    assert TreeDef(structure(of=of)).array_count == 0
    assert TreeDef(structure("a", "b", of=of)).array_count == 2
    with pytest.raises(BadParams, match="a key twice"):
        TreeDef(structure("a", "b", "a", of=of))
    if tag != b"R":
        with pytest.raises(BadParams, match="a key twice"):
            TreeDef(structure(1, True))


def test_a_structure_whose_keys_were_made_to_collide_is_refused_before_they_are_compared():
    """A dict compares each with all before it: 8,000 such keys take 0.6 s, 400,000 half an hour."""

    def structure(names):
        keys = b"".join(encode_value(name) + b"A" for name in names)
        return b"d" + len(names).to_bytes(4, "little") + keys

    modulus = sys.hash_info.modulus
    few = [number * modulus for number in range(MOST_ALIKE)]
    assert TreeDef(structure(few)).array_count == MOST_ALIKE
    assert TreeDef(structure(range(4000))).array_count == 4000
    with pytest.raises(BadParams, match="the same hash"):
        TreeDef(structure([*few, MOST_ALIKE * modulus]))


@pytest.mark.parametrize("make", [lambda: [X, X, X], lambda: {"a": X, "b": X, "c": X}])
@pytest.mark.parametrize("grows", [False, True])
def test_a_container_that_changes_while_it_is_taken_apart_is_as_it_was(make, grows):
    given = make()

    def is_array(leaf):
        if not grows:
            given.clear()
        elif type(given) is list:
            given.append(X)
        else:
            given[str(len(given))] = X
        return leaf is X

    flat = flatten(given, is_array)
    assert TreeDef(bytes(flat.structure)).build(flat.arrays, []) == make()


X = object()
