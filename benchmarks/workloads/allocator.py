"""allocator: allocation traces replayed on the arena's allocator, on glibc's and on mimalloc.

The recorded traces are what real training and serving ask for; the adversarial ones are patterns
on which allocators are known to do badly (``benchmarks/traces``). ``benchmarks/c/allocator.c`` does
the replay and says what each of its numbers is; a run of it is a process per allocator, so that
each meets untouched memory. mimalloc is a system package (Debian's libmimalloc2.0); where it is
missing, its figures are skipped.
"""

from __future__ import annotations

import ctypes.util
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed, Unavailable, Workload
from benchmarks.measure.native import OUTPUT, ROOT, build, run_text
from benchmarks.traces import adversarial
from benchmarks.traces.form import events

TRACES = Path("benchmarks") / "traces"
LIMIT_S = 300.0
MIB = 1 << 20
IN_QUICK = ("comb",)
QUANTITIES = {
    "ns_per_op": ("untouched", "ns", 1.0),
    "warm_ns_per_op": ("warm", "ns", 1.0),
    "median_pair_ns": ("pair", "ns", 1.0),
    "peak_footprint_bytes": ("footprint", "MiB", MIB),
    "peak_live_bytes": ("live", "MiB", MIB),
}


def traces() -> list[Path]:
    """Return the recorded traces, relative to the checkout."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / TRACES).glob("*.trace"))


@functools.cache
def made(name: str) -> Path:
    """Write an adversarial trace and return its path, relative to the checkout."""
    return adversarial.write(name, ROOT / OUTPUT / "traces").relative_to(ROOT)


def distribution(trace: Path) -> str:
    """Return one line on the sizes in a trace: how many, and their quantiles."""
    lines = (ROOT / trace).read_text().splitlines()
    sizes = sorted(nbytes for _, nbytes in events(lines) if nbytes)
    if not sizes:
        return f"{trace.stem}: no allocation"
    at = {q: sizes[min(len(sizes) - 1, len(sizes) * q // 100)] for q in (10, 50, 90, 99)}
    words = [f"p{q} {_bytes(size)}" for q, size in at.items()]
    return f"{trace.stem}: {len(sizes):,} allocations, {', '.join(words)}, max {_bytes(sizes[-1])}"


def _bytes(count: int) -> str:
    for unit, size in (("MiB", MIB), ("KiB", 1024)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def mimalloc() -> str:
    """Return the name by which the loader finds mimalloc; Unavailable where it does not."""
    library = ctypes.util.find_library("mimalloc")
    if library is None:
        raise Unavailable("libmimalloc is not installed")
    return library


def replay(
    trace: Path, repetitions: int, allocators: tuple[str, ...], *options: str
) -> dict[str, float]:
    """Return the medians of each allocator's quantities, as in ``"tlsf untouched"``."""
    path = build("allocator", library="*.c")
    output = run_text([path, "--rounds", str(repetitions), *options, trace], LIMIT_S)
    runs = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    result: dict[str, float] = {}
    for allocator in allocators:
        mine = [run for run in runs if run["allocator"] == allocator]
        if not mine:
            raise ProbeFailed(f"it printed nothing about {allocator}")
        for key, (quantity, _, scale) in QUANTITIES.items():
            numbers = sorted(float(run[key]) / scale for run in mine)
            result[f"{allocator} {quantity}"] = numbers[len(numbers) // 2]
    return result


def _units(*allocators: str) -> Mapping[str, str]:
    return {
        f"{a} {quantity}": unit for a in allocators for quantity, unit, _ in QUANTITIES.values()
    }


def _probes(trace: Callable[[], Path]) -> tuple[Probe, ...]:
    def ours_and_glibc(repetitions: float) -> dict[str, float]:
        return replay(trace(), int(repetitions), ("tlsf", "glibc"))

    def on_mimalloc(repetitions: float) -> dict[str, float]:
        return replay(trace(), int(repetitions), ("mimalloc",), "--mimalloc", mimalloc())

    return (
        Probe("replay", ours_and_glibc, _units("tlsf", "glibc"), counted=True),
        Probe("mimalloc", on_mimalloc, _units("mimalloc"), counted=True),
    )


BASELINES = {  # what a quantity may be held against, and what the row calls it
    "glibc": ("replay", "glibc {}", "glibc"),
    "mimalloc": ("mimalloc", "mimalloc {}", "mimalloc"),
    "live": ("replay", "tlsf live", "peak live"),
}


def _figure(
    name: str, quantity: str, against: str | None = None, asked: str | None = None, suffix: str = ""
) -> Figure:
    of = ("replay", f"tlsf {quantity}")
    if against is None:
        return Figure(f"{quantity}_{name}", of, None, asked)
    probe, pattern, label = BASELINES[against]
    return Figure(f"{quantity}_{name}{suffix}", of, (probe, pattern.format(quantity)), asked, label)


def _beside_mimalloc(name: str) -> tuple[Figure, ...]:
    quantities = ("untouched", "warm", "footprint")
    return tuple(_figure(name, quantity, "mimalloc", suffix="_mimalloc") for quantity in quantities)


def _recorded(trace: Path) -> Group:
    name = trace.stem
    return Group(
        name,
        _probes(lambda: trace),
        (
            _figure(name, "untouched", "glibc", "<= 1.0"),
            _figure(name, "warm", "glibc"),
            _figure(name, "pair", asked="<= 60"),
            _figure(name, "footprint", "live", "<= 1.15"),
            *_beside_mimalloc(name),
        ),
    )


def _adversarial(name: str) -> Group:
    return Group(
        name,
        _probes(lambda: made(name)),
        (
            _figure(name, "untouched", "glibc"),
            _figure(name, "warm", "glibc"),
            _figure(name, "footprint", "live"),
            _figure(name, "footprint", "glibc", suffix="_glibc"),
            *_beside_mimalloc(name),
        ),
        rounds=2,
        quick=name in IN_QUICK,
    )


def preface() -> str:
    """Return the traces' distributions, one line each."""
    return "\n".join(map(distribution, [*traces(), *map(made, adversarial.PATTERNS)]))


WORKLOAD = Workload(
    "allocator",
    "recorded and adversarial traces: time and footprint beside glibc's malloc and mimalloc",
    (*map(_recorded, traces()), *map(_adversarial, adversarial.PATTERNS)),
    preface,
)
