"""The table of workloads: a new one is a file of its own and one line here."""

from __future__ import annotations

from benchmarks.measure.figures import Workload
from benchmarks.simulation import simulate
from benchmarks.workloads import (
    allocator,
    attach,
    batching,
    broadcasts,
    calls,
    collectives,
    gpu,
    launch,
    load,
    memory,
    messages,
    parallel,
    paths,
    payload,
    respawn,
    serving,
    steps,
    tensors,
    training,
)

WORKLOADS: tuple[Workload, ...] = (
    messages.WORKLOAD,
    calls.WORKLOAD,
    broadcasts.WORKLOAD,
    attach.WORKLOAD,
    payload.WORKLOAD,
    load.WORKLOAD,
    batching.WORKLOAD,
    allocator.WORKLOAD,
    launch.WORKLOAD,
    respawn.WORKLOAD,
    memory.WORKLOAD,
    tensors.WORKLOAD,
    training.WORKLOAD,
    steps.WORKLOAD,
    collectives.WORKLOAD,
    parallel.WORKLOAD,
    serving.WORKLOAD,
    paths.WORKLOAD,
    gpu.WORKLOAD,
    simulate.WORKLOAD,
)
