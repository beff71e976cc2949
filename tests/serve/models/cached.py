"""Models whose answers may be kept; each execution is seen in its answer."""

from __future__ import annotations

import itertools
import os
import time

import numpy as np

from shmgpu.serve import Tensor, model

count = itertools.count(time.monotonic_ns() % 1_000_000)  # another one after a reload


@model(
    inputs=[Tensor("x", "FP32", (-1, -1))],
    outputs=[Tensor("y", "FP32", (-1, -1)), Tensor("run", "INT64", (1,))],
    warmup=[],
    cache=True,
)
def kept(helper, x):
    return x * np.float32(2), np.array([os.getpid() * 1_000_000 + next(count)])


@model(
    inputs=[Tensor("text", "BYTES", (-1,))],
    outputs=[Tensor("upper", "BYTES", (-1,)), Tensor("run", "INT64", (1,))],
    warmup=[],
    cache=True,
)
def texts(helper, text):
    upper = np.array([one.upper() for one in text], dtype=object)
    return upper, np.array([os.getpid() * 1_000_000 + next(count)])


@model(
    inputs=[Tensor("x", "FP32", (-1, -1))],
    outputs=[Tensor("run", "INT64", (1,))],
    warmup=[],
)
def undeclared(helper, x):
    return np.array([os.getpid() * 1_000_000 + next(count)])
