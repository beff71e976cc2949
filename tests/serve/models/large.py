"""Models whose answers are larger than what asks for them."""

import numpy as np

from shmgpu.serve import Tensor, model


@model(inputs=[Tensor("count", "INT64", (1,))], outputs=[Tensor("y", "UINT8", (-1,))])
def large(helper, count):
    return np.zeros(int(count[0]), np.uint8)


@model(inputs=[Tensor("count", "INT64", (1,))], outputs=[Tensor("y", "UINT8", (-1,))], warmup=[])
def large_parts(helper, count):
    while True:
        yield np.zeros(int(count[0]), np.uint8)
