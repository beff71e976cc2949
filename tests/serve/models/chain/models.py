"""Ensembles, and the models that they call, for the tests."""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, ensemble, model

X = Tensor("x", "FP32", (-1,))
Y = Tensor("y", "FP32", (-1,))


@model(inputs=[X], outputs=[Y])
def double(helper, x):
    return 2 * x


@model(inputs=[X], outputs=[Y])
def telling_model(helper, x):
    helper.response.parameters["least"] = x.min()
    return x


@model(inputs=[X], outputs=[Tensor("address", "INT64", (1,))])
def address(helper, x):
    return np.array([x.ctypes.data])


@model(inputs=[Tensor("text", "BYTES", (-1,))], outputs=[Tensor("upper", "BYTES", (-1,))])
def upper(helper, text):
    return np.array([one.upper() for one in text], dtype=object)


@model(inputs=[X], outputs=[Y], warmup=[])
def fails(helper, x):
    raise RuntimeError("the model of an ensemble")


twice = ensemble("twice", steps="_steps:twice", inputs=[X], outputs=[Y])
in_place = ensemble(
    "in_place", steps="_steps:in_place", inputs=[X], outputs=[Tensor("same", "BOOL", (2,))]
)
together = ensemble("together", steps="_steps:together", inputs=[X], outputs=[Y])
telling = ensemble("telling", steps="_steps:telling", inputs=[X], outputs=[Y])
texts = ensemble(
    "texts",
    steps="_steps:texts",
    inputs=[Tensor("text", "BYTES", (1,)), Tensor("seed", "INT32", (1,), optional=True)],
    outputs=[Tensor("said", "BYTES", (1,))],
)
wrong = ensemble(
    "wrong",
    steps="_steps:wrong",
    inputs=[Tensor("kind", "INT32", (1,))],
    outputs=[Y],
    default_timeout_ms=2000,
    max_queue_size=20,
)
