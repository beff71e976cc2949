"""parallel: training on two helpers as one device, beside the same without.

``processor``: what a step costs the program that records it, in processor time, beside the same on
one helper: a network of 784-128-10, a batch of 32, the loss read at every step. Both sleep while
they wait (``SHMGPU_SPIN=0``): the program on one helper would watch for its answers otherwise, and
time in which it has nothing to do would count as the price of a step.
``data_parallel``: steps a second of 784-512-512-10 with batches of 512 on two helpers, beside two
programs at once that each train such a network of their own with half of that batch, on a helper of
their own: they never meet, so nothing that meets can be quicker. Helpers have the threads that they
have unless told.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure.figures import Figure, Group, Workload
from benchmarks.workloads import training
from benchmarks.workloads.tensors import probe

HELPERS = 2
NARROW, NARROW_BATCH = (784, 128, 10), 32
WIDE, WIDE_BATCH = (784, 512, 512, 10), 512


def _step(widths: tuple[int, ...], batch: int, mesh: Any = None) -> Callable[[], float]:
    """A step of training; on the mesh, where there is one, with the batch cut."""
    import shmgpu
    from shmgpu import nn

    layers: list[Any] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.ReLU()] * bool(layers) + [nn.Linear(before, after)]
    model = nn.Sequential(*layers)
    put: Callable[[Any], Any] = shmgpu.tensor
    if mesh is not None:
        from shmgpu.distributed import Shard, distribute_tensor

        put = functools.partial(distribute_tensor, device_mesh=mesh, placements=[Shard(0)])
    sgd = shmgpu.SGD(model.parameters(), lr=0.01)
    return training.step_of(model, sgd, put, nn.mse_loss, batch)


def processor(seconds: float, on_mesh: bool) -> dict[str, float]:
    """Return the microseconds of processor time that this program takes for a step."""
    os.environ["SHMGPU_SPIN"] = "0"
    import shmgpu
    from shmgpu.distributed import init_device_mesh

    with shmgpu.init(helpers=HELPERS if on_mesh else 1, devices="cpu"):
        mesh = init_device_mesh("cpu", (HELPERS,)) if on_mesh else None
        step = _step(NARROW, NARROW_BATCH, mesh)
        for _ in range(training.WARM_UPS):
            step()
        count, used, end = 0, time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            step()
            count += 1
        return {"us": (time.process_time() - used) / count * 1e6}


def data_parallel(seconds: float) -> dict[str, float]:
    """Return the steps a second on two helpers as one device."""
    import shmgpu
    from shmgpu.distributed import init_device_mesh

    with shmgpu.init(helpers=HELPERS, devices="cpu"):
        step = _step(WIDE, WIDE_BATCH, init_device_mesh("cpu", (HELPERS,)))
        return {"rate": training.steps_a_second(step, seconds)}


def independent(seconds: float) -> dict[str, float]:
    """Return the same of each of two programs at once, with half of the batch; their mean."""
    import shmgpu

    def main(rank: int) -> float:
        step = _step(WIDE, WIDE_BATCH // HELPERS)
        return training.steps_a_second(step, seconds)

    rates = shmgpu.launch(main, children=HELPERS, helpers=HELPERS, devices="cpu")
    return {"rate": sum(rates) / len(rates)}


_HERE = "benchmarks.workloads.parallel"
_US, _RATE = {"us": "us"}, {"rate": "1/s"}

WORKLOAD = Workload(
    "parallel",
    "a step on two helpers as one device: what it costs its program, and how well it scales",
    (
        Group(
            "processor",
            (
                probe("on a mesh", f"{_HERE}:processor", _US, on_mesh=True),
                probe("on one helper", f"{_HERE}:processor", _US, on_mesh=False),
            ),
            (Figure("processor", ("on a mesh", "us"), ("on one helper", "us"), "<= 1.3"),),
            quick_rounds=1,
        ),
        Group(
            "data_parallel",
            (
                probe("one training", f"{_HERE}:data_parallel", _RATE),
                probe("two halves", f"{_HERE}:independent", _RATE),
            ),
            (Figure("data_parallel", ("one training", "rate"), ("two halves", "rate"), ">= 0.85"),),
            seconds=2.0,
            quick=False,
        ),
    ),
)
