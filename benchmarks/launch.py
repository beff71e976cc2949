"""launch: how long it takes to start and end 32 children and 2 helpers, and what idling costs.

No model is loaded and no arena populated. Every launch is made by a fresh interpreter, after its
imports; once with shmgpu alone and once with torch imported, whose many objects and threads are
what a fork has to cope with in real use.
"""

from __future__ import annotations

import gc
import math
import os
import re
import statistics
import time
from pathlib import Path

from benchmarks import isolate
from benchmarks.figures import Figure, Group, Probe, ProbeFailed, Workload

CHILDREN = 32
HELPERS = 2
LIMIT_S = 60.0
IDLE_S = 2.0
SETTLE_S = 1.0


def _import_torch() -> None:
    import torch  # noqa: F401


def shmgpu_wall(with_torch: bool) -> float:
    """Return the seconds that a launch of children with nothing to do takes, start to end."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    if with_torch:
        _import_torch()

    def nothing(rank: int) -> None:
        return None

    began = time.perf_counter()
    shmgpu.launch(nothing, children=CHILDREN, helpers=HELPERS, devices=["cpu"])
    return time.perf_counter() - began


def private_dirty_bytes() -> int:
    """Return the bytes of this process's pages that are written to and nobody else's."""
    match = re.search(r"^Private_Dirty:\s+(\d+) kB", _proc("self", "smaps_rollup"), re.MULTILINE)
    if match is None:
        raise ProbeFailed("/proc/self/smaps_rollup has no Private_Dirty")
    return int(match[1]) * 1024


def cpu_ticks(pid: int) -> int:
    """Return the clock ticks of user and system time that a process has used."""
    # The name may hold spaces and brackets: the fields count from behind the last one.
    fields = _proc(str(pid), "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cpu_ns(pid: int) -> float:
    """Return the nanoseconds a process's first thread has run; NaN where the kernel is silent."""
    try:
        return float(_proc(str(pid), "schedstat").split()[0])
    except OSError:
        return math.nan


def _proc(who: str, name: str) -> str:
    return (Path("/proc") / who / name).read_text()


def shmgpu_idle(with_torch: bool) -> dict[str, float]:
    """Return what idle children hold and what the idle dispatcher uses."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    if with_torch:
        _import_torch()
    began = time.monotonic()

    def until(seconds: float) -> None:
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    def idle(rank: int) -> list[float]:
        until(SETTLE_S)
        before = private_dirty_bytes()
        until(2 * SETTLE_S)
        gc.collect()
        after = private_dirty_bytes()
        until(3 * SETTLE_S)
        dispatcher = os.getppid()  # a child's parent is the dispatcher
        ticks, ns = cpu_ticks(dispatcher), cpu_ns(dispatcher)
        until(3 * SETTLE_S + IDLE_S)
        return [before, after, cpu_ticks(dispatcher) - ticks, cpu_ns(dispatcher) - ns]

    results = shmgpu.launch(idle, children=CHILDREN, helpers=HELPERS, devices=["cpu"])
    mib = 1 << 20
    return {
        "dirty": max(result[0] for result in results) / mib,
        "dirty_collected": max(result[1] for result in results) / mib,
        "ticks": float(results[0][2]),
        "ns": float(results[0][3]),
    }


def _wall_group(with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""

    def run(repetitions: float) -> dict[str, float]:
        target = "benchmarks.launch:shmgpu_wall"
        walls = [
            isolate.call(target, LIMIT_S, with_torch=with_torch) for _ in range(int(repetitions))
        ]
        return {"wall": statistics.median(walls)}

    needs = ("shmgpu", "torch") if with_torch else ("shmgpu",)
    return Group(
        f"wall{suffix}",
        (Probe("shmgpu", run, {"wall": "s"}, needs, counted=True),),
        (Figure(f"wall{suffix}", ("shmgpu", "wall"), asked="< 0.25"),),
    )


def _idle_group(with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""

    def run(_seconds: float) -> dict[str, float]:
        result = isolate.call("benchmarks.launch:shmgpu_idle", LIMIT_S, with_torch=with_torch)
        return dict(result)

    units = {"dirty": "MiB", "dirty_collected": "MiB", "ticks": "ticks", "ns": "ns"}
    needs = ("shmgpu", "torch") if with_torch else ("shmgpu",)
    return Group(
        f"idle{suffix}",
        (Probe("shmgpu", run, units, needs),),
        (
            Figure(f"dirty{suffix}", ("shmgpu", "dirty"), asked="<= 3"),
            Figure(f"dirty_collected{suffix}", ("shmgpu", "dirty_collected"), asked="<= 3"),
            Figure(f"idle_ticks{suffix}", ("shmgpu", "ticks"), asked="== 0"),
            Figure(f"idle_cpu{suffix}", ("shmgpu", "ns")),
        ),
        rounds=3,
    )


WORKLOAD = Workload(
    "launch",
    "starting and ending 32 children and 2 helpers; memory and CPU while they idle",
    (_wall_group(False), _wall_group(True), _idle_group(False), _idle_group(True)),
)
