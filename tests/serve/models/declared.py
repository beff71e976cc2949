"""Models that show what was declared of them."""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model


def _shows(name: str, **declared):
    """Answers all that it was called with in this helper, its warm-up included."""
    seen: list[list[float]] = []

    @model(
        name=name,
        inputs=[Tensor("x", "FP32", (2,))],
        outputs=[Tensor("seen", "FP32", (-1, 2))],
        **declared,
    )
    def body(helper, x):
        seen.append(x.tolist())
        return np.array(seen, "float32")

    return body


def _samples() -> list[tuple[np.ndarray]]:
    return [(np.full(2, 5, "float32"),)]


unsaid = _shows("unsaid")
listed = _shows("listed", warmup=[(np.full(2, n, "float32"),) for n in (3, 4)])
made = _shows("made", warmup=_samples)
cold = _shows("cold", warmup=[])


@model(
    inputs=[Tensor("x", "FP32", (-1, 1))],
    outputs=[Tensor("rows", "INT64", (-1,))],
    max_batch_size=2,
    max_delay_ms=1000,
    parameters={"colour": "red"},
)
def pair(helper, x):
    return np.full(len(x), len(x))
