"""What type checkers must accept, and what they must take results for; never run."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import shmgpu
from shmgpu import nn, optim
from shmgpu.nn import functional as F

Floats = NDArray[np.float32]


def load(helper: shmgpu.Helper) -> torch.nn.Module:
    return torch.nn.Linear(64, 10).to(helper.device).eval()


# ---- functions of tensors, called with whatever there is -----------------------------------------


@shmgpu.function
def infer(helper: shmgpu.Helper, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = helper.session(x)
    return found


@shmgpu.function(batch=shmgpu.Batch(max_size=32), timeout=1.0)
def act(
    helper: shmgpu.Helper, states: torch.Tensor, masks: torch.Tensor, greedy: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return states, masks


@shmgpu.function
def named(helper: shmgpu.Helper, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"scores": x}


@shmgpu.function
def total(helper: shmgpu.Helper, x: torch.Tensor, *, scale: float) -> float:
    return float(x.sum()) * scale


@shmgpu.function
def set_weights(helper: shmgpu.Helper, weights: dict[str, Any]) -> None:
    helper.session.load_state_dict(weights)


# ---- functions of arrays -------------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def plain(helper: shmgpu.Helper, x: Floats, k: int = 1) -> Floats:
    return x * k


@shmgpu.function(batch=8, arrays="numpy", mutates=True)
def count(helper: shmgpu.Helper, text: str) -> dict[str, int]:
    return {text: helper.id}


@shmgpu.function(arrays="numpy", out=shmgpu.Declared((3,), "float32"))
def written(helper: shmgpu.Helper, x: Floats) -> None:
    np.multiply(x, 2, out=helper.out)


@shmgpu.function
def untyped(helper, x):
    return x


def worker(rank: int) -> list[int]:
    x = shmgpu.arena.zeros((4, 64))
    ours, theirs = shmgpu.randn(4, 64), torch.zeros(4, 64)
    own: Floats = np.zeros((4, 64), np.float32)

    # arrays of the arena, arrays, tensors: results are of the kind that was given
    assert_type(infer(x), NDArray[Any])
    assert_type(infer(own), NDArray[Any])
    assert_type(infer(ours), shmgpu.Tensor)
    assert_type(infer(theirs), torch.Tensor)
    assert_type(infer(x=theirs), torch.Tensor)
    assert_type(act(x, x), tuple[NDArray[Any], NDArray[Any]])
    assert_type(act(ours, ours, greedy=True), tuple[shmgpu.Tensor, shmgpu.Tensor])
    assert_type(named(x), dict[str, NDArray[Any]])
    assert_type(total(x, scale=2.0), float)
    assert_type(plain(own), Floats)
    assert_type(plain(own, k=2), Floats)
    assert_type(plain(ours, 2), shmgpu.Tensor)
    assert_type(count("a"), dict[str, int])
    written(own).sum()
    untyped(
        x,
    ).sum()

    # the other ways to call
    assert_type(infer.submit(x).result(), NDArray[Any])
    future: concurrent.futures.Future[dict[str, int]] = count.submit("a")
    future.cancel()
    assert_type(infer.options(timeout=1.0)(ours), shmgpu.Tensor)
    assert_type(infer.options(timeout=None)(ours), shmgpu.Tensor)
    assert_type(plain.options(out=own)(own), Floats)
    results: Iterator[NDArray[Any]] = infer.map([x, x], in_flight=2)
    next(results)
    assert_type(next(count.map(["a"], progress=False)), dict[str, int])
    assert_type(infer.local(None, theirs), torch.Tensor)
    assert_type(set_weights.broadcast(torch.nn.Linear(2, 2).state_dict()), int)
    assert_type(shmgpu.broadcast(infer, x), int)
    assert_type(shmgpu.broadcast(count, "a"), int)
    assert_type(count.options(timeout=1.0).broadcast("a"), int)
    assert_type(infer.version, int)
    best: list[int] = infer(x).argmax(axis=1).tolist()
    return best


async def ask(x: Floats) -> None:
    assert_type(await infer.aio(x), NDArray[Any])
    assert_type(await count.aio("a"), dict[str, int])


def scaled(rank: int, factor: float) -> float:
    return rank * factor


# ---- tensors -------------------------------------------------------------------------------------


def train() -> float:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    adam = optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = shmgpu.tensor([[1.0, 2.0]], dtype="float32", requires_grad=True)
    assert_type(x @ x.T + 1, shmgpu.Tensor)
    assert_type(1 - x, shmgpu.Tensor)
    assert_type(x > 0, shmgpu.Tensor)
    assert_type(x.sum(0, keepdim=True).exp_(), shmgpu.Tensor)
    assert_type(x.sum(axis=1), shmgpu.Tensor)
    assert_type(x.max(), shmgpu.Tensor)
    assert_type(x.max(1).indices, shmgpu.Tensor)
    assert_type(shmgpu.relu(x).float().reshape(-1), shmgpu.Tensor)
    assert_type(shmgpu.cat([x, x], dim=0), shmgpu.Tensor)
    assert_type(shmgpu.zeros((2, 3), dtype=shmgpu.float32), shmgpu.Tensor)
    assert_type(shmgpu.randn(2, 3).shape, tuple[int, ...])
    assert_type(nn.Linear(2, 3)(x), shmgpu.Tensor)
    assert_type(nn.LSTM(2, 3)(x)[0], shmgpu.Tensor)
    assert_type(nn.CrossEntropyLoss(label_smoothing=0.1)(x, x), shmgpu.Tensor)
    assert_type(F.softmax(x, dim=-1), shmgpu.Tensor)
    assert_type(F.relu(x, inplace=True), shmgpu.Tensor)
    assert_type(x.numpy(), np.ndarray[Any, Any])
    loss = F.cross_entropy(model(x), shmgpu.tensor([0]))
    adam.zero_grad()
    loss.backward()
    adam.step()
    with shmgpu.no_grad():
        x -= 0.1 * x.grad
    x.grad = None
    return float(loss.item())


def main() -> None:
    assert_type(shmgpu.launch(worker, children=2, session=load), list[list[int]])
    assert_type(shmgpu.launch([worker, worker]), list[list[int]])
    assert_type(shmgpu.launch(scaled, children=2, args=(2.0,)), list[float])
    with shmgpu.init(helpers={"small": 1, "large": 2}, session={"small": load}) as session:
        assert_type(session, shmgpu.Session)
        assert_type(shmgpu.stats(), dict[str, Any])
