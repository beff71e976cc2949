"""allocator: recorded allocation traces replayed on the arena's allocator and on glibc's.

``benchmarks/c/allocator.c`` does the replay and says what each of its numbers is; a run of it is a
process per allocator, so that both meet untouched memory.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.figures import Figure, Group, Probe, ProbeFailed, Workload
from benchmarks.native import ROOT, build, run_text

TRACES = Path("benchmarks") / "traces"
LIMIT_S = 300.0
MIB = 1 << 20
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


def distribution(trace: Path) -> str:
    """Return one line on the sizes in a trace: how many, and their quantiles."""
    lines = (ROOT / trace).read_text().splitlines()
    sizes = sorted(int(line[1:]) for line in lines if line.startswith("+"))
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


def _probe(trace: Path) -> Probe:
    def run(repetitions: float) -> dict[str, float]:
        path = build("allocator", library="*.c")
        output = run_text([path, "--rounds", str(int(repetitions)), str(trace)], LIMIT_S)
        runs = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        result: dict[str, float] = {}
        for allocator in ("tlsf", "glibc"):
            mine = [run for run in runs if run["allocator"] == allocator]
            if not mine:
                raise ProbeFailed(f"it printed nothing about {allocator}")
            for key, (quantity, _, scale) in QUANTITIES.items():
                numbers = sorted(float(run[key]) / scale for run in mine)
                result[f"{allocator} {quantity}"] = numbers[len(numbers) // 2]
        return result

    units = {
        f"{allocator} {quantity}": unit
        for allocator in ("tlsf", "glibc")
        for quantity, unit, _ in QUANTITIES.values()
    }
    return Probe("replay", run, units, counted=True)


def _group(trace: Path) -> Group:
    name = trace.stem

    def figure(quantity: str, asked: str | None = None, against: str | None = "glibc") -> Figure:
        of = ("replay", f"tlsf {quantity}")
        if against is None:
            return Figure(f"{quantity}_{name}", of, None, asked)
        if against == "live":
            return Figure(f"{quantity}_{name}", of, ("replay", "tlsf live"), asked, "peak live")
        return Figure(f"{quantity}_{name}", of, ("replay", f"glibc {quantity}"), asked, "glibc")

    return Group(
        name,
        (_probe(trace),),
        (
            figure("untouched", "<= 1.0"),
            figure("warm"),
            figure("pair", "<= 60", against=None),
            figure("footprint", "<= 1.15", against="live"),
        ),
    )


def preface() -> str:
    """Return the traces' distributions, one line each."""
    return "\n".join(map(distribution, traces()))


WORKLOAD = Workload(
    "allocator",
    "recorded traces of tensor sizes: time and footprint beside glibc's malloc",
    tuple(_group(trace) for trace in traces()),
    preface,
)
