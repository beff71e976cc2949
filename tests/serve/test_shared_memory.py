"""Clients' own shared memory, with the stock clients and their utilities."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading

import numpy as np
import pytest
from serve import client_shm, servers

from shmgpu.serve.state import regions

http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

shm = client_shm.load()
tools = pytest.importorskip("tritonclient.utils")
InferenceServerException = tools.InferenceServerException

MODELS = servers.MODELS / "regions.py"


@pytest.fixture(scope="module")
def server(gate):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TESTS_SHUT", str(gate))
        with servers.serving(MODELS, allow_client_shm=True, max_client_regions=4) as running:
            yield running


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """While this file is there the model ``slow`` goes on."""
    return tmp_path_factory.mktemp("slow") / "shut"


@contextlib.contextmanager
def shut(gate):
    gate.touch()
    try:
        yield
    finally:
        gate.unlink()


@pytest.fixture
def triton(server):
    with contextlib.closing(http.InferenceServerClient(server.address)) as made:
        yield made
        made.unregister_system_shared_memory()


@pytest.fixture
def region():
    """Makes shared memory: ``region("name", nbytes)``; gone at the end."""
    made = []

    def make(name, nbytes):
        key = f"/{name}-{os.getpid()}"
        handle = shm.create_shared_memory_region(name, key, nbytes)
        made.append(handle)
        return handle, key

    yield make
    for handle in made:
        with contextlib.suppress(Exception):
            shm.destroy_shared_memory_region(handle)


def placed(name, shape, datatype, where, nbytes, offset=0):
    tensor = http.InferInput(name, shape, datatype)
    tensor.set_shared_memory(where, nbytes, offset=offset)
    return tensor


def wanted(name, where, nbytes, offset=0):
    output = http.InferRequestedOutput(name)
    output.set_shared_memory(where, nbytes, offset=offset)
    return output


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return f"{caught.value.status()} {caught.value.message()}"


def holders(server, key, how) -> list[int]:
    """Processes of the server that have the file mapped (``maps``) or open (``fd``)."""
    path = f"/dev/shm{key}"
    found = []
    for pid in server.children():
        with contextlib.suppress(FileNotFoundError):
            if how == "maps":
                held = path in pathlib.Path(f"/proc/{pid}/maps").read_text()
            else:
                opened = pathlib.Path(f"/proc/{pid}/fd").iterdir()
                held = any(os.path.realpath(one).startswith(path) for one in opened)
            if held:
                found.append(pid)
    return found


def test_inputs_and_outputs_lie_in_regions(triton, region):
    a = np.arange(8, dtype=np.float32).reshape(2, 4)
    b = np.full((2, 4), 3, np.float32)
    handle, key = region("both", 4096)
    shm.set_shared_memory_region(handle, [a, b])
    triton.register_system_shared_memory("both", key, 4096)
    inputs = [
        placed("a", [2, 4], "FP32", "both", 32),
        placed("b", [2, 4], "FP32", "both", 32, offset=32),
    ]
    outputs = [wanted("sum", "both", 32, 64), wanted("difference", "both", 512, 1024)]
    result = triton.infer("add_sub", inputs, outputs=outputs)
    for name, offset, expected in (("sum", 64, a + b), ("difference", 1024, a - b)):
        shown = result.get_output(name)
        # No parameters, as Triton: its client in C++ fails on those that name no binary data.
        assert shown == {"name": name, "datatype": "FP32", "shape": [2, 4]}
        found = shm.get_contents_as_numpy(handle, np.float32, [2, 4], offset)
        assert np.array_equal(found, expected)
    assert np.array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 4]), a)


def test_an_output_is_made_in_its_place_once_its_shape_is_known(triton, region):
    x = np.arange(4, dtype=np.float32)
    handles = {}
    for name in ("in", "out"):
        handles[name], key = region(name, 64)
        triton.register_system_shared_memory(name, key, 64)
    shm.set_shared_memory_region(handles["in"], [x])

    def ask(where, nbytes=16, offset=0, name="in", rows=4):
        inputs = [placed("x", [rows], "FP32", name, 4 * rows)]
        outputs = [wanted("y", where, nbytes, offset)]
        result = triton.infer("told", inputs, outputs=outputs).get_output("y")
        assert result["shape"] == [rows]
        assert "parameters" not in result and "data" not in result
        found = shm.get_contents_as_numpy(handles[where], np.float32, [rows], offset)
        return (found - x[:rows]).tolist()

    assert ask("out") == [1] * 4
    servers.until(lambda: ask("out", offset=16) == [2] * 4, "a helper has seen it before")
    servers.until(lambda: ask("out", nbytes=48) == [2] * 4, "there may be more room")
    assert ask("out", rows=3) == [1] * 3  # others are others
    assert "400 an output has 16 bytes, and its part" in refused(ask, "out", nbytes=8)
    shifted = [ask("in", offset=4)[0] for _ in range(4)]  # it lies over the input
    assert all(one == 1 for one in shifted), shifted


def test_regions_and_the_body_can_be_mixed(triton, region):
    handle, key = region("mixed", 64)
    triton.register_system_shared_memory("mixed", key, 64)
    outputs = [wanted("sum", "mixed", 16, 16), http.InferRequestedOutput("difference")]
    for number in range(4):  # the same header each time, and other bytes
        a = np.full((1, 4), number, np.float32)
        b = np.full((1, 4), 2, np.float32)
        shm.set_shared_memory_region(handle, [a])
        inline = http.InferInput("b", [1, 4], "FP32").set_data_from_numpy(b)
        inputs = [inline, placed("a", [1, 4], "FP32", "mixed", 16)]
        result = triton.infer("add_sub", inputs, outputs=outputs)
        assert np.array_equal(result.as_numpy("difference"), a - b)
        assert np.array_equal(shm.get_contents_as_numpy(handle, np.float32, [1, 4], 16), a + b)


def test_a_name_means_the_region_that_has_it_now(triton, region):
    x = placed("x", [4], "FP32", "moving", 16)
    for number in range(3):
        handle, key = region(f"moving{number}", 64)
        shm.set_shared_memory_region(handle, [np.full(4, number, np.float32)])
        triton.register_system_shared_memory("moving", key, 64)
        for _ in range(2):
            result = triton.infer("add_in_place", [x])
            assert result.as_numpy("y").tolist() == [number + 1] * 4
        triton.unregister_system_shared_memory("moving")


def test_what_the_client_writes_between_requests_is_seen(triton, region):
    handle, key = region("again", 16)
    triton.register_system_shared_memory("again", key, 16)
    for number in range(4):
        x = np.full(4, number, np.float32)
        shm.set_shared_memory_region(handle, [x])
        result = triton.infer("add_in_place", [placed("x", [4], "FP32", "again", 16)])
        assert np.array_equal(result.as_numpy("y"), x + 1)
        assert np.array_equal(shm.get_contents_as_numpy(handle, np.float32, [4]), x), (
            "a model that writes to its input wrote to the client's memory"
        )


def test_a_numpy_model_cannot_write_to_a_region_that_is_an_input(triton, region):
    handle, key = region("kept", 16)
    shm.set_shared_memory_region(handle, [np.zeros(4, np.float32)])
    triton.register_system_shared_memory("kept", key, 16)
    sentence = refused(triton.infer, "write_to_input", [placed("x", [4], "FP32", "kept", 16)])
    assert sentence.startswith("500") and "read-only" in sentence
    assert not shm.get_contents_as_numpy(handle, np.float32, [4]).any()


def test_text_and_bf16_lie_in_regions_too(triton, region):
    words = np.array([b"one", b"two!"], dtype=object)
    data = tools.serialize_byte_tensor(words).item()
    handle, key = region("words", 256)
    shm.set_shared_memory_region(handle, [np.frombuffer(data, np.uint8)])
    triton.register_system_shared_memory("words", key, 256)
    triton.infer(
        "upper",
        [placed("text", [2], "BYTES", "words", len(data))],
        outputs=[wanted("upper", "words", 64, 128)],
    )
    found = shm.get_contents_as_numpy(handle, np.object_, [2], 128)
    assert found.tolist() == [b"ONE", b"TWO!"]
    bits = np.array([0x3F80, -16256], np.int16)
    shm.set_shared_memory_region(handle, [bits])
    triton.infer(
        "brain", [placed("x", [2], "BF16", "words", 4)], outputs=[wanted("y", "words", 4, 32)]
    )
    assert np.array_equal(shm.get_contents_as_numpy(handle, np.int16, [2], 32), bits)


def test_regions_are_one_state_whichever_worker_answers(server, region):
    _, key = region("seen", 4096)
    body = {"key": key, "byte_size": 4000, "offset": 96}

    def ask(method, path, said=None):
        return server.ask(method, f"/v2/systemsharedmemory{path}", json.dumps(said or {}).encode())

    assert ask("POST", "/region/seen/register", body)[0] == 200
    shown = {"name": "seen", "key": key, "offset": 96, "byte_size": 4000}
    for _ in range(8):  # each on a connection of its own: to any worker
        assert json.loads(ask("GET", "/status")[2]) == [shown]
        assert json.loads(ask("GET", "/region/seen/status")[2]) == [shown]
    status, _, answer = ask("POST", "/region/seen/register", body)
    assert status == 400 and "already in manager" in json.loads(answer)["error"]
    assert ask("POST", "/region/seen/unregister")[0] == 200
    for _ in range(8):
        assert json.loads(ask("GET", "/status")[2]) == []
        assert ask("GET", "/region/seen/status")[0] == 404
    assert ask("POST", "/region/seen/unregister")[0] == 200


def test_a_fifo_is_refused_and_no_worker_waits_for_its_writer(triton, server):
    path = pathlib.Path(f"/dev/shm/fifo-{os.getpid()}")
    os.mkfifo(path)
    try:
        said = refused(triton.register_system_shared_memory, "fifo", f"/{path.name}", 16)
        assert said.startswith("400") and "another kind of file" in said
    finally:
        path.unlink()
    for _ in range(8):  # each on a connection of its own: to any worker
        assert server.is_ready()


def test_a_link_is_not_followed(triton):
    path = pathlib.Path(f"/dev/shm/link-{os.getpid()}")
    path.symlink_to("/etc/passwd")
    try:
        said = refused(triton.register_system_shared_memory, "link", f"/{path.name}", 16)
        assert said.startswith("400 there is no shared memory")
    finally:
        path.unlink()


def test_the_offset_of_the_region_counts(triton, region):
    handle, key = region("shifted", 8192)
    x = np.arange(4, dtype=np.float32)
    shm.set_shared_memory_region(handle, [x], offset=5000)
    triton.register_system_shared_memory("shifted", key, 3000, offset=4900)
    triton.infer(
        "slow",
        [placed("x", [4], "FP32", "shifted", 16, offset=100)],
        outputs=[wanted("y", "shifted", 16, 200)],
    )
    assert np.array_equal(shm.get_contents_as_numpy(handle, np.float32, [4], 5100), x * 2)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"byte_size": 64}, "'key' is not a name"),
        ({"key": "/../etc/passwd", "byte_size": 64}, "'key' is not a name"),
        ({"key": "..", "byte_size": 64}, "'key' is not a name"),
        ({"key": "", "byte_size": 64}, "'key' is not a name"),
        ({"key": "/shmgpu-x", "byte_size": 64}, "reserved name"),
        ({"key": "sem.x", "byte_size": 64}, "reserved name"),
        ({"key": "/triton_python_backend_shm_region_1", "byte_size": 64}, "reserved name"),
        ({"key": "/is-not-there", "byte_size": 64}, "there is no shared memory"),
        ({"key": "KEY", "byte_size": 0}, "'byte_size' is 0"),
        ({"key": "KEY", "byte_size": -1}, "whole number"),
        ({"key": "KEY", "byte_size": "64"}, "whole number"),
        ({"key": "KEY", "byte_size": 64, "offset": 1}, "has 64"),
        ({"key": "KEY", "byte_size": 65}, "has 64"),
        ({"key": "KEY", "byte_size": 1 << 61, "offset": 1 << 61}, "has 64"),
    ],
)
def test_what_cannot_be_registered_is_refused(server, region, said, word):
    _, key = region("plain", 64)
    said = {**said, "key": key if said.get("key") == "KEY" else said.get("key")}
    status, _, answer = server.ask(
        "POST", "/v2/systemsharedmemory/region/x/register", json.dumps(said).encode()
    )
    assert status == 400
    assert word in json.loads(answer)["error"]


def test_there_may_be_so_many_regions(triton, region):
    _, key = region("many", 64)
    for number in range(4):
        triton.register_system_shared_memory(f"many{number}", key, 64)
    assert "this server takes 4" in refused(triton.register_system_shared_memory, "many4", key, 64)


def test_a_regions_name_has_a_bound(triton, region):
    _, key = region("named", 64)
    triton.register_system_shared_memory("n" * 1024, key, 64)
    said = refused(triton.register_system_shared_memory, "n" * 1025, key, 64)
    assert said.startswith("400 the region's name has 1025 characters")


def test_places_outside_a_region_are_refused(triton, region):
    _, key = region("small", 64)
    triton.register_system_shared_memory("small", key, 32)
    ask = triton.infer
    x = placed("x", [4], "FP32", "small", 16, offset=17)
    assert refused(ask, "slow", [x]).startswith(
        "400 Invalid offset for shared memory region: input 'x' has 16 bytes from 17 on"
    )
    x = placed("x", [4], "FP32", "other", 16)
    assert refused(ask, "slow", [x]).startswith("404 Unable to find shared memory region: 'other'")
    x = placed("x", [4], "FP32", "small", 12)
    assert "byte size mismatch" in refused(ask, "slow", [x])
    x = placed("x", [4], "FP32", "small", 16)
    out = [wanted("y", "small", 16, 32)]
    assert refused(ask, "slow", [x], outputs=out).startswith(
        "400 Invalid offset for shared memory region: output 'y' has 16 bytes"
    )
    out = [wanted("y", "small", 15, 0)]
    assert "has 15: give it a larger one" in refused(ask, "slow", [x], outputs=out)


def test_bytes_that_are_no_such_tensor_are_refused(triton, region):
    handle, key = region("wrong", 64)
    shm.set_shared_memory_region(handle, [np.full(64, 7, np.uint8)])
    triton.register_system_shared_memory("wrong", key, 64)
    assert refused(triton.infer, "flags", [placed("x", [4], "BOOL", "wrong", 4)]).startswith(
        "400 the input in shared memory region 'wrong' has a byte that is neither"
    )
    assert refused(triton.infer, "upper", [placed("text", [1], "BYTES", "wrong", 16)]).startswith(
        "400"
    )


def test_a_region_outlives_its_name(triton, region):
    handle, key = region("unnamed", 64)
    x = np.ones(4, np.float32)
    shm.set_shared_memory_region(handle, [x])
    triton.register_system_shared_memory("unnamed", key, 64)
    os.unlink(f"/dev/shm{key}")
    result = triton.infer("add_in_place", [placed("x", [4], "FP32", "unnamed", 16)])
    assert np.array_equal(result.as_numpy("y"), x + 1)


def test_a_region_is_found_by_name_when_its_worker_is_gone_and_is_no_other_file(region):
    _, key = region("named", 64)
    path = f"/dev/shm{key}"
    status = os.stat(path)
    entry = {
        "name": "named",
        "key": key[1:],
        "identity": regions.identity(status),
        "pid": 0,
        "descriptor": 0,
    }
    descriptor = regions.open_region(entry, os.O_RDONLY)
    assert os.fstat(descriptor).st_ino == status.st_ino
    os.close(descriptor)
    os.rename(path, f"{path}-moved")
    try:
        pathlib.Path(path).write_bytes(bytes(64))
        with pytest.raises(regions.RegionLost, match="unregister it, and register it again"):
            regions.open_region(entry, os.O_RDONLY)
    finally:
        os.replace(f"{path}-moved", path)


def test_a_file_that_has_shrunk_is_refused(triton, region):
    _, key = region("shrunk", 8192)
    triton.register_system_shared_memory("shrunk", key, 8192)
    x = placed("x", [4], "FP32", "shrunk", 16, offset=8000)
    triton.infer("add_in_place", [x])
    os.truncate(f"/dev/shm{key}", 4096)
    assert "has become smaller" in refused(triton.infer, "add_in_place", [x])


def test_unregistering_while_a_request_runs_is_safe(server, triton, region, gate):
    handle, key = region("busy", 64)
    x = np.ones(4, np.float32)
    shm.set_shared_memory_region(handle, [x])
    triton.register_system_shared_memory("busy", key, 64)
    before = server.children()
    answers = []

    x_there = placed("x", [4], "FP32", "busy", 16)
    y_there = wanted("y", "busy", 16, 16)
    body, _ = http.InferenceServerClient.generate_request_body([x_there], outputs=[y_there])

    def ask():
        answers.append(server.ask("POST", "/v2/models/slow/infer", body))

    asking = threading.Thread(target=ask)
    with shut(gate):
        asking.start()
        servers.until(gate.read_text, "it runs")
        assert holders(server, key, "maps")
        triton.unregister_system_shared_memory("busy")
    asking.join(servers.DEADLINE_S)
    assert answers[0][0] == 200, answers
    assert np.array_equal(shm.get_contents_as_numpy(handle, np.float32, [4], 16), x * 2)
    assert server.children() == before
    assert refused(triton.infer, "slow", [placed("x", [4], "FP32", "busy", 16)]).startswith(
        "404 Unable to find shared memory region: 'busy'"
    )


def test_a_file_that_shrinks_while_it_is_read_costs_that_request_and_its_helper(
    server, triton, region, gate
):
    _, key = region("cut", 8192)
    triton.register_system_shared_memory("cut", key, 8192)
    x = placed("x", [4], "FP32", "cut", 16, offset=8000)
    body, _ = http.InferenceServerClient.generate_request_body([x])
    before = server.children()
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(server.ask("POST", "/v2/models/slow/infer", body))
    )
    with shut(gate):
        asking.start()
        servers.until(gate.read_text, "it runs")
        assert holders(server, key, "maps")
        os.truncate(f"/dev/shm{key}", 4096)
    asking.join(servers.DEADLINE_S)
    assert answers[0][0] == 503, answers
    servers.until(
        lambda: len(server.children()) == len(before) and server.children() != before,
        "the helper is replaced",
    )
    inline = http.InferInput("x", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
    assert triton.infer("add_in_place", [inline]).as_numpy("y").tolist() == [2]


def test_nothing_is_held_after_a_region_was_unregistered(server, triton, region):
    handle, key = region("let-go", 64)
    shm.set_shared_memory_region(handle, [np.ones(4, np.float32)])

    # Each on a connection of its own: to one worker or the other.
    place = "/v2/systemsharedmemory/region"
    said = json.dumps({"key": key, "byte_size": 64}).encode()
    for number in range(4):
        assert server.ask("POST", f"{place}/let-go{number}/register", said)[0] == 200
    x = placed("x", [4], "FP32", "let-go1", 16)
    triton.infer("add_in_place", [x])
    assert holders(server, key, "maps") and holders(server, key, "fd")
    assert server.ask("POST", "/v2/systemsharedmemory/unregister")[0] == 200

    inline = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    body = json.dumps({"inputs": [inline]}).encode()

    def ask():
        assert server.ask("POST", "/v2/models/add_in_place/infer", body)[0] == 200

    def let_go():
        """Several at once: one alone could go to the same helper each time."""
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return not holders(server, key, "maps") and not holders(server, key, "fd")

    servers.until(let_go, "workers and helpers let go of the region as they go on")


def test_device_memory_is_not_served_and_clearing_it_is_no_error(triton, server):
    triton.unregister_cuda_shared_memory()
    triton.unregister_cuda_shared_memory("none")
    assert triton.get_cuda_shared_memory_status() == []
    assert refused(triton.register_cuda_shared_memory, "x", b"aGFuZGxl", 0, 64).startswith("501")


def test_it_is_off_unless_allowed(region):
    _, key = region("off", 64)
    with servers.serving(MODELS) as running:
        with contextlib.closing(http.InferenceServerClient(running.address)) as triton:
            triton.unregister_system_shared_memory()
            assert triton.get_system_shared_memory_status() == []
            answer = refused(triton.register_system_shared_memory, "off", key, 64)
            assert answer.startswith("403") and "--allow-client-shm" in answer
            answer = refused(triton.infer, "slow", [placed("x", [4], "FP32", "off", 16)])
            assert answer.startswith("403")
