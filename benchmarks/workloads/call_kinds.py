"""calls, continued: what a call looks like must not decide its price.

The kinds of calls that programs make, each beside one array of the arena in and one out, with 64
bytes in each array. A lone child makes all kinds by turns within one process, so that what a
machine does meanwhile meets them alike; so do 32 children, all the same kind at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import isolate
from benchmarks.measure.figures import Figure, Group, Probe
from benchmarks.measure.turns import Turns

ELEMENTS = 16  # of float32 in each array
ONE = "one"  # the kind that the others are held against
TURN = 40  # calls of a kind at a time
WARM_UP = 200  # calls of each kind
WARM_UP_OF_MANY = 5  # calls of each kind by each of many children
CHILDREN, HELPERS = 32, 2
ROUNDS = 3
KIND_S = 0.4  # of each kind at least, in several turns
LIMIT_S = 120.0

# Each kind, and what it is in words.
KINDS: dict[str, str] = {
    ONE: "one array in, one out",
    "two": "two arrays in",
    "three": "three arrays in",
    "pair": "a tuple of two arrays out",
    "number": "a float out",
    "none": "None out",
    "dict": "a dict with an array in and out",
    "value": "a small plain value beside the array",
    "keyword": "the same by keyword",
    "outside": "an array that lies outside the arena",
    "declared": "a declared output",
    "batch": "a batched function",
    "torch": "a tensor of torch in and out",
    "submit": "submit().result()",
    "aio": "awaited in an event loop",
}
AWAITED = ("aio",)


def functions() -> dict[str, Any]:
    """The functions that helpers run, by kind; those of some kinds are others'."""
    import shmgpu

    quick = shmgpu.function(arrays="numpy")

    def one(helper: Any, x: Any) -> Any:
        return x + 1

    def two(helper: Any, x: Any, y: Any) -> Any:
        return x + y

    def three(helper: Any, x: Any, y: Any, z: Any) -> Any:
        return x + y

    def pair(helper: Any, x: Any) -> Any:
        return x + 1, x

    def number(helper: Any, x: Any) -> Any:
        return float(x[0])

    def none(helper: Any, x: Any) -> Any:
        return None

    def boxed(helper: Any, box: Any) -> Any:
        return {"y": box["x"] + 1}

    def scaled(helper: Any, x: Any, k: Any) -> Any:
        return x + k

    def tensor(helper: Any, x: Any) -> Any:
        return x + 1

    return {
        **{made.__name__: quick(made) for made in (one, two, three, pair, number, none)},
        "dict": quick(boxed),
        "value": quick(scaled),
        "declared": shmgpu.function(arrays="numpy", out=shmgpu.Declared(ELEMENTS))(one),
        "batch": shmgpu.function(arrays="numpy", batch=8)(one),
        "torch": shmgpu.function(tensor),
    }


def calls_of(made: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """In a child: a call of each kind, by name."""
    import torch

    import shmgpu

    x, y, z = (shmgpu.arena.zeros(ELEMENTS) for _ in range(3))
    row, outside = shmgpu.arena.zeros((1, ELEMENTS)), np.zeros(ELEMENTS, "float32")
    tensor = torch.from_numpy(shmgpu.arena.zeros(ELEMENTS))
    return {
        ONE: lambda: made[ONE](x),
        "two": lambda: made["two"](x, y),
        "three": lambda: made["three"](x, y, z),
        "pair": lambda: made["pair"](x),
        "number": lambda: made["number"](x),
        "none": lambda: made["none"](x),
        "dict": lambda: made["dict"]({"x": x}),
        "value": lambda: made["value"](x, 3),
        "keyword": lambda: made["value"](x, k=3),
        "outside": lambda: made[ONE](outside),
        "declared": lambda: made["declared"](x),
        "batch": lambda: made["batch"](row),
        "torch": lambda: made["torch"](tensor),
        "submit": lambda: made[ONE].submit(x).result(),
        "aio": lambda: made[ONE].aio(x),
    }


async def awaited(call: Callable[[], Any], took: list[int]) -> None:
    """One turn in an event loop, and what each call took."""
    for _ in range(TURN):
        began = time.perf_counter_ns()
        await call()
        took.append(time.perf_counter_ns() - began)


async def awaited_while(lasts: Callable[[], bool], call: Callable[[], Any]) -> int:
    """The same for as long as a turn lasts; how many calls that were."""
    done = 0
    while lasts():
        await call()
        done += 1
    return done


def lone(seconds: float) -> dict[str, float]:
    """Medians of one child's calls, in microseconds, by kind."""
    import shmgpu

    made = functions()

    def run(rank: int) -> dict[str, float]:
        calls = calls_of(made)
        took: dict[str, list[int]] = {kind: [] for kind in calls}
        loop = asyncio.new_event_loop()
        end = None
        while end is None or time.monotonic() < end:
            for kind, call in calls.items():
                if kind in AWAITED:
                    loop.run_until_complete(awaited(call, took[kind]))
                    continue
                for _ in range(TURN):
                    began = time.perf_counter_ns()
                    call()
                    took[kind].append(time.perf_counter_ns() - began)
            if end is None and len(took[ONE]) >= WARM_UP:
                for samples in took.values():
                    samples.clear()
                end = time.monotonic() + seconds
        loop.close()
        return {kind: float(np.median(samples)) / 1e3 for kind, samples in took.items()}

    (medians,) = shmgpu.launch(run, children=1, helpers=1, devices=["cpu"], arena="4MiB")
    return dict(medians)


def crowd(seconds: float) -> dict[str, float]:
    """Calls a second of 32 children, by kind; they make all kinds by turns."""
    import shmgpu

    made = functions()
    turns = Turns(CHILDREN, len(KINDS), seconds)

    def run(rank: int) -> None:
        calls = calls_of(made)
        each = [(kind in AWAITED, calls[kind]) for kind in KINDS]
        loop = asyncio.new_event_loop()

        def work(kind: int, lasts: Callable[[], bool]) -> int:
            is_awaited, call = each[kind]
            if is_awaited:
                return loop.run_until_complete(awaited_while(lasts, call))
            done = 0
            while lasts():
                call()
                done += 1
            return done

        for kind in range(len(each)):
            work(kind, partial(next, iter([True] * WARM_UP_OF_MANY), False))
        turns.drive(rank, lambda kind: work(kind, partial(turns.lasts, kind)))
        loop.close()

    turns.start_clock()
    shmgpu.launch(run, children=CHILDREN, helpers=HELPERS, devices=["cpu"], arena="4MiB")
    return dict(zip(KINDS, turns.rates(), strict=True))


def _probe(name: str, target: str, unit: str, kinds: Mapping[str, str]) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        found: dict[str, float] = isolate.call(
            f"benchmarks.workloads.call_kinds:{target}", seconds + LIMIT_S, seconds=seconds
        )
        return found

    return Probe(name, run, dict.fromkeys(kinds, unit), ("shmgpu", "torch"))


def groups(queue: Probe) -> tuple[Group, ...]:
    """The groups of the workload; ``queue`` times a lone call through the queue to beat."""
    alone = _probe("shmgpu", "lone", "us", KINDS)
    many = _probe("shmgpu", "crowd", "1/s", KINDS)
    name = alone.name
    return (
        Group(
            "kinds",
            (alone, queue),
            (
                *(
                    Figure(f"kind_{kind}", (name, kind), (name, ONE), "<= 1.3", KINDS[ONE])
                    for kind in KINDS
                    if kind != ONE
                ),
                *(
                    Figure(f"kind_{kind}_queue", (name, kind), (queue.name, "median"), "<= 0.5")
                    for kind in KINDS
                ),
            ),
            rounds=ROUNDS,
            quick=False,
        ),
        Group(
            "kinds_rate",
            (many,),
            tuple(
                Figure(f"rate_{kind}", (name, kind), (name, ONE), ">= 0.75", KINDS[ONE])
                for kind in KINDS
                if kind != ONE
            ),
            seconds=len(KINDS) * KIND_S,
            rounds=ROUNDS,
            quick=False,
        ),
    )
