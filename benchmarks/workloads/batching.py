"""batching: what offered load becomes, with batches formed by the dispatcher and without.

Eight children offer Poisson arrivals of one row each, in an open loop (``measure/arrivals.py``), to
one helper with a model whose cost is a fixed part and a part per row (``measure/models.py``). Load
is given as a multiple of what that helper can do without batching: beyond 1 it cannot keep up
without, beyond ``MAX_ROWS x row / batch`` (14 with the sleeping model) not with batching either.

An answer is good when it came within 50 ms of when its call was due, 25 times what the sleeping
model takes for one row.
"""

from __future__ import annotations

from benchmarks.measure import isolate
from benchmarks.measure.arrivals import Log, MeasuredSpan, account, offer, poisson
from benchmarks.measure.figures import Curve, Figure, Group, Point, Probe, ProbeFailed, Workload
from benchmarks.measure.models import MODELS
from benchmarks.measure.stage import Stage, shared_array
from benchmarks.workloads import fairness

CLIENTS = 8
MAX_ROWS = 16
GOOD_S = 0.05
WARM_S = 0.25
SEED = 20240
LIMIT_S = 90.0
START_LIMIT_S = 60.0


def offered(model: str, load: float, batched: bool, seconds: float) -> dict[str, float]:
    """Offer ``load`` times what one helper can do unbatched, and return the account of it."""
    # Only here, so that the suite can be listed where shmgpu is not built.
    import multiprocessing
    import time

    import numpy as np

    import shmgpu

    chosen = MODELS[model]
    span = MeasuredSpan(WARM_S, WARM_S + seconds, WARM_S + seconds + 2 * GOOD_S)
    rate = load / chosen.row_s()
    due_s = [poisson(rate / CLIENTS, span.last_s, SEED, n) for n in range(CLIENTS)]
    answered_s = shared_array((CLIENTS, max(map(len, due_s))), "float64")
    answered_s[:] = np.nan
    start_s = shared_array((1,), "float64")
    ready = multiprocessing.get_context("fork").Barrier(CLIENTS)

    @shmgpu.function(
        arrays=chosen.arrays,  # type: ignore[call-overload]
        batch=shmgpu.Batch(max_size=MAX_ROWS) if batched else None,
    )
    def infer(helper, rows):  # type: ignore[no-untyped-def]
        return helper.session(rows)

    def run(rank: int) -> None:
        rows = shmgpu.arena.zeros((1, chosen.width), "float32")
        if infer.submit(rows).result().shape != rows.shape:
            raise ProbeFailed("the model gave a wrong answer")
        if ready.wait(START_LIMIT_S) == 0:
            start_s[0] = time.monotonic() + 0.02
        ready.wait(START_LIMIT_S)
        start = float(start_s[0])

        def now() -> float:
            return time.monotonic() - start

        log = Log(answered_s[rank, : len(due_s[rank])], now)
        offer(due_s[rank], lambda number: log.add(number, infer.submit(rows)), now)
        log.settle(span.given_up_s)

    shmgpu.launch(
        run,
        children=CLIENTS,
        helpers=1,
        devices=["cpu"],
        arena="16MiB",
        session=lambda helper: chosen.make(),
    )
    everything = np.concatenate([answered_s[n, : len(due)] for n, due in enumerate(due_s)])
    settled = account(np.concatenate(due_s), everything, span, GOOD_S)
    return {
        "rate": settled.rate,
        "goodput": settled.goodput,
        "p50": settled.p50_ms,
        "p99": settled.p99_ms,
    }


def lone(batched: bool, seconds: float) -> dict[str, float]:
    """Time the calls of one child that is alone, of a function that returns its rows plus one."""
    import shmgpu

    @shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=MAX_ROWS) if batched else None)
    def add_one(helper, rows):  # type: ignore[no-untyped-def]
        return rows + 1

    stage = Stage(1, seconds)

    def run(rank: int) -> None:
        rows = shmgpu.arena.zeros((1, 16), "float32")
        stage.drive(rank, lambda: add_one(rows))

    stage.start_clock()
    shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena="4MiB")
    result = stage.result()
    return {"median": result["median_us"], "p99": result["p99_us"]}


UNITS = {"rate": "1/s", "goodput": "1/s", "p50": "ms", "p99": "ms"}
QUANTITIES = ("goodput", "p50", "p99")
BATCHED, SINGLE = "batched", "one by one"


def _probe(name: str, target: str, units: dict[str, str], needs: tuple[str, ...], **size) -> Probe:  # type: ignore[no-untyped-def]
    def run(seconds: float) -> dict[str, float]:
        return dict(
            isolate.call(
                f"benchmarks.workloads.batching:{target}",
                seconds + LIMIT_S,
                seconds=seconds,
                batched=name == BATCHED,
                **size,
            )
        )

    return Probe(name, run, units, needs=("shmgpu", *needs))


def _curve(model: str, quantity: str) -> Curve:
    return Curve(
        f"batching: {quantity}, {model} model",
        "offered load, as a multiple of what one helper does one by one",
    )


def _point(model: str, load: float, asked: str | None, quick: bool, rounds: int) -> Group:
    """Return the group of one load; ``asked`` is for goodput over all answers of the unbatched."""
    needs = ("torch",) if model == "torch" else ()
    figures = []
    for quantity in QUANTITIES:
        is_goodput = quantity == "goodput"
        figures.append(
            Figure(
                f"{model}_{quantity}_{load:g}x",
                (BATCHED, quantity),
                # Beyond saturation the unbatched answers are all late: they are credited.
                (SINGLE, "rate" if is_goodput else quantity),
                asked if is_goodput else None,
                f"{SINGLE}, late ones too" if is_goodput else SINGLE,
                Point(_curve(model, quantity), load, BATCHED),
            )
        )
    figures.append(
        Figure(
            f"{model}_goodput_{load:g}x_single",
            (SINGLE, "goodput"),
            point=Point(_curve(model, "goodput"), load, SINGLE),
        )
    )
    return Group(
        f"{model}_{load:g}x",
        tuple(
            _probe(name, "offered", UNITS, needs, model=model, load=load)
            for name in (BATCHED, SINGLE)
        ),
        tuple(figures),
        seconds=1.0,  # a shorter span has no 99th percentile
        rounds=rounds,
        quick=quick,
        quick_rounds=1,
    )


# model, load, asked of goodput, in a quick run too, rounds. At 6 times what goes one by one,
# batches of 7 are enough, and every answer can be in time: then the ratio is 6, or more, because
# one by one the helper waits between calls. A tenth is left for noise.
POINTS = (
    ("sleep", 0.25, None, False, 3),
    ("sleep", 0.5, None, True, 2),
    ("sleep", 0.8, None, False, 3),
    ("sleep", 1.2, None, False, 3),
    ("sleep", 3.0, None, False, 3),
    ("sleep", 6.0, ">= 5.4", True, 3),
    ("sleep", 12.0, None, False, 3),
    ("sleep", 18.0, None, False, 3),
    ("torch", 0.5, None, False, 2),
    ("torch", 1.5, None, False, 2),
    ("torch", 3.0, None, False, 2),
    ("torch", 6.0, None, False, 2),
)

WORKLOAD = Workload(
    "batching",
    "throughput and latency against offered load, with batching and without; one greedy child",
    (
        *(_point(*point) for point in POINTS),
        Group(
            "lone",
            tuple(
                _probe(name, "lone", {"median": "us", "p99": "us"}, ())
                for name in (BATCHED, SINGLE)
            ),
            (
                Figure("lone", (BATCHED, "median"), (SINGLE, "median"), "<= 1.1"),
                Figure("lone_p99", (BATCHED, "p99"), (SINGLE, "p99")),
            ),
        ),
        *fairness.GROUPS,
    ),
)
