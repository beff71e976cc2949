"""Models for the tests of clients' shared memory: what they do to their inputs is seen there."""

from __future__ import annotations

import os
import pathlib
import time

import numpy as np

from shmgpu.serve import Tensor, model


@model(
    inputs=[Tensor("a", "FP32", (-1, 4)), Tensor("b", "FP32", (-1, 4))],
    outputs=[Tensor("sum", "FP32", (-1, 4)), Tensor("difference", "FP32", (-1, 4))],
    max_batch_size=8,
)
def add_sub(helper, a, b):
    return a + b, a - b


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))], arrays="torch")
def add_in_place(helper, x):
    return x.add_(1)


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))])
def write_to_input(helper, x):
    x += 1
    return x


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))], warmup=[])
def told(helper, x):
    """One more, or two where it can be written where it goes."""
    return x + 1 if helper.out is None else np.add(x, 2, out=helper.out)


@model(inputs=[Tensor("text", "BYTES", (-1,))], outputs=[Tensor("upper", "BYTES", (-1,))])
def upper(helper, text):
    return np.array([one.upper() for one in text.ravel()], dtype=object)


@model(inputs=[Tensor("x", "BF16", (-1,))], outputs=[Tensor("y", "BF16", (-1,))])
def brain(helper, x):
    return x


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))], warmup=[])
def slow(helper, x):
    """Runs as long as there is such a file, and says in it that it does."""
    shut = pathlib.Path(os.environ.get("TESTS_SHUT", "/nowhere"))
    if shut.exists():
        shut.write_text("runs")
    while shut.exists():
        time.sleep(0.002)
    return x * 2


@model(inputs=[Tensor("x", "BOOL", (-1,))], outputs=[Tensor("y", "BOOL", (-1,))], warmup=[])
def flags(helper, x):
    return ~x


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))])
def first(helper, x):
    return x[:1]
