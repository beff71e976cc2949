"""Models that keep something from one request of a client's to the next."""

from __future__ import annotations

import os

import numpy as np

from shmgpu.serve import Tensor, model


@model(
    inputs=[Tensor("x", "FP32", (1,))],
    outputs=[Tensor("total", "FP32", (1,)), Tensor("pid", "INT64", (1,))],
    sequence=True,
)
def total(helper, state, x):
    if x[0] == 666:
        raise ValueError("not this number")
    state["total"] = state.get("total", np.float32(0)) + x
    return state["total"], np.array([os.getpid()])


@model(
    inputs=[Tensor("text", "BYTES", (1,))],
    outputs=[Tensor("all", "BYTES", (1,))],
    sequence=True,
)
def joined(helper, state, text):
    state["text"] = state.get("text", b"") + text[0]
    return np.array([state["text"]], dtype=object)


@model(
    inputs=[Tensor("x", "FP32", (-1,))],
    outputs=[Tensor("y", "FP32", (-1,))],
    arrays="torch",
    sequence=True,
)
def last(helper, state, x):
    before = state.get("x", x * 0)
    state["x"] = x.clone()
    return before
