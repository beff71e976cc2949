"""Models whose answers have parameters, for the tests."""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model

ROW = Tensor("x", "FP32", (-1, 1))
TOLD = {"text": "\u00e9nd", "whole": 7, "part": 0.5, "yes": True}


def tell(helper, **more):
    helper.response.parameters.update(more)


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))])
def plain(helper, x):
    tell(helper, **TOLD)
    return x


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))], cache=True)
def sometimes(helper, x):
    """Numbers only, so that it takes every shortcut that there is: tells what is negative."""
    if (x < 0).any():
        tell(helper, least=x.min())
    return x


@model(inputs=[ROW], outputs=[Tensor("y", "FP32", (-1, 1))], max_batch_size=8, max_delay_ms=100)
def batched(helper, x):
    """Each row's own value, and how many rows ran together."""
    tell(helper, own=x[:, 0], rows=np.int64(len(x)))
    return x


@model(
    inputs=[ROW],
    outputs=[Tensor("y", "FP32", (-1, 1)), Tensor("z", "FP32", (-1, 1))],
    max_batch_size=8,
    arrays="torch",
)
def tensors(helper, x):
    tell(helper, own=x[:, 0], most=x.max())
    return x, x + 1


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))], sequence=True)
def in_sequence(helper, state, x):
    state["count"] = state.get("count", 0) + 1
    tell(helper, count=state["count"])
    return x


@model(inputs=[Tensor("count", "INT64", (1,))], outputs=[Tensor("part", "INT64", (1,))], warmup=[])
def parts(helper, count):
    for part in range(int(count[0])):
        if part % 2:
            tell(helper, odd=part)
        yield np.array([part])


@model(inputs=[Tensor("text", "BYTES", (1,))], outputs=[Tensor("said", "BYTES", (1,))], warmup=[])
def measured(helper, text):
    tell(helper, length=len(text[0]))
    return text


def wrong_parameters():
    return [
        {"": 1},
        {"triton_final_response": False},
        {"a": None},
        {"a": [1]},
        {"a": float("nan")},
        {"a": 1 << 63},
        {"a": "\ud800"},
        {"a": "x" * (1 << 16)},
        {str(number): number for number in range(65)},
    ]


@model(inputs=[Tensor("kind", "INT32", (1,))], outputs=[Tensor("y", "INT32", (1,))], warmup=[])
def wrong_told(helper, kind):
    tell(helper, left="over from what has failed")
    if kind[0] >= 0:
        tell(helper, **wrong_parameters()[kind[0]])
    elif kind[0] == -1:
        raise RuntimeError("after it had told something")
    else:
        helper.response.parameters.clear()
    return kind


@model(inputs=[ROW], outputs=[ROW], max_batch_size=8, warmup=[])
def wrong_rows(helper, x):
    tell(helper, own=[1, 2, 3])
    return x
