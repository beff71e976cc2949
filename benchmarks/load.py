"""load: how busy 32 children keep 2 helpers with functions of 4, 10 and 20 ms.

The function's service is a ``time.sleep``: it takes its time without a core, as a GPU session that
waits for its device does. So the figure shows what the broker leaves unused between one call and
the next, and not how a small machine divides its cores.

Each call returns its helper and when it began and ended there. Busy is the executed service time
that falls into the measured span, over helpers times span.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from benchmarks import isolate
from benchmarks.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.stage import Stage, shared_array

CHILDREN = 32
HELPERS = 2
SERVICE_MS = (4, 10, 20)
LIMIT_S = 90.0


def busy_share(
    intervals: Iterable[tuple[float, float]], began: float, ended: float, helpers: int
) -> float:
    """Return how much of ``helpers`` x (began, ended) the intervals of service fill."""
    served = sum(max(0.0, min(b, ended) - max(a, began)) for a, b in intervals)
    return served / (helpers * (ended - began))


def shmgpu_load(seconds: float, service_s: float) -> dict[str, float]:
    """Return the share of the measured span that the helpers spent in the function."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import numpy as np

    import shmgpu

    @shmgpu.function(arrays="numpy")
    def serve(helper, request):  # type: ignore[no-untyped-def]
        began = time.monotonic()
        time.sleep(float(request[0]))
        return np.array([helper.id, began, time.monotonic()])

    stage = Stage(CHILDREN, seconds)
    room = 64 + int(4 * (seconds + 5) * HELPERS / service_s)
    # One row a call: helper, began, ended; the first row's number counts them.
    log = shared_array((CHILDREN, room, 3), "float64")

    def run(rank: int) -> None:
        request = shmgpu.arena.empty((1,), "float64")
        request[0] = service_s
        mine = log[rank]
        calls = 0

        def call() -> None:
            nonlocal calls
            answer = serve(request)
            if calls < room:
                mine[calls] = answer
            calls += 1

        stage.drive(rank, call)

    stage.start_clock()
    shmgpu.launch(run, children=CHILDREN, helpers=HELPERS, devices=["cpu"], arena="4MiB")
    result = stage.result()
    began, ended = stage.span_s
    rows = log.reshape(-1, 3)
    rows = rows[rows[:, 2] > 0]
    if len(set(rows[:, 0].tolist())) != HELPERS:
        raise ProbeFailed("not every helper was given work")
    share = busy_share([(a, b) for _, a, b in rows.tolist()], began, ended, HELPERS)
    return {"busy": share, "rate": result["rate"]}


def _group(service_ms: int) -> Group:
    def run(seconds: float) -> dict[str, float]:
        result = isolate.call(
            "benchmarks.load:shmgpu_load",
            seconds + LIMIT_S,
            seconds=seconds,
            service_s=service_ms / 1000,
        )
        return dict(result)

    return Group(
        f"{service_ms}ms",
        (Probe("shmgpu", run, {"busy": "share", "rate": "1/s"}, needs=("shmgpu",)),),
        (
            Figure(f"busy_{service_ms}ms", ("shmgpu", "busy"), asked=">= 0.98"),
            Figure(f"rate_{service_ms}ms", ("shmgpu", "rate")),
        ),
        # A span of many service times: a call more or less at its ends must not decide.
        seconds=1.0,
    )


WORKLOAD = Workload(
    "load",
    "share of the run that 2 helpers are busy with calls of 4, 10 and 20 ms from 32 children",
    tuple(_group(service_ms) for service_ms in SERVICE_MS),
)
