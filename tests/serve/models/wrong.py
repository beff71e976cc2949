"""Models whose functions return what they do not declare, or raise what is hard to tell."""

from __future__ import annotations

import os

from shmgpu.serve import Tensor, model

RETURNED = {
    "nothing": lambda x: None,
    "text": lambda x: "text",
    "two": lambda x: (x, x),
    "plain_lists": lambda x: x.tolist(),
    "too_narrow": lambda x: x[:, :2],
    "too_few": lambda x: x[:0],
    "of_another_name": lambda x: {"z": x},
    "of_another_type": lambda x: x.astype("float64"),
}


def _returns(name, made):
    return model(
        name=name,
        inputs=[Tensor("x", "FP32", (-1, 4))],
        outputs=[Tensor("y", "FP32", (-1, 4))],
        max_batch_size=4,
        warmup=[],
    )(lambda helper, x: made(x))


globals().update({name: _returns(name, made) for name, made in RETURNED.items()})


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    warmup=[],
)
def raises_no_text(helper, x):
    raise FileNotFoundError("no file b\udcffd")  # as os.fsdecode gives a name that is not UTF-8


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    warmup=[],
)
def yields_text(helper, x):
    yield x
    yield "text"


@model(
    inputs=[Tensor("bias", "FP32", (-1, 4), optional=True), Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    max_batch_size=4,
    warmup=[],
)
def biased(helper, bias, x):
    return x if bias is None else x + bias


@model(
    inputs=[Tensor("x", "FP32", (-1, 4))],
    outputs=[Tensor("y", "FP32", (-1, 4))],
    warmup=[],
)
def forks(helper, x):
    return x + (os.fork() == 0)
