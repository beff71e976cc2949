"""Models with queues of their own, and one whose inputs are all optional, for the tests."""

from __future__ import annotations

import os
import time

import numpy as np

from shmgpu.serve import Tensor, model

PATH = [Tensor("path", "BYTES", (1,))]
DONE = [Tensor("done", "INT64", (1,))]


def _until(path):
    while not os.path.exists(path[0]):
        time.sleep(0.002)
    return np.array([1])


@model(inputs=PATH, outputs=DONE, warmup=[], max_queue_size=2)
def short(helper, path):
    """Two at a time may wait or run."""
    return _until(path)


@model(inputs=PATH, outputs=DONE, warmup=[], default_timeout_ms=50)
def hasty(helper, path):
    """Has little time, unless a request says how much."""
    return _until(path)


@model(
    inputs=[Tensor("x", "FP32", (-1, 1))],
    outputs=[Tensor("y", "FP32", (-1, 1))],
    max_batch_size=4,
    max_queue_size=7,
    default_timeout_ms=1500,
)
def batched(helper, x):
    return x


@model(
    inputs=[
        Tensor("x", "FP32", (-1,), optional=True),
        Tensor("text", "BYTES", (1,), optional=True),
    ],
    outputs=[Tensor("given", "BYTES", (1,))],
)
def optional(helper, x, text):
    """Which inputs it was given."""
    names = [name for name, one in (("x", x), ("text", text)) if one is not None]
    return np.array([",".join(names)], dtype=object)


@model(
    inputs=[Tensor("x", "FP32", (-1, 1), optional=True)],
    outputs=[Tensor("y", "FP32", (-1, 1))],
    max_batch_size=4,
    warmup=[],
)
def rows(helper, x):
    return x
