"""Tensors as bytes, as JSON and as classes: each bound, and what is said beyond it."""

from __future__ import annotations

import json
import zlib

import numpy as np
import orjson
import pytest

from shmgpu.serve.frontend import compression
from shmgpu.serve.protocol import classification, datatypes
from shmgpu.serve.protocol.classification import best_classes
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.types import OutputTensor, ProtocolError


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("O", "BYTES"), ("S3", "BYTES"), ("U3", "BYTES"), ("?", "BOOL"), ("u2", "UINT16")],
)
def test_of_text_bytes_and_objects_there_are_bytes(dtype, name):
    assert datatypes.of_dtype(np.dtype(dtype)).name == name


def test_complex_numbers_have_no_datatype():
    with pytest.raises(ValueError, match="no datatype for complex64 arrays: convert the output"):
        datatypes.of_dtype(np.dtype("c8"))


@pytest.mark.parametrize("read", [datatypes.decode, datatypes.check])
@pytest.mark.parametrize(("size", "fits"), [(7, False), (8, True), (9, False)])
def test_a_binary_tensor_has_just_its_bytes(read, size, fits):
    data = bytes(range(size))
    if not fits:
        with pytest.raises(ValueError, match=f"{size} bytes.*8|8.*{size}"):
            read(DATATYPES["INT32"], (1, 2), data)
        return
    found = read(DATATYPES["INT32"], (1, 2), data)
    if found is not None:
        assert found.shape == (1, 2) and found.tobytes() == data


@pytest.mark.parametrize("read", [datatypes.decode, datatypes.check])
def test_a_tensor_of_nothing_has_no_bytes(read):
    found = read(DATATYPES["INT32"], (0, 2), b"")
    assert found is None or (found.shape == (0, 2) and found.dtype == np.int32)
    with pytest.raises(ValueError, match="0"):
        read(DATATYPES["INT32"], (0, 2), b"1")


def test_a_byte_of_a_boolean_is_0_or_1():
    datatypes.check(DATATYPES["BOOL"], (2,), b"\0\1")
    datatypes.check(DATATYPES["BOOL"], (0,), b"")
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        datatypes.check(DATATYPES["BOOL"], (2,), b"\0\2")


WRITE = {
    "binary": lambda datatype, array: bytes(datatypes.encode(datatype, array)),
    "JSON": datatypes.to_json,
}


@pytest.mark.parametrize("how", WRITE)
@pytest.mark.parametrize("dtype", ["f8", "O", "i2"])
def test_an_array_of_another_size_is_not_of_that_datatype(how, dtype):
    with pytest.raises(ValueError, match=f"is an array of {np.dtype(dtype)}, which is not FP32"):
        WRITE[how](DATATYPES["FP32"], np.zeros(2, dtype))


@pytest.mark.parametrize("how", WRITE)
def test_elements_of_text_are_text_or_bytes(how):
    with pytest.raises(ValueError, match="has an element of type int, and BYTES elements are"):
        WRITE[how](DATATYPES["BYTES"], np.array(["a", 5], object))


def test_text_and_bytes_are_written_alike():
    array = np.array([["é", b"b"]], object)
    assert datatypes.split(datatypes.encode(DATATYPES["BYTES"], array), 2) == ["é".encode(), b"b"]
    assert json.loads(datatypes.to_json(DATATYPES["BYTES"], array)) == ["é", "b"]
    with pytest.raises(ValueError, match="not UTF-8 text, which JSON cannot carry"):
        datatypes.to_json(DATATYPES["BYTES"], np.array([b"\xff"], object))


def test_the_byte_order_of_an_array_is_no_matter():
    array = np.arange(3, dtype=">i4")
    assert bytes(datatypes.encode(DATATYPES["INT32"], array)) == array.astype("<i4").tobytes()
    assert json.loads(datatypes.to_json(DATATYPES["INT32"], array)) == [0, 1, 2]
    assert bytes(datatypes.encode(DATATYPES["INT32"], array[:0])) == b""


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 9])
@pytest.mark.parametrize("name", ["INT16", "FP32", "FP16", "BF16", "BOOL"])
def test_a_long_array_is_one_list_in_json_however_many_pieces_it_is_written_in(
    count, name, monkeypatch
):
    monkeypatch.setattr(datatypes, "AT_ONCE", 4)
    array = (np.arange(count) % 2).astype(DATATYPES[name].storage)
    wanted = (np.arange(count) % 2 * (2.0**-133 if name == "BF16" else 1)).tolist()
    found = json.loads(datatypes.to_json(DATATYPES[name], array))
    assert found == pytest.approx(wanted) and len(found) == count


def test_what_is_not_finite_is_written_as_others_write_it():
    array = np.array([np.nan, np.inf, 1], np.float32)
    assert datatypes.to_json(DATATYPES["FP32"], array) == b"[NaN,Infinity,1.0]"


def elements(text):
    """What a long array of numbers is read as, piece by piece."""
    return [one for part in datatypes.NumberText(text, 0, len(text)).lists() for one in part]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"1,2,3", [1, 2, 3]),
        (b"1.5, -2e3 ,3", [1.5, -2000, 3]),
        (b"NaN,Infinity", [np.nan, np.inf]),
        (b"7", [7]),
        (b"1,,3", None),
        (b"1, ,3", None),
        (b"1,2,", None),
        (b",1", None),
        (b"", None),
        (b"1 2", None),
        (b"none", None),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_numbers_are_read_in_pieces_and_none_of_them_is_empty(monkeypatch, text, wanted, step):
    monkeypatch.setattr(datatypes, "STEP", step)
    if wanted is not None:
        np.testing.assert_array_equal(elements(text), wanted)
        return
    with pytest.raises(ValueError, match=r"not JSON|Expecting"):
        elements(text)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("name", ["INT", "UINT"])
def test_a_whole_number_is_within_its_datatype(name, bits):
    kind = DATATYPES[f"{name}{bits}"]
    least = -(2 ** (bits - 1)) if name == "INT" else 0
    most = least + 2**bits - 1
    for read in (datatypes.from_json, lambda kind, shape, data: datatypes.from_numbers(kind, data)):
        assert read(kind, [3], [least, 1, most]).tolist() == [least, 1, most]
        assert read(kind, [0], []).tolist() == []
        for wrong in (least - 1, most + 1, 1 << 70):
            with pytest.raises(ValueError, match=f"outside {kind.name}, .* {least} to {most}"):
                read(kind, [2], [1, wrong])


# ---- classes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FP16", "FP32", "FP64", "BF16", "INT8"])
@pytest.mark.parametrize(
    "text",
    [
        "[1, -2, 3]", "[1.5, 2.25, -0.0]", "[1, 2]", "[1, 2, 300]", "[1, 2, 1e39]", "[1, 2, 1e400]",
        "[1, true, 3]", '[1, "2", 3]', "[1, null, 3]", "[[1, 2, 3]]", "[1, NaN, 3]", "[1, 2", "[]",
    ],
)  # fmt: skip
def test_text_that_is_not_parsed_yet_is_read_as_its_elements_are(name, text):
    def outcome(read):
        try:
            array = read()
        except ValueError as error:
            return str(error)
        return str(array.dtype), array.shape, array.tobytes()

    kind = DATATYPES[name]
    want = outcome(lambda: datatypes.from_json(kind, (3,), orjson.loads(text)))
    assert outcome(lambda: datatypes.from_text(kind, (3,), text.encode(), 0, len(text))) == want


def output(array, datatype="FP32", labels=()):
    shape = () if array is None or isinstance(array, memoryview) else array.shape
    return OutputTensor("y", datatype, shape, array, labels)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_of_what_has_no_order_there_are_no_best_classes(datatype):
    array = np.zeros(2, DATATYPES[datatype].storage or object)
    with pytest.raises(ValueError, match=f"is {datatype}, of which there are no best classes"):
        best_classes(output(array, datatype), 1)


def test_of_an_output_in_a_region_there_are_none():
    with pytest.raises(ValueError, match="no best classes: omit 'classification'"):
        best_classes(output(None), 1)


def test_scores_that_came_as_bytes_are_read():
    one = OutputTensor("y", "INT32", (1, 3), memoryview(np.int32([4, 9, 2]).tobytes()), ("a", "b"))
    assert best_classes(one, 3).tolist() == [[b"9:1:b", b"4:0:a", b"2:2"]]


def test_of_no_scores_there_are_no_classes():
    assert best_classes(output(np.zeros((3, 0), "f4")), 2).shape == (3, 0)
    assert best_classes(output(np.zeros(0, "f4")), 2).shape == (0,)
    assert best_classes(output(np.zeros((0, 4), "f4")), 2).shape == (0, 0)


def test_no_more_classes_are_told_than_there_are_or_than_the_server_tells(monkeypatch):
    monkeypatch.setattr(classification, "MOST_TEXTS", 6)
    scores = np.arange(6, dtype="f4").reshape(2, 3)
    assert best_classes(output(scores), 5).shape == (2, 3)
    with pytest.raises(ValueError, match="has 8 classes to tell, and this server tells 6"):
        best_classes(output(np.zeros((2, 4), "f4")), 4)


def test_the_lower_index_comes_first_among_equals_and_nan_is_the_least():
    scores = np.array([1, np.nan, 3, 3, -np.inf], "f4")
    found = [one.split(b":")[1] for one in best_classes(output(scores), 5)]
    assert found[:3] == [b"2", b"3", b"0"] and set(found[3:]) == {b"1", b"4"}


# ---- bodies that come or go compressed --------------------------------------------------


def packed(data, window=31):
    writing = zlib.compressobj(wbits=window)
    return writing.compress(data) + writing.flush()


@pytest.mark.parametrize(("name", "window"), [(b"gzip", 31), (b" Deflate ", 15)])
def test_a_compressed_body_may_have_as_many_bytes_as_another(name, window):
    data = bytes(1000)
    assert compression.decoded(packed(data, window), name, 1000) == data
    with pytest.raises(ProtocolError, match="may have 999 bytes, decompressed too") as caught:
        compression.decoded(packed(data, window), name, 999)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("body", "name", "status", "words"),
    [
        (b"x", b"br", 415, "Content-Encoding must be gzip or deflate"),
        (bytes(20), b"gzip", 400, "the body cannot be decompressed"),
        (packed(b"abc")[:-1], b"gzip", 400, "compressed data end too early"),
        (packed(b"abc") + b"x", b"gzip", 400, "continues after its compressed data"),
    ],
)
def test_a_body_that_is_not_what_its_coding_says_is_refused(body, name, status, words):
    with pytest.raises(ProtocolError, match=words) as caught:
        compression.decoded(body, name, 1000)
    assert caught.value.status == status


@pytest.mark.parametrize("name", [b"", b"identity", b" Identity"])
def test_a_body_without_a_coding_is_what_it_is(name):
    assert compression.decoded(memoryview(b"abc"), name, 1) == b"abc"


@pytest.mark.parametrize(
    ("accepted", "given"),
    [
        (b"gzip, deflate", b"gzip"),
        (b"deflate;q=0.5", b"deflate"),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"gzip; q = 0.000, br", b""),
        (b"GZIP;q=0.01", b"gzip"),
        (b"identity", b""),
        (b"", b""),
    ],
)
def test_an_answer_is_coded_as_its_client_takes_it(accepted, given):
    data, length, header = compression.encoded([b"ab", b"c"], accepted, 2)
    assert length == 2
    if not given:
        assert data == [b"ab", b"c"] and header == b""
        return
    assert header == b"Content-Encoding: %s\r\n" % given
    assert compression.decoded(data[0], given, 3) == b"abc" and len(data) == 1


@pytest.mark.parametrize(
    ("begin", "coding"),
    [
        (packed(b"a"), b"gzip"),
        (packed(b"a", 15), b"deflate"),
        (b"\x78\x9d", b""),
        (b"\x1f", b""),
        (b"\x1f\x8c", b""),
        (b"", b""),
    ],
)
def test_a_message_is_known_as_compressed_by_its_first_bytes(begin, coding):
    assert compression.coding_of(begin) == coding
