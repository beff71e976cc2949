"""The server over gRPC, asked by the stock clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import signal
import threading

import numpy as np
import pytest
from serve import client_messages, client_shm, servers

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
grpc_services = pytest.importorskip("shmgpu.serve.frontend.grpc_services")
shm = client_shm.load()

InferenceServerException = client.InferenceServerException
NUMPY = {
    "BOOL": np.bool_,
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@pytest.fixture(scope="module", params=servers.GRPC_FRONTS)
def server(request):
    with servers.serving(
        servers.MODELS / "simple.py",
        grpc_port=0,
        grpc_front=request.param,
        allow_client_shm=True,
        allow_repository=True,
        max_body="8MiB",
    ) as running:
        yield running


@pytest.fixture
def triton(server):
    with contextlib.closing(client.InferenceServerClient(server.grpc_address)) as made:
        yield made


def tensor(name, array, datatype=None):
    made = client.InferInput(name, array.shape, datatype or client.np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def ab(rows=3):
    a = np.arange(4 * rows, dtype="float32").reshape(rows, 4)
    return a, 10 * a


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return f"{caught.value.status()} {caught.value.message()}"


def test_tensors_travel_there_and_back(triton):
    a, b = ab()
    wanted = [client.InferRequestedOutput(name) for name in ("difference", "sum")]
    result = triton.infer(
        "add_sub", [tensor("b", b), tensor("a", a)], outputs=wanted, request_id="r1"
    )
    assert np.array_equal(result.as_numpy("sum"), a + b)
    assert np.array_equal(result.as_numpy("difference"), a - b)
    answer = result.get_response()
    assert (answer.id, answer.model_name, answer.model_version) == ("r1", "add_sub", "1")
    assert [one.name for one in answer.outputs] == ["difference", "sum"]


@pytest.mark.parametrize("datatype", NUMPY)
def test_every_datatype_is_echoed(triton, datatype):
    dtype = np.dtype(NUMPY[datatype])
    x = np.array([0, 1, 1], dtype) if datatype == "BOOL" else np.arange(3).astype(dtype)
    result = triton.infer(f"echo_{datatype.lower()}", [tensor("x", x, datatype)])
    found = result.as_numpy(result.get_response().outputs[0].name)
    assert found.dtype == x.dtype and np.array_equal(found, x)


def test_text_is_carried(triton):
    words = np.array([b"one", "zwölf".encode()], dtype=object)
    result = triton.infer("upper", [tensor("text", words)])
    assert result.as_numpy("upper").tolist() == [word.upper() for word in words]


def test_a_large_tensor_is_carried_and_a_larger_one_refused(triton):
    x = np.arange(1 << 20, dtype=np.float32)
    assert np.array_equal(triton.infer("scale", [tensor("x", x)]).as_numpy("y"), x * 2)
    x = np.zeros(3 << 20, np.float32)
    assert refused(triton.infer, "scale", [tensor("x", x)]).startswith(
        "StatusCode.RESOURCE_EXHAUSTED"
    )


def test_health_metadata_and_configuration(triton):
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("scale") and triton.is_model_ready("scale", "1")
    assert not triton.is_model_ready("scale", "7") and not triton.is_model_ready("none")
    said = triton.get_server_metadata()
    assert said.name == "shmgpu" and "system_shared_memory" in said.extensions
    model = triton.get_model_metadata("add_sub")
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [
        ("a", "FP32", [-1, 4]),
        ("b", "FP32", [-1, 4]),
    ]
    assert list(model.versions) == ["1"]
    config = triton.get_model_config("add_sub").config
    assert (config.name, config.max_batch_size) == ("add_sub", 8)
    assert config.input[0].data_type == 11 and list(config.input[0].dims) == [4]
    assert "none" in refused(triton.get_model_metadata, "none")


def test_statistics_are_those_of_http(server, triton):
    before = triton.get_inference_statistics("scale").model_stats[0]
    x = np.ones(2, np.float32)
    for _ in range(3):
        triton.infer("scale", [tensor("x", x)])

    def counted():
        after = triton.get_inference_statistics("scale").model_stats[0]
        return after if after.inference_count == before.inference_count + 3 else None

    after = servers.until(counted, "three more inferences are counted")
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert server.statistics("scale")["inference_count"] == after.inference_count


@pytest.mark.parametrize(
    ("model", "inputs", "code", "word"),
    [
        ("none", [("x", np.ones(1, np.float32))], "NOT_FOUND", "none"),
        ("scale", [("z", np.ones(1, np.float32))], "INVALID_ARGUMENT", "unexpected input 'z'"),
        ("scale", [("x", np.ones(1, np.float64))], "INVALID_ARGUMENT", "takes FP32"),
        ("scale", [("x", np.ones((1, 1), np.float32))], "INVALID_ARGUMENT", "shape"),
        ("fails", [("x", np.ones(1, np.float32))], "INTERNAL", "are not liked"),
    ],
)
def test_errors_have_a_code_and_a_sentence(triton, model, inputs, code, word):
    given = [tensor(name, array) for name, array in inputs]
    said = refused(triton.infer, model, given)
    assert said.startswith(f"StatusCode.{code}") and word in said


def test_probes_are_told_whether_the_server_serves(server):
    """As an orchestrator's, which have no description: field 1 of the answer is 1."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=servers.DEADLINE_S) == b"\x08\x01"
        assert check(b"\x0a\x03any", timeout=servers.DEADLINE_S) == b"\x08\x01"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_tools_without_a_description_are_told_it(server, version):
    """As grpcurl does: which services there are, then the file that one is in."""
    described = grpc_services.Descriptions()
    request = described.message("grpc.reflection.v1.ServerReflectionRequest")
    response = described.message("grpc.reflection.v1.ServerReflectionResponse")
    service = "inference.GRPCInferenceService"
    questions = [
        request(list_services=""),
        request(file_containing_symbol=service),
        request(file_containing_symbol="grpc.health.v1.HealthCheckResponse.ServingStatus"),
        request(file_by_filename="inference.proto"),
        request(file_by_filename="nothing.proto"),
        request(all_extension_numbers_of_type="x"),
        request(),
    ]
    with grpc.insecure_channel(server.grpc_address) as channel:
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        )
        sent = iter([one.SerializeToString() for one in questions])
        told = [response.FromString(one) for one in ask(sent, timeout=servers.DEADLINE_S)]
        with pytest.raises(grpc.RpcError, match="not a ServerReflectionRequest"):
            list(ask(iter([b"\xff"]), timeout=servers.DEADLINE_S))
        with pytest.raises(grpc.RpcError, match="send less at once"):
            list(ask(iter([b"\x0a" + bytes(300_000)]), timeout=servers.DEADLINE_S))
    assert [one.original_request for one in told] == questions
    services, by_symbol, by_enum, by_name, *failed = told
    assert service in [one.name for one in services.list_services_response.service]
    assert by_symbol.file_descriptor_response == by_name.file_descriptor_response
    found = [
        descriptor_pb2.FileDescriptorProto.FromString(
            one.file_descriptor_response.file_descriptor_proto[0]
        )
        for one in (by_symbol, by_enum)
    ]
    methods = {one.name for one in found[0].service[0].method}
    assert {"ModelInfer", "ModelStreamInfer"} < methods and found[1].package == "grpc.health.v1"
    assert [one.error_response.error_code for one in failed] == [5, 5, 5]


def test_bytes_that_are_no_message_are_refused(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff" * 20, timeout=servers.DEADLINE_S)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_heads_have_a_limit(triton):
    x = [tensor("x", np.ones(1, np.float32))]
    assert triton.infer("scale", x, headers={"note": "n" * 30_000})
    said = refused(triton.infer, "scale", x, headers={"note": "n" * 40_000, "more": "n" * 40_000})
    assert said.startswith("StatusCode.RESOURCE_EXHAUSTED")
    assert triton.infer("scale", x)
    # One field that is longer than HPACK's decoder may take ends the connection, too.
    said = refused(triton.infer, "scale", x, headers={"note": "n" * 70_000})
    assert said.startswith(("StatusCode.RESOURCE_EXHAUSTED", "StatusCode.UNAVAILABLE"))


def test_after_a_thousand_broken_messages_a_good_one_is_answered(server, triton):
    chance = random.Random(7)
    x = np.arange(64, dtype=np.float32)
    good = client_messages.built([tensor("x", x)], model_name="scale")
    refusals = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for number in range(1000):
            data = bytearray(good)
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            data = bytes(data[: chance.randint(1, len(data))])
            if number % 10 == 0:
                given_up = stream(iter([data] * 3))
                given_up.cancel()
                continue
            try:
                call(data, timeout=servers.DEADLINE_S)
            except grpc.RpcError as error:
                assert error.code() in refusals, (error.code(), error.details(), data)
    assert np.array_equal(triton.infer("scale", [tensor("x", x)]).as_numpy("y"), x * 2)


def test_a_client_that_gives_up_takes_its_queued_request_along(server, triton, tmp_path):
    gate = tmp_path / "gate"
    asked = [tensor("path", np.array([str(gate).encode()], dtype=object))]

    def figures():
        return json.loads(server.ask("GET", "/v2/models/held/stats")[2])["model_stats"][0]

    # What tests before this one gave up may still be under way, and would be counted below.
    servers.until(lambda: figures()["pending"] == 0, "nobody is there")
    before = figures()["execution_count"]
    waiting = [
        triton.async_infer("held", asked, lambda result, error: None)
        for _ in range(2)  # both helpers are busy
    ]
    servers.until(lambda: figures()["pending"] == 2, "those two are there")
    # Each has come before it leaves: one that came later would find a free helper, and run.
    given_up = triton.async_infer("held", asked, lambda result, error: None)
    servers.until(lambda: figures()["pending"] == 3, "it waits behind them")
    given_up.cancel()
    servers.until(lambda: figures()["pending"] == 2, "it has left")
    said: queue.Queue = queue.Queue()
    late = triton.async_infer(
        "held", asked, lambda result, error: said.put(str(error)), client_timeout=2
    )
    servers.until(lambda: figures()["pending"] == 3, "so does one that waits for two seconds")
    assert "Deadline" in said.get(timeout=servers.DEADLINE_S)
    servers.until(lambda: figures()["pending"] == 2, "it has left too")
    gate.touch()
    servers.until(lambda: figures()["execution_count"] == before + 2, "those two have run")
    del waiting, late
    triton.infer("held", asked)
    assert figures()["execution_count"] == before + 3


def test_a_stream_answers_in_order_and_goes_on_after_an_error(triton):
    answers: queue.Queue = queue.Queue()
    triton.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(20):
        x = np.full(4, number, np.float32)
        model = "fails" if number == 7 else "scale"
        triton.async_stream_infer(model, [tensor("x", x)], request_id=str(number))
    for number in range(20):
        result, error = answers.get(timeout=servers.DEADLINE_S)
        if number == 7:
            assert "are not liked" in error.message()
            continue
        assert error is None, (number, error)
        answer = result.get_response()
        assert answer.id == str(number)
        assert answer.parameters["triton_final_response"].bool_param
        assert np.array_equal(result.as_numpy("y"), np.full(4, 2 * number, np.float32))
    triton.stop_stream()


def test_many_clients_at_once_get_their_own_answers(server):
    def ask(number, wrong):
        with contextlib.closing(client.InferenceServerClient(server.grpc_address)) as own:
            for turn in range(20):
                x = np.full(100, number * 100 + turn, np.float32)
                found = own.infer("scale", [tensor("x", x)]).as_numpy("y")
                if not np.array_equal(found, 2 * x):
                    wrong.append(number)

    wrong: list[int] = []
    threads = [threading.Thread(target=ask, args=(number, wrong)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(servers.DEADLINE_S)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_the_asyncio_client_is_answered(server):
    aio = pytest.importorskip("tritonclient.grpc.aio")

    async def ask():
        async with aio.InferenceServerClient(server.grpc_address) as own:
            a, b = ab()
            return await asyncio.gather(
                *(own.infer("add_sub", [tensor("a", a), tensor("b", b)]) for _ in range(16))
            )

    a, b = ab()
    for result in asyncio.run(ask()):
        assert np.array_equal(result.as_numpy("sum"), a + b)


def test_models_come_and_go(triton):
    index = {one.name: one.state for one in triton.get_model_repository_index().models}
    assert index["scale"] == "READY"
    assert "INVALID_ARGUMENT" in refused(triton.load_model, "none")
    triton.load_model("scale")
    assert triton.is_model_ready("scale")
    x = np.ones(2, np.float32)
    assert triton.infer("scale", [tensor("x", x)]).as_numpy("y").tolist() == [2, 2]


def test_clients_regions_are_those_of_http(server, triton):
    key = f"/grpc-{os.getpid()}"
    handle = shm.create_shared_memory_region("both", key, 256)
    try:
        a, b = ab(1)
        shm.set_shared_memory_region(handle, [a, b])
        triton.register_system_shared_memory("both", key, 256)
        assert b'"both"' in server.ask("GET", "/v2/systemsharedmemory/status")[2]
        region = triton.get_system_shared_memory_status("both").regions["both"]
        assert (region.key, region.offset, region.byte_size) == (key, 0, 256)
        assert "ALREADY_EXISTS" in refused(triton.register_system_shared_memory, "both", key, 256)
        inputs = []
        for name, offset in (("a", 0), ("b", 16)):
            placed = client.InferInput(name, [1, 4], "FP32")
            placed.set_shared_memory("both", 16, offset=offset)
            inputs.append(placed)
        output = client.InferRequestedOutput("sum")
        output.set_shared_memory("both", 16, offset=64)
        rest = client.InferRequestedOutput("difference")
        result = triton.infer("add_sub", inputs, outputs=[output, rest])
        found = shm.get_contents_as_numpy(handle, np.float32, [1, 4], 64)
        assert np.array_equal(found, a + b)
        assert np.array_equal(result.as_numpy("difference"), a - b)
        assert result.get_output("sum").parameters["shared_memory_byte_size"].int64_param == 16
        triton.unregister_system_shared_memory("both")
        assert not triton.get_system_shared_memory_status().regions
        assert "Unable to find" in refused(triton.infer, "add_sub", inputs)
        assert "NOT_FOUND" in refused(triton.get_system_shared_memory_status, "both")
    finally:
        triton.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(handle)


def test_device_memory_is_not_served_and_clearing_it_is_no_error(triton):
    triton.unregister_cuda_shared_memory()
    assert not triton.get_cuda_shared_memory_status().regions
    assert "UNIMPLEMENTED" in refused(triton.register_cuda_shared_memory, "x", b"aGFuZGxl", 0, 64)


def test_a_worker_that_died_is_replaced_at_the_same_port(server, triton):
    workers = server.children()[2:]
    os.kill(workers[0], signal.SIGKILL)
    servers.until(
        lambda: workers[0] not in server.children() and len(server.children()) == 4,
        "the worker is replaced",
    )
    x = np.ones(2, np.float32)

    def answered():
        with contextlib.closing(client.InferenceServerClient(server.grpc_address)) as own:
            try:
                return own.infer("scale", [tensor("x", x)]).as_numpy("y").tolist() == [2, 2]
            except InferenceServerException:
                return False  # it had not begun to listen

    for _ in range(6):  # connections of either worker
        servers.until(answered, "a new connection is answered")


def test_the_port_of_another_server_is_refused(server):
    port = server.grpc_address.rpartition(":")[2]
    with pytest.raises(AssertionError, match="choose another --grpc-port"):
        with servers.serving(servers.MODELS / "simple.py", grpc_port=port):
            pass


def test_answers_that_are_out_are_given_before_the_end():
    with servers.serving(servers.MODELS / "simple.py", grpc_port=0) as running:
        answers: queue.Queue = queue.Queue()
        with contextlib.closing(client.InferenceServerClient(running.grpc_address)) as own:
            own.async_infer(
                "sleep",
                [tensor("seconds", np.array([1.0]))],
                lambda result, error: answers.put((result, error)),
            )

            # Answered after it on the same connection, to another model: it has been received.
            x = tensor("x", np.ones(1, np.float32))
            own.infer("scale", [x])
            running.process.send_signal(signal.SIGTERM)
            result, error = answers.get(timeout=servers.DEADLINE_S)
            assert error is None and result.as_numpy("pid").shape == (1,)
            running.process.wait(servers.DEADLINE_S)
