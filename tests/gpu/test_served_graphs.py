"""A served model that asks for CUDA graphs is captured on a device, and answers as without."""

from __future__ import annotations

import contextlib
import subprocess

import numpy as np
import pytest
from serve import servers

from shmgpu.common import devices

DEVICES = devices.available()
torch = pytest.importorskip("torch")
http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="this machine shows no CUDA device"),
]


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "captured.py", helpers=1, devices="cuda:0", arena="64MiB"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def triton(server):
    with contextlib.closing(http.InferenceServerClient(server.address)) as made:
        assert made.is_server_ready()  # what its library opens once is open before the tests
        yield made


def given(array):
    x = http.InferInput("x", array.shape, {"float32": "FP32", "int64": "INT64"}[str(array.dtype)])
    x.set_data_from_numpy(array)
    return [x]


def test_every_number_of_rows_is_replayed_and_right(server, triton):
    before, _ = server.graphs("linear")
    torch.manual_seed(7)  # as in the model's file
    net = torch.nn.Linear(4, 2).eval()
    runs = set()
    for rows in (1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        found = triton.infer("linear", given(x))
        with torch.no_grad():
            expected = net(torch.from_numpy(x)).numpy()
        # TF32 may be on, and a kernel of another number of rows may add up in another order.
        np.testing.assert_allclose(found.as_numpy("y"), expected, rtol=1e-2, atol=1e-3)
        runs |= set(found.as_numpy("runs").tolist())
    assert server.graphs("linear") == (before + 11, {})
    assert len(runs) <= 4  # one count for each size: the function ran at the captures only


def test_batches_that_overlap_on_the_device_do_not_write_over_each_other(server, triton):
    sent = [np.full((1 + number % 3, 4), number, np.float32) for number in range(2000)]
    with contextlib.closing(http.InferenceServerClient(server.address, concurrency=16)) as many:
        for start in range(0, len(sent), 100):
            part = sent[start : start + 100]
            asked = [many.async_infer("squared", given(one)) for one in part]
            for one, answer in zip(part, asked, strict=True):
                assert np.array_equal(answer.get_result().as_numpy("y"), one * one)
    replays, eager = server.graphs("squared")
    assert replays > 0 and eager == {}


def test_shapes_of_samples_are_replayed_and_others_run_as_they_are(server, triton):
    for width in (3, 4, 5):
        x = np.arange(4 * width).reshape(4, width)
        assert np.array_equal(triton.infer("doubled", given(x)).as_numpy("y"), 2 * x)
    assert server.graphs("doubled") == (2, {"unseen_shape": 1})


def test_a_model_that_cannot_be_captured_is_served_and_spoils_no_other(server, triton):
    # Its captures failed before the last model's were made, in the same pool and stream.
    for sign in (1, -1):
        x = np.full((3, 4), sign, np.float32)
        assert np.array_equal(triton.infer("looks", given(x)).as_numpy("y"), np.abs(x))
    replays, eager = server.graphs("looks")
    assert replays == 0 and set(eager) == {"not_captured"}
    x = np.full((3, 4), 5, np.float32)
    assert np.array_equal(triton.infer("squared", given(x)).as_numpy("y"), x * x)
    assert server.graphs("squared")[1] == {}


def test_the_device_s_memory_is_flat_over_replays(server, triton):
    def used_mib():
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout.split()[0])

    x = given(np.ones((6, 4), np.float32))
    for _ in range(50):
        triton.infer("linear", x)
    before = used_mib()
    for _ in range(500):
        triton.infer("linear", x)
    assert used_mib() - before <= 64  # other programs may use the device as well


def test_a_model_that_is_loaded_anew_is_captured_anew():
    with servers.serving(
        servers.MODELS / "captured.py", helpers=1, devices="cuda:0", allow_repository=True
    ) as running:
        with contextlib.closing(http.InferenceServerClient(running.address)) as client:
            x = np.full((3, 4), 3, np.float32)
            for _ in range(3):
                assert np.array_equal(client.infer("squared", given(x)).as_numpy("y"), x * x)
                client.load_model("squared")
            assert np.array_equal(client.infer("squared", given(x)).as_numpy("y"), x * x)
        assert running.graphs("squared") == (4, {})
