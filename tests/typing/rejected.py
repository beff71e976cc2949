"""What fails as it runs, and what type checkers must reject."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

import shmgpu
from shmgpu import nn, optim

x: NDArray[np.float32] = np.zeros((4, 64), np.float32)


@shmgpu.function
def infer(helper: shmgpu.Helper, x: torch.Tensor) -> torch.Tensor:
    return x


@shmgpu.function
def act(helper: shmgpu.Helper, x: torch.Tensor, mask: torch.Tensor, k: int = 1) -> torch.Tensor:
    return x


@shmgpu.function(arrays="numpy")
def plain(helper: shmgpu.Helper, x: NDArray[np.float32], k: int = 1) -> NDArray[np.float32]:
    return x


@shmgpu.function(batch=8)
def count(helper: shmgpu.Helper, text: str) -> dict[str, int]:
    return {}


@shmgpu.function
def untyped(helper, x):
    return x


def worker(rank: int) -> int:
    return rank


def without_rank() -> int:
    return 0


infer()  # wrong
infer("an image")  # wrong
infer(x, 1)  # wrong
infer(x, x)  # wrong
infer(y=x)  # wrong
infer(x).score  # wrong
infer(shmgpu.randn(2)).to_host()  # wrong
act(x)  # wrong
act(x, "mask")  # wrong
act(x, x, k="two")  # wrong
act(x, x, 1, 2)  # wrong
plain()  # wrong
plain("two")  # wrong
plain(x, "two")  # wrong
count(None, "a")  # wrong
count(5)  # wrong
untyped()  # wrong
count.submit(5)  # wrong
count.map([5])  # wrong
count.map("a", in_flight="two")  # wrong
infer.submit("an image")  # wrong
infer.submit(x).value()  # wrong
infer.options(timeout="soon")  # wrong
infer.options(retries=2)  # wrong
count.broadcast(5)  # wrong
infer.broadcast("weights")  # wrong
shmgpu.broadcast(count, 5)  # wrong
shmgpu.broadcast(worker, 5)  # wrong
shmgpu.function(arrays="jax")  # wrong
shmgpu.function(mutates="yes")  # wrong
shmgpu.function(retries=2)  # wrong
shmgpu.launch(without_rank, children=2)  # wrong
shmgpu.launch(worker, workers=2)  # wrong
shmgpu.launch(worker, children=2)[0].upper()  # wrong
shmgpu.launch(5)  # wrong
shmgpu.init(helpers="two")  # wrong
shmgpu.nothing  # wrong
shmgpu.randn("3")  # wrong
shmgpu.tensor()  # wrong
shmgpu.tensor([1.0]) + "1"  # wrong
shmgpu.tensor([1.0]).nothing()  # wrong
shmgpu.relu("x")  # wrong
shmgpu.relu()  # wrong
shmgpu.softmax(shmgpu.ones(2), dim="last")  # wrong
shmgpu.ones(2).sum(0, False, 3)  # wrong
nn.Linear(2)  # wrong
nn.Linear("2", 3)  # wrong
nn.Linear(2, 3)("x")  # wrong
nn.Dropout(rate=0.5)  # wrong
nn.nothing  # wrong
optim.Adam(lr=0.1)  # wrong
optim.Adam(nn.Linear(2, 3).parameters(), rate=0.1)  # wrong
