"""A model file: handwritten digits, 8 by 8 pixels, classified by a regression learnt at the start.

::

    pip install ".[serve,demo]"
    shmgpu serve examples/serve_digits.py --helpers 2 --workers 2 --port 8000
    curl http://127.0.0.1:8000/v2/models/classify
    python examples/serve_digits.py 7 | curl http://127.0.0.1:8000/v2/models/classify/infer -d @-

Run as a program it prints a request: a picture of the digit that you name. The answer's ``digit``
is what the model takes it for; ``scores`` are probabilities, of which ``"classification": 3`` asks
for the best three by name.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from shmgpu.serve import Tensor, model

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAINED = 1500  # of 1797 pictures; the others are for requests


def load(helper):
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    digits = load_digits()
    learnt = LogisticRegression(max_iter=200, C=0.1)
    learnt.fit(digits.data[:TRAINED] / 16, digits.target[:TRAINED])
    return learnt.coef_.T.astype("float32"), learnt.intercept_.astype("float32")


@model(
    inputs=[Tensor("images", "FP32", (-1, 64))],  # brightness of each pixel, 0 to 16
    outputs=[Tensor("scores", "FP32", (-1, 10), labels=LABELS), Tensor("digit", "INT64", (-1,))],
    max_batch_size=32,
)
def classify(helper, images):
    weights, bias = helper.session
    scores = images / 16 @ weights + bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True), scores.argmax(axis=1)


def request(digit):
    """The JSON of a request with a picture of a digit that was not learnt from."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    place = TRAINED + int(np.flatnonzero(digits.target[TRAINED:] == digit)[0])
    tensor = {"name": "images", "datatype": "FP32", "shape": [1, 64]}
    tensor["data"] = digits.data[place].tolist()
    best = {"name": "scores", "parameters": {"classification": 3}}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "digit"}, best]})


if __name__ == "__main__":
    print(request(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
