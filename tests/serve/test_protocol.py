"""Requests and answers of the Open Inference Protocol; Triton's own client is the oracle."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from amount import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("orjson")

from serve.drawn import NUMBERS, arrays, same

from shmgpu.serve.protocol import datatypes, http_codec
from shmgpu.serve.protocol.classification import best_classes
from shmgpu.serve.protocol.http_codec import OutputTensor, ProtocolError, RequestLimits
from shmgpu.serve.protocol.metadata import ModelMetadata, TensorMetadata

MODEL = ModelMetadata(
    "digits",
    inputs=(
        TensorMetadata("image", "FP32", (-1, 4)),
        TensorMetadata("mask", "BOOL", (-1,), optional=True),
    ),
    outputs=(
        TensorMetadata("scores", "FP32", (-1, 3), labels=("zero", "one", "two")),
        TensorMetadata("text", "BYTES", (-1,)),
    ),
    max_batch_size=8,
)


def client():
    return pytest.importorskip("tritonclient.http")


def request_body(**fields) -> bytes:
    return json.dumps(fields).encode()


def one_input(**fields) -> bytes:
    entry = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2], **fields}
    return request_body(
        inputs=[{key: value for key, value in entry.items() if value is not ...}],
    )


def refusal(body: bytes, header_length=None, limits=None, model=None) -> str:
    with pytest.raises(ProtocolError) as caught:
        http_codec.parse_infer(body, header_length, limits or RequestLimits(), model)
    assert caught.value.status == 400
    return caught.value.sentence


def as_sent(name: str, array):
    """What arrives of an array that the client was given."""
    return (
        (array.view(np.uint32) >> 16).astype(np.uint16).view(np.int16) if name == "BF16" else array
    )


class TestRequestsOfTheStockClient:
    @settings(max_examples=examples(150), deadline=None)
    @given(data=st.data())
    def test_binary_and_json_inputs_arrive_as_they_were(self, data):
        http = client()
        names = data.draw(
            st.lists(st.sampled_from(list(datatypes.DATATYPES)), min_size=1, max_size=4)
        )
        inputs, expected = [], []
        for number, name in enumerate(names):
            array = data.draw(arrays(name))
            binary = name in ("BF16", "BYTES") or data.draw(st.booleans())
            tensor = http.InferInput(f"in{number}", list(array.shape), name)
            tensor.set_data_from_numpy(array, binary_data=binary)
            inputs.append(tensor)
            expected.append(as_sent(name, array))
        body, length = http.InferenceServerClient.generate_request_body(inputs, request_id="r 1")
        request = http_codec.parse_infer(memoryview(body), length)
        assert request.id == "r 1"
        assert request.binary_output and not request.outputs
        assert [tensor.datatype for tensor in request.inputs] == names
        for tensor, array in zip(request.inputs, expected, strict=True):
            assert same(tensor.array(), array)

    @settings(max_examples=examples(50), deadline=None)
    @given(
        array=hnp.arrays(np.dtype(object), (3,), elements=st.text(max_size=5), fill=st.nothing())
    )
    def test_text_in_json_arrives_as_utf8(self, array):
        tensor = (
            client().InferInput("t", [3], "BYTES").set_data_from_numpy(array, binary_data=False)
        )
        body, length = client().InferenceServerClient.generate_request_body([tensor])
        (found,) = http_codec.parse_infer(body, length).inputs
        assert found.array().tolist() == [text.encode() for text in array]

    def test_everything_else_that_it_can_say_arrives(self):
        http = client()
        tensor = http.InferInput("x", [2], "FP32")
        tensor.set_shared_memory("in region", 8, offset=16)
        scores = http.InferRequestedOutput("scores", binary_data=False, class_count=3)
        raw = http.InferRequestedOutput("raw")
        placed = http.InferRequestedOutput("placed")
        placed.set_shared_memory("out region", 64)
        body, length = http.InferenceServerClient.generate_request_body(
            [tensor],
            outputs=[scores, raw, placed],
            sequence_id=7,
            sequence_start=True,
            priority=2,
            timeout=5000,
            parameters={"colour": "red"},
        )
        request = http_codec.parse_infer(body, length)
        assert request.inputs[0].shm == http_codec.SharedMemoryRef("in region", 16, 8)
        assert request.inputs[0].data is None
        assert [
            (output.name, output.binary, output.classification) for output in request.outputs
        ] == [("scores", False, 3), ("raw", True, 0), ("placed", False, 0)]
        assert request.outputs[2].shm == http_codec.SharedMemoryRef("out region", 0, 64)
        assert (request.sequence_id, request.sequence_start, request.sequence_end) == (
            7,
            True,
            False,
        )
        assert (request.priority, request.timeout_us) == (2, 5000)
        assert request.parameters["colour"] == "red"

    def test_numbers_that_are_not_finite_pass_both_ways(self):
        array = np.array([math.nan, math.inf, -math.inf, 1.5], np.float32)
        tensor = client().InferInput("x", [4], "FP32").set_data_from_numpy(array, binary_data=False)
        body, length = client().InferenceServerClient.generate_request_body([tensor])
        (found,) = http_codec.parse_infer(body, length).inputs
        assert same(found.array(), array)


class TestAnswersToTheStockClient:
    @settings(max_examples=examples(150), deadline=None)
    @given(data=st.data())
    def test_outputs_arrive_as_they_were(self, data):
        http = client()
        names = data.draw(
            st.lists(st.sampled_from(list(datatypes.DATATYPES)), min_size=1, max_size=4)
        )
        outputs, expected, asked = [], [], []
        for number, name in enumerate(names):
            array = data.draw(arrays(name))
            if name == "BYTES" and data.draw(st.booleans()):
                array = np.vectorize(lambda text: text.hex(), otypes=[object])(array)
            binary = (name == "BYTES" and any(isinstance(x, bytes) for x in array.flat)) or (
                data.draw(st.booleans())
            )
            asked.append(http_codec.RequestedOutput(f"out{number}", binary))
            sent = as_sent(name, array)
            outputs.append(OutputTensor(f"out{number}", name, array.shape, sent))
            expected.append(datatypes.widen_bf16(sent) if name == "BF16" else array)
        request = http_codec.InferRequest(id="9", outputs=asked)
        buffers, length = http_codec.build_infer("m", "3", request, outputs)
        body = b"".join(buffers)
        result = http.InferenceServerClient.parse_response_body(body, header_length=length)
        answer = result.get_response()
        assert (answer["id"], answer["model_name"], answer["model_version"]) == ("9", "m", "3")
        for number, array in enumerate(expected):
            found = result.as_numpy(f"out{number}")
            if array.dtype == object:
                found = np.vectorize(
                    lambda text: text if isinstance(text, str) else bytes(text), otypes=[object]
                )(found)
                if asked[number].binary:
                    array = np.vectorize(
                        lambda text: text.encode() if isinstance(text, str) else text,
                        otypes=[object],
                    )(array)
            assert found.shape == array.shape
            assert same(found.astype(array.dtype), array)

    def test_all_outputs_are_given_where_none_is_named(self):
        outputs = [OutputTensor(name, "INT8", (1,), np.array([1], np.int8)) for name in "ab"]
        for binary in (False, True):
            request = http_codec.InferRequest(binary_output=binary)
            buffers, length = http_codec.build_infer("m", "1", request, outputs)
            assert (length is not None) == binary
            shown = json.loads(buffers[0])["outputs"]
            assert [output["name"] for output in shown] == ["a", "b"]
            assert ("data" in shown[0]) != binary

    def test_a_binary_output_is_a_view_of_the_models_array(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        request = http_codec.InferRequest(binary_output=True)
        (_, data), _ = http_codec.build_infer(
            "m", "1", request, [OutputTensor("y", "FP32", (2, 3), array)]
        )
        assert np.shares_memory(np.frombuffer(data, np.float32), array)

    def test_an_output_in_a_region_is_named_by_its_place(self):
        shm = http_codec.SharedMemoryRef("r", 64, 100)
        request = http_codec.InferRequest(outputs=[http_codec.RequestedOutput("y", shm=shm)])
        (header,), length = http_codec.build_infer(
            "m", "1", request, [OutputTensor("y", "FP32", (2,), None, nbytes=8)]
        )
        assert length is None
        assert json.loads(header)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2]}]

    @pytest.mark.parametrize("binary", [False, True])
    def test_the_best_classes_are_given_with_score_index_and_label(self, binary):
        wanted = http_codec.RequestedOutput("scores", binary, classification=2)
        scores = np.array([[0.25, 0.5, 0.5], [3, math.nan, -1]], np.float32)
        output = OutputTensor("scores", "FP32", (2, 3), scores, labels=("zero", "one"))
        buffers, length = http_codec.build_infer(
            "m", "1", http_codec.InferRequest(outputs=[wanted]), [output]
        )
        result = client().InferenceServerClient.parse_response_body(
            b"".join(buffers), header_length=length
        )
        found = [
            [text.decode() if isinstance(text, bytes) else text for text in row]
            for row in result.as_numpy("scores")
        ]
        assert found == [
            ["0.500000:1:one", "0.500000:2"],
            ["3.000000:0:zero", "-1.000000:2"],
        ]

    def test_classes_of_whole_numbers_and_of_one_row(self):
        output = OutputTensor("s", "UINT8", (3,), np.array([7, 200, 9], np.uint8))
        assert best_classes(output, 9).tolist() == [b"200:1", b"9:2", b"7:0"]

    def test_what_cannot_be_sent_is_said(self):
        latin = np.array([b"\xff"], dtype=object)
        with pytest.raises(ProtocolError, match="binary_data"):
            http_codec.build_infer(
                "m", "1", http_codec.InferRequest(), [OutputTensor("t", "BYTES", (1,), latin)]
            )
        request = http_codec.InferRequest(outputs=[http_codec.RequestedOutput("gone")])
        with pytest.raises(ProtocolError) as caught:
            http_codec.build_infer("m", "1", request, [])
        assert caught.value.status == 500


class TestJsonTensors:
    @pytest.mark.parametrize("name", [*NUMBERS, "BF16", "BYTES"])
    def test_every_datatype_is_taken_flat_and_nested(self, name):
        kind = datatypes.DATATYPES[name].kind
        flat = {"bool": [True, False] * 3, "bytes": list("abcdef")}.get(kind, [1, 2, 3, 4, 5, 6])
        for data in (flat, [flat[:3], flat[3:]]):
            body = one_input(datatype=name, shape=[2, 3], data=data)
            array = http_codec.parse_infer(body, None).inputs[0].array()
            assert array.shape == (2, 3)
            assert array.dtype == datatypes.DATATYPES[name].storage
            if name == "BF16":
                array = datatypes.widen_bf16(array)
            expected = [text.encode() for text in flat] if kind == "bytes" else flat
            assert array.reshape(-1).tolist() == expected

    @pytest.mark.parametrize("name", [name for name in NUMBERS if "INT" in name])
    def test_whole_numbers_keep_to_their_range(self, name):
        info = np.iinfo(datatypes.DATATYPES[name].storage)
        body = one_input(datatype=name, data=[int(info.min), int(info.max)])
        assert http_codec.parse_infer(body, None).inputs[0].array().tolist() == [info.min, info.max]
        for outside in (int(info.min) - 1, int(info.max) + 1):
            assert "'x'" in refusal(one_input(datatype=name, data=[0, outside]))

    @pytest.mark.parametrize(
        ("datatype", "data", "word"),
        [
            ("INT32", [1, 2.0], "point"),
            ("INT32", [1, True], "true or false"),
            ("FP32", [1, "2"], "strings"),
            ("FP32", [1, None], "null"),
            ("FP32", [1, True], "true or false"),
            ("BOOL", [0, 1], "whole numbers"),
            ("BYTES", [1, "a"], "whole numbers"),
            ("FP32", [1, 1e39], "too large"),
            ("FP16", [1, 65520], "too large"),
            ("BF16", [1, 3.4e38], "too large"),
            ("FP32", [1], "1 elements"),
            ("FP32", [[1, 2]], "dimension 0"),
            ("FP32", [[1], 2], "deeper"),
            ("FP32", {"0": 1}, "not an array"),
            ("FP32", "12", "not an array"),
        ],
    )
    def test_wrong_elements_are_refused_in_a_sentence(self, datatype, data, word):
        sentence = refusal(one_input(datatype=datatype, data=data))
        assert word in sentence and "'x'" in sentence

    def test_a_ragged_tensor_is_refused(self):
        assert "dimension 1" in refusal(one_input(shape=[2, 2], data=[[1, 2], [3]]))
        assert "nested" in refusal(one_input(shape=[2, 2], data=[[1, 2], 3]))

    def test_bf16_rounds_to_the_nearest_and_to_even(self):
        values = np.array([1.00390625, 1.01171875, 1.004, -1.00390625, math.nan], np.float32)
        found = datatypes.widen_bf16(datatypes.round_bf16(values))
        assert found[:4].tolist() == [1.0, 1.015625, 1.0078125, -1.0]
        assert math.isnan(found[4])


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "word"),
        [
            (b"", "not JSON"),
            (b"{", "not JSON"),
            (b"[]", "not a JSON object"),
            (b"{}", "no inputs"),
            (request_body(inputs={}), "not an array"),
            (request_body(inputs=[1]), "not an array"),
            (one_input(name=...), "no name"),
            (one_input(name=7), "not text"),
            (one_input(name="x" * 2000), "2000 characters"),
            (one_input(datatype=...), "datatype"),
            (one_input(datatype="FLOAT"), "'FLOAT'"),
            (one_input(datatype=[]), "datatype"),
            (one_input(shape=...), "shape"),
            (one_input(shape=[2.0]), "shape"),
            (one_input(shape=[True]), "shape"),
            (one_input(shape=[-2]), "negative"),
            (one_input(shape=[1 << 40, 1 << 40]), "more elements"),
            (one_input(shape=[1] * 99), "99 dimensions"),
            (one_input(data=...), "no data"),
            (one_input(parameters={"binary_data_size": 8}), "'data' and 'binary_data_size'"),
            (one_input(data=..., parameters={"binary_data_size": 8}), "0 of the 0"),
            (one_input(data=..., parameters={"binary_data_size": -8}), "whole number"),
            (one_input(data=..., parameters={"binary_data_size": True}), "whole number"),
            (one_input(data=..., parameters={"shared_memory_region": "r"}), "byte_size"),
            (one_input(parameters={"shared_memory_offset": 4}), "no 'shared_memory_region'"),
            (
                one_input(
                    data=...,
                    parameters={"shared_memory_region": "r", "shared_memory_byte_size": 9},
                ),
                "Expected 8, got",
            ),
            (one_input(parameters=[]), "not an object"),
            (one_input(parameters={"a": [1]}), "not a string, number or boolean"),
            (one_input(parameters={str(n): n for n in range(99)}), "99 parameters"),
        ],
    )
    def test_each_names_what_was_wrong(self, body, word):
        assert word in refusal(body)

    @pytest.mark.parametrize(
        ("parameters", "word"),
        [
            ({"sequence_id": -1}, "sequence_id"),
            ({"sequence_id": 1, "sequence_start": 1}, "sequence_start"),
            ({"sequence_end": True}, "without a 'sequence_id'"),
            ({"priority": "high"}, "priority"),
            ({"timeout": 1.5}, "timeout"),
            ({"binary_data_output": "yes"}, "binary_data_output"),
        ],
    )
    def test_the_requests_parameters_are_checked(self, parameters, word):
        body = json.loads(one_input())
        assert word in refusal(request_body(**body, parameters=parameters))

    def test_names_are_given_once(self):
        entry = json.loads(one_input())["inputs"][0]
        assert "'x' is given twice" in refusal(request_body(inputs=[entry, entry]))
        other = {**entry, "name": "another"}
        assert "'x' is given twice" in refusal(request_body(inputs=[other, entry, entry]))
        outputs = [{"name": "y"}, {"name": "y"}]
        assert "'y' is given twice" in refusal(request_body(inputs=[entry], outputs=outputs))

    def test_too_many_tensors_and_too_deep_json_are_refused(self):
        entry = json.loads(one_input())["inputs"][0]
        limits = RequestLimits(tensors=2, json_depth=5, strings=3)
        many = [{**entry, "name": str(number)} for number in range(3)]
        assert "takes 2" in refusal(request_body(inputs=many), limits=limits)
        deep = b'{"x":' + b"[" * 9 + b"]" * 9 + b"}"
        assert "deeper than 5" in refusal(deep, limits=limits)
        for depth in (900, 200_000):
            assert refusal(b'{"inputs":' + b"[" * depth + b"]" * depth + b"}")
            assert refusal(b'{"inputs":' + b'{"NaN":' * depth + b"NaN" + b"}" * depth + b"}")
        words = {"datatype": "BYTES", "data": ["a", "b"]}
        texts = [{**entry, **words, "name": str(number)} for number in range(2)]
        assert "BYTES elements" in refusal(request_body(inputs=texts), limits=limits)

    def test_a_request_with_much_json_is_413(self):
        with pytest.raises(ProtocolError) as caught:
            http_codec.parse_infer(one_input(), None, RequestLimits(header_length=10))
        assert caught.value.status == 413


class TestBinaryData:
    def body(self, *sizes: int, extra: bytes = b"", **fields) -> tuple[bytes, int]:
        inputs = [
            {
                "name": f"x{number}",
                "datatype": "FP32",
                "shape": [2],
                "parameters": {"binary_data_size": size},
                **fields,
            }
            for number, size in enumerate(sizes)
        ]
        header = request_body(inputs=inputs)
        return header + bytes(range(64))[: sum(sizes)] + extra, len(header)

    def test_inputs_are_views_of_the_body(self):
        body, length = self.body(8, 8)
        request = http_codec.parse_infer(memoryview(body), length)
        whole = np.frombuffer(body, np.uint8)
        assert all(np.shares_memory(tensor.array(), whole) for tensor in request.inputs)
        assert bytes(request.inputs[1].data) == body[length + 8 :]

    def test_sizes_that_do_not_add_up_are_refused(self):
        body, length = self.body(8, 8)
        assert "4 of the 12" in refusal(body[:-4], length)
        assert "3 of the 19 bytes" in refusal(body + b"abc", length)
        assert "set it to the bytes" in refusal(body, len(body) + 1)
        assert "Expected 8, got 12" in refusal(*self.body(12))
        assert "not JSON" in refusal(body, length - 1)

    def test_a_boolean_is_0_or_1(self):
        body, length = self.body(2, datatype="BOOL")
        assert http_codec.parse_infer(body, length).inputs[0].array().tolist() == [False, True]
        assert "neither 0 nor 1" in refusal(body[:-1] + b"\x02", length)

    @pytest.mark.parametrize(
        ("data", "word"),
        [
            (b"\1\0\0\0a", "too few"),
            (b"\1\0\0\0a\xff\xff\xff\xff", "4294967295"),
            (b"\1\0\0\0a\0\0\0\0z", "1 bytes more"),
            (b"\5\0\0\0abcde", "ends after 1"),
        ],
    )
    def test_lengths_of_bytes_elements_must_add_up(self, data, word):
        header = request_body(
            inputs=[
                {
                    "name": "t",
                    "datatype": "BYTES",
                    "shape": [2],
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        )
        assert word in refusal(header + data, len(header))

    @given(st.lists(st.binary(max_size=9), max_size=9))
    def test_bytes_elements_go_there_and_back(self, elements):
        assert datatypes.split(datatypes.join(elements), len(elements)) == elements


class TestAgainstTheModel:
    def send(self, model=MODEL, outputs=(), **fields) -> http_codec.InferRequest:
        entry = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = request_body(inputs=[{**entry, **fields}], outputs=list(outputs))
        return http_codec.parse_infer(body, None, RequestLimits(), model)

    def test_what_fits_passes_and_optional_inputs_may_be_left_out(self):
        assert self.send(outputs=[{"name": "text"}]).outputs[0].name == "text"

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"name": "picture"}, "unexpected input 'picture'"),
            ({"datatype": "FP64"}, "takes FP32"),
            ({"shape": [4]}, "unexpected shape"),
            ({"shape": [2, 2]}, "takes [-1, 4]"),
            ({"shape": [9, 4], "data": [0] * 36}, "takes 8"),
            (
                {"name": "mask", "datatype": "BOOL", "shape": [1], "data": [True]},
                "needs input 'image'",
            ),
            ({"outputs": [{"name": "score"}]}, "unexpected output 'score'"),
            (
                {"outputs": [{"name": "text", "parameters": {"classification": 1}}]},
                "no best classes",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, fields, word):
        with pytest.raises(ProtocolError) as caught:
            self.send(**fields)
        assert caught.value.status == 400 and word in caught.value.sentence

    def raw(self, body: bytes, shape, datatype="FP32", max_batch_size=0):
        model = ModelMetadata(
            "m", inputs=(TensorMetadata("x", datatype, shape),), max_batch_size=max_batch_size
        )
        return http_codec.parse_infer(body, 0, RequestLimits(), model).inputs[0]

    def test_a_body_of_data_alone_is_the_models_only_input(self):
        data = np.arange(6, dtype=np.float32)
        assert same(self.raw(data.tobytes(), (2, 3)).array(), data.reshape(2, 3))
        assert same(self.raw(data.tobytes(), (-1, 3)).array(), data.reshape(2, 3))
        assert self.raw(data.tobytes(), (-1, -1), max_batch_size=4).shape == (1, 6)
        assert self.raw(b"abc", (-1,), "UINT8").shape == (3,)
        assert self.raw(b"", (-1, 3)).shape == (0, 3)
        assert self.raw(data.tobytes(), (-1, 3), max_batch_size=0).shape == (2, 3)
        picture = self.raw(b"jpeg", (1,), "BYTES")
        assert (picture.shape, picture.array().tolist()) == ((1,), [b"jpeg"])
        picture = self.raw(b"jpeg", (-1, 1), "BYTES", max_batch_size=4)
        assert (picture.shape, picture.array().tolist()) == ((1, 1), [[b"jpeg"]])

    @pytest.mark.parametrize(
        ("size", "shape", "datatype", "word"),
        [
            (20, (2, 3), "FP32", "Expected 24, got 20"),
            (20, (-1, 3), "FP32", "multiple of 12"),
            (0, (-1, 0), "FP32", "multiple of 0"),
            (24, (-1, -1), "FP32", "one extent open"),
            (24, (2,), "BYTES", "one BYTES element"),
            (24, (-1,), "BYTES", "one BYTES element"),
        ],
    )
    def test_data_alone_must_give_a_shape(self, size, shape, datatype, word):
        with pytest.raises(ProtocolError, match=word):
            self.raw(bytes(size), shape, datatype)

    def test_data_alone_needs_a_model_of_one_input(self):
        assert "2 inputs" in refusal(b"abcd", 0, model=MODEL)
        assert "needs its JSON" in refusal(b"abcd", 0)


# Fuzz: whatever the bytes, a request or a ProtocolError

FRAGMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 66), 1 << 66)
    | st.floats()
    | st.sampled_from([*datatypes.DATATYPES, "x", "name", "data", ""])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y"]) | FRAGMENTS,
        "datatype": st.sampled_from(list(datatypes.DATATYPES)) | FRAGMENTS,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | FRAGMENTS,
        "data": st.lists(st.integers(0, 1) | st.text(max_size=2), max_size=6) | FRAGMENTS,
        "parameters": st.dictionaries(
            st.sampled_from(
                [
                    "binary_data_size",
                    "binary_data",
                    "classification",
                    "shared_memory_region",
                    "shared_memory_byte_size",
                    "shared_memory_offset",
                ]
            ),
            st.integers(0, 16) | FRAGMENTS,
            max_size=3,
        )
        | FRAGMENTS,
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3) | FRAGMENTS},
    optional={
        "outputs": st.lists(TENSORS, max_size=2) | FRAGMENTS,
        "id": FRAGMENTS,
        "parameters": FRAGMENTS,
    },
)


def read(body: bytes, header_length) -> None:
    models = (None, MODEL, ModelMetadata("m", inputs=(TensorMetadata("x", "BOOL", (-1, 2)),)))
    for model in models:
        try:
            request = http_codec.parse_infer(body, header_length, RequestLimits(), model)
        except ProtocolError as error:
            assert error.status in (400, 413) and error.sentence
            error.sentence.encode()
        else:
            for tensor in request.inputs:
                assert tensor.shm is not None or tensor.array().shape == tensor.shape


@pytest.mark.table
@settings(max_examples=examples(1000), deadline=None)
@given(body=st.binary(max_size=200), header_length=st.none() | st.integers(-1, 210))
def test_any_bytes_are_a_request_or_a_refusal(body, header_length):
    read(body, header_length)


@pytest.mark.table
@settings(max_examples=examples(1500), deadline=None)
@given(request=REQUESTS, tail=st.binary(max_size=24), cut=st.integers(-3, 3), whole=st.booleans())
@example(request={"inputs": [{"name": "\ud800"}]}, tail=b"", cut=0, whole=True)
@example(
    request={"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\ud800NaN"]}]},
    tail=b"",
    cut=0,
    whole=True,
)
@example(
    request={
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [2], "data": [math.nan, 10**4000]}]
    },
    tail=b"",
    cut=0,
    whole=True,
)
def test_almost_a_request_is_one_or_a_refusal(request, tail, cut, whole):
    header = json.dumps(request).encode()
    read(header + tail, None if whole and not tail else max(len(header) + cut, 0))


def test_the_data_of_a_refused_tensor_is_not_in_the_sentence():
    sentence = refusal(one_input(datatype="S" * 1000))
    assert len(sentence) < 400


def test_lengths_are_little_endian():
    assert datatypes.join([b"ab"]) == struct.pack("<I", 2) + b"ab"


@pytest.mark.parametrize(
    ("rows", "binary", "has_header"),
    [(2, False, False), (0, False, False), (2, True, True), (0, True, True)],
)
def test_an_answer_says_where_its_json_ends_if_an_output_is_binary_be_it_empty(
    rows, binary, has_header
):
    """Triton's client reads an answer without the header as JSON alone, and looks for the data."""
    scores = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    body = request_body(
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
        outputs=[{"name": "scores", "parameters": {"binary_data": binary}}],
    )
    request = http_codec.parse_infer(body, None, RequestLimits(), None)
    buffers, length = http_codec.build_infer(
        "m", "1", request, [OutputTensor("scores", "FP32", list(scores.shape), scores)]
    )
    assert length == (len(buffers[0]) if has_header else None)
    (shown,) = json.loads(bytes(buffers[0]))["outputs"]
    assert ("data" in shown) is not binary
    assert b"".join(buffers[1:]) == (scores.tobytes() if binary else b"")
