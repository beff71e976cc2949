"""Models for the tests: sums, echoes of every datatype, errors and delays."""

from __future__ import annotations

import os
import time

import numpy as np

from shmgpu.serve import Tensor, model

NUMBERS = [
    "BOOL",
    *[f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)],
    "FP16",
    "FP32",
    "FP64",
    "BF16",
]


def load(helper):
    return {"factor": 2.0, "pid": os.getpid()}


@model(
    inputs=[Tensor("a", "FP32", (-1, 4)), Tensor("b", "FP32", (-1, 4))],
    outputs=[Tensor("sum", "FP32", (-1, 4)), Tensor("difference", "FP32", (-1, 4))],
    max_batch_size=8,
)
def add_sub(helper, a, b):
    return a + b, a - b


@model(
    inputs=[Tensor("x", "FP32", (-1,))],
    outputs=[Tensor("y", "FP32", (-1,))],
)
def scale(helper, x):
    return x * np.float32(helper.session["factor"])


@model(inputs=[Tensor("text", "BYTES", (-1,))], outputs=[Tensor("upper", "BYTES", (-1,))])
def upper(helper, text):
    return np.array([one.upper() for one in text.ravel()], dtype=object).reshape(text.shape)


@model(
    inputs=[Tensor("seconds", "FP64", (1,))],
    outputs=[Tensor("pid", "INT64", (1,))],
    warmup=[],
)
def sleep(helper, seconds):
    time.sleep(float(seconds[0]))
    return np.array([helper.session["pid"]])


@model(
    inputs=[Tensor("path", "BYTES", (1,))],
    outputs=[Tensor("pid", "INT64", (1,))],
    warmup=[],
)
def held(helper, path):
    """Runs until there is such a file."""
    while not os.path.exists(path[0]):
        time.sleep(0.002)
    return np.array([helper.session["pid"]])


@model(
    inputs=[Tensor("x", "FP32", (-1,))],
    outputs=[Tensor("y", "FP32", (-1,))],
    warmup=[],
)
def fails(helper, x):
    raise ValueError("these numbers are not liked")


@model(
    inputs=[Tensor("x", "FP32", (-1, 1))],
    outputs=[Tensor("rows", "INT64", (-1,))],
    max_batch_size=4,
    max_delay_ms=50,
)
def rows(helper, x):
    return np.full(len(x), len(x))


def _echo(datatype):
    def echo(helper, x):
        return x

    shape = (-1,)
    return model(
        name=f"echo_{datatype.lower()}",
        inputs=[Tensor("x", datatype, shape)],
        outputs=[Tensor("y", datatype, shape)],
    )(echo)


echoes = {datatype: _echo(datatype) for datatype in NUMBERS}
globals().update({f"echo_{datatype.lower()}": one for datatype, one in echoes.items()})
