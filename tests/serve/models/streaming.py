"""Models that answer in parts, for the tests."""

from __future__ import annotations

import os
import time

import numpy as np

from shmgpu.serve import Tensor, model

closed = []


@model(
    inputs=[Tensor("text", "BYTES", (1,)), Tensor("times", "INT32", (1,), optional=True)],
    outputs=[Tensor("word", "BYTES", (1,)), Tensor("number", "INT64", (1,))],
    warmup=[],
)
def words(helper, text, times):
    """Every word of the text, so many times."""
    for _ in range(1 if times is None else int(times[0])):
        for number, word in enumerate(text[0].split()):
            yield np.array([word], dtype=object), np.array([number])


@model(
    inputs=[Tensor("count", "INT64", (1,))],
    outputs=[Tensor("number", "INT64", (1,)), Tensor("pid", "INT64", (1,))],
    warmup=[],
)
def count(helper, count):
    """Numbers; the input is read at each, so it must stay where it is."""
    number = 0
    try:
        while number < count[0]:
            yield np.array([number]), np.array([os.getpid()])
            number += 1
    finally:
        closed.append(number)


@model(
    inputs=[Tensor("count", "INT64", (1,))],
    outputs=[Tensor("numbers", "INT64", (-1,))],
    warmup=[],
)
def wide(helper, count):
    """Parts of 50 KB: some hundred of them fill all buffers on the way."""
    made = 0
    try:
        while made < count[0]:
            yield np.arange(100_000, 108_192)
            made += 1
    finally:
        closed.append(made)


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "INT64", (-1,))], warmup=[])
def ended(helper, x):
    """At how many parts streams of count, and of wide, were ended in this helper."""
    time.sleep(float(x[0]))
    return np.array([os.getpid(), *closed])


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))], warmup=[])
def breaks(helper, x):
    """Fails after two parts."""
    yield x
    yield x + 1
    raise ValueError("there is no third part")


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))])
def double(helper, x):
    """Answers at once."""
    return 2 * x
