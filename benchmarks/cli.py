"""The command line: measure workloads, print and keep; then compare, report and plot what was kept.

Measuring is what it does unless the first word is one of ``COMMANDS``.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import endings
from benchmarks.measure import environment as env
from benchmarks.measure.arguments import count, not_negative, positive
from benchmarks.measure.figures import Group, Row, Workload
from benchmarks.measure.harness import FAILED, FULL, QUICK, Effort, measure, rounds_of, row_of
from benchmarks.registry import WORKLOADS
from benchmarks.reporting import compare, highlights, plots, report
from benchmarks.reporting.charts import charts_of
from benchmarks.reporting.results import (
    ResultError,
    as_json,
    check_writable,
    load,
    plain_json,
    save,
)
from benchmarks.reporting.table import curves_of, lines_of, what_is_said

PROGRAM = "python -m benchmarks"
ALL = "all"
LISTED_WIDTH = 100
STARTING_S = 0.3  # of a probe, each round
ALIKE = 6  # figures of a group with one target that an overview still names one by one


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line that measures."""
    p = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Measure workloads, print a table, keep the figures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="what to do with kept figures (--help after each says more):\n"
        + "\n".join(f"  {name:8} {about}" for name, (_run, about) in COMMANDS.items()),
    )
    p.add_argument(
        "names", nargs="*", metavar="NAME",
        help="workload, workload.group, or a figure as the table names it; or all",
    )  # fmt: skip
    p.add_argument(
        "--list", action="store_true",
        help="say what there is, and of a NAME all of it; measure nothing",
    )  # fmt: skip
    p.add_argument("--quick", action="store_true", help="shorter and fewer rounds: a first look")
    p.add_argument("--json", type=Path, metavar="FILE", help="keep rows and environment")
    p.add_argument("--rounds", type=count, metavar="N", help=f"rounds (default {FULL.rounds})")
    p.add_argument(
        "--seconds", type=positive, metavar="S",
        help=f"least seconds per probe and round (default {FULL.seconds:g})",
    )  # fmt: skip
    return p


def select(names: Sequence[str], workloads: Sequence[Workload]) -> list[Workload]:
    """Return the named workloads, with only the named groups; all of them for no names, or "all".

    A group may be named by a figure of it. ValueError names what there is when a name is unknown.
    """
    if not names or ALL in names:
        return list(workloads)
    known = {workload.name: workload for workload in workloads}
    chosen: dict[str, list[str] | None] = {}
    for name in names:
        outer, _, inner = name.partition(".")
        groups = [group.name for group in known[outer].groups] if outer in known else []
        if inner and inner not in groups and outer in known:
            inner = _group_of(known[outer], inner) or inner
        if outer not in known or (inner and inner not in groups):
            there = ", ".join(known if outer not in known else groups)
            raise ValueError(
                f"there is no {name!r}; there is: {there}" + _commands_like(outer, known)
            )
        before = chosen.get(outer, [])
        chosen[outer] = None if not inner or before is None else [*before, inner]
    return [
        workload
        if (wanted := chosen[workload.name]) is None
        else replace(workload, groups=tuple(g for g in workload.groups if g.name in wanted))
        for workload in workloads
        if workload.name in chosen
    ]


def _group_of(workload: Workload, figure: str) -> str | None:
    """Return the name of the group that a figure is of."""
    groups = (g.name for g in workload.groups for f in g.figures if f.name == figure)
    return next(groups, None)


def _commands_like(name: str, known: Mapping[str, Workload]) -> str:
    """Return a word on the commands, for who has mistyped one of them."""
    return "" if name in known else f". Commands are: {', '.join(COMMANDS)}"


def quick_part(workloads: Sequence[Workload], names: Sequence[str] = ()) -> list[Workload]:
    """Return the workloads without what takes too long for a first look.

    A group that one of the ``names`` names stays, and so does a workload of slow groups alone.
    """
    by_group = {name.partition(".")[0] for name in names if "." in name} - set(names)
    parts = []
    for workload in workloads:
        groups = tuple(
            replace(group, rounds=group.quick_rounds or group.rounds)
            for group in workload.groups
            if group.quick
        )
        if workload.name in by_group or (names and not groups):
            groups = workload.groups
        parts.append(replace(workload, groups=groups))
    return [workload for workload in parts if workload.groups]


def _asked_of(group: Group) -> list[str]:
    """Return each target of a group; one text for many figures that have one target."""
    lines = []
    with_target = [figure for figure in group.figures if figure.asked]
    for asked, alike in itertools.groupby(with_target, lambda figure: figure.asked):
        names = [figure.name for figure in alike]
        if len(names) > ALIKE:
            names = [f"{names[0]} and {len(names) - 1} more"]
        lines += [f"{name} {asked}" for name in names]
    return lines


def overview(workloads: Sequence[Workload]) -> str:
    """Return what there is, in a page: workloads, their groups, and the figures with a target."""
    lines = []
    for workload in workloads:
        lines.append(f"{workload.name}: {workload.about}")
        groups = "groups: " + ", ".join(group.name for group in workload.groups)
        lines += textwrap.wrap(
            groups, LISTED_WIDTH, initial_indent="  ", subsequent_indent=" " * 10,
            break_on_hyphens=False,
        )  # fmt: skip
        asked = [text for group in workload.groups for text in _asked_of(group)]
        if asked:
            lines += textwrap.wrap(
                "asked: " + ", ".join(text.replace(" ", "\0") for text in asked), LISTED_WIDTH,
                initial_indent="  ", subsequent_indent=" " * 9, break_on_hyphens=False,
            )  # fmt: skip
    lines.append(f"{PROGRAM} --list NAME shows all figures of a workload, and their baselines.")
    return "\n".join(lines).replace("\0", " ")


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


class Progress:
    """A bar on a terminal, and lines that are printed while it is there; in a pipe those alone."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def __call__(self, name: str) -> None:
        """One step of that name is done."""
        if self._bar is not None:
            self._bar.set_description(name, refresh=False)
            self._bar.update()

    def say(self, text: str) -> None:
        """Print it now, above the bar."""
        if self._bar is not None:
            self._bar.clear()
        print(text, flush=True)


@contextmanager
def progress(total: int, unit: str = "run") -> Iterator[Progress]:
    """Show a bar on a terminal; in a pipe, or without tqdm, show none."""
    if not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield Progress()
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread beside what is measured
    with tqdm(total=total, leave=False, unit=unit) as bar:
        yield Progress(bar)


def run(
    workloads: Sequence[Workload],
    effort: Effort,
    rows: list[Row],
    took_s: dict[str, float],
    quick: bool = False,
) -> None:
    """Measure the workloads; add the rows of each group, and its seconds, once it is done.

    They are printed then, too. In a ``quick`` run groups share their workload's seconds: one that
    has had its part begins no other round.
    """
    total = sum(rounds_of(g, effort) * len(g.probes) for w in workloads for g in w.groups)
    with progress(total) as step:
        for workload in workloads:
            end = time.monotonic() + workload.quick_seconds if quick else math.inf
            for left, group in zip(itertools.count(len(workload.groups), -1), workload.groups):
                name = f"{workload.name}.{group.name}"
                began = time.monotonic()
                samples = measure(
                    group,
                    effort,
                    lambda name=name: step(name),  # type: ignore[misc]
                    began + max(0.0, end - began) / left,
                )
                made = [row_of(group, f, samples, f"{workload.name}.") for f in group.figures]
                rows += made
                took_s[name] = round(time.monotonic() - began, 1)
                if text := lines_of(made):
                    step.say(f"{name}, {took_s[name]:g} s\n{text}\n")


def expected_s(
    workloads: Sequence[Workload], effort: Effort, quick: bool, kept: Mapping[str, float]
) -> float:
    """Return about how many seconds a run takes: as long as a ``kept`` one did, where it says so.

    Of groups that it has not: as long as each round of each probe takes, and starting it.
    """
    total = 0.0
    for workload in workloads:
        seconds = one_round = 0.0
        for group in workload.groups:
            round_s = max(effort.seconds, group.seconds)
            each = sum(STARTING_S + probe.times * round_s for probe in group.probes)
            one_round += each
            seconds += kept.get(f"{workload.name}.{group.name}", each * rounds_of(group, effort))
        total += max(one_round, min(seconds, workload.quick_seconds)) if quick else seconds
    return total


def in_words(seconds: float) -> str:
    """Return seconds as a person says them: "40 s", "12 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _compare(arguments: Sequence[str]) -> int:
    p = _command("compare")
    p.add_argument("old", type=Path, metavar="OLD", help="a file that --json wrote")
    p.add_argument("new", type=Path, metavar="NEW", help="a later one")
    least = 100 * compare.LEAST_CHANGE
    p.add_argument("--percent", type=not_negative, default=least, metavar="P",
                   help=f"a smaller change is none (default {least:g})")  # fmt: skip
    p.add_argument("--all", action="store_true", help="show rows that are the same, too")
    p.add_argument("--json", type=Path, metavar="FILE", help="keep the verdicts")
    p.add_argument("--fail-on-worse", action="store_true", help="exit status 1 if a row is worse")
    options = p.parse_args(arguments)
    if options.json:
        check_writable(options.json)
    old, new = load(options.old), load(options.new)
    warnings = compare.differences(old, new)
    for warning in warnings:
        print(f"The runs differ in more than the code: {warning}.", file=sys.stderr)
    rows = compare.compare(old.rows, new.rows, options.percent / 100)
    print(compare.text(rows, options.all))
    if options.json:
        save(options.json, plain_json(compare.as_data(rows, warnings)))
    worse = any(row.verdict is compare.Change.WORSE for row in rows)
    return 1 if worse and options.fail_on_worse else 0


def _report(arguments: Sequence[str]) -> int:
    p = _command("report")
    p.add_argument("result", type=Path, metavar="RESULT", help="a file that --json wrote")
    p.add_argument("--to", type=Path, metavar="DIR", help="folder (default: named after RESULT)")
    options = p.parse_args(arguments)
    result = load(options.result)
    if not plots.available():
        print(plots.MISSING, file=sys.stderr)
    with progress(len(charts_of(result.rows)), "plot") as step:
        written = report.write(result, options.to or options.result.with_suffix(""), step)
    print(f"{written[0]}, with {len(written) - 1} plots")
    return 0


def _plots(arguments: Sequence[str]) -> int:
    p = _command("plots")
    p.add_argument("result", type=Path, nargs="?", metavar="RESULT",
                   help="default: the latest full run in benchmarks/results")  # fmt: skip
    p.add_argument("--to", type=Path, default=highlights.PLOTS, metavar="DIR",
                   help="default: benchmarks/results/plots")  # fmt: skip
    options = p.parse_args(arguments)
    if not plots.available():
        raise ResultError(plots.MISSING)
    result = load(options.result) if options.result else highlights.latest()
    drawn, left_out = highlights.write(result, options.to)
    print(*(f"{path}, of {result.path}" for path in drawn), *left_out, sep="\n")
    return 0


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "compare": (_compare, "say what became better or worse between two kept runs"),
    "report": (_report, "write a page with tables and plots of a kept run"),
    "plots": (_plots, "redraw the plots of the figures' page"),
}


def _command(name: str) -> argparse.ArgumentParser:
    about = COMMANDS[name][1]
    return argparse.ArgumentParser(prog=f"{PROGRAM} {name}", description=f"{about}.".capitalize())


def main(arguments: Sequence[str] | None = None, workloads: Sequence[Workload] = WORKLOADS) -> int:
    """Run the command line: 2 for a bad command or file, 1 if a probe failed or a row is worse."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words and words[0] in COMMANDS else ""
    try:
        return COMMANDS[command][0](words[1:]) if command else _measure(words, workloads)
    except BrokenPipeError:
        raise
    except ResultError as error:
        why = str(error)
    except OSError as error:
        if not command:
            raise
        why = f"{error.filename or 'it'} cannot be written: {error.strerror}."
    print(f"{PROGRAM} {command}".rstrip() + f": {why}", file=sys.stderr)
    return 2


def _measure(arguments: Sequence[str], workloads: Sequence[Workload]) -> int:
    options = parser().parse_args(arguments)
    try:
        chosen = select(options.names, workloads)
    except ValueError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    if options.quick:
        chosen = quick_part(chosen, [] if ALL in options.names else options.names)
    if options.list:
        print(listing(chosen) if options.names else overview(chosen))
        return 0
    if options.json:
        check_writable(options.json)
    effort = QUICK if options.quick else FULL
    effort = Effort(options.seconds or effort.seconds, options.rounds or effort.rounds)
    environment = env.describe()
    began = time.monotonic()
    print(env.summary(environment))
    warning = env.busy_warning(environment)
    if warning:
        print(warning)
    for workload in chosen:
        if workload.preface:
            print(workload.preface())
    rows: list[Row] = []
    took_s: dict[str, float] = {}
    kept = highlights.seconds_of_latest(options.quick) if effort in (FULL, QUICK) else {}
    print(
        f"It takes about {in_words(expected_s(chosen, effort, options.quick, kept))}.\n", flush=True
    )
    status = 0
    try:
        run(chosen, effort, rows, took_s, options.quick)
    except KeyboardInterrupt:
        status = endings.INTERRUPTED
    except SystemExit as end:
        status = int(end.code or 0)
    if status:
        groups = sum(len(workload.groups) for workload in chosen)
        print(f"\nStopped early, with {len(rows)} rows; each of the {groups} groups gives its rows "
              "when all its rounds are done.", file=sys.stderr)  # fmt: skip
    for text in (curves_of(rows), what_is_said(rows)):
        if text:
            print(f"{text}\n")
    if options.json and rows:
        took_s["all"] = round(time.monotonic() - began, 1)
        save(options.json, as_json(rows, environment, options.quick, effort.seconds,
                                   stopped=status != 0, took_s=took_s))  # fmt: skip
    if status:
        return status
    return 1 if any(FAILED in note for row in rows for note in row.notes) else 0
