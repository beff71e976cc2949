"""Models that get torch tensors; workers know nothing of torch."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from serve import servers

torch = pytest.importorskip("torch")
client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
pytestmark = pytest.mark.cold  # what workers hold is looked at


@pytest.fixture(scope="module")
def server():
    with servers.serving(servers.MODELS / "tensors.py", helpers=2, hang_after=1) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def workers(server):
    """As they were at the start: a helper that was replaced stands behind them."""
    return server.children()[2:]


def test_a_torch_model_gives_what_torch_gives(triton):
    torch.manual_seed(7)
    layer = torch.nn.Linear(4, 2)
    for rows in (1, 3, 16):
        x = np.random.default_rng(rows).random((rows, 4), "float32")
        found = triton.infer("linear", [servers.tensor("x", x, "FP32")]).as_numpy("y")
        assert np.allclose(found, layer(torch.from_numpy(x)).detach().numpy(), atol=1e-6)


def test_bf16_arrives_as_bfloat16_and_goes_back_as_it(triton):
    x = np.array([[0.5, 1, 2, -3]], "float32")
    answer = triton.infer("halves", [servers.tensor("x", x, "BF16")])
    assert np.array_equal(answer.as_numpy("y"), x + 1)
    bias = servers.tensor("bias", np.array([2], "float32"), "FP32")
    answer = triton.infer("halves", [servers.tensor("x", x, "BF16"), bias])
    assert np.array_equal(answer.as_numpy("y"), x + 2)


def test_workers_hold_no_torch_and_little_memory_of_their_own(triton, workers):
    for _ in range(100):
        triton.infer("linear", [servers.tensor("x", np.ones((1, 4), "float32"), "FP32")])
    assert workers
    for pid in workers:
        assert "libtorch" not in pathlib.Path(f"/proc/{pid}/maps").read_text()
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        private = sum(int(one.split()[1]) for one in lines if one.startswith("Private_"))
        assert private < 40 << 10, f"{private} KiB"


def test_a_model_that_hangs_is_answered_503_and_its_helper_replaced(server):
    one = {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [60]}
    status, _, answer = server.ask(
        "POST", "/v2/models/hangs/infer", json.dumps({"inputs": [one]}).encode()
    )
    assert status == 503, answer
    one["data"] = [0]
    for _ in range(4):
        status, _, _ = server.ask(
            "POST", "/v2/models/hangs/infer", json.dumps({"inputs": [one]}).encode()
        )
        assert status == 200
