"""Models that ask for CUDA graphs; on the CPU, a stand-in for the device records them."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import torch

from shmgpu.serve import Tensor, model
from shmgpu.serve.models import cuda_graphs


def load(helper):
    if helper.device == "cpu":
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tensors"))
        from stand_in import StandInDriver

        cuda_graphs.driver_of = lambda device: StandInDriver()
    torch.manual_seed(7)
    return {"net": torch.nn.Linear(4, 2).eval().to(helper.device), "runs": 0}


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 2)), Tensor("runs", "INT64", (-1,))],
    max_batch_size=6,
    arrays="torch",
    cuda_graphs=True,
)
def linear(helper, x):
    """It counts how often it is run itself: no more once it is recorded."""
    helper.session["runs"] += 1
    runs = torch.full((len(x),), helper.session["runs"], dtype=torch.int64, device=x.device)
    return helper.session["net"](x), runs


@model(
    inputs=[Tensor("x", "INT64", (-1, -1))],
    outputs=[Tensor("y", "INT64", (-1, -1))],
    max_batch_size=4,
    arrays="torch",
    cuda_graphs=True,
    warmup=[(np.ones((1, 3), np.int64),), (np.ones((2, 5), np.int64),)],
)
def doubled(helper, x):
    return 2 * x


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    max_batch_size=4,
    arrays="torch",
    cuda_graphs=True,
)
def looks(helper, x):
    """What it does depends on numbers that it brings to the host, which no recording can do."""
    return -x if x.sum().item() < 0 else x


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    max_batch_size=4,
    max_delay_ms=20,
    arrays="torch",
    cuda_graphs=True,
)
def squared(helper, x):
    return x * x
