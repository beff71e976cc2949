"""What a prediction is worth: compositions of other operations."""

from __future__ import annotations

from shmgpu.graph import Node
from shmgpu.ops.elementwise import mul, sub
from shmgpu.ops.reductions import mean
from shmgpu.ops.stretching import sum

REDUCTIONS = {"mean": mean, "sum": sum, "none": lambda x: x}


def reduced_by(loss: Node, reduction: str) -> Node:
    """The loss of each element as one number, as ``reduction`` says."""
    reduce = REDUCTIONS.get(reduction)
    if reduce is None:
        raise ValueError(f"reduction={reduction!r} must be one of {', '.join(REDUCTIONS)}")
    return reduce(loss)


def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    difference = sub(input, target)
    return reduced_by(mul(difference, difference), reduction)
