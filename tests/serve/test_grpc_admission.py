"""What calls over gRPC may hold: nothing before the token was seen, and nothing afterwards."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import pathlib
import re

import numpy as np
import pytest
from serve import servers

pytest.importorskip("google.protobuf")
pytest.importorskip("grpc", reason="grpcio is not installed")

import grpc

from shmgpu.serve.frontend import answer_memory, grpc_inference, message_memory
from shmgpu.serve.frontend.answer_memory import AnswerMemory
from shmgpu.serve.frontend.answer_pace import LARGE, AnswerPace
from shmgpu.serve.frontend.message_memory import MessageMemory
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.grpc_codec import MESSAGES
from shmgpu.serve.protocol.types import ProtocolError, RequestLimits

MIB = 1 << 20
SERVICE = "/inference.GRPCInferenceService/"
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@pytest.fixture(scope="module", params=["auto", pytest.param("grpcio", marks=pytest.mark.slow)])
def front(request):
    """What speaks HTTP/2."""
    return request.param


@pytest.fixture(scope="module", params=["open", "token"])
def server(request, front, tmp_path_factory):
    token = None
    if request.param == "token":
        token = tmp_path_factory.mktemp("secret") / "token"
        token.write_text("secret")
    with servers.serving(
        servers.MODELS / "simple.py",
        workers=1,
        helpers=1,
        grpc_port=0,
        grpc_front=front,
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


def call(server, method, data, token="secret", timeout=servers.DEADLINE_S, **more):
    """The code and the sentence of an error, or the answer's bytes."""
    given = [("authorization", f"Bearer {token}")] if server.token is not None and token else []
    with grpc.insecure_channel(server.grpc_address, OPTIONS) as channel:
        try:
            return channel.unary_unary(SERVICE + method)(
                data, metadata=given, timeout=timeout, **more
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
    """Four of thirty megabytes, in 30 KiB each; those of open calls, which need none."""
    assert isinstance(call(server, "ModelInfer", infer()), bytes)
    before = memory_kib(server, "VmHWM")
    bomb = bytes(30 * MIB)
    methods = ["ServerLive"]
    if server.token is not None:
        methods = ["ServerReady", "ModelInfer", "ModelStreamInfer"]
    for method in methods:
        answers = together(server, method, bomb, 4, token="", compression=grpc.Compression.Gzip)
        is_open = method.startswith("Server")
        assert all(isinstance(one, bytes) == is_open for one in answers), answers
        if not is_open:
            assert {code for code, _ in answers} == {"UNAUTHENTICATED"}
    assert memory_kib(server, "VmHWM") - before < 60 << 10


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
    ("made", "code"),
    [
        (lambda: infer("nope", 2 * MIB), "NOT_FOUND"),
        (lambda: infer("scale", 2 * MIB, shape=5), "INVALID_ARGUMENT"),
        (lambda: b"\xff" * (8 * MIB), "INVALID_ARGUMENT"),
        (lambda: infer("n" * (3 * MIB)), "INVALID_ARGUMENT"),
    ],
    ids=["unknown model", "wrong shape", "no message", "long name"],
)
def test_errors_leave_nothing_of_a_request(server, made, code):
    data = made()
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
    ("made", "status", "said"),
    [
        (lambda: b"\x3a\x00" * 10_000, 400, "fields"),  # raw contents without a byte
        (lambda: b"\x08\x01" * 10_000, 400, "fields"),  # a field that nobody knows
        (lambda: b"\x2a\x00" * 10_000, 400, "fields"),  # inputs without a name
        (lambda: b"\x2a\x80\x80\x80\x04" + bytes(8 * MIB), 413, "raw_input_contents"),
    ],
)
def test_what_protobuf_would_take_long_for_is_refused_before(monkeypatch, made, status, said):
    parsed = []
    monkeypatch.setattr(grpc_codec, "_InferRequest", parsed)
    with pytest.raises(ProtocolError, match=said) as refused:
        grpc_codec.split_request(made(), RequestLimits())
    assert refused.value.status == status


def test_large_contents_that_are_raw_are_no_part_of_that():
    message, raw = grpc_codec.split_request(infer(count=3 * MIB), RequestLimits())
    assert (message.model_name, len(raw[0])) == ("scale", 12 * MIB)


# ---- compressed messages ---------------------------------------------------------------------


@pytest.mark.parametrize("coding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_messages_may_come_compressed(server, coding):
    data = infer(count=2 * MIB)
    found = MESSAGES["ModelInferResponse"].FromString(
        call(server, "ModelInfer", data, compression=coding)
    )
    assert len(found.raw_output_contents[0]) == 8 * MIB
    asked = MESSAGES["ModelMetadataRequest"](name="scale" + "/" * 5000).SerializeToString()
    code, _ = call(server, "ModelMetadata", asked, compression=coding)
    assert code == "NOT_FOUND"
    assert in_stream(server, data, coding)[0] == ""


def in_stream(server, data, coding=None, count=1):
    """What a stream is told of requests: for each an error's sentence, or nothing."""
    given = [("authorization", "Bearer secret")] if server.token is not None else []
    with grpc.insecure_channel(server.grpc_address, OPTIONS) as channel:
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")(
            iter([data] * count), metadata=given, timeout=servers.DEADLINE_S, compression=coding
        )
        found = [MESSAGES["ModelStreamInferResponse"].FromString(one) for one in stream]
    return [one.error_message for one in found]


def test_compressed_messages_take_no_more_than_others_together(server):
    """Four of 33 MiB, in 33 KiB each, for a worker that takes 32 MiB at most in one."""
    before = memory_kib(server, "VmHWM")
    bomb = infer(count=33 * MIB // 4)
    for method, count in (("ModelInfer", 4), ("ModelMetadata", 1)):
        answers = together(server, method, bomb, count, compression=grpc.Compression.Gzip)
        assert {one[0] for one in answers} == {"RESOURCE_EXHAUSTED"}
        assert "decompressed too" in answers[0][1]
    assert "decompressed too" in in_stream(server, bomb, grpc.Compression.Gzip)[0]
    assert memory_kib(server, "VmHWM") - before < 100 << 10
    assert isinstance(call(server, "ModelInfer", infer()), bytes)


@pytest.mark.parametrize("data", [b"\x1f\x8bnothing", b"\x78\x9cnothing"])
def test_what_only_begins_as_if_compressed_is_refused(server, data):
    for method in ("ModelInfer", "ModelMetadata"):
        code, sentence = call(server, method, data)
        assert (code, "cannot be decompressed" in sentence) == ("INVALID_ARGUMENT", True)
    assert "cannot be decompressed" in in_stream(server, data)[0]


# ---- answers that wait to be read ------------------------------------------------------------


@pytest.fixture(scope="module")
def generous(front):
    """A server whose answers are larger than its requests; 24 MiB of them may wait."""
    with servers.serving(
        servers.MODELS / "large.py",
        workers=1,
        helpers=1,
        grpc_port=0,
        grpc_front=front,
        arena="24MiB",
        max_body="8MiB",
        max_queue=500,
    ) as running:
        running.token = None
        yield running


def ask_for(nbytes=MIB // 4, model="large"):
    message = MESSAGES["ModelInferRequest"](model_name=model)
    message.inputs.add(name="count", datatype="INT64").shape.append(1)
    message.raw_input_contents.append(nbytes.to_bytes(8, "little"))
    return message.SerializeToString()


@contextlib.contextmanager
def who_reads_nothing(server, model="large", count=200):
    """A client that asks for answers of 256 KiB, 64 at once, and reads none."""
    data = ask_for(model=model)
    with grpc.insecure_channel(server.grpc_address, OPTIONS) as channel:
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([data] * count))
        yield stream
        stream.cancel()


def asked_until(server, is_so, what, nbytes=MIB // 4, timeout=servers.DEADLINE_S):
    """An answer's bytes, or the code and the sentence of an error, that is at last as it should."""
    data = ask_for(nbytes)
    return servers.until(
        lambda: is_so(found := call(server, "ModelInfer", data, timeout=timeout)) and found, what
    )


def test_answers_that_nobody_reads_are_bounded(generous):
    """One client holds half of what may wait, two hold all: then answers wait until they leave."""
    assert isinstance(call(generous, "ModelInfer", ask_for()), bytes)
    before = memory_kib(generous, "VmHWM")

    def failed():
        return generous.statistics("large")["inference_stats"]["fail"]["count"]

    refused = failed()
    with who_reads_nothing(generous):
        servers.until(lambda: failed() > refused, "it has no room left")
        assert isinstance(call(generous, "ModelInfer", ask_for(2 * MIB)), bytes)
        with who_reads_nothing(generous):
            # The first one is still refused now and then, so refusals do not tell that all is held.
            asked_until(
                generous,
                lambda found: found[0] == "DEADLINE_EXCEEDED",
                "all is held",
                2 * MIB,
                timeout=0.3,
            )
            assert generous.ask("GET", "/v2/health/live")[0] == 200
    asked_until(generous, lambda found: isinstance(found, bytes), "they have left")
    assert memory_kib(generous, "VmHWM") - before < 100 << 10


def test_a_stream_of_parts_that_nobody_reads_ends_with_its_client(generous):
    with who_reads_nothing(generous, "large_parts", count=1):
        servers.until(
            lambda: "1" in generous.statistics("large_parts")["response_stats"], "a second part"
        )
    servers.until(lambda: generous.pending() == 0, "the stream was closed")
    asked_until(generous, lambda found: isinstance(found, bytes), "there is room")


def test_who_reads_is_answered_however_much(generous):
    for _ in range(5):
        assert set(in_stream(generous, ask_for(), count=40)) == {""}
    assert all(isinstance(one, bytes) for one in together(generous, "ModelInfer", ask_for(), 16))


def test_answers_are_counted_until_they_are_taken():
    memory = MessageMemory(100, 30)
    first = memory.answers.hold(150, "a")  # one may be larger
    with pytest.raises(ProtocolError, match="wait to be read") as refused:
        memory.answers.hold(1, "b")
    assert refused.value.status == 503
    first.close()
    first.close()
    held = [memory.answers.hold(30, "a"), memory.answers.hold(20, "a")]
    with pytest.raises(ProtocolError):  # more than half, for one connection
        memory.answers.hold(1, "a")
    held.append(memory.answers.hold(50, "b"))
    assert memory.answers.unread == 100
    for one in held:
        one.close()
    assert (memory.answers.unread, memory.held) == (0, 0)
    assert isinstance(memory.answers.hold(50, "a"), answer_memory.UnreadAnswer)


def test_answers_wait_for_room_in_order_of_arrival():
    async def scenario():
        memory = AnswerMemory(100)
        hold = functools.partial(memory.hold, may_wait=True)
        held = [hold(50, "a"), hold(45, "b")]
        waiting = [hold(20, "a"), hold(10, "c"), hold(1, "c"), hold(3, "d")]
        with pytest.raises(ProtocolError, match="wait to be read"):  # half as many may wait
            hold(17, "e")
        memory.hold(5, "e").close()  # who may not wait takes what there is
        held[0].close()
        await asyncio.sleep(0)
        turns = [one.turn.done() for one in waiting]
        assert turns == [True, False, False, False]  # one at a time
        for _ in range(4):
            await asyncio.sleep(0)
        assert all(one.turn.done() for one in waiting)
        assert (memory.unread, memory.waiting) == (79, 0)

    running(scenario)


def test_a_small_answer_does_not_overtake_a_large_one_of_another_connection():
    async def scenario():
        memory = AnswerMemory(100)
        memory.hold(90, "a")
        large = memory.hold(40, "b", may_wait=True)
        small = memory.hold(1, "c", may_wait=True)
        await asyncio.sleep(0)
        assert not small.turn.done()
        large.close()  # its client has left
        await asyncio.sleep(0)
        assert small.turn.done() and memory.unread == 91

    running(scenario)


def test_calls_begin_while_there_is_room_for_answers_like_the_last_ones():
    """Two for one connection, three for all, where ten times ``LARGE`` is all the room there is."""

    async def scenario():
        answers = AnswerMemory(10 * LARGE)
        pace = AnswerPace(answers)
        for peer in "abcd":
            assert await pace.begin(peer) == 0  # nothing is known of it
            answers.hold(2 * LARGE if peer < "d" else 10, peer, may_wait=True).close()
        assert [await pace.begin("a") for _ in range(2)] == [2 * LARGE] * 2
        calls = {one: asyncio.ensure_future(pace.begin(one[0])) for one in ("a3", "a4", "b1", "c1")}

        async def begun():
            for _ in range(3):
                await asyncio.sleep(0)
            return [name for name, call in calls.items() if call.done()]

        assert await begun() == ["b1"]
        assert await pace.begin("d") == 0  # small ones do not wait
        calls["a3"].cancel()
        unread = answers.hold(2 * LARGE, "a")
        pace.ended("a", 2 * LARGE)
        assert await begun() == ["a3", "b1", "c1"]
        unread.close()
        pace.ended("b", 2 * LARGE)
        assert await begun() == list(calls)
        for peer in "aac":
            pace.ended(peer, 2 * LARGE)
        assert (pace._begun, pace._begun_by, pace._turns) == (0, {}, {})

    running(scenario)


def test_a_message_that_grows_is_counted_as_what_it_has_become():
    async def scenario():
        memory = MessageMemory(100, 30)
        first, second = await memory.wait(), await memory.wait()
        first.arrived(10)
        first.grew(150)  # one may be larger
        second.arrived(1)
        with pytest.raises(ProtocolError, match="no memory left"):
            second.grew(20)
        assert memory.held == 151
        first.close()
        second.grew(60)
        second.close()
        assert memory.held == 0

    running(scenario)


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
    monkeypatch.setattr(message_memory, "PATIENCE_S", 0.02)

    async def scenario():
        memory = MessageMemory(100, 30)
        coming = [await memory.wait() for _ in range(message_memory.AT_ONCE)]
        assert not memory.is_free()
        others = [await memory.wait() for _ in range(message_memory.AT_ONCE)]
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


def test_an_error_that_was_told_of_keeps_no_frame_alive_nor_does_what_led_to_it():
    def fails():
        try:
            raise KeyError("one")
        except KeyError:
            raise ValueError("two")  # noqa: B904

    with pytest.raises(ValueError, match="two") as caught:
        fails()
    error = caught.value
    assert grpc_inference.told_of(error)[0] == grpc_inference.INTERNAL
    assert error.__traceback__ is None and error.__context__.__traceback__ is None
