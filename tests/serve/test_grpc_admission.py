"""What calls over gRPC may hold: nothing before the token was seen, and nothing afterwards."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import pathlib
import re

import numpy as np
import pytest
from serve import servers

pytest.importorskip("google.protobuf")
pytest.importorskip("grpc", reason="grpcio is not installed")

import grpc

from shmgpu.serve.frontend import grpc_admission
from shmgpu.serve.frontend.grpc_admission import MessageMemory
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.grpc_codec import MESSAGES
from shmgpu.serve.protocol.types import ProtocolError, RequestLimits

MIB = 1 << 20
SERVICE = "/inference.GRPCInferenceService/"
LARGE = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@pytest.fixture(scope="module", params=["open", "token"])
def server(request, tmp_path_factory):
    token = None
    if request.param == "token":
        token = tmp_path_factory.mktemp("secret") / "token"
        token.write_text("secret")
    with servers.serving(
        servers.MODELS / "simple.py",
        workers=1,
        helpers=1,
        grpc_port=0,
        arena="64MiB",
        max_body="32MiB",
        token_file=token,
    ) as running:
        running.token = token
        yield running


def memory_kib(server, what):
    """Of the worker: ``VmHWM`` is the most that it ever had."""
    pid = server.children()[-1]
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+)", text)[1])


def call(server, method, data, token="secret", **more):
    """The code and the sentence of an error, or the answer's bytes."""
    given = [("authorization", f"Bearer {token}")] if server.token is not None and token else []
    with grpc.insecure_channel(server.grpc_address, LARGE) as channel:
        try:
            return channel.unary_unary(SERVICE + method)(
                data, metadata=given, timeout=servers.DEADLINE_S, **more
            )
        except grpc.RpcError as error:
            return error.code().name, error.details()


def infer(model="scale", count=4, shape=None):
    message = MESSAGES["ModelInferRequest"](model_name=model)
    x = message.inputs.add(name="x", datatype="FP32")
    x.shape.append(shape or count)
    message.raw_input_contents.append(bytes(4 * count))
    return message.SerializeToString()


def together(server, method, data, count, **more):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(call, server, method, data, **more) for _ in range(count)]
        return [one.result() for one in asked]


def test_a_message_without_the_token_takes_no_memory(server):
    """Six of thirty megabytes, in 30 KiB each; those of open calls, which need none."""
    assert isinstance(call(server, "ModelInfer", infer()), bytes)
    before = memory_kib(server, "VmHWM")
    bomb = bytes(30 * MIB)
    methods = ["ServerLive", "ServerReady"]
    if server.token is not None:
        methods += ["ModelInfer", "ModelStreamInfer", "ModelMetadata"]
    for method in methods:
        answers = together(server, method, bomb, 6, token="", compression=grpc.Compression.Gzip)
        is_open = method.startswith("Server")
        assert all(isinstance(one, bytes) == is_open for one in answers), answers
        if not is_open:
            assert {code for code, _ in answers} == {"UNAUTHENTICATED"}
    assert memory_kib(server, "VmHWM") - before < 100 << 10


def test_the_token_opens_each_kind_of_call(server):
    if server.token is None:
        pytest.skip("this server has none")
    for method in ("ModelInfer", "ModelMetadata", "ModelStreamInfer"):
        for token in ("", "other"):
            assert call(server, method, b"", token)[0] == "UNAUTHENTICATED", method
    asked = MESSAGES["ModelMetadataRequest"](name="scale").SerializeToString()
    assert isinstance(call(server, "ModelMetadata", asked), bytes)
    assert call(server, "NoSuchMethod", b"")[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (infer("nope", 2 * MIB), "NOT_FOUND"),
        (infer("scale", 2 * MIB, shape=5), "INVALID_ARGUMENT"),
        (b"\xff" * (8 * MIB), "INVALID_ARGUMENT"),
        (infer("n" * (3 * MIB)), "INVALID_ARGUMENT"),
    ],
    ids=["unknown model", "wrong shape", "no message", "long name"],
)
def test_errors_leave_nothing_of_a_request(server, data, code):
    assert call(server, "ModelInfer", data)[0] == code
    before = memory_kib(server, "RssAnon")
    for _ in range(40):
        found, sentence = call(server, "ModelInfer", data)
        assert found == code
        assert len(sentence) < 500
    assert memory_kib(server, "RssAnon") - before < 100 << 10  # of 320 MiB


def test_long_names_are_not_repeated(server):
    long = "m" * 5000
    asked = MESSAGES["ModelMetadataRequest"](name=long).SerializeToString()
    code, sentence = call(server, "ModelMetadata", asked)
    assert (code, len(sentence) < 300) == ("NOT_FOUND", True)
    headers = {"Authorization": "Bearer secret"}
    status, _, body = server.ask("GET", f"/v2/models/{long}", **headers)
    assert (status, len(body) < 300) == (404, True)


def test_what_is_no_inference_has_small_messages(server):
    asked = MESSAGES["ModelMetadataRequest"](name="m" * MIB).SerializeToString()
    code, sentence = call(server, "ModelMetadata", asked)
    assert (code, "send less at once" in sentence) == ("RESOURCE_EXHAUSTED", True)
    assert call(server, "ModelMetadata", b"\xff\xff\xff")[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"\x3a\x00" * 10_000, 400, "fields"),  # raw contents without a byte
        (b"\x08\x01" * 10_000, 400, "fields"),  # a field that nobody knows
        (b"\x2a\x00" * 10_000, 400, "fields"),  # inputs without a name
        (b"\x2a\x80\x80\x80\x04" + bytes(8 * MIB), 413, "raw_input_contents"),
    ],
)
def test_what_protobuf_would_take_long_for_is_refused_before(monkeypatch, data, status, said):
    parsed = []
    monkeypatch.setattr(grpc_codec, "_InferRequest", parsed)
    with pytest.raises(ProtocolError, match=said) as refused:
        grpc_codec.split_request(data, RequestLimits())
    assert refused.value.status == status


def test_large_contents_that_are_raw_are_no_part_of_that():
    message, raw = grpc_codec.split_request(infer(count=3 * MIB), RequestLimits())
    assert (message.model_name, len(raw[0])) == ("scale", 12 * MIB)


# ---- the memory itself -----------------------------------------------------------------------


def running(scenario):
    asyncio.run(asyncio.wait_for(scenario(), servers.DEADLINE_S))


def test_whoever_is_beyond_waits_until_others_are_answered():
    async def scenario():
        memory = MessageMemory(100, 30)
        first = await memory.wait()
        first.arrived(150)
        assert not memory.is_free()
        second = asyncio.ensure_future(memory.wait())
        await asyncio.sleep(0)
        assert not second.done()
        first.close()
        first.close()  # as often as one likes
        (await second).arrived(10)
        assert (memory.held, memory.is_free()) == (10, True)

    running(scenario)


def test_who_waits_too_long_is_told_to_try_again():
    async def scenario():
        memory = MessageMemory(100, 0.01)
        first = await memory.wait()
        first.arrived(100)
        with pytest.raises(ProtocolError, match="no memory left") as refused:
            await memory.wait()
        assert refused.value.status == 503
        first.close()
        assert memory.held == 0

    running(scenario)


def test_only_so_many_come_at_once_and_slow_ones_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(grpc_admission, "PATIENCE_S", 0.02)

    async def scenario():
        memory = MessageMemory(100, 30)
        coming = [await memory.wait() for _ in range(grpc_admission.AT_ONCE)]
        assert not memory.is_free()
        others = [await memory.wait() for _ in range(grpc_admission.AT_ONCE)]
        assert len(coming) == len(others)
        del coming, others  # clients that left before their messages came
        gc.collect()
        assert memory.is_free()
        assert memory.held == 0

    running(scenario)


def test_a_full_server_answers_all_that_come_at_once(server):
    """Each takes an eighth of what may be held, so that some wait."""
    data = infer(count=2 * MIB)
    answers = together(server, "ModelInfer", data, 12)
    assert all(isinstance(one, bytes) or one[0] == "UNAVAILABLE" for one in answers), answers
    assert sum(isinstance(one, bytes) for one in answers) >= 2
    found = MESSAGES["ModelInferResponse"].FromString(call(server, "ModelInfer", infer()))
    assert np.frombuffer(found.raw_output_contents[0], "f4").tolist() == [0.0] * 4
