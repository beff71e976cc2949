"""payload: what a call costs by the size of its argument, of its result, of both.

``call_64MiB`` is the claim: a function that touches its argument's first element only, so that
nothing but the call itself is left to measure. One child makes calls with 64 MiB and with 64 B by
turns, in blocks, through one helper: the two sizes see the same machine at the same time.

The curves have one client and one worker, and do the tasks of ``measure/task.py``. Each series is
one fresh interpreter that goes along all sizes: shmgpu with NumPy arrays and with tensors, the same
function called without any other process (what the machine's memory allows), and the peers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measure import isolate, sizes
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, ProbeFailed, Workload
from benchmarks.measure.stopwatch import Stopwatch
from benchmarks.measure.task import DIRECTIONS, ITEM_BYTES, Task
from benchmarks.peers import PEERS

SMALL_BYTES = 64
LARGE_BYTES = 64 << 20
BLOCK_CALLS = 50
LIMIT_S = 90.0
CURVE_LIMIT_S = 240.0
# A point takes this share of the round's seconds: there are many, and a median needs few calls.
POINT_SHARE = 0.05
CURVE_ROUNDS = 3
PEERS_ROUNDS = 1  # each is many points, of which the largest take seconds
DECLARED_FROM_BYTES = 1 << 20


def shmgpu_payload(seconds: float) -> dict[str, float]:
    """Return the median call's microseconds for the small and for the large argument."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import numpy as np

    import shmgpu

    @shmgpu.function(arrays="numpy")
    def touch_first(helper, x):  # type: ignore[no-untyped-def]
        return x[:1] + 1

    def run(rank: int) -> dict[str, float]:
        arrays = []
        for nbytes in (SMALL_BYTES, LARGE_BYTES):
            x = shmgpu.arena.empty((nbytes // 4,), "float32")
            x[:] = 1  # the large argument has all its pages, as a real one would
            arrays.append(x)
            if not np.array_equal(touch_first(x), [2.0]):
                raise ProbeFailed("shmgpu gave a wrong answer")
        took_us: list[list[float]] = [[], []]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for x, mine in zip(arrays, took_us, strict=True):
                for _ in range(BLOCK_CALLS):
                    began = time.perf_counter_ns()
                    touch_first(x)
                    mine.append((time.perf_counter_ns() - began) / 1000)
        return {"small": statistics.median(took_us[0]), "large": statistics.median(took_us[1])}

    results = shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena="96MiB")
    return dict(results[0])


def _run(seconds: float) -> dict[str, float]:
    result = isolate.call(
        "benchmarks.workloads.payload:shmgpu_payload", seconds + LIMIT_S, seconds=seconds
    )
    return dict(result)


def shmgpu_sizes(
    arrays: str, seconds: float, most_bytes: int = sizes.LARGEST_BYTES
) -> dict[str, float | str]:
    """Go along the sizes with ``numpy`` arrays or ``torch`` tensors, in one child of one launch.

    Each task has a function of its own, as a peer's worker has its task: only the array goes. From
    ``DECLARED_FROM_BYTES`` on, where a copy costs more than a declaration, the result is declared,
    so that the function writes it where it is read.
    """
    import importlib

    import shmgpu

    xp = importlib.import_module(arrays)

    def function_of(task: Task) -> Any:
        result = shmgpu.Declared((task.answer_items,))
        if ITEM_BYTES * task.answer_items >= DECLARED_FROM_BYTES:

            def function(helper, x):  # type: ignore[no-untyped-def]
                task.answer_into(xp, x, helper.out)

            return shmgpu.function(arrays=arrays, out=result)(named(function, task))  # type: ignore[call-overload]

        def function(helper, x):  # type: ignore[no-untyped-def]
            return task.answer(xp, x)

        return shmgpu.function(arrays=arrays)(named(function, task))  # type: ignore[call-overload]

    def named(function: Any, task: Task) -> Any:
        # Rows of the sealed table are told apart by name.
        function.__qualname__ = f"{task.direction}_{task.nbytes}"
        return function

    functions = {task: function_of(task) for task in sizes.tasks()}

    def median_us(task: Task) -> float:
        x = shmgpu.arena.empty((task.request_items,), "float32")
        x[:] = 1
        argument = x if arrays == "numpy" else xp.from_numpy(x)
        function = functions[task]

        def call() -> Any:
            answer = function(argument)
            return answer if arrays == "numpy" else answer.numpy()

        return _timed(task, x, call, seconds)

    def run(rank: int) -> dict[str, float | str]:
        return sizes.along(median_us, most_bytes)

    room = 2 * most_bytes + (64 << 20)
    results = shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena=room)
    return dict(results[0])


def in_process_sizes(seconds: float) -> dict[str, float | str]:
    """Go along the sizes with no other process: the function writes into an array that is there."""
    import numpy as np

    def median_us(task: Task) -> float:
        x, out = task.request(), np.zeros(task.answer_items, "float32")

        def call() -> Any:
            task.answer_into(np, x, out)
            return out

        return _timed(task, x, call, seconds)

    return sizes.along(median_us)


def _timed(task: Task, x: Any, call: Callable[[], Any], seconds: float) -> float:
    """Check one whole answer, then return the median time of a call."""
    task.check(x, call())
    stopwatch = Stopwatch(seconds)
    stopwatch.drive(0, task.step(x, call))
    return stopwatch.median_us()


def _series(name: str, needs: tuple[str, ...], target: str, more: Mapping[str, Any]) -> Probe:
    def run(seconds: float) -> Mapping[str, float | str]:
        given = {"seconds": seconds * POINT_SHARE, **more}
        result: dict[str, float | str] = isolate.call(target, CURVE_LIMIT_S, **given)
        return result

    return Probe(name, run, dict.fromkeys(sizes.QUANTITIES, "us"), needs)


IN_PROCESS = _series("in process", ("numpy",), "benchmarks.workloads.payload:in_process_sizes", {})
SHMGPU = {
    arrays: _series(
        f"shmgpu, {title}",
        ("shmgpu",),
        "benchmarks.workloads.payload:shmgpu_sizes",
        {"arrays": arrays},
    )
    for arrays, title in (("numpy", "NumPy"), ("torch", "torch"))
}
CURVES = {
    direction: Curve(f"payload, {words}", "bytes")
    for direction, words in (
        ("in", "in: the argument has the bytes"),
        ("out", "out: the result has the bytes"),
        ("both", "both ways: argument and result have the bytes"),
    )
}


def _figures(key: str, probe: Probe, against: Probe | None) -> tuple[Figure, ...]:
    """Return a series' points, named ``in_64B_<key>``, each beside the same point of another."""
    return tuple(
        Figure(
            f"{point}_{key}",
            (probe.name, point),
            (against.name, point) if against else None,
            point=Point(CURVES[direction], float(nbytes), probe.name),
        )
        for direction in DIRECTIONS
        for size, nbytes in sizes.SIZES.items()
        for point in (sizes.quantity(direction, size),)
    )


def _peers() -> Group:
    """Return the group that has every configuration of every peer, beside shmgpu."""
    ours = SHMGPU["numpy"]
    probes, figures = [ours], []
    for peer in PEERS:
        for configuration in peer.configurations:
            more = {"name": peer.name, "configuration": configuration}
            probe = _series(
                peer.label(configuration), peer.needs, "benchmarks.peers:run_sizes", more
            )
            probes.append(probe)
            figures += _figures(f"{peer.key}_{peer.slug(configuration)}", probe, ours)
    return Group("peers", tuple(probes), tuple(figures), rounds=PEERS_ROUNDS, quick=False)


WORKLOAD = Workload(
    "payload",
    "a call by the bytes of its argument and of its result, from 64 B to 256 MiB",
    (
        Group(
            "size",
            (Probe("shmgpu", _run, {"small": "us", "large": "us"}, needs=("shmgpu",)),),
            (
                Figure(
                    "call_64MiB",
                    ("shmgpu", "large"),
                    ("shmgpu", "small"),
                    "<= 1.1",
                    "shmgpu, 64 B",
                ),
            ),
        ),
        Group(
            "sizes",
            (IN_PROCESS, *SHMGPU.values()),
            (
                *_figures("in_process", IN_PROCESS, None),
                *_figures("shmgpu_numpy", SHMGPU["numpy"], IN_PROCESS),
                *_figures("shmgpu_torch", SHMGPU["torch"], IN_PROCESS),
            ),
            rounds=CURVE_ROUNDS,
            quick_rounds=1,
        ),
        _peers(),
    ),
)
