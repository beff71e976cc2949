"""simulate: a model of the broker beside the broker, and what it says of boxes one does not have.

The model (simulation/model.py) is told what things cost on this machine by three runs
(simulation/calibration.py), and is then held against runs it was not told of. Both sides are taken
in the same round, so that a machine whose speed moves with the hour is predicted from what it was a
moment ago.

Asked about a machine::

    python -m benchmarks.simulation.simulate --cores 128 --gpus 8 --children 1000 --service-us 4000

it prints what the broker would do there: calls a second, latency, and which resource is used up.
The costs are those of the machine this was written on; --calibrate measures this one's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

from benchmarks.measure import endings
from benchmarks.measure.figures import (
    Curve,
    Figure,
    Group,
    Point,
    Probe,
    ProbeFailed,
    Unavailable,
    Workload,
)
from benchmarks.measure.native import build, run_json
from benchmarks.simulation.calibration import RUNS, fit
from benchmarks.simulation.model import (
    KINDS,
    ClosedLoad,
    Costs,
    Outcome,
    SimulatedMachine,
    calls_of,
    predict,
)

START_LIMIT_S = 90.0
NEEDS = ("simpy",)
TELL_EVERY = 500  # calls

# What the model is judged on, none of it calibrated on: other numbers of children, helpers and
# calls out, and services of 10 us to 20 ms. The first three are a quick run's.
NEAR: Mapping[str, ClosedLoad] = {
    "8x1": ClosedLoad(children=8, helpers=1),
    "device_100us": ClosedLoad(children=32, helpers=4, window=4, service_us=100),
    "core_500us": ClosedLoad(children=16, helpers=2, service_us=500, kind="core"),
}
FAR: Mapping[str, ClosedLoad] = {
    "32x2": ClosedLoad(children=32, helpers=2),
    "64x4_window4": ClosedLoad(children=64, helpers=4, window=4),
    "device_10us": ClosedLoad(children=16, helpers=2, service_us=10),
    "device_50us": ClosedLoad(children=32, helpers=2, service_us=50),
    "core_20us": ClosedLoad(children=32, helpers=2, service_us=20, kind="core"),
    "device_1ms": ClosedLoad(children=4, helpers=8, service_us=1000),
    "device_20ms": ClosedLoad(children=32, helpers=2, window=2, service_us=20_000),
}

# A machine that most machines are not.
BIG = SimulatedMachine(cores=128, gpus=8)
BIG_CHILDREN = 1000
BIG_SERVICES_US = (10, 100, 1000, 4000, 20_000)

RATES = Curve("prediction beside measurement", "configuration", log="y")
TAILS = Curve("p99 predicted beside measured", "configuration", log="y")
BIG_RATE = Curve("128 cores, 8 GPUs, 1,000 children", "service, us")
BIG_SHARES = Curve("what limits 128 cores and 8 GPUs", "service, us", log="x")
RESOURCES = ("dispatcher", "helpers", "cpu")
MEASURED_UNITS = {"rate": "1/s", "p99": "us"}
CALIBRATION_UNITS = {
    **{item.name: "us" for item in fields(Costs)},
    **{f"fit_{run}": "share" for run in RUNS},
}
PREDICTED_UNITS = {**MEASURED_UNITS, "error": "share", "agrees": "share"}


def measure(load: ClosedLoad, seconds: float) -> Outcome:
    """Run ``load`` on this machine for ``seconds`` and return what it came to."""
    arguments = {
        "--children": load.children,
        "--helpers": load.helpers,
        "--window": load.window,
        "--service-us": load.service_us,
        "--kind": load.kind,
        "--seconds": seconds,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    found = run_json([build("served", library="*.c"), *words], seconds + START_LIMIT_S)
    del found["seconds"]
    return Outcome(**found, cores=len(os.sched_getaffinity(0)))


def calibrate(seconds: float) -> Costs:
    """Take the three runs of ``seconds`` each and return the costs that explain them."""
    return fit({name: measure(load, seconds) for name, load in RUNS.items()}).costs


class Judged:
    """The probes of one group: calibration, measurements and predictions that share a round."""

    def __init__(self, loads: Mapping[str, ClosedLoad]) -> None:
        self.loads = loads
        self._measured: dict[str, Outcome] = {}
        self._costs: Costs | None = None

    def _calibrate(self, seconds: float) -> dict[str, float]:
        self._costs = None
        found = fit({name: measure(load, seconds) for name, load in RUNS.items()})
        self._costs = found.costs
        # The fit's own rates beside the runs': how far the model can be bent to them at all.
        return {**asdict(found.costs), **{f"fit_{run}": r for run, r in found.rates.items()}}

    def _measure(self, name: str, seconds: float) -> dict[str, float]:
        self._measured.pop(name, None)
        found = self._measured[name] = measure(self.loads[name], seconds)
        return {"rate": found.rate, "p99": found.p99_us}

    def _predict(self, name: str) -> dict[str, float]:
        measured = self._measured.get(name)
        if measured is None:
            raise ProbeFailed("there is no measurement to hold it against")
        found = predict(self.loads[name], SimulatedMachine(measured.cores), self.costs())
        return {
            "rate": found.rate,
            "p99": found.p99_us,
            "error": abs(found.rate / measured.rate - 1),
            "agrees": float(found.saturated == measured.saturated),
        }

    def _predict_big(self) -> dict[str, float]:
        found = {}
        for service_us in BIG_SERVICES_US:
            load = ClosedLoad(BIG_CHILDREN, BIG.gpus, service_us=service_us)
            outcome = predict(load, BIG, self.costs())
            found[f"rate_{service_us}us"] = outcome.rate
            for resource in RESOURCES:
                found[f"{resource}_{service_us}us"] = outcome.shares[resource]
        return found

    def costs(self) -> Costs:
        """Return this round's costs; ProbeFailed where the calibration gave none."""
        if self._costs is None:
            raise ProbeFailed("the calibration did not succeed")
        return self._costs

    def probes(self) -> tuple[Probe, ...]:
        """The calibration amid the measurements, then the predictions."""
        measurements = [
            Probe(f"{name}, measured", partial(self._measure, name), MEASURED_UNITS)
            for name in self.loads
        ]
        predictions = [
            Probe(
                f"{name}, predicted",
                lambda _seconds, name=name: self._predict(name),  # type: ignore[misc]
                PREDICTED_UNITS,
                needs=NEEDS,
            )
            for name in self.loads
        ]
        half = len(measurements) // 2
        calibration = Probe("calibration", self._calibrate, CALIBRATION_UNITS, needs=NEEDS)
        return (*measurements[:half], calibration, *measurements[half:], *predictions)

    def big_probe(self) -> Probe:
        """What the model says of a machine that is not this one."""
        units = {f"rate_{us}us": "1/s" for us in BIG_SERVICES_US}
        units |= {f"{name}_{us}us": "share" for name in RESOURCES for us in BIG_SERVICES_US}
        return Probe("big machine", lambda _seconds: self._predict_big(), units, needs=NEEDS)


def _compared(place: int, name: str) -> tuple[Figure, ...]:
    ours, theirs = f"{name}, predicted", f"{name}, measured"
    return (
        Figure(
            f"rate_{name}",
            (ours, "rate"),
            (theirs, "rate"),
            baseline="measured",
            point=Point(RATES, place, "predicted"),
        ),
        Figure(f"error_{name}", (ours, "error"), asked="<= 0.15"),
        Figure(
            f"p99_{name}",
            (ours, "p99"),
            (theirs, "p99"),
            baseline="measured",
            point=Point(TAILS, place, "predicted"),
        ),
        Figure(f"saturated_{name}", (ours, "agrees"), asked="== 1"),
    )


def _big_figures() -> tuple[Figure, ...]:
    shares = [(name, us) for name in RESOURCES for us in BIG_SERVICES_US]
    return (
        *(
            Figure(
                f"big_rate_{us}us",
                ("big machine", f"rate_{us}us"),
                point=Point(BIG_RATE, us, "predicted"),
            )
            for us in BIG_SERVICES_US
        ),
        *(
            Figure(
                f"big_{name}_{us}us",
                ("big machine", f"{name}_{us}us"),
                point=Point(BIG_SHARES, us, name),
            )
            for name, us in shares
        ),
    )


def _group(name: str, loads: Mapping[str, ClosedLoad], first: int, *, quick: bool) -> Group:
    judged = Judged(loads)
    figures = [Figure(f"{name}_{unit}", ("calibration", unit)) for unit in CALIBRATION_UNITS]
    for place, load in enumerate(loads, first):
        figures += _compared(place, load)
    probes = judged.probes()
    if not quick:
        probes = (*probes, judged.big_probe())
        figures += _big_figures()
    return Group(name, probes, tuple(figures), rounds=5, quick=quick, quick_rounds=1)


WORKLOAD = Workload(
    "simulate",
    "a discrete-event model of the broker, calibrated on three runs, beside ten that it was not",
    (
        _group("near", NEAR, 1, quick=True),
        _group("far", FAR, 1 + len(NEAR), quick=False),
    ),
)


# ---- the command line ------------------------------------------------------------------------


ABOUT = """\
Say what the broker would do on a machine: calls a second, latency, and which resource is used up.
What things cost is taken from the machine that the model was written on, or with --calibrate from
this one."""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.simulation.simulate", description=ABOUT)
    p.add_argument(
        "--cores",
        type=int,
        default=os.cpu_count() or 1,
        help="default: this machine's, %(default)s",
    )
    p.add_argument("--gpus", type=int, default=0, help="0: every helper has a device to itself")
    p.add_argument(
        "--children", type=int, required=True, help="processes that call, as fast as they can"
    )
    p.add_argument("--helpers", type=int, help="default: one for each GPU, or 2")
    p.add_argument("--window", type=int, default=1, help="calls that a child has out at a time")
    p.add_argument("--service-us", type=float, default=0.0, help="what a call takes of a helper")
    p.add_argument(
        "--kind", choices=KINDS, default="device", help="it waits for a device, or computes"
    )
    p.add_argument("--seed", type=int, default=1, help="of the model's random numbers")
    p.add_argument("--calibrate", action="store_true", help="measure first what this machine costs")
    p.add_argument(
        "--costs", type=Path, metavar="FILE", help="take the costs from an earlier --json"
    )
    p.add_argument("--json", action="store_true", help="print all of it as JSON")
    return p


def _chosen_costs(options: argparse.Namespace) -> Costs:
    if options.calibrate:
        return calibrate(1.0)
    if options.costs is None:
        return Costs()
    try:
        costs = Costs(**json.loads(options.costs.read_text())["costs"])
        if not all(0 <= cost < math.inf for cost in asdict(costs).values()):
            raise ValueError
        return costs
    except OSError as error:
        raise ValueError(f"{options.costs} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{options.costs} holds no costs: give it what --json printed") from error


def describe(load: ClosedLoad, machine: SimulatedMachine, outcome: Outcome) -> str:
    """Return a prediction as lines for people."""
    device = "computing" if load.kind == "core" else "on a device"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in outcome.shares.items())
    limit = {
        "dispatcher": "the dispatcher's core: hand over more at once (window, batch=)",
        "helpers": "the helpers: add helpers or GPUs, or batch calls",
        "cpu": "the cores as a whole: every role competes for them",
        "nothing": "nothing is used up: more children, or a wider window, bring more",
    }[outcome.saturated]
    gpus = f", {machine.gpus} GPUs" if machine.gpus else ""
    return "\n".join(
        (
            f"{machine.cores} cores{gpus}: {load.children:,} children with {load.window} out each, "
            f"{load.helpers} helpers, {load.service_us:g} us {device}",
            f"  calls        {outcome.rate:,.0f} a second",
            f"  latency      {outcome.mean_us:,.0f} us on average, "
            f"median {outcome.median_us:,.0f}, p99 {outcome.p99_us:,.0f}",
            f"  in use       {shares}",
            f"  limited by   {limit}",
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a prediction; 0, or 2 for what cannot be asked."""
    from benchmarks.cli import progress  # here, because it knows of this workload

    p = parser()
    options = p.parse_args(arguments)
    helpers = options.helpers if options.helpers is not None else options.gpus or 2
    try:
        load = ClosedLoad(
            options.children, helpers, options.window, options.service_us, options.kind
        )
        machine = SimulatedMachine(options.cores, options.gpus)
        costs = _chosen_costs(options)
    except (ValueError, ProbeFailed, Unavailable) as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 2
    if importlib.util.find_spec("simpy") is None:
        way = "pip install '.[bench]' in a checkout of shmgpu"
        print(f"{p.prog}: simpy is not installed: {way}", file=sys.stderr)
        return 2
    with progress(sum(calls_of(load)) // TELL_EVERY) as step:
        outcome = predict(
            load,
            machine,
            costs,
            seed=options.seed,
            tick=lambda _calls: step("calls"),
        )
    if options.json:
        document = {"load": asdict(load), "machine": asdict(machine), "costs": asdict(costs)}
        print(json.dumps({**document, "outcome": outcome.as_json()}, indent=2))
    else:
        print(describe(load, machine, outcome))
    return 0


if __name__ == "__main__":
    sys.exit(endings.run(main))
