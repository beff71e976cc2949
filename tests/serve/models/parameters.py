"""Models that show what they see of a request's parameters, for the tests."""

from __future__ import annotations

import json

import numpy as np

from shmgpu.serve import Tensor, model

seen_by_load = []


def load(helper):
    seen_by_load.append(dict(helper.request.parameters))


def told(helper):
    return json.dumps(dict(helper.request.parameters), sort_keys=True)


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("seen", "BYTES", (1,))])
def plain(helper, x):
    return np.array([told(helper)], dtype=object)


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))], cache=True)
def scaled(helper, x):
    """Numbers only, so that it takes every shortcut that there is."""
    return x * np.float32(helper.request.parameters.get("by", 1))


@model(
    inputs=[Tensor("x", "FP32", (-1, 1))],
    outputs=[Tensor("y", "FP32", (-1, 2))],
    max_batch_size=8,
    max_delay_ms=200,
)
def batched(helper, x):
    """Each row beside how many rows ran together."""
    by = np.float32(helper.request.parameters.get("by", 1))
    return np.concatenate([x * by, np.full_like(x, len(x))], axis=1)


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("seen", "BYTES", (1,))], sequence=True)
def in_sequence(helper, state, x):
    return np.array([told(helper)], dtype=object)


@model(
    inputs=[Tensor("count", "INT64", (1,))],
    outputs=[Tensor("seen", "BYTES", (1,))],
    warmup=[],
)
def parts(helper, count):
    for _ in range(int(count[0])):
        yield np.array([told(helper)], dtype=object)


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("seen", "BYTES", (1,))])
def at_load(helper, x):
    return np.array([json.dumps(seen_by_load)], dtype=object)


@model(
    inputs=[Tensor("rows", "FP32", (-1, 4)), Tensor("text", "BYTES", (-1, 1))],
    outputs=[Tensor("shapes", "INT64", (-1, 4))],
    max_batch_size=8,
)
def shapes(helper, rows, text):
    return np.tile(np.array([*rows.shape, *text.shape]), (len(rows), 1))
