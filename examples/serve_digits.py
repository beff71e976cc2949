"""A model file: handwritten digits, 8 by 8 pixels, classified by the nearest of ten averages.

::

    shmgpu serve examples/serve_digits.py --helpers 2 --workers 2 --port 8000
    curl http://127.0.0.1:8000/v2/models/classify
"""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model


def load(helper):
    from sklearn.datasets import load_digits

    digits = load_digits()
    means = [digits.data[digits.target == digit].mean(axis=0) for digit in range(10)]
    return np.stack(means).astype("float32")


@model(
    inputs=[Tensor("images", "FP32", (-1, 64))],
    outputs=[Tensor("scores", "FP32", (-1, 10)), Tensor("digit", "INT64", (-1,))],
    max_batch_size=32,
)
def classify(helper, images):
    distances = np.square(images[:, None, :] - helper.session).sum(axis=2)
    return -distances, distances.argmin(axis=1)
