"""The command line: choose workloads, measure, print, keep."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import environment as env
from benchmarks import report
from benchmarks.figures import Row, Workload
from benchmarks.harness import FAILED, FULL, QUICK, Effort, measure, rounds_of, row_of
from benchmarks.registry import WORKLOADS


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    p = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    p.add_argument("names", nargs="*", metavar="NAME", help="workload, or workload.group; or all")
    p.add_argument("--list", action="store_true", help="say what there is, measure nothing")
    p.add_argument("--quick", action="store_true", help="shorter and fewer rounds: a first look")
    p.add_argument("--json", type=Path, metavar="FILE", help="keep rows and environment")
    p.add_argument("--rounds", type=int, metavar="N", help=f"rounds (default {FULL.rounds})")
    p.add_argument("--seconds", type=float, metavar="S", help="seconds per probe and round")
    return p


def select(names: Sequence[str], workloads: Sequence[Workload]) -> list[Workload]:
    """Return the named workloads, with only the named groups; all of them for no names.

    ValueError names what there is when a name is unknown.
    """
    if not names:
        return list(workloads)
    known = {workload.name: workload for workload in workloads}
    chosen: dict[str, list[str] | None] = {}
    for name in names:
        outer, _, inner = name.partition(".")
        groups = [group.name for group in known[outer].groups] if outer in known else []
        if outer not in known or (inner and inner not in groups):
            there = ", ".join(known if outer not in known else groups)
            raise ValueError(f"there is no {name!r}; there is: {there}")
        before = chosen.get(outer, [])
        chosen[outer] = None if not inner or before is None else [*before, inner]
    return [
        workload
        if (wanted := chosen[workload.name]) is None
        else replace(workload, groups=tuple(g for g in workload.groups if g.name in wanted))
        for workload in workloads
        if workload.name in chosen
    ]


def quick_part(workloads: Sequence[Workload]) -> list[Workload]:
    """Return the workloads without what takes too long for a first look."""
    parts = [replace(w, groups=tuple(g for g in w.groups if g.quick)) for w in workloads]
    return [workload for workload in parts if workload.groups]


def listing(workloads: Sequence[Workload]) -> str:
    """Return what there is: workloads, their groups and figures, and what is asked of each."""
    lines = []
    for workload in workloads:
        lines.append(f"{workload.name}: {workload.about}")
        for group in workload.groups:
            lines.append(f"  {workload.name}.{group.name}")
            for figure in group.figures:
                against = figure.baseline or (figure.against[0] if figure.against else "")
                words = [f"    {figure.name} [{group.unit_of(figure.of)}]"]
                words += [f"against {against}"] if against else []
                words += [f"asked {figure.asked}"] if figure.asked else []
                lines.append(", ".join(words))
    return "\n".join(lines)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal; in a pipe, or without tqdm, show nothing."""
    if not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield lambda _name: None
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread beside what is measured
    with tqdm(total=total, leave=False, unit="run") as bar:

        def step(name: str) -> None:
            bar.set_description(name, refresh=False)
            bar.update()

        yield step


def run(workloads: Sequence[Workload], effort: Effort) -> list[Row]:
    """Measure the workloads and return their rows in order."""
    rows = []
    total = sum(rounds_of(g, effort) * len(g.probes) for w in workloads for g in w.groups)
    with progress(total) as step:
        for workload in workloads:
            for group in workload.groups:
                name = f"{workload.name}.{group.name}"
                samples = measure(group, effort, lambda name=name: step(name))  # type: ignore[misc]
                rows += [row_of(group, f, samples, f"{workload.name}.") for f in group.figures]
    return rows


def main(arguments: Sequence[str] | None = None, workloads: Sequence[Workload] = WORKLOADS) -> int:
    """Run the command line; 0, or 1 when a probe failed, or 2 for a bad command."""
    p = parser()
    options = p.parse_args(arguments)
    try:
        chosen = select(options.names, workloads)
    except ValueError as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 2
    if options.quick and not options.names:
        chosen = quick_part(chosen)
    if options.list:
        print(listing(chosen))
        return 0
    effort = QUICK if options.quick else FULL
    effort = Effort(options.seconds or effort.seconds, options.rounds or effort.rounds)
    environment = env.describe()
    print(env.summary(environment))
    warning = env.busy_warning(environment)
    if warning:
        print(warning)
    for workload in chosen:
        if workload.preface:
            print(workload.preface())
    rows = run(chosen, effort)
    print(report.table(rows))
    if options.json:
        report.save(options.json, report.as_json(rows, environment, options.quick))
    return 1 if any(FAILED in note for row in rows for note in row.notes) else 0
