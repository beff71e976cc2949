"""Messages over gRPC that are alike but for their tensors: each gets its own answer."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from serve import servers
from serve.test_fast_path import ALIKE, MODEL

grpc = pytest.importorskip("grpc")

from shmgpu.serve.protocol.grpc_codec import MESSAGES  # noqa: E402

CALL = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("grpc_fast_path") / "models.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def server(path):
    files = path, servers.MODELS / "simple.py"
    with servers.serving(
        *files, workers=1, helpers=1, grpc_port=0, allow_client_shm=True, allow_repository=True
    ) as running:
        yield running


@pytest.fixture
def infer(server):
    """Sends a message; the answer as one, or grpc's error."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(CALL)

        def infer(message, **options):
            data = message if isinstance(message, bytes) else message.SerializeToString()
            return MESSAGES["ModelInferResponse"].FromString(call(data, timeout=30, **options))

        infer.future = lambda message: call.future(message.SerializeToString())
        yield infer


def message(model, tensors, raw, outputs=()):
    """One with these tensors, (name, datatype, shape), and their bytes."""
    made = MESSAGES["ModelInferRequest"](model_name=model, id="7")
    for name, datatype, shape in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in outputs:
        made.outputs.add(name=name)
    made.raw_input_contents.extend(raw)
    return made


def both(a, b):
    tensors = [("a", "FP32", [1, 2]), ("b", "INT64", [1, 1])]
    raw = struct.pack("<ff", *a), struct.pack("<q", b)
    return message("both", tensors, raw, ["twice", "sum"])


def moody(first):
    return message("moody", [("x", "FP32", [2])], [struct.pack("<ff", first, 2)])


def test_each_of_many_alike_is_answered_with_its_own(infer):
    """Alone and together: those that come together may share a message to the helper."""
    wrong = []

    def run(seed):
        for number in range(100):
            b = 1000 * seed + number
            answer = infer(both((0.5, 1.5), b))
            twice, total = (bytes(one) for one in answer.raw_output_contents)
            found = (answer.id, *struct.unpack("<q", twice), *struct.unpack("<ff", total))
            names = [(one.name, list(one.shape)) for one in answer.outputs]
            if found != ("7", 2 * b, b + 0.5, b + 1.5):
                wrong.append((b, found))
            if names != [("twice", [1, 1]), ("sum", [1, 2])]:
                wrong.append((b, names))

    run(7)
    servers.at_once(run, range(6))
    assert not wrong


def test_an_error_and_a_result_of_another_shape_among_many_alike_are_told(infer):
    for round_ in range(3):
        for number in range(ALIKE):
            answer = infer(moody(number % 5))
            found = struct.unpack("<ff", answer.raw_output_contents[0])
            assert found == (number % 5, 2), round_
        with pytest.raises(grpc.RpcError, match="no number below zero"):
            infer(moody(-1))
        answer = infer(moody(7))
        assert list(answer.outputs[0].shape) == [1]
        assert answer.raw_output_contents[0] == struct.pack("<f", 7)
        with pytest.raises(grpc.RpcError, match="returned float64"):
            infer(moody(9))


def test_bytes_that_are_cut_in_other_places_are_read_again(infer):
    """As long as those before, and with equal first bytes but for the tensors' lengths."""
    known = both((0.5, 1.5), 3)
    for _ in range(ALIKE):
        infer(known)
    moved = both((0.5, 1.5), 3)
    a, b = moved.raw_input_contents
    moved.raw_input_contents[:] = [a + b[:4], b[4:]]
    assert len(moved.SerializeToString()) == len(known.SerializeToString())
    with pytest.raises(grpc.RpcError, match="Expected 8, got 12"):
        infer(moved)
    second = known.SerializeToString()
    place = second.rindex(b"\x3a\x08")  # before the second tensor: its field, its length
    for wrong in (b"\x3a\x07", b"\x42\x08"):
        with pytest.raises(grpc.RpcError):
            infer(second[:place] + wrong + second[place + 2 :])
    assert struct.unpack("<q", infer(known).raw_output_contents[0]) == (6,)


def test_tensors_in_regions_are_found_where_they_are_registered_now(server, infer):
    tensors, x = [("x", "FP32", [4])], np.arange(4, dtype="f4")
    asked = message("scale", tensors, [], ["y"])
    for tensor, name in ((asked.inputs[0], "in"), (asked.outputs[0], "out")):
        tensor.parameters["shared_memory_region"].string_param = name
        tensor.parameters["shared_memory_byte_size"].int64_param = x.nbytes
    for round_ in range(2):
        with server.region("in", x.nbytes) as given, server.region("out", x.nbytes) as taken:
            for number in range(ALIKE):
                given[:] = (x + number + 100 * round_).tobytes()
                answer = infer(asked)
                assert not any(answer.raw_output_contents)
                assert answer.outputs[0].parameters["shared_memory_region"].string_param == "out"
                found = np.frombuffer(bytes(taken), "f4")
                assert np.array_equal(found, 2 * (x + number + 100 * round_))
        with pytest.raises(grpc.RpcError, match="Unable to find shared memory region"):
            infer(asked)


def test_a_model_that_was_replaced_answers_the_next(server, path, infer):
    asked = message("in_place", [("x", "FP32", [1, 2])], [struct.pack("<ff", 1, 2)])
    for _ in range(ALIKE):
        assert struct.unpack("<ff", infer(asked).raw_output_contents[0]) == (2, 4)
    try:
        path.write_text(MODEL.replace("np.add(x, x, out=helper.out)", "x * np.float32(5)"))
        assert server.ask("POST", "/v2/repository/models/in_place/load")[0] == 200
        for _ in range(ALIKE):
            assert struct.unpack("<ff", infer(asked).raw_output_contents[0]) == (5, 10)
    finally:
        path.write_text(MODEL)
        assert server.ask("POST", "/v2/repository/models/in_place/load")[0] == 200


def test_a_client_that_leaves_is_forgotten(server, infer, tmp_path):
    """While its call waits behind another one."""
    for _ in range(ALIKE):
        infer(moody(1))
    with servers.Held(server, tmp_path / "gate"):
        servers.until(lambda: server.pending() == 1, "the helper is busy")
        left = infer.future(moody(2))
        servers.until(lambda: server.pending() == 2, "the call waits")
        left.cancel()
        servers.until(lambda: server.pending() == 1, "it is forgotten")
    servers.until(lambda: server.pending() == 0, "nothing is pending")
    assert struct.unpack("<ff", infer(moody(3)).raw_output_contents[0]) == (3, 2)
