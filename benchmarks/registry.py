"""The table of workloads: a new one is a file of its own and one line here."""

from __future__ import annotations

from benchmarks import allocator, attach, calls, launch, load, messages, payload, simulate
from benchmarks.figures import Workload

WORKLOADS: tuple[Workload, ...] = (
    messages.WORKLOAD,
    calls.WORKLOAD,
    attach.WORKLOAD,
    payload.WORKLOAD,
    load.WORKLOAD,
    allocator.WORKLOAD,
    launch.WORKLOAD,
    simulate.WORKLOAD,
)
