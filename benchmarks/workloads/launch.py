"""launch: how long it takes to start and end 32 children and 2 helpers, and what idling costs.

No model is loaded and no arena populated. Every launch is made by a fresh interpreter, after its
imports; once with shmgpu alone and once with torch imported, whose many objects and threads are
what a fork has to cope with in real use. The curve over children is held against bare forks: as
many processes that do nothing, forked one after the other and waited for.
"""

from __future__ import annotations

import gc
import os
import statistics
import time

from benchmarks.measure import isolate
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, Workload
from benchmarks.measure.processes import (
    children_of,
    cpu_ns,
    cpu_ticks,
    import_torch,
    memory_mib,
    modules,
)

CHILDREN = 32
HELPERS = 2
LIMIT_S = 60.0
IDLE_S = 2.0
SETTLE_S = 0.5
CURVE = {False: (1, 8, 32, 128), True: (8, 128)}  # children, without and with torch
IN_QUICK = (8,)
WALL = Curve("launch over children", "children")


def shmgpu_wall(with_torch: bool, children: int = CHILDREN) -> float:
    """Return the seconds that a launch of children with nothing to do takes, start to end."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    import_torch(with_torch)

    def nothing(rank: int) -> None:
        return None

    began = time.perf_counter()
    shmgpu.launch(nothing, children=children, helpers=HELPERS, devices=["cpu"])
    return time.perf_counter() - began


def bare_wall(with_torch: bool, children: int = CHILDREN) -> float:
    """Return the seconds that as many bare forks take that end at once, helpers included."""
    import shmgpu  # noqa: F401  so that the process is of the same size

    import_torch(with_torch)
    began = time.perf_counter()
    pids = []
    for _ in range(children + HELPERS):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return time.perf_counter() - began


def shmgpu_idle(with_torch: bool) -> dict[str, float]:
    """Return what idle children hold and what the idle dispatcher uses."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    import_torch(with_torch)
    began = time.monotonic()

    def until(seconds: float) -> None:
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    def idle(rank: int) -> dict[str, float]:
        if rank:
            until(2 * SETTLE_S)
            gc.collect()
            until(4 * SETTLE_S + IDLE_S)
            return {}
        # One looks at the others: looking takes pages of its own.
        until(SETTLE_S)
        dispatcher = os.getppid()  # a child's parent is the dispatcher
        others = [pid for pid in children_of(dispatcher)[HELPERS:] if pid != os.getpid()]
        found = {"dirty": max(memory_mib(pid)[0] for pid in others)}
        until(3 * SETTLE_S)
        found["dirty_collected"] = max(memory_mib(pid)[0] for pid in others)
        ticks, ns = cpu_ticks(dispatcher), cpu_ns(dispatcher)
        until(3 * SETTLE_S + IDLE_S)
        found["ticks"] = float(cpu_ticks(dispatcher) - ticks)
        found["ns"] = float(cpu_ns(dispatcher) - ns)
        return found

    return shmgpu.launch(idle, children=CHILDREN, helpers=HELPERS, devices=["cpu"])[0]


def _wall_probe(name: str, target: str, with_torch: bool, children: int = CHILDREN) -> Probe:
    counted = not with_torch  # importing torch fills a round by itself

    def run(repetitions: float) -> dict[str, float]:
        walls = [
            isolate.call(
                f"benchmarks.workloads.launch:{target}",
                LIMIT_S,
                with_torch=with_torch,
                children=children,
            )
            for _ in range(int(repetitions) if counted else 1)
        ]
        return {"wall": statistics.median(walls)}

    return Probe(name, run, {"wall": "s"}, modules(with_torch), counted)


def _wall_group(with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""
    return Group(
        f"wall{suffix}",
        (_wall_probe("shmgpu", "shmgpu_wall", with_torch),),
        (Figure(f"wall{suffix}", ("shmgpu", "wall"), asked="< 0.25"),),
        rounds=5,
    )


def _idle_group(with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""

    def run(_seconds: float) -> dict[str, float]:
        result = isolate.call(
            "benchmarks.workloads.launch:shmgpu_idle", LIMIT_S, with_torch=with_torch
        )
        return dict(result)

    units = {"dirty": "MiB", "dirty_collected": "MiB", "ticks": "ticks", "ns": "ns"}
    return Group(
        f"idle{suffix}",
        (Probe("shmgpu", run, units, modules(with_torch)),),
        (
            Figure(f"dirty{suffix}", ("shmgpu", "dirty"), asked="<= 3"),
            Figure(f"dirty_collected{suffix}", ("shmgpu", "dirty_collected"), asked="<= 3"),
            Figure(f"idle_ticks{suffix}", ("shmgpu", "ticks"), asked="== 0"),
            Figure(f"idle_cpu{suffix}", ("shmgpu", "ns")),
        ),
        rounds=1,  # nothing here is a time that varies
        quick=not with_torch,
    )


def _curve_group(children: int, with_torch: bool) -> Group:
    name = f"wall_children_{children}" + ("_torch" if with_torch else "")
    series = "with torch" if with_torch else "without torch"
    return Group(
        name,
        (
            _wall_probe("shmgpu", "shmgpu_wall", with_torch, children),
            _wall_probe("bare forks", "bare_wall", with_torch, children),
        ),
        (
            Figure(
                name,
                ("shmgpu", "wall"),
                ("bare forks", "wall"),
                point=Point(WALL, children, series),
            ),
        ),
        rounds=2,
        quick=children in IN_QUICK and not with_torch,
    )


WORKLOAD = Workload(
    "launch",
    "starting and ending 32 children and 2 helpers; memory and CPU while they idle",
    (
        _wall_group(False),
        _wall_group(True),
        _idle_group(False),
        _idle_group(True),
        *(_curve_group(children, torch) for torch, sizes in CURVE.items() for children in sizes),
    ),
)
