"""Two models of one file whose loading takes 48 MiB."""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model


def load(helper):
    return np.ones(6 << 20)


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))])
def heavy(helper, x):
    return x + np.float32(helper.session[0])


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))])
def heavy_too(helper, x):
    return x
