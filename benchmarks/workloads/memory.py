"""memory: what a child and a helper hold, over the number of children.

Two measures, both the kernel's own, in MiB: *dirty*, the private pages a process has written to,
which is what one more of its kind costs; and *pss*, its share of all pages it maps, those that
several map divided among them, so that the sum over all processes is what the machine has given.
Once *idle*, when all have been started, and once after each child has made 1,000 calls. No model is
loaded; arenas hold one array of 64 bytes.

The limit is a bare worker: a fork of the same interpreter with two pipes, idle and after 1,000
requests, as many of them as children. At 32 children a process of ``multiprocessing``'s spawn
method stands beside them, which is what a user has who may not fork: an interpreter of its own with
the same imports. Two are enough to tell, as only file pages are shared between them.
"""

from __future__ import annotations

import multiprocessing
import statistics
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.measure import isolate
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, ProbeFailed, Workload
from benchmarks.measure.processes import BareWorker, import_torch, memory_mib, modules
from benchmarks.measure.stage import shared_array

CHILDREN = (8, 32, 128)
BESIDE_SPAWN = 32
IN_QUICK = 32
HELPERS = 2
CALLS = 1_000
SPAWNED = 2
LIMIT_S = 120.0
MEET_LIMIT_S = 60.0
FIGURES = (  # role, state, measure
    ("child", "idle", "dirty"),
    ("child", "called", "dirty"),
    ("child", "called", "pss"),
    ("helper", "idle", "dirty"),
    ("helper", "called", "dirty"),
    ("helper", "called", "pss"),
)
_PAIR = struct.Struct("<dd")


class Meeting:
    """Where processes forked later wait for each other; each meeting has a number, from 0."""

    def __init__(self, count: int, meetings: int) -> None:
        self._there = shared_array((meetings, count), "uint8")

    def wait(self, meeting: int, rank: int) -> None:
        """Come to a meeting and stay until all are there. Raises ProbeFailed."""
        self._there[meeting, rank] = 1
        limit = time.monotonic() + MEET_LIMIT_S
        while not self._there[meeting].all():
            if time.monotonic() > limit:
                raise ProbeFailed("not every process came")
            time.sleep(0.01)


def _quantities(role: str, state: str, pairs: Any) -> dict[str, float]:
    """Return the medians of (dirty, pss) pairs by their quantities' names."""
    dirty, pss = zip(*pairs, strict=True)
    return {
        f"{role} {state} dirty": statistics.median(dirty),
        f"{role} {state} pss": statistics.median(pss),
    }


def shmgpu_memory(children: int, with_torch: bool, calls: int = CALLS) -> dict[str, float]:
    """Return the median child's and helper's MiB, idle and after the calls."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    import_torch(with_torch)
    held = shared_array((2, HELPERS, 2), "float64")  # idle and called; helper; dirty and pss

    @shmgpu.function(arrays="numpy")
    def add_one(helper, x):  # type: ignore[no-untyped-def]
        return x + 1

    @shmgpu.function(arrays="numpy")
    def measure(helper, state):  # type: ignore[no-untyped-def]
        held[state, helper.id] = memory_mib()
        time.sleep(0.02)  # so that the other helper is the one that is free

    def measure_helpers(state: int) -> None:
        limit = time.monotonic() + MEET_LIMIT_S
        while not held[state].all():
            if time.monotonic() > limit:
                raise ProbeFailed("not every helper was given work")
            for future in [measure.submit(state) for _ in range(2 * HELPERS)]:
                future.result()

    meeting = Meeting(children, 6)

    def run(rank: int) -> list[tuple[float, float]]:
        meeting.wait(0, rank)
        idle = memory_mib()
        meeting.wait(1, rank)
        if rank == 0:
            measure_helpers(0)
        meeting.wait(2, rank)
        x = shmgpu.arena.zeros((16,), "float32")
        for _ in range(calls):
            add_one(x)
        meeting.wait(3, rank)
        called = memory_mib()
        meeting.wait(4, rank)
        if rank == 0:
            measure_helpers(1)
        meeting.wait(5, rank)  # whoever left earlier would leave its share of pages to the others
        return [idle, called]

    results = shmgpu.launch(run, children=children, helpers=HELPERS, devices=["cpu"], arena="4MiB")
    quantities = {}
    for number, state in enumerate(("idle", "called")):
        quantities |= _quantities("child", state, [result[number] for result in results])
        quantities |= _quantities("helper", state, held[number].tolist())
    return quantities


def bare_memory(children: int, with_torch: bool, calls: int = CALLS) -> dict[str, float]:
    """Return the median bare worker's MiB, idle and after the requests."""
    import shmgpu  # noqa: F401  so that the process is of the same size

    import_torch(with_torch)

    def serve(request: bytes) -> bytes:
        return _PAIR.pack(*memory_mib()) if request == b"memory" else request

    workers = [BareWorker(serve) for _ in range(children)]

    def all_of() -> list[tuple[float, ...]]:
        return [_PAIR.unpack(worker.ask(b"memory")) for worker in workers]

    quantities = _quantities("worker", "idle", all_of())
    for worker in workers:
        for _ in range(calls):
            worker.ask(bytes(64))
    quantities |= _quantities("worker", "called", all_of())
    for worker in reversed(workers):
        worker.end()
    return quantities


def _spawned(pipe: Connection, with_torch: bool) -> None:
    import numpy  # noqa: F401

    import_torch(with_torch)
    while (request := pipe.recv_bytes()) != b"end":
        pipe.send_bytes(_PAIR.pack(*memory_mib()) if request == b"memory" else request)


def spawned_memory(children: int, with_torch: bool, calls: int = CALLS) -> dict[str, float]:
    """Return the median spawned worker's MiB after the requests; two are run."""
    spawn = multiprocessing.get_context("spawn")
    workers = []
    for _ in range(SPAWNED):
        mine, theirs = spawn.Pipe()
        process = spawn.Process(target=_spawned, args=(theirs, with_torch), daemon=True)
        process.start()
        theirs.close()
        workers.append((process, mine))
    for _, pipe in workers:
        for _ in range(calls):
            pipe.send_bytes(bytes(64))
            pipe.recv_bytes()
    for _, pipe in workers:
        pipe.send_bytes(b"memory")
    quantities = _quantities(
        "worker", "called", [_PAIR.unpack(pipe.recv_bytes()) for _, pipe in workers]
    )
    for process, pipe in workers:
        pipe.send_bytes(b"end")
        process.join()
    return quantities


def _probe(
    name: str, function: Callable[..., dict[str, float]], children: int, with_torch: bool
) -> Probe:
    def run(_seconds: float) -> dict[str, float]:
        target = f"benchmarks.workloads.memory:{function.__name__}"
        result = isolate.call(target, LIMIT_S, children=children, with_torch=with_torch)
        return dict(result)

    roles = ("child", "helper") if function is shmgpu_memory else ("worker",)
    states = ("called",) if function is spawned_memory else ("idle", "called")
    units = {f"{r} {s} {m}": "MiB" for r in roles for s in states for m in ("dirty", "pss")}
    return Probe(name, run, units, modules(with_torch))


def _group(children: int, with_torch: bool) -> Group:
    suffix = "_torch" if with_torch else ""
    probes = [
        _probe("shmgpu", shmgpu_memory, children, with_torch),
        _probe("bare fork", bare_memory, children, with_torch),
    ]
    figures = [
        Figure(
            f"{role}_{state}_{measure}_{children}{suffix}",
            ("shmgpu", f"{role} {state} {measure}"),
            ("bare fork", f"worker {state} {measure}"),
            point=Point(
                Curve(f"memory of a {role}, {state}, {measure}", "children", log="x"),
                children,
                "with torch" if with_torch else "without torch",
            ),
        )
        for role, state, measure in FIGURES
    ]
    if children == BESIDE_SPAWN:
        probes.append(_probe("spawn", spawned_memory, children, with_torch))
        figures += [
            Figure(
                f"child_called_{measure}_{children}{suffix}_spawn",
                ("shmgpu", f"child called {measure}"),
                ("spawn", f"worker called {measure}"),
            )
            for measure in ("dirty", "pss")
        ]
    return Group(
        f"children_{children}{suffix}",
        tuple(probes),
        tuple(figures),
        rounds=1,
        quick=children == IN_QUICK and not with_torch,
    )


WORKLOAD = Workload(
    "memory",
    "MiB that a child and a helper hold, idle and after 1,000 calls, beside a bare fork",
    tuple(_group(children, torch) for torch in (False, True) for children in CHILDREN),
)
