"""tensors: what the tensor API costs beside PyTorch eager in process.

Eager has as many threads as a helper has unless told.
``lone`` is the least that a tensor can be asked: one number made, changed and read, beside the C
round trip of the same run. ``chain`` is 1,000 element-wise operations in a row on 100,000 floats.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.workloads.messages import lone_latency

LIMIT_S = 120.0
CHAIN_STEPS = 1000
CHAIN_LENGTH = 100_000
WARM_UPS = 6  # repeated chains become loops in C from their third time on, beside the work


def device_threads() -> int:
    """Return how many threads a lone helper on the CPU has."""
    from shmgpu.common import devices

    return devices.threads_of_helper(devices.cores(), 1)


def median_us(call: Any, seconds: float, warm_ups: int) -> float:
    """Return the median time of a call, in microseconds."""
    import statistics

    for _ in range(warm_ups):
        call()
    took = []
    end = time.perf_counter() + seconds
    while len(took) < 3 or time.perf_counter() < end:
        began = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(took)


def shmgpu_lone(seconds: float) -> dict[str, float]:
    """Return the median microseconds of ``(tensor([1.]) + 1).data``."""
    import shmgpu

    with shmgpu.init(helpers=1, devices=["cpu"]):

        def call() -> None:
            if (shmgpu.tensor([1.0]) + 1).data[0] != 2:
                raise ProbeFailed("shmgpu gave a wrong answer")

        return {"median": median_us(call, seconds, 200)}


def _chained(x: Any) -> Any:
    for step in range(CHAIN_STEPS // 4):
        x = x * 0.999
        x = x + 0.001 * step
        x = x - 0.5
        x = x.abs()
    return x


def shmgpu_chain(seconds: float) -> dict[str, float]:
    """Return the median microseconds of a chain, through a helper."""
    import numpy as np

    import shmgpu

    with shmgpu.init(helpers=1, devices=["cpu"]):
        x = shmgpu.tensor(np.linspace(-1, 1, CHAIN_LENGTH, dtype=np.float32))
        call = lambda: _chained(x).sum().item()  # noqa: E731
        for _ in range(WARM_UPS):
            call()
            time.sleep(0.5)
        return {"median": median_us(call, seconds, 1)}


def eager_chain(seconds: float) -> dict[str, float]:
    """Return the same with PyTorch in this process."""
    import torch

    torch.set_num_threads(device_threads())
    x = torch.linspace(-1, 1, CHAIN_LENGTH)
    return {"median": median_us(lambda: _chained(x).sum().item(), seconds, 3)}


def probe(name: str, target: str, units: dict[str, str], **more: Any) -> Probe:
    """Return a probe that runs ``module:function`` in an interpreter of its own."""

    def run(seconds: float) -> dict[str, float]:
        return dict(isolate.call(target, seconds + LIMIT_S, seconds=seconds, **more))

    needs = ("shmgpu", "torch") if name == "shmgpu" else ("torch",)
    return Probe(name, run, units, needs=needs)


_US = {"median": "us"}

WORKLOAD = Workload(
    "tensors",
    "one number through a tensor, beside the C round trip; a chain of operations, beside eager",
    (
        Group(
            "lone",
            (
                probe("shmgpu", "benchmarks.workloads.tensors:shmgpu_lone", _US),
                lone_latency("C round trip"),
            ),
            (Figure("lone", ("shmgpu", "median"), ("C round trip", "median"), "<= 4"),),
        ),
        Group(
            "chain",
            (
                probe("shmgpu", "benchmarks.workloads.tensors:shmgpu_chain", _US),
                probe("PyTorch eager", "benchmarks.workloads.tensors:eager_chain", _US),
            ),
            # At least 0.9 of eager's speed.
            (Figure("chain", ("shmgpu", "median"), ("PyTorch eager", "median"), "<= 1.11"),),
            rounds=3,
            quick=False,
        ),
    ),
)
