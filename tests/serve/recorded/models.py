"""The models that the recorded requests are for, as this server has them; Triton's are the same.

``recorder.py`` beside this file writes those, from DECLARED.
"""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model

KINDS = {
    "BOOL": "?",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
    "BYTES": "O",
}


@model(
    inputs=[Tensor("a", "FP32", (-1, 4)), Tensor("b", "FP32", (-1, 4))],
    outputs=[Tensor("sum", "FP32", (-1, 4)), Tensor("same", "FP32", (-1, 4))],
    max_batch_size=8,
)
def add(helper, a, b):
    return a + b, a


@model(
    inputs=[Tensor(f"in_{kind}", kind, (-1,), optional=True) for kind in KINDS],
    outputs=[Tensor("count", "INT64", (1,))],
    warmup=[],
)
def types(helper, *given):
    return np.array([sum(one.size for one in given if one is not None)])


@model(inputs=[Tensor("text", "BYTES", (-1,))], outputs=[Tensor("echo", "BYTES", (-1,))])
def text(helper, text):
    return text


@model(
    inputs=[Tensor("x", "FP32", (-1, 3))],
    outputs=[Tensor("scores", "FP32", (-1, 3), labels=["no", "maybe", "yes"])],
    max_batch_size=8,
)
def labels(helper, x):
    return x


DECLARED = (add, types, text, labels)
