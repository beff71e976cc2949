"""What tests of broadcasts broadcast, and how they see what each helper has of it."""

from __future__ import annotations

import shmgpu

TWO = {"helpers": 2, "devices": "cpu", "arena": "4MiB"}


@shmgpu.function(arrays="numpy")
def set_weights(helper, weights, also=None):
    helper.weights = weights
    helper.times = getattr(helper, "times", 0) + 1


@shmgpu.function(arrays="numpy")
def see(helper):
    weights = getattr(helper, "weights", None)
    return helper.id, helper.version, None if weights is None else weights.copy(), helper.generation


@shmgpu.function(arrays="numpy")
def raise_in(helper, number, weights):
    """Raises in the helper of that number, in its first life."""
    helper.weights = weights
    if helper.id == number and helper.generation == 1:
        raise ValueError(f"helper {number} does not want it")


def everywhere(function=see, helpers=2):
    """What the function returns in each helper."""
    return [function.options(helpers=[number])() for number in range(helpers)]


def versions_and_weights(helpers=2):
    return [(version, float(weights[0])) for _, version, weights, _ in everywhere(see, helpers)]
