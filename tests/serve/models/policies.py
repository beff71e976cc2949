"""Models with queues of their own, and one whose inputs are all optional, for the tests."""

from __future__ import annotations

import itertools
import os
import time

import numpy as np

from shmgpu.serve import QueuePolicy, Tensor, model

turns = itertools.count(1)  # of the requests that were run in their order

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
    priority_queue_policy={
        2: QueuePolicy(default_timeout_ms=20, timeout_action="DELAY"),
        4: QueuePolicy(max_queue_size=3, allow_timeout_override=False),
    },
)
def batched(helper, x):
    return x


@model(
    inputs=[Tensor("x", "FP32", (1,))],
    outputs=[Tensor("turn", "INT64", (1,))],
    max_queue_size=2,
    priority_queue_policy={
        1: QueuePolicy(max_queue_size=1),
        2: QueuePolicy(default_timeout_ms=50, allow_timeout_override=False),
        3: QueuePolicy(default_timeout_ms=50, timeout_action="DELAY"),
    },
)
def graded(helper, x):
    """Says as which one it was run."""
    return np.array([next(turns)])


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
