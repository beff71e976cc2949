"""The model as ``shmgpu serve`` loads it: float32 rows, doubled."""

import numpy as np

from shmgpu.serve import Tensor, model


@model(
    inputs=[Tensor("x", "FP32", (-1, -1))],
    outputs=[Tensor("y", "FP32", (-1, -1))],
    max_batch_size=64,
)
def double(helper, x):  # type: ignore[no-untyped-def]
    """Return every item twice as large."""
    return np.add(x, x, out=helper.out)
