"""Models that get torch tensors."""

from __future__ import annotations

import time

import torch

from shmgpu.serve import Tensor, model


def load(helper):
    torch.manual_seed(7)
    return torch.nn.Linear(4, 2).eval()


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 2))],
    max_batch_size=16,
    arrays="torch",
)
@torch.inference_mode()
def linear(helper, x):
    return helper.session(x)


@model(
    inputs=[Tensor("x", "BF16", (-1, 4)), Tensor("bias", "FP32", (1,), optional=True)],
    outputs=[Tensor("y", "BF16", (-1, 4)), Tensor("rows", "INT64", (1,))],
    arrays="torch",
)
def halves(helper, x, bias):
    assert x.dtype == torch.bfloat16
    return x + (1 if bias is None else bias.to(x.dtype)), torch.tensor([len(x)])


@model(
    inputs=[Tensor("seconds", "FP64", (1,))],
    outputs=[Tensor("y", "FP64", (1,))],
    arrays="torch",
    warmup=[],
)
def hangs(helper, seconds):
    time.sleep(float(seconds))
    return seconds
