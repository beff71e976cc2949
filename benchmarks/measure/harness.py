"""Measuring: rounds of probes in turn, and what follows from their samples.

The probes of a group are run A B A B ... in one go, because absolute figures move with the machine
and the hour while ratios taken side by side hold. The harness prints nothing and knows nothing of
what the probes do.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.measure.figures import Asked, Figure, Group, Probe, ProbeFailed, Row, Unavailable

MOST_REPETITIONS = 1_000_000
QUARTILES_FROM_ROUNDS = 5
FAILED = " failed: "
SKIPPED = " skipped: "


@dataclass(frozen=True)
class Effort:
    """How long to measure: at least ``seconds`` per probe and round, ``rounds`` times."""

    seconds: float
    rounds: int


FULL = Effort(seconds=1.0, rounds=7)
QUICK = Effort(seconds=0.3, rounds=3)


@dataclass
class Samples:
    """What a group's probes gave: quantity -> one number a round; and why some gave nothing."""

    numbers: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unmeasured: dict[tuple[str, str], str] = field(default_factory=dict)

    def why_missing(self, quantity: tuple[str, str]) -> str:
        """Return a few words on why a probe's quantity has no samples; empty when it has."""
        probe = quantity[0]
        if probe in self.failed:
            return probe + FAILED + self.failed[probe]
        if probe in self.skipped:
            return probe + SKIPPED + self.skipped[probe]
        if quantity in self.unmeasured:
            return probe + SKIPPED + self.unmeasured[quantity]
        return ""

    def add(self, quantity: tuple[str, str], given: float | str) -> None:
        """Keep a round's number; one round that gave words instead loses the others."""
        if isinstance(given, str):
            self.unmeasured[quantity] = given
            self.numbers.pop(quantity, None)
        elif quantity not in self.unmeasured:
            self.numbers.setdefault(quantity, []).append(float(given))


def missing_module(probe: Probe) -> str | None:
    """Return the first module the probe needs that is not installed."""
    for module in probe.needs:
        if importlib.util.find_spec(module) is None:
            return module
    return None


def calibrate(
    probe: Probe, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the amount to run ``probe`` with so that one run takes at least ``seconds``.

    A probe that is told its seconds is taken at its word. One that counts repetitions is run with
    growing counts, as ``timeit`` does, aiming a little above so that the next try is the last.
    """
    if not probe.counted:
        return seconds
    count = 1
    while True:
        began = clock()
        probe.run(count)
        took = clock() - began
        if took >= seconds or count >= MOST_REPETITIONS:
            return count
        factor = 1.2 * seconds / took if took > 0 else 100.0
        count = min(MOST_REPETITIONS, max(count + 1, math.ceil(count * min(factor, 100.0))))


def rounds_of(group: Group, effort: Effort) -> int:
    """Return how many rounds the group is run for."""
    return effort.rounds if group.rounds is None else min(group.rounds, effort.rounds)


def measure(
    group: Group,
    effort: Effort,
    tick: Callable[[], None] = lambda: None,
    until: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Samples:
    """Run the group's probes in turn. ``tick`` is called after each run, done or given up.

    Once the clock shows ``until``, the round that was begun is the last; there is always one.
    """
    samples = Samples()
    amounts: dict[str, float] = {}
    rounds = rounds_of(group, effort)
    for number in range(rounds):
        if number and clock() >= until:
            break
        for probe in group.probes:
            if number == 0:
                module = missing_module(probe)
                if module is not None:
                    samples.skipped[probe.name] = f"{module} is not installed"
            if probe.name not in samples.skipped and probe.name not in samples.failed:
                _run_once(probe, max(effort.seconds, group.seconds), amounts, samples)
            tick()
    return samples


def _run_once(probe: Probe, seconds: float, amounts: dict[str, float], samples: Samples) -> None:
    """Add one round of one probe to ``samples``; a probe that fails loses its earlier rounds."""
    try:
        if probe.name not in amounts:
            amounts[probe.name] = calibrate(probe, seconds)
        result = probe.run(amounts[probe.name])
        _check_quantities(probe, result)
    except Unavailable as reason:
        samples.skipped[probe.name] = str(reason)
    except ProbeFailed as reason:
        samples.failed[probe.name] = str(reason)
    else:
        for quantity, given in result.items():
            samples.add((probe.name, quantity), given)
        return
    for quantity in probe.units:
        samples.numbers.pop((probe.name, quantity), None)


def _check_quantities(probe: Probe, result: Mapping[str, float | str]) -> None:
    if set(result) != set(probe.units):
        raise ProbeFailed(f"it gave {sorted(result)} where {sorted(probe.units)} was declared")


def spread_of(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles of five numbers or more, the least and the greatest of fewer."""
    if len(numbers) < QUARTILES_FROM_ROUNDS:
        return min(numbers), max(numbers)
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return low, high


def ratios_of(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return each round's own ratio; 0 over 0 is 1, anything else over 0 is infinite."""
    return [_ratio(a, b) for a, b in zip(ours, theirs, strict=True)]


def _ratio(ours: float, theirs: float) -> float:
    if theirs == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / theirs


def row_of(group: Group, figure: Figure, samples: Samples, prefix: str = "") -> Row:
    """Turn a figure's samples into its row. ``prefix`` goes before the figure's name."""
    ours = samples.numbers.get(figure.of, [])
    theirs = samples.numbers.get(figure.against, []) if figure.against else []
    spread: dict[str, tuple[float, float]] = {}
    value = baseline_value = ratio = None
    if ours:
        value = statistics.median(ours)
        spread["value"] = spread_of(ours)
    if theirs:
        baseline_value = statistics.median(theirs)
        spread["baseline_value"] = spread_of(theirs)
    if ours and theirs:
        ratios = ratios_of(ours, theirs)
        ratio = statistics.median(ratios)
        spread["ratio"] = spread_of(ratios)
    met = None
    judged = ratio if figure.against else value
    if figure.asked is not None and judged is not None:
        met = Asked.parse(figure.asked).met_by(judged)
    baseline = figure.baseline or (figure.against[0] if figure.against else None)
    read = [figure.of] + ([figure.against] if figure.against else [])
    notes = dict.fromkeys(note for note in map(samples.why_missing, read) if note)
    return Row(
        name=prefix + figure.name,
        value=value,
        unit=group.unit_of(figure.of),
        baseline=baseline,
        baseline_value=baseline_value,
        ratio=ratio,
        spread=spread,
        asked=figure.asked and str(Asked.parse(figure.asked)),
        met=met,
        rounds=max(len(ours), len(theirs)),
        notes=tuple(notes),
        point=figure.point,
    )
