"""A training step on a CUDA device is captured as a graph, and trains as it would without."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import debug, nn, optim
from shmgpu.common import devices
from shmgpu.engine import capture, cuda_graphs
from shmgpu.tensors import current

DEVICES = devices.available()
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
NO_CAPTURE = 32  # the flag of a program that is not captured
STEPS = 40

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="this machine shows no CUDA device"),
]


def both_ways(work):
    """(captured, operation by operation), each what the work gave and the helper's figures."""

    def child(rank, flags):
        current.recorder().flags = flags
        return work(), debug.get_worker_stats()[0]

    found = []
    for flags in (0, NO_CAPTURE):
        (one,) = gt.launch(
            child, children=1, helpers=1, devices=["cuda:0"], arena="64MiB", args=(flags,)
        )
        found.append(one)
    return found


def perceptron(optimiser=lambda parameters: optim.SGD(parameters, lr=0.05), steps=STEPS):
    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    step_of = optimiser(model.parameters())
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        x = gt.tensor(rng.standard_normal((32, 784), dtype=np.float32))
        y = gt.tensor(rng.standard_normal((32, 10), dtype=np.float32))
        loss = nn.mse_loss(model(x), y)
        step_of.zero_grad()
        loss.backward()
        step_of.step()
        losses.append(loss.item())
    return losses


def transformer():
    spec = importlib.util.spec_from_file_location("gpt", EXAMPLES / "twins" / "gpt.py")
    gpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)
    gt.manual_seed(0)
    text = np.random.default_rng(0).integers(0, 60, 5000)
    model = gpt.GPT(60)
    step_of = optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for before, after in gpt.batches(text, STEPS):
        loss = nn.cross_entropy(model(before).reshape(-1, 60), after.reshape(-1))
        step_of.zero_grad()
        loss.backward()
        step_of.step()
        losses.append(loss.item())
    return losses


def dropped():
    gt.manual_seed(0)
    x = gt.ones(1000)
    return [(nn.dropout(x * 2, 0.5) + gt.randn(1000)).data.copy() for _ in range(12)]


def adam():
    return perceptron(lambda parameters: optim.AdamW(parameters, lr=1e-3))


@pytest.mark.parametrize("work", [perceptron, adam, transformer], ids=lambda work: work.__name__)
def test_training_is_captured_without_a_fallback_and_trains_alike(work):
    if work is transformer and not EXAMPLES.is_dir():
        pytest.skip("the examples are not beside these tests")
    (captured, figures), (plain, plain_figures) = both_ways(work)
    # A replay may be of another kernel of cuBLAS than an operation alone.
    np.testing.assert_allclose(captured, plain, rtol=1e-3)
    assert figures["captured"] >= 1 and figures["fallbacks"] == {}
    assert figures["replays"] >= STEPS - 2 - cuda_graphs.WATCHED - capture.WARM_UPS
    assert plain_figures["replays"] == 0


def test_what_is_drawn_in_a_replay_follows_from_its_seed():
    (captured, figures), (plain, _) = both_ways(dropped)
    for one, other in zip(captured, plain, strict=True):
        assert np.array_equal(one, other)
    assert figures["captured"] == 1 and figures["fallbacks"] == {}


def test_children_are_captured_apart():
    def child(rank):
        current.recorder().flags = NO_CAPTURE if rank % 2 else 0
        gt.manual_seed(rank // 2)
        w = gt.randn(64, 64)
        for step in range(20):
            w = (w * 0.5 + gt.tensor(np.full((64, 64), rank // 2 + step, np.float32))).abs()
            w.sum().item()
        return w.data.copy(), debug.get_worker_stats()[0]["captured"]

    found = gt.launch(child, children=4, helpers=1, devices=["cuda:0"], arena="16MiB")
    for captured, plain in (found[:2], found[2:]):
        np.testing.assert_allclose(captured[0], plain[0], rtol=1e-5)
    assert max(count for _, count in found) == 2


def test_the_device_s_memory_is_flat_over_replays():
    def child(rank):
        def used():
            done = subprocess.run(
                [
                    "nvidia-smi",
                    "--query-gpu=memory.used",
                    "--format=csv,noheader,nounits",
                    "-i",
                    "0",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            return int(done.stdout.split()[0])

        perceptron(steps=200)
        before = used()
        perceptron(steps=2000)
        return used() - before

    # A second model is captured beside the first; other programs may use the device as well.
    (grown,) = gt.launch(child, children=1, helpers=1, devices=["cuda:0"], arena="64MiB")
    assert grown <= 64
