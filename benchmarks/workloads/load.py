"""load: how busy 32 children keep 2 helpers, over the time that the function takes.

Most of the service *waits*: it takes its time without a core, as a GPU session that waits for its
device does. So the figures show what the broker leaves unused between one call and the next, and
not how a small machine divides its cores. A sleep lasts up to 50 us longer than it was told to,
unless the helper asks for less slack, as these do; and whatever it lasts, it is the executed time
that counts as busy, as far as it falls into the measured span, over helpers times span.

The limit at each point is the raw relay, whose helpers take the same service and are handed up to
16 frames ahead: what is left of 1 there is the price of writing an answer and reading the next
frame. It is run beside shmgpu from C (the same function in the same program but for who carries the
messages) and from Python, where a call adds a few microseconds of interpreter to every service.

A service that *spins* needs a core. On two cores two such helpers, 32 children and a dispatcher
then share what one service more or less would fill, and the scheduler decides who waits for whom:
the busy share that is possible is below 1 and is, again, the relay's. This curve ends at 1 ms, the
scheduler's own time slice, and asks for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from benchmarks.measure import isolate
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, ProbeFailed, Workload
from benchmarks.measure.stage import Stage, shared_array
from benchmarks.workloads.messages import carried

CHILDREN = 32
HELPERS = 2
WAITING_US = (10, 30, 100, 300, 1_000, 4_000, 10_000, 20_000)
SPINNING_US = (10, 30, 100, 300, 1_000)
ASKED_FROM_US = 4_000
IN_QUICK_US = (30, 4_000)
LIMIT_S = 90.0
WARM_UP_S = 5.0
PR_SET_TIMERSLACK = 29

BUSY = Curve("busy share over service time", "service time (us)", log="x")
RATE = Curve("rate over service time", "service time (us)")
BUSY_SPINNING = Curve("busy share over a service that spins", "service time (us)", log="x")


def busy_share(
    intervals: Iterable[tuple[float, float]], began: float, ended: float, helpers: int
) -> float:
    """Return how much of ``helpers`` x (began, ended) the intervals of service fill."""
    served = sum(max(0.0, min(b, ended) - max(a, began)) for a, b in intervals)
    return served / (helpers * (ended - began))


def without_slack(helper: object) -> None:
    """Let this process's sleeps end when they were told to, to the nanosecond."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def shmgpu_load(seconds: float, service_s: float) -> dict[str, float]:
    """Return the share of the measured span that the helpers spent in the function."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import shmgpu

    # Each helper writes down when its services began and ended; the first row's first counts them.
    room = 64 + int(2 * (seconds + WARM_UP_S) / service_s)
    log = shared_array((HELPERS, room, 2), "float64")

    @shmgpu.function(arrays="numpy")
    def serve(helper, request):  # type: ignore[no-untyped-def]
        began = time.monotonic()
        time.sleep(service_s)
        mine = log[helper.id]
        row = int(mine[0, 0]) + 1
        mine[0, 0] = row
        if row < room:
            mine[row] = began, time.monotonic()

    stage = Stage(CHILDREN, seconds)

    def run(rank: int) -> None:
        request = shmgpu.arena.zeros((1,), "float64")
        stage.drive(rank, lambda: serve(request))

    stage.start_clock()
    shmgpu.launch(
        run,
        children=CHILDREN,
        helpers=HELPERS,
        session=without_slack,
        devices=["cpu"],
        arena="4MiB",
    )
    result = stage.result()
    counts = [int(log[helper, 0, 0]) for helper in range(HELPERS)]
    if not all(counts):
        raise ProbeFailed("not every helper was given work")
    if max(counts) >= room:
        raise ProbeFailed("the log of services is too short")
    intervals = [
        (a, b) for h, count in enumerate(counts) for a, b in log[h, 1 : count + 1].tolist()
    ]
    return {"busy": busy_share(intervals, *stage.span_s, HELPERS), "rate": result["rate"]}


UNITS = {"busy": "share", "rate": "1/s"}


def _python_probe(service_us: int) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        result = isolate.call(
            "benchmarks.workloads.load:shmgpu_load",
            seconds + LIMIT_S,
            seconds=seconds,
            service_s=service_us / 1e6,
        )
        return dict(result)

    return Probe("shmgpu", run, UNITS, needs=("shmgpu",))


def _c_probe(name: str, program: str, service_us: int, spins: bool) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        result = carried(
            program,
            seconds,
            children=CHILDREN,
            helpers=HELPERS,
            service_us=service_us,
            spins=int(spins),
        )
        return {name: float(result[name]) for name in UNITS}

    return Probe(name, run, UNITS)


def _name(service_us: int) -> str:
    return f"{service_us // 1000}ms" if service_us >= 1000 else f"{service_us}us"


def _waiting(service_us: int) -> Group:
    name = _name(service_us)

    def at(curve: Curve, series: str) -> Point:
        return Point(curve, service_us, series)

    return Group(
        name,
        (
            _python_probe(service_us),
            _c_probe("shmgpu from C", "messages", service_us, spins=False),
            _c_probe("relay", "relay", service_us, spins=False),
        ),
        (
            Figure(
                f"busy_{name}",
                ("shmgpu", "busy"),
                asked=">= 0.98" if service_us >= ASKED_FROM_US else None,
                point=at(BUSY, "shmgpu"),
            ),
            Figure(f"rate_{name}", ("shmgpu", "rate"), point=at(RATE, "shmgpu")),
            Figure(
                f"busy_{name}_c",
                ("shmgpu from C", "busy"),
                ("relay", "busy"),
                point=at(BUSY, "shmgpu from C"),
            ),
            Figure(
                f"rate_{name}_c",
                ("shmgpu from C", "rate"),
                ("relay", "rate"),
                point=at(RATE, "shmgpu from C"),
            ),
        ),
        # A span of many service times: a call more or less at its ends must not decide.
        seconds=1.0 if service_us >= ASKED_FROM_US else 0.0,
        rounds=3 if service_us >= ASKED_FROM_US else 2,
        quick=service_us in IN_QUICK_US,
        quick_rounds=1 if service_us >= ASKED_FROM_US else None,
    )


def _spinning(service_us: int) -> Group:
    name = _name(service_us)
    return Group(
        f"spinning_{name}",
        (
            _c_probe("shmgpu from C", "messages", service_us, spins=True),
            _c_probe("relay", "relay", service_us, spins=True),
        ),
        (
            Figure(
                f"busy_spinning_{name}",
                ("shmgpu from C", "busy"),
                ("relay", "busy"),
                point=Point(BUSY_SPINNING, service_us, "shmgpu from C"),
            ),
        ),
        rounds=2,
        quick=False,
    )


WORKLOAD = Workload(
    "load",
    "share of the run that 32 children keep 2 helpers busy, over the function's service time",
    (*map(_waiting, WAITING_US), *map(_spinning, SPINNING_US)),
)
