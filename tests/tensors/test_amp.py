"""Mixed precision: which operations are lower, and how losses are scaled for it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import amp, nn, optim


def test_products_are_lower_and_sums_are_not(engine):
    x = gt.ones(4, 4, requires_grad=True)
    wide = x.to("float64")
    layer = nn.Linear(4, 3)
    with amp.autocast("cpu", dtype=torch.bfloat16):
        kinds = [
            (x @ x).dtype, layer(x).dtype, gt.softmax(x @ x, -1).dtype, (x @ x + x).dtype,
            nn.functional.mse_loss(layer(x), gt.zeros(4, 3)).dtype, (wide @ wide).dtype,
            gt.linalg.det(x @ x).dtype,
        ]  # fmt: skip
        with amp.autocast(enabled=False):
            kinds.append((x @ x).dtype)
    kinds.append((x @ x).dtype)
    assert [one.name for one in kinds] == [
        "bfloat16", "bfloat16", "float32", "float32", "float32", "float64", "float32", "float32",
        "float32",
    ]  # fmt: skip


def test_gradients_of_a_lower_product_are_of_the_parameters_type(engine):
    ours, theirs = nn.Linear(4, 3), torch.nn.Linear(4, 3)
    ours.load_state_dict(theirs.state_dict())
    values = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")
    with amp.autocast("cpu"), torch.autocast("cpu"):
        out, want = ours(gt.tensor(values)), theirs(torch.tensor(values))
    out.to("float32").sum().backward()
    want.float().sum().backward()
    assert ours.weight.grad.dtype.name == "float32"
    np.testing.assert_allclose(out.to("float32").data, want.detach().float().numpy(), atol=0.03)
    np.testing.assert_allclose(ours.weight.grad.data, theirs.weight.grad.numpy(), atol=0.1)


def test_autocast_is_a_threads_own_and_a_decorator(engine):
    x, seen = gt.ones(2, 2), []
    with amp.autocast("float16"):
        other = threading.Thread(target=lambda: seen.append((x @ x).dtype.name))
        other.start()
        other.join()
        assert (x @ x).dtype.name == "float16"
    assert seen == ["float32"]
    assert amp.autocast("bfloat16")(lambda: x @ x)().dtype.name == "bfloat16"
    with amp.autocast(device_type="cuda", dtype="float16", cache_enabled=False):
        assert (x @ x).dtype.name == "float16"
    with pytest.raises(ValueError, match="must be 'float16' or 'bfloat16'"):
        amp.autocast("cuda", dtype="float32")


def test_a_step_whose_gradients_overflow_is_skipped(engine):
    weight = gt.ones(2, requires_grad=True)
    step = optim.SGD([weight], lr=0.5)
    scaler = amp.GradScaler(init_scale=8.0, growth_interval=2)

    def train(factor):
        step.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(step)
        scaler.update()
        return weight.tolist(), scaler.get_scale()

    assert train(1.0) == ([0.5, 0.5], 8.0)
    assert train(float("inf")) == ([0.5, 0.5], 4.0)
    assert train(1.0) == ([0.0, 0.0], 4.0)
    assert train(1.0) == ([-0.5, -0.5], 8.0)
    state = scaler.state_dict()
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2).state_dict()
    assert state == {**theirs, "_growth_tracker": 0}
    again = amp.GradScaler()
    again.load_state_dict({**state, "scale": 2.0})
    assert again.get_scale() == 2.0
    scaler.scale([weight.sum(), weight.sum()])[1].backward()
    scaler.unscale_(step)
    with pytest.raises(RuntimeError, match="called already"):
        scaler.unscale_(step)
    scaler.update(new_scale=16.0)
    assert scaler.get_scale() == 16.0
    off = amp.GradScaler(enabled=False)
    off.update()
    assert (
        off.scale(3.0) == 3.0
        and not off.is_enabled()
        and off.get_scale() == 1
        and not off.state_dict()
    )
    with pytest.raises(ValueError, match="must be above 1"):
        amp.GradScaler(growth_factor=1.0)
