"""Arrays of numbers read and written in C: each as Python's own json would, or not at all."""

from __future__ import annotations

import decimal
import gc
import json
import math
import threading

import numpy as np
import pytest

from shmgpu.serve.protocol import datatypes, json_numbers
from shmgpu.serve.protocol.datatypes import DATATYPES

pytestmark = pytest.mark.skipif(json_numbers.native is None, reason="shmgpu._json was not built")

FEW = 20_000
MANY = 2_000_000  # in pieces of FEW
PIECES = [pytest.param(1, id="few"), pytest.param(MANY // FEW, id="many", marks=pytest.mark.slow)]
DOUBLE = np.dtype("f8")


def read(text, count, dtype=DOUBLE):
    return json_numbers.read(np.dtype(dtype), (count,), text, 0, len(text))


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def drawn(random, dtype):
    """Finite numbers of every size, and as many as people send."""
    words = random.integers(0, 1 << 64, FEW, np.uint64).astype(f"u{dtype.itemsize}")
    even = random.random(FEW) * 10.0 ** random.integers(-9, 18, FEW)
    some = np.concatenate([words.view(dtype), even.astype(dtype), np.floor(even).astype(dtype)])
    return some[np.isfinite(some)]


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_written_is_the_shortest_text_of_the_number_and_read_as_it(dtype, pieces):
    random = np.random.default_rng(7)
    for _ in range(pieces):
        given = drawn(random, np.dtype(dtype))
        text = json_numbers.writer(given.dtype)(given)
        np.testing.assert_array_equal(bits(np.array(json.loads(text), dtype)), bits(given))
        np.testing.assert_array_equal(bits(read(text, given.size, dtype)), bits(given))
        for one, number in zip(text[1:-1].decode().split(","), given, strict=True):
            assert decimal.Decimal(one) == decimal.Decimal(str(number)), number


def test_numbers_at_the_edges_of_their_types_are_written_and_read():
    for dtype in (np.float32, np.float64):
        info, powers = np.finfo(dtype), [math.ldexp(1.0, n) for n in range(-1074, 1024)]
        with np.errstate(over="ignore"):
            numbers = np.array(powers, dtype)
        edges = np.array([info.max, info.tiny, info.smallest_subnormal, 0, 1, 0.1, 1e15], dtype)
        numbers = np.concatenate([numbers[np.isfinite(numbers)], edges])
        beside = [np.nextafter(numbers, dtype(0)), np.nextafter(numbers, dtype(1e30)), -numbers]
        given = np.concatenate([numbers, *beside])
        text = json_numbers.writer(given.dtype)(given)
        np.testing.assert_array_equal(bits(read(text, given.size, dtype)), bits(given))
        np.testing.assert_array_equal(bits(np.array(json.loads(text), dtype)), bits(given))
        shown = map(decimal.Decimal, map(str, given))
        assert list(map(decimal.Decimal, text[1:-1].decode().split(","))) == list(shown)


def test_numbers_that_are_not_finite_have_the_names_that_python_reads():
    given = np.array([np.nan, -np.nan, np.inf, 1.5, -np.inf, -0.0], "f4")
    assert json_numbers.writer(given.dtype)(given) == b"[NaN,NaN,Infinity,1.5,-Infinity,-0.0]"
    assert json_numbers.writer(given.dtype)(given[:0]) == b"[]"


def decimals(random):
    """Texts of numbers: long and short ones, and those half-way between two doubles."""
    texts = []
    for _ in range(FEW // 10):
        digits = "".join(map(str, random.integers(0, 10, random.integers(1, 40))))
        point = random.integers(0, len(digits) + 1)
        text = digits[:point].lstrip("0") or "0"
        text = ("-" if random.random() < 0.3 else "") + text
        if point < len(digits):
            text += "." + digits[point:]
        if random.random() < 0.5:
            sign = ("", "+", "-")[random.integers(3)]
            text += f"{'eE'[random.integers(2)]}{sign}{random.integers(0, 350)}"
        texts.append(text)
    with decimal.localcontext() as context:
        context.prec = 1200
        for word in random.integers(0, 0x7FE << 52, FEW // 100, np.uint64):
            low = float(word.view("f8"))
            middle = (decimal.Decimal(low) + decimal.Decimal(math.nextafter(low, math.inf))) / 2
            texts += [str(middle), str(middle * (1 + decimal.Decimal(10) ** -900))]
            texts.append(str(middle)[:25].rstrip("."))
    return [text for text in texts if math.isfinite(float(text))]


@pytest.mark.parametrize("pieces", PIECES)
def test_a_decimal_is_read_as_the_double_next_to_it(pieces):
    random = np.random.default_rng(7)
    for _ in range(pieces):
        texts = decimals(random)
        found = read(f"[{', '.join(texts)}]".encode(), len(texts))
        # -0 is a whole number to JSON's readers, and those have one 0.
        wanted = np.array([float(json.loads(text)) for text in texts])
        wrong = [
            text for text, same in zip(texts, bits(found) == bits(wanted), strict=True) if not same
        ]
        assert not wrong


def test_digits_and_exponents_make_up_for_each_other_however_many_there_are():
    for zeros in (30, 100, 20_000, 70_000):
        text = (
            f"[0.{'0' * zeros}1e{zeros + 1}, 1{'0' * zeros}e-{zeros}, 12{'0' * zeros}.5e-{zeros}]"
        )
        assert read(text.encode(), 3).tolist() == [1, 1, 12]
    assert (
        read(b"[0e999999999999999999999, -0.0e-99999, 1e-99999999999999999999]", 3).tolist()
        == [0] * 3
    )
    for text in (b"[1e99999999999999999999]", b"[1e309]", b"[-2e308]"):
        assert read(text, 1) is None


def test_a_double_beyond_float32_is_not_read_as_infinity():
    assert read(b"[3.4028235e38]", 1, "f4")[0] == np.finfo("f4").max
    assert read(b"[3.4028236e38]", 1, "f4") is None


def test_a_float32_is_rounded_once():
    """The double next to it is the middle of two, and the text below that."""
    (found,) = read(b"[7.038531e-26]", 1, "f4")
    assert bits(found) == 0x15AE43FD
    assert read(b"[16777217, 16777219, 7e-46, 8e-46]", 4, "f4").tolist() == [
        1 << 24,
        (1 << 24) + 4,
        0,
        2**-149,
    ]


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_whole_numbers_are_read_as_far_as_their_type_goes(name):
    info = np.iinfo(name)
    edges = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, info.max // 10]
    assert read(json.dumps(edges).encode(), len(edges), name).tolist() == edges
    assert read(b"[-0]", 1, name).tolist() == [0]
    for wrong in (info.min - 1, info.max + 1, 1 << 64, 1 << 70, "1.0", "1e0", "01", "-", "+1"):
        assert read(f"[{wrong}]".encode(), 1, name) is None


LETTERS = np.frombuffer(b'0123456789012.eE+-,, \n\t[]NaIt"', "u1")


def as_python(text, count):
    """What Python reads, if those are so many finite numbers."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) != count:
        return None
    if not all(type(one) in (int, float) for one in found):
        return None
    with np.errstate(over="ignore"):
        numbers = np.array([float(one) for one in found])
    return numbers if np.isfinite(numbers).all() else None


@pytest.mark.parametrize("pieces", PIECES)
def test_a_text_is_read_where_python_reads_numbers_and_nowhere_else(pieces):
    """Of letters at random, and of arrays in which a few were changed."""
    random = np.random.default_rng(7)
    taken = 0
    for number in range(pieces * FEW):
        if number % 2:
            text = b"[" + random.choice(LETTERS, random.integers(0, 8)).tobytes() + b"]"
        else:
            octets = bytearray(b"[1.25, -3,0.5e1, 70]")
            octets[random.integers(1, 20)] = random.choice(LETTERS)
            text = bytes(octets)
        count = text.count(b",") + 1
        found, wanted = read(text, count), as_python(text, count)
        assert (found is None) == (wanted is None), text
        if found is not None:
            taken += 1
            np.testing.assert_array_equal(bits(found), bits(wanted))
        assert read(text, count + 1) is None
    assert taken > FEW // 20


@pytest.mark.parametrize(
    "text",
    ["", "[", "]", "[]", "1", "[1", "1]", "[1]]", "[1],", "[1],[2]", "[0x10]", "[1_0]", "[\0]"],
)
def test_what_is_no_array_is_not_read(text):
    for count in (0, 1, 2):
        assert read(text.encode(), count) is None


def test_nothing_beside_the_text_or_the_memory_is_touched():
    text, around = b"9[1,2]9", np.full(4, 77, "i2")
    native = json_numbers.native
    assert native.read(native.INT16, text, 1, 6, around[1:3], (2,))
    assert around.tolist() == [77, 1, 2, 77]
    for start, stop in ((-1, 5), (3, 2), (1, 8)):
        with pytest.raises(ValueError, match="no such part"):
            native.read(native.INT16, text, start, stop, around[1:3], (2,))
    with pytest.raises(TypeError):
        native.read(native.INT16, text, 1, 6, bytes(4), (2,))
    for kind in (-1, native.FLOAT64 + 1):
        with pytest.raises(ValueError, match="that kind"):
            native.read(kind, text, 1, 6, around, (4,))
    for shape in ((), (3,), (2, 2), (0,), (2, 0), (4, 1), (-2,), (1,) * 70, (1 << 70,)):
        with pytest.raises((ValueError, OverflowError)):
            native.read(native.INT16, text, 1, 6, around[1:3], shape)
    with pytest.raises(ValueError, match="that kind"):
        native.write(native.INT16, around)


@pytest.mark.parametrize("name", ["FP16", "FP32", "FP64", "BF16", "INT8", "INT64", "UINT16"])
def test_without_the_module_it_is_the_same(name, monkeypatch):
    kind = DATATYPES[name]
    texts = [
        b"[1, 100, 3]",
        b"[1, 1.5, 2]",
        b"[1, 300, 2]",
        b"[1, 1e39, 2]",
        b"[1, 2]",
        b"[1, NaN, 2]",
    ]

    def outcomes():
        for text in texts:
            try:
                array = datatypes.from_text(kind, (3,), text, 0, len(text))
                yield array.tobytes(), array.dtype, json.loads(datatypes.to_json(kind, array))
            except ValueError as error:
                yield str(error)

    with_it = list(outcomes())
    assert any(isinstance(one, tuple) for one in with_it)
    monkeypatch.setattr(json_numbers, "_READ", {})
    monkeypatch.setattr(json_numbers, "_WRITTEN", {})
    assert list(outcomes()) == with_it


def test_the_collector_rests_until_the_last_thread_has_parsed():
    both_in, first_out = threading.Event(), threading.Event()
    seen = []

    def second():
        with json_numbers.uncollected:
            both_in.set()
            first_out.wait(20)
            seen.append(gc.isenabled())

    assert gc.isenabled()
    thread = threading.Thread(target=second)
    with json_numbers.uncollected:
        thread.start()
        both_in.wait(20)
        seen.append(gc.isenabled())
    seen.append(gc.isenabled())
    first_out.set()
    thread.join()
    assert seen == [False] * 3 and gc.isenabled()
    gc.disable()
    try:
        with json_numbers.uncollected:
            pass
        assert not gc.isenabled(), "whoever had switched it off wants it so"
    finally:
        gc.enable()
