"""Batches of torch models as CUDA graphs: captured at warm-up, replayed, or run as they are."""

from __future__ import annotations

import contextlib
import json
import os
import types

import numpy as np
import pytest
from serve import client_shm, servers

torch = pytest.importorskip("torch")

from tensors.stand_in import StandInDriver  # noqa: E402

from shmgpu.errors import ConfigError  # noqa: E402
from shmgpu.serve import Tensor, model  # noqa: E402
from shmgpu.serve.models import cuda_graphs, runner  # noqa: E402
from shmgpu.serve.models.cuda_graphs import CapturedGraphs  # noqa: E402
from shmgpu.serve.models.sequences import Sequences  # noqa: E402
from shmgpu.serve.state.repository import MODELS_OF_A_SOURCE  # noqa: E402


def captured(body, *samples, most_rows=8, driver=None):
    made = CapturedGraphs("one", driver or StandInDriver(), body, most_rows)
    for sample in samples:
        made.capture(sample)
    return made


def numbers(rows, *shape):
    return torch.arange(float(rows * max(1, int(np.prod(shape))))).reshape(rows, *shape)


# ---- in one process, on a stand-in for the device ------------------------------------------------


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_sizes_are_powers_of_two_and_the_most(most, expected):
    assert cuda_graphs.sizes(most) == expected


@pytest.mark.parametrize("rows", range(1, 7))
def test_a_batch_of_any_rows_is_replayed_and_the_function_is_not_run(rows):
    runs = []

    def body(x, y):
        runs.append(len(x))
        return x @ torch.ones(3, 2), x.sum(1) + y

    made = captured(body, (numbers(2, 3), numbers(2)), most_rows=6)
    before = len(runs)
    x, y = torch.rand(rows, 3), torch.rand(rows)
    (product, total), fate = made.run((x, y))
    assert fate == cuda_graphs.REPLAYED and len(runs) == before
    assert torch.equal(product, x @ torch.ones(3, 2)) and torch.equal(total, x.sum(1) + y)


def test_what_came_out_is_not_written_over_by_the_next_batch():
    made = captured(lambda x: x + 1, (numbers(1, 4),))
    first, _ = made.run((torch.zeros(3, 4),))
    second, _ = made.run((torch.ones(3, 4),))
    assert torch.equal(first, torch.ones(3, 4)) and torch.equal(second, torch.full((3, 4), 2.0))


def test_an_input_that_is_handed_back_is_a_copy():
    made = captured(lambda x: x, (numbers(1, 4),))
    first, _ = made.run((torch.zeros(2, 4),))
    made.run((torch.ones(2, 4),))
    assert torch.equal(first, torch.zeros(2, 4))


def test_rows_that_a_batch_does_not_fill_are_such_as_the_model_can_take():
    # A row number that is none would end the process on a device.
    table = torch.rand(10, 3)
    made = captured(lambda at: table[at], (torch.tensor([7]),))
    found, fate = made.run((torch.tensor([1, 2, 3, 4, 5]),))
    assert fate == cuda_graphs.REPLAYED and torch.equal(found, table[1:6])


def test_shapes_of_samples_are_replayed_and_others_run_as_they_are(caplog):
    made = captured(lambda x: 2 * x, (numbers(1, 3),), (numbers(1, 5),))
    for width, fate in [(3, cuda_graphs.REPLAYED), (5, cuda_graphs.REPLAYED)]:
        found, became = made.run((numbers(2, width),))
        assert became == fate and torch.equal(found, 2 * numbers(2, width))
    for _ in range(2):
        assert made.run((numbers(2, 4),)) == (None, cuda_graphs.UNSEEN_SHAPE)
    assert made.run((numbers(2, 3).double(),)) == (None, cuda_graphs.UNSEEN_SHAPE)
    assert caplog.text.count("no warm-up sample") == 1


def test_an_input_that_was_left_away_in_a_sample_may_be():
    made = captured(lambda x, bias: x if bias is None else x + bias, (numbers(1, 3), None))
    found, fate = made.run((numbers(2, 3), None))
    assert fate == cuda_graphs.REPLAYED and torch.equal(found, numbers(2, 3))
    assert made.run((numbers(2, 3), numbers(2, 3)))[1] == cuda_graphs.UNSEEN_SHAPE


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda x: x if x.sum().item() else -x, "not permitted when stream is capturing"),
        (lambda x: x.sum(), "output 0 has the shape () for 8 rows"),
        (lambda x: (x, x[:1]), "output 1 has the shape (1, 3) for 8 rows"),
        (lambda x: x.numpy(), "output 0 is not a tensor"),
    ],
    ids=["host", "scalar", "fewer", "array"],
)
def test_what_cannot_be_captured_runs_as_it_is_and_is_told_once(body, why, caplog):
    made = captured(body, (numbers(1, 3),))
    for _ in range(2):
        assert made.run((numbers(8, 3),)) == (None, cuda_graphs.NOT_CAPTURED)
    assert caplog.text.count(why) == 1


def test_a_size_that_does_not_fit_leaves_the_others():
    def body(x):
        if len(x) > 4:
            raise torch.cuda.OutOfMemoryError("nothing left")
        return x + 1

    made = captured(body, (numbers(1, 3),))
    assert made.run((numbers(4, 3),))[1] == cuda_graphs.REPLAYED
    assert made.run((numbers(5, 3),)) == (None, cuda_graphs.NOT_CAPTURED)


def test_without_a_device_everything_runs_as_it_is(caplog):
    made = CapturedGraphs("one", cuda_graphs.driver_of("cpu"), lambda x: x, 8)
    made.capture((numbers(1, 3),))
    assert made.run((numbers(1, 3),)) == (None, cuda_graphs.NO_DEVICE)
    assert "no CUDA device" in caplog.text
    made.close()


def test_outputs_carry_no_gradients_whether_or_not_the_model_thinks_of_it():
    net = torch.nn.Linear(3, 2)
    x = torch.rand(5, 3)
    for body in (net, torch.inference_mode()(net.forward)):
        found, fate = captured(body, (numbers(1, 3),)).run((x,))
        assert fate == cuda_graphs.REPLAYED
        assert not found.requires_grad and not found.is_inference()
        assert torch.equal(found, net(x).detach())


def test_graphs_are_let_go_of_when_the_device_is_through():
    driver = StandInDriver()
    made = captured(lambda x: x + 1, (numbers(1, 3),), driver=driver)
    made.run((numbers(2, 3),))
    made.close()
    assert driver.events[-1] == "finish"
    assert made.run((numbers(2, 3),))[1] == cuda_graphs.UNSEEN_SHAPE


def test_a_source_that_is_unloaded_lets_go_of_its_graphs_and_of_no_others():
    drivers = [StandInDriver() for _ in range(3)]
    store = runner.ModelStore.__new__(runner.ModelStore)
    store.sequences, store.memory = Sequences(1, 1.0), np.ones((3, 1))
    numbers_of = (5 * MODELS_OF_A_SOURCE, 5 * MODELS_OF_A_SOURCE + 1, 6 * MODELS_OF_A_SOURCE)
    store.loaded = {
        number: types.SimpleNamespace(index=index, graphs=captured(abs, driver=drivers[index]))
        for index, number in enumerate(numbers_of)
    }
    store.unload(5)
    assert [driver.events for driver in drivers] == [["finish"], ["finish"], []]
    assert list(store.loaded) == [6 * MODELS_OF_A_SOURCE]
    assert store.memory.ravel().tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "more",
    [{"arrays": "numpy"}, {"max_batch_size": 0}, {"inputs": [Tensor("x", "BYTES", (-1,))]}],
    ids=["numpy", "alone", "text"],
)
def test_a_declaration_that_cannot_be_captured_is_refused(more):
    said = {
        "inputs": [Tensor("x", "FP32", (-1,))],
        "outputs": [Tensor("y", "FP32", (-1,))],
        "max_batch_size": 4,
        "arrays": "torch",
    }
    with pytest.raises(ConfigError, match=r"cuda_graphs is for .*: omit it"):
        model(**{**said, **more}, cuda_graphs=True)(lambda helper, x: x)


# ---- as a server ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triton():
    return pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "captured.py", helpers=1, grpc_port=0, allow_client_shm=True
    ) as running:
        yield running


def ask(triton, server, name, array):
    with contextlib.closing(triton.InferenceServerClient(server.address)) as client:
        datatype = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
        x = triton.InferInput("x", array.shape, datatype)
        x.set_data_from_numpy(array)
        return client.infer(name, [x])


def test_requests_are_answered_by_replays(triton, server):
    before, _ = server.graphs("linear")
    runs = set()
    for rows in range(1, 7):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        found = ask(triton, server, "linear", x)
        torch.manual_seed(7)
        with torch.no_grad():
            expected = torch.nn.Linear(4, 2)(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found.as_numpy("y"), expected, rtol=1e-3, atol=1e-5)
        runs |= set(found.as_numpy("runs").tolist())
    assert server.graphs("linear") == (before + 6, {})
    assert len(runs) <= 4  # of 1, 2, 4 and 6 rows: the function ran no more


def test_answers_of_many_clients_at_once_are_their_own(triton, server):
    given = [np.full((1 + number % 3, 4), number, np.float32) for number in range(60)]
    with contextlib.closing(triton.InferenceServerClient(server.address, concurrency=12)) as client:
        asked = []
        for one in given:
            x = triton.InferInput("x", one.shape, "FP32")
            x.set_data_from_numpy(one)
            asked.append(client.async_infer("squared", [x]))
        for one, answer in zip(given, asked, strict=True):
            assert np.array_equal(answer.get_result().as_numpy("y"), one * one)
    assert server.graphs("squared")[1] == {}


def test_batches_that_are_not_replayed_are_counted_by_reason(triton, server):
    for width in (3, 4, 5):
        x = np.arange(2 * width).reshape(2, width)
        assert np.array_equal(ask(triton, server, "doubled", x).as_numpy("y"), 2 * x)
    assert server.graphs("doubled") == (2, {"unseen_shape": 1})
    x = np.full((3, 4), -1, np.float32)
    assert np.array_equal(ask(triton, server, "looks", x).as_numpy("y"), -x)
    assert server.graphs("looks") == (0, {"not_captured": 1})


def test_tensors_in_shared_memory_are_replayed(triton, server):
    shared = client_shm.load()
    x, key = np.full((2, 4), 3, np.float32), f"/captured-{os.getpid()}"
    region = shared.create_shared_memory_region("both", key, 2 * x.nbytes)
    try:
        shared.set_shared_memory_region(region, [x])
        with contextlib.closing(triton.InferenceServerClient(server.address)) as client:
            client.register_system_shared_memory("both", key, 2 * x.nbytes)
            given = triton.InferInput("x", x.shape, "FP32")
            given.set_shared_memory("both", x.nbytes)
            wanted = triton.InferRequestedOutput("y")
            wanted.set_shared_memory("both", x.nbytes, x.nbytes)
            before = server.graphs("squared")[0]
            client.infer("squared", [given], outputs=[wanted])
            found = shared.get_contents_as_numpy(region, np.float32, (2, 4), x.nbytes)
            assert np.array_equal(found, x * x)
            assert server.graphs("squared")[0] == before + 1
            client.unregister_system_shared_memory()
    finally:
        shared.destroy_shared_memory_region(region)


def test_the_configuration_says_so_as_triton_does(server):
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    said = json.loads(server.ask("GET", "/v2/models/linear/config")[2])
    assert said["optimization"] == {"cuda": {"graphs": True}}
    with contextlib.closing(grpc.InferenceServerClient(server.grpc_address)) as client:
        assert client.get_model_config("linear").config.optimization.cuda.graphs


@pytest.mark.slow
def test_a_file_without_code_asks_beside_it(triton, tmp_path):
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    torch.jit.script(Doubled()).save(str(tmp_path / "net.pt"))
    said = {"inputs": [{"shape": [-1, 4]}], "max_batch_size": 4, "cuda_graphs": True}
    (tmp_path / "net.json").write_text(json.dumps(said))
    with servers.serving(tmp_path / "net.pt", helpers=1) as running:
        x = np.ones((2, 4), np.float32)
        assert np.array_equal(ask(triton, running, "net", x).as_numpy("output"), 2 * x)
        assert running.graphs("net") == (0, {"no_device": 1})
