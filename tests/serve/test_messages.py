"""The protocol's gRPC messages; Triton's own client is the oracle."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from serve import client_messages

pytest.importorskip("google.protobuf")
pytest.importorskip("orjson")

from google.protobuf import descriptor_pb2
from serve.drawn import NUMBERS, arrays, same

from shmgpu.serve.protocol import datatypes, grpc_codec, http_codec
from shmgpu.serve.protocol.metadata import ModelMetadata, TensorMetadata
from shmgpu.serve.protocol.types import OutputTensor, ProtocolError, RequestLimits

Request = grpc_codec.MESSAGES["ModelInferRequest"]


@pytest.fixture(scope="module")
def client():
    return pytest.importorskip("tritonclient.grpc")


def read(data: bytes, model=None, limits=None):
    message, raw = grpc_codec.split_request(data)
    return grpc_codec.read_infer(message, raw, limits or RequestLimits(), model)


def refusal(message, **given) -> str:
    with pytest.raises(ProtocolError) as caught:
        read(message.SerializeToString(), **given)
    assert caught.value.status == 400
    return caught.value.sentence


def request(**fields):
    """One FP32 input of two elements, and what is given."""
    entry = {"name": "x", "datatype": "FP32", "shape": [2]}
    return Request(model_name="m", inputs=[{**entry, **fields}])


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_the_stock_clients_inputs_arrive_as_they_were(client, data):
    names = data.draw(st.lists(st.sampled_from([*NUMBERS, "BYTES"]), min_size=1, max_size=4))
    inputs, expected = [], []
    for number, name in enumerate(names):
        array = data.draw(arrays(name))
        tensor = client.InferInput(f"in{number}", list(array.shape), name)
        inputs.append(tensor.set_data_from_numpy(array))
        expected.append(array)
    found = read(client_messages.built(inputs, request_id="7"))
    assert found.id == "7"
    for tensor, array in zip(found.inputs, expected, strict=True):
        assert same(tensor.array(), array)


def test_everything_else_that_it_can_say_arrives(client):
    tensor = client.InferInput("x", [2], "FP32")
    tensor.set_shared_memory("in region", 8, offset=16)
    raw = client.InferInput("y", [1], "INT8").set_data_from_numpy(np.array([5], np.int8))
    scores = client.InferRequestedOutput("scores", class_count=3)
    placed = client.InferRequestedOutput("placed")
    placed.set_shared_memory("out region", 64)
    data = client_messages.built(
        [tensor, raw],
        outputs=[scores, placed],
        sequence_id=7,
        sequence_start=True,
        priority=2,
        timeout=5000,
        parameters={"colour": "red", "depth": 3, "deep": True},
    )
    found = read(data)
    assert found.inputs[0].shm == http_codec.SharedMemoryRef("in region", 16, 8)
    assert found.inputs[1].array().tolist() == [5]
    assert [output.classification for output in found.outputs] == [3, 0]
    assert found.outputs[1].shm == http_codec.SharedMemoryRef("out region", 0, 64)
    assert (found.sequence_id, found.sequence_start, found.sequence_end) == (7, True, False)
    assert (found.priority, found.timeout_us) == (2, 5000)
    assert [found.parameters[key] for key in ("colour", "depth", "deep")] == ["red", 3, True]


def test_raw_inputs_are_views_of_the_message(client):
    array = np.arange(1000, dtype=np.float32)
    tensor = client.InferInput("x", [1000], "FP32").set_data_from_numpy(array)
    data = client_messages.built([tensor])
    found = read(data).inputs[0].array()
    assert np.shares_memory(found, np.frombuffer(data, np.uint8)) and same(found, array)


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "FP16"] + ["BYTES"])
def test_contents_of_every_datatype_arrive(name):
    kind = datatypes.DATATYPES[name].kind
    values = {"bool": [True, False], "bytes": [b"a", b"\xff"], "float": [0.5, -math.inf]}.get(
        kind, [1, 2]
    )
    place = grpc_codec._CONTENTS[name]
    found = read(request(datatype=name, contents={place: values}).SerializeToString())
    assert found.inputs[0].array().tolist() == values


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"datatype": "FP16", "contents": {"fp32_contents": [1, 2]}}, "send it raw"),
        ({"datatype": "INT8", "contents": {"int_contents": [1, 200]}}, "INT8"),
        ({"datatype": "INT8", "contents": {"uint_contents": [1, 2]}}, "are int_contents"),
        ({"contents": {"fp32_contents": [1]}}, "1 elements"),
        ({}, "0 elements"),
        ({"name": ""}, "no name"),
        ({"datatype": "float"}, "'float'"),
        ({"shape": [-1]}, "negative"),
        ({"parameters": {"binary_data_size": {"int64_param": 8}}}, "belongs to HTTP"),
        ({"parameters": {"shared_memory_region": {"string_param": "r"}}}, "byte_size"),
        ({"parameters": {"unset": {}}}, "not a string, number or boolean"),
    ],
)
def test_what_is_wrong_is_said(fields, word):
    assert word in refusal(request(**fields))


def test_raw_contents_must_add_up():
    message = request()
    for raw, word in (
        ([b"abcd"], "Expected 8, got 4"),
        ([b"abcdefgh", b""], "1 more than inputs"),
    ):
        del message.raw_input_contents[:]
        message.raw_input_contents.extend(raw)
        assert word in refusal(message)
    message.raw_input_contents[:] = [b"abcdefgh"]
    message.inputs.add(name="y", datatype="INT8", shape=[1])
    assert "no raw_input_contents" in refusal(message)
    message = request(contents={"fp32_contents": [1, 2]})
    message.raw_input_contents.append(b"abcdefgh")
    assert "beside raw_input_contents" in refusal(message)


def test_the_model_and_the_limits_are_asked():
    message = request(contents={"fp32_contents": [1, 2]})
    model = ModelMetadata("m", inputs=(TensorMetadata("z", "FP32", (2,)),))
    assert "unexpected input 'x'" in refusal(message, model=model)
    message.inputs.add(name="y", datatype="FP32", shape=[0])
    assert "takes 1" in refusal(message, limits=RequestLimits(tensors=1))


def test_a_request_has_256_tensors_at_most_where_nothing_else_is_said():
    message = request(contents={"fp32_contents": [1, 2]})
    while len(message.inputs) < 256:
        message.inputs.add(name=f"i{len(message.inputs)}", datatype="FP32", shape=[0])
    assert len(read(message.SerializeToString()).inputs) == 256
    message.inputs.add(name="more", datatype="FP32", shape=[0])
    assert "takes 256" in refusal(message)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_outputs_arrive_at_the_stock_client_as_they_were(client, data):
    from tritonclient.grpc import service_pb2

    names = data.draw(st.lists(st.sampled_from([*NUMBERS, "BYTES"]), min_size=1, max_size=4))
    expected = [data.draw(arrays(name)) for name in names]
    outputs = [
        OutputTensor(f"out{number}", name, array.shape, array)
        for number, (name, array) in enumerate(zip(names, expected, strict=True))
    ]
    buffers = grpc_codec.build_infer(
        "m", "3", http_codec.InferRequest(id="9"), outputs, {"final": True, "left": 2, "why": "x"}
    )
    streamed = service_pb2.ModelStreamInferResponse.FromString(
        b"".join(grpc_codec.in_stream(buffers))
    )
    answer = service_pb2.ModelInferResponse.FromString(b"".join(buffers))
    assert streamed.infer_response == answer
    assert (answer.id, answer.model_name, answer.model_version) == ("9", "m", "3")
    assert answer.parameters["final"].bool_param and answer.parameters["why"].string_param == "x"
    result = client.InferResult(answer)
    for number, array in enumerate(expected):
        assert same(result.as_numpy(f"out{number}"), array)


def test_regions_and_classes_are_given_at_their_places(client):
    from tritonclient.grpc import service_pb2

    shm = http_codec.SharedMemoryRef("r", 64, 100)
    asked = http_codec.InferRequest(
        outputs=[
            http_codec.RequestedOutput("y", shm=shm),
            http_codec.RequestedOutput("s", classification=1),
            http_codec.RequestedOutput("z"),
        ]
    )
    buffers = grpc_codec.build_infer(
        "m",
        "1",
        asked,
        [
            OutputTensor("z", "INT8", (1,), np.array([4], np.int8)),
            OutputTensor("s", "FP32", (2,), np.array([1, 3], np.float32), labels=("a", "b")),
            OutputTensor("y", "FP32", (2,), None, nbytes=8),
        ],
    )
    answer = service_pb2.ModelInferResponse.FromString(b"".join(buffers))
    result = client.InferResult(answer)
    assert result.as_numpy("z").tolist() == [4]
    assert result.as_numpy("s").tolist() == [b"3.000000:1:b"]
    assert answer.outputs[0].parameters["shared_memory_byte_size"].int64_param == 8


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_a_request_or_a_refusal(data):
    try:
        read(data)
    except ProtocolError as error:
        assert error.status == 400 and error.sentence


@settings(max_examples=examples(300), deadline=None)
@given(
    raw=st.lists(st.binary(max_size=200), max_size=4),
    name=st.text(max_size=5),
    cut=st.integers(0, 40),
    more=st.binary(max_size=6),
)
def test_a_message_is_cut_as_protobuf_reads_it(raw, name, cut, more):
    message = Request(model_name=name, id="i" * 200, raw_input_contents=raw)
    message.inputs.add(name="x", shape=[1, -1])
    data = message.SerializeToString()
    data = data[: len(data) - cut] + more
    try:
        whole = Request.FromString(data)
    except Exception:
        whole = None
    try:
        rest, views = grpc_codec.split_request(data)
    except ProtocolError:
        return  # groups, which protobuf skips, are refused
    assert whole is not None
    assert [bytes(view) for view in views] == list(whole.raw_input_contents)
    del whole.raw_input_contents[:]
    assert rest == whole


@pytest.mark.parametrize(
    ("made_of", "kept"),
    [
        (["inference.proto"], "inference.binpb"),
        (["health.proto", "reflection.proto"], "services.binpb"),
    ],
)
def test_the_description_is_what_protoc_makes_of_the_proto(tmp_path, made_of, kept):
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder = Path(grpc_codec.__file__).parent
    out = tmp_path / "out.binpb"
    protoc.main(["", f"--proto_path={folder}", f"--descriptor_set_out={out}", *made_of])
    made, found = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for path in (out, folder / kept)
    )
    assert made == found, "after a change of inference.proto its first lines are to be followed"


def test_names_and_numbers_are_those_of_the_stock_client(client):
    """Every message, field and call that this server has is the client's, number for number."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = {}
    for module in (service_pb2, model_config_pb2):
        theirs |= module.DESCRIPTOR.message_types_by_name

    def fields(descriptor):
        return {
            (field.name, field.number, field.type, field.is_repeated) for field in descriptor.fields
        }

    def compare(ours, other):
        assert fields(ours) <= fields(other), ours.full_name
        for name, nested in ours.nested_types_by_name.items():
            compare(nested, other.nested_types_by_name[name])

    for name, message in grpc_codec.MESSAGES.items():
        compare(message.DESCRIPTOR, theirs[name])
    calls = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(grpc_codec.SERVICE.methods_by_name) == set(calls)
