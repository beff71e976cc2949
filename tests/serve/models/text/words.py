"""A model that gets numbers for words: text is cut apart in the workers."""

from __future__ import annotations

import os

import numpy as np

from shmgpu.serve import Tensor, model


@model(
    inputs=[Tensor("text", "BYTES", (-1,))],
    outputs=[Tensor("lengths", "INT64", (-1, 4)), Tensor("by", "INT64", (-1, 2))],
    max_batch_size=8,
    prepare="_cutting:cut",
    prepared=[Tensor("lengths", "INT64", (-1, 4)), Tensor("by", "INT64", (-1,))],
    warmup=lambda: [(np.array([b"warm up"], object),)],
)
def words(helper, lengths, by):
    own = np.full(len(by), os.getpid())
    return lengths, np.stack([by, own], axis=1)


@model(
    inputs=[Tensor("text", "BYTES", (-1,))],
    outputs=[Tensor("count", "INT64", (-1,))],
    max_batch_size=8,
    prepare="_cutting:cut_short",
    prepared=[Tensor("lengths", "INT64", (-1, 4)), Tensor("by", "INT64", (-1,))],
    warmup=lambda: [(np.array([b"warm up"], object),)],
    cache=True,
)
def short(helper, lengths, by):
    helper.response.parameters["rows"] = len(by)
    return (lengths > 0).sum(axis=1)
